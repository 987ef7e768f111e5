"""What a step costs: `Scheduler.schedule` and `on_output` for 256 decodes.

    python benches/python/steps.py [--steps 400] [--stalled 10]

Alone, and beside 10,000 requests that wait; how much of it is the yard; and how long `schedule`
takes while every copy stalls for ten seconds. It fails where a target is missed.
"""

import gc
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import blockyard as by
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.scheduling.engine import Output, Step
from blockyard.scheduling.options import SchedulerOptions
from blockyard.scheduling.scheduler import Scheduler
from blockyard.testing import Script, ScriptedCopier, hang
from report import Figure, asked, report

ROWS, PROMPT, WAITING = 256, 300, 10_000
VERBS = ("room", "set_headroom", "grow", "append", "seal", "decode_step", "commit")


class Timed(by.KVCache):
    """A cache that adds up the time inside its verbs."""

    __slots__ = ("spent",)
    spent: int


def _timed(verb: str) -> Callable[..., Any]:
    inner = getattr(by.KVCache, verb)

    def call(cache: Timed, *args: Any, **keywords: Any) -> Any:
        # A thread's CPU clock is a system call, which takes longer than some verbs.
        begun = time.perf_counter_ns()
        answer = inner(cache, *args, **keywords)
        cache.spent += time.perf_counter_ns() - begun
        return answer

    return call


for name in VERBS:
    setattr(Timed, name, _timed(name))


def decoding(cache: by.KVCache, rows: int, waiting: int, spare: int = 0, **more: Any) -> Scheduler:
    """Returns a scheduler with decoding rows, and a queue; `more` is its own."""
    scheduler = Scheduler(cache, SchedulerOptions(max_num_seqs=rows + spare), **more)
    tokens = np.random.default_rng(1).integers(0, 1_000, (rows, PROMPT + 15))
    # Their blocks become full in different steps.
    lengths = [PROMPT + number % 16 for number in range(rows)]
    for number, length in enumerate(lengths):
        scheduler.add(by.NewRequest(number, tokens[number, :length], max_tokens=5_000))
    step = scheduler.schedule()
    while len(step.decode) < rows:
        last = [one.seat for one in step.chunks if one.first + one.tokens == lengths[one.seat]]
        seats = np.array([*step.decode, *last], np.int32)
        scheduler.on_output(Output(step.number, seats, np.zeros(len(seats), np.uint32)))
        step = scheduler.schedule()
    answer(scheduler, step)
    for number in range(waiting):
        scheduler.add(by.NewRequest(f"waiting {number}", [1, 2, 3], max_tokens=5))
    return scheduler


def answer(scheduler: Scheduler, step: Step) -> int:
    """Takes the engine's output; returns the CPU nanoseconds of that."""
    seats = step.seats[step.samples]
    output = Output(step.number, seats, np.full(len(seats), step.number, np.uint32))
    begun = time.thread_time_ns()
    scheduler.on_output(output)
    return time.thread_time_ns() - begun


def turn(scheduler: Scheduler) -> float:
    """Returns the CPU microseconds of a step and its output."""
    begun = time.thread_time_ns()
    step = scheduler.schedule()
    spent = time.thread_time_ns() - begun
    return (spent + answer(scheduler, step)) / 1e3


def steps(count: int) -> dict[str, float]:
    """Returns medians in microseconds; the two queues alternate, so noise affects both."""
    cache = by.KVCache(block_size=16, device=90_000)
    alone = decoding(cache, ROWS, 0)
    crowded = decoding(by.KVCache(block_size=16, device=90_000), ROWS, WAITING)
    timed = Timed(block_size=16, device=90_000)
    timed.spent = 0
    yard = decoding(timed, ROWS, 0)
    spent: dict[str, list[float]] = {"alone": [], "crowded": [], "yard": []}
    for _ in range(count):
        spent["alone"].append(turn(alone))
        spent["crowded"].append(turn(crowded))
        timed.spent = 0
        turn(yard)
        spent["yard"].append(timed.spent / 1e3)
    return {what: float(np.median(times)) for what, times in spent.items()}


