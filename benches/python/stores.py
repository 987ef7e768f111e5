"""`make bench-stores`: what shared stores cost, beside their clients alone and beside a probe.

    python benches/python/stores.py [--mib 64] [--rounds 5] [--only rates …]

Redis and Mooncake run here, on loopback. Each row alternates with what it is compared with, in one
process, and its figure is the median of the ratios of the rounds. The client alone is what a
program would write with it: as many threads, the same bytes in one value each, no record, no sum,
and of a get no copy into a slot. It fails where a goal is missed.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Protocol

import numpy as np

sys.path.append(str(Path(__file__).parents[2] / "tests/python/support"))

import blockyard as by
from blockyard.crane.copiers.store_copier import StoreCopier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.crane.tiers.remote import RemoteTier
from blockyard.reference.model import Model
from blockyard.reference.weights import ModelConfig
from blockyard.stores import Session
from blockyard.stores.lookup import StoreLookup
from blockyard.stores.open import open_store
from blockyard.tools.disk.bench import Figure as Timing
from blockyard.tools.disk.bench import timed
from blockyard.tools.proof.conversations import Conversation
from blockyard.tools.proof.play import MemoryBudget, Play
from frozen_disk import TIMED, Times
from frozen_disk import timed as note_times
from report import Figure, busy, report
from store_servers import free_port, mooncake, redis_server
from watched_store import WatchedStore

KIB, MIB = 1 << 10, 1 << 20
THREADS = 2
"""Each way, of ours and of the client alone."""
SIZES = {"2 MiB": 32, "128 KiB": 2}
"""Layers of the models whose blocks have these sizes."""
GOAL = 0.85
PAUSE = 1e-3
"""Seconds between two looks at the copies, fewer than between two steps of an engine."""
PART = 8
"""Blocks of a plan."""
NAMES = {"model": "a measurement", "weights": "none"}


class Given(NamedTuple):
    """The options."""

    nbytes: int
    rounds: int


class Client(Protocol):
    """A client as a program would use it, in one thread."""

    def put(self, key: str, slot: int) -> None: ...
    def get(self, key: str, slot: int) -> None: ...


class Redis:
    """redis-py, with hiredis."""

    def __init__(self, url: str, plane: Any) -> None:
        import redis  # noqa: PLC0415 - its package may be missing

        self._inner = redis.Redis.from_url(url)
        self._rows = [memoryview(row).cast("B") for row in plane]

    def put(self, key: str, slot: int) -> None:
        assert self._inner.set(key, self._rows[slot])

    def get(self, key: str, slot: int) -> None:
        found: Any = self._inner.get(key)
        assert len(found) == self._rows[slot].nbytes


class Mooncake:
    """Its own client, from and into memory that is registered."""

    _shared: dict[str, Any] = {}  # noqa: RUF012 - a process has one for each master

    def __init__(self, url: str, plane: Any) -> None:
        master = url.removeprefix("mooncake://").partition("?")[0]
        self._first, self._nbytes = plane.__array_interface__["data"][0], plane[0].nbytes
        if master not in self._shared:
            from mooncake.store import MooncakeDistributedStore  # noqa: PLC0415 - likewise

            self._shared[master] = inner = MooncakeDistributedStore()
            assert not inner.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", master)
        self._inner = self._shared[master]
        # Again it refuses: each thread of a client has the same memory.
        self._inner.register_buffer(self._first, plane.nbytes)

    def put(self, key: str, slot: int) -> None:
        assert not self._inner.put_from(key, self._first + slot * self._nbytes, self._nbytes)

    def get(self, key: str, slot: int) -> None:
        code = self._inner.get_into(key, self._first + slot * self._nbytes, self._nbytes)
        assert code == self._nbytes, code


class Both:
    """Ours and the client alone, over one store, each with blocks of its own."""

    def __init__(self, url: str, size: str, nbytes: int, kind: type[Any]) -> None:
        self.layout = by.KVLayout.llama(layers=SIZES[size], kv_heads=8, head_dim=128)
        self.blocks = max(nbytes // self.layout.block_bytes, PART)
        self.memory = MemoryTier(self.layout, self.blocks, name="host")
        (plane,) = self.memory.planes
        mixed = np.random.default_rng(1)
        plane[...] = mixed.integers(0, 256, plane.shape, np.uint8)
        self.store = open_store(url)
        self.tier = RemoteTier(self.layout, self.blocks, [self.store], identity=NAMES)
        self.copier = StoreCopier(self.tier, patience=60, threads=THREADS)
        self._slots = np.arange(self.blocks, dtype=np.uint32)
        self._clients = [kind(url, plane) for _ in range(THREADS)]
        self._pool = ThreadPoolExecutor(THREADS)
        self._round, self._names = 0, list[str]()
        self._session = self.store.connect()
        self.renew()

    def renew(self) -> None:
        """Other keys, as Mooncake puts nothing twice; the values of before go."""
        self._drop()
        self._round += 1
        self.keys = np.random.default_rng(self._round).integers(0, 256, (self.blocks, 32), np.uint8)
        self.keys[:, 0] |= 1
        self._names = [f"alone/{self._round}/{block:064x}" for block in range(self.blocks)]

    def _drop(self) -> None:
        if self._names:
            gone = [self.tier.place.address(key.tobytes()) for key in self.keys]
            self._session.delete([*gone, *self._names])

    def put(self) -> None:
        self._copy(self.memory, self.tier)

    def get(self) -> None:
        self._copy(self.tier, self.memory)

    def _copy(self, source: Any, destination: Any) -> None:
        flying = []
        for first in range(0, self.blocks, PART):
            part = slice(first, first + PART)
            slots, keys = self._slots[part], self.keys[part]
            ends = (source, destination, slots, slots)
            receipt: Any = self.copier.start_keyed(*ends, keys=keys, parents=np.zeros_like(keys))
            flying.append((len(slots), receipt))
        for blocks, receipt in flying:
            while (landed := receipt.poll()) is None:
                time.sleep(PAUSE)
            if landed.good != blocks:
                raise SystemExit(f"{landed.good} of {blocks} blocks: {self.tier.lane.why()}")

    def put_alone(self) -> None:
        self._alone("put")

    def get_alone(self) -> None:
        self._alone("get")

    def _alone(self, call: str) -> None:
        def some(first: int) -> None:
            work = getattr(self._clients[first], call)
            for block in range(first, self.blocks, THREADS):
                work(self._names[block], block)

        list(self._pool.map(some, range(THREADS)))

    def close(self) -> None:
        self._drop()
        self.copier.close()
        self.tier.close()
        self._session.close()
        self._pool.shutdown()


@contextmanager
def running(kind: str) -> Iterator[tuple[str, type[Any]]]:
    """A server, and its client."""
    with ExitStack() as stack:
        if kind == "Redis":
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-stores-"))
            yield stack.enter_context(redis_server(Path(folder), memory="1gb")).url, Redis
        else:
            yield stack.enter_context(mooncake(1 << 30)).url, Mooncake


def compared(name: str, goal: float | None, ours: Timing, alone: Timing, nbytes: int) -> Figure:
    rates = [f"{one.rate(nbytes) / 1e9:.2f}" for one in (alone, ours)]
    cpu = [f"{median(one.cpu):.2f}" for one in (alone, ours)]
    about = f"{' and '.join(rates)} GB/s, CPU s {', '.join(cpu)}: the client alone, and ours"
    return Figure(name, ours.part_of(alone), least=goal, about=about)


def rates(given: Given) -> Iterator[Figure]:
    """A put and a get with record and sum, beside the client alone; then beside a busy thread."""
    for kind in ("Redis", "Mooncake"):
        with running(kind) as (url, client):
            for size in SIZES:
                with closing(Both(url, size, given.nbytes, client)) as both:
                    nbytes = both.blocks * both.layout.block_bytes
                    works = {
                        "pa": both.put_alone,
                        "p": both.put,
                        "g": both.get,
                        "ga": both.get_alone,
                    }
                    # They take a tenth of a second each, and differ by a third.
                    figures = turned(both, works, 3 * given.rounds)
                    for way, name in (("p", "put"), ("g", "get")):
                        what = f"{kind}: {name}, {size}"
                        yield compared(what, GOAL, figures[way], figures[f"{way}a"], nbytes)
                    with busy():
                        beside = turned(both, works, given.rounds)
                    for way, name in (("p", "put"), ("g", "get")):
                        what = f"{kind}: {name}, {size}, beside a busy Python thread"
                        yield compared(what, None, beside[way], beside[f"{way}a"], nbytes)
                        part = beside[f"{way}a"].part_of(figures[f"{way}a"])
                        what = f"{kind}: {name}, {size}, the client beside it / without"
                        yield Figure(what, part)


def turned(both: Both, works: dict[str, Callable[[], None]], rounds: int) -> dict[str, Timing]:
    """Puts before gets, which need them; ours and the client alone begin in turns."""
    figures = {name: Timing([], []) for name in works}
    for count in range(rounds + 1):
        both.renew()
        for ways in (("pa", "p"), ("ga", "g")):
            for name in ways if count % 2 else reversed(ways):
                seconds, cpu = timed(works[name])
                if count:
                    figures[name].seconds.append(seconds)
                    figures[name].cpu.append(cpu)
    return figures


def names(given: Given) -> Iterator[Figure]:
    """Adopting names, and asking for them, beside a probe of 300 blocks."""
    cache = by.KVCache(device=512, remote=1 << 20, keyed=("remote",))
    found = cache.keys(np.arange(300 * 16))
    lease = cache.begin(found)
    cache.seal(lease, 300 * 16)
    assert cache.probe(found).device == 300
    full: Any = Full()
    lookup = StoreLookup([full], [1], patience=10)

    def adopted(at: int) -> float:
        keys = prompt(cache, 1000, at)
        took = spent(lambda: cache.adopt(keys))
        assert cache.forget(keys, tier="remote") == 1000
        return took

    works = {
        "adopt of 1,000 keys": (adopted, 50),
        "lookup and adopt of 128 blocks": (lambda at: looked(lookup, cache, at), 10),
    }
    for name, (work, goal) in works.items():
        ratios, last = [], (0.0, 0.0)
        for count in range(given.rounds + 1):
            probes = median(spent(lambda: cache.probe(found)) for _ in range(200))
            last = median(work(100 * count + at) for at in range(100)), probes
            ratios.append(last[0] / last[1])
        about = f"in the last round {last[0]:.1f} and {last[1]:.2f} µs"
        yield Figure(f"{name} / a probe of 300", median(ratios[1:]), most=goal, about=about)


def prompt(cache: by.KVCache, blocks: int, at: int) -> by.Keys:
    """Keys that no other number has."""
    return cache.keys(np.arange(blocks * 16) + 7 * (1 + at))


class Full:
    """A store that has all."""

    url = "full://"

    def connect(self) -> "Full":
        return self

    def has(self, addresses: Sequence[str]) -> list[bool]:
        return [True] * len(addresses)

    def close(self) -> None:
        pass


def looked(lookup: StoreLookup, cache: by.KVCache, request: int) -> float:
    """Microseconds of this thread's CPU to ask about 128 blocks, and to adopt them."""
    keys, answers = prompt(cache, 128, request), list[Any]()

    def ask() -> None:
        answers.append(lookup.ask(request, keys))

    took, last = spent(ask), 0.0
    while answers[-1] is None:
        # Each step asks until the answer is there: the last time counts.
        time.sleep(1e-4)
        last = spent(ask)
    took += last + spent(lambda: cache.adopt(keys, answers[-1].blocks))
    assert cache.forget(keys, tier="remote") == 128
    return took


