"""Plays a scenario: of an engine over a yard, or of one that gives out its blocks itself."""

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from blockyard.scheduling.request import Result
from blockyard.testing.engine import Broken
from blockyard.testing.own_blocks import OwnBlocks
from blockyard.testing.scenario import Scenario
from blockyard.testing.simulated_processes import Processes
from blockyard.testing.simulator import Simulation

__all__ = ["Ran", "simulate"]


@dataclass(slots=True)
class Ran:
    """A simulation that went well."""

    ticks: int
    seen: Counter[str]
    """How often each thing happened: faults that took effect, states at an abort, counters."""
    results: dict[str, Result] = field(default_factory=dict)


def simulate(scenario: Scenario) -> Ran:
    """Plays a scenario to its end, and checks every law on the way.

    Raises:
        Broken: A law was broken; the message names the tick.
    """
    own = scenario.setup.blocks == "engine"
    with tempfile.TemporaryDirectory() as folder:
        made = OwnBlocks if own else Processes if scenario.setup.processes else Simulation
        simulation: OwnBlocks | Simulation = made(scenario, Path(folder))
        try:
            simulation.run()
            return Ran(simulation.now, simulation.seen, simulation.requests.results)
        except Broken as broken:
            raise Broken(f"tick {simulation.now}: {broken}") from None
        except Exception as error:
            # The simulation makes no wrong call, so every error is that of what it drives.
            raise Broken(f"tick {simulation.now}: {type(error).__name__}: {error}") from error
        finally:
            simulation.close()
