"""One engine computes prompts, another decodes them: their KV goes from process to process.

One of both is killed in the middle, and started again. `docs/handover.md` explains it.

    python examples/prefill_decode.py [prefill | decode]
"""

import multiprocessing
import random
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import blockyard as by
from blockyard.handover.prefill_side import PrefillSide
from blockyard.local_cache import LocalCache
from blockyard.reference.model import Model
from blockyard.reference.reference import ReferenceEngine, alone
from blockyard.reference.sampling import Sampling
from blockyard.reference.weights import ModelConfig

MODEL = ModelConfig()
LAYOUT = MODEL.layout(block_size=8)
# What the bytes depend on: engines that have another name for any of them hand nothing over.
NAMES = {"model": "a-small-llama", "weights": "2026-11-01"}

PATIENCE = 5.0  # seconds that a request waits for its offer; 2 is the default
TOGETHER = 6  # requests that the router has under way


class Ask(NamedTuple):
    """A request: under the same name, the same tokens follow the same tokens, on any engine."""

    name: str
    tokens: list[int]
    most: int


class Said(NamedTuple):
    """What a router and an engine say to each other. A server would have HTTP for it."""

    word: str
    ask: Ask
    offer: object = None
    tokens: Sequence[int] = ()
    blocks: int = 0


class Engine:
    """An engine in a process of its own."""

    def __init__(self, link: Connection, peers: list[str] | None, secret: str | None) -> None:
        self.link = link
        self.cache, self.engine = opened(200, peers, secret)
        options = by.SchedulerOptions(stops=self.engine.stops)
        self.scheduler = by.Scheduler(self.cache, options, lookup=self.cache.lookup)


class Prefill(Engine):
    """Computes prompts, and offers their blocks."""

    def __init__(self, link: Connection, at: str, secret: str) -> None:
        super().__init__(link, None, None)
        self.side = PrefillSide(self.cache, self.cache.crane.device, listen=at, secret_file=secret)
        self.asks: dict[object, Ask] = {}

    def hear(self, said: Said) -> None:
        """Computes the prompt of a request; one token is sampled with that, and not used."""
        name, tokens, _ = said.ask
        if name not in self.asks:
            self.asks[name] = said.ask
            self.scheduler.add(by.NewRequest(name, tokens, max_tokens=1, hold=True))

    def tell(self) -> None:
        """Offers the blocks of each prompt that is computed. They are held from here on."""
        for one in self.scheduler.results():
            offer = self.side.offer(one.held)
            found = None if offer is None else offer.to_json()
            self.link.send(Said("offer", self.asks.pop(one.request), found))


class Decode(Engine):
    """Takes blocks over, and decodes."""

    def __init__(self, link: Connection, at: str, secret: str) -> None:
        super().__init__(link, [at], secret)
        assert self.cache.decode_side is not None  # noqa: S101 - there are peers
        self.side = self.cache.decode_side
        self.sent: dict[str, int] = {}
        self.asks: dict[str, Ask] = {}

    def hear(self, said: Said) -> None:
        """Has room for a request, or says at once that it has not; or takes an offer."""
        name, tokens, most = said.ask
        if said.word == "offer":
            self.side.offered(name, said.offer)
            return
        ticket = self.side.reserve(name, len(tokens), most, patience=PATIENCE)
        if ticket is not None:
            self.scheduler.add(by.NewRequest(name, tokens, max_tokens=most, ticket=ticket))
            self.asks[name], self.sent[name] = said.ask, 0
        self.link.send(Said("full" if ticket is None else "room", said.ask))

    def tell(self) -> None:
        """Streams tokens, and says how many blocks it has taken over so far."""
        ended = {str(one.request): one.tokens.tolist() for one in self.scheduler.results()}
        for name, ask in list(self.asks.items()):
            count = self.sent[name]
            new = ended[name][count:] if name in ended else self.scheduler.sampled(name, count)
            if new:
                self.link.send(Said("tokens", ask, tokens=new))
                self.sent[name] += len(new)
            if name in ended:
                blocks = self.cache.stats()["remote_peer_got_blocks"]
                self.link.send(Said("end", self.asks.pop(name), blocks=blocks))


def opened(
    device: int, peers: list[str] | None = None, secret: str | None = None
) -> tuple[LocalCache, ReferenceEngine]:
    """Returns a cache with its engine. Its sampling depends on names and positions alone."""
    config = by.Config(layout=LAYOUT, device=device, namespace=NAMES)
    sampling = Sampling(temperature=0.8)
    return alone(Model(MODEL), config, sampling=sampling, peers=peers, secret_file=secret)


def serve(kind: type[Prefill | Decode], at: str, secret: str, link: Connection) -> None:
    """What the process of an engine does, until the router goes."""
    one = kind(link, at, secret)
    link.send("ready")
    with suppress(EOFError):
        while True:
            while link.poll(0.1 if one.scheduler.idle else 0.0):
                one.hear(link.recv())
            step = one.scheduler.schedule()
            one.engine.submit(step)
            one.cache.step()
            if not len(step):  # blocks, or an offer, are on their way
                time.sleep(1e-3)
            outputs, acks = one.engine.poll()
            for output in outputs:
                one.scheduler.on_output(output)
            one.scheduler.on_acks(acks)
            one.tell()
    one.side.close()
    one.cache.close()


def started(kind: type[Prefill | Decode], at: str, secret: str) -> tuple[BaseProcess, Connection]:
    """Starts an engine, and waits until it is ready."""
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    process = context.Process(target=serve, args=(kind, at, secret, its))
    process.start()
    its.close()
    ours.recv()
    return process, ours


