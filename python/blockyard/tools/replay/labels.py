"""Names of runs, by what tells them from each other."""

from collections.abc import Sequence

from blockyard.tools.replay.result import Run
from blockyard.tools.replay.spec import RunSpec

__all__ = ["labels"]


def labels(runs: Sequence[Run | RunSpec]) -> list[str]:
    """Returns a name for each run of a comparison, of what varies; the eviction where nothing does.

    Runs that do not differ have the same name.
    """
    each = [_facts(run) for run in runs]
    varies = [place for place, words in enumerate(zip(*each, strict=True)) if len(set(words)) > 1]
    return [", ".join(facts[place] for place in varies or [0]) for facts in each]


def _facts(run: Run | RunSpec) -> list[str]:
    return [
        run.policy,
        run.write_policy,
        "copies by policy" if run.host_copies is None else f"copies {run.host_copies}",
        "no hints" if run.hints is None else str(run.hints),
        f"{run.owner}'s device",
        f"headroom {run.headroom}",
        f"{run.preempt_mode}",
    ]
