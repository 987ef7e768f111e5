"""Blocks below an engine's own: the length that several caches agree to, and all keys."""

from itertools import product

import pytest

import blockyard as by
from blockyard._core import Riders

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


def start(kind: str, blocks: int) -> int:
    """The first block that a kind of group needs at a length; the length for none."""
    return {
        "full": 0,
        "window": max(0, blocks - 2),
        "state": blocks - 1,
        "chunk": blocks // 2 * 2,
    }[kind]


def length(pairs: list[tuple[str, str]], after: int, far: int, step: int) -> tuple[int, bool]:
    """The greatest length, and whether some is in flight, by trying each."""
    for blocks in range(far, after, -1):
        needed = "".join(one[max(start(kind, blocks), after) : blocks] for kind, one in pairs)
        if blocks % step == 0 and "m" not in needed:
            return blocks, "f" in needed
    return after, False


def riders(pairs: list[tuple[str, by.KVCache]], step: int = 1) -> Riders:
    """What `pairs` of kinds and caches agree."""
    groups = [(one, kind == "chunk") for kind, one in pairs]
    return Riders(groups, lambda blocks: [start(kind, blocks) for kind, _ in pairs], step)


@pytest.mark.law("G3")
@pytest.mark.parametrize("kind", ["full", "window", "state", "chunk"])
@pytest.mark.parametrize("step", [1, 2])
def test_lengths_are_agreed_as_by_trying_each(kind: str, step: int) -> None:
    beside = "rmrr"
    other, _ = cache(beside)
    for states in ("".join(one) for one in product("mrf", repeat=4)):
        made, keys = cache(states)
        longer = made.keys(range(4 * SIZE + 1))
        asked = riders([(kind, made), ("state", other)], step)
        for after, far in ((a, b) for b in range(5) for a in range(b + 1)):
            wanted = length([(kind, states), ("state", beside)], after, far, step)
            blocks, waits, group, lacks, most = asked.agree(longer, after, far, far)
            assert (blocks, waits, most) == (*wanted, far), (states, after, far)
            if group is None or lacks is None:
                assert group is lacks
                assert blocks in {after, far // step * step}
            else:
                assert (states, beside)[group - 1][lacks] == "m"
                assert lacks >= blocks
        blocks, _, _, _, most = asked.agree(keys, 0, 4, 4)
        assert most == 3, "a token is computed"
        assert blocks <= 3


def test_all_keys_that_are_known_are_those_below_or_in_flight() -> None:
    for states in ("".join(one) for one in product("mrf", repeat=4)):
        made, keys = cache(states)
        raw = bytes(keys)
        assert {bytes(row) for row in made.known_keys()} == {
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


def test_what_does_not_fit_is_refused() -> None:
    made, keys = cache("rr")
    with pytest.raises(by.Misuse, match="far = 3: the keys are of 2"):
        riders([("full", made)]).agree(keys, 0, 3, 3)
    with pytest.raises(by.Misuse, match="step = 0"):
        riders([("full", made)], 0)
    with pytest.raises(by.Misuse, match="starts: 0 for 1 groups"):
        Riders([(made, False)], lambda _: [], 1).agree(keys, 0, 1, 1)
    with pytest.raises(by.Misuse, match=r"groups\[0\]: give \(cache, rests\)"):
        Riders([made], lambda _: [], 1)  # type: ignore[list-item]
    other = by.KVCache(engine=16, host=16, block_size=8, linked=False, group=1)
    with pytest.raises(by.Misuse, match="keys of blocks of 4 tokens"):
        riders([("full", other)]).agree(keys, 0, 1, 1)


def test_a_cache_that_owns_its_device_is_refused() -> None:
    own = by.KVCache(device=8, block_size=SIZE)
    keys = own.keys(range(8))
    with pytest.raises(by.Misuse, match="owns its device"):
        riders([("full", own)]).agree(keys, 0, 1, 1)
    with pytest.raises(by.Misuse, match="known_keys"):
        own.known_keys()
