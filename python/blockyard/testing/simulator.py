"""A scheduler, its yard, an engine and cranes that misbehave, step by step in virtual time."""

import tempfile
import zlib
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from blockyard._core import BlockyardError, InUse, Unavailable
from blockyard.scheduling.engine import Ack, Output, Step
from blockyard.scheduling.options import SchedulerOptions
from blockyard.scheduling.request import RequestState, Result, max_blocks
from blockyard.scheduling.scheduler import Scheduler
from blockyard.testing.copier import Action
from blockyard.testing.copies import Copies
from blockyard.testing.engine import Broken, SimulatedEngine, check, continuation
from blockyard.testing.hands import Hands, config_of
from blockyard.testing.promises import Promises
from blockyard.testing.rows import PARKING
from blockyard.testing.scenario import RESERVES, VICTIMS, Scenario
from blockyard.testing.witness import Witness
from blockyard.yard.config import Config

__all__ = ["Ran", "simulate"]

_T = TypeVar("_T")
# Ticks without a plan after which nothing more is copied ahead.
_QUIET: Final = 24
# What may cost a sequence the last copy of its KV, or the room that it began with.
_FAULTS: Final = frozenset({"copy", "outcome", "rank", "engine", "weights", "fail", "resize"})
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

    cache: Witness
    scheduler: Scheduler
    promises: Promises


class _Asked(NamedTuple):
    """A request, and what it may come to."""

    prompt: list[int]
    max_tokens: int
    blocks: int
    """That it may need."""


