"""A start for which a disk has no room: whose it may have, and that it takes no other's. INV-29"""

import json
import logging
import os
import re
import shlex
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import blockyard as by
from blockyard._core import KEY_ENCODINGS
from blockyard.crane.tiers import disk_folders
from blockyard.crane.tiers.disk import DiskTier
from blockyard.crane.tiers.disk_folders import identities
from blockyard.shared.layout import Plane
from blockyard.tools.cli import cli
from disks import BLOCKS, LAYOUT, opened, talks
from mounts import tmpfs

SLOTS = 24
"""Of 4 KiB: with its records and texts a folder takes 124 KiB or a little more."""
RANKS = by.KVLayout((Plane("kv", 2, 2048),), block_size=4, dtype="uint8", ranks=2)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk with room for two identities."""
    with tmpfs(tmp_path / "small", "288k") as disk:
        yield disk


def kept(disk: Path, weights: str, *, slots: int = SLOTS, talking: int = 3, **more: Any) -> str:
    """Keeps some talks under these weights; returns the name of their identity."""
    before = {one.name for one in identities(disk)} if disk.exists() else set()
    names = {"model": "m", "weights": weights}
    with opened(disk, disk=slots, namespace=names, **more) as cache:
        talks(cache, range(talking))
    (name,) = {one.name for one in identities(disk)} - before or {""}
    return name


def blocks(disk: Path) -> dict[str, int]:
    """Blocks of each identity."""
    return {
        one.name: sum(
            dict(rank.inspector.count())["blocks"]
            for rank in one.ranks
            if rank.inspector is not None
        )
        for one in identities(disk)
    }


def test_the_error_names_the_identity_its_size_and_the_command_that_makes_room(small: Path) -> None:
    one, two = kept(small, "v1"), kept(small, "v2")
    before = blocks(small)
    assert before == {one: 3 * BLOCKS, two: 3 * BLOCKS}
    with pytest.raises(by.Unavailable, match="take its room: 101376 bytes are wanted") as refused:
        kept(small, "v3")
    said = str(refused.value)
    assert re.search(rf"{one} \(model: m; weights: v1; 1\d\d\.00 KiB, last used 20", said)
    assert "disk_reclaim = true does that" in said
    assert two not in said, "one is enough"
    assert {name: blocks(small)[name] for name in before} == before, "nothing was removed"
    command = re.search(r"blockyard (disk wipe \S+ [0-9a-f ]+);", said)
    assert command is not None
    done = CliRunner().invoke(cli, [*shlex.split(command[1]), "--yes"])
    assert done.exit_code == 0, done.output
    kept(small, "v3")
    assert one not in blocks(small)


def test_a_message_says_of_engines_what_a_person_reads(tmp_path: Path) -> None:
    digest = "sha256:" + 32 * "ab"
    model = {"architectures": ["Llama", "B"], "model": None, "options": digest, "vLLM": "0.33.0"}
    weights = {"content": digest, "load": "auto", "operator": "v1"}
    names = {"model": json.dumps(model), "weights": json.dumps(weights)}
    opened(tmp_path, namespace=names).close()
    about = "model: architectures Llama, B, vLLM 0.33.0; weights: load auto, operator v1, content"
    assert one_of(tmp_path).about == f"{about} abababab"


def test_an_option_takes_the_room_of_what_was_used_last_longest_ago(
    small: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = kept(small, "v1"), kept(small, "v2")
    later = time.time() + 100
    for name in ("identity", "table"):
        os.utime(small / one / "rank-0" / name, (later, later))
    with caplog.at_level(logging.WARNING, "blockyard"):
        kept(small, "v3", disk_reclaim=True)
    assert set(blocks(small)) >= {one}
    assert two not in blocks(small)
    (line,) = [line for line in caplog.messages if "disk_reclaim" in line]
    assert f"{small}: removed for its room (disk_reclaim): {two} (model: m; weights: v2; " in line
    # What has its room already takes none.
    caplog.clear()
    kept(small, "v1", disk_reclaim=True)
    assert not [line for line in caplog.messages if "disk_reclaim" in line]


def test_the_folder_of_another_encoding_of_keys_is_named_and_gives_its_room(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setitem(KEY_ENCODINGS, "sha256", 1)
        one = kept(small, "v1")
    two = kept(small, "v2")
    os.utime(small / two / "rank-0" / "table")
    with pytest.raises(by.Unavailable, match=rf"{one} \(model: m; weights: v1; .* disk wipe"):
        kept(small, "v1")
    assert set(blocks(small)) >= {one, two}
    kept(small, "v1", disk_reclaim=True)
    assert one not in blocks(small)
    assert two in blocks(small)


def test_what_a_process_owns_is_never_taken(small: Path) -> None:
    names = {"model": "m", "weights": "v1"}
    with opened(small, disk=SLOTS, namespace=names) as living:
        talks(living, range(3))
        two = kept(small, "v2")
        kept(small, "v3", disk_reclaim=True)
        assert two not in blocks(small)
        (one,) = [one.name for one in identities(small) if one.owners]
        with (
            opened(small, disk=SLOTS, namespace={**names, "weights": "v3"}),
            pytest.raises(by.Unavailable, match=f"is owned, as .* by process {os.getpid()}"),
        ):
            kept(small, "v4", disk_reclaim=True)
        assert talks(living, range(3)) == dict.fromkeys(range(3), 4 * BLOCKS - 1)
    assert one in blocks(small)


@pytest.mark.parametrize("other", ["1 of 2", "1", "1 of 3"])
def test_what_the_same_engines_other_replicas_have_is_never_taken(small: Path, other: str) -> None:
    def start(replica: str) -> None:
        names = {"model": "m", "weights": "v1", "replica": replica}
        DiskTier(LAYOUT, small, blocks=SLOTS, identity=names, reclaim=True).close()

    start(other)
    (one,) = blocks(small)
    (small / "a file").write_bytes(bytes(os.statvfs(small).f_bavail * 4096 - (40 << 10)))
    own = other.replace("1", "0", 1)
    with pytest.raises(
        by.Unavailable, match=f"this engine's other replicas or groups of layers, as {one} "
    ):
        start(own)
    assert one_with_room(small) == one
    # Nobody starts beside it who would find what another number of replicas has left.
    start("0 of 4")
    assert one_with_room(small) != one


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize(("first", "second"), [("", "1"), ("1", ""), ("1", "2")])
def test_what_other_groups_of_the_same_layers_have_is_never_taken(
    small: Path, first: str, second: str, *, shares: bool
) -> None:
    """Also where the ranks of a model share its latent KV, and not its states."""

    def start(group: str, fewer: int, model: str = "m") -> None:
        names = {"model": model, "weights": "v1"} | ({"group of layers": group} if group else {})
        shared = shares and fewer == 1
        planes = (Plane("kv", 1, LAYOUT.block_bytes - fewer, replicated=shared),)
        layout = by.KVLayout(planes, block_size=4, dtype="uint8", ranks=2 if shares else 1)
        which = int(group or 0)
        slots = 2 * SLOTS if shared else SLOTS
        DiskTier(layout, small, blocks=slots, identity=names, reclaim=True, group=which).close()

    start(first, 1)
    (one,) = blocks(small)
    (small / "a file").write_bytes(bytes(os.statvfs(small).f_bavail * 4096 - (40 << 10)))
    with pytest.raises(by.Unavailable, match=f"replicas or groups of layers, as {one} "):
        start(second, 2)
    assert one_with_room(small) == one
    if not shares:  # else it has not enough room for both ranks
        start(second, 2, "another")
        assert one_with_room(small) != one


def one_with_room(small: Path) -> str:
    (name,) = [one.name for one in identities(small) if one.nbytes > 100_000]
    return name


def test_what_cannot_be_looked_at_is_named_and_stays(small: Path) -> None:
    one, two = kept(small, "v1"), kept(small, "v2")
    for name in (one, two):
        identity = small / name / "rank-0" / "identity"
        identity.write_bytes(identity.read_bytes().replace(b"format 1", b"format 2"))
    for more in ({}, {"disk_reclaim": True}):
        with pytest.raises(by.Unavailable, match=r"cannot be looked at: .* its format is 2") as why:
            kept(small, "v3", **more)
        assert f"blockyard disk wipe {small} {min(one, two)}" in str(why.value)
    assert {one, two} <= {found.name for found in identities(small)}


def test_one_folder_under_two_names_is_refused(small: Path) -> None:
    (small / "kv").mkdir(mode=0o700)
    (small / "link").symlink_to(small)
    for other in (small / "link" / "kv", small / "kv" / ".." / "kv", small / "." / "kv" / "."):
        for paths in ([small / "kv", other], [other, small / "kv"]):
            if paths[0] != paths[1]:
                with pytest.raises(by.Misuse, match="are one folder: give each disk once"):
                    opened(small, disk=SLOTS, disk_path=paths)
    with pytest.raises(by.Misuse, match="are one folder"):
        opened(small, disk=SLOTS, disk_path=[small / "new", small / "link" / "new"])


def test_an_engine_that_begins_in_a_folder_as_it_is_wiped_stays(
    small: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has a folder again, before that is removed: what was wiped counts all the same."""
    one, two = kept(small, "v1"), kept(small, "v2")
    rmdir = Path.rmdir

    def begins(path: Path) -> None:
        (path / "identity").touch()
        rmdir(path)

    with monkeypatch.context() as meanwhile, caplog.at_level(logging.WARNING, "blockyard"):
        meanwhile.setattr(Path, "rmdir", begins)
        kept(small, "v3", disk_reclaim=True)
    assert any(f"(disk_reclaim): {one} " in line for line in caplog.messages)
    assert blocks(small)[two] == 3 * BLOCKS, "one was enough"


