"""Table 2.3, row by row, with real bytes and a copier that misbehaves by script."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.tiers import planes_of
from blockyard.testing import Action, Script, ScriptedCopier, corrupt, delay, fail, hang
from yard import at_rest, begin, text

LAYOUT = by.KVLayout.llama(layers=2, kv_heads=1, head_dim=8, block_size=4, order="layer-first")


class Bench:
    """A yard, a crane, and an engine that writes what a block's tokens say."""

    def __init__(self, script: list[Action] | Script = (), **keywords: Any) -> None:  # type: ignore[assignment]
        self.copier = ScriptedCopier(ThreadCopier(workers=0), script)
        keywords = {"device": 17, "host": 16, "ahead": 0} | keywords
        self.cache = by.local(LAYOUT, copier=self.copier, **keywords)
        self.device = planes_of(self.cache.crane._tiers["device"])[0]
        self.texts: dict[int, list[int]] = {}

    def begin(self, tokens: list[int], **keywords: Any) -> by.Lease:
        lease = begin(self.cache, tokens, **keywords)
        self.texts[lease.id] = tokens
        return lease

    def compute(self, lease: by.Lease) -> None:
        """The engine computes what is not cached, and all full blocks are published."""
        tokens = self.texts[lease.id]
        self.write(lease, lease.cached // 4, -(-len(tokens) // 4))
        self.cache.seal(lease, len(tokens))

    def write(self, lease: by.Lease, first: int, end: int) -> None:
        slots = self.cache.block_tables(lease)[0]
        for block in range(first, end):
            self.device[slots[block]] = self.bytes_of(lease, block)

    def bytes_of(self, lease: by.Lease, block: int) -> int:
        return hash(tuple(self.texts[lease.id][: 4 * block + 4])) % 251 + 1

    def intact(self, lease: by.Lease, tokens: int) -> bool:
        """Whether the leading blocks of these many tokens hold what they should."""
        slots = self.cache.block_tables(lease)[0]
        return all(
            bool(np.all(self.device[slots[block]] == self.bytes_of(lease, block)))
            for block in range(tokens // 4)
        )

    def publish(self, tokens: list[int]) -> None:
        lease = self.begin(tokens)
        self.compute(lease)
        self.cache.finish(lease)

    def below(self, tokens: list[int]) -> None:
        """Leaves a prompt's full blocks on the host alone."""
        self.publish(tokens)
        assert self.cache.demote(1_000) is not None
        self.step()
        self.flood()

    def flood(self) -> None:
        """Evicts all that is idle on the device."""
        stats = self.cache.stats()
        free = stats["device_free"] + stats["device_takeable"]
        self.cache.finish(begin(self.cache, text(9, 4 * free)))

    def step(self, steps: int = 2) -> int:
        ended = 0
        for _ in range(steps):
            ended += self.cache.step()
            assert self.cache.audit() is None
        return ended

    def probe(self, tokens: list[int]) -> tuple[int, int]:
        probe = self.cache.probe(self.cache.keys(tokens))
        return probe.device, probe.host


@contextmanager
def bench(script: list[Action] | Script = (), **keywords: Any) -> Iterator[Bench]:  # type: ignore[assignment]
    yard = Bench(script, **keywords)
    with yard.cache:
        yield yard
        for _ in range(4):  # what failed is tried again, and may hang
            yard.copier.release()
            yard.copier.revive()
            yard.step(10)
        assert yard.cache.crane.in_flight == 0
        at_rest(yard.cache)


PROMPT = text(1, 16)


def test_down_ok_the_upper_copy_may_go_and_the_bytes_come_back() -> None:
    with bench() as yard:
        yard.below(PROMPT)
        assert yard.probe(PROMPT) == (0, 4)
        lease = yard.begin([*PROMPT, 0])
        assert lease.state == "loading"
        yard.step()
        assert (lease.state, lease.cached) == ("ready", 16)
        assert yard.intact(lease, 16)
        yard.cache.finish(lease)


def test_down_failed_frees_the_destination_and_leaves_the_source_as_it_was() -> None:
    with bench([fail(1)]) as yard:
        yard.publish(PROMPT)
        yard.cache.demote(4)
        yard.step()
        assert yard.probe(PROMPT) == (4, 0)
        stats = yard.cache.stats()
        assert (stats["host_idle"], stats["host_free"]) == (1, 15)
        lease = yard.begin([*PROMPT, 0])
        assert yard.intact(lease, 16)
        yard.cache.finish(lease)


def test_down_of_a_kept_block_is_tried_again_and_then_its_keep_is_broken() -> None:
    with bench([fail(0), fail(0), fail(0)], copy_retries=2) as yard:
        lease = yard.begin(PROMPT)
        yard.compute(lease)
        parked = yard.cache.park(lease, 16)
        for state in ("kept", "kept", "broken"):
            yard.cache.demote(1, of=parked)
            yard.step()
            assert parked.state == state
        yard.cache.abandon(parked)


def test_down_unknown_quarantines_the_destination_and_the_source_stays_matchable() -> None:
    with bench([hang()], deadline=2) as yard:
        yard.publish(PROMPT)
        yard.cache.demote(4)
        yard.step(5)
        assert yard.cache.stats()["host_quarantined"] == 4
        assert yard.cache.stats()["flights_unknown"] == 1
        lease = yard.begin([*PROMPT, 0])
        assert (lease.cached, yard.intact(lease, 16)) == (16, True)
        yard.cache.finish(lease)
        yard.copier.release()
        yard.step()
        assert yard.cache.stats()["host_quarantined"] == 0


def test_down_unknown_of_a_kept_block_keeps_it_on_the_device() -> None:
    with bench([hang()], deadline=2) as yard:
        lease = yard.begin(PROMPT)
        yard.compute(lease)
        parked = yard.cache.park(lease, 16)
        yard.cache.demote(2, of=parked)
        yard.step(5)
        assert (parked.state, parked.on_device) == ("kept", 4)
        again = yard.cache.begin(parked)
        assert isinstance(again, by.Lease)
        yard.texts[again.id] = PROMPT
        assert (again.cached, yard.intact(again, 16)) == (16, True)
        yard.cache.finish(again)


@pytest.mark.parametrize("spoil", [fail, corrupt])
@pytest.mark.parametrize("good", [0, 1, 3])
def test_up_failed_commits_the_good_prefix_and_the_rest_is_recomputed_in_place(
    spoil: Any, good: int
) -> None:
    with bench([delay(0), spoil(good)]) as yard:
        yard.below(PROMPT)
        lease = yard.begin([*PROMPT, 0])
        table = yard.cache.block_tables(lease, loading="joined")[0].tolist()
        yard.step()
        assert (lease.state, lease.cached) == ("ready", 4 * good)
        assert yard.intact(lease, 4 * good)
        assert yard.cache.block_tables(lease)[0].tolist() == table
        # A copy that failed its checksum is dropped; one that merely failed stays below.
        lost = spoil is corrupt
        assert yard.cache.stats()["host_idle"] == 4 - lost
        yard.compute(lease)
        assert yard.intact(lease, 16)
        yard.cache.finish(lease)
        assert yard.probe(PROMPT)[0] == 4


def test_up_unknown_quarantines_and_the_lease_falls_back_to_the_good_prefix() -> None:
    with bench([delay(0), hang()], deadline=2, device=24) as yard:
        yard.below(PROMPT)
        lease = yard.begin([*PROMPT, 0])
        taken = set(yard.cache.block_tables(lease, loading="joined")[0].tolist()[:4])
        yard.step(5)
        assert (lease.state, lease.cached) == ("incomplete", 0)
        assert yard.cache.stats()["device_quarantined"] == 4
        fresh = yard.begin([*PROMPT, 0], load=0)
        assert not taken & set(yard.cache.block_tables(fresh)[0].tolist())
        yard.compute(fresh)
        yard.copier.release()  # the copy writes now, into slots that no other lease has
        yard.step()
        assert yard.cache.stats()["device_quarantined"] == 0
        assert yard.intact(fresh, 16)
        yard.cache.finish([lease, fresh])


def test_a_prefetch_that_fails_leaves_what_is_good() -> None:
    with bench([delay(0), fail(2)]) as yard:
        yard.below(PROMPT)
        assert len(yard.cache.promote(yard.cache.keys(PROMPT))) == 1
        yard.step()
        assert yard.probe(PROMPT) == (2, 2)
        lease = yard.begin([*PROMPT, 0])
        yard.step()
        assert (lease.cached, yard.intact(lease, 16)) == (16, True)
        yard.cache.finish(lease)


@pytest.mark.parametrize("action", [delay(1), fail(0)])
def test_the_private_copy_of_a_full_hit_is_ready_or_recomputed_in_place(action: Action) -> None:
    with bench([action]) as yard:
        yard.publish(PROMPT)
        lease = yard.begin(PROMPT)
        assert lease.plans[0].destination_tier == "device"
        yard.step(4)
        good = action.word != "fail"
        assert (lease.state, lease.cached) == ("ready", 15 if good else 12)
        yard.write(lease, lease.cached // 4, 4)
        assert yard.intact(lease, 16)
        yard.cache.finish(lease)


def test_across_unknown_quarantines_and_the_block_gets_a_new_slot() -> None:
    with bench([hang()], deadline=2) as yard:
        yard.publish(PROMPT)
        lease = yard.begin(PROMPT)
        old = yard.cache.block_tables(lease, loading="joined")[0][3]
        yard.step(5)
        assert yard.cache.stats()["device_quarantined"] == 1
        yard.cache.grow(lease, 0)
        assert (lease.cached, yard.cache.block_tables(lease)[0][3] != old) == (12, True)
        yard.cache.finish(lease)


def test_a_fork_whose_copy_fails_is_undone_where_nothing_can_be_recomputed() -> None:
    for recompute in (True, False):
        with bench([fail(0)], recompute=recompute) as yard:
            lease = yard.begin(text(1, 14))
            yard.compute(lease)
            other = yard.cache.fork(lease, 14)
            yard.step()
            assert other.state == ("ready" if recompute else "spent")
            yard.cache.finish([lease, other] if recompute else [lease])


def test_outcomes_from_nowhere_change_nothing() -> None:
    with bench() as yard:
        yard.below(PROMPT)
        before = yard.cache.stats()
        yard.cache.commit([by.Outcome(1 << 32 | 99, 0, 3), by.Outcome(1, 5, 0)])
        after = yard.cache.stats()
        changed = {name for name in after if after[name] != before[name]}
        assert changed == {"outcomes", "outcomes_ignored"}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("write", ["on-evict", "through", "second-touch"])
def test_no_byte_is_wrong_whatever_the_copier_does(seed: int, write: Any) -> None:
    script = Script.seeded(seed, late=0.4, failing=0.1, corrupting=0.1, hanging=0.05)
    chance = np.random.default_rng(seed)
    with bench(script, deadline=6, write=write, ahead=6, device=40, host=30) as yard:
        running: list[by.Lease] = []
        for _ in range(150):
            if len(running) < 4:
                words = chance.integers(1, 4, size=chance.integers(1, 5))
                tokens = [int(word) for word in np.repeat(words, 4)] + [0]
                with suppress(by.NoRoom):
                    running.append(yard.begin(tokens))
            yard.step(1)
            for lease in [one for one in running if one.state in {"ready", "incomplete"}]:
                yard.cache.grow(lease, 0)  # a new slot for what was quarantined
                assert yard.intact(lease, lease.cached)
                yard.compute(lease)
                if chance.random() < 0.5:
                    running.remove(lease)
                    yard.cache.finish(lease)
        if running:
            yard.cache.finish(running)
        assert yard.cache.stats()["host_in"] > 0
