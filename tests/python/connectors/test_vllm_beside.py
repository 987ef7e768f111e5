"""Blockyard inside vLLM's MultiConnector, beside a connector that sends, receives or loads."""

import logging
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from blockyard.connectors.vllm import kv_connector
from blockyard.connectors.vllm.beside import beside
from blockyard.connectors.vllm.compatibility import facts
from blockyard.connectors.vllm.messages import Reports
from blockyard.connectors.vllm.vllm_api import INTERFACE
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.testing import Script, ScriptedCopier, delay
from vllm_disk import Engine
from vllm_front import Blocks, Front, Pool, ended, kv_config, no_torch, vllm_config
from vllm_groups import full, kv_of, state, window
from vllm_stub import Recorded

__all__ = ["no_torch"]

NIXL = "NixlConnector"


def inside(*names: str, **changes: Any) -> Any:
    """What stands around connectors of these names."""
    connectors = [{"kv_connector": name, "kv_role": "kv_both"} for name in names]
    said = {
        "kv_connector": "MultiConnector",
        "kv_connector_extra_config": {"connectors": connectors},
    }
    return vllm_config(**said | changes)


@contextmanager
def behind_nixl() -> Iterator[None]:
    """A scheduler's half is made, which sees nothing around it, and a worker's, which does."""
    get, seen = INTERFACE.get, iter([None, inside(NIXL, "Blockyard")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            INTERFACE,
            "get",
            lambda name: seen.__next__ if name == "get_current_vllm_config_or_none" else get(name),
        )
        yield


class Beside(Front):
    """Both halves behind NIXL's."""

    def __init__(self, copier: Any = None, **extra: Any) -> None:
        with behind_nixl():
            super().__init__(copier, **extra)

    def given(self, request: Any, ids: Any, local: int = 0) -> None:
        """The other connector loads: vLLM tells of it with no tokens, and runs it later."""
        matched = self.scheduler.get_num_new_matched_tokens(request, local)
        assert matched[0] is not None
        request.num_computed_tokens = 0
        self.scheduler.update_state_after_alloc(request, Blocks(ids), 0)


@pytest.fixture
def front() -> Iterator[Beside]:
    made = Beside()
    made.step()
    yield made
    made.worker.shutdown()


def found(front: Front, tokens: int = 9, ids: tuple[int, ...] = (20, 21, 22)) -> list[int]:
    """What comes up of the first tokens, byte by block."""
    again = front.request("again", list(range(tokens)))
    have = front.begin(again, list(ids))
    assert have is not None
    if have:
        assert front.until("again") == set()
    return [int(front.kv["layer 1"][block, 0]) for block in ids[: have // 4]]


# -- what is refused ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "other", ["NixlConnector", "NixlPushConnector", "MooncakeConnector", "NixlPullConnector"]
)
def test_it_stands_behind_one_that_sends_or_receives(other: str) -> None:
    own = vllm_config()
    known = facts(own, kv_config(), version="0.33.0", around=inside(other, "Blockyard"))
    assert known.beside == other
    assert beside(own, inside(other, "Blockyard", kv_role="kv_consumer")) == other
    assert facts(own, kv_config(), version="0.33.0", around=own).beside is None
    assert beside(own, None) is None


@pytest.mark.parametrize("other", ["NixlConnector", "MooncakeConnector"])
def test_states_beside_another_connector_are_refused(other: str) -> None:
    around, own = inside(other, "Blockyard"), vllm_config()
    with pytest.raises(by.Unsupported, match=rf"^recurrent states beside {other}.*leave {other}"):
        facts(own, kv_of(full(), state()), version="0.33.0", around=around)
    known = facts(own, kv_of(full(), window()), version="0.33.0", around=around)
    assert known.beside == other


def moriio(role: str = "kv_both", **extra: Any) -> Any:
    """What stands around Blockyard behind MoRIIO."""
    own = {"kv_connector": "MoRIIOConnector", "kv_role": role, "kv_connector_extra_config": extra}
    connectors = [own, {"kv_connector": "Blockyard", "kv_role": "kv_both"}]
    return inside(kv_connector_extra_config={"connectors": connectors})


@pytest.mark.law("E1")
def test_a_peer_that_writes_before_the_workers_hear_of_its_blocks_is_refused() -> None:
    """MoRIIO tells its peer from the scheduler's process, before any fence of the workers."""
    for around in (moriio(), moriio("kv_consumer", read_mode=False), moriio(read_mode="no")):
        with pytest.raises(by.Misuse, match='write "kv_connector_extra_config"'):
            beside(vllm_config(), around)
    with pytest.raises(by.Misuse, match="read_mode = False: its peer would write"):
        beside(vllm_config(), inside("MoRIIOConnector", "Blockyard"))
    for around in (moriio("kv_producer"), moriio(read_mode=True), moriio(read_mode=" True")):
        assert beside(vllm_config(), around) == "MoRIIOConnector"


def test_one_that_is_not_known_may_stand_there_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        assert beside(vllm_config(), inside("MyConnector", "Blockyard")) == "MyConnector"
    assert "it must not store KV itself" in caplog.text


@pytest.mark.parametrize(
    ("around", "error", "says"),
    [
        (inside("Blockyard", NIXL), by.Misuse, f"write {NIXL} first, then Blockyard"),
        (inside("Blockyard"), by.Misuse, 'write "kv_connector": "Blockyard" alone'),
        (inside(NIXL, "Blockyard", "Blockyard"), by.Misuse, "two Blockyards.*leave one"),
        *(
            (inside(name, "Blockyard"), by.Unsupported, f"{name} stores KV.*leave one of them out")
            for name in (
                *("OffloadingConnector", "SimpleCPUOffloadConnector", "LMCacheConnectorV1"),
                *("LMCacheMPConnector", "FlexKVConnectorV1", "MooncakeStoreConnector"),
                *("HF3FSKVConnector", "UMBPStoreConnector", "HiSparseConnector"),
                *("ExampleConnector", "LMCacheConnectorV1Dynamic", "DynamoConnector"),
            )
        ),
        (
            inside(NIXL, "OffloadingConnector", "Blockyard"),
            by.Unsupported,
            "OffloadingConnector stores KV",
        ),
        (inside(NIXL, "MoRIIOConnector", "Blockyard"), by.Unsupported, "leave MoRIIO.* out"),
        (
            inside("DecodeBenchConnector", "Blockyard"),
            by.Unsupported,
            "without a model's KV; leave",
        ),
        (inside("MultiConnector", "Blockyard"), by.Unsupported, "hides its connectors; leave"),
        (
            inside(NIXL, "Blockyard", kv_connector="PdConnector"),
            by.Unsupported,
            '\'PdConnector\' around Blockyard.*write "kv_connector": "MultiConnector"',
        ),
        (
            inside(NIXL, "Blockyard", kv_load_failure_policy="fail"),
            by.Misuse,
            'write "kv_load_failure_policy": "recompute" beside "kv_connector": "MultiConnector"',
        ),
        (
            inside(NIXL, "Blockyard", kv_role="kv_producer"),
            by.Misuse,
            'write "kv_role": "kv_both" beside "kv_connector": "MultiConnector"',
        ),
    ],
)
def test_what_cannot_stand_there_is_refused_by_its_name_with_the_line_to_write(
    around: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        beside(vllm_config(), around)


# -- what vLLM carries of the first connector alone --------------------------------------


def test_the_workers_say_that_they_are_ready_with_their_first_step(tmp_path: Path) -> None:
    with behind_nixl():
        first = Engine(tmp_path)
    assert first.worker.get_handshake_metadata() is None
    # What another connector says is none of ours.
    first.scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): object()})
    # What is on the disk is not known yet: nothing is begun before.
    request = first.request("one", list(range(11)))
    assert first.scheduler.get_num_new_matched_tokens(request, 0) == (None, False)
    first.step()
    first.offload("one", list(range(11)), [1, 2, 3], 10)
    first.close()
    first.scheduler.shutdown()
    with behind_nixl():
        second = Engine(tmp_path)
    second.step()
    assert second.restored == 2
    second.load("two", list(range(9)), [7, 8, 9], [1, 2], 10)
    second.close()


