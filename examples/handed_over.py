"""An engine is killed, and another one goes on with its requests, whose KV is in a shared store.

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


def serve(url: str | None, asks: list[Ask], link: Connection) -> None:
    """An engine: it streams tokens, and at the end how many blocks it has loaded."""
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
        for ask in asks:
            scheduler.add(by.NewRequest(ask.name, ask.tokens, max_tokens=ask.most))
        while not scheduler.idle:
            step = scheduler.schedule()
            engine.submit(step)
            cache.step()
            if not len(step):  # copies, or the answer of the store, are on their way
                time.sleep(1e-3)
            outputs, acks = engine.poll()
            for output in outputs:
                scheduler.on_output(output)
            scheduler.on_acks(acks)
            ended = {str(one.request): one.tokens.tolist() for one in scheduler.results()}
            for name, count in sent.items():
                new = ended[name][count:] if name in ended else scheduler.sampled(name, count)
                if new:
                    link.send((name, new))
                    sent[name] += len(new)
        link.send((None, cache.stats()["remote_got_blocks"]))


def streamed(
    url: str | None, asks: list[Ask], kill_after: float = float("inf")
) -> tuple[dict[str, list[int]], int]:
    """Runs an engine until its end, or for so many tokens; returns these, and blocks loaded."""
    tokens: dict[str, list[int]] = {ask.name: [] for ask in asks}
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    engine = context.Process(target=serve, args=(url, asks, its))
    engine.start()
    its.close()
    loaded = 0
    try:
        while True:
            name, said = ours.recv()
            if name is None:
                loaded = said
            else:
                tokens[name] += said
            if sum(map(len, tokens.values())) >= kill_after:
                engine.kill()
    except EOFError:  # it has ended, or was killed
        engine.join()
    if engine.exitcode not in {0, -signal.SIGKILL}:
        raise SystemExit("An engine has failed, as it says above.")
    return tokens, loaded


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
    """Has an engine killed, another go on, and compares with one that nobody disturbs."""
    chance = random.Random(1)  # noqa: S311 - no secret
    asks = [
        Ask(f"request {number}", chance.choices(range(MODEL.vocabulary), k=60), 40)
        for number in range(6)
    ]
    kill_after = chance.randrange(40, 160)
    first, _ = streamed(url, asks, kill_after)
    # A router has the prompts, and the tokens that it has passed on: no more is needed.
    left = [
        Ask(ask.name, ask.tokens + first[ask.name], ask.most - len(first[ask.name]))
        for ask in asks
        if len(first[ask.name]) < ask.most
    ]
    then, loaded = streamed(url, left)
    whole = sum((len(ask.tokens) - 1) // LAYOUT.block_size for ask in left)
    print(f"The store: {url}")
    print(f"The first engine was killed after {sum(map(len, first.values()))} tokens.")
    print(f"Another went on with {len(left)} requests, and loaded {loaded} of {whole} full blocks.")
    wanted, _ = streamed(None, asks)
    got = {name: tokens + then.get(name, []) for name, tokens in first.items()}
    wrong = sum(got[name] != tokens for name, tokens in wanted.items())
    print(
        f"Requests whose tokens differ from those of an engine that was left undisturbed: {wrong}"
    )
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        play(sys.argv[1])
    else:
        with store() as own:
            play(own)
