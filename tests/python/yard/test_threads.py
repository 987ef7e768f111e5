"""Threads: one cache for all of them, and Python's own threads run on meanwhile."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from statistics import median
from typing import Any

import numpy as np
import pytest

import blockyard as by
from yard import at_last, at_rest, begin, text

# A thread that computes gives the interpreter up only when another has waited this long.
INTERVAL = 0.005


@contextlib.contextmanager
def beside(*acts: Callable[[], object]) -> Iterator[None]:
    """Runs each again and again in a thread of its own."""
    stop, failures = threading.Event(), []

    def again(act: Callable[[], object]) -> None:
        try:
            while not stop.is_set():
                act()
        except BaseException as failure:  # noqa: BLE001
            failures.append(failure)

    threads = [threading.Thread(target=again, args=(act,), daemon=True) for act in acts]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert not failures


def together(workers: list[Callable[[], None]]) -> None:
    """Runs them all at once and raises what any of them raised."""
    failures: list[BaseException] = []
    start = threading.Barrier(len(workers))

    def run(work: Callable[[], None]) -> None:
        try:
            start.wait(30)
            work()
        except BaseException as failure:  # noqa: BLE001
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a thread never ends"
    if failures:
        raise failures[0]


def one_life(cache: by.KVCache, random: Random) -> None:
    prompt = text(random.randrange(4), random.randrange(1, 40))
    try:
        lease = begin(cache, prompt, reserve=random.choice([0, 8]))
    except by.NoRoom:
        return
    cache.commit(lease.plans)
    for _ in range(random.randrange(4)):
        cache.append(lease, [random.randrange(2)] * 3)
        cache.grow(lease, 3)
        computed = min(lease.appended, lease.tokens, lease.blocks * 4)
        cache.seal(lease, max(computed, 1))
        slots = cache.block_tables(lease)
        assert slots.min() > 0
    if random.random() < 0.4 and lease.tokens == lease.appended <= lease.blocks * 4:
        with contextlib.suppress(by.NoRoom):
            parked = cache.park(lease, lease.appended)
            computed = parked.computed
            plan = cache.demote(random.randrange(4), of=parked)
            if plan is not None:
                cache.commit(plan, random.randrange(len(plan) + 1))
            try:
                again = cache.begin(parked)
            except by.NoRoom:
                cache.abandon(parked)
                return
            if isinstance(again, by.Soon):
                cache.abandon(parked)
                return
            broken = again.cached != computed
            cache.commit(again.plans)
            assert again.state == "ready" or broken
            lease = again
    if random.random() < 0.1:
        return
    cache.finish(lease, retention=random.choice(["ordinary", "session-ended", "retain"]))


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads take turns a hundred times as often as they would."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(INTERVAL / 100)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("eviction", ["recency", "heap"])
def test_eight_threads_share_one_cache_and_nothing_is_lost(eviction: Any) -> None:
    cache = by.KVCache(block_size=4, device=60, host=60, eviction=eviction)

    def work(seed: int) -> None:
        random = Random(seed)
        for turn in range(600):
            one_life(cache, random)
            if turn % 20 == seed:
                assert cache.audit() is None
            stats = cache.stats()
            sets = ("free", "claimed", "pinned", "idle", "quarantined")
            for tier in ("device", "host"):
                held = sum(stats[f"{tier}_{name}"] for name in sets)
                assert held == stats[f"{tier}_capacity"], "conservation, in any reading"

    together([partial(work, seed) for seed in range(8)])
    stats = cache.stats()
    for name in ("begun", "resumed", "sealed", "cached", "duplicates", "leaked", "device_evicted"):
        assert stats[name] > 20, (name, stats)
    at_rest(cache)


@pytest.mark.usefixtures("hurried")
def test_of_many_threads_that_end_one_lease_exactly_one_does() -> None:
    cache = by.KVCache(block_size=4, device=64, host=64)
    for name in range(40):
        lease = begin(cache, text(name, 8))
        refused: list[int] = []

        def end(lease: by.Lease = lease, refused: list[int] = refused) -> None:
            try:
                cache.finish(lease)
            except by.SpentLease:
                refused.append(1)

        together([end] * 4)
        assert len(refused) == 3
    assert cache.stats()["finished"] == 40
    assert cache.stats()["rejected"] == 120
    at_rest(cache)


def ticks_during(act: Callable[[], object]) -> tuple[int, float]:
    """How often another Python thread came to run while this call ran, and for how long it did."""
    ticks = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    time.sleep(0.02)
    start = time.perf_counter()
    act()
    end = time.perf_counter()
    stop.set()
    thread.join(30)
    return sum(start < at < end for at in ticks), end - start


@pytest.fixture(scope="module")
def big() -> by.KVCache:
    """Half a million idle blocks of one token."""
    cache = by.KVCache(block_size=1, device=600_000, host=10)
    for name in range(10):
        tokens = np.arange(50_000, dtype=np.uint32)
        lease = begin(cache, tokens, salt=str(name))
        cache.seal(lease, 50_000)
        cache.finish(lease)
    assert cache.stats()["device_idle"] == 500_000
    return cache


def test_a_python_thread_runs_on_while_a_long_prompt_is_hashed() -> None:
    cache = by.KVCache(block_size=16, device=64)
    tokens = np.arange(4_000_000, dtype=np.uint32)
    at_last(lambda: ticks_during(lambda: cache.keys(tokens)), lambda counted: counted[0] >= 3)


@pytest.mark.law("4.7-50")
def test_a_python_thread_runs_on_during_a_long_verb(big: by.KVCache) -> None:
    at_last(lambda: ticks_during(big.audit), lambda counted: counted[0] >= 3)


def test_no_thread_waits_for_the_lock_while_attached(big: by.KVCache) -> None:
    waited: list[float] = []

    def short() -> None:
        start = time.perf_counter()
        big.stats()
        waited.append(time.perf_counter() - start)

    def audits() -> tuple[float, float]:
        waited.clear()
        with beside(short, short):
            ticks, seconds = ticks_during(lambda: [big.audit() for _ in range(3)])
        return max(waited) / seconds, ticks / seconds

    # The short verbs did find it locked, and the others ran on: 20 times a second at least.
    at_last(audits, lambda seen: seen[0] > 1 / 30 and seen[1] >= 20)


def test_a_handles_length_is_known_while_tokens_are_being_appended_to_it() -> None:
    cache = by.KVCache(block_size=16, device=64)
    tokens = np.arange(8_000_000, dtype=np.uint32)

    def longest_wait() -> tuple[float, float]:
        lease, waits = begin(cache, [1]), [0.0]

        def ask() -> None:
            start = time.perf_counter()
            assert lease.appended in {1, 8_000_001}
            waits.append(time.perf_counter() - start)

        with beside(ask):
            start = time.perf_counter()
            cache.append(lease, tokens)
            seconds = time.perf_counter() - start
        cache.finish(lease)
        return max(waits) / seconds, seconds

    at_last(longest_wait, lambda measured: measured[0] < 0.3)


def test_appends_of_two_threads_to_one_sequence_are_both_counted() -> None:
    cache = by.KVCache(block_size=16, device=64)
    lease = begin(cache, [1])
    tokens = np.arange(200_000, dtype=np.uint32)
    together([lambda: cache.append(lease, tokens)] * 4)
    assert lease.appended == 800_001
    cache.finish(lease)


def short_verbs(cache: by.KVCache) -> dict[str, Callable[[], object]]:
    batch = [begin(cache, text(name, 20), reserve=4000) for name in range(8)]
    prompt, keys = text(70, 500), cache.keys(text(50, 6000))
    tables = np.zeros((8, 256), np.int32)
    return {
        "grow": lambda: cache.grow(batch, 0),
        "append": lambda: cache.append(batch, [1] * 8),
        "seal": lambda: cache.seal(batch, 20),
        "block_tables": lambda: cache.block_tables(batch, tables, cells="changed"),
        "slot_mapping": lambda: cache.slot_mapping(batch, 0, 4),
        "probe": lambda: cache.probe(keys),
        "begin, finish": lambda: cache.finish(begin(cache, keys)),
        "park, resume": lambda: cache.finish(
            begin(cache, cache.park(begin(cache, text(60, 90)), 90))
        ),
        "keys": lambda: cache.keys(prompt),
        "stats": cache.stats,
        "a property": lambda: batch[0].state,
    }


def test_a_short_verb_keeps_the_interpreter_and_a_long_one_gives_it_away(big: by.KVCache) -> None:
    """No other thread gets the interpreter unless it is given away, or for a thousand seconds."""
    cache = by.KVCache(block_size=16, device=4096, host=4096)
    verbs = short_verbs(cache)
    turns: list[int] = []

    def take_a_turn() -> None:
        turns.append(1)
        time.sleep(0)

    sys.setswitchinterval(1000)
    try:
        with beside(take_a_turn):
            time.sleep(0.01)
            for name, verb in verbs.items():
                before = len(turns)
                for _ in range(1000):
                    verb()
                assert len(turns) == before, name
            before = len(turns)
            big.audit()
            assert len(turns) > before
    finally:
        sys.setswitchinterval(INTERVAL)


def rate(act: Callable[[], object]) -> float:
    """Calls per second, the best of three."""
    best = 0.0
    for _ in range(3):
        calls, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < 0.02:
            act()
            calls += 1
        best = max(best, calls / spent)
    return best


def medians(act: Callable[[], object], calls: int = 400) -> float:
    spent = []
    for _ in range(calls):
        start = time.perf_counter()
        act()
        spent.append(time.perf_counter() - start)
    return median(spent)


def test_a_short_verb_beside_a_busy_thread_does_not_wait_for_its_turn() -> None:
    assert sys.getswitchinterval() == INTERVAL
    cache = by.KVCache(block_size=16, device=4096, host=4096)
    verbs = short_verbs(cache)

    def slower(name: str) -> tuple[str, float, float, float]:
        """How much less often it is called, and the seconds of a call, alone and beside another."""
        verb = verbs[name]
        often, alone = rate(verb), medians(verb)
        with beside(lambda: sum(range(1000))):
            return name, often / rate(verb), alone, medians(verb)

    def keeps_up(seen: tuple[str, float, float, float]) -> bool:
        _name, times, alone, busy = seen
        return times < 20 and busy < 20 * alone + 20e-6 < INTERVAL

    for name in verbs:
        at_last(partial(slower, name), keeps_up, tries=5)
