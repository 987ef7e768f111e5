"""The connector for vLLM, against what is recorded of vLLM 0.33. E1 E2 E4 E5 E6"""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import blockyard as by
from blockyard.connectors.interface import parameters_of
from blockyard.connectors.vllm import Blockyard, messages
from blockyard.connectors.vllm.compatibility import facts
from blockyard.connectors.vllm.metrics import Figures, Metrics
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.testing import Script, ScriptedCopier, delay, deliver, fail, hang
from engine_stub import touched
from vllm_front import (
    SIZE,
    Blocks,
    Drafts,
    Front,
    Pool,
    ended,
    front,
    kv_config,
    no_torch,
    vllm_config,
)

__all__ = ["front", "no_torch"]


@pytest.mark.parametrize(
    ("own", "theirs"),
    [
        (Blockyard, "KVConnectorBase_V1 SupportsHMA"),
        (messages.Reports, "KVConnectorWorkerMetadata"),
        (Figures, "KVConnectorStats"),
        (Metrics, "KVConnectorPromMetrics"),
    ],
)
def test_every_call_of_vllm_has_the_recorded_name_and_parameters(own: type, theirs: str) -> None:
    calls = {k: v for one in theirs.split() for k, v in touched("vllm", one)["methods"].items()}
    made = {
        # Ours take more than vLLM gives.
        name: " ".join(
            one for one in (parameters_of(getattr(own, name)) or "").split() if one != "*_"
        )
        for name, call in vars(own).items()
        if inspect.isroutine(call) and not name.startswith("_")
    }
    assert made
    assert {name: calls.get(name) for name in made} == made


def test_what_ends_is_found_again_and_comes_up_to_other_blocks(front: Front) -> None:
    one = front.request("one", list(range(11)))
    assert front.begin(one, [1, 2, 3]) == 0
    front.step({one: ([1, 2, 3], 11)}, write={1: 11, 2: 12, 3: 13})
    one.num_tokens = 12
    assert front.scheduler.request_finished(one, [1, 2, 3]) == (False, None)
    front.step()
    front.step()
    two = front.request("two", list(range(9)))
    assert front.begin(two, [7, 8, 9]) == 8
    assert front.until("two") == set()
    assert [int(front.kv["layer 1"][block, 0]) for block in (7, 8)] == [11, 12]
    front.scheduler.update_state_after_alloc(two, Blocks([7, 8, 9]), 0)
    front.scheduler.request_finished(two, [])
    front.step()
    assert front.held() == [0, 0, 0]


def test_a_prefix_is_loaded_only_where_that_beats_computing_it() -> None:
    for load, found in ((1, 8), (10_000_000, 0)):
        front = Front(block_costs=(load, 1_000, 0))
        ended(front, "one", list(range(11)), [1, 2, 3])
        front.step()
        front.step()
        two = front.request("two", list(range(9)))
        assert front.begin(two, [7, 8, 9]) == found
        if not found:
            front.step({two: ([7, 8, 9], 9)})
            two.num_tokens, two.num_preemptions = 10, 1
            front.step(preempted={"two"})
            front.step()
            assert front.begin(two, [7, 8, 9]) == 9, "what is its own comes back"
        front.worker.shutdown()


def test_a_preempted_request_comes_back_with_its_tail(front: Front) -> None:
    one = front.request("one", list(range(10)))
    front.begin(one, [1, 2, 3])
    front.step({one: ([1, 2, 3], 10)}, write={1: 11, 2: 12, 3: 13})
    one.num_tokens, one.num_preemptions = 11, 1
    # Its blocks have new contents in the same step.
    front.step(preempted={"one"}, write={1: 0, 2: 0, 3: 0})
    front.step()
    assert front.begin(one, [4, 5, 6]) == 10
    assert front.until("one") == set()
    assert [int(front.kv["layer 0"][block, 0]) for block in (4, 5, 6)] == [11, 12, 13]
    front.scheduler.request_finished(one, [])
    front.step()
    assert front.held() == [0, 0, 0]


