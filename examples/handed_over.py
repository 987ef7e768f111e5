"""An engine is killed, the next one is stopped for a deploy; others go on with their requests.

The KV of these is in a shared store.

`docs/stores.md` explains it. It starts a Redis of its own, or takes the URL of a store:

    python examples/handed_over.py
"""

import multiprocessing
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import NamedTuple

import blockyard as by
from blockyard.reference.model import Model
from blockyard.reference.reference import alone
from blockyard.reference.sampling import Sampling
from blockyard.reference.weights import ModelConfig

MODEL = ModelConfig()
LAYOUT = MODEL.layout(block_size=8)
# What the bytes depend on: engines that have another name for any of them share nothing.
NAMES = {"model": "a-small-llama", "weights": "2026-11-01"}

PATIENCE = 5.0  # seconds; 0.02 is the default


class Ask(NamedTuple):
    """A request: under the same name, the same tokens follow the same tokens, on any engine."""

    name: str
    tokens: list[int]
    most: int


class Told(NamedTuple):
    """What an engine says at its end."""

    loaded: int = 0
    """Blocks that it has loaded from the store."""
    found: dict[str, int] | None = None
    """By request: tokens whose KV it had not to compute."""


def serve(url: str | None, asks: list[Ask], link: Connection, stop_after: float) -> None:
    """An engine: it streams tokens, and at its end it says what it has found.

    After so many tokens it is to stop, as a server does at a SIGTERM.
    """
    stores = None if url is None else [url]
    # Every full block is written to the store as soon as it is computed.
    config = by.Config(
        layout=LAYOUT,
        device=40 if stores else 400,
        write="through" if stores else "on-evict",
        ahead=16,
        namespace=NAMES,
    )
    sampling = Sampling(temperature=0.8)
    cache, engine = alone(Model(MODEL), config, sampling=sampling, stores=stores)
    with cache:
        # Each request asks the store once, on a thread of its own: no step waits for a store. A
        # request waits for the answer, here as long as a busy machine may need.
        options = by.SchedulerOptions(stops=engine.stops, lookup_patience=PATIENCE)
        scheduler = by.Scheduler(cache, options, lookup=cache.lookup)
        sent = dict.fromkeys((ask.name for ask in asks), 0)
        found = dict[str, int]()
        for ask in asks:
            scheduler.add(by.NewRequest(ask.name, ask.tokens, max_tokens=ask.most))
        while not scheduler.idle:
            if scheduler.takes_requests and sum(sent.values()) >= stop_after:
                # Its requests move: what the store lacks of their KV is written now.
                scheduler.evacuate_all(patience=PATIENCE)
            step = scheduler.schedule()
            engine.submit(step)
            cache.step()
            if not len(step):  # copies, or the answer of the store, are on their way
                time.sleep(1e-3)
            outputs, acks = engine.poll()
            for output in outputs:
                scheduler.on_output(output)
            scheduler.on_acks(acks)
            results = scheduler.results()
            found |= {str(one.request): one.cached_tokens.total for one in results}
            ended = {str(one.request): one.tokens.tolist() for one in results}
            for name, count in sent.items():
                new = ended[name][count:] if name in ended else scheduler.sampled(name, count)
                if new:
                    link.send((name, new))
                    sent[name] += len(new)
        link.send((None, Told(cache.stats()["remote_got_blocks"], found)))


def streamed(
    url: str | None,
    asks: list[Ask],
    *,
    kill_after: float = float("inf"),
    stop_after: float = float("inf"),
) -> tuple[dict[str, list[int]], Told]:
    """Runs an engine until its end, and returns its tokens; after so many it is killed or stops."""
    tokens: dict[str, list[int]] = {ask.name: [] for ask in asks}
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    engine = context.Process(target=serve, args=(url, asks, its, stop_after))
    engine.start()
    its.close()
    told = Told()
    try:
        while True:
            name, said = ours.recv()
            if name is None:
                told = said
            else:
                tokens[name] += said
            if sum(map(len, tokens.values())) >= kill_after:
                engine.kill()
    except EOFError:  # it has ended, or was killed
        engine.join()
    if engine.exitcode not in {0, -signal.SIGKILL}:
        raise SystemExit("An engine has failed, as it says above.")
    return tokens, told


@contextmanager
def store() -> Iterator[str]:
    """A store of this program: a Redis, or a folder where there is none."""
    with tempfile.TemporaryDirectory(prefix="blockyard-handed-over-") as folder:
        redis = shutil.which("redis-server")
        if redis is None or find_spec("redis") is None or find_spec("hiredis") is None:
            lacking = "redis-server" if redis is None else "client of Redis (the extra [redis])"
            print(f"There is no {lacking} here: a folder is the store.")
            yield f"file://{folder}"
            return
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        words = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", folder]
        server = subprocess.Popen([redis, *words], stdout=subprocess.DEVNULL)  # noqa: S603
        try:
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    time.sleep(0.01)
            yield f"redis://127.0.0.1:{port}"
        finally:
            server.kill()
            server.wait()


def play(url: str) -> None:
    """Has engines killed and stopped, others go on, and compares with one left undisturbed."""
    chance = random.Random(1)  # noqa: S311 - no secret
    asks = [
        Ask(f"request {number}", chance.choices(range(MODEL.vocabulary), k=60), 40)
        for number in range(6)
    ]
    kill_after = chance.randrange(40, 160)
    got: dict[str, list[int]] = {ask.name: [] for ask in asks}

    def left() -> list[Ask]:
        # A router has the prompts, and the tokens that it has passed on: no more is needed.
        return [
            Ask(ask.name, ask.tokens + got[ask.name], ask.most - len(got[ask.name]))
            for ask in asks
            if len(got[ask.name]) < ask.most
        ]

    def run(**ends: float) -> Told:
        tokens, told = streamed(url, left(), **ends)
        for name, new in tokens.items():
            got[name] += new
        return told

    print(f"The store: {url}")
    run(kill_after=kill_after)
    print(f"The first engine was killed after {sum(map(len, got.values()))} tokens.")
    then, before = left(), sum(map(len, got.values()))
    told = run(stop_after=30)
    whole = sum((len(ask.tokens) - 1) // LAYOUT.block_size for ask in then)
    loaded = f"{told.loaded} of {whole} full blocks"
    print(f"Another went on with {len(then)} requests, and loaded {loaded}.")
    moved, more = left(), sum(map(len, got.values())) - before
    print(f"It was stopped for a deploy after {more} more tokens, and moved {len(moved)} requests.")
    found = run().found or {}
    # All but the newest token of each: that one is computed for the next.
    again = max((len(ask.tokens) - 1 - found[ask.name] for ask in moved), default=0)
    print(
        f"A third computed at most {again} tokens of each of them again: a block has "
        f"{LAYOUT.block_size}."
    )
    wanted, _ = streamed(None, asks)
    wrong = sum(got[name] != tokens for name, tokens in wanted.items())
    print(
        f"Requests whose tokens differ from those of an engine that was left undisturbed: {wrong}"
    )
    if wrong or again >= LAYOUT.block_size:
        raise SystemExit(1)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        play(sys.argv[1])
    else:
        with store() as own:
            play(own)
