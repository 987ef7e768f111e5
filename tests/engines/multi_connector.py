"""vLLM's real scheduler over Blockyard inside its real MultiConnector, behind one that moves KV.

    python multi_connector.py [--seeds 200] [--first 0]

What stands before it receives, loads, sends, fails and is late (`stand_in.py`). Every position of
every running table is checked in every step, and what a peer reads when it has read it.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

from vllm.v1.request import RequestStatus

from blockyard._core import Misuse
from blockyard._typing import override
from blockyard.connectors.vllm import rows
from blockyard.connectors.vllm.others import OthersLoads
from blockyard.connectors.vllm.scheduler_half import SchedulerHalf
from blockyard.testing import delay
from cases import answered, left_to_compute, numbers_are_on_metrics, prompts, same, scripted
from disk_cases import folder, over, settle
from hybrid_seeds import Hybrid
from runner import run
from seeds import Ask, Game
from simulated_model import SIZE, Engine, Wrong, parts, undisturbed

CASES: list[Callable[[], None]] = []
WANTED = {"parked": 500, "others' loads": 1500, "others' loads that fail": 300, "sends": 500}
"""What 200 seeds must have met at least."""


def case(function: Callable[[], None]) -> Callable[[], None]:
    """Registers a case."""
    CASES.append(function)
    return function


class Beside(Game):
    """A seed whose requests come from a prefiller, from a store, or are sent to a decoder."""

    beside = True

    @cached_property
    def loads_beside(self) -> bool:
        """Whether the other connector loads while a request runs, and not before.

        Such a load that fails has vLLM zero blocks that another request reads, where it zeroes any.
        """
        return self.engine.zeroes is None and self.chance.random() < 0.5

    @override
    def ask(self) -> Ask:
        ask, chance = super().ask(), self.chance
        asks: dict[str, Any] = dict(ask.own or {})
        kind = chance.choice(["alone", "afar", "afar", "store", "send"])
        if kind in {"afar", "store"}:
            whole = kind == "afar"
            fails = self.faults and chance.random() < 0.3
            # Where steps overlap, vLLM delivers tokens of a load beside them that has failed.
            fails = fails and not (self.loads_beside and self.engine.asynchronous)
            asks["afar"] = {
                "tokens": len(ask.prompt) if whole else chance.randint(1, len(ask.prompt)),
                "late": 0 if self.loads_beside else chance.randint(1, 12),
                "bad": [chance.randrange(4) for _ in range(chance.randint(1, 3))] if fails else [],
                "lost": fails and not self.loads_beside and chance.random() < 0.4,
                "unsure": chance.choice([0, 0, 2]),
                "again": not whole and chance.random() < 0.5,
            }
            asks["do_remote_prefill"] = whole
        if kind == "send" or chance.random() < 0.2:
            asks["send"] = chance.randint(1, 15)
        return ask._replace(own=asks)

    @override
    def count(self) -> None:
        super().count()
        self.seen.update(parts(self.engine.ranks[0].connector)[0].counts)


def engine(**changes: Any) -> Engine:
    """An engine with another connector before Blockyard."""
    return Engine(**({"blocks": 60, "host": 300, "beside": True} | changes))


def afar(prompt: list[int], **changes: Any) -> dict[str, Any]:
    """What a router says of a prompt that a prefiller has computed."""
    asks: dict[str, Any] = {"tokens": len(prompt), "late": 3} | changes
    return {"afar": asks, "do_remote_prefill": True}


def checked(made: Engine, name: str, prompt: list[int], most: int) -> None:
    """Checks what a request has sampled."""
    same(made.answer(name), undisturbed(prompt, most), f"{name} has sampled")


@case
def a_prompt_that_a_prefiller_has_is_not_computed_and_is_found_below_later() -> None:
    (prompt,) = prompts(1, 3)
    made = engine()
    made.add("r0", prompt, 20, asks=afar(prompt))
    made.drain()
    checked(made, "r0", prompt, 20)
    same(made.computed["r0"], 20, "tokens computed, the last one of the prompt with them")
    for _ in range(5):
        made.step()
    made.scheduler.reset_prefix_cache()
    answered(made, [prompt], 20, first=1)
    same(made.computed["r1"], len(prompt) % SIZE + 19, "computed of what both have had")
    made.close()


@case
def vllm_34526_and_35092_nothing_is_offloaded_of_a_load_that_has_not_ended() -> None:
    """Garbage was stored of a request that waits for its KV, and found again."""
    (prompt,) = prompts(1, 3)
    for when in range(1, 9):
        made = engine(offload="through")
        made.add("r0", prompt, 20, asks=afar(prompt, late=6))
        for _ in range(when):
            made.step()
        made.abort("r0")
        made.drain()
        for _ in range(5):
            made.step()
        made.scheduler.reset_prefix_cache()
        answered(made, [prompt], 20, first=1)
        made.close()


@case
def vllm_46951_what_is_copied_down_ends_before_another_fills_its_blocks() -> None:
    """A store was in the air from blocks that another connector's load was given."""
    (prompt, other) = prompts(2, 5)
    made = engine(blocks=9, copier=scripted(delay(6)))
    answered(made, [prompt[: 5 * SIZE]], 3)
    made.add("r1", other[: 6 * SIZE], 3, asks=afar(other[: 6 * SIZE], late=9))
    made.drain()
    for _ in range(9):
        made.step()
    made.scheduler.reset_prefix_cache()
    answered(made, [prompt[: 5 * SIZE]], 3, first=2)
    made.close()


