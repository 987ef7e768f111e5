"""Runs of blocks below an engine's own: the first that is missing, the last that is there, all."""

from itertools import product

import pytest

import blockyard as by

SIZE = 4


def cache(states: str) -> tuple[by.KVCache, by.Keys]:
    """A set of blocks that are missing, ready or in flight, by `m`, `r` and `f`."""
    made = by.KVCache(engine=16, host=16, block_size=SIZE, linked=False, group=1)
    keys = made.keys(range(len(states) * SIZE))
    raw = bytes(keys)
    for block, state in enumerate(states):
        if state != "m":
            made.offload(made.ready_keys(raw[32 * block : 32 * block + 32], SIZE), [block])
        plans = made.dispatch()
        if state == "r":
            made.commit([by.Outcome.of(plan, 0, len(plan)) for plan in plans])
    return made, keys


@pytest.mark.law("G3")
@pytest.mark.parametrize("states", ["".join(one) for one in product("mrf", repeat=4)])
def test_runs_answer_as_each_block_by_itself(states: str) -> None:
    made, keys = cache(states)
    for first in range(5):
        for end in range(first, 5):
            run = states[first:end]
            lacks = first + run.index("m") if "m" in run else -1 if "f" in run else end
            assert made.lacking(keys, first, end) == lacks
            known = len(run.rstrip("m"))
            assert made.last_known(keys, first, end) == first + known
    raw = bytes(keys)
    known_keys = {bytes(row) for row in made.known_keys()}
    assert known_keys == {
        raw[32 * at : 32 * at + 32] for at, state in enumerate(states) if state != "m"
    }
    assert made.audit() is None


def test_partial_and_forgotten_blocks_have_no_key_that_is_known() -> None:
    made, keys = cache("rr")
    made.save_request(made.ready_keys(b"", 0), [9], 2)
    assert len(made.known_keys()) == 2
    made.forget(keys=bytes(keys)[:32])
    assert [bytes(row) for row in made.known_keys()] == [bytes(keys)[32:]]
    made.clear()
    assert made.known_keys().shape == (0, 32)


@pytest.mark.parametrize("run", [(0, 3), (2, 1), (3, 3)])
def test_a_run_that_is_not_there_is_refused(run: tuple[int, int]) -> None:
    made, keys = cache("rr")
    for verb in (made.lacking, made.last_known):
        with pytest.raises(by.Misuse, match=f"blocks {run[0]} to {run[1]}: there are 2"):
            verb(keys, *run)


def test_a_cache_that_owns_its_device_is_refused() -> None:
    own = by.KVCache(device=8, block_size=SIZE)
    keys = own.keys(range(8))
    with pytest.raises(by.Misuse, match="lacking"):
        own.lacking(keys, 0, 1)
    with pytest.raises(by.Misuse, match="last_known"):
        own.last_known(keys, 0, 1)
    with pytest.raises(by.Misuse, match="known_keys"):
        own.known_keys()
