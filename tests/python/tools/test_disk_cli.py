"""`blockyard disk`: what it shows, what it finds broken, what it removes, and what it refuses."""

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import blockyard as by
from blockyard._core import DiskInspector, DiskLane
from blockyard.crane.tiers.disk_folders import identities, wipe
from blockyard.tools.cli import cli
from blockyard.tools.disk import bench as measuring
from blockyard.yard.config import BlockCosts

LAYOUT = by.KVLayout.llama(layers=2, kv_heads=2, head_dim=8, block_size=4, dtype="float32")
OURS = {"model": 'a "model"\nof two lines', "weights": "v1"}
TALKS, BLOCKS, SLOTS = 5, 4, 64
MIB = 1 << 20


def opened(path: Path, **more: Any) -> Any:
    given: dict[str, Any] = {"device": 9, "disk": SLOTS, "disk_path": path, "namespace": OURS}
    return by.local(LAYOUT, **(given | more))


def settle(cache: Any) -> None:
    until = time.monotonic() + 30
    while cache.step() or cache.stats()["flights"]:
        assert time.monotonic() < until
        time.sleep(1e-4)


def fill(cache: Any) -> set[str]:
    """Has the disk hold some sequences; returns all their keys in hex."""
    keys: set[str] = set()
    for talk in range(TALKS):
        tokens = range(100 * talk, 100 * talk + 4 * BLOCKS)
        lease = cache.begin(tokens)
        settle(cache)
        table = np.asarray(cache.block_tables(lease)[0])[:BLOCKS]
        cache.crane.device.planes[0][table] = talk + 1
        cache.seal(lease, 4 * BLOCKS)
        cache.finish(lease)
        cache.demote(64)
        settle(cache)
    _, found, parents, _ = cache.crane._tiers["disk"].parts[0].lane.restore()
    assert len(found) == TALKS * BLOCKS
    for row in (*found, *parents):
        keys.add(row.tobytes().hex())
    return keys - {"00" * 32}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with opened(tmp_path / "kv") as cache:
        fill(cache)
    return tmp_path / "kv"


def name_of(root: Path) -> str:
    (one,) = identities(root)
    return one.name


def rank_of(root: Path) -> Path:
    return root / name_of(root) / "rank-0"


def typed(*words: object, given: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["disk", *map(str, words)], input=given)


def told(*words: object, status: int = 0) -> str:
    done = typed(*words)
    assert done.exit_code == status, done.output
    assert done.stderr == ""
    return done.stdout


def found(*words: object, status: int = 0) -> dict[str, Any]:
    done = typed(*words, "--json", "-")
    assert done.exit_code == status, done.output
    result: dict[str, Any] = json.loads(done.stdout)
    assert (result["format"], result["blockyard"]) == (1, by.__version__)
    return result


def refused(*words: object) -> str:
    done = typed(*words)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    (line,) = done.stderr.splitlines()
    assert line.startswith("blockyard: ")
    return line


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 8]))
        file.flush()
        os.fsync(file.fileno())


def taken(root: Path) -> list[int]:
    """The slots that have a block."""
    with (rank_of(root) / "table").open("rb") as file:
        records = np.frombuffer(file.read(), np.uint8).reshape(-1, 128)
    return [int(slot) for slot in np.flatnonzero(records.any(axis=1))]


def everything(root: Path) -> dict[str, tuple[int, bytes]]:
    """Files below a folder, with when they were written and what is in them."""
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


# -- show --------------------------------------------------------------------------------------


def test_show_says_whose_blocks_there_are(root: Path) -> None:
    before = everything(root)
    said = told("show", root)
    assert f"{name_of(root)}  format 1, last written by Blockyard {by.__version__}\n" in said
    assert '  model = "a \\"model\\"\\nof two lines"\n' in said
    assert "rank 0: 64 slots of 4.00 KiB" in said
    assert "no process owns it" in said
    assert f"{TALKS * BLOCKS} blocks, 0 cleared, 44 void, 0 broken\n" in said
    result = found("show", root)
    (one,) = result["identities"]
    assert (one["identity"], one["format"]) == (name_of(root), 1)
    assert one["fields"].items() >= OURS.items()
    assert one["fields"]["ranks"] == "1"
    (rank,) = one["ranks"]
    assert rank.items() >= {"rank": 0, "owner": None, "slots": SLOTS, "slot_bytes": 4096}.items()
    assert rank.items() >= {"blocks": 20, "void": 44, "parked": 0, "another": 0}.items()
    assert rank["disk_bytes"] >= SLOTS * 4096
    assert everything(root) == before, "it only reads"