def test_where_all_would_not_be_enough_nothing_is_removed(small: Path) -> None:
    one, two = kept(small, "v1"), kept(small, "v2")
    with pytest.raises(by.Unavailable, match="all of them are not enough") as why:
        kept(small, "v3", slots=80, disk_reclaim=True)
    assert f"blockyard disk wipe {small} {one} {two}" in str(why.value)
    found = blocks(small)
    assert (found[one], found[two]) == (3 * BLOCKS, 3 * BLOCKS)


def test_what_is_not_blockyards_or_not_whole_stays(small: Path) -> None:
    one, two = kept(small, "v1"), kept(small, "v2")
    (small / "a file").write_text("a user's")
    (small / "0123456789abcdef").mkdir()
    (small / "0123456789abcdef" / "notes").write_text("a user's")
    (small / two / "rank-0" / "notes").write_text("a user's")
    identity = small / one / "rank-0" / "identity"
    identity.write_bytes(bytes(len(identity.read_bytes())))
    kept(small, "v3", disk_reclaim=True)
    left = {str(path.relative_to(small)) for path in small.rglob("*") if path.is_file()}
    assert {"a file", "0123456789abcdef/notes", f"{two}/rank-0/notes"} <= left
    assert {f"{one}/rank-0/{name}" for name in ("slots", "table", "identity")} <= left
    assert f"{two}/rank-0/slots" not in left


