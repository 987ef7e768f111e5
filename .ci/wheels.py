"""Checks wheels: for every Python from 3.11, for glibc from 2.17, and below 5 MB.

What a wheel's name says is held against what the file in it needs, by auditwheel.

Usage: wheels.py ARCHITECTURES WHEEL...; each architecture of "x86_64 aarch64" has one wheel.
"""

import re
import subprocess
import sys
from pathlib import Path

GLIBC = (2, 17)
MOST_BYTES = 5_000_000
NAME = re.compile(
    r"blockyard-[^-]+-cp311-abi3-manylinux2014_(?P<arch>\w+?)\.manylinux_2_17_(?P=arch)\.whl"
)


def check(wheel: Path) -> tuple[str, list[str]]:
    """Its architecture, and what is wrong with it."""
    named = NAME.fullmatch(wheel.name)
    if named is None:
        return "", [f"{wheel.name} is not for the stable ABI of Python 3.11 and for manylinux2014"]
    arch = named["arch"]
    wrong = []
    if (size := wheel.stat().st_size) >= MOST_BYTES:
        wrong.append(f"{wheel.name} has {size:,} bytes, {MOST_BYTES:,} are too many")
    auditwheel = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    done = subprocess.run(auditwheel, capture_output=True, text=True, check=False)
    said = " ".join(done.stdout.split())
    found = re.search(r'platform tag: "manylinux_(\d+)_(\d+)_(\w+)"', said)
    if found is None:
        wrong.append(f"{wheel.name}: auditwheel finds no manylinux in it: {said}{done.stderr}")
    elif (int(found[1]), int(found[2])) > GLIBC or found[3] != arch:
        wrong.append(
            f"{wheel.name}: auditwheel says that it is manylinux_{'_'.join(found.groups())}"
        )
    if not wrong:
        print(f"wheels: {wheel.name}, {size:,} bytes")
    return arch, wrong


def main(wanted: list[str], wheels: list[Path]) -> int:
    """The exit status: 0 where every architecture has its wheel, and each wheel is right."""
    checked = [check(wheel) for wheel in wheels]
    wrong = [line for _, lines in checked for line in lines]
    if (have := sorted(arch for arch, _ in checked)) != sorted(wanted):
        wrong.append(f"there are wheels for {have}, and one for each of {sorted(wanted)} is wanted")
    for line in wrong:
        print(f"wheels: {line}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1].split(), [Path(name) for name in sys.argv[2:]]))
