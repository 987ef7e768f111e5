"""A scheduler, its yard, an engine and cranes that misbehave, step by step in virtual time."""

import tempfile
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from blockyard._core import BlockyardError
from blockyard.cache import KVCache
from blockyard.config import Config
from blockyard.engine import Output, Step
from blockyard.request import Result, State
from blockyard.scheduler import Scheduler
from blockyard.testing.copier import Action
from blockyard.testing.engine import Broken, SimulatedEngine, check, continuation
from blockyard.testing.hands import Hands, config_of
from blockyard.testing.scenario import RESERVES, VICTIMS, Scenario, Setup

__all__ = ["Ran", "simulate"]

_T = TypeVar("_T")
_WORDS: Final = frozenset({"deliver", "delay", "fail", "corrupt", "hang", "die"})


@dataclass(slots=True)
class Ran:
    """A simulation that went well."""

    ticks: int
    seen: Counter[str]
    """How often what came to pass: faults that took effect, states at an abort, counters."""
    results: dict[str, Result] = field(default_factory=dict)


class _Yard(NamedTuple):
    """One replica."""

    cache: KVCache
    scheduler: Scheduler


def simulate(scenario: Scenario) -> Ran:
    """Plays a scenario to its end, and checks every promise on the way.

    Raises:
        Broken: One was not kept; the tick stands in the message.
    """
    with tempfile.TemporaryDirectory() as folder:
        simulation = _Simulation(scenario, Path(folder) / "host")
        try:
            return simulation.run()
        except Broken as broken:
            raise Broken(f"tick {simulation.now}: {broken}") from None
        except Exception as error:
            # What the scheduler raises here, it raises at a caller who did nothing wrong.
            raise Broken(f"tick {simulation.now}: {type(error).__name__}: {error}") from error
        finally:
            simulation.close()


