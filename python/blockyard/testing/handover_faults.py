"""Scenarios of hand-overs from a prefill to a decode engine, and what may come between."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeAlias

from blockyard.testing.setup import HANDOVER_WORDS, ONCE_READ, Event, Setup

__all__ = ["with_handovers"]

_Pick: TypeAlias = Callable[[list[Any]], Any]

_VERBS: Final = frozenset(
    {"add", "abort", "hint", "ack", "copy", "outcome", "release", "stall", "pause_decoding"}
    | {"resume_decoding", "reconcile", "rank", "engine", "weights", "forget"}
)
"""What else may happen beside hand-overs."""
_IN_A_READ: Final = frozenset(
    word for word in HANDOVER_WORDS if word.startswith(("prefill", "decode", "rest", "cut"))
)
"""What mostly happens in a read."""
_MOST: Final = 7
"""Requests of a scenario: more of them, and longer ones, are other tests'."""


def with_handovers(seed: int, setup: Setup, events: list[Event]) -> tuple[Setup, list[Event]]:
    """Returns a scenario of two engines, with many, some or no faults of each kind.

    Args:
        seed: The seed. All that is drawn here comes from a source of its own.
        setup: A setup of one engine.
        events: What happens.
    """
    chance = random.Random(f"hand-overs {seed}")  # noqa: S311 - not for cryptography
    pick: _Pick = chance.choice
    setup = replace(
        setup,
        second="decode",
        remote=pick([8, 60, 400]),
        device=setup.device + pick([0, 12, 24]),
        host=pick([0, 0, 12]),
        disk=0,
        disk_lasts=False,
        disk_polls=0,
        store_values=pick([0, 0, 0, 60]),
        store_late=pick([0, 2]),
        store_lies=pick([0, 20]),
        lease=pick([5, 8, 14]),
        unread_ticks=pick([4, 10, 30]),
        patience=pick([9, 20, 40]),
        max_num_batched_tokens=pick([3, 16, 64]),
        block_costs=None,
        replicas=1,
        watched=False,
        cranes="here",
        deadline=None,
        recompute=True,
        unread=False,
    )
    events = _fewer(chance, events)
    last = max((event.tick for event in events), default=1)
    names = [str(event.what[0]) for event in events if event.verb == "add"]
    events += [
        Event(
            chance.randint(1, last + 20), "abort", (pick(names), pick(["", "waiting", "loading"]))
        )
        for _ in range(pick([0, 0, 1, 3]) if names else 0)
    ]
    return setup, events + _faults(chance, last)


def _fewer(chance: random.Random, events: list[Event]) -> list[Event]:
    """Returns the first requests, closer together, and what is known here of the rest."""
    adds = [_shorter(chance, event) for event in events if event.verb == "add"][:_MOST]
    last = max((event.tick for event in adds), default=1)
    others = [event for event in events if event.verb in _VERBS - {"add"} and event.tick <= last]
    some = chance.choice([0, 0, 4, len(others)])
    return adds + chance.sample(others, min(some, len(others)))


def _shorter(chance: random.Random, event: Event) -> Event:
    """Returns a request that samples less, and has as much longer a prompt."""
    name, family, shared, own, most, *rest = event.what[:8]
    fewer = min(int(most), chance.randint(1, 6))
    return event._replace(what=(name, family, int(shared) + int(most) - fewer, own, fewer, *rest))


def _faults(chance: random.Random, last: int) -> list[Event]:
    """Makes the faults of hand-overs: of each kind many, some or none.

    Args:
        chance: What decides.
        last: The tick of the last request.
    """
    made: list[Event] = []

    def some(most: int, words: list[str], least: int, longest: int) -> None:
        for _ in range(chance.choice([0, 0, 1, most])):
            word, number = chance.choice(words), chance.randint(least, longest)
            if word in _IN_A_READ and chance.random() < 0.8:  # noqa: PLR2004
                number += ONCE_READ
            what = word, number
            made.append(Event(chance.randint(1, last + 12), "handover", what))

    fates = ["late", "lost", "twice"]
    some(8, [f"message {fate}" for fate in fates], 1, 9)
    some(
        3, [f"offer {fate}" for fate in (*fates, "foreign", "malformed", "another", "shared")], 1, 9
    )
    some(2, [f"done {fate}" for fate in fates], 1, 9)
    some(8, ["slow"], 1, 8)
    some(3, ["spoilt", "cut", "rest"], 2, 9)
    some(2, ["busy"], 4, 20)
    some(4, ["reader"], 0, 400)
    some(3, [f"prefill {what}" for what in ("clear", "reset", "forget", "abort", "room")], 0, 9)
    some(3, ["prefill kill", "prefill stop"], 1, 14)
    ends = ("kill", "stop", "clear", "reset", "fail")
    some(2, [f"decode {what}" for what in ends], 1, 14)
    some(2, ["clock"], 1, 12)
    if chance.random() < 0.25:  # noqa: PLR2004 - nothing is handed over after it
        side = chance.choice(["prefill", "decode"])
        made.append(Event(chance.randint(last // 2, last), "handover", (f"{side} weights", 0)))
    return made
