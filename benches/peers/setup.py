"""Sets the peers up: an environment each under `target/peers`, from their published packages.

    python benches/peers/setup.py [NAME …]

`requirements/NAME.txt` is the whole of an environment, to the letter: packages are installed
without what they ask for, since the modules that are measured need a small part of it. PyTorch is
the published build; it and the libraries that it cannot be loaded without stand once, in an
environment of their own that those which import it look into. No module is replaced by a stub.
An environment that is there already is left alone while its list is the same.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
TARGET = HERE.parents[1] / "target" / "peers"
#: Packages that must be installed first.
NEEDS = {"vllm": "torch", "sglang": "torch", "lmcache": "torch"}
#: Modules that must be importable at the end.
PROOF = {
    "torch": "import torch",
    "vllm": "import vllm.v1.core.sched.scheduler, vllm.v1.kv_offload.cpu.manager",
    "sglang": "import sglang.srt.mem_cache.rust_tree_core.adapter",
    "dynamo": "import dynamo._core, dynamo.indexer.main",
    "lmcache": "import lmcache.v1.storage_backend.local_disk_backend, lmcache.lmcache_fs",
}


def packages(place: Path) -> Path:
    """Returns the folder of an environment's packages."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return place / "lib" / version / "site-packages"


def stamp(name: str) -> str:
    """Returns what an environment is made from."""
    texts = [HERE / "requirements" / f"{one}.txt" for one in (name, NEEDS.get(name)) if one]
    content = b"".join(text.read_bytes() for text in texts)
    return hashlib.sha256(content + sys.version.encode()).hexdigest()


def make(name: str) -> None:
    """Makes an environment, unless it exists."""
    if name in NEEDS:
        make(NEEDS[name])
    place = TARGET / name
    mark = place / "made.txt"
    if mark.exists() and mark.read_text() == stamp(name):
        return
    print(f"peers: setting up {name}", flush=True)
    shutil.rmtree(place, ignore_errors=True)
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    subprocess.run(
        [
            *(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--requirement", HERE / "requirements" / f"{name}.txt"),
        ],
        check=True,
    )
    if name in NEEDS:
        (packages(place) / "shared.pth").write_text(f"{packages(TARGET / NEEDS[name])}\n")
    subprocess.run([python, "-c", PROOF[name]], check=True, capture_output=True)
    mark.write_text(stamp(name))


def main() -> None:
    """Makes the environments named on the command line."""
    parser = argparse.ArgumentParser(description="Sets the peers up under target/peers.")
    parser.add_argument("names", nargs="*", default=list(PROOF), help=", ".join(PROOF))
    for name in parser.parse_args().names:
        make(name)


if __name__ == "__main__":
    main()