class _Simulation:
    """The loop around a scheduler, and all that surrounds it."""

    def __init__(self, scenario: Scenario, shared: Path) -> None:
        self.setup = setup = scenario.setup
        self.now = 0
        self._events = deque(sorted(scenario.events, key=lambda event: event.tick))
        config = config_of(setup)
        self._yards = [_yard(config, setup) for _ in range(max(setup.replicas, 1))]
        self._hands = [Hands(config, rank, shared) for rank in range(setup.ranks)]
        self._engine = SimulatedEngine(
            [hands.memory for hands in self._hands],
            block_size=setup.block_size,
            stops=setup.stops,
            ending=setup.ends,
            eager=setup.eager,
            drafts=setup.drafts,
        )
        self._asked: dict[str, tuple[list[int], int]] = {}
        self._aborted: set[str] = set()
        self._condemned: list[tuple[str, str]] = []
        self._results: dict[str, Result] = {}
        self._news: list[tuple[int, list[int], int]] = []
        self._seen: Counter[str] = self._engine.seen
        self._work = 0

    def close(self) -> None:
        for hands in self._hands:
            hands.crane.close()

    def run(self) -> Ran:
        while self._events:
            self._tick(watch=self.setup.watch)
        self._calm()
        bound = self.now + 400 + 16 * self._work
        moved = self.now, 0
        while len(self._results) < len(self._asked) or self._scheduler.stats()["seats"]:
            self._tick(watch=8)
            done = len(self._results) + self._engine.emitted.total()
            moved = moved if done == moved[1] else (self.now, done)
            check(
                self.now < bound and self.now < moved[0] + 100 + self._work,
                f"nobody disturbs them, and they are stuck: {self._open()}",
            )
        bound = self.now + 400
        while not self._silent():
            self._tick(watch=8, schedule=False)
            check(self.now < bound, "what is in the air never ends")
        # One more, so that what the last step kept for the batch is given back.
        self._tick(watch=0)
        while not self._silent():
            self._tick(watch=0, schedule=False)
        self._at_rest()
        for name, number in (self._cache.stats() | self._scheduler.stats()).items():
            self._seen[f"stats {name}"] = number
        return Ran(self.now, self._seen, self._results)

    @property
    def _cache(self) -> KVCache:
        return self._yards[0].cache

    @property
    def _scheduler(self) -> Scheduler:
        return self._yards[0].scheduler

    def _open(self) -> dict[str, State | None]:
        names = [name for name in self._asked if name not in self._results]
        return {name: self._scheduler.state(name) for name in names}

    def _both(self, does: Callable[[_Yard], _T]) -> list[_T]:
        """The same call to every replica."""
        answers: list[Any] = []
        for yard in self._yards:
            try:
                answers.append(does(yard))
            except BlockyardError as error:
                answers.append(error)
        for answer in answers:
            if isinstance(answer, BlockyardError):
                raise answer
        return answers

    # -- a tick ------------------------------------------------------------------------------

    def _tick(self, *, watch: int, schedule: bool = True) -> None:
        self.now += 1
        self._engine.now = self.now
        while self._events and self._events[0].tick <= self.now:
            event = self._events.popleft()
            getattr(self, f"_on_{event.verb}")(*event.what)
        condemned, self._condemned = self._condemned, []
        for name, when in condemned:
            self._on_abort(name, when)
        outcomes = [
            outcome for hands in self._hands for outcome in hands.poll(self.now, self._seen)
        ]
        self._both(lambda yard: yard.cache.commit(list(outcomes), now=self.now))
        self._hear()
        if watch and self.now % watch == 0:
            self._on_reconcile(0)
        for due, seats, done in [entry for entry in self._news if entry[0] <= self.now]:
            self._news.remove((due, seats, done))
            self._seen["reconciled"] += 1
            self._both(lambda yard, at=(seats, done): yard.scheduler.reconcile(*at))  # type: ignore[misc]
        if schedule and len(self._engine) <= self.setup.flight:
            self._schedule()
        if schedule:
            # At the end nobody needs what is copied ahead, and it might never stop.
            self._dispatch()
        self._look()

    def _hear(self) -> None:
        outputs, acks = self._engine.poll()
        if self.setup.channel == "before":
            self._both(lambda yard: yard.scheduler.on_acks(acks))
        for output in outputs:
            said = output
            if self.setup.channel == "inside":
                said = Output(
                    output.step,
                    output.seats,
                    output.tokens,
                    output.counts,
                    output.ended,
                    tuple(acks),
                )
            self._both(lambda yard, said=said: yard.scheduler.on_output(said))  # type: ignore[misc]
        if self.setup.channel == "behind" or (self.setup.channel == "inside" and not outputs):
            self._both(lambda yard: yard.scheduler.on_acks(acks))

    def _schedule(self) -> None:
        steps = self._both(lambda yard: yard.scheduler.schedule())
        step, others = steps[0], steps[1:]
        tables = self._cache.block_tables(step.leases)
        for yard, other in zip(self._yards[1:], others, strict=True):
            same = np.array_equal(tables, yard.cache.block_tables(other.leases))
            check(same and _plain(step) == _plain(other), f"replicas differ in step {step.number}")
        chunks = sum(chunk.tokens for chunk in step.chunks)
        left = max(self.setup.budget - int(step.counts[: len(step.decode)].sum()), 0)
        check(chunks <= left, f"{chunks} tokens of prompts in a step that has room for {left}")
        for start in step.starts:
            name = str(start.request)
            prompt, _ = self._asked[name]
            heard = len(start.tokens) - len(prompt)
            check(
                heard == self._engine.emitted[name],
                f"INV-8: {name} starts with {heard} sampled tokens of {self._engine.emitted[name]}",
            )
            self._seen["starts again"] += heard > 0
        self._engine.tables(tables)
        self._engine.submit(step)

    def _dispatch(self) -> None:
        plans = self._both(lambda yard: yard.cache.dispatch())
        for other in plans[1:]:
            check(plans[0] == other, "replicas differ in their plans")
        for hands in self._hands:
            hands.crane.submit(plans[0])

    def _look(self) -> None:
        """What is checked after every tick."""
        for results in zip(*self._both(lambda yard: yard.scheduler.results()), strict=True):
            result = results[0]
            for other in results[1:]:
                check(_said(result) == _said(other), f"replicas differ in {result}")
            self._ended(result)
        for breach in self._both(lambda yard: yard.cache.audit()):
            check(breach is None, f"the audit: {breach}")
        if len(self._yards) > 1:
            digests = {yard.cache.digest() for yard in self._yards}
            check(len(digests) == 1, "replicas differ in their digest")
            stats = [yard.scheduler.stats() for yard in self._yards]
            check(all(one == stats[0] for one in stats), "replicas differ in their counters")

    def _ended(self, result: Result) -> None:
        """INV-11, INV-12: once, wholly, and with the tokens that nobody could disturb."""
        name = str(result.request)
        check(name in self._asked, f"{name} ended, and nobody asked for it")
        check(name not in self._results, f"{name} ended twice")
        check(
            self._scheduler.state(name) is None,
            f"{name} ended and is {self._scheduler.state(name)}",
        )
        self._results[name] = result
        self._seen[f"{result.state}"] += 1
        prompt, most = self._asked[name]
        whole = continuation(prompt, most, ending=self.setup.ends)
        tokens = result.tokens.tolist()
        if result.state is State.FINISHED:
            check(tokens == whole, f"{name} sampled {tokens}, undisturbed it is {whole}")
        else:
            check(result.state is State.ABORTED, f"{name} is {result.state}: {result.reason}")
            check(name in self._aborted, f"{name} was aborted, and nobody said so")
            check(tokens == whole[: len(tokens)], f"{name} sampled {tokens}, not {whole}")

    def _at_rest(self) -> None:
        """Nothing is held, promised or in the air."""
        for yard in self._yards:
            check(yard.scheduler.idle, f"the scheduler is not idle: {yard.scheduler.stats()}")
            for name in ("waiting", "seats", "stopping"):
                check(not yard.scheduler.stats()[name], f"{name}: {yard.scheduler.stats()}")
            stats = yard.cache.stats()
            left = [
                name for name in ("leases", "parked", "tickets", "flights", "leaked") if stats[name]
            ]
            for tier in ("device", "host"):
                kinds = ("claimed", "pinned", "quarantined", "promised")
                left += [f"{tier}_{kind}" for kind in kinds if stats[f"{tier}_{kind}"]]
            check(not left, f"left behind: { {name: stats[name] for name in left} }")
            check(not stats["rejected"], f"{stats['rejected']} handles were given back twice")

    def _silent(self) -> bool:
        return self._engine.silent and not self._news and all(hands.silent for hands in self._hands)

    # -- events ------------------------------------------------------------------------------

    def _on_add(
        self, name: str, family: int, shared: int, own: int, most: int, priority: int
    ) -> None:
        prompt = [1000 + 100 * family + at for at in range(shared)]
        prompt += [sum(map(ord, name)) * 7919 + at for at in range(own)]
        if name in self._asked or not prompt:
            return
        self._asked[name] = prompt, most
        self._work += len(prompt) + most
        self._both(lambda yard: yard.scheduler.add(name, prompt, most=most, priority=priority))

    def _on_abort(self, name: str, when: str) -> None:
        state = self._scheduler.state(name)
        if when and state != when:
            self._condemned.append((name, when))
            return
        if state is None:
            return
        self._seen[f"abort in {state}"] += 1
        self._aborted.add(name)
        self._both(lambda yard: yard.scheduler.abort(name))
        if state in {State.WAITING, State.LOADING, State.RECOMPUTE}:
            check(self._scheduler.state(name) is None, f"{name} was {state} and is not aborted")

    def _on_ack(self, fate: str, ticks: int) -> None:
        self._engine.fates.append((fate, ticks))

    def _on_copy(self, rank: int, way: str, word: Any, number: int) -> None:  # noqa: ANN401 - of `_WORDS`
        check(word in _WORDS, f"a copy cannot {word}")
        self._hands[rank].copier.actions[way].append(Action(word, number))

    def _on_outcome(self, rank: int, fate: str, ticks: int) -> None:
        self._hands[rank].fates.append((fate, ticks))

    def _on_release(self, rank: int) -> None:
        self._hands[rank].copier.release()
        self._hands[rank].copier.revive()

    def _on_stall(self, ticks: int) -> None:
        self._engine.stalled += ticks

    def _on_rank(self, rank: int, memory: Any) -> None:  # noqa: ANN401 - "kept" or "lost"
        """With its memory the engine is lost too."""
        hands = self._hands[rank]
        self._seen[f"rank reset, memory {memory}"] += 1
        hands.crane.reset()
        hands.lost = False
        outcomes = hands.poll(self.now, self._seen)
        self._both(lambda yard: yard.cache.commit(list(outcomes)))
        self._both(lambda yard: yard.cache.reset(rank, memory=memory))
        # What its crane has said before is known by this.
        hands.lost = False
        if memory == "lost":
            self._on_engine("recompute")

    def _on_engine(self, requests: Any) -> None:  # noqa: ANN401 - what `reset` takes
        self._seen["engine reset"] += 1
        self._engine.reset()
        if requests == "abort":
            self._aborted |= set(self._open())
        self._both(lambda yard: yard.scheduler.reset(requests=requests))

    def _on_weights(self) -> None:
        self._seen["weights"] += 1
        self._engine.version += 1
        self._both(lambda yard: yard.scheduler.update_weights())

    def _on_reconcile(self, late: int) -> None:
        self._news.append((self.now + late, self._engine.active, self._engine.done))

    def _calm(self) -> None:
        """The faults end."""
        self._engine.fates.clear()
        self._engine.stalled = 0
        for rank, hands in enumerate(self._hands):
            for actions in hands.copier.actions.values():
                actions.clear()
            hands.fates.clear()
            self._on_release(rank)
            if hands.lost:
                self._on_rank(rank, "kept")


