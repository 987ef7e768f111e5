"""Any life of any sequences, through the real binding: after every step the audit is silent."""

import contextlib
from typing import Any, Literal

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

import blockyard as by
from blockyard.shared.layout import BELOW, LowerTier
from known import (
    ANY,
    BOOL,
    FEW,
    PATH,
    RETENTION,
    SALT,
    Known,
    Resting,
    Salt,
    Sequence,
    need,
    step,
)
from yard import EXAMPLES, array, begin, free_for_all, profile


class Life(Known):
    @step(path=PATH, blocks=FEW, tail=FEW, salt=SALT, reserve=FEW, load=FEW, soon=BOOL, ready=BOOL)
    def begin(
        self,
        path: int,
        blocks: int,
        tail: int,
        salt: Salt,
        reserve: int,
        load: int,
        soon: bool,
        ready: bool,
    ) -> None:
        tokens = self.prompt(path, blocks, tail) or [1]
        keywords: dict[str, Any] = {"reserve": reserve, "filling": "soon" if soon else "stop"}
        keywords |= {"load": None if load > 2 else load}
        if ready:
            self.admit(Sequence(tokens, salt), self.cache.keys(tokens, salt=salt), **keywords)
        else:
            self.admit(Sequence(tokens, salt), array(tokens), salt=salt, **keywords)

    def admit(self, sequence: Sequence, prompt: Any, **keywords: Any) -> None:
        known = self.known(sequence.salt, sequence.tokens)
        found = self.cache.probe(self.cache.keys(sequence.tokens, salt=sequence.salt))
        assert (found.device + found.host + found.disk) * self.size <= known
        before = self.cache.stats()
        try:
            answer = self.cache.begin(prompt, **keywords)
        except by.NoRoom as refused:
            assert refused.need > 0  # noqa: PT017
            before["no_room"] += not isinstance(refused, by.TooLarge)
            assert self.cache.stats() == before
            return
        if isinstance(answer, by.Soon):
            assert any(plan.flight == answer.flight for plan in self.in_flight)
            assert self.cache.stats() == before
            return
        self.enter(answer, sequence, known)

    @step(path=PATH, blocks=FEW, salt=SALT, retention=RETENTION)
    def publish(
        self,
        path: int,
        blocks: int,
        salt: Salt,
        retention: Literal["ordinary", "session-ended", "retain"],
    ) -> None:
        running = len(self.running)
        tokens = self.prompt(path, blocks, 1)
        self.admit(Sequence(tokens, salt), self.cache.keys(tokens, salt=salt))
        need(len(self.running) > running)
        row = self.running[-1]
        self.in_flight = [plan for plan in self.in_flight if plan not in row.lease.plans]
        self.cache.commit(row.lease.plans)
        if row.lease.state == "ready":
            computed = self.range_of(row, 255)
            self.seals(row, computed)
            self.cache.seal(row.lease, computed)
        self.running.remove(row)
        self.cache.finish(row.lease, retention=retention)

    @step(down=BOOL)
    def squeeze(self, down: bool) -> None:
        """Everything idle leaves the device, with or without a copy below."""
        for tier in reversed(self.tiers) if down else ():
            plan = self.cache.demote(100, tier=tier)
            if plan is not None:
                self.cache.commit(plan)
        blocks = free_for_all(self.cache) - self.cache.stats()["device_promised"]
        need(blocks > 0)
        self.cache.finish(begin(self.cache, [7] * (blocks * self.size)))

    @step()
    def make_spare(self) -> None:
        before = self.cache.stats()
        made = self.cache.make_spare()
        after = self.cache.stats()
        moved = {"device_free": made, "device_evicted": made, "evicted_ahead": made}
        assert {name: after[name] - before[name] for name in moved} == moved
        assert made == 0 or after["device_free"] <= self.cache.config.spare_blocks
        assert after["device_promised"] == before["device_promised"]

    @step(rows=st.lists(st.tuples(ANY, FEW, FEW, BOOL), min_size=1, max_size=4))
    def append_and_grow(self, rows: list[tuple[int, int, int, bool]]) -> None:
        batch = {id(row := self.pick(at, "ready", "loading", "detached")): row for at, *_ in rows}
        chosen = list(batch.values())
        new = [[int(bit)] * count for _, count, _, bit in rows][: len(chosen)]
        leases = [row.lease for row in chosen]
        for row, tokens in zip(chosen, new, strict=True):
            row.tokens += tokens
        flat = array(token for tokens in new for token in tokens)
        self.cache.append(leases, flat, [len(tokens) for tokens in new])
        drafts = [row[2] for row in rows]
        more = [drafts[at] + len(tokens) for at, tokens in enumerate(new)]
        before = [(lease.tokens, lease.blocks + lease.promised) for lease in leases]
        unserved = set(self.cache.grow(leases, more).tolist())
        for at, lease in enumerate(leases):
            had, room = before[at]
            grown = had + (0 if at in unserved else more[at])
            assert lease.tokens == grown
            assert at not in unserved or had + more[at] > room * self.size, "in its promise"
            assert lease.appended == len(chosen[at].tokens)

    @step(which=ANY, to=ANY)
    def trim(self, which: int, to: int) -> None:
        row = self.pick(which, "ready", "detached")
        lease = row.lease
        least = max(1, lease.sealed * self.size, min(lease.cached, lease.tokens))
        need(least <= lease.tokens)
        row.shrinks = True
        length = least + to % (lease.tokens - least + 1)
        self.cache.trim(lease, length)
        assert lease.tokens == length

    @step(which=ANY, computed=ANY)
    def seal(self, which: int, computed: int) -> None:
        row = self.pick(which, *(["ready", "incomplete"] if self.recompute else ["ready"]))
        computed = self.range_of(row, computed)
        self.seals(row, computed)
        before = row.lease.sealed
        assert self.cache.seal(row.lease, computed) == row.lease.sealed - before
        assert row.lease.sealed * self.size <= max(computed, before * self.size)

    @step(which=ANY, computed=ANY, reserve=FEW)
    def fork(self, which: int, computed: int, reserve: int) -> None:
        row = self.pick(which, "ready", "detached")
        computed = self.range_of(row, computed)
        with contextlib.suppress(by.NoRoom):
            child = self.cache.fork(row.lease, computed, reserve=reserve)
            assert (child.cached, child.appended) == (computed, row.lease.appended)
            self.enter(child, row, None)

    @step(rows=st.lists(ANY, min_size=1, max_size=3), retention=RETENTION, after=BOOL)
    def finish(
        self,
        rows: list[int],
        retention: Literal["ordinary", "session-ended", "retain"],
        after: bool,
    ) -> None:
        need(self.running)
        chosen = [self.running.pop(at % len(self.running)) for at in rows[: len(self.running)]]
        leases = [row.lease for row in chosen]
        self.step += after
        self.cache.finish(leases, retention=retention, after=self.step if after else None)
        assert all(lease.state == "spent" for lease in leases)

    @step(which=ANY, computed=ANY, after=BOOL)
    def park(self, which: int, computed: int, after: bool) -> None:
        row = self.pick(which, "ready", "incomplete")
        computed = self.range_of(row, computed)
        if row.lease.state == "ready":
            self.seals(row, computed)
        self.step += after
        state = row.lease.state
        try:
            parked = self.cache.park(row.lease, computed, after=self.step if after else None)
        except by.NoRoom as refused:
            assert refused.tier in self.tiers[1:]  # noqa: PT017
            assert row.lease.state == state
            assert state == "ready" or not row.lease.resumed, "a short resume has its keeps"
            return
        except by.Misuse as refused:
            # A fork of a detached lease whose copy came back so is "incomplete" first of all.
            assert state == "incomplete" and "clear has detached" in str(refused)  # noqa: PT017, PT018
            return
        assert state == "incomplete" or parked.computed == computed
        self.running.remove(row)
        self.parked.append(Resting(row.tokens, row.salt, parked))

    @precondition(lambda self: self.parked)
    @step(which=ANY, reserve=FEW)
    def resume(self, which: int, reserve: int) -> None:
        row = self.parked[which % len(self.parked)]
        broken, computed = row.handle.state == "broken", row.handle.computed
        known = self.known(row.salt, row.tokens)
        try:
            lease = self.cache.begin(row.handle, reserve=reserve)
        except by.NoRoom:
            assert row.handle.state != "spent"
            return
        if isinstance(lease, by.Soon):
            assert any(plan.flight == lease.flight for plan in self.in_flight)
            return
        assert broken or lease.cached == computed, "at exactly the token it was parked at"
        self.parked.remove(row)
        self.enter(lease, row, known if broken else None)

    @precondition(lambda self: self.parked)
    @step(which=ANY)
    def abandon(self, which: int) -> None:
        row = self.parked.pop(which % len(self.parked))
        self.cache.abandon(row.handle)
        assert row.handle.state == "spent"

    @step(blocks=FEW, tier=ANY)
    def demote(self, blocks: int, tier: int) -> None:
        self.fly(self.cache.demote(blocks, tier=self.tiers[tier % len(self.tiers)]))

    @step(which=ANY, blocks=FEW)
    def demote_of_a_lease(self, which: int, blocks: int) -> None:
        row = self.pick(which, "ready", "loading", "detached", "incomplete")
        self.fly(self.cache.demote(blocks, of=row.lease))

    @precondition(lambda self: self.parked)
    @step(which=ANY, blocks=FEW, down=ANY)
    def demote_of_a_parked_one(self, which: int, blocks: int, down: int) -> None:
        row = self.parked[which % len(self.parked)]
        to = self.below(down) if down % 2 else None
        before = row.handle.below
        plan = self.cache.demote(blocks, of=row.handle, to=to)
        assert to == "disk" or row.handle.below == before, "nothing is kept higher"
        self.fly(plan)

    def below(self, at: int) -> LowerTier:
        has = [tier for tier in BELOW if tier in self.tiers and self.cache.limit(tier)]
        need(has)
        return has[at // 2 % len(has)]

    @step(path=PATH, blocks=FEW, salt=SALT, most=FEW, up=ANY)
    def promote(self, path: int, blocks: int, salt: Salt, most: int, up: int) -> None:
        keys = self.cache.keys(array(self.prompt(path, blocks, 0)), salt=salt)
        to = "device" if up % 2 else self.below(up)
        with contextlib.suppress(by.NoRoom):
            for plan in self.cache.promote(keys, most, to=to):
                assert plan.destination_tier == to
                self.fly(plan)

    def fly(self, plan: by.Plan | None) -> None:
        if plan is not None:
            assert len(plan) > 0
            self.in_flight.append(plan)

    def take(self, flights: list[by.Plan], which: list[int]) -> list[by.Plan]:
        need(flights)
        return [flights.pop(at % len(flights)) for at in which[: len(flights)]]

    @step(which=st.lists(ANY, min_size=1, max_size=3), bad=FEW, corrupt=BOOL)
    def commit(self, which: list[int], bad: int, corrupt: bool) -> None:
        plans = self.take(self.in_flight, which)
        good = [max(0, len(plan) - max(0, bad - 3)) for plan in plans]
        assert self.cache.commit(plans, good, corrupt=corrupt) == len(plans)
        self.ended += plans
        self.undone()

    @step(which=ANY)
    def abort(self, which: int) -> None:
        plans = self.take(self.in_flight, [which])
        assert self.cache.abort(plans) == 1
        self.ended += plans
        self.undone()

    @step(which=ANY)
    def mark_unknown(self, which: int) -> None:
        plans = self.take(self.in_flight, [which])
        for row in self.running:
            row.shrinks |= row.lease.state == "loading"
        assert self.cache.mark_unknown(plans) == 1
        self.overdue += plans
        self.undone()

    @step(which=ANY, good=BOOL)
    def fence(self, which: int, good: bool) -> None:
        plans = self.take(self.overdue, [which])
        ended = self.cache.commit(plans) if good else self.cache.abort(plans)
        assert ended == 1
        self.ended += plans
        self.undone()

    @precondition(lambda self: self.ended)
    @step(which=ANY, word=st.sampled_from(["commit", "abort", "mark_unknown"]))
    def late(self, which: int, word: str) -> None:
        plan = self.ended[which % len(self.ended)]
        before = self.cache.stats()
        assert getattr(self.cache, word)(plan) == 0
        assert self.cache.stats() == before | {"late": before["late"] + 1}

    @rule()
    def done(self) -> None:
        self.cache.commit([], done=self.step)

    @step(really=st.integers(0, 7))
    def clear(self, really: int) -> None:
        need(really == 7)
        self.cache.clear()
        self.sealed.clear()

    @step(path=PATH, blocks=FEW, salt=SALT, most=FEW)
    def hold(self, path: int, blocks: int, salt: Salt, most: int) -> None:
        tokens = self.prompt(path, blocks, 0)
        found = self.cache.probe(self.cache.keys(tokens, salt=salt)).device
        held = self.cache.hold(self.cache.keys(tokens, salt=salt), most)
        need(held is not None)
        assert held is not None
        assert held.blocks <= min(found, most)
        for slot, generation in zip(held.slots.tolist(), held.generations.tolist(), strict=True):
            assert generation > self.over.get(slot, 0), "it has come back"
        self.holds.append(held)

    @precondition(lambda self: self.holds)
    @step(which=ANY, dropped=BOOL)
    def end_hold(self, which: int, dropped: bool) -> None:
        held = self.holds.pop(which % len(self.holds))
        slots = {slot for one in self.holds if one.is_held for slot in one.slots.tolist()}
        for slot, generation in zip(held.slots.tolist(), held.generations.tolist(), strict=True):
            if slot not in slots:
                self.over[slot] = generation
        leaked, lives = self.cache.stats()["leaked"], held.is_held
        if not dropped:
            held.release()
            assert not held.is_held
        del held
        assert self.cache.stats()["leaked"] == leaked + (dropped and lives)
        assert self.cache.stats()["held_blocks"] == len(slots)

    @step(tier=st.sampled_from(["device", "host", "disk"]), slots=st.integers(1, 28))
    def resize(self, tier: Literal["device", "host", "disk"], slots: int) -> None:
        need(tier in self.tiers)
        before = self.cache.stats()
        try:
            self.cache.resize(tier, slots + (self.null if tier == "device" else 0))
        except by.InUse as refused:
            assert refused.used > refused.want or not self.recompute  # noqa: PT017
            assert self.cache.stats()[f"{tier}_capacity"] == before[f"{tier}_capacity"]

    @step(which=ANY, parked=BOOL)
    def drop(self, which: int, parked: bool) -> None:
        rows: list[Any] = self.parked if parked else self.running
        need(rows)
        leaked = self.cache.stats()["leaked"]
        del rows[which % len(rows)]
        assert self.cache.stats()["leaked"] == leaked + 1


TestLife = Life.TestCase
TestLife.settings = profile(300, 80)
if EXAMPLES:
    TestLife = pytest.mark.timeout(0)(TestLife)
