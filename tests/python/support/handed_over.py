"""Engines in processes of their own, over shared stores, and a router that outlives them.

The router has the prompt of each request and the tokens that were streamed. When an engine is
killed, a fresh one gets both under the same name. Every token is compared with that of an engine
with ample memory and no store.
"""

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import blockyard as by
from blockyard.reference.model import Model
from blockyard.reference.reference import ReferenceEngine, alone
from blockyard.reference.sampling import Sampling
from blockyard.reference.weights import ModelConfig
from blockyard.scheduling.cached_tokens import CachedTokens
from blockyard.scheduling.headroom import NoHeadroom
from blockyard.stores.address import block_address
from blockyard.stores.identity import fields_of, number_of
from blockyard.stores.lookup import StoreLookup
from blockyard.stores.open import open_store
from blockyard.yard.parking import PreemptMode
from watched_store import WatchedStore

BLOCK = 4
PATIENCE = 20.0
"""Seconds that a lookup may take: a busy machine is no fault of a store."""
SEEN = ("parkings", "remote_corrupt", "remote_missing", "remote_failed")
"""Of an engine's counts, those that its router hears."""
MODEL = ModelConfig(layers=2, vocabulary=128, hidden=32, head_dim=8, intermediate=64)
LAYOUT = MODEL.layout(block_size=BLOCK)


class Ask(NamedTuple):
    """A request."""

    name: str
    prompt: list[int]
    tokens: int


class Setup(NamedTuple):
    """What an engine is made of."""

    url: str
    seed: int
    device: int = 24
    host: int = 0
    lies: float = 0.0
    """The part of the store's answers that are wrong."""
    faulty: bool = False
    """Whether the store may lose what it has acknowledged."""

    @property
    def sampling(self) -> Sampling:
        """How tokens are drawn."""
        return Sampling(temperature=0.8, seed=self.seed)

    @property
    def config(self) -> by.Config:
        """The configuration of a cache."""
        return by.Config(
            layout=LAYOUT,
            device=self.device,
            host=self.host,
            remote=4096,
            write={"device": "through", "host": "through"} if self.host else "through",
            ahead=8,
            namespace={"model": "a small Llama", "weights": "0"},
        )


def asks(seed: int, count: int) -> list[Ask]:
    """Requests of which some begin alike."""
    chance = random.Random(seed)
    begins = [chance.choices(range(MODEL.vocabulary), k=12) for _ in range(3)]
    return [
        Ask(
            f"{seed}-{number}",
            chance.choice(begins)
            + chance.choices(range(MODEL.vocabulary), k=chance.randrange(1, 9)),
            chance.randrange(12, 40),
        )
        for number in range(count)
    ]


def options(engine: ReferenceEngine, mode: PreemptMode = "park") -> by.SchedulerOptions:
    """So few blocks are used to the last."""
    return by.SchedulerOptions(
        max_num_seqs=6,
        max_num_batched_tokens=32,
        headroom=NoHeadroom(),
        preempt_mode=mode,
        lookup_patience=PATIENCE,
        preempt_cooldown=1,
        stops=engine.stops,
    )


def undisturbed(setup: Setup, given: Sequence[Ask]) -> dict[str, list[int]]:
    """The tokens of an engine with ample memory."""
    config = by.Config(layout=LAYOUT, device=2048)
    cache, engine = alone(Model(MODEL), config, sampling=setup.sampling)
    scheduler = by.Scheduler(cache, options(engine, "recompute"))
    for ask in given:
        scheduler.add(by.NewRequest(ask.name, ask.prompt, max_tokens=ask.tokens))
    found: dict[str, list[int]] = {}
    with cache:
        while not scheduler.idle:
            advance(cache, engine, scheduler)
            found |= {str(one.request): one.tokens.tolist() for one in scheduler.results()}
    return found


def advance(cache: Any, engine: ReferenceEngine, scheduler: by.Scheduler) -> None:
    """Makes a step, and waits a moment where there is nothing to compute."""
    step = scheduler.schedule()
    engine.submit(step)
    cache.step()
    if not len(step):
        time.sleep(1e-3)
    outputs, acks = engine.poll()
    for output in outputs:
        scheduler.on_output(output)
    scheduler.on_acks(acks)


# -- an engine ---------------------------------------------------------------------------------


class Teller:
    """Says what happens to the router. Threads of the store say something, too."""

    def __init__(self, link: Connection) -> None:
        self._link = link
        self._lock = threading.Lock()

    def __call__(self, *said: Any) -> None:
        with self._lock:
            self._link.send(said)