@case
def vllm_53049_a_load_is_said_to_have_ended_once_by_whose_it_is() -> None:
    """A second word on a request that runs by then has ended the engine."""
    (prompt,) = prompts(1, 3)
    for ranks in (1, 2):
        made = engine(ranks=ranks)
        answered(made, [prompt], 5)
        made.scheduler.reset_prefix_cache()
        # Both have it: the first loads.
        made.add("r1", prompt, 20, asks=afar(prompt))
        # Aborted, and what is on its way comes after that.
        made.add("r2", prompt, 20, asks=afar(prompt, late=9))
        for _ in range(3):
            made.step()
        made.abort("r2")
        made.drain()
        checked(made, "r1", prompt, 20)
        made.scheduler.reset_prefix_cache()
        # Blockyard loads alone, and is aborted.
        made.add("r3", prompt, 20)
        made.step()
        made.abort("r3")
        made.drain()
        same(len(made.scheduler.requests), 0, "requests that are left")
        made.close()


@case
def vllm_53903_what_is_sent_is_free_when_each_rank_has_said_so_once() -> None:
    """Requests never ended where a rank said nothing, or one was counted twice."""
    (prompt,) = prompts(1, 3)
    for ranks in (1, 2):
        made = engine(ranks=ranks, offload="through")
        made.add("r0", prompt, 5, asks={"send": 7})
        made.drain()
        pool = made.scheduler.kv_cache_manager.block_pool
        same(pool.get_num_free_blocks(), pool.num_gpu_blocks - 1, "free blocks")
        same(made.scheduler.connector._extra_async_saves, {}, "saves that are waited for")
        same(made.requests["r0"].status, RequestStatus.FINISHED_LENGTH_CAPPED, "its end")
        made.close()


@case
def no_preempted_request_is_computed_again_beside_one_that_sends() -> None:
    """vLLM drops the output of each that it preempts there, as its KV may not be delivered."""
    asked = prompts(6)
    needed = sum(len(prompt) + 59 for prompt in asked)
    for asynchronous in (False, True):
        made = engine(blocks=39, host=200, asynchronous=asynchronous)
        same(int(made.scheduler.requires_kv_delivery), 1, "vLLM takes it for a sender")
        for at, prompt in enumerate(asked):
            made.add(f"r{at}", prompt, 60, asks={"send": 2})
        made.drain()
        if not made.preempted:
            raise Wrong("nothing was preempted: this has shown nothing")
        for at, prompt in enumerate(asked):
            checked(made, f"r{at}", prompt, 60)
        same(sum(made.computed.values()) - needed, 0, "tokens computed again")
        made.close()


@case
def a_decoder_in_a_squeeze_computes_no_prompt() -> None:
    asked = prompts(6)
    for asynchronous in (False, True):
        made = engine(blocks=39, host=200, asynchronous=asynchronous)
        for at, prompt in enumerate(asked):
            made.add(f"r{at}", prompt, 60, asks=afar(prompt))
        made.drain()
        if not made.preempted:
            raise Wrong("nothing was preempted: this has shown nothing")
        for at, prompt in enumerate(asked):
            checked(made, f"r{at}", prompt, 60)
        same(sum(made.computed.values()), 6 * 60, "tokens computed")
        made.close()


@case
def what_is_preempted_where_a_load_beside_it_has_failed_is_kept_to_what_is_whole() -> None:
    (prompt,) = prompts(1, 3)
    made = engine()
    answered(made, [prompt[: 2 * SIZE]], 2)
    asks = afar(prompt, late=0, bad=[1])
    made.add("r1", prompt, 20, asks=asks)
    made.step()
    # As vLLM does for want of room, before the blocks that did not come are computed.
    (request,) = made.scheduler.running
    made.scheduler.running.clear()
    made.scheduler._preempt_request(request, 0.0, drop_stale_output=True)
    made.drain()
    checked(made, "r1", prompt, 20)
    made.scheduler.reset_prefix_cache()
    answered(made, [prompt], 20, first=2)
    made.close()