def test_blocks_that_a_row_is_given_later_are_kept_with_the_others(front: Front) -> None:
    one = front.request("one", list(range(10)))
    front.begin(one, [1, 2])
    front.step({one: ([1, 2], 5)})
    # A chunk of its prompt, and then a token with a block of its own.
    front.step(more={one: ([3], 5, 5)})
    one.num_tokens = 13
    one.block_hashes = front.request("", list(range(13))).block_hashes
    front.step(more={one: ([4], 12, 1)}, write={1: 11, 2: 12, 3: 13, 4: 14})
    one.num_tokens, one.num_preemptions = 14, 1
    front.step(preempted={"one"})
    front.step()
    assert front.begin(one, [5, 6, 7, 8]) == 13
    assert front.until("one") == set()
    assert [int(front.kv["layer 1"][block, 0]) for block in (5, 6, 7, 8)] == [11, 12, 13, 14]


def test_a_prompt_in_chunks_is_kept_as_far_as_it_was_scheduled(front: Front) -> None:
    one = front.request("one", list(range(15)))
    front.begin(one, [1, 2])
    front.step({one: ([1, 2], 7)})
    one.num_preemptions = 1
    front.step(preempted={"one"})
    front.step()
    assert front.begin(one, [5, 6]) == 7


def test_blocks_are_offloaded_as_they_fill_where_that_is_asked_for() -> None:
    front = Front(offload="through")
    one = front.request("one", list(range(10)))
    front.begin(one, [1, 2, 3])
    front.step({one: ([1, 2, 3], 10)})
    one.num_tokens = 13
    one.block_hashes = front.request("", list(range(13))).block_hashes
    front.step(more={one: ([4], 12, 1)})
    front.step()
    assert front.begin(front.request("two", list(range(14))), [7, 8, 9]) == 12
    front.worker.shutdown()


def test_what_vllm_evicts_next_is_copied_ahead() -> None:
    front = Front(ScriptedCopier(ThreadCopier(workers=0), Script([fail(0)])), ahead=8)
    front.scheduler.bind_gpu_block_pool(Pool(5, 4, 3, 6, 1))
    ended(front, "one", list(range(13)), [1, 3, 5])
    front.step()
    stats = front.scheduler.front.cache.stats
    for name, ids, copied in (("two", [11, 12], 0), ("three", list(range(13, 20)), 3)):
        more = front.request(name, list(range(100, 100 + SIZE * len(ids))))
        assert front.begin(more, ids) == 0
        # It looks again when half of what it has seen is given out.
        front.step({more: (ids, more.num_tokens)})
        front.step()
        assert stats()["host_idle"] == copied, "the first copy has failed"
    front.worker.shutdown()


@pytest.mark.law("E9")
def test_weights_that_can_change_end_what_is_below_at_a_reset_nobody_tells_of() -> None:
    for weights, said, found in (
        (False, None, 8),
        (True, None, 0),
        (True, True, 8),
        (False, False, 0),
    ):
        front = Front(keep_on_reset=said, changes={"enable_sleep_mode": weights})
        pool = Pool()
        front.scheduler.bind_gpu_block_pool(pool)
        ended(front, "one", list(range(11)), [1, 2, 3])
        front.step()
        front.step()
        pool.reset()
        assert front.begin(front.request("two", list(range(9))), [7, 8, 9]) == found
        front.worker.shutdown()


@pytest.mark.parametrize(
    ("change", "changes"),
    [
        ({}, False),
        ({"enable_sleep_mode": True}, True),
        ({"worker_extension_cls": "trainer.Extension"}, True),
        ({"weight_transfer_config": object()}, True),
    ],
)
def test_weights_may_change_where_vllm_is_told_so(change: dict[str, Any], changes: bool) -> None:
    assert facts(vllm_config(**change), kv_config(), version="0.33.0").weights_change == changes


@pytest.mark.law("E9")
def test_what_ended_just_before_a_reset_is_not_found_after_it(front: Front) -> None:
    ended(front, "one", list(range(11)), [1, 2, 3])
    front.scheduler.reset_cache()
    front.step()
    front.step()
    assert front.begin(front.request("two", list(range(9))), [7, 8, 9]) == 0