def test_show_works_beside_the_owner_and_names_it(root: Path) -> None:
    with opened(root) as cache:
        assert f"process {os.getpid()} owns it" in told("show", root)
        (one,) = found("show", root)["identities"]
        assert one["ranks"][0]["owner"] == os.getpid()
        # And the owner is not disturbed.
        assert cache.restored == TALKS * BLOCKS
        cache.clear()
        assert "0 blocks, 20 cleared, 44 void" in told("show", root)
    assert "no process owns it" in told("show", root)


def test_show_tells_identities_apart_and_what_is_none_of_them(root: Path) -> None:
    with opened(root, namespace=OURS | {"weights": "v2"}):
        pass
    (root / "lost+found").mkdir()
    (root / ("a" * 16)).mkdir()
    (root / ("b" * 16) / "rank-0").mkdir(parents=True)
    (root / ("b" * 16) / "rank-0" / "identity").write_text("somebody's diary")
    (root / ("c" * 16)).symlink_to(root / name_of_first(root))
    shown = found("show", root)["identities"]
    assert len(shown) == 3
    by_weights = {one["fields"].get("weights"): one for one in shown}
    assert by_weights.keys() == {"v1", "v2", None}
    assert by_weights["v2"]["ranks"][0]["blocks"] == 0
    assert by_weights[None]["format"] is None
    assert "no folder of blocks" in by_weights[None]["ranks"][0]["error"]
    assert "diary" not in told("show", root)


def name_of_first(root: Path) -> str:
    return identities(root)[0].name


def test_show_of_an_empty_folder_says_so(tmp_path: Path) -> None:
    assert told("show", tmp_path) == f"{tmp_path} has no blocks\n"
    assert found("show", tmp_path)["identities"] == []


def test_json_goes_to_a_file_whole(root: Path, tmp_path: Path) -> None:
    to = tmp_path / "shown.json"
    assert "no process owns it" in told("show", root, "--json", to)
    assert json.loads(to.read_text())["identities"][0]["identity"] == name_of(root)
    assert "there is no directory" in refused("show", root, "--json", tmp_path / "no" / "x.json")


# -- verify ------------------------------------------------------------------------------------


def test_verify_finds_nothing_wrong_with_what_is_whole(root: Path) -> None:
    before = everything(root)
    said = told("verify", root)
    assert (
        "20 blocks, 0 cleared, 44 void, 0 broken, 0 torn".replace(
            "0 broken, 0 torn", "0 torn, 0 broken"
        )
        in said
    )
    assert "damaged" not in said
    result = found("verify", root)
    assert result["whole"] is True
    (rank,) = result["identities"][0]["ranks"]
    assert (rank["blocks"], rank["torn"], rank["bad"]) == (20, 0, [])
    assert rank["bytes_read"] == 20 * LAYOUT.block_bytes
    assert everything(root) == before


def test_inv_26_verify_finds_each_flipped_bit_by_its_slot(root: Path) -> None:
    slots = taken(root)
    assert len(slots) == TALKS * BLOCKS
    flip(rank_of(root) / "slots", 4096 * slots[3] + 17)
    flip(rank_of(root) / "slots", 4096 * slots[7])
    flip(rank_of(root) / "table", 128 * slots[11] + 40)
    result = found("verify", root, status=1)
    assert result["whole"] is False
    (rank,) = result["identities"][0]["ranks"]
    assert (rank["blocks"], rank["torn"], rank["broken"]) == (17, 2, 1)
    assert rank["bad"] == sorted([slots[3], slots[7], slots[11]])
    said = told("verify", root, status=1)
    assert "3 blocks are damaged: lookups miss them, and their bytes are never served" in said
    assert f"slots: {', '.join(map(str, rank['bad']))}\n" in said
    flip(rank_of(root) / "slots", 4096 * slots[3] + 17)
    flip(rank_of(root) / "slots", 4096 * slots[7])
    assert "1 block is damaged" in told("verify", root, "--threads", 1, status=1)
    flip(rank_of(root) / "table", 128 * slots[11] + 40)
    told("verify", root)