def spent(work: Callable[[], object]) -> float:
    """Microseconds of this thread's CPU."""
    begun = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - begun) / 1e3


class Frozen:
    """A store whose client never returns."""

    url = "frozen://"

    def connect(self) -> Session:
        threading.Event().wait()
        raise AssertionError


def steps(given: Given) -> Iterator[Figure]:
    """What a step costs over a store that is dead, frozen or lying, beside one that is well."""
    kinds = ("well", "dead", "frozen", "lying", "none")
    times: dict[int, Times] = {}
    note_times(times)
    ratios: dict[str, list[float]] = {kind: [] for kind in kinds}
    last: dict[str, float] = {}
    for seed in range(given.rounds):
        all_: dict[str, Times] = {kind: {name: [] for name in TIMED} for kind in kinds}
        one_seed(seed, all_, times)
        each = {
            kind: sum(map(sum, found.values())) / len(found["Scheduler.schedule"])
            for kind, found in all_.items()
        }
        for kind in kinds:
            ratios[kind].append(each[kind] / each["well"])
            last[kind] = each[kind]
    for kind in kinds[1:]:
        about = f"rounds {', '.join(f'{one:.2f}' for one in sorted(ratios[kind]))}; in the last "
        about += f"{last[kind]:.0f} and {last['well']:.0f} µs"
        most = None if kind == "none" else 1.05
        what = f"thread CPU of a step, store {kind} / store well"
        yield Figure(what, median(ratios[kind]), most, about=about)


