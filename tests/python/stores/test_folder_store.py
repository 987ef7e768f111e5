"""A folder as a store where it is full, foreign, gone, killed in a put, or has what is no value."""

import os
import secrets
import signal
import stat
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from blockyard._core import Misuse, Unavailable
from blockyard.stores import Session
from blockyard.stores.folder_store import FolderStore
from blockyard.stores.open import open_store
from mounts import tmpfs

pytestmark = pytest.mark.law("INV-35a")

KEY = "by1/00000000000000ab/0/" + "ab" * 32
TAIL = "by1/00000000000000ab/0/tmp/00000000000000cd/7"
WRITER = """
import sys
from pathlib import Path
from blockyard.stores.folder_store import FolderStore
session = FolderStore(Path(sys.argv[1])).connect()
values = [bytes([number]) * (4 << 20) for number in range(2)]
print("ready", flush=True)
while True:
    for value in values:
        session.put(sys.argv[2], memoryview(value))
"""


def got(session: Session, address: str, room: int = 4096) -> bytes | None:
    found = session.get(address, memoryview(bytearray(room)))
    return None if found is None else bytes(found)


def put(session: Session, address: str, value: bytes, ttl: float | None = None) -> None:
    session.put(address, memoryview(value), ttl)


def modes(root: Path) -> set[tuple[bool, int]]:
    return {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in root.rglob("*")}


def test_it_is_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with closing(FolderStore(tmp_path / "kv").connect()) as session:
            put(session, KEY, b"value")
            put(session, TAIL, b"tail", 60.0)
        assert stat.S_IMODE((tmp_path / "kv").stat().st_mode) == 0o700
        assert modes(tmp_path / "kv") == {(True, 0o700), (False, 0o600)}
    finally:
        os.umask(before)


def test_a_writer_that_was_killed_leaves_a_whole_value_or_none(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "kv")
    for _ in range(4):
        with subprocess.Popen(  # noqa: S603 - the words are ours
            [sys.executable, "-c", WRITER, str(store.root), KEY], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            time.sleep(secrets.randbelow(30) / 1000)
            process.send_signal(signal.SIGKILL)
        with closing(store.connect()) as session:
            found = got(session, KEY, 4 << 20)
            assert found in {None, bytes(4 << 20), b"\1" * (4 << 20)}
            assert len([*session.list("")]) <= 1


def test_what_a_killed_writer_left_goes_after_an_hour(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "kv")
    store.connect().close()
    old, young = store.root / ".new" / "1-0", store.root / ".new" / "1-1"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (1e9, 1e9))
    with closing(store.connect()) as session:
        assert not old.exists()
        assert young.exists()
        assert [*session.list("")] == []


def test_what_has_expired_is_removed_by_the_next_that_connects(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "kv")
    with closing(store.connect()) as session:
        put(session, TAIL, b"tail", 60.0)
        file = store.root / ".expiring" / TAIL
        assert got(session, TAIL) == b"tail"
        os.utime(file, (1e9, 1e9))
        assert got(session, TAIL) is None
        assert session.has([TAIL]) == [False]
        assert [*session.list("")] == []
    store.connect().close()
    assert not file.exists()


def test_a_clock_set_back_keeps_values(tmp_path: Path) -> None:
    with closing(FolderStore(tmp_path / "kv").connect()) as session:
        put(session, KEY, b"value")
        file = tmp_path / "kv" / KEY
        for then in (0.0, time.time() + 1e8):
            os.utime(file, (then, then))
            assert got(session, KEY) == b"value"
            assert session.has([KEY]) == [True]


def test_the_later_put_counts_with_and_without_a_time_to_live(tmp_path: Path) -> None:
    with closing(FolderStore(tmp_path / "kv").connect()) as session:
        for count, ttl in enumerate((None, 60.0, None, 60.0)):
            put(session, KEY, b"%d" % count, ttl)
            assert got(session, KEY) == b"%d" % count
            assert [*session.list("by1/")] == [(KEY, 1)]
        assert session.delete([KEY]) == 1


def test_a_full_disk_fails_the_put_and_keeps_nothing_of_it(tmp_path: Path) -> None:
    with (
        tmpfs(tmp_path / "small", "256k") as small,
        closing(FolderStore(small / "kv").connect()) as session,
    ):
        put(session, KEY, b"x" * 4096)
        with pytest.raises(Unavailable, match="is full"):
            put(session, TAIL, b"y" * (1 << 20))
        assert [*session.list("")] == [(KEY, 4096)]
        assert [*(small / "kv" / ".new").iterdir()] == []
        put(session, TAIL, b"y" * 4096)
        assert got(session, KEY) == b"x" * 4096


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="file"):
        FolderStore(tmp_path / "file").connect()
    with pytest.raises(Unavailable, match="no such folder"):
        FolderStore(tmp_path / "not" / "there").connect()


def test_a_folder_that_went_away_is_no_empty_store(tmp_path: Path) -> None:
    with closing(FolderStore(tmp_path / "kv").connect()) as session:
        put(session, KEY, b"value")
        (tmp_path / "kv").rename(tmp_path / "elsewhere")
        with pytest.raises(Unavailable, match="no such folder"):
            got(session, KEY)
        with pytest.raises(Unavailable, match="no such folder"):
            session.has([KEY])
        with pytest.raises(Unavailable, match="no such folder"):
            put(session, KEY, b"value")
        (tmp_path / "elsewhere").rename(tmp_path / "kv")
        assert got(session, KEY) == b"value"


def test_what_is_no_file_is_no_value(tmp_path: Path) -> None:
    root = tmp_path / "kv"
    with closing(FolderStore(root).connect()) as session:
        (root / "by1").mkdir()
        (root / "secret").write_text("another's")
        (root / "by1" / "link").symlink_to(root / "secret")
        (root / "by1" / "folder").mkdir()
        os.mkfifo(root / "by1" / "fifo")
        for name in ("folder", "fifo", "fifo/x"):
            assert got(session, f"by1/{name}") is None
            assert session.has([f"by1/{name}"]) == [False]
        with pytest.raises(Unavailable):
            got(session, "by1/link")
        assert [*session.list("by1/")] == []


def test_a_file_of_2_gib_is_not_read(tmp_path: Path) -> None:
    root = tmp_path / "kv"
    with closing(FolderStore(root).connect()) as session:
        put(session, KEY, b"value")
        os.truncate(root / KEY, 2 << 30)
        assert got(session, KEY) == b""
        os.truncate(root / KEY, 0)
        assert got(session, KEY) == b""


@pytest.mark.parametrize(
    "address", ["", "/etc", "../x", "a/../b", "a//b", ".new/x", "a/.b", "a\0b"]
)
def test_an_address_that_leaves_the_folder_is_refused(tmp_path: Path, address: str) -> None:
    with (
        closing(FolderStore(tmp_path / "kv").connect()) as session,
        pytest.raises(Misuse, match="address"),
    ):
        put(session, address, b"x")


def test_a_url_may_have_spaces_and_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a b").mkdir()
    store = open_store(f"file://{tmp_path}/a%20b/kv")
    with closing(store.connect()) as session:
        put(session, KEY, b"value")
    assert (tmp_path / "a b" / "kv" / KEY).read_bytes() == b"value"
    assert FolderStore(tmp_path / "a b" / "kv").url == store.url
    monkeypatch.setenv("HOME", str(tmp_path))
    assert isinstance(open_store("file://localhost/~x"), FolderStore)