def serve(setup: Setup, number: int, link: Connection) -> None:
    """Serves requests until it is killed."""
    # The model computes in NumPy all the time, and a store's threads wait for each turn.
    sys.setswitchinterval(5e-4)
    tell = Teller(link)
    store = WatchedStore(
        open_store(setup.url), tell, lies=setup.lies, seed=1000 * setup.seed + number
    )
    cache, engine = alone(Model(MODEL), setup.config, sampling=setup.sampling, stores=[store])
    with cache:
        remote = cache.crane.remote
        assert remote is not None
        lookup = StoreLookup(remote.stores, [remote.place.identity], patience=PATIENCE)
        scheduler = by.Scheduler(cache, options(engine), lookup=lookup)
        served: dict[str, Served] = {}
        seen = Counter[str]()
        while True:
            while link.poll(0 if served else None):
                ask = link.recv()
                scheduler.add(by.NewRequest(ask.name, ask.prompt, max_tokens=ask.tokens))
                served[ask.name] = Served()
            advance(cache, engine, scheduler)
            tell_steps(scheduler, served, tell)
            # The store's threads count meanwhile.
            told = dict(store.told)
            now = Counter({f"lies: {kind}": count for kind, count in told.items()})
            now.update({name: cache.stats()[name] for name in SEEN})
            if now != seen:
                tell("counts", now - seen)
                seen = now


@dataclass
class Served:
    """What the router knows of a request."""

    tokens: int = 0
    began: bool = False


def tell_steps(scheduler: by.Scheduler, served: dict[str, Served], tell: Teller) -> None:
    """Says what was found of requests, which tokens are new, and which requests have ended."""
    ended = {str(one.request): one for one in scheduler.results()}
    for name, known in [*served.items()]:
        result = ended.get(name)
        found = scheduler.cached_tokens(name) if result is None else result.cached_tokens
        if found is not None and not known.began:
            known.began = True
            tell("began", name, found)
        tokens = scheduler.sampled(name) if result is None else result.tokens.tolist()
        if len(tokens) > known.tokens:
            tell("tokens", name, tokens[known.tokens :])
            known.tokens = len(tokens)
        if result is not None:
            del served[name]
            tell("ended", name, str(result.state))


# -- the router --------------------------------------------------------------------------------


@dataclass
class Asked:
    """A request, as its router knows it."""

    ask: Ask
    wanted: list[int]
    """The tokens that it must get."""
    tokens: list[int] = field(default_factory=list)
    """Those that were streamed."""
    promised: int = 0
    """Leading full blocks that the store had acknowledged when it was handed over."""
    moved: bool = False


@dataclass
class Serving:
    """An engine that lives."""

    process: Any
    link: Connection
    asked: dict[str, Asked] = field(default_factory=dict)
    putting: set[str] = field(default_factory=set)
    """Addresses of values that are on their way to the store."""


