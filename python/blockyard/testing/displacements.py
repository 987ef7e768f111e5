"""Who was preempted for whom: a law of its own, watched from outside."""

import re
from collections import Counter
from typing import Final

from blockyard.scheduling.engine import Step, Stop
from blockyard.scheduling.request import RequestState
from blockyard.scheduling.scheduler import Scheduler
from blockyard.testing.requests import Requests
from blockyard.testing.setup import Setup
from blockyard.testing.simulated_engine import check

__all__ = ["Displacements"]

_WAITS: Final = {RequestState.WAITING, RequestState.RECOMPUTE, RequestState.PARKED}
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
        self._ran: Counter[str] = Counter()
        self._seats: dict[int, str] = {}
        self._given: dict[str, set[str]] = {}
        """Who gave way to a request since it waits."""
        self._displaced: set[str] = set()
        self._stops: set[Stop] = set()

    def scheduled(self, step: Step, scheduler: Scheduler, requests: Requests) -> None:
        """Looks at the stops of a step, and whose wait has ended in it."""
        for stop in step.stops:
            if stop in self._stops or scheduler.state(stop.request) is not RequestState.STOPPING:
                continue
            self._stops.add(stop)
            for higher in _FOR.findall(str(scheduler.explain(stop.request))):
                self._given_way(str(stop.request), higher.strip("'\""), requests)
        for start in step.starts:
            name = str(start.request)
            self._seats[start.seat] = name
            self._ran[name] = 0
        self._ran.update(self._seats[seat] for seat in step.seats.tolist())
        for name in [*self._given]:
            if scheduler.state(requests.ids[name]) not in _WAITS:
                del self._given[name]

    def _given_way(self, name: str, higher: str, requests: Requests) -> None:
        self._seen["displaced"] += 1
        its, others = requests[name].ask.priority, requests[higher].ask.priority
        check(its < others, f"INV-41: {name} of priority {its} gave way to {higher} of {others}")
        ran = self._ran[name]
        # A row that is held computes nothing, and may leave at any time.
        rests = name in self._displaced and name not in requests.held
        check(ran >= self._rest or not rests, f"INV-41: {name} was displaced after {ran} steps")
        self._displaced.add(name)
        given = self._given.setdefault(higher, set())
        check(name not in given, f"INV-41: {name} gave way to {higher} twice in one wait")
        given.add(name)
