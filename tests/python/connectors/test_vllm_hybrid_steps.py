"""What the scheduler's half follows of vLLM's steps where a model has several groups of layers."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.testing import ScriptedCopier, deliver, fail
from vllm_front import SIZE, Blocks, Ended, Front, no_torch
from vllm_groups import PAGE, full, kv_of, state, window
from vllm_stub import Recorded

__all__ = ["no_torch"]

STATE = state(real_page_size_bytes=PAGE)
WIDE = 8
"""Tokens of the window: with 16 tokens it needs blocks 2 and 3, and at 12 blocks 1 and 2."""


class Hybrid(Front):
    """Both halves over a window and full attention, in vLLM's order, and what has been written."""

    def __init__(self, *specs: Any, **more: Any) -> None:
        specs = specs or (window(WIDE), full())
        super().__init__(of=kv_of(*specs), host=[64] * len(specs), **more)
        self.connector = self.scheduler.front.connector

    def found(self, name: str, tokens: int) -> int | None:
        """Tokens that all groups have of a prompt, when nothing is in the air."""
        for _ in range(20):
            self.step()
        asked = self.request(name, list(range(tokens)))
        return self.scheduler.get_num_new_matched_tokens(asked, 0)[0]

    def state(self, request: Any, *told: tuple[int, int, int], **more: Any) -> Any:
        """A step in which vLLM names states."""
        output = self.output({}, more=more.pop("more", {}))
        named = {request.request_id: list(told)}
        output.kv_connector_block_state = Recorded(
            "KVConnectorBlockState", boundary_state_offloads=named
        )
        return self.run(output, **more)

    def bytes_of(self, block: int) -> set[int]:
        """The values of a block, in all layers."""
        return {int(one) for tensor in self.kv.values() for one in np.unique(tensor[block])}


@pytest.fixture
def front() -> Iterator[Hybrid]:
    made = Hybrid()
    yield made
    made.worker.shutdown()


@pytest.fixture
def states() -> Iterator[Hybrid]:
    made = Hybrid(STATE, full())
    yield made
    made.worker.shutdown()


