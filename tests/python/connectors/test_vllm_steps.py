"""What the scheduler's half follows of vLLM's steps, and that it passes over nothing it needs."""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from vllm_front import BLOCKS, SIZE, Blocks, Front, no_torch

__all__ = ["no_torch"]


@dataclass(eq=False)
class Row:
    """A request as vLLM's scheduler has it."""

    text: list[int]
    twins: list[Any]
    """vLLM's request in either front."""
    known: int
    """Tokens that it has: its prompt, and what was sampled."""
    table: list[int] = field(default_factory=list)
    computed: int = 0
    began: int = 0
    """Tokens that it had when it began, or came back."""
    sound: int = 0
    """Tokens of it that the half must know to be computed, of those known before the step."""
    state: str = "waiting"
    was_running: bool = False

    def tell(self, front: Front, **changes: Any) -> None:
        """Has both of vLLM's requests as they are now."""
        hashes = front.request("", self.text[: self.known]).block_hashes
        for twin in self.twins:
            vars(twin).update(num_tokens=self.known, block_hashes=hashes, **changes)


class Engine:
    """vLLM's scheduler, with random decisions, over two fronts.

    The second one has a row beside the others that computes two tokens in each step, and that is
    nobody's: it passes over no row.
    """

    def __init__(self, seed: int, **extra: Any) -> None:
        self.chance = random.Random(seed)
        self.fronts = Front(**extra), Front(**extra)
        self.rows: dict[str, Row] = {}
        self.free = list(range(1, BLOCKS))
        self.drafts = self.chance.choice([0, 0, 3])
        self.preempted: set[str] = set()
        self.added = 0
        self.seen = {"passed over": 0, "resumed": 0, "loads": 0, "drafts": 0}

    def add(self) -> None:
        self.added += 1
        name = f"request {self.added}"
        text = [self.chance.randrange(2)] * SIZE + list(range(60))
        known = self.chance.randrange(3, 18)
        made = [front.request(name, text[:known]) for front in self.fronts]
        self.rows[name] = Row(text, made, known)
        for front, twin in zip(self.fronts, made, strict=True):
            front.scheduler.on_new_request(twin)

    def give(self, row: Row, tokens: int) -> list[int] | None:
        """Gives a row blocks for so many tokens; None where there are not enough."""
        wanted = -(-tokens // SIZE) - len(row.table)
        if wanted > len(self.free):
            return None
        more, self.free = self.free[: max(wanted, 0)], self.free[max(wanted, 0) :]
        row.table = row.table + more
        return more

    def release(self, row: Row) -> None:
        self.free += row.table[::-1]
        row.table, row.computed = [], 0

    def preempt(self, name: str) -> None:
        row = self.rows[name]
        self.release(row)
        row.state = "waiting"
        row.tell(self.fronts[0], num_preemptions=row.twins[0].num_preemptions + 1)
        self.preempted.add(name)

    def finish(self, name: str) -> None:
        row = self.rows.pop(name)
        for front, twin in zip(self.fronts, row.twins, strict=True):
            vars(twin).update(num_computed_tokens=row.computed)
            front.scheduler.request_finished(twin, list(row.table))
        self.release(row)

    def admit(self, name: str) -> bool:
        """Asks for a request that waits; returns whether it runs."""
        row = self.rows[name]
        asks = zip(self.fronts, row.twins, strict=True)
        found, other = (f.scheduler.get_num_new_matched_tokens(twin, 0)[0] for f, twin in asks)
        assert found == other
        if found is None or self.give(row, row.known + self.drafts) is None:
            return False
        for front, twin in zip(self.fronts, row.twins, strict=True):
            front.scheduler.update_state_after_alloc(twin, Blocks(list(row.table)), found)
        row.state = "loading" if found else "running"
        row.computed = found
        self.seen["loads"] += bool(found)
        return not found

    def end_some(self) -> None:
        """Ends requests, aborts some and preempts others."""
        chance = self.chance
        for name, row in [*self.rows.items()]:
            if row.state == "running" and row.known > 50:
                self.finish(name)
            elif row.state == "running" and chance.random() < 0.04:
                self.preempt(name)
            elif row.state == "running" and chance.random() < 0.02:
                self.finish(name)  # It is aborted.

    def step(self) -> None:
        self.end_some()
        chance, resumed = self.chance, set[str]()
        new: dict[str, Any] = {}
        more: dict[str, Any] = {}
        for name, row in [*self.rows.items()]:
            began = row.state == "loaded" or (
                # vLLM admits none in a step that preempts.
                row.state == "waiting" and not self.preempted and self.admit(name)
            )
            if not began and row.state != "running":
                continue
            if not began and chance.random() < 0.1:
                continue  # There is no budget for it.
            left = row.known - row.computed
            count = min(left, chance.choice([1, 3, 20])) if left > 1 else 1
            drafts = self.drafts if left == 1 and chance.random() < 0.5 else 0
            given = self.give(row, row.computed + count + drafts)
            if given is None:
                self.preempt(name)
                continue
            self.seen["drafts"] += drafts
            self.seen["passed over"] += not given and count + drafts == 1
            told = row.computed, count + drafts
            row.began = row.known if began else row.began
            if count + drafts > 1 or given or began or row.known > row.began:
                # A chunk of one token that needs no block may be counted later.
                row.sound = min(row.computed + count, row.known - 1)
            row.state = "running"
            if began and row.was_running:
                resumed.add(name)
                self.seen["resumed"] += 1
                more[name] = (list(row.table), *told)
            elif began:
                new[name] = (list(row.table), *told)
            else:
                more[name] = (given or None, *told)
            row.was_running = True
            row.computed += count
            if row.computed == row.known:
                # The model samples, and takes some of the drafts.
                row.known += 1 + (taken := chance.randrange(drafts + 1))
                row.computed += taken
        self.run(new, more, resumed)

    def run(self, new: dict[str, Any], more: dict[str, Any], resumed: set[str]) -> None:
        """Has both fronts carry the step out, and compares what they say."""
        told = []
        for at, front in enumerate(self.fronts):
            of = {name: row.twins[at] for name, row in self.rows.items()}
            going = {of[name]: given for name, given in more.items()}
            if at:
                going[front.request("nobody", [1])] = (None, 0, 2)
            first = {of[name]: (ids, count) for name, (ids, _, count) in new.items()}
            output = front.output(first, 0, self.preempted & of.keys(), more=going)
            for one, (_, computed, _) in zip(output.scheduled_new_reqs, new.values(), strict=True):
                vars(one).update(num_computed_tokens=computed)
            vars(output.scheduled_cached_reqs).update(resumed_req_ids=resumed)
            said = front.run(output)
            half = front.scheduler.front
            for name in {**new, **more}:
                row = self.rows[name]
                assert half._rows.by_name[name].ids == row.table
                assert half._rows.by_name[name].computed() == row.sound
            rows = {
                name: (row.ids, row.loading, row.stowed, row.preemptions)
                for name, row in half._rows.by_name.items()
            }
            meta = front.meta
            fence = meta.orders.fence, meta.orders.written.tolist()
            plans = [
                (plan.flight, plan.sources.tolist(), plan.destinations.tolist())
                for plan in (*meta.orders.down, *meta.orders.up)
            ]
            came = said.finished_recving, said.invalid_block_ids
            told.append((rows, fence, plans, came, half.cache.digest()))
        assert told[0][:-1] == told[1][:-1]
        for name in told[0][3][0]:
            if name in self.rows:
                self.rows[name].state = "loaded"
        self.preempted.clear()
        for row in self.rows.values():
            row.tell(self.fronts[0])

    def close(self) -> None:
        for front in self.fronts:
            front.worker.shutdown()


@pytest.mark.parametrize("stow", ["finish", "through"])
def test_a_row_that_is_passed_over_has_not_changed(stow: str) -> None:
    seen = dict.fromkeys(("passed over", "resumed", "loads", "drafts"), 0)
    for seed in range(12):
        engine = Engine(seed, stow=stow)
        for _ in range(60):
            if len(engine.rows) < 5:
                engine.add()
            engine.step()
        engine.close()
        seen = {name: seen[name] + count for name, count in engine.seen.items()}
    assert min(seen.values()) > 20, seen
