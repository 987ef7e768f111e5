"""Two engines in processes of their own that hand KV over by TCP, and a router that outlives them.

Each is killed with SIGKILL, and stopped and continued, at random moments. Their device pools are so
small that slots are given out again all the time. Every answer is compared with that of one engine
with ample memory.
"""

import os
import random
import signal
import socket
import time
from collections import Counter
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import blockyard as by
from blockyard._typing import override
from blockyard.handover.prefill_side import PrefillSide
from blockyard.reference.model import Model
from blockyard.reference.reference import alone
from blockyard.reference.sampling import Sampling
from blockyard.reference.weights import ModelConfig
from blockyard.shared.endpoints import Carrier

BLOCK = 4
MODEL = ModelConfig(layers=2, vocabulary=128, hidden=32, head_dim=8, intermediate=64)
LAYOUT = MODEL.layout(block_size=BLOCK)
NAMES = {"model": "a small Llama", "weights": "0"}
LEASE = 1.0
UNREAD = 3.0
PATIENCE = 3.0
"""Seconds that a request waits for its offer."""
LONG = 120.0
"""Seconds after which a play is stuck: a busy machine is no fault."""
TOGETHER = 6
TIERS = ("device", "remote")
WORDS = ("claimed", "pinned", "quarantined", "promised")


class Ask(NamedTuple):
    """A request. Under one name the same tokens follow the same tokens, on any engine."""

    name: str
    tokens: list[int]
    most: int


class Setup(NamedTuple):
    """What the engines are made of."""

    seed: int
    prefill: int = 26
    """Device blocks of the prefill engine."""
    decode: int = 40
    carrier: Carrier = "tcp"

    @property
    def sampling(self) -> Sampling:
        """How tokens are drawn."""
        return Sampling(temperature=0.8, seed=self.seed)


def asks(seed: int, count: int) -> list[Ask]:
    """Prompts of which some begin alike."""
    chance = random.Random(seed)
    common = [chance.choices(range(MODEL.vocabulary), k=16) for _ in range(2)]
    made = []
    for number in range(count):
        first = chance.choice([[], [], *common])
        own = chance.choices(range(MODEL.vocabulary), k=chance.randrange(8, 40))
        made.append(Ask(f"r{number}", first + own, chance.randrange(6, 24)))
    return made


def opened(setup: Setup, device: int, **more: Any) -> Any:
    config = by.Config(layout=LAYOUT, device=device, namespace=NAMES, carrier=setup.carrier)
    return alone(Model(MODEL), config, sampling=setup.sampling, **more)


def ample(setup: Setup, every: list[Ask]) -> dict[str, list[int]]:
    """What one engine samples that has memory for all, and that nobody disturbs."""
    cache, engine = opened(setup, 2000)
    with cache:
        scheduler = by.Scheduler(cache, by.SchedulerOptions(stops=engine.stops))
        for ask in every:
            scheduler.add(by.NewRequest(ask.name, ask.tokens, max_tokens=ask.most))
        while not scheduler.idle:
            turn(scheduler, engine, cache)
        return {str(one.request): one.tokens.tolist() for one in scheduler.results()}


def turn(scheduler: Any, engine: Any, cache: Any) -> bool:
    """Does a step; returns whether anything was computed."""
    step = scheduler.schedule()
    engine.submit(step)
    cache.step()
    outputs, acks = engine.poll()
    for output in outputs:
        scheduler.on_output(output)
    scheduler.on_acks(acks)
    return len(step) > 0


# -- in the processes ------------------------------------------------------------------------------


