"""Ranks whose verbs are interrupted at every line in turn, and what their users do then."""

import gc
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import blockyard as by
from blockyard._typing import override
from blockyard.crane.copiers import Landed, Slots
from blockyard.crane.crane import Crane
from blockyard.crane.tiers import Tier, planes_of
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.local_cache import LocalCache
from blockyard.shared.plan import Cause, Outcome, Plan
from interrupted import Interrupter, mark

SIZE = 4
DEVICE, HOST = 11, 14
TURNS = 7
"""In which all that is under way has ended."""


class SlowCopier:
    """Takes some copies at a time, and writes each some ticks later, whoever still asks for it."""

    def __init__(self) -> None:
        self.held: list[_SlowCopy] = []
        self.most = 2
        """How many it takes."""
        self.clashed = False
        """Whether a slot was given to a copy while another one was still to write it."""
        self.asked = False
        """Whether its copies go on when they are polled, too."""
        self.cut: Slots | None = None
        """It is interrupted when it has the copy to these slots."""
        self.ticks = 6
        """For which it has a copy that starts now."""

    def start(
        self, source: Tier, destination: Tier, sources: Slots, destinations: Slots
    ) -> "_SlowCopy | None":
        if len(self.held) >= self.most:
            return None
        # What is raised here would only fail the copy.
        self.clashed |= self.writes(destination.name, destinations)
        copy = _SlowCopy(self, source, destination, sources.copy(), destinations.copy())
        self.held.append(copy)
        if self.cut is not None and np.array_equal(self.cut, destinations):
            self.cut = None
            raise KeyboardInterrupt
        return copy

    def writes(self, tier: str, slots: Slots) -> bool:
        """Whether a copy that it has is to write one of these slots."""
        theirs = [copy.what[3] for copy in self.held if copy.what[1].name == tier]
        return any(np.isin(some, slots).any() for some in theirs)

    def tick(self, ticks: int = 1) -> None:
        for copy in self.held:
            copy.ticks -= ticks
            if copy.ticks <= 0:
                copy.write()
        self.held = [copy for copy in self.held if copy.landed is None]

    def reset(self) -> None:
        for at, copy in enumerate(self.held):
            if at % 2:
                copy.write()  # it was just being written
            copy.landed = Landed(0, Cause.FAILED)
        self.held = []

    close = reset


class _SlowCopy:
    def __init__(self, copier: SlowCopier, *what: Any) -> None:
        self.copier, self.what, self.ticks = copier, what, copier.ticks
        self.good = len(what[2])
        self.landed: Landed | None = None

    def poll(self) -> Landed | None:
        if self.copier.asked:
            self.copier.tick()
        return self.landed

    def write(self) -> None:
        source, destination, sources, destinations = self.what
        for theirs, mine in zip(planes_of(source), planes_of(destination), strict=True):
            mine[destinations[: self.good]] = theirs[sources[: self.good]]
        self.landed = Landed(self.good, None if self.good == len(sources) else Cause.FAILED)