class Router:
    """Gives requests to engines, and to others when these are killed.

    Args:
        setup: What the engines are made of.
        given: The requests.
        engines: How many engines there are at a time.
    """

    def __init__(self, setup: Setup, given: Sequence[Ask], engines: int = 1) -> None:
        self.setup = setup
        self.counts = Counter[str]()
        self.streamed = 0
        """Tokens."""
        self._context = get_context("forkserver")
        # Each engine would take 0.4 s for the client of Redis alone; a package that is missing is
        # passed over.
        self._context.set_forkserver_preload(
            [
                "blockyard.reference.reference",
                "blockyard.crane.copiers.store_copier",
                "blockyard.stores.open",
                "hiredis",
                "redis",
            ]
        )
        self._keys = by.KVCache(setup.config)
        self._identity = number_of(fields_of(setup.config.identity, LAYOUT))
        self.acknowledged: set[str] = set()
        """Addresses of values that the store has acknowledged."""
        self._cut: set[str] = set()
        """Addresses of values that an engine was putting when it was killed."""
        wanted = undisturbed(setup, given)
        self.serving = [self._begin() for _ in range(engines)]
        for number, ask in enumerate(given):
            self._ask(self.serving[number % engines], Asked(ask, wanted[ask.name]))

    def run(self, disturb: Callable[["Router"], object]) -> Counter[str]:
        """Streams until all requests have ended, and returns what has happened.

        Args:
            disturb: Called after each thing that an engine has said.
        """
        try:
            while busy := [one for one in self.serving if one.asked]:
                ready = wait([one.link for one in busy], timeout=60)
                assert ready, "no engine says anything"
                for one in busy:
                    if one.link in ready:
                        said = next(heard(one.link), None)
                        assert said is not None, "an engine has ended by itself"
                        self._hear(one, *said)
                disturb(self)
        finally:
            for one in self.serving:
                self._end(one)
        return self.counts

    def kill(self, number: int) -> None:
        """Kills an engine, and gives its requests to a fresh one."""
        killed = self.serving[number]
        self._end(killed)
        for said in heard(killed.link):
            self._hear(killed, *said)
        killed.link.close()
        self.counts["kills"] += 1
        self._cut |= killed.putting
        fresh = self.serving[number] = self._begin()
        for asked in killed.asked.values():
            self.counts["handed over"] += not asked.moved
            asked.moved = True
            asked.promised = self._promised(asked)
            self._ask(fresh, asked)

    def _begin(self) -> Serving:
        ours, its = self._context.Pipe()
        self.counts["engines"] += 1
        process = self._context.Process(
            target=serve, args=(self.setup, self.counts["engines"], its), daemon=True
        )
        process.start()
        its.close()
        return Serving(process, ours)

    def _end(self, one: Serving) -> None:
        one.process.kill()
        one.process.join(60)

    def _ask(self, engine: Serving, asked: Asked) -> None:
        ask, done = asked.ask, asked.tokens
        if len(done) < ask.tokens:
            engine.asked[ask.name] = asked
            engine.link.send(Ask(ask.name, ask.prompt + done, ask.tokens - len(done)))

    def _promised(self, asked: Asked) -> int:
        """Leading blocks that another engine must find, of all but the last token."""
        tokens = asked.ask.prompt + asked.tokens
        known = self.acknowledged
        if self.setup.url.startswith("mooncake:"):
            # It says that it has put what it has not, while it waits for the end of another put.
            known = known - self._cut
        found = [
            block_address(self._identity, 0, bytes.fromhex(key)) in known
            for key in self._keys.keys(tokens[:-1]).hex()
        ]
        return [*found, False].index(False)

    def _hear(self, engine: Serving, what: str, *said: Any) -> None:
        match what, said:
            case "putting", [address]:
                engine.putting.add(address)
            case "acknowledged", [address]:
                engine.putting.discard(address)
                self.acknowledged.add(address)
            case "tokens", [name, tokens]:
                asked = engine.asked[name]
                at = len(asked.tokens)
                asked.tokens += tokens
                self.streamed += len(tokens)
                assert tokens == asked.wanted[at : at + len(tokens)], (name, at)
            case "began", [name, found]:
                self._began(engine.asked[name], found)
            case "ended", [name, state]:
                asked = engine.asked.pop(name)
                assert state == "finished", (name, state)
                assert asked.tokens == asked.wanted, name
            case "counts", [counts]:
                self.counts.update(counts)

    def _began(self, asked: Asked, found: CachedTokens) -> None:
        """Takes what an engine has found of a request."""
        if not asked.moved:
            return
        blocks = found.total // BLOCK
        self.counts["blocks promised"] += asked.promised
        self.counts["blocks found"] += blocks
        self.counts["blocks loaded from the store"] += found.remote // BLOCK
        self.counts["blocks there could be"] += (
            len(asked.ask.prompt) + len(asked.tokens) - 1
        ) // BLOCK
        if not self.setup.faulty:
            assert blocks >= asked.promised, (asked.ask.name, blocks, asked.promised)


def heard(link: Connection) -> Iterator[tuple[Any, ...]]:
    """Yields what an engine has said, also before it was killed."""
    while True:
        try:
            yield link.recv()
        except (EOFError, OSError):
            return


def play(setup: Setup, given: Sequence[Ask], kills: int, engines: int = 1) -> Counter[str]:
    """Kills engines at random, and returns what has happened when all requests have ended."""
    chance = random.Random(setup.seed)
    at = sorted(chance.sample(range(1, sum(ask.tokens for ask in given) // 2), kills))

    def disturb(router: Router) -> None:
        # Of a store that is slow nothing would be found.
        done = router.counts["kills"] + 1
        if at and router.streamed >= at[0] and len(router.acknowledged) >= 6 * done:
            at.pop(0)
            router.kill(len(at) % engines)

    return Router(setup, given, engines).run(disturb)
