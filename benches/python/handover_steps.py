"""What a step of 256 decodes costs beside 64 hand-overs in the air, for `handover.py`.

Each of four prefill instances is a process of its own, which is stopped when it has answered the
takes of its 16 requests: these have begun then, and their blocks do not come. Steps with and
without them alternate by rounds, on one cache.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

import blockyard as by
from blockyard.handover.offer import Offer
from blockyard.handover.prefill_side import PrefillSide
from steps import ROWS, answer, decoding

OFFERS, EACH, BLOCKS, STEPS = 64, 16, 16, 200
"""Hand-overs, those of one prefill instance, their blocks, and the steps that are measured."""
LAYOUT = by.KVLayout.llama(layers=2, kv_heads=1, head_dim=8, dtype="bfloat16", block_size=16)
NAMES = {"model": "a measurement", "weights": "none"}


class Prefiller(NamedTuple):
    """A prefill instance."""

    link: Connection
    pid: int
    at: str


def prompt(number: int) -> np.ndarray[Any, Any]:
    """The tokens of a request that is handed over."""
    return np.random.default_rng(1_000 + number).integers(2_000, 9_000, BLOCKS * 16 + 1)


def prefill(link: Connection) -> None:
    """Holds and offers the blocks of so many prompts as it is asked for, round by round."""
    with by.local(LAYOUT, device=2 * EACH * (BLOCKS + 1), namespace=NAMES) as cache:
        side = PrefillSide(cache, cache.crane.device)
        link.send((os.getpid(), side.address))
        while (first := link.recv()) is not None:
            said = []
            for number in range(first, first + EACH):
                lease = cache.begin(prompt(number))
                cache.seal([lease], [BLOCKS * 16])
                offer = side.offer(cache.hold(cache.keys(prompt(number)[:-1])))
                assert offer is not None
                said.append(offer.to_json())
                cache.finish([lease])
            link.send(said)
        side.close()


@contextmanager
def prefiller() -> Iterator[Prefiller]:
    """A prefill instance in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    process = context.Process(target=prefill, args=(its,), daemon=True)
    process.start()
    try:
        yield Prefiller(ours, *ours.recv())
        ours.send(None)
        process.join(10)
    finally:
        process.kill()


def turns(scheduler: by.Scheduler, cache: Any, count: int) -> float:
    """Returns the median CPU microseconds of a step, with its copies and its output."""
    spent = []
    for _ in range(count):
        begun = time.thread_time_ns()
        step = scheduler.schedule()
        cache.step()
        own = time.thread_time_ns() - begun
        spent.append((own + answer(scheduler, step)) / 1e3)
        scheduler.on_acks([by.Ack(*stop) for stop in step.stops])
    return float(np.median(spent))


def beside(rounds: int) -> tuple[list[float], float]:
    """Returns, for each round, a step beside the hand-overs over one without; and the last one."""
    ratios, alone = list[float](), 0.0
    with ExitStack() as ends:
        sources = [ends.enter_context(prefiller()) for _ in range(OFFERS // EACH)]
        # Room for the batch until the end, and for all that is taken over.
        sized: Any = {"device": 90_000, "remote": 10_000, "namespace": NAMES}
        peers = [one.at for one in sources]
        cache = ends.enter_context(by.local(LAYOUT, **sized, peers=peers))
        scheduler = decoding(cache, ROWS, 0, spare=OFFERS, lookup=cache.lookup)
        for number in range(rounds + 1):
            alone = turns(scheduler, cache, STEPS)
            for place, source in enumerate(sources):
                in_air(source, scheduler, cache, number * OFFERS + place * EACH)
            ratios.append(turns(scheduler, cache, STEPS) / alone)
            if (flying := cache.stats()["flights"]) != OFFERS:
                raise SystemExit(f"{flying} of {OFFERS} hand-overs are in the air")
            for source in sources:
                os.kill(source.pid, signal.SIGCONT)
            ended, until = 0, time.monotonic() + 60
            while (ended := ended + len(scheduler.results())) < OFFERS:
                turns(scheduler, cache, 1)
                assert time.monotonic() < until
    return ratios[1:], alone


def in_air(source: Prefiller, scheduler: by.Scheduler, cache: Any, first: int) -> None:
    """Has requests begin whose blocks are on their way, and do not come."""
    source.link.send(first)
    for number, said in enumerate(source.link.recv(), first):
        name, tokens = f"taken {number}", prompt(number)
        ticket = cache.decode_side.reserve(name, len(tokens), 8, patience=60.0)
        assert ticket is not None
        assert cache.decode_side.offered(name, Offer.of(said))
        scheduler.add(by.NewRequest(name, tokens, max_tokens=8, ticket=ticket))
    os.kill(source.pid, signal.SIGSTOP)
    time.sleep(0.05)  # until it stands still
    turns(scheduler, cache, 1)
    os.kill(source.pid, signal.SIGCONT)
    time.sleep(0.2)  # the takes are answered, and nothing is read
    os.kill(source.pid, signal.SIGSTOP)
    time.sleep(0.05)
    turns(scheduler, cache, 5)