def check_killed(process: BaseProcess) -> None:
    """Ends this program where an engine is gone that was not killed."""
    process.join()
    if process.exitcode != -signal.SIGKILL:
        raise SystemExit("An engine has failed, as it says above.")


class Router:
    """Passes requests on. All that it knows of one is its prompt, and what was streamed."""

    def __init__(self, asks: list[Ask], at: str, secret: str) -> None:
        self.places = at, secret
        self.asks = {ask.name: ask for ask in asks}
        self.waiting, self.open = deque(self.asks), set[str]()
        self.tokens: dict[str, list[int]] = {name: [] for name in self.asks}
        self.blocks = {"before": 0, "last": 0}
        self.engines = {kind: started(kind, at, secret) for kind in (Prefill, Decode)}

    def run(self, victim: type[Prefill | Decode], kill_after: int) -> None:
        """Serves all requests; an engine is killed after so many tokens."""
        while self.waiting or self.open:
            while self.waiting and len(self.open) < TOGETHER:
                ask = self.asks[self.waiting.popleft()]
                done = self.tokens[ask.name]  # by whichever engine had it
                self.open.add(ask.name)
                self.send(Decode, "add", Ask(ask.name, ask.tokens + done, ask.most - len(done)))
            links = {kind: link for kind, (_, link) in self.engines.items()}
            ready = wait(links.values())
            for kind in [kind for kind, link in links.items() if link in ready]:
                try:
                    self.hear(links[kind].recv())
                except (EOFError, ConnectionResetError):
                    self.start_again(kind)
            if kill_after and sum(map(len, self.tokens.values())) >= kill_after:
                kill_after = 0
                self.engines[victim][0].kill()

    def send(self, kind: type[Prefill | Decode], word: str, ask: Ask, offer: object = None) -> None:
        """Sends to an engine. If it is gone, that is heard soon."""
        with suppress(OSError):
            self.engines[kind][1].send(Said(word, ask, offer))

    def hear(self, said: Said) -> None:
        """Takes what an engine says."""
        if said.word == "room":  # only now: no prompt is computed before its decoder has room
            self.send(Prefill, "add", said.ask)
        elif said.word == "offer":
            self.send(Decode, "offer", said.ask, said.offer)
        elif said.word == "tokens":
            self.tokens[said.ask.name] += said.tokens
        else:
            self.open.remove(said.ask.name)
            self.blocks["last"] = max(said.blocks, self.blocks["last"])
            self.waiting.extend([said.ask.name] if said.word == "full" else ())

    def start_again(self, kind: type[Prefill | Decode]) -> None:
        """Starts an engine that is gone."""
        check_killed(self.engines[kind][0])
        self.engines[kind] = started(kind, *self.places)
        if kind is Prefill:  # its offers are gone: who waits for one need not
            for name in self.open:
                self.send(Decode, "offer", self.asks[name])
        else:
            self.blocks = {"before": sum(self.blocks.values()), "last": 0}
            left = [name for name in self.open if len(self.tokens[name]) < self.asks[name].most]
            self.waiting.extendleft(left)
            self.open.clear()


def ample(asks: list[Ask]) -> dict[str, list[int]]:
    """What one engine samples that has memory for all, and that nobody disturbs."""
    cache, engine = opened(1000)
    with cache:
        scheduler = by.Scheduler(cache, by.SchedulerOptions(stops=engine.stops))
        for ask in asks:
            scheduler.add(by.NewRequest(ask.name, ask.tokens, max_tokens=ask.most))
        while not scheduler.idle:
            engine.submit(scheduler.schedule())
            cache.step()
            outputs, acks = engine.poll()
            for output in outputs:
                scheduler.on_output(output)
            scheduler.on_acks(acks)
        return {str(one.request): one.tokens.tolist() for one in scheduler.results()}


def play(victim: type[Prefill | Decode]) -> None:
    """Runs the router and its two engines, and compares all tokens."""
    chance = random.Random(1)  # noqa: S311 - no secret
    asks = [
        Ask(f"request {number}", chance.choices(range(MODEL.vocabulary), k=60), 30)
        for number in range(24)
    ]
    kill_after = chance.randrange(200, 500)
    with tempfile.TemporaryDirectory(prefix="blockyard-prefill-decode-") as folder:
        secret = Path(folder) / "secret"
        secret.write_text(secrets.token_hex(32))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            at = f"127.0.0.1:{probe.getsockname()[1]}"
        router = Router(asks, at, str(secret))
        router.run(victim, kill_after)
        for process, link in router.engines.values():
            link.close()
            process.join()
    whole = sum((len(ask.tokens) - 1) // LAYOUT.block_size for ask in asks)
    taken = sum(router.blocks.values())
    print(f"The {victim.__name__.lower()} engine was killed after {kill_after} tokens.")
    print(f"The decode engine has taken {taken} blocks over; the prompts have {whole} full ones.")
    wrong = sum(router.tokens[name] != tokens for name, tokens in ample(asks).items())
    print(f"Requests whose tokens differ from those of one engine with ample memory: {wrong}")
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    victims: dict[str, type[Prefill | Decode]] = {"prefill": Prefill, "decode": Decode}
    word = (sys.argv[1:] or ["prefill"])[-1]
    if word not in victims:
        raise SystemExit(f"{word!r} is no engine to kill: give prefill or decode")
    play(victims[word])