def stalled(seconds: float) -> tuple[int, float, float]:
    """Returns the steps, and the longest `schedule` in µs, CPU and wall, with all copies hung."""
    layout = by.KVLayout.llama(
        layers=1, kv_heads=1, head_dim=8, dtype="bfloat16", block_size=16, order="page-first"
    )
    cache = by.KVCache(layout, device=60_000, host=200)
    copier = ScriptedCopier(ThreadCopier(), Script([hang()] * 1_000))
    crane = by.Crane(
        layout,
        device=MemoryTier(layout, 60_000, name="device"),
        host=MemoryTier(layout, 200, name="host"),
        copier=copier,
    )
    prompt = np.arange(1, 65)
    below(cache, prompt)
    scheduler = decoding(cache, 64, 0, spare=1)
    scheduler.add(by.NewRequest("stalled", [*prompt, 5], max_tokens=4))
    cpu, elapsed = [], []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        wall, begun = time.perf_counter_ns(), time.thread_time_ns()
        step = scheduler.schedule()
        cpu.append(time.thread_time_ns() - begun)
        elapsed.append(time.perf_counter_ns() - wall)
        answer(scheduler, step)
        crane.submit(cache.dispatch())
        cache.commit(crane.poll())
        time.sleep(0.005)
    if cache.stats()["flights"] == 0:
        raise SystemExit("nothing was in flight: this has measured nothing")
    copier.release()
    crane.close()
    return len(cpu), max(cpu) / 1e3, max(elapsed) / 1e3


def parking(times: int) -> dict[str, float]:
    """Returns the median CPU microseconds of parking and resuming 1,000 blocks."""
    cache = by.KVCache(block_size=16, device=3_000, host=3_000)
    scheduler = Scheduler(cache, SchedulerOptions(max_num_seqs=8, max_num_batched_tokens=20_000))
    scheduler.add(by.NewRequest("long", np.arange(15_990), max_tokens=5_000))
    scheduler.add(by.NewRequest("other", np.arange(100), max_tokens=5_000))
    park, resume, plain = [], [], []
    for _ in range(times):
        turn(scheduler)
        turn(scheduler)
        begun = time.thread_time_ns()
        step = scheduler.schedule()
        plain.append(time.thread_time_ns() - begun)
        answer(scheduler, step)
        (long,) = (seat for seat in scheduler._shared.seats.bound() if seat.request.id == "long")
        scheduler._lifecycle.stop(long)
        step = scheduler.schedule()
        answer(scheduler, step)
        begun = time.thread_time_ns()
        scheduler.on_acks([by.Ack(*stop) for stop in step.stops])
        park.append(time.thread_time_ns() - begun)
        begun = time.thread_time_ns()
        step = scheduler.schedule()
        resume.append(time.thread_time_ns() - begun)
        answer(scheduler, step)
    if scheduler.stats()["resumes"] != times:
        raise SystemExit("no request came back: nothing was measured")
    return {
        "park": float(np.median(park)) / 1e3,
        "resume": float(np.median(resume) - np.median(plain)) / 1e3,
    }


def below(cache: by.KVCache, prompt: Any) -> None:
    """Publishes a prompt on the host alone."""
    lease = cache.begin(prompt)
    cache.seal(lease, len(prompt))
    cache.finish(lease)
    cache.demote(len(prompt) // 16)
    for plan in cache.dispatch():
        cache.commit(plan)
    cache.resize("device", 2)
    cache.resize("device", 60_000)


def figures(count: int, seconds: float) -> Iterator[Figure]:
    median = steps(count)
    # This collects the 20,000 requests from before, so that no step does.
    gc.collect()
    moves = parking(200)
    yield Figure(f"{ROWS} decodes, a step and its output, µs", median["alone"], 60)
    yield Figure("of it, inside the yard, µs", median["yard"], 30)
    yield Figure(f"beside {WAITING:,} that wait, times", median["crowded"] / median["alone"], 1.1)
    yield Figure("parking a sequence of 1,000 blocks, µs", moves["park"], 100)
    yield Figure("its resume, beside a plain schedule(), µs", moves["resume"], 100)
    number, cpu, elapsed = stalled(seconds)
    what = f"copies stalled, worst schedule() of {number:,}, µs of CPU"
    yield Figure(what, cpu, 1000, about=f"elapsed {elapsed:.0f}")


if __name__ == "__main__":
    given = asked(__doc__, steps=400, stalled=10.0)
    sys.exit(report(figures(given.steps, given.stalled), given.json))
