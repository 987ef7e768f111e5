"""A scheduler and its ranks as processes of their own, which die and stop one by one."""

import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, TypeAlias

from blockyard._typing import override
from blockyard.crane.crane import Crane
from blockyard.shared.layout import Hello
from blockyard.shared.plan import Outcome, Plan, Unreported
from blockyard.testing.setup import Setup
from blockyard.testing.simulated_engine import check
from blockyard.testing.simulated_rank import SimulatedRank
from blockyard.testing.simulator import Simulation
from blockyard.yard.handshake import agree

__all__ = ["Processes", "RankProcess"]

_Wire: TypeAlias = deque[tuple[int, int, list[Plan] | Unreported]]
"""What was sent, with the ticks at which it arrives and was sent."""
_ALONE: Final = frozenset({"kill", "stop", "slow", "copy", "outcome", "release"})
"""Events that need no scheduler."""


class RankProcess(SimulatedRank):
    """A rank that gets plans and questions in one order, some ticks after they were sent."""

    def __init__(self, *what: Any) -> None:  # noqa: ANN401 - as the parent has it
        super().__init__(*what)
        _, setup, rank, *_ = what
        self._lossy = setup.lossy
        self._chance = random.Random(f"losses {rank}")  # noqa: S311 - not for cryptography
        self._wire: _Wire = deque()
        self._wires = [self._wire]
        """A way for each scheduler there was, the last one's at the end."""
        self._yard = setup.yard
        self._now = 0
        self.detour = 0
        """Ticks by which what is of another scheduler is late."""
        self.slow = 0
        """Ticks that what is sent to it takes."""
        self.stopped = 0
        """The tick at which it goes on."""
        self.dead = False

    @override
    def submit(self, plans: list[Plan]) -> None:
        """Sends it plans."""
        if plans:
            self._send(plans)

    def ask(self, asked: Unreported) -> None:
        """Asks it for outcomes, in one order with the plans."""
        if asked.flights:
            self._send(asked)

    def _send(self, what: list[Plan] | Unreported) -> None:
        if not self.dead:
            self._wire.append((self._now + self.slow, self._now, what))

    def unsent(self) -> None:
        """Drops what was sent last: its sender has died before."""
        while self._wire and self._wire[-1][1] == self._now:
            self._wire.pop()

    @override
    def poll(self, now: int, seen: Counter[str]) -> list[Outcome]:
        """Lets it take what has come, and returns the outcomes that arrive now."""
        self._now = now
        if self.dead or self.stopped > now:
            return self.arrived(now)
        for wire in self._wires:
            while wire and wire[0][0] <= now:
                self._take(wire.popleft()[2], now, seen)
        self._wires = [wire for wire in self._wires[:-1] if wire] + self._wires[-1:]
        return super().poll(now, seen)

    def _take(self, sent: list[Plan] | Unreported, now: int, seen: Counter[str]) -> None:
        if isinstance(sent, Unreported):
            answers = self._crane.reconcile(sent)
            seen["outcome asked for"] += len(answers)
            self.send(answers, now, seen)
        else:
            seen["plans of another yard"] += sum(plan.yard != self._yard for plan in sent)
            super().submit(sent)

    @property
    def _crane(self) -> Crane:
        assert isinstance(self.crane, Crane)  # noqa: S101 - it has bytes
        return self.crane

    def hello(self, yard: int) -> Hello:
        """Shakes hands with a scheduler; what is of another one comes late from now on."""
        if yard != self._yard:
            self._yard, self._wire = yard, deque()
            self._wires.append(self._wire)
            self.road = [(self._now + self.detour, outcome) for _, outcome in self.road]
        return self._crane.hello(yard)

    def parted(self, ticks: int, detour: int) -> None:
        """Its scheduler has died, for so many ticks: what that one has sent comes late."""
        self.detour = detour
        late = ((due + ticks + detour, sent, what) for due, sent, what in self._wire)
        self._wires[-1] = self._wire = deque(late)

    @override
    def send(self, outcomes: Iterable[Outcome], now: int, seen: Counter[str]) -> None:
        """Sends outcomes on their way, of which some are lost."""
        for outcome in outcomes:
            if self._lossy and self._chance.randrange(100) < self._lossy:
                self.fates.appendleft(("lost", 0))
            late = self.detour if outcome.yard != self._yard else 0
            super().send([outcome], now + late, seen)

    def kill(self) -> None:
        """Ends it; what was under way to it is lost."""
        self.dead = True
        self._wires = [self._wire]
        self._wire.clear()
        self.crane.close()

    def keep_all(self) -> None:
        """Loses nothing that it sends from here on."""
        self._lossy = 0

    @override
    def end_faults(self) -> None:
        """Lets it go on, and what is sent to it arrive at once."""
        self.slow = self.stopped = 0
        super().end_faults()

    @property
    @override
    def hung(self) -> bool:
        """Whether it is away, or something is on its way to it; or as the parent has it."""
        return self.dead or self.stopped > self._now or any(self._wires) or super().hung

    @property
    @override
    def silent(self) -> bool:
        """Whether nothing is on its way, in either direction."""
        return not any(self._wires) and super().silent


