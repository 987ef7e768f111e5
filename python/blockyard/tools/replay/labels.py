"""Names of runs, by their differences."""

from collections.abc import Sequence

from blockyard.shared.layout import TIERS
from blockyard.tools.replay.result import Run
from blockyard.tools.replay.spec import RunSpec
from blockyard.tools.units import size

__all__ = ["labels", "sizes"]


def labels(runs: Sequence[Run | RunSpec]) -> list[str]:
    """Returns a name for each run of a comparison, of what varies; the eviction where nothing does.

    Runs that do not differ have the same name.
    """
    each = [_facts(run) for run in runs]
    varies = [place for place, words in enumerate(zip(*each, strict=True)) if len(set(words)) > 1]
    return [", ".join(facts[place] for place in varies or [0]) for facts in each]


def sizes(run: Run | RunSpec, tiers: Sequence[str]) -> list[str]:
    """Returns the sizes of these tiers, in words."""
    blocks = {
        "device": run.device_blocks,
        "host": run.host_blocks,
        "disk": run.disk_blocks,
        "remote": run.remote_blocks,
    }
    return [
        f"{tier} {size(blocks[tier] * run.block_bytes)}" if blocks[tier] else f"no {tier}"
        for tier in tiers
    ]


def _facts(run: Run | RunSpec) -> list[str]:
    return [
        run.policy,
        run.write_policy,
        "copies by policy" if run.host_copies is None else f"copies {run.host_copies}",
        "no hints" if run.hints is None else str(run.hints),
        f"{run.owner}'s device",
        f"headroom {run.headroom}",
        f"{run.preempt_mode}",
        *sizes(run, TIERS),
    ]
