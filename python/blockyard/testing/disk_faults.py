"""What a third of the seeds have beside the others: a disk, which is slow and fails."""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, TypeAlias

from blockyard.testing.setup import Event, Setup

__all__ = ["has_disk", "parking_on_disk", "with_disk", "with_restarts"]

_Pick: TypeAlias = Callable[[list[Any]], Any]

_WORDS: Final = {
    "to disk": ["delay", "fail", "fail", "corrupt", "corrupt", "hang", "die"],
    # Few copies come from there: most of their faults end them.
    "from disk": ["fail", "fail", "corrupt", "corrupt", "hang"],
}
"""What may happen to a copy."""


def has_disk(seed: int) -> bool:
    """Whether the scenarios of a seed have a disk."""
    return seed % 3 == 1


def with_disk(
    seed: int, setup: Setup, ticks: int, events: list[Event]
) -> tuple[Setup, list[Event]]:
    """Returns a scenario with a disk, faults of it, and a host that is often too small to park on.

    Args:
        seed: The seed. All that is drawn here comes from a source of its own.
        setup: A setup without a disk.
        ticks: In which the requests come.
        events: What happens there.
    """
    chance = random.Random(f"disk {seed}")  # noqa: S311 - not for cryptography
    pick: _Pick = chance.choice
    quarter = max(setup.device // 4, 1)
    host = pick([0, quarter, quarter, setup.host])
    through: list[Any] = [setup.write, {"device": setup.write, "host": "through"}]
    through += [{"device": "through", "host": "on-evict"}, {"host": "second-touch"}]
    polls, copies = pick([0, 2, 5]), pick([0, 1, 2])
    # A disk that is later than its deadline for every copy would be a yard without a disk, as would
    # one on which a request can never be parked.
    late: list[Any] = [None, None]
    if not copies:
        late += [{"disk": polls + 3}, {"disk": polls + 6}]
        late += [{"device": 8, "host": 4, "disk": polls + 4}]
    setup = replace(
        setup,
        host=host,
        disk=pick([8, 24, 60, 120]),
        write=pick(through),
        ahead=pick([setup.ahead, 1, {"host": 2}, {"device": 2, "host": 4}, {"device": 0}]),
        deadline=pick(late) if setup.recompute else None,
        speeds=pick([None, None, (2, 1, 1, 8), (1, 4, 1, 2), (1, 4, 1, 20)]),
        disk_polls=polls,
        disk_copies=copies,
        tick_ms=pick([1, 10, 100]),
    )
    kept = [event for event in events if host or event.what[:1] != ("host",)]
    kept += _requests(chance, setup, ticks, kept)
    return setup, kept + _faults(chance, setup, ticks) + _resizes(chance, setup, ticks)


def parking_on_disk(seed: int, setup: Setup) -> Setup:
    """Returns a setup whose host has become a disk, below a small host or none.

    There is as much room as there was, or more: no request may be lost (INV-11).
    """
    chance = random.Random(f"disk {seed}")  # noqa: S311 - not for cryptography
    pick: _Pick = chance.choice
    return replace(
        setup,
        host=pick([0, max(setup.host // 4, 1), max(setup.host // 4, 1), setup.host // 2]),
        disk=setup.host,
        ahead=pick([setup.ahead, {"host": 2}, {"device": 2, "host": 4}]),
        disk_polls=pick([0, 2, 5]),
        disk_copies=pick([0, 1]),
    )


def with_restarts(seed: int, setup: Setup, events: Iterable[Event]) -> tuple[Setup, list[Event]]:
    """Returns a scenario whose disk outlives the process, which ends once or several times.

    Args:
        seed: The seed. All that is drawn here comes from a source of its own.
        setup: A setup with a disk.
        events: What happens there.
    """
    chance = random.Random(f"restarts {seed}")  # noqa: S311 - not for cryptography
    pick: _Pick = chance.choice
    polls = pick([setup.disk_polls, 8])
    if setup.deadline or setup.disk_copies == 1:
        polls = setup.disk_polls
    # Small blocks, and steps that make many of them, are much to find again.
    size = pick([1, setup.block_size])
    times = setup.block_size // size
    through: list[Any] = ["through", "through", {"device": "through", "host": "through"}]
    setup = replace(
        setup,
        disk_lasts=True,
        cranes="here",
        block_size=size,
        device=setup.device * times,
        # Below a host all that goes down is on its way for longer, and may be lost there.
        host=pick([0, 0, setup.host * times]),
        disk=setup.disk * times,
        write=pick([setup.write, *through]),
        ahead=pick([None, 4, 8]),
        max_num_batched_tokens=max(setup.max_num_batched_tokens, pick([1, 16])),
        # On a fast disk little is under way at an instant.
        disk_polls=polls,
        disk_copies=setup.disk_copies * times,
    )
    # Faults of all kinds leave little to be found: half of the seeds have few of them.
    kept = pick([None, {"add", "abort", "copy", "promise"}])
    some = [event for event in events if kept is None or event.verb in kept]
    part = pick([0.4, 0.7])
    some = [event for event in some if event.verb != "add" or chance.random() < part]
    some = _resized(some, times, {"host": setup.host, "disk": setup.disk})
    ticks = max((event.tick for event in some), default=0) + 1
    for number in range(pick([1, 2, 3])):
        tick, how = chance.randrange(ticks // 3, ticks + 12), pick(["closed", "killed", "killed"])
        some.append(Event(tick, "restart", (how, chance.randrange(1000))))
        some += _again(chance, some, tick, f"again{number}")
    return setup, some


def _resized(events: list[Event], times: int, most: dict[str, int]) -> list[Event]:
    """Returns resizes for more slots; a tier below is not made larger than it was made."""
    made = []
    for event in events:
        if event.verb == "resize":
            tier, slots = str(event.what[0]), int(event.what[1]) * times
            made.append(event._replace(what=(tier, min(slots, most.get(tier, slots)))))
        else:
            made.append(event)
    return made


def _again(chance: random.Random, events: list[Event], tick: int, name: str) -> list[Event]:
    """Makes requests that come after a restart with prompts of before."""
    asked = [event for event in events if event.verb == "add" and event.tick <= tick]
    some = chance.sample(asked, min(len(asked), chance.choice([2, 4, 8])))
    return [
        Event(tick + chance.randint(0, 12), "add", (f"{name} {at}", *event.what[1:8]))
        for at, event in enumerate(some)
    ]


def _requests(chance: random.Random, setup: Setup, ticks: int, events: list[Event]) -> list[Event]:
    """Makes more requests, which come together and are long: some of them must be parked."""
    sizes = [int(event.what[1]) for event in events if event.what[:1] == ("device",)]
    room = (min([setup.device, *sizes]) - 1) * setup.block_size
    made = []
    for number in range(chance.choice([0, 4, 8, 16])):
        most = chance.randint(1, max(1, min(30, room // 2)))
        length = chance.randint(1, max(1, min(30, room - most)))
        shared = min(length, chance.choice([0, 8, 30]))
        family, priority = chance.randrange(3), chance.choice([0, 0, 1, 2])
        what = (f"d{number}", family, shared, length - shared, most, priority, "", "")
        made.append(Event(ticks // 4 + chance.randrange(ticks // 2), "add", what))
    return made


def _faults(chance: random.Random, setup: Setup, ticks: int) -> list[Event]:
    """Makes faults of the disk, and lets what hangs go on again later."""
    pick: _Pick = chance.choice
    made = [
        Event(
            chance.randrange(ticks),
            "copy",
            (chance.randrange(setup.ranks), way, pick(words), chance.randint(1, 12)),
        )
        for way, words in _WORDS.items()
        for _ in range(pick([0, 0, 1, 8, 24]))
    ]
    made += [
        Event(chance.randrange(ticks), "release", (chance.randrange(setup.ranks),))
        for _ in range(pick([0, 2, 6]))
    ]
    return made


def _resizes(chance: random.Random, setup: Setup, ticks: int) -> list[Event]:
    """Makes the tiers below smaller and larger; one may lose all its slots, and have some again."""
    pick: _Pick = chance.choice
    tiers = [tier for tier in ("host", "disk") if getattr(setup, tier)]
    made = []
    for _ in range(pick([0, 0, 0, 1, 3])):
        tier = pick(tiers)
        slots = pick([0, chance.randint(1, getattr(setup, tier) + 8)])
        made.append(Event(chance.randrange(ticks), "resize", (tier, slots)))
    return made
