"""What seeds have beside the others where the scheduler and the ranks are processes that die."""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, TypeAlias

from blockyard.testing.setup import Event, Setup

__all__ = ["with_losses", "with_processes"]

_Pick: TypeAlias = Callable[[list[Any]], Any]

_KEPT: Final = frozenset({"add", "abort", "copy", "outcome", "release", "ack", "stall"})
"""The events that stay where few others are wanted."""


def with_processes(seed: int, setup: Setup, events: Iterable[Event]) -> tuple[Setup, list[Event]]:
    """Returns a scenario of two or four ranks and a scheduler, which die and stop one by one.

    Args:
        seed: The seed. All that is drawn here comes from a source of its own.
        setup: A setup.
        events: What happens there.
    """
    chance = random.Random(f"processes {seed}")  # noqa: S311 - not for cryptography
    pick: _Pick = chance.choice
    ranks = 2 + 2 * (seed % 2)
    setup = _with_tiers(chance, replace(setup, ranks=ranks, processes=True, cranes="here"))
    asks = pick([0, 3, 8])
    if asks:
        setup = replace(setup, asks=asks, deadline=pick([None, setup.deadline, 12]))
    some = _some(chance, events)
    if not asks:
        # What a lost outcome holds comes back by a question alone, or by a reset.
        some = [event for event in some if event.verb != "outcome" or event.what[1] != "lost"]
    ticks = max((event.tick for event in some), default=0) + 12

    def many(most: int) -> range:
        return range(pick([0, 1, most // 2, most]))

    def when() -> int:
        return chance.randrange(2, ticks)

    def rank() -> int:
        return chance.randrange(ranks)

    some += [
        Event(when(), "kill", (rank(), chance.randint(1, 12), pick(["wait", "wait", "fail"])))
        for _ in many(4)
    ]
    some += [Event(when(), "stop", (rank(), chance.randint(1, 16))) for _ in many(6)]
    some += [Event(when(), "slow", (rank(), pick([0, 1, 2, 5]))) for _ in many(6)]
    some += [
        Event(when(), "scheduler", (chance.randint(1, 10), chance.randint(0, ranks)))
        for _ in many(4)
    ]
    fates = pick([["lost"], ["late", "late", "twice", "lost", "foreign"]])
    fates = fates if asks else ["late", "twice", "foreign"]
    some += [
        Event(when(), "outcome", (rank(), pick(fates), chance.randint(1, 12))) for _ in many(24)
    ]
    asked = [event for event in some if event.verb == "add" and len(event.what) < 9]  # noqa: PLR2004
    for number in range(min(len(asked), pick([4, 12, 24]))):
        # What was computed before is asked for again.
        before = pick(asked)
        tick = before.tick + chance.randint(4, ticks)
        some.append(Event(tick, "add", (f"again{number}", *before.what[1:])))
    return setup, some


def with_losses(
    seed: int, setup: Setup, events: Iterable[Event], percent: int
) -> tuple[Setup, list[Event]]:
    """Returns a scenario of which so many in a hundred outcomes are lost, with a deadline.

    Args:
        seed: The seed. All that is drawn here comes from a source of its own.
        setup: A setup.
        events: What happens there; only requests stay, and their aborts.
        percent: How many.
    """
    chance = random.Random(f"losses {seed}")  # noqa: S311 - not for cryptography
    ranks = 1 + seed % 2
    setup = replace(setup, ranks=ranks, processes=True, cranes="here", lossy=percent)
    setup = _with_tiers(chance, setup)
    return setup, [event for event in events if event.verb in {"add", "abort"}]


def _with_tiers(chance: random.Random, setup: Setup) -> Setup:
    """Gives it something below the device, and deadlines."""
    pick: _Pick = chance.choice
    host = setup.host or pick([0, 12, 24])
    disk = setup.disk or (pick([0, 16, 60]) if host else 24)
    late = 6 + setup.disk_polls
    return replace(
        setup,
        host=host,
        disk=disk,
        write=pick([setup.write, "through", {"device": "through", "host": "through"}]),
        ahead=pick([setup.ahead, None, 4]),
        # One that makes few copies at once would be later than every deadline.
        disk_copies=0,
        deadline=pick([late, 2 * late, {"device": late, "host": late, "disk": 2 * late}]),
    )


def _some(chance: random.Random, events: Iterable[Event]) -> list[Event]:
    """Faults of all kinds, or few beside those of processes."""
    kept = chance.choice([None, _KEPT, frozenset({"add", "abort"})])
    return [event for event in events if kept is None or event.verb in kept]
