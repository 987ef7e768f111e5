"""Installs a wheel alone into a clean environment of each Python found, and tries it there.

Without extras there must be the package and its own dependencies, and nothing else. What
the README shows first must run, and so must the command; `replay` must say what it lacks.

Usage: smoke.py WHEEL CONSTRAINTS FOLDER; the environments stay in the folder.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
README = Path(__file__).parents[1] / "README.md"
ALONE = {"blockyard", "click", "numpy"}
ENDS = 12
ENDING = """
import os, sys, threading, time
import blockyard as by
{imports}
for _ in range({ends}):
    if not (child := os.fork()):
        break
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != {status}:
        sys.exit("a program that {what} does not end with {status}: it was ended by a signal")
else:
    sys.exit()
{program}
"""
"""A program that ends many times, each in a process that has only imported what it needs."""
VERB = """
cache = by.KVCache(device=50_000)
lease = cache.begin(range(40_000))
def ask():
    while True:
        cache.{verb}()
threading.Thread(target=ask, daemon=True).start()
time.sleep(0.02)
"""
PUBLISHER = """
cache = by.KVCache(device=20_000)
publisher = Publisher(cache, "tcp://127.0.0.1:*", replay={replay})
for first in range(0, 160_000, 40_000):
    lease = cache.begin(range(first, first + 40_000))
    cache.seal(lease, 40_000)
    cache.finish(lease)
"""
ENGINE = """
class Engine:
    stops = "in-order"
    def submit(self, step):
        pass
    def poll(self):
        return [], []
async def main():
    front = by.AsyncEngine(scheduler, Engine())
    await front.start()
    asyncio.ensure_future(front.ask(lambda _: [cache.audit() for _ in range(1_000_000)]))
    await asyncio.sleep(0.02)
    sys.stderr = open(os.devnull, "w")
    raise RuntimeError("main fails before close")
layout = by.KVLayout.llama(layers=1, kv_heads=1, head_dim=8)
cache = by.local(layout, device=50_000)
scheduler = by.Scheduler(cache, by.SchedulerOptions(stops="in-order"))
asyncio.run(main())
"""
ZMQ = "import zmq; from blockyard.publishing.publisher import Publisher"
ENDINGS = {
    "has a thread in audit": ("", 0, VERB.format(verb="audit")),
    "has a thread in digest": ("", 0, VERB.format(verb="digest")),
    "has a Publisher": (ZMQ, 0, PUBLISHER.format(replay=None)),
    "has a Publisher that replays": (ZMQ, 0, PUBLISHER.format(replay="'tcp://127.0.0.1:*'")),
    "fails before it closes its AsyncEngine": ("import asyncio", 1, ENGINE),
}
"""Programs that end while a thread is in a verb that has let go of the GIL."""


def find(version: str) -> str | None:
    """A Python of that version: the one that runs this, one on the PATH, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [path / "bin/python" for path in sorted(pyenv.glob(f"{version}.*"), reverse=True)]
    for python in (sys.executable, shutil.which(f"python{version}"), *map(str, found)):
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        # One of pyenv's stands on the PATH even where it would not run.
        if python and said([python, "-I", "-c", code]) == version:
            return python
    return None


def said(command: list[str]) -> str | None:
    """What it prints; None where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def ran(*command: str, status: int = 0) -> str:
    """All that it prints, once it has ended as it must."""
    # As a user would, who has no checkout.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=kept, cwd="/")
    if done.returncode != status:
        said = f"{done.stdout}{done.stderr}".strip()
        raise RuntimeError(f"{' '.join(command)}: status {done.returncode}, not {status}: {said}")
    return done.stdout + done.stderr


def smoke(python: str, wheel: Path, constraints: Path, folder: Path) -> None:
    """Fails where something does not work."""
    ran(python, "-m", "venv", "--without-pip", "--clear", str(folder))
    inside, command = str(folder / "bin/python"), str(folder / "bin/blockyard")
    pip = [sys.executable, "-m", "pip", "--python", inside, "--disable-pip-version-check"]
    pinned = ["--constraint", str(constraints), "--only-binary", ":all:"]
    ran(*pip, "install", "--quiet", "--no-compile", *pinned, str(wheel))

    listed = "from importlib.metadata import distributions as d; print(*{x.name for x in d()})"
    if (there := set(ran(inside, "-c", listed).split())) != ALONE:
        raise RuntimeError(f"the wheel alone brings {sorted(there)}, and not {sorted(ALONE)}")
    example = re.search(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    if example is None:
        raise RuntimeError(f"{README} has no example")
    ran(inside, "-W", "error", "-c", example[1])
    for words, status, what in (
        (["--help"], 0, "proof"),
        (["proof", "--conversations", "4"], 0, "tokens identical"),
        (["disk", "show", "."], 0, "has no blocks"),
        (["replay"], 2, f"pip install '{wheel}[replay]'"),
    ):
        if what not in (text := ran(command, *words, status=status)):
            raise RuntimeError(f"blockyard {' '.join(words)} does not say {what!r}: {text}")
    ran(*pip, "install", "--quiet", "--no-compile", *pinned, f"{wheel}[events]")
    for what, (imports, status, program) in ENDINGS.items():
        told = {"imports": imports, "status": status, "what": what, "program": program}
        ran(inside, "-c", ENDING.format(ends=ENDS, **told))


def tried(version: str, wheel: Path, constraints: Path, folder: Path) -> tuple[bool, str]:
    """Whether nothing went wrong, and a line about it."""
    python = find(version)
    if python is None:
        return True, f"Python {version}: not tried, none was found"
    begun = time.monotonic()
    try:
        smoke(python, wheel, constraints, folder / version)
    except RuntimeError as error:
        return False, f"Python {version} ({python}): {error}"
    took = time.monotonic() - begun
    return True, f"Python {version} ({python}): the wheel works alone, {took:.0f} s"


def main(wheel: Path, constraints: Path, folder: Path) -> int:
    """The exit status."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        each = [pool.submit(tried, version, wheel, constraints, folder) for version in PYTHONS]
    lines = [one.result() for one in each]
    for _, line in lines:
        print(f"smoke: {line}")
    return 0 if all(good for good, _ in lines) else 1


if __name__ == "__main__":
    sys.exit(main(*(Path(name).absolute() for name in sys.argv[1:4])))
