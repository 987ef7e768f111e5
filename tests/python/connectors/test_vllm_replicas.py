"""Data parallel replicas: each has its share of the machine, and folders of its own on the disk."""

import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import blockyard as by
from blockyard.connectors.vllm.replicas import ALONE, Replica, replica_of
from blockyard.crane.tiers.disk_folders import identities
from vllm_disk import Engine
from vllm_front import LAYERS, PAGE, SIZE, Front, no_torch

__all__ = ["no_torch"]

BLOCK = LAYERS * PAGE
PROMPT = list(range(4 * SIZE))
IDS = [3, 4, 5, 6]


def told(number: int, total: int = 1, local: int = 1) -> Any:
    """What vLLM's `ParallelConfig` says."""
    return SimpleNamespace(
        data_parallel_index=number,
        data_parallel_size=total,
        data_parallel_size_local=local,
    )


def as_replica(number: int, total: int, local: int | None = None) -> dict[str, Any]:
    """Changes of vLLM's configuration, as a model of experts has it."""
    return {
        "data_parallel_index": number,
        "data_parallel_size": total,
        "data_parallel_size_local": total if local is None else local,
    }


def test_one_engine_is_no_replica() -> None:
    assert replica_of(told(0), "an engine", ["serve", "MODEL"]) is ALONE
    assert replica_of(told(0), "an engine", ["serve", "MODEL", "-dp", "1"]) is ALONE
    assert ALONE.name is None
    assert ALONE.said() == ""


def test_vllm_says_how_many_there_are_of_a_model_of_experts() -> None:
    assert replica_of(told(3, 8, 4)) == Replica(3, 8, 4)
    # Each was started by itself, which vLLM counts as one on its machine.
    assert replica_of(told(3, 8, 1)) == Replica(3, 8, 1)
    assert replica_of(told(3, 8, 0)) == Replica(3, 8, 1)


@pytest.mark.parametrize(
    ("arguments", "wants"),
    [
        ("serve M --data-parallel-size 8", Replica(3, 8, 8)),
        ("serve M --data-parallel-size=8 --port 1", Replica(3, 8, 8)),
        ("serve M --data_parallel_size 8", Replica(3, 8, 8)),
        ("serve M -dp 8", Replica(3, 8, 8)),
        ("serve M -dp=8 -dpl 4", Replica(3, 8, 4)),
        ("serve M --data-parallel-size 8 --data-parallel-size-local 4", Replica(3, 8, 4)),
        ("serve M --data-parallel-size 8 --data-parallel-size-local 0", Replica(3, 8, 8)),
        ("serve M -dp 8 --data-parallel-size-l 4", Replica(3, 8, 4)),
        ("serve M --data-parallel-size 8 --data-parallel-rank 3", Replica(3, 8, 1)),
        ("serve M -dp 8 -dpn 3 -dpl 1", Replica(3, 8, 1)),
        ("serve M -dp 8 --data-parallel-external-lb", Replica(3, 8, 1)),
        ("serve M --data-parallel-size 2 --data-parallel-size 8", Replica(3, 8, 8)),
        # What cannot be, or is not said.
        ("serve M --data-parallel-size 2", Replica(3, None)),
        ("serve M --data-parallel-size many", Replica(3, None)),
        ("serve M --data-parallel-size", Replica(3, None)),
        ("serve M --data-parallel-rpc-port 8", Replica(3, None)),
        ("my_server.py", Replica(3, None)),
    ],
)
def test_otherwise_the_command_line_does(arguments: str, wants: Replica) -> None:
    assert replica_of(told(3), "", arguments.split()) == wants


def test_what_vllm_has_left_of_their_number_comes_first() -> None:
    left = told(3)
    left.elastic_ep_max_dp_size = 8
    assert replica_of(left, "", ["my_server.py"]) == Replica(3, 8, 8)
    assert replica_of(left, "", ["serve", "M", "-dp", "9", "-dpl", "4"]) == Replica(3, 8, 4)
    first = told(0)
    first.elastic_ep_max_dp_size = 2
    assert replica_of(first, "", []) == Replica(0, 2, 2)
    # Of experts that come and go it is what there may be at most.
    left.enable_elastic_ep = True
    assert replica_of(left, "", ["my_server.py"]) == Replica(3, None)


def test_the_first_of_several_is_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["vllm", "serve", "M", "-dp", "2"])
    assert replica_of(told(0)) == Replica(0, 2, 2)
    monkeypatch.setattr(sys, "argv", ["my_server.py"])
    assert replica_of(told(0), "an engine_dp0") == Replica(0, None)
    assert replica_of(told(0), "an engine") is ALONE


def test_a_file_of_options_counts_and_the_command_line_goes_before(tmp_path: Path) -> None:
    path = tmp_path / "vllm.yaml"
    path.write_text("model: M\ndata-parallel-size: 4\ndata_parallel_size_local: 2\n")
    assert replica_of(told(1), "", ["serve", "--config", str(path)]) == Replica(1, 4, 2)
    given = ["serve", "M", "--config", str(path), "-dp", "6"]
    assert replica_of(told(1), "", given) == Replica(1, 6, 2)
    # vLLM reads no file that is given in one word.
    assert replica_of(told(1), "", ["serve", "M", f"--config={path}"]) == Replica(1, None)
    path.write_text("data-parallel-size: '4'  # all\n\"data-parallel-size-local\": 2 # here\n")
    assert replica_of(told(1), "", ["serve", "--config", str(path)]) == Replica(1, 4, 2)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for missing in ("/no/such/file", str(tmp_path), str(tmp_path / "bytes")):
        assert replica_of(told(1), "", ["--config", missing]) == Replica(1, None)