def test_verify_reads_beside_an_owner_that_writes(root: Path) -> None:
    with opened(root) as cache:
        for talk in range(40):
            lease = cache.begin(range(1000 * talk, 1000 * talk + 4 * BLOCKS))
            settle(cache)
            cache.seal(lease, 4 * BLOCKS)
            cache.finish(lease)
            cache.demote(64)
            cache.step()
            if talk % 10 == 0:
                said = told("verify", root)
                assert f"beside process {os.getpid()}, which owns it" in said
            settle(cache)
        assert found("verify", root)["whole"] is True


def test_verify_of_one_identity_leaves_out_the_others(root: Path) -> None:
    first = name_of(root)
    flip(rank_of(root) / "slots", 4096 * taken(root)[0])
    with opened(root, namespace=OURS | {"weights": "v2"}):
        pass
    (other,) = {one.name for one in identities(root)} - {first}
    assert found("verify", root, "--identity", other)["whole"] is True
    assert found("verify", root, "--identity", first, status=1)["whole"] is False
    assert f"has no identity 0: there are {min(first, other)}" in refused(
        "verify", root, "--identity", "0"
    )


def test_what_cannot_be_looked_at_is_not_called_whole(root: Path) -> None:
    os.truncate(rank_of(root) / "slots", 5000)
    result = found("verify", root, status=1)
    assert "do not fit" in result["identities"][0]["ranks"][0]["error"]
    assert "do not fit" in told("verify", root, status=1)


# -- wipe --------------------------------------------------------------------------------------


def test_wipe_removes_an_identity_and_no_other(root: Path) -> None:
    first = name_of(root)
    with opened(root, namespace=OURS | {"weights": "v2"}) as cache:
        fill(cache)
    assert f"{first}: removed, " in told("wipe", root, first, "--yes")
    assert not (root / first).exists()
    (left,) = identities(root)
    assert left.fields["weights"] == "v2"
    with opened(root, namespace=OURS | {"weights": "v2"}) as cache:
        assert cache.restored == TALKS * BLOCKS
    with opened(root) as cache:
        assert cache.restored == 0
    told("wipe", root, "--all", "--yes")
    assert list(root.iterdir()) == []
    assert "has no blocks" in told("wipe", root, "--all", "--yes")


def test_wipe_asks_and_takes_no_for_an_answer(root: Path) -> None:
    before = everything(root)
    for answer in ("n\n", ""):
        done = typed("wipe", root, "--all", given=answer)
        assert done.exit_code == 130
        assert everything(root) == before
    assert typed("wipe", root, "--all", given="y\n").exit_code == 0
    assert list(root.iterdir()) == []


def test_wipe_spares_what_a_process_owns(root: Path) -> None:
    name = name_of(root)
    with opened(root) as cache:
        before = everything(root)
        for words in ([name], ["--all"]):
            said = refused("wipe", root, *words, "--yes")
            assert f"process {os.getpid()} owns it" in said
            assert everything(root) == before
        assert cache.restored == TALKS * BLOCKS
    told("wipe", root, name, "--yes")


def test_wipe_locks_all_ranks_before_it_removes_one(root: Path) -> None:
    (before,) = identities(root)
    (before.path / "rank-0").rename(before.path / "rank-1")
    with opened(root) as cache:
        fill(cache)
        (one,) = identities(root)
        assert [rank.number for rank in one.ranks] == [0, 1]
        there = everything(root)
        # As it was seen when nobody owned it, and with the rank that is not owned first.
        late = one._replace(ranks=one.ranks[::-1])
        with pytest.raises(by.Misuse, match=f"process {os.getpid()} owns it"):
            wipe(late)
        assert everything(root) == there