def test_another_size_or_owner_of_its_own_folder_takes_nothing_of_others(small: Path) -> None:
    one, two = kept(small, "v1"), kept(small, "v2")
    with pytest.raises(by.Unavailable, match=f"give the size of before, {SLOTS} blocks"):
        kept(small, "v2", slots=64, disk_reclaim=True)
    names = {"model": "m", "weights": "v2"}
    with opened(small, disk=SLOTS, namespace=names), pytest.raises(by.Unavailable, match="owns it"):
        kept(small, "v2", disk_reclaim=True)
    assert set(blocks(small)) == {one, two}


def _dies(small: str, at: int) -> None:
    """Takes room, and dies before it unlinks one more file."""
    unlink, left = os.unlink, iter(range(at))

    def counted(*names: Any, **more: Any) -> None:
        if next(left, None) is None:
            os._exit(9)
        unlink(*names, **more)

    setattr(os, "unlink", counted)  # noqa: B010 - this process is about to die
    kept(Path(small), "v3", disk_reclaim=True)


@pytest.mark.law("INV-31")
def test_a_kill_in_between_leaves_what_the_next_start_can_have(small: Path) -> None:
    names = {"model": "m", "weights": "v1"}
    for at in range(6):
        kept(small, "v1")
        one = one_of(small).name
        with opened(small, disk=SLOTS, namespace=names) as cache:
            # As vLLM's scheduler notes that this owner, and those before, are cleared.
            run = cache.crane._tiers["disk"].run
        (small / one / "cleared").write_text(f"{run}\n")
        two = kept(small, "v2")
        child = get_context("spawn").Process(target=_dies, args=(str(small), at))
        child.start()
        child.join(60)
        if child.exitcode == 0:
            break
        assert child.exitcode == 9
        left = blocks(small)
        assert left[two] == 3 * BLOCKS
        assert left.get(one, 0) in {0, 3 * BLOCKS}
        if (small / one / "cleared").exists():
            # What it says was cleared is not what the next owner writes.
            with opened(small, disk=SLOTS, namespace=names) as cache:
                assert cache.crane._tiers["disk"].run > run
        elif left.get(one, 0):
            raise AssertionError("nobody knows any more that its blocks were cleared")
        kept(small, "v3", disk_reclaim=True)
        emptied(small)
    assert at >= 4


