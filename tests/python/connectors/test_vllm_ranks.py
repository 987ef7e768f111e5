"""The connector on several ranks of vLLM."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

import blockyard as by
from blockyard.connectors.vllm import Blockyard, messages
from blockyard.connectors.vllm.compatibility import facts
from blockyard.crane.copiers.threads import ThreadCopier
from vllm_front import (
    BLOCKS,
    LAYERS,
    PAGE,
    Front,
    Tensor,
    ended,
    front,
    kv_config,
    no_torch,
    vllm_config,
)

__all__ = ["front", "no_torch"]


def test_stages_with_equal_planes_are_ranks_of_one_layout() -> None:
    for rank in range(4):
        config = vllm_config(tensor_parallel_size=2, pipeline_parallel_size=2, rank=rank)
        known = facts(config, kv_config(), version="0.33.0")
        assert (known.layout.ranks, known.rank) == (4, rank)


def test_stages_whose_ranks_have_the_same_kv_are_refused() -> None:
    with pytest.raises(by.Unsupported, match="tensor parallel ranks alone"):
        facts(
            vllm_config(pipeline_parallel_size=2), kv_config("MLAAttentionSpec"), version="0.33.0"
        )


def halves(kind: str = "MLAAttentionSpec", **changes: Any) -> tuple[Any, list[Any]]:
    """The connectors of a scheduler and of two workers."""
    roles = Blockyard.__init__.__globals__["KVConnectorRole"]
    given = {"tensor_parallel_size": 2, "engine_id": f"an engine {uuid4()}"} | changes
    scheduler = Blockyard(vllm_config(**given), roles.SCHEDULER, kv_config(kind))
    workers = []
    for rank in range(2):
        worker = Blockyard(vllm_config(**given, rank=rank), roles.WORKER, kv_config(kind))
        worker.back.copier = ThreadCopier(workers=0)
        worker.register_kv_caches(
            {f"layer {at}": np.zeros((BLOCKS, PAGE), np.uint8).view(Tensor) for at in range(LAYERS)}
        )
        workers.append(worker)
    return scheduler, workers


def test_ranks_with_the_same_kv_share_host_memory_whose_name_goes_when_all_have_it() -> None:
    scheduler, workers = halves()
    ready = {(0, rank): one.get_handshake_metadata() for rank, one in enumerate(workers)}
    ((name,),) = {tuple(one.shared) for one in ready.values()}
    assert Path(name).exists()
    scheduler.set_xfer_handshake_metadata_pp_aware(ready)
    assert not Path(name).exists()
    planes = [one.back.worker.crane._tiers["host"].planes[0] for one in workers]
    planes[0][3] = 7
    assert (planes[1][3] == 7).all()
    for one in workers:
        one.shutdown()


def test_ranks_that_do_not_map_the_same_file_are_refused() -> None:
    scheduler, workers = halves()
    ready = {(0, rank): one.get_handshake_metadata() for rank, one in enumerate(workers)}
    (name,) = ready[0, 1].shared
    ready[0, 1].shared = {name: (1, 2)}
    with pytest.raises(
        by.Unsupported, match="opened 2 different files: run all ranks on one machine"
    ):
        scheduler.set_xfer_handshake_metadata_pp_aware(ready)
    for one in workers:
        one.shutdown()
    Path(name).unlink()


def test_what_an_engine_has_left_that_died_as_it_started_is_removed() -> None:
    _, workers = halves()
    shared = Path(*workers[0].get_handshake_metadata().shared)
    head, _, tail = shared.name.rsplit("-", 2)
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    left = shared.with_name(f"{head}-{process.pid}-{tail}")
    left.write_bytes(b"left")
    halves()[1][0].shutdown()
    assert (left.exists(), shared.exists()) == (False, True)
    for one in workers:
        one.shutdown()
    for more in shared.parent.glob(f"{head}-{os.getppid()}-*"):
        more.unlink()


def test_ranks_with_kv_of_their_own_have_host_memory_of_their_own() -> None:
    _, workers = halves("FullAttentionSpec")
    assert [one.get_handshake_metadata().shared for one in workers] == [{}, {}]
    for one in workers:
        one.shutdown()


def test_a_worker_with_another_configuration_is_named(front: Front) -> None:
    ready = front.worker.get_handshake_metadata()
    front.scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): ready})
    wrong = messages.Ready(3, ("0" * 64,))
    with pytest.raises(by.Misuse, match="rank 3 has fingerprint 000000000000, and"):
        front.scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): ready, (0, 3): wrong})


def test_the_orders_of_a_new_scheduler_are_not_taken_for_those_of_the_one_before(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each numbers its steps from 1, and counts what it has cleared from 0."""
    back: Any = front.worker.back
    cleared: list[object] = []
    monkeypatch.setattr(
        type(back.worker.crane.persistent), "clear", lambda _, **given: cleared.append(given)
    )
    ended(front, "one", list(range(8)), [1, 2])
    front.step()
    front.scheduler.front._end_epoch()
    front.scheduler.front._end_epoch()
    front.step()
    assert len(cleared) == 1
    meta = front.scheduler.build_connector_meta(front.output({}))
    meta.arrived.add("a request of the scheduler before")
    meta.missing.add(9)
    back.load(meta)

    roles = Blockyard.__init__.__globals__["KVConnectorRole"]
    config = vllm_config(kv_connector_extra_config={"host": 64})
    front.scheduler = Blockyard(config, roles.SCHEDULER, kv_config())
    new = front.scheduler.front
    new._end_epoch()
    # So that its first step has the number of the last one.
    new._steps = back._begun - 1
    ended(front, "two", list(range(100, 108)), [3, 4])
    assert len(cleared) == 2, "its first is not one of those before"
    assert (*back.arrived(), back.missing()) == (set(), set(), set()), "of requests that it has not"
    front.step()
    front.step()
    assert new.cache.stats()["flights"] == 0, "it was carried out"
