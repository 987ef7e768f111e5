"""Cases of vLLM's real scheduler over Blockyard with several groups of layers, each by name."""

from collections.abc import Callable
from itertools import repeat
from typing import Any

from blockyard._typing import override
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.testing import ScriptedCopier, fail
from cases import answered, left_to_compute, prompts, same
from disk_cases import folder, settle
from disk_cases import over as on_disk
from hybrid_seeds import MIXES, STATE
from simulated_model import SIZE, Engine, Wrong

BLOCKS = {"Gemma": 78}
"""So many that some requests are preempted."""
CASES: list[Callable[[], None]] = []


def case(function: Callable[[], None]) -> Callable[[], None]:
    """Registers a case."""
    CASES.append(function)
    return function


def over(mix: str, blocks: int = 80, **more: Any) -> Engine:
    """An engine with a mix of groups."""
    return Engine(**({"blocks": blocks, "host": 300, "kinds": MIXES[mix]} | more))


@case
def no_preempted_request_of_several_groups_is_computed_again() -> None:
    """A preempted hybrid starts from zero elsewhere (vllm#37796, #52520)."""
    for mix, kinds in MIXES.items():
        for asynchronous in (False, True):
            most = SIZE if STATE in kinds else 0
            engine = over(mix, BLOCKS.get(mix, 15 * len(kinds)), asynchronous=asynchronous)
            answered(engine, prompts(6), 60)
            if not engine.preempted:
                raise Wrong(f"{mix}: nothing was preempted: this has shown nothing")
            again = [lost for _, lost in engine.lost]
            if len(again) != engine.preempted or max(again) > most:
                raise Wrong(f"{mix}: {engine.preempted} preempted, and computed again: {again}")
            engine.close()


@case
def a_prompt_comes_back_in_all_groups_and_is_never_whole() -> None:
    """Also where it ends with a block: a state has then seen the last token."""
    for mix in MIXES:
        for length in (100, 96):
            engine = over(mix)
            prompt = prompts(1, 7)[0][:50] + list(range(length - 50))
            answered(engine, [prompt], 8)
            engine.scheduler.reset_prefix_cache()
            answered(engine, [prompt], 8, first=1)
            rest = (length % SIZE or SIZE) + 7
            same(engine.computed["r1"], rest, f"{mix}: computed of the second")
            engine.close()


class Sick(ScriptedCopier):
    """A copier from which nothing comes that goes up to one tier."""

    def __init__(self) -> None:
        super().__init__(ThreadCopier(workers=0))
        self.tier: Any = None
        self.bad = ScriptedCopier(self.inner, repeat(fail(0)))

    @override
    def start(self, source: Any, destination: Any, sources: Any, destinations: Any) -> Any:
        if destination is self.tier:
            return self.bad.start(source, destination, sources, destinations)
        return super().start(source, destination, sources, destinations)


@case
def a_load_that_fails_in_one_group_costs_that_request_its_load_alone() -> None:
    """A failed load ends the engine elsewhere (vllm#45474, #50687)."""
    for mix, kinds in MIXES.items():
        prompt, other = prompts(2, 3)
        for bad in range(len(kinds)):
            copier = Sick()
            engine = over(mix, copier=lambda _, copier=copier: copier)
            answered(engine, [prompt], 8)
            settle(engine)
            copier.tier = engine.ranks[0].own.back.worker.cranes[bad].device
            engine.scheduler.reset_prefix_cache()
            answered(engine, [prompt, other], 8, first=1)
            same(engine.front.cut, 1, f"{mix}: loads that failed")
            same(engine.computed["r1"], len(prompt) + 7, f"{mix}: computed of it")
            copier.tier = None
            engine.scheduler.reset_prefix_cache()
            answered(engine, [prompt], 8, first=3)
            same(engine.computed["r3"], left_to_compute(prompt, 8), f"{mix}: when all is well")
            engine.close()


@case
def a_shared_prefix_is_found_behind_unlike_tails() -> None:
    """0 % hits, as the one checkpoint lies in tokens of one request alone (vllm#45238, #42317)."""
    for mix in MIXES:
        engine = over(mix)
        shared = prompts(1, 7)[0][:48] + list(range(48))
        tails = [[1000 + at] * 60 for at in range(3)]
        for at, tail in enumerate(tails):
            answered(engine, [[*shared, *tail]], 4, first=at)
            engine.scheduler.reset_prefix_cache()
        found = len(shared) + 60 + 3 - engine.computed["r2"]
        same(found, len(shared), f"{mix}: found of the third")
        engine.close()


@case
def after_a_restart_all_groups_are_found_on_the_disk() -> None:
    for mix, kinds in MIXES.items():
        disk = {"disk": [400] * len(kinds), "blocks": 80, "kinds": kinds}
        with folder() as path:
            prompt, other = prompts(2, 7)
            engine = on_disk(path, **disk)
            answered(engine, [prompt], 8)
            settle(engine)
            engine.close()
            engine = on_disk(path, **disk)
            answered(engine, [prompt, other], 8)
            same(engine.computed["r0"], left_to_compute(prompt, 8), f"{mix}: computed of it")
            same(engine.computed["r1"], len(other) + 7, f"{mix}: computed of another")
            engine.close()


@case
def after_a_reset_nothing_of_any_group_is_found() -> None:
    for mix in MIXES:
        engine = over(mix)
        prompt, other = prompts(2, 7)
        answered(engine, [prompt], 8)
        engine.add("runs", other, 30)
        for _ in range(10):
            engine.step()
        engine.scheduler.reset_prefix_cache(reset_connector=True)
        engine.drain()
        engine.scheduler.reset_prefix_cache()
        engine.weights += 1
        answered(engine, [prompt, other], 8, first=1)
        for at, one in enumerate((prompt, other), 1):
            same(engine.computed[f"r{at}"], len(one) + 7, f"{mix}: computed of it")
        engine.close()