def _yard(config: Config, setup: Setup) -> _Yard:
    cache = KVCache(config)
    scheduler = Scheduler(
        cache,
        seats=setup.seats,
        budget=setup.budget,
        reserve=RESERVES[setup.reserve](),
        victims=VICTIMS[setup.victims](),
        stops=setup.stops,
        rest=setup.rest,
        skip=setup.skip,
        drafts=setup.drafts,
    )
    return _Yard(cache, scheduler)


def _plain(step: Step) -> tuple[Any, ...]:
    """A step as values: its leases are those of a yard."""

    def values(numbers: NDArray[np.integer[Any]]) -> list[int]:
        return [int(number) for number in numbers]

    starts = [(*_start[:3], _start[3].tolist(), _start[4]) for _start in map(_fields, step.starts)]
    return (
        step.number,
        step.stops,
        starts,
        step.chunks,
        values(step.decode),
        values(step.positions),
        values(step.counts),
        [(lease.id, lease.tokens, lease.blocks, lease.sealed) for lease in step.leases],
    )


def _fields(start: Any) -> tuple[Any, ...]:  # noqa: ANN401 - a `Start`
    return (start.request, start.seat, start.epoch, start.tokens, start.cached)


def _said(result: Result) -> tuple[Any, ...]:
    return (result.request, result.state, result.tokens.tolist(), result.reason)
