"""Plays a scenario: of an engine over a yard, or of one that gives out its blocks itself."""

import re
import tempfile
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from blockyard.scheduling.request import Result
from blockyard.testing.own_blocks import OwnBlocks
from blockyard.testing.scenario import Scenario
from blockyard.testing.simulated_engine import Broken
from blockyard.testing.simulated_handovers import HandOvers
from blockyard.testing.simulated_processes import Processes
from blockyard.testing.simulated_store import SimulatedStore
from blockyard.testing.simulator import Simulation

__all__ = ["Ran", "minimised", "simulate"]

_OVER: Final = object()
_LATER: Final = 12
"""Ticks after which the second engine does what the first one does."""
_OF_A_RANK: Final = frozenset({"copy", "outcome", "release", "rank"})
"""Events that name a rank."""


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
        made: type[OwnBlocks | Simulation | HandOvers] = (
            OwnBlocks if own else Processes if scenario.setup.processes else Simulation
        )
        if scenario.setup.second == "decode":
            made = HandOvers
        elif scenario.setup.second:
            return _together(scenario, Path(folder))
        simulation: OwnBlocks | Simulation | HandOvers = made(scenario, Path(folder))
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


def _together(scenario: Scenario, folder: Path) -> Ran:
    """Plays two engines that share a store, tick by tick.

    Raises:
        Broken: As in `simulate`.
    """
    setup = scenario.setup
    made = OwnBlocks if setup.blocks == "engine" else Simulation
    seen = Counter[str]()
    store = SimulatedStore(setup, f"store {len(scenario.events)}", seen)
    engines: list[OwnBlocks | Simulation] = []
    try:
        for name, one in (("first", scenario), ("second", _second(scenario))):
            (folder / name).mkdir()
            engines.append(made(one, folder / name, store))
        for engine, other in zip(engines, reversed(engines), strict=True):
            if isinstance(engine, Simulation) and isinstance(other, Simulation):
                engine.elsewhere = other
        running = [engine.play() for engine in engines]
        while running:
            # One whose requests have ended is at rest.
            running = [ticks for ticks in running if next(ticks, _OVER) is not _OVER]
            store.honest |= len(running) < len(engines)
        for engine in engines:
            seen.update(engine.seen)
        return Ran(engines[0].now, seen, engines[0].requests.results)
    except Broken as broken:
        raise Broken(f"tick {engines[0].now}: {broken}") from None
    except Exception as error:
        raise Broken(f"tick {engines[0].now}: {type(error).__name__}: {error}") from error
    finally:
        for engine in engines:
            engine.close()


def _second(scenario: Scenario) -> Scenario:
    """Returns what the second engine plays."""
    setup = scenario.setup
    differs: dict[str, dict[str, Any]] = {
        "alike": {},
        "weights": {"weights": setup.weights + 1},
        "ranks": {"ranks": 3 - min(setup.ranks, 2)},
        "shape": {"shape": "page-first" if setup.shape == "layer-first" else "layer-first"},
    }
    other = replace(setup, **differs[setup.second])
    events = [
        event._replace(tick=event.tick + _LATER)
        for event in scenario.events
        if not event.what or event.verb not in _OF_A_RANK or event.what[0] < other.ranks  # type: ignore[operator]
    ]
    return Scenario(other, tuple(events))


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
