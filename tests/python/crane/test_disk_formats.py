"""Folders and files of another version: refused before anything is touched, and with a way out."""

import re
import shlex
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import blockyard as by
from blockyard._core import KEY_ENCODINGS, DiskInspector, checksums
from blockyard.connectors.vllm.restart_notes import RestartNotes
from blockyard.tools.cli import cli
from blockyard.tools.traces.lines import TraceError
from blockyard.tools.traces.recording import recorded
from disks import BLOCKS, TALKS, opened, talks

OWN = by.__version__
NUMBERS = (4096, 8192)
"""Pages of `identity` with the version that has written it, 128 bytes behind."""


def xxh3(read: bytes) -> bytes:
    plane = np.frombuffer(read, np.uint8).reshape(1, 1, -1)
    return int(checksums(plane, [0])[0]).to_bytes(8, "little")


def written_by(rank: Path, version: bytes | None) -> None:
    """Has the identity say which version has written it; none, as versions before."""
    path = rank / "identity"
    whole = bytearray(path.read_bytes())
    said = (version or b"").ljust(56, b"\0")
    for page in NUMBERS:
        check = bytes(8) if version is None else xxh3(said)
        whole[page + 128 : page + 192] = said + check
    path.write_bytes(whole)


def of_format(number: int) -> Callable[[Path], None]:
    def change(rank: Path) -> None:
        path = rank / "identity"
        path.write_bytes(path.read_bytes().replace(b"format 1", f"format {number}".encode()))

    return change


def later_record(rank: Path) -> None:
    with (rank / "table").open("r+b") as table:
        found = table.read().index(b"BYD1")
        table.seek(found)
        one = bytearray(table.read(128))
        one[:4] = b"BYD2"
        one[120:] = xxh3(bytes(one[:120]))
        table.seek(found)
        table.write(one)


def begins(name: str, head: bytes) -> Callable[[Path], None]:
    def change(rank: Path) -> None:
        path = rank / name
        path.write_bytes(head + (path.read_bytes()[4:] if path.exists() else bytes(40)))

    return change


LATER: dict[str, tuple[Callable[[Path], None], str, int]] = {
    "identity": (of_format(2), "rank-0/identity", 2),
    "table": (later_record, "rank-0/table", 2),
    "order": (begins("order", b"BYO2"), "rank-0/order", 2),
    "vLLM's cleared": (begins("../cleared", b"BYC3"), "cleared", 3),
    "vLLM's order": (begins("../order", b"BYE2"), "order", 2),
}


@pytest.fixture
def rank(tmp_path: Path) -> Path:
    with opened(tmp_path / "kv") as cache:
        talks(cache)
    (found,) = (tmp_path / "kv").glob("*/rank-0")
    return found


def states(root: Path) -> dict[str, tuple[bytes, int]]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.mark.parametrize("which", LATER)
@pytest.mark.parametrize("missing", [(), ("floor", "order")], ids=["whole", "without small files"])
def test_a_later_format_of_any_file_is_refused_before_anything_is_touched(
    rank: Path, which: str, missing: tuple[str, ...]
) -> None:
    change, file, number = LATER[which]
    root = rank.parents[1]
    for name in missing:
        (rank / name).unlink()
    written_by(rank, b"9.1.0")
    change(rank)
    before = states(root)
    says = (
        rf"{re.escape(str(rank.parent / file))}: its format is {number} \(of Blockyard 9\.1\.0\), "
        rf"and Blockyard {re.escape(OWN)} knows 1: start the version that has written it, give "
        r"another folder, or remove its blocks: blockyard (disk wipe \S+ [0-9a-f]{16})$"
    )
    said = ""
    for _ in range(2):
        with pytest.raises(by.Misuse, match=says) as refused:
            opened(root)
        assert states(root) == before
        said = str(refused.value)
    # Each way out is one.
    opened(root.with_name("another")).close()
    found = re.search(says, said)
    assert found is not None
    done = CliRunner().invoke(cli, [*shlex.split(found[1]), "--yes"])
    assert done.exit_code == 0, done.output
    with opened(root) as cache:
        assert cache.restored == 0
        talks(cache, range(2))


