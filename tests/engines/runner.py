"""Runs cases and seeds from a command line, and says what is broken."""

import argparse
import logging
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from seeds import Game
from simulated_model import Wrong

__all__ = ["run"]


def run(
    doc: str | None,
    cases: Iterable[Callable[[], None]],
    game: type[Game],
    wanted: Mapping[str, int],
    seeds: int,
    tenth: type[Game] | None = None,
) -> int:
    """Runs all cases, and as many seeds as are asked for; returns 1 where any is broken.

    Args:
        doc: What the help says.
        cases: Each raises where it is broken.
        game: Plays a seed.
        wanted: What so many seeds must have met at least.
        seeds: How many are played where nothing is asked for.
        tenth: Plays a tenth of them once more, in another way.
    """
    asked = argparse.ArgumentParser(description=doc)
    asked.add_argument("--seeds", type=int, default=seeds)
    asked.add_argument("--first", type=int, default=0)
    options = asked.parse_args()
    for name in ("vllm", "blockyard"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    broken = _cases(cases) + _seeds(game, wanted, seeds, options.first, options.seeds)
    if tenth is not None:
        broken += _seeds(tenth, {}, seeds, options.first, options.seeds // 10)
    return int(broken > 0)


def _cases(cases: Iterable[Callable[[], None]]) -> int:
    """Runs the cases; returns how many are broken."""
    broken = 0
    for one in cases:
        try:
            one()
            print(f"ok      {one.__name__.replace('_', ' ')}")
        except Exception as error:  # noqa: BLE001 - whatever it is, the case shows it
            broken += 1
            print(f"BROKEN  {one.__name__.replace('_', ' ')}: {error}")
            if not isinstance(error, Wrong):
                traceback.print_exc()
    return broken


def _seeds(game: type[Game], wanted: Mapping[str, int], whole: int, first: int, count: int) -> int:
    """Plays seeds; returns how many are broken, or met too little."""
    seen: Counter[str] = Counter()
    broken = 0
    for seed in range(first, first + count):
        try:
            seen += game(seed).play()
        except Exception as error:  # noqa: BLE001 - as above
            broken += 1
            print(f"BROKEN  seed {seed}: {type(error).__name__}: {error}")
            if not isinstance(error, Wrong):
                traceback.print_exc()
    for name, number in sorted(seen.items()):
        print(f"{number:10,}  {name}")
    few = [name for name, least in wanted.items() if seen[name] * whole < least * count]
    if count >= whole and few:
        print(f"BROKEN  too few of {few}: the seeds show too little")
        broken += 1
    print(f"{count} seeds from {first}: {broken} broken; 0 wrong bytes and 0 leaks in the others")
    return broken