def test_wipe_leaves_what_is_not_blockyards(root: Path, tmp_path: Path) -> None:
    name, rank = name_of(root), rank_of(root)
    (tmp_path / "precious").write_text("precious")
    (rank / "notes").write_text("mine")
    (rank / "table").unlink()
    (rank / "table").symlink_to(tmp_path / "precious")
    (root / name / "link").symlink_to(tmp_path)
    (root / "other").mkdir()
    said = told("wipe", root, name, "--yes")
    for path in (rank / "notes", rank / "table", root / name / "link"):
        assert f"left, since it is not Blockyard's: {path}\n" in said
        assert path.is_symlink() or path.exists()
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (rank / "slots").exists()
    assert not (rank / "identity").exists()
    assert (root / "other").is_dir()


@pytest.mark.parametrize("what", ["text", "link", "nothing"])
def test_wipe_refuses_a_folder_that_is_not_blockyards(
    root: Path, tmp_path: Path, what: str
) -> None:
    name, identity = name_of(root), rank_of(root) / "identity"
    (tmp_path / "copy").write_bytes(identity.read_bytes())
    identity.unlink()
    if what == "text":
        identity.write_text("somebody's diary")
    elif what == "link":
        identity.symlink_to(tmp_path / "copy")
    assert "is not Blockyard's" in refused_late("wipe", root, name, "--yes")
    assert (identity.parent / "slots").exists()
    assert (tmp_path / "copy").exists()


def refused_late(*words: object) -> str:
    done = typed(*words)
    assert done.exit_code == 2, done.output
    return done.stderr


def test_wipe_must_be_told_what(root: Path) -> None:
    name = name_of(root)
    assert "name the identities" in refused("wipe", root, "--yes")
    assert "name the identities" in refused("wipe", root, name, "--all", "--yes")
    assert "has no identity ../x" in refused("wipe", root, "../x", "--yes")
    assert name_of(root) == name


# -- bench -------------------------------------------------------------------------------------


SMALL = ("--block-bytes", "20 KiB", "--bytes", "1 MiB", "--threads", 2)


def test_bench_measures_and_leaves_nothing(tmp_path: Path) -> None:
    result = found("bench", tmp_path, *SMALL)
    assert (result["block_bytes"], result["blocks"], result["threads"]) == (20480, 51, 2)
    for name in ("seconds", "cpu_seconds"):
        assert result[name].keys() == {"floor write", "write", "floor read", "read"}
        assert all(len(values) == 5 for values in result[name].values())
    paired = zip(result["seconds"]["floor read"], result["seconds"]["read"], strict=True)
    assert result["read_ratio"] == pytest.approx(sorted(a / b for a, b in paired)[2])
    slowest = sorted(result["seconds"]["read"])[2]
    assert result["speeds_disk"] == pytest.approx(1e9 * slowest / 51, abs=1)
    assert list(tmp_path.iterdir()) == []


def test_what_bench_prints_is_taken_by_a_configuration(tmp_path: Path) -> None:
    said = told("bench", tmp_path, *SMALL)
    line = re.search(
        r"block_costs=BlockCosts\(load=…, compute=…, disk=([\d_]+)\)  # ns for 20.00 KiB", said
    )
    assert line is not None
    block_costs = by.Config(device=9, disk=4, block_costs=(10, 20, 0, int(line[1]))).block_costs
    assert isinstance(block_costs, BlockCosts)
    assert block_costs.disk == int(line[1].replace("_", ""))
    assert said.count("GB/s") == 4
    assert list(tmp_path.iterdir()) == []


def test_a_bench_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: measuring.BlockLane) -> None:
        raise by.Unavailable("on purpose")

    monkeypatch.setattr(measuring.BlockLane, "read", fail)
    done = typed("bench", tmp_path, *SMALL)
    assert (done.exit_code, done.stderr) == (1, "blockyard: on purpose\n")
    assert list(tmp_path.iterdir()) == []


