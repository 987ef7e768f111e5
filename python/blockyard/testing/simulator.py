"""A scheduler, its yard, an engine and cranes that misbehave, step by step in virtual time."""

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from blockyard._core import InUse
from blockyard.scheduling.new_request import NewRequest
from blockyard.scheduling.request import RequestState, Result
from blockyard.scheduling.scheduler import Scheduler
from blockyard.shared.hints import Hints
from blockyard.shared.layout import TIERS
from blockyard.testing.acks import Acks
from blockyard.testing.copier import Action
from blockyard.testing.copies import Copies
from blockyard.testing.displacements import Displacements
from blockyard.testing.eviction_seeds import hints_said
from blockyard.testing.fault_coverage import PARKING
from blockyard.testing.requests import Ask, Death, Requests
from blockyard.testing.restarts import Remains
from blockyard.testing.scenario import Scenario
from blockyard.testing.setup import FAULTS, Setup
from blockyard.testing.simulated_engine import SimulatedEngine, check
from blockyard.testing.simulated_rank import SimulatedRank, config_of
from blockyard.testing.simulated_replicas import Replicas, SimulatedReplica
from blockyard.testing.simulated_store import SimulatedStore, StoreWorker
from blockyard.yard.asking import Lookup
from blockyard.yard.cache import KVCache

__all__ = ["Simulation"]


_QUIET: Final = 24
"""Ticks without a plan after which nothing more is copied ahead."""
_WAITING: Final = {RequestState.WAITING, RequestState.RECOMPUTE, RequestState.PARKED}
_WORDS: Final = frozenset({"deliver", "delay", "fail", "corrupt", "hang", "die"})