def test_the_words_of_all_ranks_come_together(front: Beside) -> None:
    ready = front.worker.back.ready()
    one, two = Reports([], ready=(ready,)), Reports([], ready=(ready,))
    joined = pickle.loads(pickle.dumps(one)).aggregate(two)
    assert joined.ready == (ready, ready)


def test_a_rank_with_another_configuration_is_refused_there_too(front: Beside) -> None:
    ready = front.worker.back.ready()
    ready.fingerprints = ("another",)
    with pytest.raises(by.Misuse, match="fingerprint another"):
        front.scheduler.front.reported(Reports([], ready=(ready,)))


# -- what another connector brings -------------------------------------------------------


@pytest.mark.law("E1")
def test_what_is_copied_down_ends_before_another_connector_fills_its_block() -> None:
    """vllm#46951: a transfer into blocks of a store that is in the air, and garbage is found."""
    copier = ScriptedCopier(ThreadCopier(workers=0), Script([delay(5)]))
    front = Beside(copier)
    front.step()
    one = front.request("one", list(range(11)))
    front.begin(one, [1, 2, 3])
    front.step({one: ([1, 2, 3], 11)}, write={1: 11, 2: 12, 3: 13})
    one.num_tokens = 12
    front.scheduler.request_finished(one, [1, 2, 3])
    # Its blocks are given to one that another connector loads, which waits for no stream.
    two = front.request("two", list(range(100, 111)))
    front.given(two, [1, 2, 3])
    front.step(write={1: 99, 2: 99, 3: 99})
    for _ in range(8):
        front.step()
    assert found(front) in ([11, 12], [])
    front.worker.shutdown()


