"""What a third of the seeds have beside the others: a disk, which is slow and fails."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeAlias

from blockyard.testing.setup import Event, Setup

__all__ = ["has_disk", "parking_on_disk", "with_disk"]

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
