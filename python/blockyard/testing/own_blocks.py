"""An engine that gives out its block ids itself, its connector and its ranks, in virtual time."""

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from blockyard._core import InUse, Keys, Misuse
from blockyard.connectors.connector import Connector
from blockyard.connectors.orders import Orders
from blockyard.scheduling.request import RequestState, Result
from blockyard.shared.hints import NO_HINTS, Hints
from blockyard.shared.layout import BELOW, TIERS
from blockyard.testing.copier import Action
from blockyard.testing.copies import Copies
from blockyard.testing.eviction_seeds import hints_said
from blockyard.testing.requests import Ask, Requests
from blockyard.testing.scenario import Scenario
from blockyard.testing.setup import OWN_VERBS
from blockyard.testing.simulated_engine import chained, check, ends, sampled
from blockyard.testing.simulated_rank import SimulatedRank, config_of
from blockyard.testing.simulated_store import SimulatedStore, StoreWorker
from blockyard.yard.cache import KVCache
from blockyard.yard.config import Config

__all__ = ["OwnBlocks"]


_T = TypeVar("_T")
_FAULTS: Final = frozenset({"copy", "outcome", "rank", "engine", "resize"})
"""Events that may cost a request what is kept of it."""


class _Allocator:
    """Blocks with holders; one without is found again by its name until it is taken."""

    def __init__(self, count: int) -> None:
        self.holders = [0] * count
        self.idle = dict.fromkeys(range(count))
        """The next to be taken stands first."""
        self._published: dict[Hashable, int] = {}
        self._names: dict[int, Hashable] = {}

    def hold(self, names: list[Hashable]) -> list[int]:
        """Takes blocks that are there, as far as they are."""
        ids = [self._published[name] for name in takewhile(self._published.__contains__, names)]
        for one in ids:
            self.holders[one] += 1
            self.idle.pop(one, None)
        return ids

    def take(self, count: int) -> list[int]:
        """Takes blocks for new contents; there are so many."""
        ids = list(self.idle)[:count]
        for one in ids:
            del self.idle[one]
            self.holders[one] += 1
            self._published.pop(self._names.pop(one, None), None)
        return ids

    def publish(self, ids: list[int], names: list[Hashable]) -> None:
        """Makes blocks known whose contents are computed."""
        for one, name in zip(ids, names, strict=False):
            if self._published.setdefault(name, one) == one:
                self._names[one] = name

    def give_back(self, ids: list[int]) -> None:
        """Gives blocks back, the deepest first."""
        for one in reversed(ids):
            self.holders[one] -= 1
            check(self.holders[one] >= 0, f"block {one} is given back twice")
            if not self.holders[one]:
                self.idle[one] = None


@dataclass(slots=True, eq=False)
class _RequestRow:
    """A request: its tokens, a sum over all up to each, and what of it is computed, and where."""

    ask: Ask
    tokens: list[int]
    sums: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    computed: int = 0
    kept: int = 0
    """Tokens that are kept below, as the connector has said."""
    state: RequestState = RequestState.WAITING
    hints: Hints = NO_HINTS

    def names(self, blocks: int, size: int) -> list[Hashable]:
        """The engine's own keys of its first blocks."""
        return [(self.ask.tag, *self.tokens[: (at + 1) * size]) for at in range(blocks)]


