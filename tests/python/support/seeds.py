"""Seeds of simulated schedules: they are sound, they meet all there is, and notice a mistake."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from blockyard import testing
from blockyard.scheduling.scheduler import Scheduler
from blockyard.testing import Broken, Scenario, minimised, simulate

Made = Callable[[int], Scenario]


def play(made: Made, seeds: Iterable[int], seen: Counter[str]) -> None:
    """Plays the scenarios of seeds, and counts what they meet; one that breaks is minimised."""
    for seed in seeds:
        scenario = made(seed)
        try:
            seen.update(simulate(scenario).seen)
        except Broken as broken:
            pytest.fail(f"seed {seed}: {broken}\n{minimised(scenario, tries=200)!r}")


def met(seen: Counter[str], wanted: Iterable[str]) -> None:
    """Checks that seeds have met what they are there for."""
    assert [what for what in wanted if not seen[what]] == []


def met_in_parts(seen: Counter[str], wanted: Iterable[str], parts: int, folder: Path) -> None:
    """Checks it of all parts of a test together, in the one that ends last.

    Args:
        seen: What this part has met.
        wanted: What all together must have met.
        parts: How many there are, whatever processes they run in.
        folder: The test's own.
    """
    test, _, part = os.environ["PYTEST_CURRENT_TEST"].partition("[")
    # A worker's folder is in one of the whole run.
    ours = folder.parents[1 if "PYTEST_XDIST_WORKER" in os.environ else 0]
    every = ours / test.replace("/", ".").replace(":", ".")
    every.mkdir(exist_ok=True)
    written = folder / "seen"
    written.write_text(json.dumps(seen))
    written.rename(every / f"{part.partition(']')[0]}.json")
    found = list(every.glob("*.json"))
    if len(found) == parts:
        met(sum((Counter(json.loads(one.read_text())) for one in found), Counter()), wanted)


def plays_again(made: Made, seed: int) -> None:
    """Checks that a scenario is the same for its seed, and is played again from what it prints."""
    scenario = made(seed)
    again = eval(repr(scenario), vars(testing))  # noqa: S307
    assert again == scenario == made(seed)
    first, second = simulate(scenario), simulate(again)
    assert (first.ticks, first.seen) == (second.ticks, second.seen)


def mistaken(
    monkeypatch: pytest.MonkeyPatch, of: type, verb: str, wrong: Callable[..., Any]
) -> None:
    """Puts a mistake in the place of a verb: a function of the object, the verb, and its words."""
    right = getattr(of, verb)

    def other(self: Any, *what: Any, **named: Any) -> Any:
        return wrong(self, right, *what, **named)

    monkeypatch.setattr(of, verb, other, raising=verb in vars(of))


def noticed(made: Made, seeds: Iterable[int]) -> str:
    """What the first seed says that notices a mistake."""
    for seed in seeds:
        try:
            simulate(made(seed))
        except Broken as said:
            return str(said)
    return "nothing"


def broken(
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    wrong: Callable[..., Any],
    of: type = Scheduler,
    tried: Iterable[int] = range(200),
    likely: int | None = None,
) -> str:
    """What the first seed says that notices a scheduler with this verb; a likely one goes first."""
    mistaken(monkeypatch, of, verb, wrong)
    return noticed(Scenario.seeded, (*([] if likely is None else [likely]), *tried))


def said(scenario: Scenario) -> str:
    """What a scenario says of what is wrong."""
    with pytest.raises(Broken) as caught:
        simulate(scenario)
    return str(caught.value)