def one_seed(seed: int, all_: dict[str, Times], times: dict[int, Times]) -> None:
    """Plays the same conversations over each store, step by step."""
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="bench-stores-")))
        stores: dict[str, list[Any] | None] = {
            "none": None,
            "well": [open_store(f"file://{folder}/well")],
            "dead": [open_store(f"redis://127.0.0.1:{free_port()}")],
            "frozen": [Frozen()],
            "lying": [WatchedStore(open_store(f"file://{folder}/lying"), lies=0.4, seed=seed)],
        }
        seeded = Conversation.seeded(seed, 12)
        blocks = sum(-(-conversation.tokens // 8) for conversation in seeded)
        memory = MemoryBudget(blocks // 4 + 1, blocks, "park")
        model = Model(ModelConfig(), seed)
        more: dict[str, Any] = {"write": {"device": "on-evict", "host": "through"}}
        plays = {
            kind: Play(
                seeded,
                memory,
                model,
                block_size=8,
                stores=stores[kind],
                **(more if stores[kind] else {}),
            )
            for kind in all_
        }
        for play in plays.values():
            ends.callback(play.close)
        times.update({id(play.cache): all_[kind] for kind, play in plays.items()})
        order = list(plays.values())
        while not all(play.over for play in order):
            for play in order:
                if not play.over:
                    play.step()
            order.reverse()
        times.clear()
        if any(play.tokens != order[0].tokens for play in order):
            raise SystemExit("the answers differ")


TABLES = {"rates": rates, "names": names, "steps": steps}


def figures(given: Given, only: Sequence[str]) -> Iterator[Figure]:
    for name in only:
        yield from TABLES[name](given)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=64, help="bytes of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    given = Given(options.mib * MIB, options.rounds)
    print(f"{options.rounds} rounds of {options.mib} MiB.\n")
    sys.exit(report(figures(given, options.only), options.json))


if __name__ == "__main__":
    main()
