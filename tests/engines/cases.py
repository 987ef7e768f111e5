"""Cases of vLLM's real scheduler over Blockyard, each by name."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from blockyard._core import Misuse
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.engines.vllm import Blockyard
from blockyard.engines.vllm.identity import Root
from blockyard.engines.vllm.scheduler_half import SchedulerHalf
from blockyard.testing import ScriptedCopier, corrupt, delay, deliver, fail
from blockyard.yard.cache import KVCache
from seeds import Game
from simulated_model import SIZE, Engine, Wrong, undisturbed

CASES: list[Callable[[], None]] = []


def case(function: Callable[[], None]) -> Callable[[], None]:
    """Registers a case."""
    CASES.append(function)
    return function


def prompts(count: int, seed: int = 1) -> list[list[int]]:
    """Prompts that share nothing."""
    chance = random.Random(seed)
    lengths = [chance.randint(40, 100) for _ in range(count)]
    return [[chance.randrange(1000) for _ in range(length)] for length in lengths]


def answered(engine: Engine, asked: list[list[int]], most: int, first: int = 0) -> None:
    """Runs requests to their end; checks what they have sampled."""
    for at, prompt in enumerate(asked, first):
        engine.add(f"r{at}", prompt, most)
    engine.drain()
    for at, prompt in enumerate(asked, first):
        wants = undisturbed(prompt, most)
        if engine.answer(f"r{at}") != wants:
            raise Wrong(f"r{at} has sampled {engine.answer(f'r{at}')}, not {wants}")


def same(have: object, wants: object, what: str) -> None:
    """Checks a number."""
    if have != wants:
        raise Wrong(f"{what}: {have}, not {wants}")


def scripted(*actions: Any) -> Callable[[int], ScriptedCopier]:
    """A copier for each rank that does this with its first copies."""
    return lambda _: ScriptedCopier(ThreadCopier(workers=0), actions)


@case
def no_preempted_request_is_computed_again() -> None:
    """0 tokens are computed again while the host has room; vLLM alone computes 98 again."""
    asked = prompts(6)
    needed = sum(len(prompt) + 59 for prompt in asked)
    for asynchronous in (False, True):
        alone = Engine(blocks=39, host=None, asynchronous=asynchronous)
        answered(alone, asked, 60)
        parked = Engine(blocks=39, host=200, asynchronous=asynchronous)
        answered(parked, asked, 60)
        again = sum(parked.computed.values()) - needed
        if not (alone.preempted and parked.preempted):
            raise Wrong("nothing was preempted: this has shown nothing")
        print(
            f"  {'asynchronous' if asynchronous else 'synchronous'}: {needed} tokens needed; vLLM "
            f"alone computes {sum(alone.computed.values())}, parked {needed + again} "
            f"({alone.preempted} and {parked.preempted} preempted)"
        )
        same(again, 0, "tokens computed again")
        parked.close()


@case
def a_prefix_that_the_gpu_evicted_comes_back_from_the_host() -> None:
    engine = Engine(blocks=40, host=300)
    (prompt,) = prompts(1, 7)
    answered(engine, [prompt], 8)
    answered(engine, prompts(8, 8), 8, first=10)
    before = engine.computed.copy()
    answered(engine, [prompt], 8, first=1)
    same(before["r1"], 0, "computed of it before")
    full = (len(prompt) - 1) // SIZE * SIZE
    same(engine.computed["r1"], len(prompt) + 7 - full, "computed of the second")
    engine.close()


@case
def a_load_that_fails_costs_a_shorter_prefix_and_ends_normally() -> None:
    prompt = prompts(1, 3)[0]
    for action, good in ((fail(1), 1), (corrupt(3 << 10), None)):
        # The first copy goes down, for the first request; the next ones are the others'.
        actions = [deliver() for _ in range(9)]
        engine = Engine(blocks=40, host=300, copier=scripted(*actions, action))
        answered(engine, [prompt], 8)
        answered(engine, prompts(8, 4), 8, first=10)
        answered(engine, [prompt], 8, first=1)
        same(engine.front.cut >= (good is None), 1, "loads cut short, or tried again")
        engine.close()


@case
def a_hundred_lookups_and_an_abort_hold_nothing() -> None:
    engine = Engine(blocks=40, host=300)
    (prompt,) = prompts(1, 5)
    answered(engine, [prompt], 8)
    answered(engine, prompts(8, 6), 8, first=10)
    engine.add("r1", prompt, 8)
    for _ in range(100):
        engine.scheduler.connector.get_num_new_matched_tokens(engine.requests["r1"], 0)
    engine.abort("r1")
    engine.drain()
    for _ in range(10):
        engine.step()
    stats = engine.front.cache.stats()
    same((stats["parked"], stats["flights"], stats["host_pinned"]), (0, 0, 0), "held")
    engine.close()


@case
def orders_are_carried_out_once_however_often_they_are_given() -> None:
    engine = Engine(blocks=39, host=200, copier=scripted(*[delay(2)] * 40))
    back = engine.ranks[0].connector.back
    begin = back.begin
    back.begin = lambda step: [begin(step), begin(step)]
    answered(engine, prompts(6), 60)
    same(engine.preempted > 0, 1, "preempted")
    engine.close()


@case
def nothing_is_kept_of_a_request_whose_output_is_dropped() -> None:
    engine = Engine(blocks=60, host=200)
    for at, prompt in enumerate(prompts(3)):
        engine.add(f"r{at}", prompt, 40)
    for _ in range(20):
        engine.step()
    same(engine.scheduler.reset_prefix_cache(reset_running_requests=True), 1, "reset")
    engine.drain()
    same(engine.front.cache.stats()["parkings"], 0, "parked")
    for at, prompt in enumerate(prompts(3)):
        same(engine.answer(f"r{at}"), undisturbed(prompt, 40), f"r{at}")
    engine.close()


@case
def after_a_reset_of_the_connector_nothing_below_is_found() -> None:
    engine = Engine(blocks=60, host=200)
    (prompt,) = prompts(1)
    answered(engine, [prompt], 8)
    same(engine.scheduler.reset_prefix_cache(reset_connector=True), 1, "reset")
    answered(engine, [prompt], 8, first=1)
    same(engine.computed["r1"], len(prompt) + 7, "computed of the second")
    engine.close()


@case
def a_salt_finds_nothing_of_another() -> None:
    engine = Engine(blocks=60, host=200)
    (prompt,) = prompts(1)
    answered(engine, [prompt], 8)
    engine.add("salted", prompt, 8, cache_salt="X")
    engine.drain()
    same(engine.answer("salted"), undisturbed(prompt, 8, "X"), "its answer")
    same(engine.computed["salted"], len(prompt) + 7, "computed of it")
    engine.close()


@case
def the_caches_numbers_are_on_vllms_metrics() -> None:
    engine = Engine(blocks=39, host=200)
    registry = CollectorRegistry()
    types = {kind: partial(kind, registry=registry) for kind in (Counter, Gauge, Histogram)}
    known = Blockyard.build_prom_metrics(engine.config, types, ["engine"], {0: ["0"]})
    inner = engine.scheduler.update_from_output

    def update(*what: Any) -> Any:
        outputs = inner(*what)
        for one in outputs.values():
            stats = one.scheduler_stats
            if stats is not None and stats.kv_connector_stats:
                known.observe(Blockyard.build_kv_connector_stats(stats.kv_connector_stats).data)
        return outputs

    engine.scheduler.update_from_output = update
    answered(engine, prompts(6), 60)
    for _ in range(70):
        engine.step()
    text = generate_latest(registry).decode()
    for line in (
        'blockyard_sequences_total{engine="0",event="parked"} 2.0',
        'set="idle",tier="host"',
    ):
        same(line in text, 1, f"{line} on /metrics")
    engine.close()


# -- what it would notice ----------------------------------------------------------------------


def noticed(of: type, verb: str, wrong: Callable[..., Any], says: str) -> None:
    """Checks that some seed notices a mistake."""
    right = getattr(of, verb)
    setattr(of, verb, lambda self, *what, **named: wrong(right, self, *what, **named))
    try:
        for seed in range(200):
            Game(seed).play()
    except Misuse:
        # What it was called with contradicts itself.
        pass
    except Wrong as broken:
        if says not in str(broken):
            raise
    else:
        raise Wrong("200 seeds have not noticed it")
    finally:
        setattr(of, verb, right)


@case
def a_fence_that_is_not_kept_is_noticed() -> None:
    """E1"""
    noticed(KVCache, "must_finish", lambda *_: None, "holds something else")


@case
def tokens_that_did_not_come_are_noticed() -> None:
    """E4"""

    def wrong(right: Any, self: SchedulerHalf, reports: Any) -> None:
        right(self, reports)
        self._missing.clear()

    noticed(SchedulerHalf, "reported", wrong, "holds something else")


@case
def keys_that_stand_for_no_tokens_are_noticed() -> None:
    """E2"""

    def wrong(right: Any, self: Root, hashes: Any, adapter: Any, salt: Any) -> bytes:
        return bytes(right(self, [one[:1] * 32 for one in hashes], adapter, salt))

    noticed(Root, "keys", wrong, "")


@case
def blocks_that_are_stowed_under_the_keys_of_others_are_noticed() -> None:
    """E2"""

    def wrong(right: Any, self: SchedulerHalf, request: Any, ids: Any) -> None:
        right(self, request, ids[::-1])

    noticed(SchedulerHalf, "finished", wrong, "")
