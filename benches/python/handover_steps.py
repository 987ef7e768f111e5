"""What a step of 256 decodes costs beside 64 hand-overs in the air, for `handover.py`.

Each of four prefill engines is a process of its own, which is stopped when it has answered the
takes of its 16 requests: these have begun then, and their blocks do not come. Steps beside them
alternate with those of another cache that has none.
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
"""Hand-overs, those of one prefill engine, their blocks, and the steps that are measured."""
LAYOUT = by.KVLayout.llama(layers=2, kv_heads=1, head_dim=8, dtype="bfloat16", block_size=16)
NAMES = {"model": "a measurement", "weights": "none"}


class Prefiller(NamedTuple):
    """A prefill engine."""

    pid: int
    at: str
    said: list[str]
    """Its offers, in JSON."""


def prompt(number: int) -> np.ndarray[Any, Any]:
    """The tokens of a request that is handed over."""
    return np.random.default_rng(1_000 + number).integers(2_000, 9_000, BLOCKS * 16 + 1)


def prefill(link: Connection, first: int) -> None:
    """Holds and offers the blocks of some prompts, until it is told to end."""
    with by.local(LAYOUT, device=2 * EACH * (BLOCKS + 1), namespace=NAMES) as cache:
        side = PrefillSide(cache, cache.crane.device)
        said = []
        for number in range(first, first + EACH):
            lease = cache.begin(prompt(number))
            cache.seal([lease], [BLOCKS * 16])
            offer = side.offer(cache.hold(cache.keys(prompt(number)[:-1])))
            assert offer is not None
            said.append(offer.to_json())
            cache.finish([lease])
        link.send((os.getpid(), side.address, said))
        link.recv()
        side.close()


@contextmanager
def prefiller(first: int) -> Iterator[Prefiller]:
    """A prefill engine in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    process = context.Process(target=prefill, args=(its, first), daemon=True)
    process.start()
    try:
        one = Prefiller(*ours.recv())
        yield one
        os.kill(one.pid, signal.SIGCONT)
        ours.send(None)
        process.join(10)
    finally:
        process.kill()


class Engine(NamedTuple):
    """A batch that decodes, and its cache."""

    cache: Any
    scheduler: by.Scheduler

    def turn(self) -> float:
        """Returns the CPU microseconds of a step, with its copies and its output."""
        begun = time.thread_time_ns()
        step = self.scheduler.schedule()
        self.cache.step()
        own = time.thread_time_ns() - begun
        spent = (own + answer(self.scheduler, step)) / 1e3
        self.scheduler.on_acks([by.Ack(*stop) for stop in step.stops])
        return spent

    def take_over(self, source: Prefiller, first: int) -> None:
        """Has requests begin whose blocks are on their way, and do not come."""
        for number, said in enumerate(source.said, first):
            name, tokens = f"taken {number}", prompt(number)
            ticket = self.cache.decode_side.reserve(name, len(tokens), 8, patience=60.0)
            assert ticket is not None
            assert self.cache.decode_side.offered(name, Offer.of(said))
            self.scheduler.add(by.NewRequest(name, tokens, max_tokens=8, ticket=ticket))
        os.kill(source.pid, signal.SIGSTOP)
        time.sleep(0.05)  # until it stands still
        self.turn()
        os.kill(source.pid, signal.SIGCONT)
        time.sleep(0.2)  # the takes are answered, and nothing is read
        os.kill(source.pid, signal.SIGSTOP)
        time.sleep(0.05)
        for _ in range(5):
            self.turn()


def beside(rounds: int) -> tuple[list[float], float]:
    """Returns, for each round, a step beside the hand-overs over one without; and the last one."""
    ratios, alone = list[float](), 0.0
    with ExitStack() as ends:
        firsts = range(0, OFFERS, EACH)
        sources = [ends.enter_context(prefiller(first)) for first in firsts]
        # Room for the batch until the end, and for all that is taken over.
        sized: Any = {"device": 90_000, "remote": 10_000, "namespace": NAMES}
        sized["peers"] = [one.at for one in sources]
        engines = []
        for _ in range(2):
            cache = ends.enter_context(by.local(LAYOUT, **sized))
            scheduler = decoding(cache, ROWS, 0, spare=OFFERS, lookup=cache.lookup)
            engines.append(Engine(cache, scheduler))
        for first, source in zip(firsts, sources, strict=True):
            engines[0].take_over(source, first)
        for _ in range(1 + rounds):
            spent = [[engine.turn() for engine in engines] for _ in range(STEPS)]
            own, alone = np.median(spent, axis=0).tolist()
            ratios.append(own / alone)
            if (flying := engines[0].cache.stats()["flights"]) != OFFERS:
                raise SystemExit(f"{flying} of {OFFERS} hand-overs are in the air")
    return ratios[1:], alone