def test_a_block_that_is_not_what_was_written_ends_a_measurement(tmp_path: Path) -> None:
    with measuring.BlockLane(tmp_path, blocks=5, block_bytes=5000, threads=2) as lane:
        lane.write()
        lane.read()
        flip(lane.lane.path / "slots", 3 * 8192)
        with pytest.raises(by.Unavailable, match="corrupt"):
            lane.read()


# -- all of them -------------------------------------------------------------------------------


def refusals(tmp_path: Path) -> Iterator[tuple[list[object], str]]:
    gone, file, link = tmp_path / "gone", tmp_path / "file", tmp_path / "link"
    file.write_text("")
    link.symlink_to(tmp_path)
    for command in (["show"], ["verify"], ["wipe", "--all"]):
        yield [*command, gone], "there is no such folder; give the disk_path"
        yield [*command, file], "is not a folder"
        yield [*command, link], "is a symbolic link"
    yield ["bench", gone], "there is no such folder; make it first"
    yield ["bench", file], "is not a folder"
    yield ["bench", tmp_path, "--bytes", "900 TiB"], "are needed, and"
    yield (
        ["bench", tmp_path, "--bytes", "1 KiB"],
        "--bytes = '1 KiB': smaller than one block of 2,097,152 bytes",
    )
    yield ["bench", tmp_path, "--bytes", "4 GB/rank"], "not by rank or host"
    yield ["bench", tmp_path, "--bytes", "much"], ": --bytes = 'much': give bytes, or memory like"
    yield ["bench", tmp_path, "--bytes", "8 blocks"], "give bytes, or memory like '2 MiB', in KiB"
    yield ["bench", tmp_path, "--bytes", "-1"], "--bytes = '-1': give bytes, or memory like"
    yield ["bench", tmp_path, "--block-bytes", 0], "must be 1 to"
    yield ["bench", tmp_path, "--block-bytes", "3 GiB"], "must be 1 to 2,147,483,648 bytes"
    yield ["bench", tmp_path, "--threads", 65], "65 is not in the range"
    yield ["verify", tmp_path, "--threads", 0], "0 is not in the range"
    yield ["scrub", tmp_path], "No such command"


def test_bad_input_is_named_with_what_to_do(tmp_path: Path) -> None:
    for words, says in refusals(tmp_path):
        assert says in refused(*words), words


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write all")
def test_without_permission_there_is_an_answer(tmp_path: Path) -> None:
    (tmp_path / "shut").mkdir(mode=0)
    assert "cannot be read: Permission denied" in refused("show", tmp_path / "shut")
    assert "no permission to write there" in refused("bench", tmp_path / "shut")
    (tmp_path / "shut").chmod(0o700)


def test_inv_37_no_key_is_ever_shown(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        keys = fill(cache)
    flip(rank_of(tmp_path) / "slots", 4096 * taken(tmp_path)[0])
    flip(rank_of(tmp_path) / "table", 128 * taken(tmp_path)[1] + 33)
    said = "".join(
        typed(*words).output
        for words in (
            ["show", tmp_path],
            ["show", tmp_path, "--json", "-"],
            ["verify", tmp_path],
            ["verify", tmp_path, "--json", "-"],
            ["wipe", tmp_path, "--all", "--yes"],
        )
    )
    assert len(keys) == TALKS * BLOCKS
    assert len(said) > 1000
    for key in keys:
        # No part of one, either, in whatever way it may be written.
        assert key[:12] not in said.lower().replace(" ", "")
        assert str(int(key[:16], 16)) not in said
        assert repr(bytes.fromhex(key))[2:20] not in said


def test_an_inspector_sees_what_a_lane_has(tmp_path: Path) -> None:
    lane = DiskLane(tmp_path, [("model", "m")], rank=7, slots=3, block_bytes=5000)
    inspector = DiskInspector(lane.path)
    assert (inspector.rank, inspector.owner, inspector.slots) == (7, os.getpid(), 3)
    assert (inspector.slot_bytes, inspector.text) == (
        8192,
        'Blockyard\'s blocks, format 1\nmodel = "m"\n',
    )
    assert dict(inspector.count())["void"] == 3
    lane.close()
    with pytest.raises(by.Unavailable, match="its name is not rank-"):
        DiskInspector(tmp_path)