def test_what_a_block_held_before_another_connector_filled_it_is_not_copied_ahead() -> None:
    front = Beside(offload="none", ahead=8)
    front.step()
    front.scheduler.bind_gpu_block_pool(Pool(1, 3, 5))
    connector: Any = front.scheduler.front.connector
    known = connector._freed
    finish = {"blockyard.offload": "finish"}
    ended(front, "one", list(range(13)), [1, 3, 5], kv_transfer_params=finish)
    front.step()
    assert {1, 3, 5} <= {*known.known()}
    two = front.request(
        "two", list(range(100, 113)), kv_transfer_params={"blockyard.offload": "none"}
    )
    front.given(two, [1, 3, 5])
    front.step(write={1: 99, 3: 99, 5: 99})
    assert not {1, 3, 5} & {*known.known()}
    front.worker.shutdown()


@pytest.mark.law("E2")
def test_nothing_is_offloaded_of_a_load_of_another_that_has_not_ended(front: Beside) -> None:
    """vllm#34526, vllm#35092: aborted while it waits for its load, and garbage is found."""
    one = front.request("one", list(range(11)))
    front.given(one, [1, 2, 3])
    front.step(write={1: 99})
    # As far as it was promised to come.
    one.num_computed_tokens = 11
    front.scheduler.request_finished(one, [1, 2, 3])
    for _ in range(4):
        front.step()
    assert found(front) == []


def test_what_another_has_brought_whole_is_offloaded_once_it_has_run(front: Beside) -> None:
    one = front.request("one", list(range(11)))
    front.given(one, [1, 2, 3])
    front.step(write={1: 11, 2: 12, 3: 13})
    # It has come, and the last token is computed.
    one.num_computed_tokens = 10
    front.scheduler.update_state_after_alloc(one, Blocks([1, 2, 3]), 0)
    front.step({one: ([1, 2, 3], 1)}, computed=10)
    one.num_tokens, one.num_computed_tokens = 12, 11
    front.scheduler.request_finished(one, [1, 2, 3])
    for _ in range(4):
        front.step()
    assert found(front) == [11, 12]
    # The next turn gets it from another again: what is there is not copied twice.
    copied = front.scheduler.front.cache.stats()["host_idle"]
    two = front.request("two", list(range(11)))
    front.given(two, [4, 5, 6])
    front.step(write={4: 11, 5: 12, 6: 13})
    two.num_computed_tokens = 10
    front.scheduler.update_state_after_alloc(two, Blocks([4, 5, 6]), 0)
    front.step({two: ([4, 5, 6], 1)}, computed=10)
    two.num_tokens, two.num_computed_tokens = 12, 11
    front.scheduler.request_finished(two, [4, 5, 6])
    for _ in range(4):
        front.step()
    assert front.scheduler.front.cache.stats()["host_idle"] == copied


