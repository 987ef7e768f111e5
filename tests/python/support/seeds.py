"""Seeds of simulated schedules: they are sound, they meet all there is, and notice a mistake."""

from collections import Counter
from collections.abc import Callable, Iterable
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
    """Checks that all the seeds together have met what they are there for."""
    if not seen:
        pytest.skip("only together with the simulations")
    assert [what for what in wanted if not seen[what]] == []


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
