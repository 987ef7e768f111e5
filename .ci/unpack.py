"""Unpacks a source distribution into a folder, and touches there only what has changed.

Maturin gives every file in it the same date, of long ago, and cargo goes by dates: unpacked as they
are, changed sources would look old and would not be compiled; all of them new, everything would be.

Usage: unpack.py SDIST FOLDER
"""

import sys
import tarfile
from pathlib import Path


def unpack(sdist: Path, folder: Path) -> None:
    """Makes the folder's files those of the sdist."""
    with tarfile.open(sdist) as archive:
        # All of them are in one folder, which is left out.
        files = {
            folder.joinpath(*Path(member.name).parts[1:]): source.read()
            for member in archive
            if (source := archive.extractfile(member)) is not None
        }
    # Deepest first: a folder goes when nothing is left in it.
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif path not in files:
            path.unlink()
    for path, data in files.items():
        if not path.exists() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


if __name__ == "__main__":
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))