@pytest.mark.parametrize("offload", ["finish", "through"])
def test_a_load_beside_the_computation_counts_when_its_step_has_ended(offload: str) -> None:
    front = Beside(offload=offload)
    front.step()
    one = front.request("one", list(range(15)))
    front.given(one, [1, 2, 3, 4])
    # 8 tokens are loaded as the rest is computed, in two chunks; nobody knows yet whether they are.
    front.step({one: ([1, 2, 3, 4], 4)}, computed=8, write={1: 99, 2: 99})
    one.num_computed_tokens = one.num_in_flight_tokens = 12
    one.num_in_flight_tokens = 4
    front.step(more={one: (None, 12, 3)})
    for _ in range(3):
        front.step()
    assert front.scheduler.front.cache.stats()["host_idle"] == 0
    # They were not, and vLLM computes them; it is preempted before that.
    one.num_computed_tokens = one.num_in_flight_tokens = 0
    one.num_preemptions = 1
    front.step(preempted={"one"})
    for _ in range(3):
        front.step()
    assert front.begin(one, [1, 2, 3, 4]) == 0
    front.worker.shutdown()


def test_one_that_shares_blocks_which_another_loads_waits_for_its_own_step(front: Beside) -> None:
    one = front.request("one", list(range(15)))
    front.given(one, [1, 2, 3, 4])
    front.step({one: ([1, 2, 3, 4], 7)}, computed=8, write={1: 99, 2: 99})
    one.num_computed_tokens, one.num_in_flight_tokens = 15, 7
    # vLLM finds its blocks itself before it knows that they did not come.
    two = front.request("two", list(range(13)))
    front.given(two, [1, 2, 5, 6], local=8)
    front.step({two: ([1, 2, 5, 6], 5)}, computed=8)
    two.num_computed_tokens, two.num_in_flight_tokens = 13, 5
    front.scheduler.request_finished(two, [1, 2, 5, 6])
    for _ in range(4):
        front.step()
    assert found(front) == []


@pytest.mark.law("E2")
@pytest.mark.parametrize("came", [False, True])
def test_one_that_shares_blocks_of_one_group_alone_waits_too(*, came: bool) -> None:
    """vLLM finds a block of each group by itself: that of a window may be of another request."""
    front = Beside(of=kv_of(window(8), full()), host=[64, 64])
    front.step()
    one = front.request("one", list(range(19)))
    loaded = [0, 0, 3, 4, 5], [11, 12, 13, 14, 15]
    front.given(one, loaded)
    write = dict.fromkeys((3, 4, 13, 14), 9)
    front.step({one: (loaded, 3)}, computed=16, write=write)
    if came:
        one.num_computed_tokens, one.num_in_flight_tokens, one.num_tokens = 19, 0, 20
        front.step()
    else:
        one.num_computed_tokens = one.num_in_flight_tokens = 19
    # Blocks 21 to 24 of full attention were computed by a request whose window has slid on.
    two = front.request("two", list(range(17)))
    shared = [0, 0, 3, 4, 6], [21, 22, 23, 24, 25]
    front.given(two, shared, local=16)
    front.step({two: (shared, 1)}, computed=16)
    two.num_computed_tokens, two.num_in_flight_tokens = 17, 0 if came else 1
    front.scheduler.request_finished_all_groups(two, shared)
    for _ in range(4):
        front.step()
    again = front.request("again", list(range(18)))
    assert front.scheduler.get_num_new_matched_tokens(again, 0)[0] == (16 if came else 0)
    front.worker.shutdown()


def test_a_load_beside_the_computation_is_kept_when_it_was_whole(front: Beside) -> None:
    one = front.request("one", list(range(15)))
    front.given(one, [1, 2, 3, 4])
    front.step({one: ([1, 2, 3, 4], 7)}, computed=8, write={1: 11, 2: 12, 3: 13, 4: 14})
    # The step has ended well.
    one.num_computed_tokens, one.num_in_flight_tokens, one.num_tokens = 15, 0, 16
    front.step()
    one.num_computed_tokens, one.num_preemptions = 0, 1
    front.step(preempted={"one"}, write={1: 0, 2: 0, 3: 0, 4: 0})
    front.step()
    assert front.begin(one, [5, 6, 7, 8]) == 15


