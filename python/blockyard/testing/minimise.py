"""The few events of a scenario that a failure needs."""

import re

from blockyard.testing.engine import Broken
from blockyard.testing.play import simulate
from blockyard.testing.scenario import Scenario

__all__ = ["minimised"]


def failure(scenario: Scenario) -> str | None:
    """Returns what is broken, or None."""
    try:
        simulate(scenario)
    except Broken as broken:
        return str(broken)
    return None


def kind(said: str | None) -> str | None:
    """Returns the failure without its numbers, and without the names in brackets."""
    return None if said is None else re.sub(r"[0-9]+|[\[{].*[\]}]", "", said.partition(": ")[2])


def minimised(scenario: Scenario, *, tries: int = 2000) -> Scenario:
    """Drops events, many at a time and then one by one, as long as it fails in the same way.

    Args:
        scenario: One that fails.
        tries: Most simulations to run.
    """
    wanted = kind(failure(scenario))
    events = list(scenario.events)
    size = max(len(events) // 2, 1)
    while tries > 0:
        at, before = 0, len(events)
        while at < len(events) and tries > 0:
            fewer = events[:at] + events[at + size :]
            tries -= 1
            if kind(failure(scenario.with_events(fewer))) == wanted:
                events = fewer
            else:
                at += size
        if size == 1 and len(events) == before:
            break
        size = max(size // 2, 1)
    return scenario.with_events(events)