class Simulation:
    """The loop around a scheduler: its engine, its ranks, and the events that disturb them.

    Args:
        scenario: Sizes and events.
        shared: A folder for what ranks share.
        store: A store that others may share; None for one of its own, where there are names of it.
        seen: Where it counts what happens; None for a counter of its own.
    """

    def __init__(
        self,
        scenario: Scenario,
        shared: Path,
        store: SimulatedStore | None = None,
        seen: Counter[str] | None = None,
    ) -> None:
        self.setup = setup = scenario.setup
        self.now = 0
        self._store = store
        self._events = deque(sorted(scenario.events, key=lambda event: event.tick))
        self._config = config_of(setup, scenario.largest)
        self._folder = shared
        self.seen: Counter[str] = Counter() if seen is None else seen
        if store is None and setup.remote and setup.store_values:
            self._store = SimulatedStore(setup, f"store {len(scenario.events)}", self.seen)
        faulty = setup.lossy > 0 or any(event.verb in FAULTS for event in scenario.events)
        self.requests = Requests(setup, self.seen, faulty=faulty)
        self._remains = Remains(setup, self._config, shared, self.seen)
        self._pending_aborts: list[tuple[str, str]] = []
        self._versions = setup.weights - 1
        self._held: set[str] = set()
        self.elsewhere: Simulation = self
        """Where requests go that move, as long as it takes any."""
        self.over = False
        """Whether it takes no request any more."""
        self._outside: dict[str, tuple[Ask, Hashable]] = {}
        """Requests that it does not take as long as all of its own move."""
        self._limits: dict[str, int] = {}
        """The ticks at which requests that move must have ended."""
        self._open(setup)

    def _open(self, setup: Setup) -> None:
        """Begins a process: of what was before, it has what a disk has."""
        self._ranks = [self._rank_of(rank) for rank in range(setup.ranks)]
        self._open_yard(setup)

    def _rank_of(self, rank: int) -> SimulatedRank:
        disk, worker = self._remains.disk(rank), None
        if self._store is not None:
            clock = lambda: float(self.now)  # noqa: E731 - too long for one line
            worker = StoreWorker(self._store, self._config, self.setup, rank, clock)
        return SimulatedRank(self._config, self.setup, rank, self._folder, disk, worker)

    def _open_yard(self, setup: Setup) -> None:
        """Begins a scheduler beside the ranks."""
        self._engine = SimulatedEngine(
            [memory for rank in self._ranks for memory in rank.memory],
            block_size=setup.block_size,
            stops=setup.stops,
            ending=setup.ends,
            eager=setup.eager,
            drafts=setup.drafts,
        )
        self._engine.seen = self.seen
        self._engine.version = setup.weights - 1
        seconds = setup.tick_ms / 1000
        self._replicas = Replicas(
            setup,
            self.seen,
            self._fenced,
            clock=lambda: self.now * seconds,
            lookup=self._lookup,
        )
        persistent = [rank.persistent for rank in self._ranks]
        self._remains.begin(persistent, [replica.cache for replica in self._replicas])
        self._reconciles: list[tuple[int, list[int], int]] = []
        self._copies = Copies(setup, self.seen, self._remains)
        self._slots: dict[str, int] = {tier: getattr(setup, tier) for tier in TIERS}
        self._death: Death | None = None
        self._acks = Acks(self.seen)
        self._displacements = Displacements(setup, self.seen)
        self._stopping: set[str] = set()
        self._quiet = 0

    def _lookup(self, _cache: KVCache) -> Lookup | None:
        """Returns what a scheduler asks about its requests."""
        return self._ranks[0].lookup()

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
            self._tick(reconcile_every=self.setup.reconcile_every)
            yield
        yield from self.settle()

    def settle(self) -> Iterator[None]:
        """Ends all faults, and yields between the ticks until all is at rest."""
        self._end_faults()
        # INV-25: who is held and not read holds up nobody else.
        yield from self._play_on(lambda: bool(set(self.requests.unfinished) - self._held))
        for name in sorted(self._held):
            self._on_resume_decoding(name)
        yield from self._play_on(self._busy)
        yield from self._drain()
        self._replicas.check_at_rest(self._slots)
        for name, number in self._replicas.stats().items():
            self.seen[f"stats {name}"] = number
        for row, stat in PARKING.items():
            self.seen[row] = self._scheduler.stats()[stat]

    def _play_on(self, busy: Callable[[], bool]) -> Iterator[None]:
        """Plays on, without faults, until nothing is busy; each request ends in its time."""
        bound = self.now + 400 + 16 * self.requests.work
        moved = self.now, 0
        while busy():
            self._tick(reconcile_every=8)
            done = len(self.requests.results) + self._engine.emitted.total()
            moved = moved if done == moved[1] else (self.now, done)
            yield
            patient = max((self._limits[name] for name in self._moving()), default=0)
            rest = max(moved[0] + 100 + self.requests.work, patient + 2)
            check(
                self.now < bound and self.now < rest,
                f"the faults are over, and these requests are stuck: {self._states()}",
            )

    def _busy(self) -> bool:
        """Whether a request, a seat, a ticket or a hold has not ended."""
        seats = self._scheduler.stats()["seats"]
        held = len(self._replicas.reservations) or self._replicas.cache.holding
        return bool(self.requests.unfinished or seats or held)

    def _drain(self) -> Iterator[None]:
        """Runs on without requests: what is in flight ends, and no new copy begins (INV-25)."""
        bound, self.over = self.now + 400, True
        self._quiet = self.now
        while not self._silent() or self.now < self._quiet + _QUIET:
            self._tick(reconcile_every=8, schedule=False)
            check(self.now < bound, "all requests have ended, and what is in flight never does")
            yield

    def _silent(self) -> bool:
        ranks = all(rank.silent for rank in self._ranks)
        return self._engine.silent and not self._reconciles and ranks

    @property
    def _scheduler(self) -> Scheduler:
        return self._replicas.scheduler

    def _states(self) -> dict[str, RequestState | None]:
        """Returns the state of each request that has no result."""
        mine = (name for name in self.requests.unfinished if name not in self._outside)
        return {name: self._state(name) for name in mine}

    def _moving(self) -> list[str]:
        """Returns the requests that are written to the store."""
        return [name for name, state in self._states().items() if state is RequestState.MOVING]

    def _state(self, name: str) -> RequestState | None:
        return self._scheduler.state(self.requests.ids.get(name))

    # -- a tick ------------------------------------------------------------------------------

    def _tick(self, *, reconcile_every: int, schedule: bool = True) -> None:
        self.now += 1
        self._engine.now = self.now
        self._replicas.each(lambda replica: replica.reservations.expire(self.now))
        self._replicas.each(lambda replica: replica.cache.end_holds(self.now))
        if self._death is not None and self.now >= self._death.until:
            self._on_engine(self._death.requests)
        while self._events and self._events[0].tick <= self.now:
            event = self._events.popleft()
            getattr(self, f"_on_{event.verb}")(*event.what)
        outside, self._outside = self._outside, {}
        for ask, request in dict.fromkeys(outside.values()):
            self._add(ask, request)
        pending, self._pending_aborts = self._pending_aborts, []
        for name, when in pending:
            self._on_abort(name, when)
        outcomes = [outcome for rank in self._ranks for outcome in rank.poll(self.now, self.seen)]
        self._replicas.each(lambda replica: replica.cache.commit(list(outcomes), now=self.now))
        self._copies.heard(outcomes)
        self._copies.overdue(self.now)
        self._replicas.each(lambda replica: replica.cache.landed())
        self._poll_engine()
        if reconcile_every and self.now % reconcile_every == 0:
            self._on_reconcile(0)
        for due, seats, done in [entry for entry in self._reconciles if entry[0] <= self.now]:
            self._reconciles.remove((due, seats, done))
            self.seen["reconciled"] += 1
            before = self._scheduler.stats()["stopping"]
            self._reconcile(seats, done)
            self.seen["T29 absent"] += before - self._scheduler.stats()["stopping"]
        if schedule and self._death is None and len(self._engine) <= self.setup.steps_in_flight:
            self._schedule()
        self._dispatch()
        self._check()

    def _reconcile(self, seats: list[int], done: int) -> None:
        self._replicas.each(lambda replica: replica.scheduler.reconcile(seats, done))

    def _poll_engine(self) -> None:
        """Brings the engine's outputs and acks, and counts the acks that must be ignored."""
        outputs, acks = self._engine.poll()
        self._stopping = {
            name for name, state in self._states().items() if state is RequestState.STOPPING
        }
        ignored = self._scheduler.stats()["acks_ignored"] if acks else 0
        self._replicas.deliver(self.setup.channel, outputs, acks)
        for name in self.requests.evacuated:
            heard = len(self._scheduler.sampled(self.requests.ids[name]))
            self.requests.evacuated[name] = max(heard, self.requests.evacuated[name])
        if acks:
            ignored = self._scheduler.stats()["acks_ignored"] - ignored
            self._acks.given(acks, ignored, dead=self._death is not None)

    def _schedule(self) -> None:
        step, tables = self._replicas.schedule()
        chunks = sum(chunk.tokens for chunk in step.chunks)
        decoded = int(step.counts[: len(step.decode)].sum())
        left = max(self.setup.max_num_batched_tokens - decoded, 0)
        check(chunks <= left, f"{chunks} tokens of prompts in a step that has room for {left}")
        for start in step.starts:
            name = str(start.request)
            heard = len(start.tokens) - len(self.requests[name].prompt)
            check(
                heard == self._engine.emitted[start.request],
                f"INV-8: {name} starts with {heard} sampled tokens, not as many as it has sampled",
            )
            self.seen["starts again"] += heard > 0
        for stop in step.stops:
            self._acks.sent(stop)
        self._displacements.scheduled(step, self._scheduler, self.requests)
        self._engine.tables(tables)
        self._engine.submit(step)

    def _dispatch(self) -> None:
        plans = self._replicas.dispatch()
        self._copies.launched(plans)
        writing, fenced = set(self._engine.writing), self._fenced()
        for plan in plans:
            self._quiet = self.now
            if plan.source_tier == "device":
                bad = writing.intersection(plan.sources.tolist())
                check(not bad, f"INV-7: slots {bad} are copied, and are not computed yet")
            if plan.destination_tier == "device":
                bad = fenced.intersection(plan.destinations.tolist())
                check(not bad, f"INV-6: a copy goes to slots {bad}, which may be written")
        for rank in self._ranks:
            rank.submit(plans)

    def _fenced(self) -> set[int]:
        """Returns the slots that the engine may write, and no request may be given (INV-6)."""
        return set(self._engine.writing) | (self._death.slots if self._death else set())

    def _check(self) -> None:
        """Makes the checks that follow every tick."""
        self._collect()
        self._replicas.audit()
        hung = any(rank.hung for rank in self._ranks)
        self._replicas.check_stalls(self._engine.lost, hung=hung)
        self._copies.compare(self._replicas.cache.stats())
        self._replicas.compare()
        # The seconds of the limit are rounded.
        late = [name for name in self._moving() if self.now > self._limits[name] + 1]
        check(not late, f"INV-36h: {late} still move behind their limits")

    def _collect(self) -> None:
        for result in self._replicas.results():
            name = str(result.request)
            state = self._scheduler.state(result.request)
            self.requests.end(result, state, stopping=name in self._stopping)
            if result.state is RequestState.MOVED:
                engine = self if self.elsewhere.over else self.elsewhere
                engine.take(self.requests[name].ask.moved(name, result.tokens.tolist()))
            self._ended(name, result)

    def _ended(self, name: str, result: Result) -> None:
        """Takes note of a result."""

    # -- events ------------------------------------------------------------------------------

    def _on_add(self, *what: Any) -> None:  # noqa: ANN401 - the fields of `Ask`
        ask = Ask(*what)
        if str(ask.samples[0]) not in self.requests and ask.prompt:
            self.take(ask)

    def take(self, ask: Ask) -> None:
        """Takes a request, or its samples; one that has moved here gets a name of its own."""
        while ask.name in self.requests:
            ask = ask._replace(name=f"{ask.name}+")
        self.requests.add(ask)
        self._engine.tags |= dict.fromkeys(ask.samples, ask.tag)
        self._add(ask, ask.name)

    def _add(self, ask: Ask, request: Hashable) -> None:
        if not self._scheduler.takes_requests:
            self._outside |= dict.fromkeys(map(str, ask.samples), (ask, request))
            return
        self._replicas.each(
            lambda replica: replica.scheduler.add(
                NewRequest(
                    request,
                    ask.prompt,
                    max_tokens=ask.most,
                    priority=ask.priority,
                    n=ask.n,
                    salt=ask.salt or None,
                    lora=ask.lora or None,
                    ticket=replica.reservations.commit(ask.name),
                )
            )
        )

    def _on_abort(self, name: str, when: str) -> None:
        state = self._state(name)
        if when and state != when:
            self._pending_aborts.append((name, when))
            return
        if state is None:
            return
        self.seen[f"abort in {state}"] += 1
        self.seen["T27"] += state is RequestState.LOADING
        self.requests.aborted.add(name)
        self._replicas.each(lambda replica: replica.scheduler.abort(self.requests.ids[name]))
        if state in {*_WAITING, RequestState.LOADING, RequestState.MOVING}:
            check(self._state(name) is None, f"{name} was {state} and is not aborted")

    def _on_pause_decoding(self, name: str) -> None:
        self._say(name, "pause_decoding")
        if self._state(name) is not None:
            self._held.add(name)
            self.requests.held.add(name)

    def _on_resume_decoding(self, name: str) -> None:
        self._say(name, "resume_decoding")
        self._held.discard(name)

    def _on_evacuate(self, name: str, ticks: int) -> None:
        names = [name] if name else list(self._states())
        for one in names:
            if (state := self._state(one)) is not None:
                self.seen[f"evacuate in {state}"] += 1
                self.requests.evacuated.setdefault(one, 0)
                self._limits[one] = self.now + ticks
        patience = ticks * self.setup.tick_ms / 1000
        if not name:
            self.seen["evacuate all"] += 1
            self._replicas.each(lambda one: one.scheduler.evacuate_all(patience=patience))
        elif self._state(name) is not None:
            request = self.requests.ids[name]
            self._replicas.each(lambda one: one.scheduler.evacuate(request, patience=patience))

    def _on_hint(self, name: str, *fields: Any) -> None:  # noqa: ANN401 - of the event
        self._say(name, "hint", hints_said(fields))

    def _say(self, name: str, verb: str, *said: Hints) -> None:
        if self._state(name) is not None:
            self.seen[verb] += 1
            request = self.requests.ids[name]
            self._replicas.each(lambda replica: getattr(replica.scheduler, verb)(request, *said))

    def _on_ack(self, fate: str, ticks: int) -> None:
        self._engine.fates.append((fate, ticks))

    def _on_copy(self, rank: int, way: str, word: Any, number: int) -> None:  # noqa: ANN401 - of `_WORDS`
        check(word in _WORDS, f"a copy cannot {word}")
        self._ranks[rank].script(way, Action(word, number))

    def _on_outcome(self, rank: int, fate: str, ticks: int) -> None:
        self._ranks[rank].fates.append((fate, ticks))

    def _on_release(self, rank: int) -> None:
        self._ranks[rank].release()

    def _on_stall(self, ticks: int) -> None:
        self._engine.stalled += ticks

    def _on_rank(self, rank: int, memory: Any) -> None:  # noqa: ANN401 - what `reset` takes
        """Resets a rank; where its memory is lost, the engine is lost too."""
        self.seen[f"rank reset, memory {memory}"] += 1
        self._clear_disks(memory)
        self._end_copies(rank, memory)
        if memory != "kept":
            self._on_engine("recompute", memory)

    def _end_copies(self, rank: int, memory: Any) -> None:  # noqa: ANN401 - likewise
        its = self._ranks[rank]
        its.crane.reset()
        outcomes = its.poll(self.now, self.seen)
        self._replicas.each(lambda replica: replica.cache.commit(list(outcomes)))
        self._copies.heard(outcomes)
        self._replicas.each(lambda replica: replica.cache.reset(rank, memory=memory))
        self._copies.reset(rank)
        # The reset settles every flight of the rank, also those whose outcome was lost.
        its.lost.clear()

    def _on_engine(self, requests: Any, memory: Any = "lost") -> None:  # noqa: ANN401 - likewise
        self.seen["engine reset"] += 1
        if self._death is not None:
            self._replicas.fill()
        self._clear_disks(memory)
        if self._store is not None:
            # A store has what others load: it must not get what the memory has lost.
            for rank in range(len(self._ranks)):
                self._end_copies(rank, memory)
        self._engine.reset()
        self._death = None
        if requests == "abort":
            self.requests.aborted |= set(self._states())
        self._replicas.each(
            lambda replica: replica.scheduler.reset(requests=requests, memory=memory)
        )

    def _on_fail(self, ticks: int, requests: Any) -> None:  # noqa: ANN401 - what `reset` takes
        """The engine dies: the requests that it had fail, once and now; others wait (T29)."""
        if self._death is not None:
            return
        self._collect()
        states = self._states()
        ended = {RequestState.PREFILL, RequestState.DECODE, RequestState.STOPPING}
        had = {name for name, state in states.items() if state in ended}
        self.requests.died |= had
        self._death = Death(self.now + ticks, requests, self._engine.holding)
        self._replicas.each(lambda replica: replica.scheduler.fail("it is gone"))
        self._collect()
        failed = {name for name in had if name in self.requests.results}
        check(failed == had, f"T29: the engine died with {had}, and only {failed} have failed")
        lost = [name for name, state in self._states().items() if state not in _WAITING]
        check(not lost, f"T29: {lost} are not waiting, and the engine is dead")
        self.seen["engine died"] += 1
        self.seen["T29 dead"] += sum(states[name] is RequestState.STOPPING for name in had)
        self._replicas.check_dead()

    def _on_promise(self, name: str, blocks: int, ticks: int, peer: str) -> None:
        if name in self.requests:
            return

        def promised(replica: SimulatedReplica) -> bool:
            running = replica.scheduler.running
            return replica.reservations.open(name, blocks, self.now + ticks, peer, running=running)

        answers = self._replicas.each(promised)
        check(len(set(answers)) == 1, f"replicas differ about a ticket for {name}")

    def _on_withdraw(self, name: str) -> None:
        self._replicas.each(lambda replica: replica.reservations.withdraw(name))

    def _on_peer(self, peer: str) -> None:
        self._replicas.each(lambda replica: replica.reservations.died(peer))

    def _on_resize(self, tier: Any, slots: int) -> None:  # noqa: ANN401 - the name of a tier
        try:
            self._replicas.each(lambda replica: replica.cache.resize(tier, slots))
        except InUse:
            self.seen["2.7 in use"] += 1
            return
        self.seen[f"{tier} smaller"] += slots < self._slots[tier]
        self.seen[f"{tier} larger"] += slots > self._slots[tier]
        self._slots[tier] = slots

    def _on_restart(self, how: str, number: int) -> None:
        self._collect()
        self.seen[how] += 1
        self._remains.end(self._replicas.cache, how, number)
        self.close()
        tags, disk = self._engine.tags, self._remains.slots or self.setup.disk
        self._open(replace(self.setup, disk=disk))
        self._add_again(tags)

    def _add_again(self, tags: dict[Hashable, int]) -> None:
        """Clients add again what has not ended, from the prompt."""
        self._held.clear()
        self._engine.tags |= tags
        self.requests.left()
        for name in self.requests.unfinished:
            ask = self.requests[name].ask
            self._add(ask._replace(n=1), self.requests.ids[name])

    def _clear_disks(self, memory: str = "lost", *, forget: bool = False) -> None:
        """Clears disks that outlive the process of what was planned so far, as `by.local` does."""
        if self._remains.disks and memory == "lost":
            self._dispatch()
            self._remains.clear(forget=forget)

    def _on_weights(self) -> None:
        self.seen["weights"] += 1
        self._clear_disks(forget=True)
        # A restart has the weights of the namespace again, and other ones have a number of theirs.
        self._versions += 1
        self._engine.version = self._versions
        self._replicas.each(lambda replica: replica.scheduler.update_weights())

    def _on_forget(self, name: str, what: str) -> None:
        if name not in self.requests:
            return
        self.seen[f"forget {what}"] += 1
        ask = self.requests[name].ask
        self._replicas.each(lambda one: ask.forget(one.cache, what))

    def _on_hold(self, name: str, ticks: int) -> None:
        if name in self.requests:
            ask, until = self.requests[name].ask, self.now + ticks
            self._replicas.each(lambda one: one.cache.hold_until(ask.keys(one.cache), until))

    def _on_reconcile(self, late: int) -> None:
        self._reconciles.append((self.now + late, self._engine.active, self._engine.done))

    def _end_faults(self) -> None:
        """Lets what hangs go on, and resets ranks and engines that need it."""
        self._engine.fates.clear()
        self._engine.stalled = 0
        if not self.setup.unread:
            for name in self.requests.unfinished:
                self._on_resume_decoding(name)
        if self._store is not None and not self.setup.second:
            self._store.honest = True
        for number, rank in enumerate(self._ranks):
            rank.end_faults()
            if rank.lost and not self.setup.processes:
                self._on_rank(number, "kept")
        if self._death is not None:
            self._on_engine(self._death.requests)