class Ranks:
    """A yard and its cranes over a wire, in the middle of copies both ways.

    On each rank a copy down has landed, of which one block failed on rank 0, and is not reported;
    one each way is under way, and one waits for its copier; one more is planned.
    """

    def __init__(self, ranks: int) -> None:
        self.layout = by.KVLayout.llama(1, ranks, 8, block_size=SIZE, ranks=ranks)
        self.read = 0
        self.loading: list[tuple[by.Lease, tuple[int, ...]]] = []
        self.plans: list[Plan] = []
        self.outcomes: list[Outcome] = []
        self.salt = 0
        self.cut_off = 0
        """Copies that were cut off before the interrupt."""
        self.start()
        self.fill()

    def start(self) -> None:
        self.config = by.Config(layout=self.layout, device=DEVICE, host=HOST).named()
        ranks = range(self.layout.ranks)
        self.devices = [MemoryTier(self.layout, DEVICE, name="device") for _ in ranks]
        self.copiers = [SlowCopier() for _ in ranks]
        self.cranes = [
            Crane(
                self.layout,
                rank=rank,
                device=self.devices[rank],
                host=MemoryTier(self.layout, HOST),
                copier=self.copiers[rank],
                fingerprint=self.config.fingerprint,
            )
            for rank in ranks
        ]
        self.raw = [device.planes[0].reshape(DEVICE, -1) for device in self.devices]
        self.cache = self.met()

    def met(self) -> by.KVCache:
        hellos = [crane.hello(self.config.yard) for crane in self.cranes]
        return by.KVCache(replace(by.agree(self.config, hellos), ahead=0))

    def fill(self) -> None:
        """Brings everything into the state in which a verb is interrupted."""
        self.ticks(1)
        self.put(1)
        self.order()
        self.settle()
        for number in range(2, 7):
            self.put(number)
        self.order()
        self.copiers[0].held[0].good = 1
        self.ticks(6)
        self.order()
        assert self.put(1, 5)
        assert self.loading
        self.send()
        self.tick(5)
        self.ticks(6)
        self.order()
        self.send()
        assert self.plan() is not None
        for crane, copier in zip(self.cranes, self.copiers, strict=True):
            assert [copy.landed is None for copy in copier.held] == [True, True]
            assert crane.in_flight == 4

    # -- what a scheduler and its ranks do ---------------------------------------------------

    def ticks(self, ticks: int) -> None:
        for copier in self.copiers:
            copier.ticks = ticks

    def tick(self, ticks: int = 1) -> None:
        for copier in self.copiers:
            copier.tick(ticks)

    def plan(self) -> Plan | None:
        """Has the yard plan one more copy down, of two blocks at most."""
        return next(filter(None, map(self.cache.demote, range(2, DEVICE, 2))), None)

    def order(self) -> None:
        assert self.plan() is not None
        self.send()

    def send(self) -> None:
        plans = self.cache.dispatch()
        for crane in self.cranes:
            crane.submit(plans)

    def turn(self) -> None:
        """A turn of the loop that docs/cranes.md shows, where a message may have been lost."""
        self.tick()
        for crane in self.cranes:
            self.cache.commit(crane.poll())
            self.cache.commit(crane.reconcile(self.cache.unreported(crane.rank)))
        self.read_loaded()
        self.send()

    def read_loaded(self) -> None:
        for lease, tokens in [one for one in self.loading if one[0].state != "loading"]:
            self.loading.remove((lease, tokens))
            self.serve(lease, tokens)

    def settle(self) -> None:
        """Goes on until all has ended that will."""
        for _ in range(TURNS):
            self.turn()
            if not self.loading and not self.cache.dispatched():
                break

    # -- bytes -------------------------------------------------------------------------------

    def mark(self, tokens: tuple[int, ...], block: int, rank: int) -> int:
        return mark((self.salt, rank, *tokens[: SIZE * (block + 1)]))

    def put(self, number: int, *more: int) -> bool:
        """Has two blocks served that are called by a number; whether there is room."""
        tokens = (*range(1000 * number, 1000 * number + 2 * SIZE), *more)
        try:
            lease = self.cache.begin(tokens)
        except by.NoRoom:
            return False
        if lease.state == "loading":
            self.loading.append((lease, tokens))
        else:
            self.serve(lease, tokens)
        return True

    def serve(self, lease: by.Lease, tokens: tuple[int, ...]) -> None:
        """Reads what is cached, and computes the rest."""
        if lease.state == "ready":
            table = self.cache.block_tables(lease)[0]
            clashed = [copier.writes("device", table) for copier in self.copiers]
            assert not any(clashed), "a slot that is still to be written was given away"
            for rank, raw in enumerate(self.raw):
                for block in range(len(tokens) // SIZE):
                    wanted = self.mark(tokens, block, rank)
                    if block < lease.cached // SIZE:
                        self.read += 1
                        assert (raw[table[block]] == wanted).all(), "a wrong byte was served"
                    else:
                        raw[table[block]] = wanted
            self.cache.seal(lease, len(tokens))
        self.cache.finish(lease)

    # -- after an interrupt ------------------------------------------------------------------

    def hasten(self) -> None:
        """Lets copies that start from now on overtake those before."""
        for copier in self.copiers:
            copier.ticks, copier.most = 1, 9

    def goes_on(self) -> None:
        self.go_on()
        self.reset()
        self.check()

    def go_on(self) -> None:
        """Goes on with other requests. What is in the air lands meanwhile, known or not."""
        for number in range(TURNS):
            self.turn()
            self.put(2 + number // 2 + 10 * (number % 2))
            self.plan()
        self.settle()
        for flight in self.cache.dispatched():
            assert self.cache._flights.is_late(flight), "a flight never ends"
        clashed = [copier.clashed for copier in self.copiers]
        assert not any(clashed), "a slot that is still to be written was given away"
        assert self.cache.stats()["flights_unknown"] <= 1 + self.cut_off
        assert self.cache.audit() is None

    def reset(self) -> None:
        """Resets all ranks, after which everything must be as if nothing had been."""
        for crane in self.cranes:
            crane.reset()
            self.cache.commit(crane.poll())
            self.cache.reset(crane.rank, memory="kept")
        self.settle()

    def check(self) -> None:
        """All has ended, nothing is held, and all that is there is right."""
        assert self.cache.dispatched() == [], "a flight never ends"
        assert [crane.in_flight for crane in self.cranes] == [0] * len(self.cranes)
        assert not self.loading, "a load never ends"
        assert self.cache.audit() is None
        assert self.cache.holders() == []
        stats = self.cache.stats()
        for kind in ("claimed", "pinned", "quarantined", "promised"):
            assert (stats[f"device_{kind}"], stats[f"host_{kind}"]) == (0, 0), kind
        for number in (*range(1, 7), *range(12, 17)):
            assert self.put(number)
            if self.loading:
                self.settle()
            assert not self.loading, "a load never ends"
        for crane in self.cranes:
            crane.close()


class Local(Ranks):
    """The same as one cache, with a step in place of a turn."""

    cache: LocalCache

    def __init__(self) -> None:
        super().__init__(1)

    @override
    def start(self) -> None:
        device = MemoryTier(self.layout, DEVICE, name="device")
        host = MemoryTier(self.layout, HOST)
        self.copiers = [SlowCopier()]
        self.cache = by.local(self.layout, memory=(device, host), copier=self.copiers[0], ahead=0)
        self.cranes = [self.cache.crane]
        self.raw = [device.planes[0].reshape(DEVICE, -1)]

    @override
    def turn(self) -> None:
        self.tick()
        self.cache.step()
        self.read_loaded()

    @override
    def reset(self) -> None:
        self.cache.reset()
        self.settle()


class Cut(NamedTuple):
    """A verb that is interrupted, and what is done before and after."""

    before: Callable[[Any], object]
    verb: Callable[[Any], object]
    after: Callable[[Any, int], object]
    """What the docs say; 0 or 1 for either way where they leave a choice."""
    then: Callable[[Any], object] = lambda world: world.goes_on()


def nothing(*_: object) -> None:
    """Is done."""


def _ordered(ranks: Ranks) -> None:
    ranks.plans = ranks.cache.dispatch()


def _submit(ranks: Ranks, rank: int = 0) -> None:
    """Submits plans, which the crane may have."""
    try:
        ranks.cranes[rank].submit(ranks.plans)
    except by.Misuse as error:
        if "submit it once" not in str(error):
            raise


def _submit_again(ranks: Ranks, way: int) -> None:
    for rank in range(0 if way else 1, len(ranks.cranes)):
        _submit(ranks, rank)


def _cut_off(ranks: Ranks) -> None:
    """A copy was cut off when its copier had it."""
    _ordered(ranks)
    _submit_again(ranks, 0)
    copier = ranks.copiers[0]
    copier.most, copier.cut = 9, ranks.plans[0].destinations
    try:
        _submit(ranks)
    except KeyboardInterrupt:
        assert copier.cut is None
    ranks.cut_off = 1
    ranks.hasten()


def _submit_late(ranks: Ranks, way: int) -> None:
    """A plan comes again, perhaps when its outcome has been told."""
    if way:
        ranks.turn()
    _submit(ranks)


def _reported(ranks: Ranks) -> None:
    ranks.outcomes = [outcome for crane in ranks.cranes for outcome in crane.poll()]
    assert ranks.outcomes


def _commit(ranks: Ranks) -> None:
    ranks.cache.commit(ranks.outcomes)


def _commit_again(ranks: Ranks, way: int) -> None:
    if way:
        ranks.cache.commit(ranks.outcomes)


def _ask(ranks: Ranks) -> None:
    ranks.cranes[0].reconcile(ranks.cache.unreported(0))


def _lost(ranks: Ranks) -> None:
    """Outcomes are lost, and a plan comes late."""
    _reported(ranks)
    _ordered(ranks)


def _ended(ranks: Ranks) -> None:
    for crane in ranks.cranes:
        crane.reset()


def _reset_rank(ranks: Ranks) -> None:
    ranks.cranes[0].reset()


def _reset_rank_again(ranks: Ranks, way: int) -> None:
    ranks.cranes[0].reset()
    if way:
        ranks.cache.commit(ranks.cranes[0].poll())
    ranks.cache.reset(0, memory="kept")
    ranks.cache.commit(ranks.cranes[0].poll())


def _reset_yard(ranks: Ranks) -> None:
    ranks.cache.reset(0, memory="kept")


def _forget(ranks: Ranks) -> None:
    for lease, _ in ranks.loading:
        ranks.cache.finish(lease)
    ranks.loading.clear()
    ranks.cranes[0].reset()


def _lose(ranks: Ranks) -> None:
    ranks.cache.reset(0, memory="lost")


def _lose_again(ranks: Ranks, _way: int) -> None:
    _lose(ranks)
    ranks.salt += 1


def _new_yard(ranks: Ranks) -> None:
    """Another scheduler starts, while plans of the one before are on their way."""
    _ordered(ranks)
    ranks.loading.clear()
    ranks.config = ranks.config.named()
    ranks.salt += 1


def _hello(ranks: Ranks) -> None:
    ranks.cranes[0].hello(ranks.config.yard)


def _hello_again(ranks: Ranks, way: int) -> None:
    late, ranks.plans = ranks.plans, []
    if way:
        ranks.cranes[0].submit(late)
    ranks.cache = ranks.met()
    ranks.cranes[0].submit(late)
    assert ranks.put(10)
    assert ranks.plan() is not None
    plans = ranks.cache.dispatch()
    if way:
        ranks.cranes[0].submit(plans)
    # The others never have them.


def _first_plans(ranks: Ranks) -> None:
    _new_yard(ranks)
    for crane in ranks.cranes:
        crane.traffic._named = False  # as where no yard has said its number
    ranks.cache = by.KVCache(replace(ranks.config, ahead=0))
    assert ranks.put(10)
    assert ranks.plan() is not None
    ranks.plans = ranks.cache.dispatch()


def _close(ranks: Ranks) -> None:
    ranks.cranes[0].close()


def _close_again(ranks: Ranks, way: int) -> None:
    _close(ranks)
    assert not ranks.copiers[0].held, "it writes still"
    device: Any = ranks.cranes[0].device
    assert not device.planes, "memory is not freed"
    if way:
        ranks.cache.commit(ranks.cranes[0].reconcile(ranks.cache.unreported(0)))
    ranks.cache.commit(ranks.cranes[0].poll())
    ranks.cache.reset(0)


def _has_ended(ranks: Ranks) -> None:
    for crane in ranks.cranes[1:]:
        crane.close()
        ranks.cache.commit(crane.poll())
        ranks.cache.reset(crane.rank)
    for lease, _ in ranks.loading:
        ranks.cache.finish(lease)
    assert [crane.in_flight for crane in ranks.cranes] == [0] * len(ranks.cranes)
    assert ranks.cache.dispatched() == []
    assert ranks.cache.holders() == []
    assert ranks.cache.audit() is None


CUTS = {
    "submit": Cut(_ordered, _submit, _submit_again),
    "poll": Cut(nothing, lambda ranks: ranks.cranes[0].poll(), nothing),
    "poll, with a copy cut off": Cut(_cut_off, lambda ranks: ranks.cranes[0].poll(), _submit_late),
    "submit, with a copy cut off": Cut(_cut_off, _submit, _submit_late),
    "reconcile": Cut(_lost, _ask, _submit_again),
    "commit": Cut(_reported, _commit, _commit_again),
    "dispatch": Cut(nothing, lambda ranks: ranks.cache.dispatch(), nothing),
    "crane.reset": Cut(nothing, _reset_rank, _reset_rank_again),
    "reset": Cut(_ended, _reset_yard, lambda ranks, _: _reset_yard(ranks)),
    "reset, memory lost": Cut(_forget, _lose, _lose_again),
    "abort": Cut(
        _ended,
        lambda ranks: ranks.cache.abort(ranks.cache.dispatched()),
        lambda ranks, _: ranks.cache.abort(ranks.cache.dispatched()),
    ),
    "close": Cut(nothing, _close, _close_again, _has_ended),
    "hello": Cut(_new_yard, _hello, _hello_again),
    "the first plans of a yard": Cut(_first_plans, _submit, _submit_again),
}


def _close_cache(local: Ranks, _way: int = 0) -> None:
    assert isinstance(local, Local)
    local.cache.close()
    assert not local.copiers[0].held


def _clear(local: Ranks) -> None:
    local.cache.clear()


def _clear_again(local: Ranks, _way: int) -> None:
    local.cache.clear()
    local.salt += 1


LOCAL_CUTS = {
    "step": Cut(nothing, lambda local: local.cache.step(), nothing),
    "step, with a copy cut off": Cut(_cut_off, lambda local: local.cache.step(), nothing),
    "reset": Cut(nothing, lambda local: local.cache.reset(), lambda local, _: local.cache.reset()),
    "reset, memory lost": Cut(_forget, _lose, _lose_again),
    "clear": Cut(_forget, _clear, _clear_again),
    "close": Cut(nothing, _close_cache, _close_cache, _has_ended),
}


def interrupt(cut: Cut, made: Callable[[], Any], *, more: bool = False) -> int:
    """Interrupts a verb at each of its lines, and behind each call, each time in a new world.

    Args:
        cut: The verb.
        made: Makes a world.
        more: Whether it does so by timeouts too, and where a line comes often not the first time
            alone, but the second and the last too.

    Returns:
        How often.
    """
    times = 0
    for ways in ({}, {"calls": True}, {"timeout": True})[: 3 if more else 2]:
        whole = Interrupter(**ways)
        _run(cut, made(), whole, sys.maxsize)
        at: dict[str, list[int]] = {}
        for number, where in enumerate(whole.passed):
            at.setdefault(where, []).append(number)
        assert at, "it has no line"
        some = (them[:2] + them[-1:] if more else them[:1] for them in at.values())
        for number in sorted({number for them in some for number in them}):
            world, interrupter = made(), Interrupter(**ways)
            _run(cut, world, interrupter, number)
            times += interrupter.times
            try:
                assert interrupter.times, "it has no such line"
                world.hasten()
                cut.after(world, number % 2)
                cut.then(world)
            except BaseException as error:
                error.add_note(f"{ways} interrupted at {number}, {interrupter.where}")
                raise
    return times


def _run(cut: Cut, world: Any, interrupter: Interrupter, number: int) -> None:
    cut.before(world)
    # What the collector ends is of another world, and would be interrupted in its place. Lines of
    # the log come by the time of day.
    gc.disable()
    logging.disable()
    try:
        interrupter.during(number, lambda: cut.verb(world))
    except (KeyboardInterrupt, TimeoutError):
        assert interrupter.times
    finally:
        logging.disable(logging.NOTSET)
        gc.enable()
