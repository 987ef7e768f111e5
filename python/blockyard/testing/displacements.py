"""Who was preempted for whom: a law of its own, watched from outside."""

import re
from collections import Counter
from typing import Final

from blockyard.scheduling.engine import Step, Stop
from blockyard.scheduling.request import RequestState
from blockyard.scheduling.scheduler import Scheduler
from blockyard.testing.engine import check
from blockyard.testing.requests import Requests
from blockyard.testing.setup import Setup

__all__ = ["Displacements"]

_FOR: Final = re.compile(r"It gives way to request (.*), which has a higher priority\.")


class Displacements:
    """Watches that requests give way as they must, and that this comes to an end (INV-41).

    Args:
        setup: How long a request rests.
        seen: Where displacements are counted.
    """

    def __init__(self, setup: Setup, seen: Counter[str]) -> None:
        self._rest = setup.preempt_cooldown
        self._seen = seen
        self._starts: Counter[str] = Counter()
        self._ran: Counter[str] = Counter()
        self._seats: dict[int, str] = {}
        self._pairs: set[tuple[str, int, str]] = set()
        self._displaced: set[str] = set()
        self._stops: set[Stop] = set()

    def scheduled(self, step: Step, scheduler: Scheduler, requests: Requests) -> None:
        """Looks at the stops of a step."""
        for stop in step.stops:
            if stop in self._stops or scheduler.state(stop.request) is not RequestState.STOPPING:
                continue
            self._stops.add(stop)
            for higher in _FOR.findall(str(scheduler.explain(stop.request))):
                self._given_way(str(stop.request), higher.strip("'\""), requests)
        for start in step.starts:
            name = str(start.request)
            self._seats[start.seat] = name
            self._starts[name] += 1
            self._ran[name] = 0
        self._ran.update(self._seats[seat] for seat in step.seats.tolist())

    def _given_way(self, name: str, higher: str, requests: Requests) -> None:
        self._seen["displaced"] += 1
        its, others = requests[name].ask.priority, requests[higher].ask.priority
        check(its < others, f"INV-41: {name} of priority {its} gave way to {higher} of {others}")
        ran = self._ran[name]
        rested = name not in self._displaced or ran >= self._rest
        check(rested, f"INV-41: {name} was displaced again after {ran} steps")
        self._displaced.add(name)
        pair = higher, self._starts[higher], name
        check(pair not in self._pairs, f"INV-41: {name} gave way to {higher} twice in one wait")
        self._pairs.add(pair)
