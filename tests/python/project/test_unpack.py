"""What the wheel is built from: only what has changed may look new to cargo, and all of it must."""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

UNPACK = Path(__file__).parents[3] / ".ci/unpack.py"


def unpack(folder: Path, **files: str) -> None:
    """As maturin packs them: of one date, long ago."""
    sdist = folder.parent / "some.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"some-1.0/src/{name}")
            member.size, member.mtime = len(text), 1153704088
            archive.addfile(member, io.BytesIO(text.encode()))
    command = [sys.executable, str(UNPACK), str(sdist), str(folder)]
    subprocess.run(command, check=True)  # noqa: S603


def test_what_has_changed_is_new_what_has_not_is_old_and_what_has_gone_is_gone(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "unpacked"
    unpack(folder, same="1", other="2", gone="3")
    for path in (folder / "src").iterdir():
        os.utime(path, ns=(10**18, 10**18))
    unpack(folder, same="1", other="4", fresh="5")
    found = {path.name: path for path in folder.rglob("*") if path.is_file()}
    assert {name: path.read_text() for name, path in found.items()} == {
        "same": "1",
        "other": "4",
        "fresh": "5",
    }
    new = {name for name, path in found.items() if path.stat().st_mtime_ns > 10**18}
    assert new == {"other", "fresh"}


def test_a_file_may_stand_where_a_folder_was(tmp_path: Path) -> None:
    folder = tmp_path / "unpacked"
    unpack(folder, **{"a/b": "1"})
    unpack(folder, a="2")
    assert (folder / "src/a").read_text() == "2"
    unpack(folder, **{"a/b": "3"})
    assert (folder / "src/a/b").read_text() == "3"