class OwnBlocks:
    """The loop of such an engine. Every position that a row attends to is checked on every rank.

    Args:
        scenario: Sizes and events.
        shared: A folder for what ranks share.
        store: A store that others may share; None for one of its own, where there are names of it.

    Raises:
        Misuse: An event is one of a yard that owns its device.
    """

    def __init__(
        self, scenario: Scenario, shared: Path, store: SimulatedStore | None = None
    ) -> None:
        self.setup = setup = scenario.setup
        self.now = 0
        self._events = deque(sorted(scenario.events, key=lambda event: event.tick))
        for event in self._events:
            if event.verb not in OWN_VERBS:
                raise Misuse(f"{event}: an engine with blocks of its own knows {sorted(OWN_VERBS)}")
        config = config_of(setup, scenario.largest)
        self.seen: Counter[str] = Counter()
        if store is None and setup.remote:
            store = SimulatedStore(setup, f"store {len(scenario.events)}", self.seen)
        self._store = store
        self._ranks = [self._rank_of(config, shared, rank) for rank in range(setup.ranks)]
        self._memory = [memory for rank in self._ranks for memory in rank.memory]
        self._faulty = any(event.verb in _FAULTS for event in scenario.events)
        # What a store keeps it may lose.
        self._faulty |= setup.deadline is not None or setup.remote > 0
        self.requests = Requests(setup, self.seen, faulty=self._faulty)
        self._copies = Copies(setup, self.seen)
        self._connectors = [
            Connector(KVCache(config_of(setup)), lookup=self._ranks[0].lookup())
            for _ in range(max(setup.replicas, 1))
        ]
        self._blocks = _Allocator(setup.device)
        self._rows: dict[str, _RequestRow] = {}
        self._queue: list[_RequestRow] = []
        self._running: list[_RequestRow] = []
        self._freed_later: dict[Hashable, list[int]] = {}
        self._pending_aborts: list[tuple[str, str]] = []
        self._stalled = 0

    def _rank_of(self, config: Config, shared: Path, rank: int) -> SimulatedRank:
        worker = None
        if self._store is not None:
            worker = StoreWorker(self._store, config, self.setup, rank, lambda: float(self.now))
        return SimulatedRank(config, self.setup, rank, shared, worker=worker)

    def close(self) -> None:
        """Gives the memory back."""
        for rank in self._ranks:
            rank.crane.close()

    def run(self) -> None:
        """Plays all events, and then on until all requests have ended and all is at rest."""
        for _ in self.play():
            pass

    def play(self) -> Iterator[None]:
        """Does the same, and yields between the ticks."""
        while self._events:
            self._tick()
            yield
        self._end_faults()
        bound = self.now + 400 + 16 * self.requests.work
        while self.requests.unfinished or self._freed_later or not self._silent():
            self._tick()
            yield
            states = {name: str(row.state) for name, row in self._rows.items()}
            check(self.now < bound, f"the faults are over, and these requests are stuck: {states}")
        self._check_at_rest()
        for name, number in self._connectors[0].cache.stats().items():
            self.seen[f"stats {name}"] = number

    def _silent(self) -> bool:
        flights = self._connectors[0].cache.stats()["flights"]
        return not flights and all(rank.silent for rank in self._ranks)

    def _each(self, call: Callable[[Connector], _T]) -> _T:
        """Makes the same call to every connector; the answers are equal (E7)."""
        answers = [call(connector) for connector in self._connectors]
        check(all(one == answers[0] for one in answers), f"E7: replicas differ: {answers}")
        return answers[0]

    # -- a tick ------------------------------------------------------------------------------

    def _tick(self) -> None:
        self.now += 1
        while self._events and self._events[0].tick <= self.now:
            event = self._events.popleft()
            getattr(self, f"_on_{event.verb}")(*event.what)
        pending, self._pending_aborts = self._pending_aborts, []
        for name, when in pending:
            self._on_abort(name, when)
        outcomes = [outcome for rank in self._ranks for outcome in rank.poll(self.now, self.seen)]
        self._each(lambda one: one.commit(outcomes, now=self.now))
        self._copies.heard(outcomes)
        self._copies.overdue(self.now)
        for request, tokens in self._each(lambda one: one.arrived()).items():
            self._arrive(str(request), tokens)
        if self._stalled:
            self._stalled -= 1
            self._submit(self._each(lambda one: _plain(one.step())))
        else:
            self._step()
        self._check()

    def _step(self) -> None:
        while self._queue and self._admit(self._queue[0]):
            row = self._queue.pop(0)
            if not self._loads(row):
                self._running.append(row)
        counts: dict[_RequestRow, int] = {}
        left = self.setup.max_num_batched_tokens
        for row in list(self._running):
            if row in self._running and self._has_room(row):
                counts[row] = min(len(row.tokens) - row.computed, left)
                left -= counts[row]
        counts = {row: count for row, count in counts.items() if count and row in self._running}
        written = {row: self._written(row, count) for row, count in counts.items()}
        every = [one for ids in written.values() for one in ids]
        self._submit(self._each(lambda one: _plain(one.step(every))))
        for row, count in counts.items():
            # A stream would wait for these flights; here the row does.
            if self._each(lambda one, ids=written[row]: one.cache.must_finish(ids)) is None:  # type: ignore[misc]
                self._compute(row, count)
            else:
                self.seen["E1 fence"] += 1

    def _loads(self, row: _RequestRow) -> bool:
        return row.state is RequestState.LOADING

    def _written(self, row: _RequestRow, count: int) -> list[int]:
        size = self.setup.block_size
        return row.ids[row.computed // size : -(-(row.computed + count) // size)]

    def _submit(self, orders: Orders) -> None:
        plans = [*orders.down, *orders.up]
        self._copies.launched(plans)
        for rank in self._ranks:
            rank.submit(plans)

    def _keys(self, connector: Connector, row: _RequestRow) -> Keys:
        ask = row.ask
        return connector.cache.keys(row.tokens, salt=ask.salt or None, lora=ask.lora or None)

    def _admit(self, row: _RequestRow) -> bool:
        """Begins a request, or its load, if there is room."""
        size = self.setup.block_size
        if len(self._running) >= self.setup.max_num_seqs:
            return False
        local = self._blocks.hold(row.names((len(row.tokens) - 1) // size, size))
        new = -(-len(row.tokens) // size) - len(local)
        name = row.ask.name
        below = self._each(lambda one: one.matched(name, self._keys(one, row), len(local)))
        if below is None or new > len(self._blocks.idle):
            self.seen["E2 asked again"] += below is None
            self._blocks.give_back(local)
            return False
        ids = local + self._blocks.take(new)
        row.ids, row.computed = ids, len(local) * size
        come = ids[len(local) : -(-(row.computed + below) // size)]
        self._each(lambda one: one.allocated(name, come))
        row.state = RequestState.LOADING if come else RequestState.PREFILL
        self.seen["loads"] += bool(come)
        if not come:
            self._begins(row)
        return True

    def _arrive(self, name: str, tokens: int) -> None:
        if name in self._freed_later:
            self._blocks.give_back(self._freed_later.pop(name))
            return
        row = self._rows[name]
        check(self._loads(row), f"the load of {name} has ended, which is {row.state}")
        # One is computed, for what it samples.
        row.computed = min(tokens, len(row.tokens) - 1)
        self._running.append(row)
        self._begins(row)

    def _begins(self, row: _RequestRow) -> None:
        """A request runs: what is kept of it is there, unless a fault has cost it (E4)."""
        kept, row.kept = row.kept, 0
        row.state = RequestState.PREFILL
        self.seen["E4 came back"] += 0 < kept <= row.computed
        self.seen["E4 cut"] += row.computed < kept
        whole = self._faulty or row.computed >= kept
        check(whole, f"E4: {row.ask.name} had {kept} tokens kept, and has {row.computed}")

    def _has_room(self, row: _RequestRow) -> bool:
        """Takes a block for its next token, and preempts the youngest for it."""
        while len(row.tokens) > len(row.ids) * self.setup.block_size:
            if self._blocks.idle:
                row.ids += self._blocks.take(1)
                continue
            victim = self._running[-1]
            self._preempt(victim)
            if victim is row:
                return False
        return True

    def _preempt(self, row: _RequestRow) -> None:
        name, ids, tokens = row.ask.name, row.ids, row.computed
        kept = self._each(lambda one: one.preempted(name, self._keys(one, row), ids, tokens))
        self.seen["preempted"] += 1
        self.seen["no room below"] += not kept
        row.kept = tokens if kept else 0
        self._running.remove(row)
        self._blocks.give_back(row.ids)
        row.ids, row.computed = [], 0
        row.state = RequestState.PARKED if kept else RequestState.RECOMPUTE
        self._queue.insert(0, row)

    def _compute(self, row: _RequestRow, count: int) -> None:
        """Reads the KV of all tokens before, and writes that of the next ones."""
        size, first, end = self.setup.block_size, row.computed, row.computed + count
        words = np.array(row.sums[:end], np.uint64) ^ np.uint64(row.ask.tag)
        places = np.arange(end)
        slots, offsets = np.array(row.ids)[places // size], places % size
        for rank, memory in enumerate(self._memory):
            bad = memory.wrong(slots[:first], offsets[:first], words[:first])
            check(
                bad < 0,
                f"{row.ask.name} attends to token {bad} of {first} in block {slots[bad]} of rank "
                f"{rank}, which holds something else",
            )
            memory.write(slots[first:], offsets[first:], words[first:])
        row.computed = end
        self._blocks.publish(row.ids, row.names(end // size, size))
        if end < len(row.tokens):
            return
        row.state = RequestState.DECODE
        sum_, prompt = row.sums[-1], len(row.ask.prompt)
        self._append(row, sampled(sum_))
        if len(row.tokens) - prompt == row.ask.most or (self.setup.ends and ends(sum_)):
            self._end(row, RequestState.FINISHED)

    def _append(self, row: _RequestRow, token: int) -> None:
        row.tokens.append(token)
        row.sums.append(chained(row.sums[-1] if row.sums else 0, token))

    def _end(self, row: _RequestRow, state: RequestState) -> None:
        """Ends a request; what is computed of it is offloaded, unless it is aborted."""
        name, size = row.ask.name, self.setup.block_size
        whole = state is RequestState.FINISHED
        ids = row.ids[: row.computed // size] if whole else []
        writes = self._each(
            lambda one: one.finished(
                name, self._keys(one, row) if whole else None, ids, **row.hints.keywords
            )
        )
        if writes:
            self._freed_later[name] = row.ids
        else:
            self._blocks.give_back(row.ids)
        for where in (self._queue, self._running):
            if row in where:
                where.remove(row)
        del self._rows[name]
        tokens = np.array(row.tokens[len(row.ask.prompt) :], np.uint32)
        self.requests.end(Result(name, state, tokens, str(state)), None, stopping=False)

    def _check(self) -> None:
        for connector in self._connectors:
            violation = connector.cache.audit()
            check(violation is None, f"the audit: {violation}")
        self._each(lambda one: one.cache.digest())
        stats = self._connectors[0].cache.stats()
        self._copies.compare(stats)
        kept = sum(row.kept > 0 for row in self._rows.values())
        check(stats["parked"] <= kept, f"E6: {stats['parked']} are kept, of {kept} requests")

    def _check_at_rest(self) -> None:
        check(not self._freed_later, f"the ids of {list(self._freed_later)} are never free")
        check(not any(self._blocks.holders), "the engine's blocks are held, and nothing runs")
        for connector in self._connectors:
            stats = connector.cache.stats()
            left = ["parked", "flights", "leases", "tickets"]
            kinds = ("claimed", "pinned", "quarantined", "promised")
            left += [f"{tier}_{kind}" for tier in BELOW for kind in kinds]
            found = {name: stats[name] for name in left if stats[name]}
            check(not found, f"E6: left behind: {found}")

    # -- events ------------------------------------------------------------------------------

    def _on_add(self, *what: Any) -> None:  # noqa: ANN401 - the fields of `Ask`
        ask = Ask(*what)
        if ask.name in self.requests or not ask.prompt:
            return
        check(ask.n == 1, "an engine with blocks of its own has one sample of each request")
        self.requests.add(ask)
        row = self._rows[ask.name] = _RequestRow(ask, [])
        for token in ask.prompt:
            self._append(row, token)
        self._queue.append(row)

    def _on_abort(self, name: str, when: str) -> None:
        row = self._rows.get(name)
        if row is None or (when and row.state != when):
            self._pending_aborts += [(name, when)] * (row is not None)
            return
        self.seen[f"abort in {row.state}"] += 1
        self.requests.aborted.add(name)
        self._end(row, RequestState.ABORTED)

    def _on_hint(self, name: str, *fields: Any) -> None:  # noqa: ANN401 - of the event
        if name in self._rows:
            self._rows[name].hints = hints_said(fields)
            self.seen["hint"] += 1

    def _on_copy(self, rank: int, way: str, word: Any, number: int) -> None:  # noqa: ANN401 - a word
        self._ranks[rank].script(way, Action(word, number))

    def _on_outcome(self, rank: int, fate: str, ticks: int) -> None:
        self._ranks[rank].fates.append((fate, ticks))

    def _on_release(self, rank: int) -> None:
        self._ranks[rank].release()

    def _on_stall(self, ticks: int) -> None:
        self._stalled += ticks

    def _on_rank(self, rank: int, memory: Any) -> None:  # noqa: ANN401 - "kept" or "lost"
        """Resets a rank's copies; where its memory is lost, the engine begins anew."""
        self.seen[f"rank reset, memory {memory}"] += 1
        if memory == "lost":
            self._restart("lost")
            return
        self._silence(rank)
        self._each(lambda one: one.cache.reset(rank, memory="kept"))
        self._copies.reset(rank)
        self._each(lambda one: one.commit([], now=self.now))

    def _silence(self, rank: int) -> None:
        """Ends what a rank has in the air."""
        its = self._ranks[rank]
        its.crane.reset()
        outcomes = its.poll(self.now, self.seen)
        self._each(lambda one: one.commit(outcomes, now=self.now))
        self._copies.heard(outcomes)
        self._copies.overdue(self.now)
        # The reset settles every flight of the rank, also those whose outcome was lost.
        its.lost.clear()

    def _on_engine(self, requests: str) -> None:
        """The engine begins anew, and its blocks are lost; "abort" ends all requests."""
        self._restart("kept")
        if requests == "abort":
            for row in list(self._rows.values()):
                self.requests.aborted.add(row.ask.name)
                self._end(row, RequestState.ABORTED)

    def _restart(self, memory: Any) -> None:  # noqa: ANN401 - "kept" or "lost"
        self.seen["engine reset"] += 1
        for rank in range(len(self._ranks)):
            self._silence(rank)
        # What was planned and not ordered yet is lost with the rest; a tier may be looked at after
        # the one above it.
        for _ in TIERS:
            self._copies.launched(self._each(lambda one: one.cache.dispatch()))
        self._each(lambda one: one.reset(memory=memory))
        for rank in range(len(self._ranks)):
            self._copies.reset(rank)
        for memory_of_rank in self._memory:
            memory_of_rank.forget()
        self._blocks = _Allocator(self.setup.device)
        self._freed_later.clear()
        lost = [row for row in self._rows.values() if row not in self._queue]
        for row in lost:
            row.ids, row.computed, row.state = [], 0, RequestState.WAITING
        self._queue[:0] = lost
        self._running.clear()

    def _on_forget(self, name: str, what: str) -> None:
        if name not in self.requests:
            return
        self.seen[f"forget {what}"] += 1
        ask = self.requests[name].ask
        self._each(lambda one: ask.forget(one.cache, what))

    def _on_resize(self, tier: Any, slots: int) -> None:  # noqa: ANN401 - the name of a tier
        if tier == "device":
            return
        try:
            self._each(lambda one: one.cache.resize(tier, slots))
        except InUse:
            self.seen["2.7 in use"] += 1

    def _end_faults(self) -> None:
        self._stalled = 0
        if self._store is not None and not self.setup.second:
            self._store.honest = True
        for number, rank in enumerate(self._ranks):
            rank.end_faults()
            if rank.lost:
                self._on_rank(number, "kept")


def _plain(orders: Orders) -> Orders:
    """Orders that can be compared: ids as a list."""
    return orders._replace(written=orders.written.tolist())
