"""The decode side of simulated hand-overs: an engine whose requests wait for offers."""

from collections import Counter
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from blockyard._typing import override
from blockyard.handover.decode_side import DecodeSide
from blockyard.handover.offer import Offer
from blockyard.scheduling.new_request import NewRequest
from blockyard.scheduling.request import RequestState, Result
from blockyard.shared.plan import Outcome
from blockyard.testing.requests import Ask
from blockyard.testing.scenario import Scenario
from blockyard.testing.setup import Setup
from blockyard.testing.simulated_engine import check
from blockyard.testing.simulated_peers import Road, SimulatedPeer, SimulatedPeers
from blockyard.testing.simulated_rank import SimulatedRank
from blockyard.testing.simulated_store import SimulatedStore, StoreWorker
from blockyard.testing.simulator import Simulation
from blockyard.yard.asking import Lookup
from blockyard.yard.cache import KVCache

if TYPE_CHECKING:
    from blockyard._core import Ticket

__all__ = ["DecodeEngine"]

_LONGEST: Final = 60.0
_PATIENT: Final = 20
"""Ticks that a peer waits which never fails first."""
_BETWEEN: Final = {RequestState.RECOMPUTE, RequestState.PARKED}


class _Rank(SimulatedRank):
    """A rank whose outcomes are compared with those of the others."""

    goods: dict[int, int]
    """The good blocks of each flight, as the first rank has said."""

    @override
    def send(self, outcomes: Iterable[Outcome], now: int, seen: Counter[str]) -> None:
        outcomes = list(outcomes)
        for one in outcomes:
            unlike = self.goods.setdefault(one.flight, one.good) != one.good
            seen["race 20 ranks land unlike counts"] += unlike
        super().send(outcomes, now, seen)


class PeerWorker(StoreWorker):
    """A rank's threads: those that ask a store, where there is one, and that of its peer."""

    def __init__(self, peers: SimulatedPeers, *given: Any) -> None:  # noqa: ANN401 - as there
        self.peers = peers
        super().__init__(*given)

    @override
    def _meet(self) -> None:
        self.tier.peers = self.peers  # type: ignore[assignment]

    @override
    def turn(self) -> None:
        self.peers.peer.turn()
        super().turn()