def emptied(small: Path) -> None:
    for one in identities(small):
        disk_folders.wipe(one)


def one_of(small: Path) -> disk_folders.Identity:
    (one,) = identities(small)
    return one


def test_room_is_wanted_for_all_ranks_and_they_take_it_one_after_the_other(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", "400k") as small:

        def tier(rank: int, weights: str, **more: Any) -> DiskTier:
            names = {"model": "m", "weights": weights}
            return DiskTier(RANKS, small, blocks=SLOTS, identity=names, rank=rank, **more)

        for rank in range(2):
            tier(rank, "v1").close()
        with pytest.raises(by.Unavailable, match="with all ranks 405504 bytes are wanted there"):
            DiskTier(
                RANKS,
                small,
                blocks=2 * SLOTS,
                identity={"model": "m", "weights": "v2"},
                reclaim=True,
            )
        assert sum(len(one.ranks) for one in identities(small) if one.nbytes > 100_000) == 2
        made = [tier(rank, "v2", reclaim=True) for rank in range(2)]
        with pytest.raises(by.Unavailable, match=r"process .* owns it"):
            tier(0, "v2", reclaim=True)
        for one in made:
            one.close()
        assert [one.nbytes > 100_000 for one in identities(small)].count(True) == 1


def test_a_start_that_one_of_several_disks_refuses_gives_the_room_of_the_others_back(
    small: Path, tmp_path: Path
) -> None:
    large = tmp_path / "large"
    kept(small, "v1", slots=48)
    free = os.statvfs(small).f_bavail
    with pytest.raises(by.Unavailable, match=f"blockyard disk wipe {small} "):
        kept(small, "v2", slots=64, disk_path=[small, large])
    for slots in [*small.rglob("slots"), *large.rglob("slots")]:
        assert slots.stat().st_size in {0, 48 * 4096}
    assert os.statvfs(small).f_bavail > free - 16
    kept(small, "v2", slots=64, disk_path=[small, large], disk_reclaim=True)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"disk_reclaim": "yes"}, "disk_reclaim = 'yes'"),
        ({"disk_reclaim": True, "disk": 0, "disk_path": None}, "and no disk_path"),
    ],
)
def test_bad_input_is_named(tmp_path: Path, more: dict[str, Any], says: str) -> None:
    given = dict(more)
    with pytest.raises(by.Misuse, match=re.escape(says)):
        opened(given.pop("disk_path", tmp_path), **given)
    with pytest.raises(by.Misuse, match="reclaim = 1"):
        DiskTier(
            LAYOUT,
            tmp_path,
            blocks=8,
            identity={"model": "m", "weights": "v"},
            reclaim=1,  # type: ignore[arg-type]
        )


def test_ranks_and_files_may_say_it(tmp_path: Path) -> None:
    (tmp_path / "kv.toml").write_text("device = 8\ndisk = 8\ndisk_reclaim = true\n")
    config = by.Config.read(tmp_path / "kv.toml")
    assert config.disk_reclaim
    assert by.Config.of(config.to_mapping()) == config
    assert config.fingerprint == by.Config(device=8, disk=8).fingerprint