class _Death(NamedTuple):
    """The engine is dead."""

    until: int
    requests: Any
    """What `reset` takes."""
    slots: set[int]
    """What it may write still."""


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
        self._faulty = any(event.verb in _FAULTS for event in scenario.events)
        config = config_of(
            setup, device=_largest(scenario, "device"), host=_largest(scenario, "host")
        )
        here = setup.cranes == "here"
        self._hands = [Hands(config, rank, shared, here=here) for rank in range(setup.ranks)]
        self._engine = SimulatedEngine(
            [memory for hands in self._hands for memory in hands.memory],
            block_size=setup.block_size,
            stops=setup.stops,
            ending=setup.ends,
            eager=setup.eager,
            drafts=setup.drafts,
        )
        self._asked: dict[str, _Asked] = {}
        self._aborted: set[str] = set()
        self._condemned: list[tuple[str, str]] = []
        self._results: dict[str, Result] = {}
        self._news: list[tuple[int, list[int], int]] = []
        self._seen: Counter[str] = self._engine.seen
        self._work = 0
        self._yards = [
            # What comes to pass in replicas is the same: it counts once.
            self._yard(config_of(setup), self._seen if not at else Counter())
            for at in range(max(setup.replicas, 1))
        ]
        self._copies = Copies(setup.ranks, setup.deadline, self._seen)
        self._slots = {"device": setup.device, "host": setup.host}
        self._least = setup.device
        self._dead: _Death | None = None
        self._doomed: set[str] = set()
        self._sent: set[tuple[Any, ...]] = set()
        self._given: set[tuple[Any, ...]] = set()
        self._stopping: set[str] = set()
        self._quiet = 0

    def _yard(self, config: Config, seen: Counter[str]) -> _Yard:
        cache, setup = Witness(config), self.setup
        cache.watch(seen, self._fenced)
        scheduler = Scheduler(
            cache,
            SchedulerOptions(
                max_num_seqs=setup.seats,
                max_num_batched_tokens=setup.budget,
                headroom=RESERVES[setup.reserve](),
                victim_policy=VICTIMS[setup.victims](),
                stops=setup.stops,
                preempt_mode=setup.preempt if setup.host else None,
                max_stalled_steps=setup.patience,
                preempt_cooldown=setup.rest,
                max_overtakes=setup.skip,
                num_speculative_tokens=setup.drafts,
            ),
        )
        return _Yard(cache, scheduler, Promises(cache, seen))

    def close(self) -> None:
        for hands in self._hands:
            hands.crane.close()

    def run(self) -> Ran:
        while self._events:
            self._tick(watch=self.setup.watch)
        self._calm()
        bound = self.now + 400 + 16 * self._work
        moved = self.now, 0
        while self._busy():
            self._tick(watch=8)
            done = len(self._results) + self._engine.emitted.total()
            moved = moved if done == moved[1] else (self.now, done)
            check(
                self.now < bound and self.now < moved[0] + 100 + self._work,
                f"nobody disturbs them, and they are stuck: {self._open()}",
            )
        self._settle()
        self._at_rest()
        for name, number in self._numbers().items():
            self._seen[f"stats {name}"] = number
        for row, stat in PARKING.items():
            self._seen[row] = self._scheduler.stats()[stat]
        return Ran(self.now, self._seen, self._results)

    def _busy(self) -> bool:
        """Whether a request, a seat or a ticket has not come to its end."""
        seats = self._scheduler.stats()["seats"]
        return len(self._results) < len(self._asked) or seats > 0 or len(self._promises) > 0

    def _settle(self) -> None:
        """INV-25: with nobody left, what is in flight ends, and nothing new is copied ahead."""
        bound = self.now + 400
        self._quiet = self.now
        while not self._silent() or self.now < self._quiet + _QUIET:
            self._tick(watch=8, schedule=False)
            check(self.now < bound, "nobody is left, and what is in flight never ends")

    def _numbers(self) -> dict[str, int]:
        return self._cache.stats() | self._scheduler.stats() | self._promises.stats()

    @property
    def _cache(self) -> Witness:
        return self._yards[0].cache

    @property
    def _promises(self) -> Promises:
        return self._yards[0].promises

    @property
    def _scheduler(self) -> Scheduler:
        return self._yards[0].scheduler

    def _open(self) -> dict[str, RequestState | None]:
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
        self._both(lambda yard: yard.promises.expire(self.now))
        if self._dead is not None and self.now >= self._dead.until:
            self._on_engine(self._dead.requests)
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
        self._copies.heard(outcomes)
        self._copies.overdue(self.now)
        self._both(lambda yard: yard.cache.landed())
        self._hear()
        if watch and self.now % watch == 0:
            self._on_reconcile(0)
        for due, seats, done in [entry for entry in self._news if entry[0] <= self.now]:
            self._news.remove((due, seats, done))
            self._seen["reconciled"] += 1
            before = self._scheduler.stats()["stopping"]
            self._both(lambda yard, at=(seats, done): yard.scheduler.reconcile(*at))  # type: ignore[misc]
            self._seen["T29 absent"] += before - self._scheduler.stats()["stopping"]
        if schedule and self._dead is None and len(self._engine) <= self.setup.flight:
            self._schedule()
        self._dispatch()
        self._look()

    def _hear(self) -> None:
        outputs, acks = self._engine.poll()
        self._stopping = {
            name for name, state in self._open().items() if state is RequestState.STOPPING
        }
        ignored = self._scheduler.stats()["acks_ignored"]
        self._say(outputs, acks)
        ignored = self._scheduler.stats()["acks_ignored"] - ignored
        foreign = sum(ack not in self._sent for ack in acks)
        twice = 0
        for ack in acks:
            twice += ack in self._sent and ack in self._given
            self._given.add(ack)
        late = ignored - twice - foreign
        # Those inside the outputs of a dead engine are not counted one by one.
        check(
            late >= 0 or self._dead is not None,
            f"T30, T31: of {twice} acks twice and {foreign} foreign ones it took some",
        )
        for name, number in (("T30", twice), ("T31 foreign", foreign), ("T31 late", max(late, 0))):
            self._seen[name] += number

    def _say(self, outputs: list[Output], acks: list[Ack]) -> None:
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
            heard = len(start.tokens) - len(self._asked[name].prompt)
            check(
                heard == self._engine.emitted[name],
                f"INV-8: {name} starts with {heard} sampled tokens of {self._engine.emitted[name]}",
            )
            self._seen["starts again"] += heard > 0
        for stop in step.stops:
            self._seen["T29 present"] += stop in self._sent
            self._sent.add(stop)
        self._engine.tables(tables)
        self._engine.submit(step)

    def _dispatch(self) -> None:
        plans = self._both(lambda yard: yard.cache.dispatch())
        for other in plans[1:]:
            check(plans[0] == other, "replicas differ in their plans")
        self._copies.launched(plans[0], self.now)
        writing, fenced = set(self._engine.writing), self._fenced()
        for plan in plans[0]:
            self._quiet = self.now
            if plan.source_tier == "device":
                bad = writing.intersection(plan.sources.tolist())
                check(not bad, f"INV-7: slots {bad} are copied, and are not computed yet")
            if plan.destination_tier == "device":
                bad = fenced.intersection(plan.destinations.tolist())
                check(not bad, f"INV-6: a copy goes to slots {bad}, which may be written")
        for hands in self._hands:
            hands.crane.submit(plans[0])

    def _fenced(self) -> set[int]:
        """INV-6: slots that nobody may be given, as the engine may write them."""
        return set(self._engine.writing) | (self._dead.slots if self._dead else set())

    def _look(self) -> None:
        """What is checked after every tick."""
        self._collect()
        for violation in self._both(lambda yard: yard.cache.audit()):
            check(violation is None, f"the audit: {violation}")
        self._copies.compare(self._cache.stats())
        stats = self._both(lambda yard: yard.scheduler.stats() | yard.promises.stats())
        check(all(one == stats[0] for one in stats), "replicas differ in their counters")
        if len(self._yards) > 1:
            digests = {yard.cache.digest() for yard in self._yards}
            check(len(digests) == 1, "replicas differ in their digest")

    def _collect(self) -> None:
        for results in zip(*self._both(lambda yard: yard.scheduler.results()), strict=True):
            result = results[0]
            for other in results[1:]:
                check(_said(result) == _said(other), f"replicas differ in {result}")
            self._ended(result)

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
        asked = self._asked[name]
        whole = continuation(asked.prompt, asked.max_tokens, ending=self.setup.ends)
        tokens = result.tokens.tolist()
        if result.state is RequestState.FINISHED:
            check(tokens == whole, f"{name} sampled {tokens}, undisturbed it is {whole}")
            self._seen["T28"] += name in self._stopping
            return
        check(tokens == whole[: len(tokens)], f"{name} sampled {tokens}, not {whole}")
        if result.state is RequestState.ABORTED:
            check(name in self._aborted, f"{name} was aborted, and nobody said so")
            return
        if not self.setup.recompute and result.reason.startswith("kv_lost"):
            check(self._faulty, f"INV-11: {name} is lost, and nothing has failed: {result.reason}")
            self._seen["kv lost"] += 1
            return
        small = asked.blocks >= self._least
        check(name in self._doomed or small, f"{name} is {result.state}: {result.reason}")
        self._seen["too small"] += name not in self._doomed

    def _at_rest(self) -> None:
        """Nothing is held, promised or in flight."""
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
            for tier, slots in (
                ("device", self._slots["device"] - 1),
                ("host", self._slots["host"]),
            ):
                # A slot beyond the size retires once nothing idle is below its block.
                more = stats[f"{tier}_capacity"] - slots
                most = max(0, stats[f"{tier}_idle"] - 1)
                check(0 <= more <= most, f"2.7: {more} slots too many in {tier}")

    def _silent(self) -> bool:
        return self._engine.silent and not self._news and all(hands.silent for hands in self._hands)

    # -- events ------------------------------------------------------------------------------

    def _on_add(
        self,
        name: str,
        family: int,
        shared: int,
        own: int,
        most: int,
        priority: int,
        salt: str = "",
        lora: str = "",
    ) -> None:
        prompt = [1000 + 100 * family + at for at in range(shared)]
        prompt += [sum(map(ord, name)) * 7919 + at for at in range(own)]
        if name in self._asked or not prompt:
            return
        blocks = max_blocks(len(prompt), most, self.setup.block_size)
        self._asked[name] = _Asked(prompt, most, blocks)
        self._work += len(prompt) + most
        self._engine.tags[name] = zlib.crc32(f"{salt} {lora}".encode()) if salt or lora else 0
        self._both(
            lambda yard: yard.scheduler.add(
                name,
                prompt,
                max_tokens=most,
                priority=priority,
                salt=salt or None,
                lora=lora or None,
                ticket=yard.promises.commit(name),
            )
        )

    def _on_abort(self, name: str, when: str) -> None:
        state = self._scheduler.state(name)
        if when and state != when:
            self._condemned.append((name, when))
            return
        if state is None:
            return
        self._seen[f"abort in {state}"] += 1
        self._seen["T27"] += state is RequestState.LOADING
        self._aborted.add(name)
        self._both(lambda yard: yard.scheduler.abort(name))
        if state in {
            RequestState.WAITING,
            RequestState.LOADING,
            RequestState.RECOMPUTE,
            RequestState.PARKED,
        }:
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
        self._copies.heard(outcomes)
        self._both(lambda yard: yard.cache.reset(rank, memory=memory))
        self._copies.reset(rank)
        # What its crane has said before is known by this.
        hands.lost = False
        if memory == "lost":
            self._on_engine("recompute")

    def _on_engine(self, requests: Any) -> None:  # noqa: ANN401 - what `reset` takes
        self._seen["engine reset"] += 1
        if self._dead is not None:
            self._try_room()
        self._engine.reset()
        self._dead = None
        if requests == "abort":
            self._aborted |= set(self._open())
        self._both(lambda yard: yard.scheduler.reset(requests=requests))

    def _on_fail(self, ticks: int, requests: Any) -> None:  # noqa: ANN401 - what `reset` takes
        """T29: whom it had ends as FAILED, once and now; the others never hear of it."""
        if self._dead is not None:
            return
        self._collect()
        states = self._open()
        ended = {RequestState.PREFILL, RequestState.DECODE, RequestState.STOPPING}
        had = {name for name, state in states.items() if state in ended}
        self._doomed |= had
        self._dead = _Death(self.now + ticks, requests, self._engine.holding)
        self._both(lambda yard: yard.scheduler.fail("it is gone"))
        self._collect()
        failed = {name for name in had if name in self._results}
        check(failed == had, f"T29: the engine died with {had}, and only {failed} have failed")
        waiting = {RequestState.WAITING, RequestState.RECOMPUTE, RequestState.PARKED}
        lost = [name for name, state in self._open().items() if state not in waiting]
        check(not lost, f"T29: {lost} do not wait, and the engine is dead")
        self._seen["engine died"] += 1
        self._seen["T29 dead"] += sum(states[name] is RequestState.STOPPING for name in had)
        for yard in self._yards:
            try:
                yard.scheduler.schedule()
            except Unavailable:
                continue
            raise Broken("T29: a step for an engine that is dead")

    def _try_room(self) -> None:
        """T29: of the room that there is, none is what a dead engine may write.

        `Witness.begin` looks at it. Nothing published outlives the reset that follows.
        """
        for yard in self._yards:
            spare = yard.cache.room().available
            if spare > 0:
                tokens = range(10**6, 10**6 + spare * self.setup.block_size)
                yard.cache.finish(yard.cache.begin(tokens, load=0))

    def _on_promise(self, name: str, blocks: int, ticks: int, peer: str) -> None:
        if name in self._asked:
            return

        def promised(yard: _Yard) -> bool:
            running = yard.scheduler.running
            return yard.promises.open(name, blocks, self.now + ticks, peer, running=running)

        answers = self._both(promised)
        check(len(set(answers)) == 1, f"replicas differ about a ticket for {name}")

    def _on_withdraw(self, name: str) -> None:
        self._both(lambda yard: yard.promises.withdraw(name))

    def _on_peer(self, peer: str) -> None:
        self._both(lambda yard: yard.promises.died(peer))

    def _on_resize(self, tier: Any, slots: int) -> None:  # noqa: ANN401 - "device" or "host"
        try:
            self._both(lambda yard: yard.cache.resize(tier, slots))
        except InUse:
            self._seen["2.7 in use"] += 1
            return
        self._seen[f"{tier} smaller"] += slots < self._slots[tier]
        self._seen[f"{tier} larger"] += slots > self._slots[tier]
        self._slots[tier] = slots
        self._least = min(self._least, self._slots["device"])

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
        if self._dead is not None:
            self._on_engine(self._dead.requests)


def _largest(scenario: Scenario, tier: str) -> int:
    """Slots that a tier ever has: the memory of a rank is there from the start."""
    sizes = [event.what[1] for event in scenario.events if event.what[:1] == (tier,)]
    return max((size for size in sizes if isinstance(size, int)), default=0)


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
