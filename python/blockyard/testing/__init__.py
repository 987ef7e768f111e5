"""For tests: a copier that misbehaves by a script, and a simulator of faults.

Both behave the same every time.

Example:
    >>> from blockyard.crane.copiers.threads import ThreadCopier
    >>> from blockyard.testing import Script, ScriptedCopier, delay, fail
    >>> copier = ScriptedCopier(ThreadCopier(workers=0), [delay(2), fail(1)])
    >>> print(Script.seeded(7, copies=4))
    (deliver(), deliver(), deliver(), corrupt(12337))

    >>> from blockyard.testing import Event, Scenario, Setup, simulate
    >>> ran = simulate(Scenario(Setup(device=8), (
    ...     Event(0, "add", ("a", 0, 8, 2, 6, 0)),
    ...     Event(1, "add", ("b", 0, 8, 5, 6, 0)),
    ...     Event(5, "engine", ("recompute",)),
    ... )))
    >>> ran.seen["engine reset"], sorted(ran.results)
    (1, ['a', 'b'])
"""

from blockyard.testing.copier import (
    Action,
    Script,
    ScriptedCopier,
    corrupt,
    delay,
    deliver,
    die,
    fail,
    hang,
)
from blockyard.testing.engine import Broken, SimulatedEngine
from blockyard.testing.fault_coverage import ROWS
from blockyard.testing.play import Ran, minimised, simulate
from blockyard.testing.scenario import Scenario
from blockyard.testing.setup import Event, Setup

__all__ = [
    "ROWS",
    "Action",
    "Broken",
    "Event",
    "Ran",
    "Scenario",
    "Script",
    "ScriptedCopier",
    "Setup",
    "SimulatedEngine",
    "corrupt",
    "delay",
    "deliver",
    "die",
    "fail",
    "hang",
    "minimised",
    "simulate",
]
