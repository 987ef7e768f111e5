"""Tries the wheel that is installed alone in the environment that runs this.

No extra is installed: there must be the package and its own dependencies, and nothing else. What
the README shows first must run, and so must the command; `replay` must say what it lacks.

Usage: smoke.py WHEEL, the file that was installed.
"""

import os
import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
ALONE = {"blockyard", "click", "numpy"}
# What comes with an environment.
SEEDS = {"pip", "setuptools", "wheel"}


def ran(*command: str, status: int = 0) -> str:
    """All that it prints, once it has ended as it must."""
    # As a user would, who has no checkout.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=kept, cwd="/")
    if done.returncode != status:
        said = f"{done.stdout}{done.stderr}".strip()
        sys.exit(f"{' '.join(command)}: status {done.returncode}, not {status}: {said}")
    return done.stdout + done.stderr


def main(wheel: Path) -> None:
    """Ends the process with what does not work."""
    if (there := {each.name for each in distributions()} - SEEDS) != ALONE:
        sys.exit(f"the wheel alone brings {sorted(there)}, and not {sorted(ALONE)}")
    example = re.search(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    if example is None:
        sys.exit(f"{README} has no example")
    ran(sys.executable, "-W", "error", "-c", example[1])
    for words, status, what in (
        (["--help"], 0, "proof"),
        (["proof", "--conversations", "4"], 0, "tokens identical"),
        (["disk", "show", "."], 0, "has no blocks"),
        (["replay"], 2, f"pip install '{wheel}[replay]'"),
    ):
        command = str(Path(sys.executable).with_name("blockyard"))
        if what not in (text := ran(command, *words, status=status)):
            sys.exit(f"blockyard {' '.join(words)} does not say {what!r}: {text}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