def test_a_load_beside_the_computation_counts_when_its_step_ends_with_no_report(
    front: Beside,
) -> None:
    """vLLM preempts a row in the next schedule: no step of the connector is between."""
    one = front.request("one", list(range(15)))
    front.given(one, [1, 2, 3, 4])
    front.step({one: ([1, 2, 3, 4], 7)}, computed=8, write={1: 11, 2: 12, 3: 13, 4: 14})
    one.num_computed_tokens, one.num_in_flight_tokens, one.num_tokens = 15, 0, 16
    front.scheduler.update_connector_output(
        Recorded("KVConnectorOutput", kv_connector_worker_meta=None)
    )
    one.num_computed_tokens, one.num_preemptions = 0, 1
    front.step(preempted={"one"}, write={1: 0, 2: 0, 3: 0, 4: 0})
    front.step()
    assert front.begin(one, [5, 6, 7, 8]) == 15


def test_what_a_prefiller_has_is_neither_found_nor_waited_for_here(front: Beside) -> None:
    ended(front, "one", list(range(11)), [1, 2, 3])
    afar = {"kv_transfer_params": {"do_remote_prefill": True}}
    # Its copies are in the air: another request would wait for them.
    two = front.request("two", list(range(9)), **afar)
    assert front.scheduler.get_num_new_matched_tokens(two, 0) == (0, False)
    near = front.request("three", list(range(9)))
    front.step()
    front.step()
    assert front.scheduler.get_num_new_matched_tokens(near, 0) == (8, True)
    assert front.scheduler.get_num_new_matched_tokens(two, 0) == (0, False)


@pytest.mark.law("E4")
def test_one_that_is_preempted_beside_one_that_sends_comes_back_with_its_tail(
    front: Beside,
) -> None:
    """vLLM drops the output of each that it preempts there: of KV that must be delivered."""
    pool = Pool()
    front.scheduler.bind_gpu_block_pool(pool)
    one = front.request("one", list(range(10)), drop_stale_output=True)
    front.begin(one, [1, 2, 3])
    front.step({one: ([1, 2, 3], 10)}, write={1: 11, 2: 12, 3: 13})
    one.num_tokens, one.num_preemptions = 11, 1
    front.step(preempted={"one"}, write={1: 0, 2: 0, 3: 0})
    front.step()
    assert front.begin(one, [4, 5, 6]) == 10
    assert front.until("one") == set()
    one.num_computed_tokens = 10
    front.scheduler.update_state_after_alloc(one, Blocks([4, 5, 6]), 0)
    front.step({one: ([4, 5, 6], 1)}, computed=10)
    # A reset drops it because what it was made from is void.
    pool.reset()
    one.num_preemptions = 2
    front.step(preempted={"one"})
    front.step()
    assert front.begin(one, [4, 5, 6]) == 8, "what lies below from before, and no tail"


def test_sends_and_receives_of_others_are_not_named(front: Beside) -> None:
    """vllm#53049, vllm#53903: once for each request and rank, by the one whose it is."""
    one = front.request("one", list(range(11)))
    front.given(one, [1, 2, 3])
    named = [front.step().finished_recving for _ in range(3)]
    front.scheduler.request_finished(one, [1, 2, 3])
    named += [front.step().finished_recving for _ in range(3)]
    assert named == [set()] * 6
    assert not front.worker.get_transfer_results({"one"}).finished_recving


def test_its_name_is_known_where_its_module_was_given() -> None:
    """MultiConnector asks for the class of a report by its name."""
    engine = import_module("blockyard.connectors.vllm.vllm_api")
    asked: list[tuple[str, ...]] = []
    factory = engine.KVConnectorFactory
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(factory, "register_connector", lambda *what: asked.append(what))
        assert import_module("blockyard.connectors.vllm").Blockyard is kv_connector.Blockyard
    assert asked == [("Blockyard", "blockyard.connectors.vllm", "Blockyard")]
