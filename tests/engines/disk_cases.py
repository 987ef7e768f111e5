"""Cases of vLLM's real scheduler with a disk below the host, which outlives the engine."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from blockyard.crane.copiers.threads import ThreadCopier
from cases import answered, left_to_compute, prompts, same
from simulated_model import Engine, Wrong

CASES: list[Callable[[], None]] = []


def case(function: Callable[[], None]) -> Callable[[], None]:
    """Registers a case."""
    CASES.append(function)
    return function


@contextmanager
def folder() -> Iterator[Path]:
    """A folder for a disk, which goes with the case."""
    made = Path(tempfile.mkdtemp(prefix="blockyard-disk-"))
    try:
        yield made
    finally:
        shutil.rmtree(made)


def over(path: Path, **more: Any) -> Engine:
    """An engine with a disk; its memory is copied without threads."""

    def copiers(_: int) -> Any:
        plain = ThreadCopier(workers=0)
        return {("device", "host"): plain, ("host", "device"): plain}

    given = {"blocks": 60, "host": 200, "disk": 400, "copier": copiers}
    named = {"disk_path": str(path), "namespace": {"weights": "v1"}}
    engine = Engine(**(given | named | more))  # type: ignore[arg-type]
    engine.pause = 2e-3
    return engine


def settle(engine: Engine) -> None:
    """Steps until nothing is on its way to the disk."""
    quiet = 0
    while quiet < 5:
        engine.step()
        flies = any(cache.stats()["flights"] for cache in engine.caches)
        quiet = 0 if flies else quiet + 1


@case
def after_a_restart_of_the_engine_a_prefix_is_found() -> None:
    with folder() as path:
        (prompt,) = prompts(1)
        engine = over(path)
        answered(engine, [prompt], 8)
        settle(engine)
        engine.close()
        again = over(path)
        same(again.front.restored > 0, 1, "blocks found again")
        answered(again, [prompt], 8)
        same(again.computed["r0"], left_to_compute(prompt, 8), "computed after the restart")
        again.close()


@case
def with_a_host_of_twelve_blocks_and_a_disk_no_preempted_request_is_computed_again() -> None:
    asked = prompts(6)
    needed = sum(len(prompt) + 59 for prompt in asked)
    for asynchronous in (False, True):
        with folder() as path:
            engine = over(path, blocks=39, host=12, asynchronous=asynchronous)
            answered(engine, asked, 60)
            again = sum(engine.computed.values()) - needed
            moved = engine.front.cache.stats()
            print(
                f"  {'asynchronous' if asynchronous else 'synchronous'}: {engine.preempted} "
                f"preempted, {moved['disk_in']} blocks to the disk, {moved['disk_out']} back"
            )
            if not engine.preempted or not moved["disk_in"]:
                raise Wrong("nothing was preempted, or went to the disk: this has shown nothing")
            same(again, 0, "tokens computed again")
            engine.close()


@case
def ranks_restore_what_all_of_them_have() -> None:
    with folder() as path:
        (prompt,) = prompts(1)
        for parallel in ("tensor", "latent"):
            for found in (0, 1):
                engine = over(path, ranks=2, parallel=parallel)
                same(engine.front.restored > 0, found, f"found again by {parallel} ranks")
                answered(engine, [prompt], 8)
                if found:
                    same(engine.computed["r0"], left_to_compute(prompt, 8), "computed of it")
                settle(engine)
                engine.close()


@case
def what_other_weights_have_computed_is_found_by_no_later_engine() -> None:
    with folder() as path:
        (prompt,) = prompts(1)
        engine = over(path)
        answered(engine, [prompt], 8)
        settle(engine)
        engine.weights += 1
        same(engine.scheduler.reset_prefix_cache(reset_connector=True), 1, "reset")
        answered(engine, [prompt], 8, first=1)
        settle(engine)
        engine.close()
        # It has the weights that the namespace names.
        again = over(path)
        same(again.front.restored, 0, "blocks found again")
        answered(again, [prompt], 8, first=2)
        same(again.computed["r2"], len(prompt) + 7, "computed of it")
        again.close()