class _Engine:
    """What a process of an engine does."""

    def __init__(self, link: Connection, setup: Setup, device: int, **more: Any) -> None:
        self.link = link
        self.cache, self.engine = opened(setup, device, **more)
        options = by.SchedulerOptions(stops=self.engine.stops)
        self.scheduler = by.Scheduler(self.cache, options, lookup=self.cache.lookup)

    def run(self) -> None:
        self.link.send(("ready", "", None))
        while True:
            while self.link.poll(0.02 if self.scheduler.idle else 0.0):
                self.hear(*self.link.recv())
            if not turn(self.scheduler, self.engine, self.cache):
                time.sleep(1e-3)
            self.tell()
            assert self.cache.audit() is None

    def hear(self, word: str, *what: Any) -> None:
        if word == "left":
            self.link.send(("left", "", self.left()))
        else:
            self.take(word, *what)

    def left(self) -> dict[str, int]:
        """What is held, promised or under way; empty where it is at rest."""
        stats = self.cache.stats()
        names = ["leases", "parked", "tickets", "flights", "leaked", "held_blocks"]
        names += [f"{tier}_{word}" for tier in TIERS for word in WORDS]
        return {name: stats[name] for name in names if stats[name]}

    def take(self, word: str, *what: Any) -> None:
        raise NotImplementedError

    def tell(self) -> None:
        raise NotImplementedError


class Prefill(_Engine):
    """Computes prompts, and offers their blocks."""

    def __init__(self, link: Connection, setup: Setup, at: str) -> None:
        super().__init__(link, setup, setup.prefill)
        device = self.cache.crane.device
        times: Any = {"lease": LEASE, "unread": UNREAD, "carrier": setup.carrier}
        self.side = PrefillSide(self.cache, device, listen=at, **times)

    @override
    def take(self, word: str, *what: Any) -> None:
        assert word == "add"
        name, tokens, _ = what
        if name not in self.scheduler.requests:
            self.scheduler.add(by.NewRequest(name, tokens, max_tokens=1, hold=True))

    @override
    def tell(self) -> None:
        for one in self.scheduler.results():
            offer = self.side.offer(one.held)
            self.link.send(("offer", one.request, None if offer is None else offer.to_json()))

    @override
    def left(self) -> dict[str, int]:
        held = self.side.stats()["offers_held"]
        return super().left() | ({"offers": held} if held else {})


class Decode(_Engine):
    """Takes blocks over, and decodes."""

    def __init__(self, link: Connection, setup: Setup, at: str) -> None:
        super().__init__(link, setup, setup.decode, peers=[at])
        self.side = self.cache.decode_side
        self.sent: dict[str, int] = {}

    @override
    def take(self, word: str, *what: Any) -> None:
        if word == "offer":
            self.side.offered(*what)
            return
        ask = Ask(*what)
        ticket = self.side.reserve(ask.name, len(ask.tokens), ask.most, patience=PATIENCE)
        if ticket is not None:
            request = by.NewRequest(ask.name, ask.tokens, max_tokens=ask.most, ticket=ticket)
            self.scheduler.add(request)
            self.sent[ask.name] = 0
        self.link.send(("full" if ticket is None else "room", ask.name, None))

    @override
    def tell(self) -> None:
        ended = {str(one.request): one for one in self.scheduler.results()}
        for name, count in list(self.sent.items()):
            one = ended.get(name)
            tokens = self.scheduler.sampled(name) if one is None else one.tokens.tolist()
            if len(tokens) > count:
                self.link.send(("tokens", name, tokens[count:]))
                self.sent[name] = len(tokens)
            if one is not None:
                self.link.send(("end", name, (str(one.state), one.cached_tokens.remote)))
                del self.sent[name]

    @override
    def left(self) -> dict[str, int]:
        side, tier = self.side.stats(), self.cache.crane.remote
        names = {name: side[name] for name in ("handover_waiting", "handover_open") if side[name]}
        flying = tier.peers.stats()["in_flight"]
        idle = self.cache.stats()["remote_idle"]
        names |= {"names of ended offers": idle} if idle else {}
        held = tier.peers.stats()["held_bytes"]
        names |= {"staging that is held": held} if held else {}
        return super().left() | names | ({"flights of peers": flying} if flying else {})

    @override
    def hear(self, word: str, *what: Any) -> None:
        if word == "counts":
            self.link.send(("counts", "", self.cache.crane.remote.peers.stats()))
        else:
            super().hear(word, *what)