class Processes(Simulation):
    """The same loop, of processes that die one by one; `Simulation` has the arguments."""

    _ranks: list[RankProcess]  # type: ignore[assignment]

    @override
    def _open(self, setup: Setup) -> None:
        self._back: dict[int, int] = {}
        """The ranks that are gone, and the ticks at which they come back."""
        self._reborn: int | None = None
        """The tick at which the next scheduler comes, where there is none."""
        self._yard = setup.yard - 1
        self._ranks = [self._rank_of(rank) for rank in range(setup.ranks)]
        self._begin()

    @override
    def _rank_of(self, rank: int) -> RankProcess:
        return RankProcess(self._config, self.setup, rank, self._folder, self._remains.disk(rank))

    def _begin(self) -> None:
        """Begins a scheduler, which shakes hands with the ranks that are there."""
        self._reborn = None
        self._yard += 1
        setup = replace(self.setup, yard=self._yard)
        hellos = [rank.hello(self._yard) for rank in self._ranks]
        config = agree(replace(self._config, yard=self._yard), hellos)
        check(config.device == self._config.device, f"the yard opens with {config}")
        self._open_yard(setup)

    # -- a tick ------------------------------------------------------------------------------

    @override
    def _tick(self, *, reconcile_every: int, schedule: bool = True) -> None:
        for number, tick in list(self._back.items()):
            if self.now + 1 >= tick:
                self._rejoin(number)
        if self._reborn is None:
            super()._tick(reconcile_every=reconcile_every, schedule=schedule)
            return
        self.now += 1
        events = [event for event in self._events if event.tick <= self.now]
        for event in [event for event in events if event.verb in _ALONE]:
            self._events.remove(event)
            getattr(self, f"_on_{event.verb}")(*event.what)
        for rank in self._ranks:
            # What it says waits for the next scheduler.
            came = rank.poll(self.now, self.seen)
            rank.road += [(self.now, outcome) for outcome in came]
        away = self._back or any(rank.stopped > self.now for rank in self._ranks)
        if self.now >= self._reborn and not away:
            tags = self._engine.tags
            self._begin()
            self._add_again(tags)

    @override
    def _poll_engine(self) -> None:
        # The ranks compute together.
        if not self._back and all(rank.stopped <= self.now for rank in self._ranks):
            super()._poll_engine()

    @override
    def _schedule(self) -> None:
        if not self._back:
            super()._schedule()

    @override
    def _dispatch(self) -> None:
        super()._dispatch()
        if self.setup.asks and self.now % self.setup.asks == 0:
            self._ask()

    def _ask(self) -> None:
        for number, rank in enumerate(self._ranks):
            asked = self._replicas.each(lambda one, at=number: one.cache.unreported(at))  # type: ignore[misc]
            check(all(one == asked[0] for one in asked), "replicas differ in what they ask for")
            rank.ask(asked[0])

    @override
    def _drain(self) -> Iterator[None]:
        for rank in self._ranks:
            rank.keep_all()
        self._ask()
        yield from super()._drain()

    # -- events ------------------------------------------------------------------------------

    def _on_kill(self, rank: int, ticks: int, how: str) -> None:
        if rank in self._back:
            return
        self.seen[f"rank killed, {how}"] += 1
        self._ranks[rank].kill()
        self._back[rank] = self.now + ticks
        if how == "fail" and self._reborn is None:
            self._on_fail(10**9, "recompute")

    def _rejoin(self, rank: int) -> None:
        """A rank comes back, with memory in which nothing is."""
        road = self._ranks[rank].road
        del self._back[rank]
        self._ranks[rank] = new = self._rank_of(rank)
        new.road = road
        self._engine.replace(rank, new.memory[0])
        if self._reborn is None:
            new.hello(self._yard)
            self._on_rank(rank, "lost")

    def _on_stop(self, rank: int, ticks: int) -> None:
        self.seen["rank stopped"] += 1
        self._ranks[rank].stopped = self.now + ticks

    def _on_slow(self, rank: int, ticks: int) -> None:
        self.seen["rank slow"] += 1
        self._ranks[rank].slow = ticks

    def _on_scheduler(self, ticks: int, number: int) -> None:
        self._collect()
        self.seen["scheduler killed"] += 1
        for at, rank in enumerate(self._ranks):
            if at >= number:
                rank.unsent()
            rank.parted(ticks, ticks // 2)
        self._reborn = self.now + ticks

    @override
    def _end_faults(self) -> None:
        for rank in list(self._back):
            self._rejoin(rank)
        super()._end_faults()
        while self._reborn is not None:
            self._reborn = self.now
            self._tick(reconcile_every=0)