@pytest.mark.parametrize("which", ["identity", "table"])
def test_a_look_says_the_same(rank: Path, which: str) -> None:
    LATER[which][0](rank)
    written_by(rank, None)
    says = rf"its format is 2, and Blockyard {re.escape(OWN)} knows 1: start the version"
    with pytest.raises(by.Misuse, match=says):
        DiskInspector(rank)
    with pytest.raises(by.Misuse, match=says):
        opened(rank.parents[1])
    for command in ("show", "verify"):
        done = CliRunner().invoke(cli, ["disk", command, str(rank.parents[1])])
        assert re.search(says, done.output), done.output


def test_an_older_format_is_refused_as_well(rank: Path) -> None:
    of_format(0)(rank)
    with pytest.raises(by.Misuse, match=r"its format is 0 .*, and Blockyard .* knows 1: start"):
        opened(rank.parents[1])


def test_all_ranks_of_one_folder_are_refused_by_what_their_scheduler_has_noted(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as cache:
        folder = cache.crane._tiers["disk"].folders[0]
    (folder / "cleared").write_bytes(b"BYC2 of a later version\n")
    with pytest.raises(by.Misuse, match="cleared: its format is 2"):
        opened(tmp_path)
    # Where a rank's files are not there, too.
    for one in folder.glob("rank-0/*"):
        one.unlink()
    (folder / "rank-0").rmdir()
    before = [one.name for one in folder.iterdir()]
    with pytest.raises(by.Misuse, match="cleared: its format is 2"):
        opened(tmp_path)
    assert [one.name for one in folder.iterdir()] == before == ["cleared"]


def test_a_version_before_is_read_and_says_who_it_is_then(rank: Path) -> None:
    root = rank.parents[1]
    whole = bytearray((rank / "identity").read_bytes())
    # One text, one copy of the numbers, no checks of texts and no version.
    for page in NUMBERS:
        whole[page + 64 : page + 72] = bytes(8)
        whole[page + 128 : page + 192] = bytes(64)
    del whole[8192:]
    (rank / "identity").write_bytes(whole)
    (rank / "floor").unlink()
    assert DiskInspector(rank).writer is None
    with opened(root) as cache:
        assert cache.restored == TALKS * BLOCKS
        talks(cache)
    assert DiskInspector(rank).writer == OWN
    done = CliRunner().invoke(cli, ["disk", "show", str(root)])
    assert f"format 1, last written by Blockyard {OWN}" in done.output


@pytest.mark.parametrize(
    ("key_hash", "encoding", "name"),
    [
        ("sha256", 1, "ff6fbc1613e9b6ea"),
        ("sha256", 2, "ef8ffd1610460640"),
        ("xxh3", 1, "14ed42806ba82aa1"),
    ],
)
def test_the_name_of_a_folder_stays_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key_hash: str, encoding: int, name: str
) -> None:
    assert KEY_ENCODINGS == {"sha256": 2, "xxh3": 1}
    monkeypatch.setitem(KEY_ENCODINGS, key_hash, encoding)
    with opened(tmp_path, key_hash=key_hash) as cache:
        path = cache.crane._tiers["disk"].path
    assert path.relative_to(tmp_path) == Path(f"{name}/rank-0")


def test_notes_of_versions_before_are_read(tmp_path: Path) -> None:
    (tmp_path / "cleared").write_text("7")
    assert RestartNotes(str(tmp_path)).cleared() == 7


def test_a_recording_of_a_later_version_is_neither_read_nor_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "traffic.rec"
    cache = by.KVCache(device=100, record=path)
    cache.finish(cache.begin(range(100)))
    cache.stop_recording()
    whole = bytearray(path.read_bytes())
    body = struct.pack("<I", 2) + whole[16 + 8 + 4 : 16 + 8 + 16]
    whole[16 : 16 + 8 + 16] = struct.pack("<II", len(body), zlib.crc32(body)) + body
    path.write_bytes(whole)
    says = rf"format 2, and Blockyard {re.escape(OWN)} knows 1: give another path"
    with pytest.raises(by.Misuse, match=says):
        by.KVCache(device=100, record=path)
    assert path.read_bytes() == whole
    with pytest.raises(TraceError, match=rf"format 2, and Blockyard {re.escape(OWN)} knows 1"):
        list(recorded(path))