_Kind = type[Prefill] | type[Decode]


def serve(kind: _Kind, setup: Setup, at: str, link: Connection) -> None:
    """What a process does, until the router goes."""
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        one: Any = kind(link, setup, at)
        try:
            one.run()
        finally:
            one.side.close()
            one.cache.close()


# -- the router ------------------------------------------------------------------------------------


class _Routed:
    def __init__(self, ask: Ask) -> None:
        self.ask, self.tokens = ask, list[int]()
        self.ended = False
        self.life: int | None = None
        """The life of the prefill engine that was asked for it."""


class Play:
    """A router with two engines, of which some are killed or stopped now and then."""

    def __init__(self, setup: Setup, every: list[Ask], *, kills: int, stops: int) -> None:
        self.setup, self.seen = setup, Counter[str]()
        self._chance = random.Random(f"play {setup.seed}")
        self._routed = {ask.name: _Routed(ask) for ask in every}
        self._waiting = [ask.name for ask in every]
        self._open: set[str] = set()
        self._again: list[tuple[float, str]] = []
        self._faults = ["kill"] * kills + ["stop"] * stops
        self._chance.shuffle(self._faults)
        self._next, self._tokens = self._chance.randrange(1, 60), 0
        self._stopped: list[tuple[float, int]] = []
        self._lives = Counter[Any]()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._at = f"127.0.0.1:{probe.getsockname()[1]}"
        self._engines = {kind: self._started(kind) for kind in (Prefill, Decode)}

    def _started(self, kind: _Kind) -> Any:
        context = get_context("spawn")
        ours, its = context.Pipe()
        what = kind, self.setup, self._at, its
        process = context.Process(target=serve, args=what, daemon=True)
        process.start()
        its.close()
        assert ours.poll(LONG), "an engine has not started"
        ours.recv()
        self._lives[kind] += 1
        return process, ours

    def run(self) -> Counter[str]:
        """Plays all, and returns what has happened; nothing may be wrong, lost or left."""
        try:
            end = time.monotonic() + LONG + 3 * len(self._routed) + 5 * len(self._faults)
            while self._faults or not all(one.ended for one in self._routed.values()):
                assert time.monotonic() < end, f"stuck: {self._open} {self._waiting}"
                self._turn()
            self._go_on(float("inf"))
            for kind in (Prefill, Decode):
                if self._engines[kind][0].exitcode is not None:
                    self._start_again(kind)
            self._check_left()
            whole = ample(self.setup, [one.ask for one in self._routed.values()])
            wrong = [name for name, one in self._routed.items() if one.tokens != whole[name]]
            assert not wrong, f"wrong: {wrong}"
            self.seen["requests"] += len(whole)
            return self.seen
        finally:
            self._go_on(float("inf"))
            for process, link in self._engines.values():
                link.close()
                process.join(20.0)
                if process.is_alive():
                    process.kill()
                    process.join()

    def _turn(self) -> None:
        now = time.monotonic()
        self._go_on(now)
        due = [name for at, name in self._again if at <= now]
        self._again = [one for one in self._again if one[0] > now]
        self._waiting += due
        while self._waiting and len(self._open) < TOGETHER:
            name = self._waiting.pop(0)
            self._open.add(name)
            self._send(Decode, "add", *self._rest(name))
        links: dict[Any, Any] = {link: kind for kind, (_, link) in self._engines.items()}
        ready: list[Any] = wait(list(links), 0.02)
        for link in ready:
            kind = links[link]
            try:
                self._hear(*link.recv())
            except (EOFError, ConnectionResetError):
                self._start_again(kind)
        done = all(one.ended for one in self._routed.values())
        if self._faults and (self._tokens >= self._next or done):
            self._next = self._tokens + self._chance.randrange(1, 80)
            self._fault(self._faults.pop())

    def _rest(self, name: str) -> Ask:
        """What is left of a request, whichever engine had it."""
        ask, tokens = self._routed[name].ask, self._routed[name].tokens
        return Ask(name, ask.tokens + tokens, ask.most - len(tokens))

    def _send(self, kind: _Kind, *what: Any) -> None:
        with suppress(OSError):
            self._engines[kind][1].send(what)

    def _hear(self, word: str, name: str, what: Any) -> None:
        if word == "tokens":
            self._routed[name].tokens += what
            self._tokens += len(what)
        elif word == "room":
            self._routed[name].life = self._lives[Prefill]
            self._send(Prefill, "add", *self._rest(name))
        elif word == "offer":
            self._send(Decode, "offer", name, what)
        elif word == "full":
            self.seen["full"] += 1
            self._open.discard(name)
            self._again.append((time.monotonic() + 0.1, name))
        elif word == "end":
            self._end(name, *what)

    def _end(self, name: str, state: str, taken: int) -> None:
        assert state == "finished", f"{name} is {state}"
        one = self._routed[name]
        assert not one.ended, f"{name} has ended twice"
        one.ended = True
        self._open.discard(name)
        lived = one.life == self._lives[Prefill]
        self.seen["prefiller lived"] += lived
        self.seen["prefiller lived, blocks taken over"] += lived and taken > 0
        self.seen["tokens taken over"] += taken

    def _fault(self, word: str) -> None:
        kinds: list[_Kind] = [Prefill, Decode]
        kind = self._chance.choice(kinds)
        process = self._engines[kind][0]
        self.seen[f"{kind.__name__} {word}"] += 1
        if word == "kill":
            process.kill()
            process.join()
        else:
            if process.exitcode is not None:
                # It was killed just now.
                self._start_again(kind)
                process = self._engines[kind][0]
            os.kill(process.pid, signal.SIGSTOP)
            at = time.monotonic() + self._chance.choice([0.2, 0.8, 2.0, 4.5])
            self._stopped.append((at, process.pid))

    def _go_on(self, now: float) -> None:
        """Lets those go on that were stopped for long enough."""
        for at, pid in [one for one in self._stopped if one[0] <= now]:
            self._stopped.remove((at, pid))
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _start_again(self, kind: _Kind) -> None:
        process, link = self._engines[kind]
        link.close()
        process.join()
        ended = process.exitcode
        if kind is Prefill and self.setup.carrier == "nixl" and ended == -signal.SIGABRT:
            # UCX may end the process where the other side's dies: that is a kill, too.
            self.seen["prefill engines that NIXL has ended"] += 1
        else:
            assert ended == -signal.SIGKILL, f"{kind.__name__}: {ended}"
        self._stopped = [one for one in self._stopped if one[1] != process.pid]
        # What it had said before its end was heard.
        self._engines[kind] = self._started(kind)
        if kind is Prefill:
            # Now and then nobody says that its offers are gone.
            if self._chance.random() < 0.5:
                for name in self._open:
                    self._send(Decode, "offer", name, None)
        else:
            for name in sorted(self._open):
                one = self._routed[name]
                if len(one.tokens) >= one.ask.most:
                    # All were streamed, and its end was not.
                    one.ended = True
                else:
                    self._waiting.append(name)
            self._open.clear()

    def _check_left(self) -> None:
        """Checks that each is at rest, when its own times are over, and that nothing is left."""
        end = time.monotonic() + LONG
        for kind in (Prefill, Decode):
            while left := self._asked(kind, "left"):
                assert time.monotonic() < end, f"{kind.__name__}: {left} are left"
                time.sleep(0.05)
        for name, count in self._asked(Decode, "counts").items():
            self.seen[f"last decode engine: {name}"] += count

    def _asked(self, kind: _Kind, word: str) -> Any:
        link = self._engines[kind][1]
        link.send((word,))
        while True:
            assert link.poll(LONG), f"{kind.__name__} does not answer"
            said, _, what = link.recv()
            if said == word:
                return what
