"""Mistakes that the seeds of several groups of layers must notice, each on purpose."""

from collections.abc import Callable
from functools import partial
from typing import Any

import mistakes
from blockyard.connectors.group_loads import GroupLoad, GroupLoads
from blockyard.connectors.vllm.hybrid_following import HybridFollowing
from blockyard.connectors.vllm.reported import HybridReported
from hybrid_seeds import Hybrid
from mistakes import BYTES

MISTAKES: list[Callable[[], None]] = []


def seeds() -> None:
    """Plays seeds, which are to break."""
    for seed in range(200):
        Hybrid(seed).play()


noticed = partial(mistakes.noticed, by=seeds, among=MISTAKES)


@noticed(HybridFollowing, "_intact")
def what_slid_out_is_copied(
    _right: Any, _self: HybridFollowing, row: Any, _processed: int, blocks: int
) -> Any:
    """vLLM has given it to others, and tells nobody."""
    return [table[:blocks] for table in row.tables]


def at_ease() -> None:
    """Plays seeds in which some tokens may be computed again."""
    for seed in range(1, 200, 2):
        Hybrid(seed).play()


@noticed(HybridFollowing, "offload_passed", BYTES, by=at_ease)
def checkpoints_are_offloaded_four_steps_late(right: Any, self: HybridFollowing) -> None:
    """Others have written their blocks by then."""
    for row, *_ in self._passed:
        row.join()
    waits = self.__dict__.setdefault("waits", [])
    waits.append([(one, [list(ids) for ids in one[0].tables]) for one in self._passed])
    for one, tables in waits.pop(0) if len(waits) > 4 else ():
        row = one[0]
        row.join()
        now, row.tables, self._passed = row.tables, tables, [one]
        right(self)
        row.tables = now
    self._passed = []


@noticed(HybridFollowing, "follow", BYTES)
def only_new_blocks_of_the_first_group_are_waited_for(
    right: Any, self: HybridFollowing, output: Any
) -> Any:
    """The others are written while they are copied."""
    written = set(right(self, output))
    spines = {id_ for row in self._rows.by_name.values() for id_ in row.ids}
    return [id_ for id_ in written if id_ in spines]


@noticed(HybridReported, "fail", BYTES)
def a_load_that_failed_is_said_to_have_come(right: Any, self: HybridReported, row: Any) -> None:
    """vLLM would compute it."""
    right(self, row)
    self.failed.clear()


@noticed(GroupLoads, "make", BYTES)
def kv_is_loaded_and_what_slides_is_not(right: Any, self: GroupLoads, *what: Any) -> GroupLoad:
    """LMCache#2863 garbled 40 % of its texts so."""
    load: GroupLoad = right(self, *what)
    load.parts = {0: load.parts[0]}
    load.left = {0}
    return load


@noticed(HybridFollowing, "_take")
def tables_of_two_groups_are_mistaken(
    right: Any, self: HybridFollowing, row: Any, tables: Any
) -> None:
    """vLLM's first group need not be ours."""
    right(self, row, tables[::-1])


@noticed(HybridFollowing, "_take_states", BYTES)
def states_are_offloaded_before_they_are_computed(
    right: Any, self: HybridFollowing, output: Any
) -> None:
    """What their blocks had before is found under their lengths."""
    passed = len(self._passed)
    right(self, output)
    early, self._passed = self._passed[passed:], self._passed[:passed]
    for one in early:
        self._offload(*one)


@noticed(HybridFollowing, "_take_states", BYTES, by=at_ease)
def states_have_the_length_of_the_block_before(
    right: Any, self: HybridFollowing, output: Any
) -> None:
    """A state of another length is another one (vllm#53912)."""
    passed = len(self._passed)
    right(self, output)
    for at, (row, length, processed, states) in enumerate(self._passed[passed:], passed):
        shorter = max(length - self._size, self._size)
        moved = [(group, block, shorter) for group, block, _ in states]
        self._passed[at] = row, shorter, processed, moved