def blocks(extra: dict[str, Any], changes: dict[str, Any]) -> int:
    front = Front(changes=changes, **extra)
    count = front.scheduler.front.cache.config.host_blocks
    assert front.worker.back._configs[0].host_blocks == count
    front.worker.shutdown()
    return int(count)


@pytest.mark.parametrize(
    ("host", "wants"),
    [
        (f"{640 * BLOCK / 1024} KiB", 80),
        (f"{640 * BLOCK / 1024} KiB/host", 80),
        (f"{640 * BLOCK / 1024} KiB/rank", 640),
        (64, 64),
    ],
)
def test_memory_of_the_machine_is_divided(host: Any, wants: int) -> None:
    assert blocks({"host": host}, as_replica(3, 8)) == wants
    assert blocks({"host": host}, as_replica(0, 1)) == (640 if isinstance(host, str) else 64)


def test_memory_is_that_of_this_machine_alone() -> None:
    assert blocks({"host": f"{640 * BLOCK / 1024} KiB"}, as_replica(3, 8, local=2)) == 320


def test_a_share_of_less_than_a_block_is_refused() -> None:
    with pytest.raises(
        by.Misuse, match="smaller than one block of 128 bytes for each of 64 replicas"
    ):
        blocks({"host": "4 KiB", "preempt": "recompute"}, as_replica(0, 64))


def test_the_line_at_the_start_says_whose_share_it_is(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Front(changes=as_replica(1, 2), host="64 KiB").worker.shutdown()
        Front(changes=as_replica(1, 2, local=1), host="64 KiB").worker.shutdown()
        Front(changes=as_replica(3, 1), host="64 KiB").worker.shutdown()
    assert "(256 blocks)" in caplog.text
    assert "it is replica 1 of 2: sizes in bytes are divided among those of" in caplog.text
    assert "it is replica 1 of 2: sizes in bytes are taken by each of those" in caplog.text
    assert "replica 3 of an unknown number, so each" in caplog.text


def start(path: Path, number: int, total: int) -> Engine:
    return Engine(path, changes=as_replica(number, total))


def test_replicas_share_a_disk_and_find_their_own_after_a_restart(tmp_path: Path) -> None:
    engines = [start(tmp_path, number, 2) for number in range(2)]
    for number, engine in enumerate(engines):
        engine.offload("one", [number, *PROMPT], [*IDS, 7], 100)
    for engine in engines:
        engine.close()
    assert len(identities(tmp_path)) == 2
    engines = [start(tmp_path, number, 2) for number in range(2)]
    for number, engine in enumerate(engines):
        assert engine.restored == 4
        assert engine.find("mine", [number, *PROMPT]) == len(PROMPT)
        assert engine.find("the other's", [1 - number, *PROMPT]) == 0
        engine.close()


def test_a_restart_with_another_number_says_what_it_does_not_find(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(2):
        engine = start(tmp_path, number, 2)
        engine.offload("one", [*PROMPT, 1], [*IDS, 7], 100)
        engine.close()
    assert "replica" not in caplog.text
    old = [one.name for one in identities(tmp_path)]
    for total in (1, 3):
        caplog.clear()
        engine = start(tmp_path, 0, total)
        assert engine.restored == 0
        engine.close()
        (said,) = [line for line in caplog.messages if "--data-parallel-size 2" in line]
        assert (
            f"{tmp_path} has the blocks of 2 data parallel replicas, which {total} do not" in said
        )
        assert f"blockyard disk wipe {tmp_path} {' '.join(sorted(old))}" in said
    # As many as before find theirs, and hear of the others.
    caplog.clear()
    engine = start(tmp_path, 0, 2)
    assert engine.restored == 4
    engine.close()
    assert "--data-parallel-size 1 to" in caplog.text
    assert "--data-parallel-size 3 to" in caplog.text
    # One of them says it, on each machine.
    caplog.clear()
    start(tmp_path, 1, 2).close()
    assert "data parallel" not in caplog.text
    for number, says in ((2, True), (3, False)):
        caplog.clear()
        Engine(tmp_path, changes=as_replica(number, 4, 2)).close()
        assert ("data parallel" in caplog.text) is says


def test_another_model_on_the_disk_is_none_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Engine(tmp_path, changes=as_replica(0, 2), namespace={"weights": "v2"}).close()
    (tmp_path / "0123456789abcdef").mkdir()
    (tmp_path / "0123456789abcdee").write_text("no folder")
    start(tmp_path, 0, 1).close()
    assert "data parallel" not in caplog.text


def test_each_records_in_a_file_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "traffic.rec"
    fronts = [Front(changes=as_replica(number, 2), record=str(path)) for number in range(2)]
    Front(record=str(path)).worker.shutdown()
    for front in fronts:
        front.worker.shutdown()
        front.scheduler.shutdown()
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "traffic.rec",
        "traffic.rec.0",
        "traffic.rec.1",
    ]
