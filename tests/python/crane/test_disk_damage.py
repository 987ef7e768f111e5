"""Folders of which a file was lost, cut, put back or taken away beside its owner: no wrong byte."""

import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import blockyard as by
from blockyard._core import DiskInspector
from blockyard.tools.disk.cli import disk as command
from disks import BLOCKS, TALKS, opened, talks

FILES = ("identity", "slots", "table", "floor", "order")
KEPT = 4 * BLOCKS - 1
NEW = range(3)
"""The talks that were played again after the clear."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that was cleared by its second owner, and what it was before."""
    made = tmp_path_factory.mktemp("made")
    root = made / "kv"
    with opened(root) as cache:
        talks(cache)
    shutil.copytree(root, made / "old")
    with opened(root) as cache:
        assert cache.restored == TALKS * BLOCKS
        # As a backup that runs beside the owner.
        shutil.copytree(root, made / "same run")
        cache.clear()
        assert set(talks(cache, NEW).values()) == {0}
    return made


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """A folder that was cleared by its second owner, and has three talks of after that."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path / "kv"


def rank(root: Path) -> Path:
    (found,) = root.glob("*/rank-0")
    return found


def flip(path: Path, bit: int) -> None:
    whole = bytearray(path.read_bytes())
    whole[bit // 8] ^= 1 << bit % 8
    path.write_bytes(whole)


def put_back(which: str) -> Callable[[Path], object]:
    def act(path: Path) -> None:
        old = rank(path.parents[3] / which) / path.name
        if old.exists():
            shutil.copyfile(old, path)
        else:
            path.unlink()

    return act


def folder_in_place(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe_in_place(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "lost": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "cut short": lambda path: os.truncate(path, 20),
    "noise": lambda path: path.write_bytes(b"\xa5" * path.stat().st_size),
    "rotten at first": lambda path: flip(path, 3),
    "rotten at last": lambda path: flip(path, 8 * path.stat().st_size - 5),
    "old": put_back("old"),
    "of the same run": put_back("same run"),
    "a link": lambda path: path.symlink_to(path.rename(f"{path}.away")),
    "a folder": folder_in_place,
    "a pipe": pipe_in_place,
}
REFUSED = {
    ("identity", "lost"): "it is lost, and nobody can say what of the blocks was cleared",
    ("identity", "empty"): "it is lost, and nobody can say what of the blocks was cleared",
    ("identity", "zeros"): "it is lost, and nobody can say what of the blocks was cleared",
    ("identity", "cut short"): "it is no folder of blocks, or its title is not whole",
    ("identity", "noise"): "it is no folder of blocks, or its title is not whole",
    **{
        (name, what): r"it has \d+ bytes, and \d+ are wanted"
        for name in ("slots", "table")
        for what in ("cut", "cut short")
    },
    **{(name, "a link"): "it is a symbolic link" for name in FILES[:3]},
    **{(name, "a folder"): "it is a folder" for name in FILES[:3]},
    **{(name, "a pipe"): "it is no file: remove it" for name in FILES[:3]},
}


def told(*words: str) -> Any:
    return CliRunner().invoke(command, words)


def refusal(root: Path, why: str) -> str:
    with pytest.raises(by.Unavailable, match=why) as error:
        opened(root)
    return str(error.value)


@pytest.mark.parametrize("what", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_inv_31_whatever_happens_to_a_file_what_was_cleared_is_gone(
    root: Path, name: str, what: str
) -> None:
    path = rank(root) / name
    DAMAGES[what](path)
    why = REFUSED.get((name, what))
    if why is None:
        counts = dict(DiskInspector(rank(root)).count())
        with opened(root) as cache:
            if (name, what) not in {("slots", "lost"), ("slots", "empty")}:
                assert counts["blocks"] == cache.restored
            found = talks(cache)
            assert not any(found[talk] for talk in range(TALKS) if talk not in NEW)
            if name in {"floor", "order"}:
                assert {found[talk] for talk in NEW} == {KEPT}
            cache.clear()
    else:
        # A try changes nothing: the next one, and the one after it, are refused alike.
        said = refusal(root, why)
        assert {refusal(root, why), refusal(root, why)} == {said}
        if what == "a link":
            return
        if "remove it" not in said:
            (remedy,) = re.findall(r"wipe it: blockyard disk (.*)", said)
            done = told(*shlex.split(remedy), "--yes")
            assert done.exit_code == 0, done.output
    if what not in {"a folder", "a pipe"} or why is None:
        with opened(root) as cache:
            assert cache.restored == 0
            assert set(talks(cache).values()) == {0}


@pytest.mark.parametrize(
    "damages",
    [
        {"identity": "noise", "table": "zeros"},
        {"identity": "noise", "table": "lost"},
        {"identity": "cut short", "table": "noise"},
        {"identity": "lost", "table": "noise"},
        {"identity": "zeros", "table": "noise", "floor": "lost"},
        {"identity": "noise", "slots": "lost", "table": "empty"},
    ],
    ids=str,
)
def test_the_remedy_works_where_two_files_are_ruined(root: Path, damages: dict[str, str]) -> None:
    for name, what in damages.items():
        DAMAGES[what](rank(root) / name)
    (remedy,) = re.findall(r"wipe it: blockyard disk (.*)", refusal(root, "wipe it"))
    done = told(*shlex.split(remedy), "--yes")
    assert done.exit_code == 0, done.output
    with opened(root) as cache:
        assert cache.restored == 0
        assert set(talks(cache).values()) == {0}


def test_a_wipe_leaves_what_nothing_shows_to_be_blocks(root: Path) -> None:
    for name, size in (("slots", 1000), ("table", 100)):
        (rank(root) / name).write_bytes(b"\xa5" * size)
    (rank(root) / "identity").write_text("somebody's")
    done = told("wipe", str(root), "--all", "--broken", "--yes")
    assert done.exit_code != 0
    assert "remove the folder by hand" in str(done.exception)
    assert (rank(root) / "identity").read_text() == "somebody's"


@pytest.mark.parametrize("name", ["identity", "slots", "table"])
@pytest.mark.parametrize("what", ["lost", "empty", "zeros", "noise", "cut short"])
def test_the_tool_says_what_the_next_owner_is_told(root: Path, name: str, what: str) -> None:
    path = rank(root) / name
    DAMAGES[what](path)
    why = REFUSED.get((name, what))
    done = told("show", str(root))
    assert done.exit_code == 0, done.output
    if why is not None and name == "identity":
        assert re.search(why, done.output)
        assert "blockyard disk wipe" in done.output
        assert told("verify", str(root)).exit_code == 1


def test_each_bit_of_an_identity_may_flip_and_it_is_whole_afterwards(root: Path) -> None:
    path = rank(root) / "identity"
    whole = path.read_bytes()
    text = whole.index(b"\0")
    ours = {path.name: path.read_bytes() for path in rank(root).iterdir()}
    places = [
        *range(0, text, 6),
        4096,
        4104,
        4112,
        4160,
        8192,
        8256,
        *range(12288, 12288 + text, 29),
    ]
    for number, at in enumerate(places):
        flip(path, 8 * at + number % 8)
        assert dict(DiskInspector(rank(root)).count())["blocks"] == len(NEW) * BLOCKS
        with opened(root) as cache:
            assert cache.restored == len(NEW) * BLOCKS, at
        for page in (0, 12288):
            assert path.read_bytes()[page : page + 4096] == whole[page : page + 4096], at
        for name, content in ours.items():
            (rank(root) / name).write_bytes(content)


def test_a_folder_of_a_version_before_is_opened_and_its_text_is_kept_twice_then(
    root: Path,
) -> None:
    path = rank(root) / "identity"
    whole = bytearray(path.read_bytes())
    text = whole.index(b"\0")
    # Versions before had neither the second text nor checks of texts, and no other numbers.
    for page in (4096, 8192):
        whole[page + 64 : page + 72] = bytes(8)
    del whole[8192 + 32 :]
    path.write_bytes(whole)
    (rank(root) / "floor").unlink()
    remedy = r"blockyard disk wipe|open it with the version that made it"
    for at in range(0, text, 5):
        flip(path, 8 * at)
        with pytest.raises((by.Unavailable, by.Misuse), match=remedy):
            opened(root)
        with pytest.raises((by.Unavailable, by.Misuse), match=remedy):
            DiskInspector(rank(root))
        path.write_bytes(whole)
    with opened(root) as cache:
        assert cache.restored == len(NEW) * BLOCKS
    flip(path, 40)
    with opened(root) as cache:
        assert cache.restored == len(NEW) * BLOCKS


@pytest.mark.parametrize("which", [("identity", "floor"), ("identity", "floor", "order")])
def test_inv_31_small_files_of_a_backup_are_older_than_the_table(
    root: Path, which: tuple[str, ...]
) -> None:
    for name in which:
        put_back("old")(rank(root) / name)
    why = "it is older than the table, and nobody can say what of the blocks was cleared"
    for _ in range(4):
        with pytest.raises(by.Unavailable, match=f"{why}.*blockyard disk wipe"):
            opened(root)
        with pytest.raises(by.Unavailable, match=why):
            DiskInspector(rank(root))


# -- beside the owner ------------------------------------------------------------------------------


def away(path: Path) -> None:
    path.rename(path.with_name(f"{path.name}-away"))


def replaced(path: Path) -> None:
    shutil.copyfile(path, f"{path}-copy")
    Path(f"{path}-copy").replace(path)


def each(act: Callable[[Path], object], name: str, at: Path) -> None:
    for path in list(at.glob(name)):
        act(path)


TAKEN: dict[str, Callable[[Path], object]] = {
    **{f"{name} unlinked": partial(each, Path.unlink, name) for name in FILES[:3]},
    **{f"{name} renamed": partial(each, away, name) for name in FILES[:3]},
    **{f"{name} replaced": partial(each, replaced, name) for name in FILES[:3]},
    "all unlinked": partial(each, Path.unlink, "*"),
    "the rank renamed": away,
    "the identity renamed": lambda at: away(at.parent),
    "the root renamed": lambda at: away(at.parents[1]),
}


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Any]:
    cache = opened(tmp_path / "kv")
    talks(cache)
    yield cache
    cache.close()


@pytest.mark.parametrize("what", TAKEN)
def test_inv_29_what_is_taken_away_beside_an_owner_is_noticed(
    tmp_path: Path, owner: Any, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "kv"
    folder = rank(root)
    TAKEN[what](folder)
    second: Any = None
    if not what.startswith(("all", "the ")):
        with pytest.raises(by.Unavailable, match="owns it: a folder has one writer"):
            opened(root)
    else:
        second = opened(root)
        assert second.restored == 0
        assert set(talks(second, range(2)).values()) == {0}
    written = owner.stats()["disk_written_blocks"]
    owner.demote(64)
    plane = owner.crane.device.planes[0]
    for talk in range(100, 104):
        lease = owner.begin(range(100 * talk, 100 * talk + 16))
        plane[owner.block_tables(lease)[0]] = 7
        owner.seal(lease, 16)
        owner.finish(lease)
        owner.demote(64)
        while owner.step() or owner.stats()["flights"]:
            pass
    stats = owner.stats()
    assert stats["disk_written_blocks"] == written, "nothing counts as written"
    assert stats["disk_failed"] > 0
    assert "it was removed or replaced while this process owned the folder" in caplog.text
    assert not owner.crane._tiers["disk"].clear(patience=0.2)
    owner.close()
    if second is not None:
        assert set(talks(second, range(2)).values()) == {KEPT}
        second.close()
        with opened(root) as cache:
            assert cache.restored == 2 * BLOCKS
            assert set(talks(cache, range(2)).values()) == {KEPT}


def test_an_owner_whose_table_is_void_yet_is_not_robbed_of_its_files(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        (rank(tmp_path) / "identity").unlink()
        for size in (64, 32):
            with pytest.raises(by.Unavailable, match="owns it"):
                opened(tmp_path, disk=size)
        assert (rank(tmp_path) / "slots").stat().st_size == 64 * 4096
        assert cache.audit() is None


# -- what is open ----------------------------------------------------------------------------------


def still_open(below: Path) -> list[str]:
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except OSError:
            continue
        if target.startswith(str(below)):
            found.append(target)
    return found


def test_after_close_no_file_of_the_folder_is_open(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    talks(cache)
    disk = cache.crane._tiers["disk"]
    assert still_open(tmp_path)
    cache.close()
    assert not still_open(tmp_path)
    # Though somebody has the cache and its disk still, and may ask.
    assert cache.stats()["disk_written_blocks"] == TALKS * BLOCKS
    assert disk.path.name == "rank-0"
    with opened(tmp_path) as again:
        assert again.restored == TALKS * BLOCKS


class Refuses(RuntimeError):
    """What a copier says that does not end."""


def test_after_a_close_that_fails_no_file_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = opened(tmp_path)
    talks(cache)

    def refuses(_: object) -> None:
        raise Refuses

    for copier in cache.crane.copiers.values():
        monkeypatch.setattr(type(copier), "close", refuses)
    with pytest.raises(Refuses) as error:
        cache.close()
    assert not still_open(tmp_path)
    assert error.traceback


@pytest.mark.parametrize("what", ["cut", "noise", "empty"])
def test_after_an_open_that_was_refused_no_file_is_open(root: Path, what: str) -> None:
    DAMAGES[what](rank(root) / ("table" if what == "cut" else "identity"))
    with pytest.raises(by.Unavailable) as error:
        opened(root)
    assert not still_open(root), "though the error has the frames"
    assert error.traceback
