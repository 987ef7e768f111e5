"""Cases of vLLM's real scheduler over Blockyard, each by name."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.testing import ScriptedCopier, corrupt, delay, deliver, fail
from simulated_model import HASHER, SIZE, Engine, Wrong, adapter_path, start_of, undisturbed

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


def left_to_compute(prompt: list[int], most: int) -> int:
    """Tokens that a request computes whose full blocks of the prompt come from below."""
    return (len(prompt) % SIZE or 1) + most - 1


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
    same(engine.computed["r1"], left_to_compute(prompt, 8), "computed of the second")
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
def vllm_reports_of_each_request_what_came_and_not_what_was_matched() -> None:
    """Of its own blocks, of loads that are whole or short, and of a prompt that is there whole."""
    prompt = prompts(1, 3)[0]
    whole = prompt[: len(prompt) // SIZE * SIZE]
    for asked, action in ((prompt, None), (whole, None), (prompt, fail(1)), (prompt, fail(0))):
        actions = [] if action is None else [deliver(), action]
        engine = Engine(blocks=60, host=300, copier=scripted(*actions))
        answered(engine, [prompt], 8)
        same(engine.reported["r0"], (0, 0), "reported of what was computed")
        engine.scheduler.reset_prefix_cache()
        answered(engine, [asked], 8, first=1)
        computed = engine.computed["r1"] - 7
        same(engine.reported["r1"], (0, len(asked) - computed), "reported of what came up")
        # The GPU has it now: what vLLM finds itself is no matter of ours.
        answered(engine, [asked], 8, first=2)
        same(sum(engine.reported["r2"]), len(asked) + 7 - engine.computed["r2"], "reported again")
        engine.close()


@case
def a_copy_that_was_found_corrupt_is_never_offered_again() -> None:
    engine = Engine(blocks=60, host=300, copier=scripted(deliver(), corrupt(0)))
    (prompt,) = prompts(1, 3)
    answered(engine, [prompt], 8)
    engine.scheduler.reset_prefix_cache()
    engine.add("r1", prompt, 8, asks={"blockyard.offload": "none"})
    engine.drain()
    engine.scheduler.reset_prefix_cache()
    answered(engine, [prompt], 8, first=2)
    same(engine.front.cut, 1, "loads cut short")
    same(engine.computed["r2"], len(prompt) + 7, "computed where it was not offered again")
    engine.close()


@case
def a_host_from_which_nothing_comes_lets_every_request_end() -> None:
    """A connector that offers the same failing load again never ends (vllm#55297)."""
    prompt = prompts(1, 3)[0]
    copier = scripted(deliver(), *[fail(0)] * 400)
    engine = Engine(blocks=60, host=300, copier=copier)
    answered(engine, [prompt], 8)
    engine.scheduler.reset_prefix_cache()
    answered(engine, [prompt] * 4, 8, first=1)
    same(engine.front.cut > 0, 1, "loads cut short")
    engine.close()


@case
def a_copy_that_hangs_is_waited_for_until_its_deadline_also_where_nothing_runs() -> None:
    engine = Engine(blocks=60, host=200, copier=scripted(*[delay(1 << 30)] * 40), deadline=12)
    (prompt,) = prompts(1)
    answered(engine, [prompt], 8)
    engine.scheduler.reset_prefix_cache()
    answered(engine, [prompt], 8, first=1)
    same(engine.computed["r1"], len(prompt) + 7, "computed of it")
    for rank in engine.ranks:
        rank.own.back.worker.reset()
    engine.close()


@case
def tokens_of_a_session_that_were_never_scheduled_are_not_offloaded() -> None:
    engine = Engine(blocks=60, host=200)
    first, second = prompts(2)

    def say(tokens: list[int]) -> None:
        params = SamplingParams(max_tokens=4, ignore_eos=True)
        more = Request("s", tokens, params, None, block_hasher=HASHER, resumable=True)
        if "s" not in engine.requests:
            engine.requests["s"], engine.known["s"] = more, list(tokens)
            engine.starts["s"] = 0
        engine.scheduler.add_request(more)

    say(first[:20])
    for _ in range(12):
        engine.step()
    say(second)
    tokens = list(engine.requests["s"].all_token_ids)
    engine.abort("s")
    engine.drain()
    engine.scheduler.reset_prefix_cache()
    answered(engine, [tokens], 8)
    engine.close()


@case
def a_reset_below_while_requests_run_lets_nothing_of_them_into_the_next_epoch() -> None:
    engine = Engine(blocks=60, host=200)
    (prompt,) = prompts(1)
    engine.add("r0", prompt, 30)
    for _ in range(20):
        engine.step()
    same(engine.scheduler.reset_prefix_cache(reset_connector=True), 0, "vLLM's own answer")
    engine.drain()
    for _ in range(5):
        engine.step()
    same(engine.front.cache.stats()["host_idle"], 0, "blocks of the old epoch in the new one")
    engine.scheduler.reset_prefix_cache()
    engine.weights += 1
    answered(engine, [prompt], 8, first=1)
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
    back = engine.ranks[0].own.back
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
    same(engine.answer("salted"), undisturbed(prompt, 8, start_of("X")), "its answer")
    same(engine.computed["salted"], len(prompt) + 7, "computed of it")
    engine.close()


def numbers_are_on_metrics(engine: Engine) -> None:
    """Preempts requests, and checks that the cache's numbers are on vLLM's `/metrics`."""
    registry = CollectorRegistry()
    types = {kind: partial(kind, registry=registry) for kind in (Counter, Gauge, Histogram)}
    kind = type(engine.scheduler.connector)
    known = kind.build_prom_metrics(engine.config, types, ["engine"], {0: ["0"]})
    inner = engine.scheduler.update_from_output

    def update(*what: Any) -> Any:
        outputs = inner(*what)
        for one in outputs.values():
            stats = one.scheduler_stats
            if stats is not None and stats.kv_connector_stats:
                made = kind.build_kv_connector_stats(stats.kv_connector_stats)
                # As where the scheduler is in another process.
                known.observe(made.to_dict())
        return outputs

    engine.scheduler.update_from_output = update
    answered(engine, prompts(6), 60)
    text = generate_latest(registry).decode()
    stats = engine.front.cache.stats()
    for line in (
        'blockyard_sequences_total{engine="0",event="parked"} 2.0',
        'blockyard_preempted_requests_total{engine="0"} 2.0',
        'blockyard_admitted_requests_total{engine="0"} 8.0',
        f'blockyard_slots{{engine="0",set="idle",tier="host"}} {stats["host_idle"]}.0',
        'blockyard_flights{engine="0"} 0.0',
    ):
        same(line in text, 1, f"{line} on /metrics")
    engine.close()


@case
def the_caches_numbers_are_on_vllms_metrics() -> None:
    numbers_are_on_metrics(Engine(blocks=39, host=200))


@case
def an_adapter_finds_nothing_of_a_salt_of_its_name() -> None:
    """Before 0.33 vLLM gave both one hash (vllm#44701): these keys do not rely on it."""
    engine = Engine(blocks=60, host=200)
    (prompt,) = prompts(1)
    engine.add("salted", prompt, 8, cache_salt="X")
    engine.drain()
    engine.scheduler.reset_prefix_cache()
    engine.add("adapted", prompt, 8, lora_request=LoRARequest("X", 1, adapter_path("X")))
    engine.drain()
    same(
        engine.answer("adapted"),
        undisturbed(prompt, 8, start_of(None, adapter_path("X"))),
        "its answer",
    )
    same(engine.computed["adapted"], len(prompt) + 7, "computed of it")
    engine.close()


@case
def an_adapter_that_was_loaded_again_finds_nothing_of_before() -> None:
    """Under its old name (vllm#30931)."""
    engine = Engine(blocks=60, host=200)
    (prompt,) = prompts(1)
    for name, again in (("r0", False), ("r1", False), ("r2", True), ("r3", False)):
        adapter = LoRARequest("X", 1, adapter_path("X"), load_inplace=again)
        engine.add(name, prompt, 8, lora_request=adapter)
        engine.drain()
        engine.scheduler.reset_prefix_cache()
    rest, all_ = left_to_compute(prompt, 8), len(prompt) + 7
    have = [engine.computed[name] for name in ("r0", "r1", "r2", "r3")]
    same(have, [all_, rest, all_, rest], "computed of each")
    engine.close()


@case
def after_new_weights_a_reset_alone_ends_what_is_below() -> None:
    (prompt,) = prompts(1)
    for said, wants in ((None, left_to_compute(prompt, 8)), (False, len(prompt) + 7)):
        engine = Engine(blocks=60, host=200, keep_on_reset=said)
        answered(engine, [prompt], 8)
        engine.scheduler.reset_prefix_cache()
        engine.weights += said is False
        answered(engine, [prompt], 8, first=1)
        same(engine.computed["r1"], wants, f"computed where keep_on_reset is {said}")
        engine.close()


@case
def what_ended_just_before_a_reset_is_not_found_after_it() -> None:
    engine = Engine(blocks=60, host=200)
    (prompt,) = prompts(1)
    engine.add("r0", prompt, 8)
    while not engine.requests["r0"].is_finished():
        engine.step()
    engine.scheduler.reset_prefix_cache(reset_connector=True)
    engine.weights += 1
    answered(engine, [prompt], 8, first=1)
    same(engine.computed["r1"], len(prompt) + 7, "computed of the second")
    engine.close()


@case
def drafted_tokens_cost_no_preempted_request_anything() -> None:
    asked = prompts(6)
    chance = random.Random(3)
    engine = Engine(blocks=39, host=200, drafts=chance)
    answered(engine, asked, 60)
    same(engine.preempted > 0, 1, "preempted")
    same(engine.front.cache.stats()["parkings"], engine.preempted, "parked")
    # Each row of a step computes its last token, and what was drafted behind it.
    ample = Engine(blocks=200, host=200, drafts=random.Random(3))
    answered(ample, asked, 60)
    again = sum(engine.computed.values()) - sum(ample.computed.values())
    # What is drafted depends on the order of the rows.
    same(again < 40, 1, f"{again} computed again")
    engine.close()
    ample.close()


@case
def ranks_of_latent_kv_share_one_host_and_leave_no_file() -> None:
    engine = Engine(blocks=39, host=200, ranks=2, parallel="latent")
    shared = [rank.connector.get_handshake_metadata().shared for rank in engine.ranks]
    same(len(set(map(tuple, shared))), 1, "files of two ranks")
    same(Path(*shared[0]).exists(), 0, "whether it has a name still")
    answered(engine, prompts(6), 60)
    same(engine.preempted > 0, 1, "preempted")
    engine.close()


@case
def a_request_decides_for_itself() -> None:
    engine = Engine(blocks=60, host=200)
    asks = [{"blockyard.offload": "none"}, None, {"blockyard.load": False}, None, {"other": 1}]
    (prompt,) = prompts(1)
    for at, own in enumerate(asks):
        engine.add(f"r{at}", prompt, 8, asks=own)
        engine.drain()
        engine.scheduler.reset_prefix_cache()
    rest, all_ = left_to_compute(prompt, 8), len(prompt) + 7
    wants = [all_, all_, all_, rest, rest]
    same([engine.computed[f"r{at}"] for at in range(5)], wants, "computed of each")
    engine.close()


@case
def a_step_in_flight_is_parked_at_what_it_has_computed() -> None:
    """Under asynchronous scheduling: computed tokens less placeholders (vllm-ascend#10820)."""
    engine = Engine(blocks=39, host=200, asynchronous=True)
    seen = []
    inner = engine.front.connector.preempted

    def preempted(name: str, keys: Any, ids: Any, tokens: int) -> None:
        request = engine.requests[name]
        seen.append(tokens - (request.num_tokens - 1))
        inner(name, keys, ids, tokens)

    engine.front.connector.preempted = preempted
    answered(engine, prompts(6), 60)
    same(set(seen), {0}, "tokens kept beyond what was computed")
    engine.close()


@case
def a_connector_that_only_caches_needs_no_delivery() -> None:
    """UCM#1350 deadlocked on it."""
    engine = Engine(blocks=39, host=200)
    same(bool(engine.scheduler.connector.requires_kv_delivery), 0, "requires_kv_delivery")
    engine.close()