def test_a_reset_of_the_prefix_cache_alone_is_said_once(
    front: Front, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Pool()
    front.scheduler.bind_gpu_block_pool(pool)
    front.step()
    pool.reset()
    front.scheduler.reset_cache()
    front.step()
    assert not caplog.records
    for _ in range(2):
        pool.reset()
        front.step()
    (record,) = caplog.records
    assert "the host keeps its blocks" in record.message


def test_what_the_v2_runner_zeroes_before_the_copies_is_not_copied(front: Front) -> None:
    one = front.request("one", list(range(10)))
    front.begin(one, [1, 2, 3])
    front.step({one: ([1, 2, 3], 10)})
    one.num_tokens, one.num_preemptions = 11, 1
    front.step(preempted={"one"}, zeroed=[2])
    front.step()
    assert front.begin(one, [4, 5, 6]) == SIZE, "only what is before the block"


@pytest.mark.law("E9")
def test_nothing_is_kept_of_a_request_whose_output_is_dropped(front: Front) -> None:
    one = front.request("one", list(range(10)))
    front.begin(one, [1, 2, 3])
    front.step({one: ([1, 2, 3], 10)})
    one.num_tokens, one.num_preemptions, one.drop_stale_output = 11, 1, True
    # vLLM admits it again before the step that says that it was preempted.
    assert front.begin(one, [4, 5, 6]) == 0
    front.step({one: ([4, 5, 6], 11)}, preempted={"one"})
    assert front.held() == [0, 0, 0]


def test_a_load_that_fails_names_the_blocks_that_are_missing_and_is_not_offered_again() -> None:
    front = Front(ScriptedCopier(ThreadCopier(workers=0), Script([fail(1)] * 9)))
    one = front.request("one", list(range(11)))
    front.begin(one, [1, 2, 3])
    front.step({one: ([1, 2, 3], 11)})
    one.num_tokens = 12
    front.scheduler.request_finished(one, [1, 2, 3])
    for _ in range(3):
        front.step()
    two = front.request("two", list(range(9)))
    found = front.begin(two, [7, 8, 9])
    assert found == SIZE, "the copy down had one good block"
    front.worker.shutdown()


def test_one_that_is_aborted_while_it_loads_is_named_so_that_its_blocks_are_freed(
    front: Front,
) -> None:
    one = front.request("one", list(range(11)))
    front.begin(one, [1, 2, 3])
    front.step({one: ([1, 2, 3], 11)})
    one.num_tokens = 12
    front.scheduler.request_finished(one, [1, 2, 3])
    front.step()
    front.step()
    two = front.request("two", list(range(9)))
    assert front.begin(two, [7, 8, 9]) == 8
    front.scheduler.request_finished(two, [7, 8])
    assert front.until("two") == set()
    assert front.held() == [0, 0, 0]


def test_after_a_reset_of_the_cache_nothing_is_found(front: Front) -> None:
    one = front.request("one", list(range(11)))
    front.begin(one, [1, 2, 3])
    front.step({one: ([1, 2, 3], 11)})
    one.num_tokens = 12
    front.scheduler.request_finished(one, [1, 2, 3])
    front.step()
    assert front.scheduler.reset_cache()
    assert front.begin(front.request("two", list(range(9))), [7, 8, 9]) == 0


def test_a_drafter_that_looks_ahead_computes_the_last_block_of_others_again() -> None:
    front = Front(changes={"speculative_config": Drafts(ahead=True)})
    ended(front, "one", list(range(13)), [1, 2, 3])
    front.step()
    front.step()
    two = front.request("two", list(range(13)))
    assert front.begin(two, [4, 5, 6, 7]) == 8
    front.until("two")
    front.scheduler.update_state_after_alloc(two, Blocks([4, 5, 6, 7]), 0)
    front.step({two: ([4, 5, 6, 7], 13)})
    # What was its own is as it was.
    two.num_tokens, two.num_preemptions = 14, 1
    front.step(preempted={"two"})
    front.step()
    assert front.begin(two, [4, 5, 6, 7]) == 13
    front.worker.shutdown()


def test_orders_are_of_the_stream_on_which_vllm_computes_then(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams: list[object] = []
    assert front.worker.back.worker is not None
    monkeypatch.setattr(front.worker.back.worker, "begin", lambda _, stream: streams.append(stream))
    numbers = iter(range(4))
    front.worker.back.stream = lambda: next(numbers)
    front.step()
    front.step()
    assert streams == [0, 1, 2, 3]


def test_while_vllm_sleeps_nothing_is_copied() -> None:
    front = Front(ScriptedCopier(ThreadCopier(workers=0), Script([delay(3), delay(3), deliver()])))
    assert Blockyard.supports_sleep_mode(None)
    ended(front, "one", list(range(11)), [1, 2, 3])
    front.step()
    for _ in range(2):
        front.worker.unregister_kv_caches()
    assert front.worker.back.worker is not None
    assert front.worker.back.worker.crane.in_flight == 0, "what was in the air has ended"
    ended(front, "asleep", list(range(100, 111)), [4, 5, 6])
    front.step()
    front.step()
    for _ in range(2):
        front.worker.restore_kv_caches()
    assert front.begin(front.request("two", list(range(9))), [7, 8, 9]) == 8
    assert front.begin(front.request("three", list(range(100, 109))), [1, 2, 3]) == 0
    assert front.until("two") == set()
    front.worker.shutdown()


def test_a_copy_that_does_not_end_is_given_up_for_a_sleep() -> None:
    front = Front(ScriptedCopier(ThreadCopier(workers=0), Script([hang()])))
    ended(front, "one", list(range(11)), [1, 2, 3])
    front.step()
    assert front.worker.back.worker is not None
    front.worker.back.worker.patience = 0.05
    front.worker.unregister_kv_caches()
    assert front.worker.back.worker.crane.in_flight == 0
    front.step()
    assert front.held() == [0, 0, 0]
    front.worker.shutdown()


def test_what_vllm_has_found_itself_has_no_fence(front: Front) -> None:
    front.worker.back.copier = None
    ended(front, "one", list(range(11)), [1, 2, 3])
    two = front.request("two", list(range(9)))
    front.scheduler.get_num_new_matched_tokens(two, 8)
    front.scheduler.update_state_after_alloc(two, Blocks([1, 2, 7]), 0)
    orders = front.scheduler.build_connector_meta(front.output({two: ([1, 2, 7], 1)}, 8)).orders
    assert (len(orders.down), orders.fence) == (1, None), "it copies what two reads"
    three = front.request("three", list(range(50, 59)))
    front.begin(three, [1, 3])
    orders = front.scheduler.build_connector_meta(front.output({three: ([1, 3], 8)})).orders
    assert orders.fence is not None


def test_deadlines_are_milliseconds_of_vllms_clock() -> None:
    front = Front(ScriptedCopier(ThreadCopier(workers=0), Script([hang()])), deadline=500)
    now = 7.0
    front.scheduler.front.clock = lambda: now
    ended(front, "one", list(range(11)), [1, 2, 3])
    front.step()
    now = 7.4
    front.step()
    assert front.scheduler.front.cache.stats()["host_quarantined"] == 0
    now = 7.8
    front.step()
    assert front.scheduler.front.cache.stats()["host_quarantined"] == 2
    front.worker.shutdown()


@pytest.mark.parametrize(
    "broken",
    [
        lambda front: front.worker.register_kv_caches({}),
        lambda front: front.worker.register_kv_caches(
            {name: tensor[:, :32] for name, tensor in front.kv.items()}
        ),
    ],
)
def test_tensors_that_are_not_what_the_scheduler_was_told_are_refused(
    front: Front, broken: Callable[[Front], None]
) -> None:
    front.worker.back.close()
    with pytest.raises(by.Misuse):
        broken(front)


def test_tensors_are_registered_once(front: Front) -> None:
    with pytest.raises(by.Misuse, match="twice"):
        front.worker.register_kv_caches(front.kv)