def decoding(front: Hybrid, prompt: int, to: int) -> Any:
    """A request that has computed `to` tokens; its blocks are 1, 2, … and 11, 12, …."""
    one = front.request("one", list(range(prompt)), num_computed_tokens=0)
    count = -(-prompt // SIZE)
    tables = [1 + at for at in range(count)], [11 + at for at in range(count)]
    assert front.begin(one, tables) == 0
    write = {block: block for table in tables for block in table}
    front.step({one: (tables, prompt)}, write=write)
    for had in range(prompt, to):
        grow(front, one, had)
    one.num_computed_tokens = to
    keyed(front, one, to + 1)
    return one


def keyed(front: Hybrid, one: Any, tokens: int) -> None:
    """Has a request that many tokens, the last of which is not computed."""
    one.num_tokens = tokens
    one.block_hashes = front.request("", list(range(tokens))).block_hashes


def grow(front: Hybrid, one: Any, had: int) -> None:
    """A step in which a request computes one token more."""
    keyed(front, one, had + 1)
    one.num_computed_tokens = had
    block = had // SIZE
    new = ([1 + block], [11 + block]) if had % SIZE == 0 else None
    write = {} if new is None else {1 + block: 1 + block, 11 + block: 11 + block}
    front.step(more={one: (new, had, 1)}, write=write)


def test_a_preempted_request_is_kept_in_all_groups_at_its_token(front: Hybrid) -> None:
    one = decoding(front, 9, 18)
    one.num_preemptions, one.num_computed_tokens = 1, 0
    # Blocks 1 and 2 of the window have slid out, and others have written them since.
    front.step(preempted={"one"}, write={1: 99, 2: 99})
    for _ in range(5):
        front.step()
    tables = [0, 0, 23, 24, 25], [26, 27, 28, 29, 30]
    assert front.begin(one, tables) == 18
    assert front.until("one") == set()
    assert [front.bytes_of(block) for block in (23, 24, 25)] == [{3}, {4}, {5}]
    assert [front.bytes_of(block) for block in range(26, 31)] == [{one} for one in range(11, 16)]
    assert front.meta.failed == set()


@pytest.mark.parametrize(("to", "found"), [(18, 16), (19, 16), (20, 20), (21, 20)])
def test_what_has_slid_out_when_a_request_ends_is_offloaded_by_the_table_that_was_followed(
    front: Hybrid, to: int, found: int
) -> None:
    """Also where the computed tokens end one short of a block: vLLM's own table lacks one then."""
    one = decoding(front, 9, to)
    blocks = -(-to // SIZE)
    gone = (to - WIDE + 1) // SIZE
    shown = [0] * gone + list(range(1 + gone, 1 + blocks)), list(range(11, 11 + blocks))
    front.scheduler.request_finished_all_groups(one, shown)
    assert front.found("two", 23) == found


def test_of_an_aborted_request_nothing_is_offloaded_that_may_have_slid_out(front: Hybrid) -> None:
    one = decoding(front, 9, 19)
    one.status = Ended.FINISHED_ABORTED
    front.scheduler.request_finished_all_groups(one, ([0, 0, 0, 4, 5], [11, 12, 13, 14, 15]))
    # Its window at 16 tokens begins with block 2, which was free at 19 processed tokens.
    assert front.found("two", 23) == 8


def test_a_checkpoint_is_offloaded_in_the_step_behind_the_one_that_passes_it(front: Hybrid) -> None:
    one = front.request("one", list(range(19)), num_computed_tokens=0)
    tables = [1, 2, 3, 4, 5], [11, 12, 13, 14, 15]
    assert front.begin(one, tables) == 0
    front.step({one: (tables, 19)}, write={at: at for table in tables for at in table})
    assert not front.meta.orders.down
    # vLLM has given blocks of it to others in this step: they are copied first.
    front.step(write={2: 99, 3: 99, 4: 99})
    # A window pays for its own length alone (vllm#11382): our group 1, and vLLM's 0.
    down = {plan.group: plan.sources.tolist() for plan in front.meta.orders.down}
    assert down == {0: [11, 12, 13, 14], 1: [3, 4]}
    front.scheduler.request_finished_all_groups(one, ([], []))
    assert front.found("two", 23) == 16
    two = front.request("two", list(range(23)))
    assert front.begin(two, ([0, 0, 23, 24], [25, 26, 27, 28])) == 16
    assert front.until("two") == set()
    assert [front.bytes_of(block) for block in (23, 24)] == [{3}, {4}]


def ready(front: Hybrid) -> None:
    """Offloads a prompt of 16 tokens in all groups."""
    one = decoding(front, 17, 17)
    front.scheduler.request_finished_all_groups(one, ([0, 0, 3, 4, 5], [11, 12, 13, 14, 15]))
    assert front.found("other", 20) == 16


@pytest.mark.parametrize("bad", [0, 1])
def test_a_load_that_fails_in_one_group_is_said_of_the_request(bad: int) -> None:
    """Of its blocks, vLLM with several groups would end."""
    script = [deliver()] * 2 + [deliver()] * bad + [fail(0)] * 9
    front = Hybrid(copier=ScriptedCopier(ThreadCopier(workers=0), script))
    ready(front)
    one = front.request("two", list(range(20)))
    assert front.begin(one, ([0, 0, 23, 24], [25, 26, 27, 28])) == 16
    assert front.until("two") == set()
    assert front.meta.failed == {"two"}
    # vLLM asks again with 0 computed: it computes, and is offered a load when it has run.
    assert front.begin(one, ([5, 6, 7, 8, 9], [25, 26, 27, 28, 29])) == 0
    front.step({one: (([5, 6, 7, 8, 9], [25, 26, 27, 28, 29]), 20)})
    assert front.meta.failed == set()
    one.num_tokens = 21
    front.scheduler.request_finished_all_groups(one, ([0, 0, 0, 8, 9], [25, 26, 27, 28, 29]))
    assert front.held() == [0, 0, 0]
    front.worker.shutdown()


def test_another_length_than_was_agreed_fails_the_load(front: Hybrid) -> None:
    """As where vLLM shortens a hit: of that length the groups may lack what it needs."""
    ready(front)
    one = front.request("two", list(range(20)))
    assert front.scheduler.get_num_new_matched_tokens(one, 0) == (16, True)
    blocks = Recorded("KVCacheBlocks")
    vars(blocks)["get_block_ids"] = lambda: ([0, 23, 24], [25, 26, 27])
    front.scheduler.update_state_after_alloc(one, blocks, 12)
    assert front.until("two") == set()
    assert front.meta.failed == {"two"}
    assert front.scheduler.get_num_new_matched_tokens(one, 0) == (0, False)


def test_a_prompt_of_whole_blocks_is_never_found_whole(front: Hybrid) -> None:
    ready(front)
    assert front.found("two", 16) == 12 or front.found("two", 16) == 0


def test_new_blocks_of_every_group_are_waited_for(
    front: Hybrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = decoding(front, 9, 12)
    seen: list[list[int]] = []
    step = front.connector.step

    def stepped(written: Any, *more: Any) -> Any:
        seen.append(sorted(written))
        return step(written, *more)

    monkeypatch.setattr(front.connector, "step", stepped)
    grow(front, one, 12)
    assert seen == [[4, 14]]


def test_a_state_is_offloaded_when_it_is_there_under_the_length_that_vllm_names(
    states: Hybrid,
) -> None:
    """Not by its place in a table (vllm#55600): block 7 is nowhere in it."""
    one = states.request("one", list(range(10)), num_computed_tokens=0)
    tables = [0, 0, 3], [11, 12, 13]
    assert states.begin(one, tables) == 0
    first = states.output({one: (tables, 8)})
    first.kv_connector_block_state = Recorded(
        "KVConnectorBlockState", boundary_state_offloads={"one": [(0, 7, 8)]}
    )
    states.run(first, write={7: 7, 11: 11, 12: 12})
    assert not states.meta.orders.down
    states.step(more={one: (None, 8, 2)}, write={7: 99})
    assert {plan.group for plan in states.meta.orders.down} == {0, 1}
    assert states.found("two", 11) == 8
    two = states.request("two", list(range(11)))
    assert states.begin(two, ([0, 23], [24, 25])) == 8
    assert states.until("two") == set()
    assert states.bytes_of(23) == {7}


def test_a_state_that_was_computed_before_is_offloaded_at_once(states: Hybrid) -> None:
    """vLLM names it late where its steps overlap, and may have given its block to others."""
    one = decoding(states, 7, 9)
    states.state(one, (0, 7, 8), more={one: (None, 9, 1)}, write={7: 99})
    assert {plan.group for plan in states.meta.orders.down} == {0, 1}


def test_a_preempted_request_resumes_at_the_last_state_that_is_below(states: Hybrid) -> None:
    """The state in its block is another one by then: it is taken from below, or not at all."""
    one = decoding(states, 7, 8)
    keyed(states, one, 9)
    one.num_computed_tokens = 7
    states.state(one, (0, 2, 8), more={one: (None, 7, 1)}, write={2: 2})
    for had in range(8, 11):
        grow(states, one, had)
    keyed(states, one, 12)
    one.num_preemptions, one.num_computed_tokens = 1, 0
    states.step(preempted={"one"}, write={2: 99})
    for _ in range(5):
        states.step()
    assert states.begin(one, ([0, 23], [24, 25])) == 8
    assert states.until("one") == set()
    assert states.bytes_of(23) == {2}


def test_states_of_one_group_alone_are_of_no_use() -> None:
    front = Hybrid(STATE, STATE, full())
    one = front.request("one", list(range(10)), num_computed_tokens=0)
    tables = [0, 2, 3], [0, 5, 6], [11, 12, 13]
    assert front.begin(one, tables) == 0
    output = front.output({one: (tables, 8)})
    output.kv_connector_block_state = Recorded(
        "KVConnectorBlockState", boundary_state_offloads={"one": [(0, 2, 8)]}
    )
    front.run(output)
    front.step(more={one: (None, 8, 2)})
    assert not front.meta.orders.down
    assert front.found("two", 11) == 0
    front.worker.shutdown()


def test_vllm_is_asked_for_the_state_at_which_others_went_on(states: Hybrid) -> None:
    """Else it lies in tokens of one request alone (vllm#45238), and no third one finds it."""
    one = decoding(states, 17, 17)
    states.scheduler.request_finished_all_groups(one, ([0, 0, 0, 0, 5], [11, 12, 13, 14, 15]))
    assert states.found("two", 16) == 0
    three = states.request("three", [*range(12), *range(100, 110)])
    assert states.scheduler.get_num_new_matched_tokens(three, 0) == (0, False)
    assert three.shared_prefix_boundary == 12


@pytest.mark.parametrize("early", [True, False])
def test_what_the_first_runner_zeroes_behind_the_copies_is_kept(*, early: bool) -> None:
    """The second one zeroes blocks before the connector is called: what was in them is lost."""
    front = Hybrid(changes={"use_v2_model_runner": early})
    one = decoding(front, 9, 18)
    one.num_preemptions, one.num_computed_tokens = 1, 0
    front.step(preempted={"one"}, zeroed=[5])
    for _ in range(5):
        front.step()
    assert front.found("one", 19) == (16 if early else 18)
    front.worker.shutdown()


def test_where_blocks_are_offloaded_as_they_fill_windows_are_too() -> None:
    front = Hybrid(offload="through")
    decoding(front, 9, 17)
    front.step()
    # The request runs on: at each length it has the window, a block for each that fills.
    assert front.found("two", 18) == 16
    assert front.found("three", 14) == 12
    front.worker.shutdown()


def test_a_table_of_the_first_runner_that_comes_back_is_taken_whole(front: Hybrid) -> None:
    one = decoding(front, 9, 18)
    one.num_preemptions, one.num_computed_tokens = 1, 0
    front.step(preempted={"one"})
    for _ in range(5):
        front.step()
    tables = [0, 0, 23, 24, 25], [26, 27, 28, 29, 30]
    assert front.begin(one, tables) == 18
    assert front.until("one") == set()
    one.num_computed_tokens = 18
    assert front.scheduler.update_state_after_alloc(one, Blocks(tables), 0) is None
    output = front.output({}, more={one: (tables, 18, 1)})
    output.scheduled_cached_reqs.resumed_req_ids = {"one"}
    front.run(output)
    # Another follows, and is kept from the new table.
    keyed(front, one, 20)
    one.num_preemptions, one.num_computed_tokens = 2, 0
    front.step(preempted={"one"})
    for _ in range(5):
        front.step()
    assert front.begin(one, ([0, 0, 3, 4, 5], [6, 7, 8, 9, 10])) == 19
    assert front.until("one") == set()
    assert [front.bytes_of(block) for block in (3, 4)] == [{3}, {4}]


def test_a_block_that_slid_out_may_come_back_in_the_same_table(front: Hybrid) -> None:
    one = decoding(front, 9, 20)
    keyed(front, one, 21)
    one.num_computed_tokens = 20
    front.step(more={one: (([1], [16]), 20, 1)}, write={1: 6, 16: 16})
    keyed(front, one, 22)
    one.num_preemptions, one.num_computed_tokens = 1, 0
    front.step(preempted={"one"})
    for _ in range(5):
        front.step()
    assert front.begin(one, ([0, 0, 0, 24, 25, 26], [5, 6, 7, 8, 9, 10])) == 21
    assert front.until("one") == set()
    assert [front.bytes_of(block) for block in (24, 25, 26)] == [{4}, {5}, {6}]