class DecodeEngine(Simulation):
    """An engine that takes prompts over, in all of its lives.

    Args:
        scenario: Sizes and events.
        shared: A folder.
        road: What carries messages.
        store: A store that it has, too.
    """

    def __init__(
        self, scenario: Scenario, shared: Path, road: Road, store: SimulatedStore | None
    ) -> None:
        self._road, self._peers = road, list[SimulatedPeers]()
        self._readers = 0
        self._tickets: dict[str, Ticket] = {}
        self._landed: dict[str, int] = {}
        """The tick at which each request has begun with blocks of an offer."""
        self.until = 0
        """The tick at which it goes on, or lives again."""
        self.dead = False
        self.jump = 1e6
        """By how much its clock differs from the ticks."""
        self.lives = 0
        super().__init__(scenario, shared, store, road.seen)

    @override
    def _open(self, setup: Setup) -> None:
        self._peers, self.lives, self._goods = [], self.lives + 1, dict[int, int]()
        self._twice = 0
        super()._open(setup)

    @override
    def _rank_of(self, rank: int) -> SimulatedRank:
        peers = SimulatedPeers(SimulatedPeer(self._road, f"decode {rank} {self.lives}", self._next))
        if self.setup.patience % 3:
            # The deadline of a flight comes first.
            peers.peer.timeout = _PATIENT
        self._peers.append(peers)
        given = self._store, self._config, self.setup, rank, lambda: self.clock
        worker = PeerWorker(peers, *given)
        its = _Rank(self._config, self.setup, rank, self._folder, None, worker)
        its.goods = self._goods
        return its

    def _next(self) -> int:
        self._readers += 1
        return self._readers

    @override
    def _lookup(self, cache: KVCache) -> Lookup | None:
        first, *others = self._peers
        self.side = DecodeSide(
            cache,
            first,  # type: ignore[arg-type]
            lookup=None if self._store is None else self._ranks[0].lookup(),
            patience=float(self.setup.patience),
            longest=_LONGEST,
            ranks=others,
            clock=lambda: self.clock,
        )
        return self.side

    # -- a tick ----------------------------------------------------------------------------------

    @property
    def clock(self) -> float:
        """Seconds by its own clock, which nobody compares with another one."""
        return self.now + self.jump

    @property
    def is_away(self) -> bool:
        """Whether it is dead or stopped."""
        return self.dead or self.now < self.until

    @override
    def _tick(self, *, reconcile_every: int, schedule: bool = True) -> None:
        if self.now + 1 < self.until or self.dead:
            self.now += 1
            return
        before = self._states()
        takes = [take for take in self.side._takes.values() if len(take.requests) > 1]  # noqa: SLF001
        self.seen["race 14 two requests of one offer"] += len(takes)
        super()._tick(reconcile_every=reconcile_every, schedule=schedule)
        self.side.sweep(self.clock)
        ended = [name for name in self.side._asked if self._state(str(name)) is None]  # noqa: SLF001
        check(not ended, f"{ended} have ended, and the side keeps what it has for them")
        self._watch(before)

    def turn(self, *, schedule: bool) -> None:
        """Does what it does in a tick."""
        self._tick(reconcile_every=self.setup.reconcile_every or 8, schedule=schedule)

    def _watch(self, before: dict[str, RequestState | None]) -> None:
        """Counts what becomes of those that have taken blocks over."""
        twice = self._replicas.cache.stats()["duplicates"]
        self.seen["race 15 another has the same block"] += bool(self._landed) * (
            twice - self._twice
        )
        self._twice = twice
        for name, state in self._states().items():
            if before.get(name) is RequestState.LOADING and state is not RequestState.LOADING:
                self._landed[name] = self.now
            if state in _BETWEEN and self.now < self._landed.get(name, -9) + 9:
                self.seen["race 13 preempted after landing"] += 1
                del self._landed[name]

    @override
    def _ended(self, name: str, result: Result) -> None:  # noqa: ARG002 - as the parent has it
        self.seen["handover requests that took blocks over"] += result.cached_tokens.remote > 0

    # -- requests --------------------------------------------------------------------------------

    def reserve(self, ask: Ask) -> bool:
        """Reserves room for a request, and adds it; returns whether there was room (36e)."""
        ticket = self.side.reserve(ask.name, len(ask.prompt), ask.most)
        if ticket is None:
            return False
        self._tickets[ask.name] = ticket
        self.add(ask)
        return True

    def add(self, ask: Ask) -> None:
        """Adds a request; one that it had in another life goes on."""
        if ask.name in self.requests:
            self._engine.tags |= dict.fromkeys(ask.samples, ask.tag)
            self._add(ask, ask.name)
        else:
            self._on_add(*ask)

    @override
    def _add(self, ask: Ask, request: Hashable) -> None:
        new = NewRequest(
            request,
            ask.prompt,
            max_tokens=ask.most,
            priority=ask.priority,
            salt=ask.salt or None,
            lora=ask.lora or None,
            ticket=self._tickets.pop(ask.name, None),
        )
        self._scheduler.add(new)

    def has_room(self, name: str) -> bool:
        """Whether it has reserved room for a request that waits."""
        return self.side.explain(name) is not None

    def offered(self, name: str, offer: Offer | object) -> None:
        """Takes what the router brings."""
        state = self._state(name)
        self.seen["race 6 offer of a request that is gone"] += bool(offer) and state is None
        self.side.offered(name, offer)

    # -- faults ----------------------------------------------------------------------------------

    @property
    def reading(self) -> int:
        """Flights from the peer."""
        return sum(peers.peer.flying for peers in self._peers)

    @property
    def open(self) -> dict[bytes, int]:
        """The offers that are open here, with the number of the reader."""
        return {id_: reader for peers in self._peers for id_, reader in peers.peer.open.items()}

    def broken(self) -> None:
        """The connection to the prefill side has ended."""
        for peers in self._peers:
            peers.peer.broken()

    def kill(self, ticks: int) -> None:
        """Ends its process; one comes after so many ticks."""
        if self.dead:
            return
        for name, state in self._states().items():
            asked = self.has_room(name)
            self.seen[f"race 5 killed while {state}"] += asked or state is not RequestState.WAITING
        self.dead, self.until = True, self.now + ticks
        for peers in self._peers:
            self._road.drop(peers.peer.name)
        self._pending_aborts.clear()
        self.close()

    def live_again(self) -> list[Ask]:
        """Begins its next life; returns what its clients ask for again."""
        self.dead = False
        tags = self._engine.tags
        self._tickets.clear()
        self._held.clear()
        self._open(self.setup)
        self._engine.tags |= tags
        self.requests.left()
        return [self.requests[name].ask for name in self.requests.unfinished]

    def fault(self, word: str, number: int) -> None:
        """Has something happen to it."""
        if self.dead:
            return
        if word == "kill":
            self.kill(number)
        elif word == "stop":
            self.until = self.now + 1 + number
        elif self.now < self.until:
            return
        elif word == "clear":
            self.seen["race 11 clear"] += bool(self.reading)
            self._replicas.cache.clear()
        elif word == "weights":
            self._on_weights()
        elif word == "fail":
            # Of a new life clients may not have asked yet for what they want again.
            if None not in self._states().values():
                self._on_fail(number, "recompute")
        else:
            self._on_rank(number % self.setup.ranks, "lost" if number % 3 else "kept")

    def rest(self, ticks: int) -> None:
        """Has the peers left alone."""
        for peers in self._peers:
            peers.peer.rest(ticks)

    @override
    def _on_abort(self, name: str, when: str) -> None:
        state = self._state(name)
        flies = state is RequestState.LOADING and bool(self.reading)
        super()._on_abort(name, when)
        gone = state is not None and self._state(name) is None
        self.seen["race 12 aborted in the read"] += flies and gone

    @override
    def _on_weights(self) -> None:
        self.seen["race 11 weights"] += bool(self.reading)
        super()._on_weights()

    @override
    def _on_engine(self, requests: str, memory: str = "lost") -> None:
        self.seen["race 11 reset"] += bool(self.reading)
        super()._on_engine(requests, memory)

    @override
    def _on_rank(self, rank: int, memory: str) -> None:
        self.seen["race 11 rank"] += bool(self.reading)
        super()._on_rank(rank, memory)

    # -- checks ----------------------------------------------------------------------------------

    def check_at_rest(self) -> None:
        """Checks that nothing of a hand-over is left: no offer, no lease, no ticket, no name."""
        stats = self.side.stats()
        left = {name: stats[name] for name in ("handover_waiting", "handover_open") if stats[name]}
        check(not left and not self._tickets, f"left behind at the decode side: {left}")
        idle = [peers.peer.is_idle for peers in self._peers]
        check(all(idle), f"an offer is open at a peer, and nobody wants it: {self.open}")
        if self._store is None:
            # Copies that have gone on after an abort have ended long ago.
            self.side.sweep(self.clock + _LONGEST)
            found = [name for name in sorted(self.requests.results) if self._has_name(name)]
            check(not found, f"names of ended offers of {found} are left")

    def _has_name(self, name: str) -> bool:
        """Whether the cache still says of a prompt that blocks of it are elsewhere."""
        ask, cache = self.requests[name].ask, self._replicas.cache
        keys = cache.keys(ask.prompt, salt=ask.salt or None, lora=ask.lora or None)
        return cache.probe(keys).remote > 0
