"""Scenarios with a shared store, and a second engine that shares it."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from blockyard.scheduling.new_request import sample_ids
from blockyard.testing.setup import Event, Setup

__all__ = ["with_stores"]

_Pick: TypeAlias = Callable[[list[Any]], Any]

_VERBS = frozenset(
    {"add", "abort", "hint", "ack", "copy", "outcome", "release", "stall", "pause_decoding"}
    | {"resume_decoding", "reconcile", "rank", "engine", "fail"}
)
"""What may happen beside stores."""


def with_stores(seed: int, setup: Setup, events: list[Event]) -> tuple[Setup, list[Event]]:
    """Returns a scenario with a store that loses, lies, is late, full and down, or does none of it.

    Args:
        seed: The seed. All that is drawn here comes from a source of its own.
        setup: A setup without a store.
        events: What happens.
    """
    chance = random.Random(f"stores {seed}")  # noqa: S311 - not for cryptography
    pick: _Pick = chance.choice
    setup = replace(
        setup,
        remote=pick([4, 40, 400]),
        write=pick(["through", "through", "on-evict", "second-touch"]),
        second=pick(["", "alike", "alike", "alike", "weights", "ranks", "shape"]),
        store_values=pick([8, 60, 1000]),
        store_late=pick([0, 2, 6, 30]),
        store_lies=pick([0, 0, 20, 40]),
        store_loses=pick([0, 0, 20]),
        store_fails=pick([0, 0, 10]),
        block_costs=None,
        disk_lasts=False,
        replicas=1,
        watched=False,
        cranes="here",
        deadline=None,
    )
    events = [event for event in events if event.verb in _VERBS]
    names = [str(event.what[0]) for event in events if event.verb == "add"]
    last = max((event.tick for event in events), default=1)
    for _ in range(pick([0, 0, 2])):
        what = (pick(names), pick(["names", "values"])) if names else ("", "names")
        events.append(Event(chance.randint(1, last), "forget", what))
    if setup.blocks == "yard" and names:
        events += _moves(chance, last, events)
    return setup, events


def _moves(chance: random.Random, last: int, events: list[Event]) -> list[Event]:
    """Has some requests leave their engine, and now and then all of them."""
    pick: _Pick = chance.choice
    added: list[tuple[int, str]] = []
    for event in events:
        if event.verb == "add":
            samples = int(event.what[8]) if len(event.what) > 8 else 1  # noqa: PLR2004
            added += [(event.tick, str(one)) for one in sample_ids(event.what[0], samples)]
    # Most of them run by then.
    some = [(tick + chance.randint(1, 30), name) for tick, name in added]
    moved = chance.sample(some, min(len(some), pick([1, 6, 12, 30])))
    aborts = [(name, "moving") for _, name in moved if chance.random() < 0.3]  # noqa: PLR2004
    moved += [(chance.randint(1, last), "") for _ in range(pick([0, 0, 0, 1]))]
    made = [Event(tick, "evacuate", (name, pick([0, 12, 60, 400]))) for tick, name in moved]
    return [*made, *(Event(1, "abort", what) for what in aborts)]
