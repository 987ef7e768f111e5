"""What decides a simulation: a setup, and a list of events. Both print as Python."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

from blockyard._core import Misuse
from blockyard._typing import override
from blockyard.scheduling.new_request import max_blocks, sample_ids
from blockyard.testing.disk_faults import has_disk, parking_on_disk, with_disk, with_restarts
from blockyard.testing.dying import with_losses, with_processes
from blockyard.testing.eviction_seeds import with_orders
from blockyard.testing.handover_faults import with_handovers
from blockyard.testing.setup import HEADROOMS, OWN_VERBS, VERBS, VICTIMS, WORDS, Event, Setup
from blockyard.testing.store_faults import with_stores

__all__ = ["Scenario"]


@dataclass(frozen=True, slots=True, repr=False)
class Scenario:
    """All that decides a simulation. Dropping an event leaves the others as they were."""

    setup: Setup
    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        """Refuses malformed events."""
        for event in self.events:
            if len(event.what) not in VERBS.get(event.verb, ()):
                raise Misuse(f"{event} is not an event: see `Event` for verbs and fields")
            at, words = WORDS.get(event.verb, (0, frozenset()))
            if words and event.what[at] not in words:
                raise Misuse(f"{event}: {event.what[at]!r} must be one of {sorted(words)}")

    @override
    def __repr__(self) -> str:
        lines = "".join(
            f"    Event({event.tick}, {event.verb!r}, {event.what!r}),\n" for event in self.events
        )
        return f"Scenario({self.setup!r}, (\n{lines}))"

    def with_events(self, events: Iterable[Event]) -> Self:
        """Returns the same setup with other events."""
        return type(self)(self.setup, tuple(events))

    def largest(self, tier: str) -> int:
        """Returns the most slots that the events give a tier, 0 where they never resize it."""
        sizes = [event.what[1] for event in self.events if event.what[:1] == (tier,)]
        return max((size for size in sizes if isinstance(size, int)), default=0)

    @classmethod
    def seeded(cls, seed: int) -> Self:
        """Returns a setup, some requests and some kinds of faults, the same for the same seed."""
        chance = random.Random(seed)  # noqa: S311 - not for cryptography
        setup = replace(_setup(chance), tick_ms=10 ** (seed % 3))
        ticks = chance.randint(20, 120)
        events = _requests(chance, setup, ticks)
        names = [str(event.what[0]) for event in events]
        if seed % 4 == 1:
            # From a source of its own: the other events stay as they are.
            events, names = _sampled(random.Random(f"samples {seed}"), events)  # noqa: S311
            events += _holds(random.Random(f"holds {seed}"), ticks, names)  # noqa: S311
        if seed % 4 == 2:  # noqa: PLR2004
            setup = replace(setup, unread=True, max_held_steps=seed // 4 % 3 * 8)
            events += _unread(random.Random(f"unread {seed}"), events)  # noqa: S311
        events += _faults(chance, setup, ticks, names)
        events += _resizes(chance, setup, ticks, events)
        events += _promises(chance, setup, ticks, events)
        if seed % 8 == 3:  # noqa: PLR2004
            events += _held(random.Random(f"held {seed}"), ticks, names)  # noqa: S311
        if has_disk(seed):
            setup, events = with_disk(seed, setup, ticks, events)
        setup, events = with_orders(seed, setup, events)
        setup = replace(setup, spare=_spare(seed))
        return cls(setup, tuple(sorted(events, key=lambda event: event.tick)))

    @classmethod
    def restarting(cls, seed: int) -> Self:
        """Returns the same with a disk that outlives the process, which is restarted."""
        scenario = cls.seeded(seed)
        setup, events = scenario.setup, list(scenario.events)
        if not has_disk(seed):
            ticks = max((event.tick for event in events), default=0) + 1
            setup, events = with_disk(seed, setup, ticks, events)
        setup, events = with_restarts(seed, setup, events)
        events = [_keeps_disk(event) for event in events]
        return cls(setup, tuple(sorted(events, key=lambda event: event.tick)))

    @classmethod
    def sharing(cls, seed: int) -> Self:
        """Returns the same with a shared store, and mostly a second engine that shares it.

        Every other seed is of an engine that gives out its block ids itself.
        """
        scenario = cls.own_blocks(seed) if seed % 2 else cls.seeded(seed)
        setup, events = with_stores(seed, scenario.setup, list(scenario.events))
        return cls(setup, tuple(sorted(events, key=lambda event: event.tick)))

    @classmethod
    def handing_over(cls, seed: int) -> Self:
        """Returns a prefill and a decode engine, of which either may be killed and stopped."""
        scenario = cls.seeded(seed)
        setup, events = with_handovers(seed, scenario.setup, list(scenario.events))
        return cls(setup, tuple(sorted(events, key=lambda event: event.tick)))

    @classmethod
    def processes(cls, seed: int) -> Self:
        """Returns the same with a scheduler and ranks that are killed, stopped and slow."""
        scenario = cls.seeded(seed)
        setup, events = with_processes(seed, scenario.setup, scenario.events)
        return cls(setup, tuple(sorted(events, key=lambda event: event.tick)))

    @classmethod
    def losing(cls, seed: int, percent: int = 5) -> Self:
        """Returns the same with no fault but lost outcomes, and nobody who asks for them."""
        scenario = cls.seeded(seed)
        setup, events = with_losses(seed, scenario.setup, scenario.events, percent)
        return cls(setup, tuple(sorted(events, key=lambda event: event.tick)))

    @classmethod
    def own_blocks(cls, seed: int) -> Self:
        """Returns the same of an engine that gives out its block ids itself (E1 to E7)."""
        scenario = cls.seeded(seed)
        setup, chance = scenario.setup, random.Random(f"own blocks {seed}")  # noqa: S311
        # Its ids are looked at as they are, and a third of the seeds fail at nothing.
        faults = chance.random() < 0.7  # noqa: PLR2004
        verbs = OWN_VERBS if faults else {"add", "abort", "hint", "stall"}
        setup = replace(
            setup,
            blocks="engine",
            spare=None,
            device=max(setup.device, scenario.largest("device")),
            deadline=chance.choice([setup.deadline, 10]) if faults else None,
            preempt_mode="park",
            recompute=True,
        )
        events = [event._replace(what=event.what[:8]) for event in scenario.events]
        names = [event.what[0] for event in events if event.verb == "add"]
        some = chance.sample(names, min(len(names), chance.choice([0, 0, 3])))
        events += [Event(chance.randint(1, 40), "abort", (name, "loading")) for name in some]
        # Few copies come up: what may happen to them happens early.
        ways = chance.choice([[], ["up", "from disk"]])
        events += [Event(chance.randint(1, 20), "copy", (0, way, "hang", 0)) for way in ways]
        events.sort(key=lambda event: event.tick)
        return cls(setup, tuple(event for event in events if event.verb in verbs))

    @classmethod
    def alike(cls, seed: int) -> Self:
        """Returns requests that sample alike, on an engine that cannot recompute, without room.

        There are no faults. The device holds little more than the largest request, and the host
        what all others may need, or less: some must be parked, and none may be lost (INV-11).
        """
        chance = random.Random(seed)  # noqa: S311 - not for cryptography
        setup, events = _alike(chance)
        setup = replace(setup, tick_ms=10 ** (seed % 3))
        if has_disk(seed):
            setup = parking_on_disk(seed, setup)
        setup, events = with_orders(seed, setup, events)
        setup = replace(setup, spare=_spare(seed))
        return cls(setup, tuple(sorted(events, key=lambda event: event.tick)))


def _spare(seed: int) -> int | None:
    """Returns slots to keep free, from a source of their own: all else stays as it is."""
    return random.Random(f"spare {seed}").choice([None, None, 1, 4, 8])  # noqa: S311


def _alike(chance: random.Random) -> tuple[Setup, list[Event]]:
    pick: Callable[[list[Any]], Any] = chance.choice
    size, many = pick([1, 1, 2, 3, 4]), pick([2, 2, 2, 3, 4, 6])
    shared = chance.randint(1, 2 * size)
    longest = chance.randint(10, 16) * size
    # All have one prompt and length; or some end early, or differ after the prompt.
    most = [pick([longest, longest, longest - size, longest // 2]) for _ in range(many)]
    own = [pick([0, 0, 1, size]) for _ in range(many)]
    if chance.random() < 0.5:  # noqa: PLR2004
        most, own = [longest] * many, [0] * many
    most[:2], own[:2] = [longest] * 2, [own[0]] * 2
    needs = [max_blocks(shared + own[at], most[at], size) for at in range(many)]
    largest, others = max(needs), sum(needs) - max(needs)
    setup = Setup(
        device=1 + largest + chance.randint(0, 3),
        host=pick([others, others, others + 2, chance.randint(largest, max(largest, others))]),
        block_size=size,
        eviction=pick(["recency", "heap"]),
        write=pick(["on-evict", "through"]),
        ahead=pick([None, 0, 2]),
        max_num_seqs=chance.randint(2, 6),
        max_num_batched_tokens=pick([16, 64]),
        headroom=pick(["none", "none", "adaptive"]),
        victims=pick(list(VICTIMS)),
        recompute=False,
        preempt_cooldown=pick([0, 2, 8]),
        max_overtakes=pick([0, 4]),
        stops=pick(["acked", "in-order"]),
        steps_in_flight=pick([0, 1, 2]),
        drafts=pick([0, 0, 1, 3]),
        eager=pick([False, True]),
        ends=False,
        cranes=pick(["here", "elsewhere"]),
    )
    # A third request may have published the prompt before, and a ticket may be open meanwhile.
    first = pick([1, 1, 12])
    events = [Event(1, "add", ("early", 0, shared, own[0], 1, 0))] if first > 1 else []
    for at in range(many):
        tick = first + (chance.randint(0, 12) if at > 1 else 0)
        events.append(
            Event(tick, "add", (f"r{at}", 0, shared, own[at], most[at], pick([0, 0, 0, 1])))
        )
    if chance.random() < 0.25:  # noqa: PLR2004
        name, tick = pick(["peer's", f"r{many - 1}"]), chance.randint(1, 20)
        what = (name, chance.randint(1, 3), chance.randint(1, 30), "p")
        events.append(Event(tick, "promise", what))
    return setup, events


def _setup(chance: random.Random) -> Setup:
    pick: Callable[[list[Any]], Any] = chance.choice
    ranks = pick([1, 1, 2])
    stops = pick(["acked", "acked", "in-order"])
    recompute = pick([True, True, True, True, True, False])
    return Setup(
        device=chance.randint(10, 28),
        host=pick([0, 8, 24, 60]),
        block_size=pick([1, 2, 4, 4]),
        ranks=ranks,
        shape=pick(["page-first", "layer-first", "replicated"]),
        eviction=pick(["recency", "heap"]),
        write=pick(["on-evict", "through", "second-touch"]),
        ahead=pick([None, 0, 2, 6]),
        # With copies that are always late, a request that must be parked would never be.
        deadline=pick([None, 3, 8]) if recompute else None,
        block_costs=pick([None, None, (2, 1, 1)]),
        max_num_seqs=chance.randint(1, 6),
        max_num_batched_tokens=pick([1, 3, 8, 16, 64]),
        headroom=pick(list(HEADROOMS)),
        victims=pick(list(VICTIMS)),
        preempt_mode=pick(["park", "park", "full-blocks", "recompute"]) if recompute else "park",
        recompute=recompute,
        max_stalled_steps=pick([4, 20, 60]),
        preempt_cooldown=pick([0, 2, 8]),
        max_overtakes=pick([0, 2, 16]),
        stops=stops,
        steps_in_flight=pick([0, 1, 2]),
        drafts=pick([0, 0, 0, 1, 3]),
        channel=pick(["before", "behind", "inside"]),
        eager=pick([False, True]),
        ends=pick([False, True]),
        reconcile_every=pick([0, 5, 20]),
        replicas=pick([1, 1, 2]),
        cranes=pick(["here", "elsewhere"]),
    )


def _requests(chance: random.Random, setup: Setup, ticks: int) -> list[Event]:
    """Makes prompts that share beginnings, of lengths that the device can hold."""
    room = (setup.device - 1) * setup.block_size
    events = []
    tenants = chance.choice([[("", "")], [("", ""), ("", ""), ("salt", ""), ("", "lora")]])
    for number in range(chance.randint(3, 24)):
        most = chance.randint(1, max(1, min(20, room // 2)))
        length = chance.randint(1, max(1, min(30, room - most)))
        shared = min(length, chance.choice([0, 2, 8, 16, 30, 30]))
        family, priority = chance.randrange(3), chance.choice([0, 0, 0, 1, 2])
        tenant = chance.choice(tenants)
        what = (f"r{number}", family, shared, length - shared, most, priority, *tenant)
        events.append(Event(chance.randrange(ticks), "add", what))
    return events


def _sampled(chance: random.Random, events: list[Event]) -> tuple[list[Event], list[str]]:
    """Gives some requests several samples; returns the names of all samples, too."""
    made, names = [], []
    for event in events:
        n = chance.choice([1, 1, 2, 3])
        made.append(event if n == 1 else event._replace(what=(*event.what, n)))
        name = event.what[0]
        names += [str(sample) for sample in sample_ids(name, n)]
    return made, names


def _holds(chance: random.Random, ticks: int, names: list[str]) -> list[Event]:
    """Holds some requests for a while; one that is never let go is let go when the faults end."""
    made = []
    for _ in range(chance.choice([0, 4, 12])):
        name, at = chance.choice(names), chance.randrange(ticks)
        made.append(Event(at, "pause_decoding", (name,)))
        if chance.random() < 0.7:  # noqa: PLR2004
            made.append(Event(at + chance.randint(1, 30), "resume_decoding", (name,)))
    return made


def _held(chance: random.Random, ticks: int, names: list[str]) -> list[Event]:
    """Holds what the device has of some prompts, as another engine reads it."""
    return [
        Event(chance.randrange(ticks), "hold", (chance.choice(names), chance.randint(1, 30)))
        for _ in range(chance.choice([2, 6, 20]))
    ]


def _unread(chance: random.Random, events: list[Event]) -> list[Event]:
    """Holds all requests but a few, soon after they came and most of them for good."""
    made = []
    for event in chance.sample(events, chance.randint(1, len(events) - 1)):
        name, at = event.what[0], event.tick + chance.choice([1, 3, 6, 12, 30])
        made.append(Event(at, "pause_decoding", (name,)))
        if chance.random() < 0.2:  # noqa: PLR2004
            made.append(Event(at + chance.randint(1, 30), "resume_decoding", (name,)))
    return made


def _faults(chance: random.Random, setup: Setup, ticks: int, names: list[str]) -> list[Event]:
    """Makes faults: of each kind many, some or none, since a few kinds find more than all."""

    def many(most: int) -> range:
        return range(chance.choice([0, 0, 1, most // 2, most]))

    def when() -> int:
        return chance.randrange(ticks)

    def rank() -> int:
        return chance.randrange(setup.ranks)

    def late() -> int:
        return chance.randint(1, 12)

    pick: Callable[[list[Any]], Any] = chance.choice
    fates = ["late", "late", "twice", "lost", "unheard", "foreign"]
    actions = ["delay", "delay", "fail", "corrupt", "hang", "die"]
    states = ["", "", "loading", "prefill", "decode", "stopping", "recompute", "parked"]
    events = [Event(when(), "abort", (pick(names), str(pick(states)))) for _ in many(8)]
    events += [Event(when(), "ack", (pick(fates), late())) for _ in many(16)]
    # Few copies go up or across, so their faults are early and frequent.
    spoilt = ["delay", "fail", "fail", "corrupt", "corrupt", "hang"]
    events += [
        Event(when() // 3, "copy", (rank(), way, pick(spoilt), late()))
        for way in ("up", "across")
        for _ in many(32)
    ]
    events += [Event(when(), "copy", (rank(), "down", pick(actions), late())) for _ in many(16)]
    spoken = ["late", "late", "twice", "lost", "foreign"]
    events += [Event(when(), "outcome", (rank(), pick(spoken), late())) for _ in many(12)]
    events += [Event(when(), "release", (rank(),)) for _ in many(4)]
    events += [Event(when(), "stall", (late(),)) for _ in many(4)]
    events += [Event(when(), "rank", (rank(), pick(["kept", "lost"]))) for _ in many(3)]
    events += [
        Event(when(), "engine", (pick(["recompute", "recompute", "abort"]),)) for _ in many(2)
    ]
    events += [Event(when(), "weights") for _ in many(2)]
    events += [Event(when(), "reconcile", (chance.randrange(4),)) for _ in many(4)]
    events += [
        Event(when(), "fail", (late(), pick(["recompute", "recompute", "abort"]))) for _ in many(2)
    ]
    return events


def _blocks(setup: Setup, request: Event) -> int:
    """Returns the most blocks that a request may need."""
    _, _, shared, own, most = request.what[:5]
    return max_blocks(int(shared) + int(own), int(most), setup.block_size)


def _promises(chance: random.Random, setup: Setup, ticks: int, events: list[Event]) -> list[Event]:
    """Makes tickets for some requests before they come: most in time, some too late."""
    requests = [event for event in events if event.verb == "add"]
    left = _smallest(setup, events) - 1
    made = []
    for request in requests:
        if left <= 0 or chance.random() > 0.5:  # noqa: PLR2004
            continue
        blocks = chance.randint(1, min(left, max(_blocks(setup, request), 1)))
        left -= blocks
        at = max(request.tick - chance.randint(1, 8), 0)
        what = (request.what[0], blocks, chance.randint(1, 30), f"p{chance.randrange(3)}")
        made += [Event(at, "promise", what)] * chance.choice([1, 1, 1, 2])
        if chance.random() < 0.2:  # noqa: PLR2004
            made.append(Event(at + chance.randint(0, 8), "withdraw", what[:1]))
    if made:
        made += [
            Event(chance.randrange(ticks), "peer", (f"p{chance.randrange(3)}",))
            for _ in range(chance.choice([0, 0, 1, 2]))
        ]
    return made


def _smallest(setup: Setup, events: list[Event]) -> int:
    """Returns the fewest slots that the device ever has."""
    sizes = [event.what[1] for event in events if event.what[:1] == ("device",)]
    return min([setup.device, *(size for size in sizes if isinstance(size, int))])


def _resizes(chance: random.Random, setup: Setup, ticks: int, events: list[Event]) -> list[Event]:
    """Makes tiers smaller and larger, but never too small for a request."""
    least = 1 + max(_blocks(setup, event) for event in events if event.verb == "add")
    made = []
    for _ in range(chance.choice([0, 0, 0, 1, 2, 4])):
        tier, slots = "device", chance.randint(min(least + 1, setup.device), setup.device + 4)
        if setup.host and chance.random() < 0.5:  # noqa: PLR2004
            tier, slots = "host", chance.randint(1, setup.host + 8)
        made.append(Event(chance.randrange(ticks), "resize", (tier, slots)))
    return made


def _keeps_disk(event: Event) -> Event:
    """Has every second rank that loses its memory come back with its disk."""
    if event.verb == "rank" and event.what[1] == "lost" and event.tick % 2:
        return event._replace(what=(event.what[0], "disk kept"))
    return event
