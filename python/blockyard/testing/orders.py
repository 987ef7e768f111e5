"""What some seeds have beside the others: every eviction order, and hints; many are lies."""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, get_args

from blockyard.scheduling.new_request import sample_ids
from blockyard.shared.hints import Hints, Retention
from blockyard.testing.setup import Event, Setup
from blockyard.yard.config import Eviction, HostCopies

__all__ = ["hints_said", "with_orders"]

_SOME: Final = frozenset({0, 2, 7})
"""Last digits of seeds: of no seed that a test plays for what it has found."""


def with_orders(seed: int, setup: Setup, events: list[Event]) -> tuple[Setup, list[Event]]:
    """Returns a scenario with one of all orders, and hints of most of its requests.

    Args:
        seed: The seed; three of ten have them. All that is drawn here comes from a source of its
            own.
        setup: A setup.
        events: What happens there.
    """
    if seed % 10 not in _SOME:
        return setup, events
    chance = random.Random(f"orders {seed}")  # noqa: S311 - not for cryptography
    pick: Callable[[list[Any]], Any] = chance.choice
    setup = replace(
        setup,
        eviction=pick([*get_args(Eviction)]),
        host_copies=pick([*get_args(HostCopies), None]),
    )
    made = []
    for event in events:
        if event.verb != "add":
            continue
        n = int(event.what[8]) if len(event.what) > 8 else 1  # noqa: PLR2004 - its samples
        for sample in sample_ids(event.what[0], n):
            for _ in range(pick([0, 1, 1, 2])):
                what = (str(sample), *_hints(chance))
                made.append(Event(event.tick + pick([0, 0, 3, 12]), "hint", what))
    return setup, events + made


def _hints(chance: random.Random) -> tuple[str | int, str | int, str | int, str | int]:
    pick: Callable[[list[Any]], Any] = chance.choice
    return (
        pick(["ordinary", *get_args(Retention)]),
        pick(["", 0, chance.randrange(100), 10**6]),
        pick(["", 0, chance.randrange(101), 100]),
        pick(["", "", 0, chance.randrange(40)]),
    )


def hints_said(fields: Iterable[Any]) -> Hints:
    """Returns the hints of an event, where "" says nothing."""
    return Hints.checked(*(None if field == "" else field for field in fields))
