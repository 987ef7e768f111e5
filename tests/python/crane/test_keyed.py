"""Tiers that must know the keys of their blocks: what plans carry is stored and compared."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import blockyard as by
from blockyard.crane.copiers import BlockKeys, Receipt, Slots
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.crane import Crane
from blockyard.crane.tiers import Tier, is_mapped
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.shared.plan import Outcome, Plan
from blockyard.testing import ScriptedCopier
from cranes import SHARED, SMALL, after, held, outcomes, pair, plan, same
from keyed import KeyedThreads, KeyedTier
from yard import at_rest, begin, text

LAYOUT = by.KVLayout.llama(layers=2, kv_heads=1, head_dim=8, block_size=4)
PROMPT = text(1, 16)


class Bench:
    """A yard over a keyed host, and an engine that writes what a block's tokens say."""

    def __init__(self, **keywords: Any) -> None:
        device, self.host = MemoryTier(LAYOUT, 17, name="device"), KeyedTier(LAYOUT, 16)
        self.copier = KeyedThreads()
        self.plane = device.planes[0]
        self.cache = by.local(
            LAYOUT, memory=(device, self.host), copier=self.copier, keyed=("host",), **keywords
        )

    def keys(self, tokens: list[int]) -> list[bytes]:
        whole = bytes(self.cache.keys(tokens))
        return [whole[at : at + 32] for at in range(0, len(whole), 32)]

    def compute(self, lease: by.Lease, tokens: list[int]) -> None:
        """The engine computes what is not cached, and all full blocks are published."""
        slots = self.cache.block_tables(lease)[0]
        for block in range(lease.cached // 4, -(-len(tokens) // 4)):
            self.plane[slots[block]] = self.byte(tokens, block)
        self.cache.seal(lease, len(tokens))

    def byte(self, tokens: list[int], block: int) -> int:
        return hash(tuple(tokens[: 4 * block + 4])) % 251 + 1

    def intact(self, lease: by.Lease, tokens: list[int], blocks: int) -> bool:
        slots = self.cache.block_tables(lease)[0]
        return all(
            bool(np.all(self.plane[slots[block]] == self.byte(tokens, block)))
            for block in range(blocks)
        )

    def below(self, tokens: list[int]) -> None:
        """Leaves a prompt's full blocks on the host alone."""
        lease = begin(self.cache, tokens)
        self.step()
        self.compute(lease, tokens)
        self.cache.finish(lease)
        assert self.cache.demote(1_000) is not None
        self.step()
        self.flood()

    def flood(self) -> None:
        """Evicts all that is idle on the device, and leaves nothing of it there."""
        stats = self.cache.stats()
        free = stats["device_free"] + stats["device_takeable"]
        self.cache.finish(begin(self.cache, text(9, 4 * free)))
        self.plane[...] = 0xEE

    def step(self) -> None:
        for _ in range(3):
            self.cache.step()
            assert self.cache.audit() is None


@contextmanager
def bench(**keywords: Any) -> Iterator[Bench]:
    yard = Bench(**{"ahead": 0} | keywords)
    with yard.cache:
        yield yard
        yard.step()
        assert yard.cache.crane.in_flight == 0
        at_rest(yard.cache)


def test_what_is_evicted_is_stored_under_its_key_and_comes_back() -> None:
    with bench() as yard:
        yard.below(PROMPT)
        keys = yard.keys(PROMPT)
        for key, parent in zip(keys, [bytes(32), *keys], strict=False):
            assert bytes(yard.host.parents[yard.host.slot_of(key)]) == parent
        lease = begin(yard.cache, [*PROMPT, 0])
        yard.step()
        assert (lease.state, lease.cached) == ("ready", 16)
        assert yard.intact(lease, PROMPT, 4)
        assert yard.copier.refused == 0
        yard.cache.finish(lease)


@pytest.mark.parametrize("bad", range(4))
def test_a_block_under_a_wrong_key_is_dropped_and_its_tokens_are_computed_again(bad: int) -> None:
    with bench() as yard:
        yard.below(PROMPT)
        keys = yard.keys(PROMPT)
        yard.host.keys[yard.host.slot_of(keys[bad]), 31] ^= 1
        lease = begin(yard.cache, [*PROMPT, 0])
        yard.step()
        assert (lease.state, lease.cached) == ("ready", 4 * bad)
        stats = yard.cache.stats()
        assert (stats["corrupt"], stats["host_idle"]) == (1, 3), "it, and no other"
        assert yard.intact(lease, PROMPT, bad)
        yard.compute(lease, PROMPT)
        yard.cache.finish(lease)
        # Written anew, it is good.
        yard.below(PROMPT)
        lease = begin(yard.cache, [*PROMPT, 0])
        yard.step()
        assert (lease.cached, yard.intact(lease, PROMPT, 4)) == (16, True)
        assert (yard.cache.stats()["corrupt"], yard.copier.refused) == (1, 1)
        yard.cache.finish(lease)


def test_two_blocks_in_each_others_slots_are_both_refused() -> None:
    with bench() as yard:
        yard.below(PROMPT)
        keys = yard.keys(PROMPT)
        yard.host.swap(yard.host.slot_of(keys[1]), yard.host.slot_of(keys[3]))
        for refused, cached in ((1, 4), (2, 12)):
            lease = begin(yard.cache, [*PROMPT, 0])
            yard.step()
            assert (lease.cached, yard.cache.stats()["corrupt"]) == (cached, refused)
            assert yard.intact(lease, PROMPT, cached // 4)
            yard.cache.finish(lease)
            if refused == 1:
                yard.below(PROMPT[:8])


def test_a_prefetch_and_a_full_hit_compare_keys_too() -> None:
    with bench() as yard:
        yard.below(PROMPT)
        assert yard.cache.promote(yard.cache.keys(PROMPT), blocks=2) is not None
        yard.step()
        yard.host.keys[yard.host.slot_of(yard.keys(PROMPT)[3])] = 7
        lease = begin(yard.cache, PROMPT)
        yard.step()
        assert (lease.cached, yard.intact(lease, PROMPT, 3)) == (12, True)
        assert yard.copier.refused == 1
        yard.cache.finish(lease)


def parked(yard: Bench, tokens: list[int]) -> by.Parked:
    """Parked, on the host alone."""
    lease = begin(yard.cache, tokens)
    yard.compute(lease, tokens)
    handle = yard.cache.park(lease, len(tokens))
    assert yard.cache.demote(1_000, of=handle) is not None
    yard.step()
    yard.flood()
    return handle


def tails(host: KeyedTier) -> list[int]:
    """Slots of blocks without a key."""
    nameless = ~host.keys[:, :24].any(axis=1) & host.keys.any(axis=1)
    return [int(slot) for slot in np.flatnonzero(nameless)]


def test_a_tail_without_a_key_parks_and_resumes() -> None:
    with bench() as yard:
        prompts = text(1, 14), text(2, 6), text(3, 3)
        handles = [parked(yard, prompt) for prompt in prompts]
        found = tails(yard.host)
        assert len({bytes(yard.host.keys[tail]) for tail in found}) == 3
        above = {bytes(yard.host.parents[tail]) for tail in found}
        assert above == {yard.keys(prompts[0])[2], yard.keys(prompts[1])[0], bytes(32)}
        for handle, prompt in zip(handles, prompts, strict=True):
            lease = begin(yard.cache, handle)
            yard.step()
            assert (lease.state, lease.cached) == ("ready", len(prompt))
            assert yard.intact(lease, prompt, -(-len(prompt) // 4))
            yard.cache.finish(lease)
        assert yard.copier.refused == 0


def test_a_tail_under_a_wrong_number_is_computed_again() -> None:
    with bench() as yard:
        prompt = text(1, 14)
        handle = parked(yard, prompt)
        (tail,) = tails(yard.host)
        yard.host.keys[tail, 24] ^= 1
        lease = begin(yard.cache, handle)
        yard.step()
        assert lease.cached == 12, "the tail is not taken for another's"
        assert yard.intact(lease, prompt, 3)
        yard.compute(lease, prompt)
        yard.cache.finish(lease)


class Crowd:
    """Sequences that begin, park and resume by chance."""

    def __init__(self, yard: Bench, chance: np.random.Generator) -> None:
        self.yard, self.chance = yard, chance
        self.running: list[tuple[by.Lease, list[int]]] = []
        self.resting: list[tuple[by.Parked, list[int]]] = []

    def begin(self) -> None:
        resumes = bool(self.resting) and self.chance.random() < 0.3
        words = self.chance.integers(1, 4, size=self.chance.integers(1, 4))
        asked: tuple[Any, list[int]] = (None, [int(word) for word in np.repeat(words, 4)] + [0])
        if resumes:
            asked = self.resting.pop()
        try:
            lease = self.yard.cache.begin(asked[0] if resumes else asked[1])
        except by.NoRoom:
            lease = None
        if isinstance(lease, by.Lease):
            self.running.append((lease, asked[1]))
        elif resumes:
            self.resting.append(asked)

    def compute(self) -> None:
        for lease, tokens in [
            one for one in self.running if one[0].state in {"ready", "incomplete"}
        ]:
            assert self.yard.intact(lease, tokens, -(-lease.cached // 4))
            self.yard.compute(lease, tokens)
            if self.chance.random() < 0.6:
                self.running.remove((lease, tokens))
                self.leave(lease, tokens)

    def leave(self, lease: by.Lease, tokens: list[int]) -> None:
        cache = self.yard.cache
        try:
            handle = cache.park(lease, len(tokens))
        except by.NoRoom:
            cache.finish(lease)
            return
        self.resting.append((handle, tokens))
        cache.demote(8, of=handle)

    def end(self) -> None:
        self.yard.step()
        self.yard.cache.finish([lease for lease, _ in self.running])
        for handle, _ in self.resting:
            self.yard.cache.abandon(handle)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("swaps", [0.0, 0.2])
@pytest.mark.parametrize("write", ["on-evict", "through"])
def test_no_byte_is_wrong_and_no_good_block_is_refused(seed: int, swaps: float, write: Any) -> None:
    chance = np.random.default_rng(seed)
    with bench(write=write, ahead=6) as yard:
        crowd = Crowd(yard, chance)
        for _ in range(200):
            if len(crowd.running) < 3:
                crowd.begin()
            if chance.random() < swaps:
                yard.host.swap(*(int(slot) for slot in chance.choice(16, 2, replace=False)))
            yard.cache.step()
            assert yard.cache.audit() is None
            crowd.compute()
        crowd.end()
        assert (yard.copier.refused > 0) == (swaps > 0)
        assert yard.cache.stats()["device_in"] > 0


# -- the crane ------------------------------------------------------------------------------------


def keyed_plan(
    number: int, way: int, sources: list[int], destinations: list[int], *, down: bool
) -> Plan:
    """A plan whose keys are the sources' numbers, and the parents' the destinations'."""
    blocks = len(sources)
    header = struct.pack(
        "<2sBBIQQHHI", b"Y4", way, 3 if down else 1, blocks, 1 << 32 | number, 0, 0, 0, 0
    )
    slots = struct.pack(f"<{2 * blocks}I", *sources, *destinations)
    keys = b"".join(bytes([slot]) * 32 for slot in sources)
    parents = b"".join(bytes([slot]) * 32 for slot in destinations) if down else b""
    return Plan.from_bytes(header + slots + keys + parents)


class Noting(ThreadCopier):
    """Notes what it is asked for: planes, slots, and the keys that stand for them."""

    def __init__(self) -> None:
        super().__init__(workers=0)
        self.asked: list[tuple[int, list[int], list[int], list[int], list[int] | None]] = []

    def start_keyed(
        self,
        source: Tier,
        destination: Tier,
        sources: Slots,
        destinations: Slots,
        *,
        keys: BlockKeys,
        parents: BlockKeys | None,
    ) -> Receipt | None:
        def numbers(rows: NDArray[np.uint8]) -> list[int]:
            assert rows.shape == (len(sources), 32)
            return [int(row) for row in rows[:, 0]]

        assert is_mapped(source)
        self.asked.append(
            (
                len(source.planes),
                sources.tolist(),
                destinations.tolist(),
                numbers(keys),
                None if parents is None else numbers(parents),
            )
        )
        return self.start(source, destination, sources, destinations)


DOWN, UP = 0x01, 0x10


def test_a_copier_gets_the_keys_of_its_blocks_where_the_plan_has_them() -> None:
    device, host = pair(SMALL)
    copier = Noting()
    with Crane(SMALL, device=device, host=host, copier=copier) as hands:
        below = after(held(host), held(device), [3, 5], [7, 0])
        hands.submit([keyed_plan(1, DOWN, [3, 5], [7, 0], down=True), plan(2, "across", [1], [2])])
        assert [outcome.good for outcome in outcomes(hands)] == [2, 1]
        assert same(host, below)
        hands.submit(keyed_plan(3, UP, [7], [9], down=False))
        assert [outcome.good for outcome in outcomes(hands)] == [1]
        assert copier.asked == [
            (1, [3, 5], [7, 0], [3, 5], [7, 0]),
            (1, [7], [9], [7], None),
        ]


def test_of_planes_that_ranks_share_each_gets_the_keys_of_those_it_writes(tmp_path: Path) -> None:
    for rank in range(2):
        copier = Noting()
        device = MemoryTier(SHARED, 12, name="device")
        host = MemoryTier(SHARED, 9, shared=tmp_path / "shared")
        with Crane(SHARED, rank=rank, device=device, host=host, copier=copier) as hands:
            hands.submit(keyed_plan(1, DOWN, [1, 2, 3, 4], [8, 5, 6, 7], down=True))
            hands.submit(keyed_plan(2, UP, [1, 2], [3, 4], down=False))
            assert [outcome.good for outcome in outcomes(hands)] == [4, 2]
        mine = ([1, 3], [8, 6]) if rank == 0 else ([2, 4], [5, 7])
        assert copier.asked == [
            (1, *mine, *mine),
            (1, [1, 2, 3, 4], [8, 5, 6, 7], [1, 2, 3, 4], [8, 5, 6, 7]),
            (2, [1, 2], [3, 4], [1, 2], None),
        ]


def test_a_copier_that_takes_no_keys_is_refused_the_plan_and_nothing_is_taken() -> None:
    device, host = pair(SMALL)
    with Crane(SMALL, device=device, host=host, copier=ThreadCopier(workers=0)) as hands:
        before = held(host)
        plans = plan(1, "down", [1], [1]), keyed_plan(2, DOWN, [3], [7], down=True)
        with pytest.raises(
            by.Misuse, match=r"carries keys, and ThreadCopier has no start_keyed: give"
        ):
            hands.submit(plans)
        assert (hands.in_flight, same(host, before)) == (0, True)
        hands.submit(plans[0])
        assert outcomes(hands) == [Outcome(1 << 32 | 1, 0, 1)]
    with by.local(LAYOUT, device=9, host=8, keyed=("host",), ahead=0) as cache:
        lease = begin(cache, PROMPT)
        cache.seal(lease, 16)
        assert cache.demote(4, of=lease) is not None
        with pytest.raises(by.Misuse, match="carries keys"):
            cache.step()
    assert not hasattr(ScriptedCopier(ThreadCopier()), "start_keyed")