@case
def what_is_preempted_behind_a_load_beside_it_that_was_whole_is_not_computed_again() -> None:
    (prompt,) = prompts(1, 3)
    for asynchronous in (False, True):
        made = engine(asynchronous=asynchronous)
        # Until the workers have said that they are ready.
        for _ in range(3):
            made.step()
        made.add("r1", prompt, 20, asks=afar(prompt, late=0))
        made.step()
        while made.flying:
            made.take()
        # As vLLM does for want of room, in the next step.
        (request,) = made.scheduler.running
        made.scheduler.running.clear()
        made.scheduler._preempt_request(request, 0.0, drop_stale_output=True)
        made.drain()
        checked(made, "r1", prompt, 20)
        same(made.computed["r1"], 20, "tokens computed")
        made.close()


@case
def what_a_prefiller_could_not_send_comes_from_the_host_where_it_is() -> None:
    (prompt,) = prompts(1, 3)
    for ranks in (1, 2):
        made = engine(ranks=ranks)
        answered(made, [prompt], 5)
        for _ in range(5):
            made.step()
        made.scheduler.reset_prefix_cache()
        made.add("r1", prompt, 20, asks=afar(prompt, lost=True))
        made.drain()
        checked(made, "r1", prompt, 20)
        same(made.computed["r1"], len(prompt) % SIZE + 19, "tokens computed")
        made.close()


@case
def what_another_has_brought_and_the_host_has_is_not_copied_again() -> None:
    (prompt,) = prompts(1, 3)
    made = engine()
    for at in range(3):
        made.add(f"r{at}", prompt, 5, asks=afar(prompt))
        made.drain()
        for _ in range(5):
            made.step()
        made.scheduler.reset_prefix_cache()
    stats = made.front.cache.stats()
    same(stats["copied_device_to_host"], len(prompt) // SIZE, "blocks copied down")
    made.close()


@case
def the_caches_numbers_are_on_vllms_metrics_there_too() -> None:
    numbers_are_on_metrics(engine(blocks=39, host=200))


@case
def after_a_restart_a_prefix_is_found_there_too() -> None:
    """vLLM carries the handshake of the first connector alone."""
    (prompt,) = prompts(1)
    with folder() as path:
        for ranks in (1, 2):
            for again in (False, True):
                made = over(path, ranks=ranks, beside=True)
                answered(made, [prompt], 8)
                settle(made)
                wants = left_to_compute(prompt, 8) if again else len(prompt) + 7
                same(made.computed["r0"], wants, f"computed by {ranks} ranks")
                made.close()
                made.scheduler.connector.shutdown()


def seeds_120() -> None:
    """Plays seeds."""
    for seed in range(120):
        Beside(seed).play()


def breaks(wrong: Callable[[], Callable[[], None]], played: Callable[[], None] = seeds_120) -> None:
    """Plays seeds or a case with a mistake in them, which must be noticed."""
    mend = wrong()
    try:
        played()
    except (Wrong, Misuse):
        return
    finally:
        mend()
    raise Wrong("nothing has noticed it")


def replaced(of: Any, name: str, wrong: Any) -> Callable[[], None]:
    """Puts a mistake in a verb's place; returns what mends it."""
    right = getattr(of, name)
    setattr(of, name, wrong)
    return lambda: setattr(of, name, right)


@case
def noticed_blocks_that_another_fills_are_not_waited_for() -> None:
    right = OthersLoads.lent_blocks

    def wrong(self: OthersLoads, counts: Any) -> list[int]:
        right(self, counts)
        return []

    breaks(lambda: replaced(OthersLoads, "lent_blocks", wrong))


@case
def noticed_a_load_beside_the_computation_is_believed_at_once() -> None:
    breaks(
        lambda: replaced(rows, "is_certain", lambda _row: True),
        what_is_preempted_where_a_load_beside_it_has_failed_is_kept_to_what_is_whole,
    )


@case
def noticed_what_waits_for_its_load_is_offloaded() -> None:
    right = SchedulerHalf.finished

    def wrong(self: SchedulerHalf, request: Any, tables: Any) -> None:
        row = self._rows.by_name.get(request.request_id)
        if row is not None and row.ids and not row.scheduled:
            row.scheduled = request.num_computed_tokens
        right(self, request, tables)

    breaks(lambda: replaced(SchedulerHalf, "finished", wrong))


class HybridBeside(Beside, Hybrid):
    """The same with several groups of layers."""


@case
def several_groups_of_layers_beside_another_connector() -> None:
    """In a quarter of as many seeds: 0 wrong bytes, and 0 leaks."""
    seen: Counter[str] = Counter()
    for seed in range(50):
        seen += HybridBeside(seed).play()
    for what in ("parked", "others' loads", "others' loads that are lost", "sends"):
        same(seen[what] > 5, 1, f"{what}: {seen[what]}, whether it is many")


if __name__ == "__main__":
    sys.exit(run(__doc__, CASES, Beside, WANTED, 200))
