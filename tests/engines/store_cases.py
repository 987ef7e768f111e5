"""Cases of vLLM's real scheduler over a store that engines share."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.stores.folder_store import FolderSession
from cases import answered, left_to_compute, prompts, same
from disk_cases import folder, settle
from simulated_model import Engine, Wrong

CASES: list[Callable[[], None]] = []
_LIES = 0.4
"""Of the answers of a store."""


def case(function: Callable[[], None]) -> Callable[[], None]:
    """Registers a case."""
    CASES.append(function)
    return function


def over(path: Path, **more: Any) -> Engine:
    """An engine with a store; its memory is copied without threads."""

    def copiers(_: int) -> Any:
        plain = ThreadCopier(workers=0)
        return {("device", "host"): plain, ("host", "device"): plain}

    given = {"blocks": 60, "host": 200, "copier": copiers, "remote": path.as_uri()}
    engine = Engine(**(given | {"namespace": {"weights": "v1"}} | more))  # type: ignore[arg-type]
    engine.pause = 2e-3
    return engine


@case
def another_engine_computes_nothing_of_what_the_first_has_put() -> None:
    for parallel, ranks in (("tensor", 1), ("tensor", 2), ("latent", 2)):
        with folder() as path:
            (prompt,) = prompts(1)
            first, second = (over(path, parallel=parallel, ranks=ranks) for _ in range(2))
            answered(first, [prompt], 8)
            settle(first)
            answered(second, [prompt], 8)
            same(second.computed["r0"], left_to_compute(prompt, 8), "computed by the second")
            first.close()
            second.close()


@case
def a_store_that_lies_makes_no_wrong_token() -> None:
    chance, get = random.Random(54), FolderSession.get
    told = {"flipped": 0, "cut": 0, "lost": 0, "another's": 0}
    last: list[bytes] = [b""]

    def lie(self: FolderSession, address: str, into: memoryview) -> Any:
        found = get(self, address, into)
        if found is None or chance.random() > _LIES:
            last[0] = b"" if found is None else bytes(found)
            return found
        value, how = bytearray(found), chance.choice(list(told))
        told[how] += 1
        if how == "flipped":
            value[chance.randrange(len(value))] ^= 1 << chance.randrange(8)
        elif how == "cut":
            del value[chance.randrange(len(value)) :]
        elif how == "another's":
            value = bytearray(last[0])
        return None if how == "lost" else bytes(value)

    FolderSession.get = lie  # type: ignore[method-assign]
    try:
        with folder() as path:
            asked = prompts(12)
            first, second = over(path), over(path)
            answered(first, asked, 20)
            settle(first)
            answered(second, asked, 20)
            loaded = second.front.connector.stats()["cached_remote"]
            print(f"  {told} of the answers; {loaded} tokens came from the store")
            if not loaded or not all(told.values()):
                raise Wrong("nothing came, or no lie was told: this has shown nothing")
            first.close()
            second.close()
    finally:
        FolderSession.get = get  # type: ignore[method-assign]


@case
def what_a_killed_engine_has_put_is_resumed_by_another() -> None:
    with folder() as path:
        asked = prompts(6)
        first = over(path, blocks=39)
        answered(first, asked, 60)
        settle(first)
        # It is not closed: what is there is what the store has acknowledged.
        second = over(path, blocks=39)
        answered(second, asked, 60)
        alone = sum(len(prompt) + 59 for prompt in asked)
        found = second.front.connector.stats()["cached_remote"]
        print(f"  {found} tokens of {alone} came from the store, {second.preempted} preempted")
        if not found:
            raise Wrong("nothing came from the store: this has shown nothing")
        first.close()
        second.close()


@case
def what_other_weights_have_computed_is_found_by_no_other_engine() -> None:
    with folder() as path:
        (prompt,) = prompts(1)
        first = over(path)
        first.weights += 1
        same(first.scheduler.reset_prefix_cache(reset_connector=True), 1, "reset")
        answered(first, [prompt], 8)
        settle(first)
        first.close()
        second = over(path)
        answered(second, [prompt], 8)
        same(second.computed["r0"], len(prompt) + 7, "computed of it")
        second.close()
