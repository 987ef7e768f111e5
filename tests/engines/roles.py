"""vLLM's real scheduler in the roles kv_producer and kv_consumer, by seed.

    python roles.py [--seeds 200] [--first 0]

Each seed has a prefill engine, a decode engine and a router, with requests that share prefixes,
pools that are too small, and two processes' worth of faults: aborts on both sides, copies that
fail, offers that are lost, doubled or another request's, resets, and either engine that dies and
comes back. Every position of every running table is checked in every step of both.
"""

import contextlib
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.testing import Script, ScriptedCopier
from cases import left_to_compute, prompts, same
from runner import run
from seeds import check_at_rest, is_loading
from simulated_model import SIZE, Engine, Wrong, undisturbed

PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}
"""What a router asks of a prefill engine."""
LEASE, UNREAD = 0.4, 0.6
CASES: list[Callable[[], None]] = []
WANTED = {
    "offers taken": 1000,
    "aborted at the prefill engine": 100,
    "aborted at the decode engine": 100,
    "prefill engines killed": 40,
    "decode engines killed": 40,
    "resets with the connector": 40,
    "blocks handed over": 2000,
}
"""What 200 seeds must have met at least."""


def case(function: Callable[[], None]) -> Callable[[], None]:
    """Registers a case."""
    CASES.append(function)
    return function


def plain(_: int) -> Any:
    """Copies memory without threads; what comes from peers has its own."""
    copier = ThreadCopier(workers=0)
    return {("device", "host"): copier, ("host", "device"): copier}


def prefiller(listen: str = "127.0.0.1:0", **more: Any) -> Engine:
    """A prefill engine."""
    given: dict[str, Any] = {"blocks": 60, "host": 200, "copier": plain, "lease": LEASE}
    given |= {"unread": UNREAD, "namespace": {"weights": "v1"}, "role": "kv_producer"}
    engine = Engine(**(given | {"listen": listen} | more))
    engine.pause = 1e-3
    return engine


def decoder(*peers: str, **more: Any) -> Engine:
    """A decode engine of these prefill engines."""
    given: dict[str, Any] = {"blocks": 60, "host": 200, "copier": plain, "peers": list(peers)}
    given |= {"namespace": {"weights": "v1"}, "role": "kv_consumer", "remote_names": 10_000}
    engine = Engine(**(given | more))
    engine.pause = 1e-3
    return engine


def address(engine: Engine) -> str:
    """Where a prefill engine listens."""
    return str(engine.front.handing.prefill.listens)


def prefilled(engine: Engine, name: str, prompt: list[int]) -> dict[str, Any]:
    """Has a prompt computed; returns what a router passes on."""
    engine.add(name, prompt, 1, asks=dict(PREFILL))
    settled(engine, condition=lambda: name in engine.handed)
    return engine.handed[name]


def settled(*engines: Engine, condition: Callable[[], bool]) -> None:
    """Steps until something is so."""
    until = time.monotonic() + 20
    while not condition():
        if time.monotonic() > until:
            raise Wrong("it never comes")
        for one in engines:
            one.step()


@case
def the_decode_engine_computes_no_full_block_that_was_offered() -> None:
    # In vllm#52617 such hits were whole, and the answers other ones.
    for asynchronous in (False, True):
        asked = prompts(6)
        prefill = prefiller(asynchronous=asynchronous)
        decode = decoder(address(prefill), asynchronous=asynchronous)
        for at, prompt in enumerate(asked):
            said = prefilled(prefill, f"p{at}", prompt)
            decode.add(f"r{at}", prompt, 20, asks=said)
            decided = partial(done, decode, f"r{at}")
            settled(prefill, decode, condition=decided)
            same(decode.answer(f"r{at}"), undisturbed(prompt, 20), "the answer")
            same(decode.computed[f"r{at}"], left_to_compute(prompt, 20), "computed by it")
        rest(prefill, decode)


@case
def samples_and_longer_and_shorter_prompts_of_one_offer_compute_no_full_block_of_it() -> None:
    (prompt,) = prompts(1)
    full, more = len(prompt) // SIZE * SIZE, prompts(1, seed=2)[0]
    asked = {"one": prompt, "other": prompt, "long": prompt + more, "short": prompt[: full - 1]}
    # The host has room for one prompt at a time: its blocks are in vLLM's own cache.
    prefill = prefiller(host=full // SIZE, preempt="recompute")
    decode = decoder(address(prefill))
    for turn in range(2):
        said = prefilled(prefill, f"p{turn}", prompt)
        for name, one in asked.items():
            decode.add(f"{name} {turn}", one, 8, asks=dict(said))
        ended = partial(all_done, decode, [f"{name} {turn}" for name in asked])
        settled(prefill, decode, condition=ended)
        for name, one in asked.items():
            same(decode.answer(f"{name} {turn}"), undisturbed(one, 8), "the answer")
        prefilled(prefill, f"another {turn}", more)
    of_one = [left_to_compute(prompt, 8)] * 4
    same(
        [decode.computed[f"{name} {turn}"] for name in ("one", "other") for turn in range(2)],
        of_one,
        "computed",
    )
    same(decode.computed["long 0"], len(prompt) - full + len(more) + 7, "computed of more")
    same(decode.computed["short 0"], SIZE - 1 + 7, "computed of less")
    rest(prefill, decode)


@case
def a_request_whose_prefill_engine_is_gone_is_computed() -> None:
    (prompt,) = prompts(1)
    prefill = prefiller()
    decode = decoder(address(prefill), patience=0.2)
    said = prefilled(prefill, "p", prompt)
    prefill.close()
    decode.add("r", prompt, 8, asks=said)
    decode.drain()
    same(decode.answer("r"), undisturbed(prompt, 8), "the answer")
    same(decode.computed["r"], len(prompt) + 7, "computed by it")
    rest(decode)


def done(engine: Engine, name: str) -> bool:
    """Whether a request has ended."""
    return bool(engine.requests[name].is_finished())


def all_done(engine: Engine, names: list[str]) -> bool:
    """Whether these have ended."""
    return all(done(engine, name) for name in names)


def rest(*engines: Engine) -> None:
    """Checks that engines at rest hold nothing, and closes them."""
    until = time.monotonic() + 10
    for engine in engines:
        while held(engine) and time.monotonic() < until:
            engine.step()
        left = held(engine)
        if left:
            raise Wrong(f"left behind: {left}")
        check_at_rest(engine)
    for engine in engines:
        engine.close()
        engine.scheduler.connector.shutdown()


def held(engine: Engine) -> dict[str, int]:
    """What an engine holds for others, or waits for of them."""
    handing = engine.front.handing
    found = {"held_blocks": engine.caches[0].stats()["held_blocks"]}
    if handing.decode is not None:
        stats = handing.decode.stats()
        found |= {name: stats[name] for name in ("handover_waiting", "handover_open")}
    return {name: count for name, count in found.items() if count}


class Ask:
    """A request, as the router has it."""

    def __init__(self, chance: random.Random, room: int) -> None:
        family = 1000 * chance.randrange(3)
        shared = range(family, family + chance.choice([0, 16, 40, 96]))
        own = [chance.randrange(1000) for _ in range(chance.randint(1, 60))]
        self.prompt = [*shared, *own][: room // 2]
        self.most = chance.randint(1, min(60, room // 3))
        self.where = "router"
        self.tries = 0
        self.steps = 0
        """Steps until the prefill engine is not waited for."""

    def name(self, at: int) -> str:
        """What engines call it: each of its lives is another request."""
        return f"r{at}.{self.tries}"


class Duo:
    """A seed, from its first request to its end."""

    def __init__(self, seed: int) -> None:
        self.seed, self.chance = seed, random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.faults = self.chance.random() < 0.75
        chance = self.chance
        self.shapes: list[dict[str, Any]] = [
            {
                "blocks": chance.randint(24, 50),
                "host": chance.choice([64, 80, 300]),
                "seats": chance.randint(3, 10),
                "budget": chance.choice([16, 64, 128, 512]),
                "asynchronous": chance.random() < 0.5,
                "offload": chance.choice(["finish", "through"]),
            }
            for _ in range(2)
        ]
        self.lives = 0
        self.prefill = prefiller(**self.shapes[0], copier=self.copiers())
        self.at = address(self.prefill)
        self.decode = self.new_decoder()
        room = min(shape["blocks"] - 1 for shape in self.shapes) * SIZE
        self.asks = [Ask(chance, room) for _ in range(chance.randint(6, 14))]

    def copiers(self) -> Callable[[int], Any]:
        """Makes the copier of an engine's memory."""
        failing = 0.2 if self.faults else 0
        self.lives += 1

        def make(_: int) -> Any:
            script = Script.seeded(
                100 * self.seed + self.lives, late=0.5, failing=failing, corrupting=failing
            )
            copier = ScriptedCopier(ThreadCopier(workers=0), script)
            return {("device", "host"): copier, ("host", "device"): copier}

        return make

    def new_decoder(self) -> Engine:
        """Starts a decode engine."""
        patience = self.chance.choice([0.05, 0.5])
        return decoder(self.at, **self.shapes[1], copier=self.copiers(), patience=patience)

    def play(self) -> Counter[str]:
        """Plays it; returns what has happened."""
        turns = 0
        while any(ask.where != "done" for ask in self.asks):
            self.turn()
            turns += 1
            if turns > 20_000:
                raise Wrong(f"it does not end: {[ask.where for ask in self.asks]}")
        self.count(self.decode)
        rest(self.prefill, self.decode)
        return self.seen

    def turn(self) -> None:
        """What happens before a step of both, and the steps."""
        chance = self.chance
        for at, ask in enumerate(self.asks):
            self.route(at, ask)
        if self.faults:
            if chance.random() < 0.05:
                self.abort()
            if chance.random() < 0.004:
                self.kill_prefill()
            if chance.random() < 0.004:
                self.kill_decode()
            if chance.random() < 0.008:
                self.reset(with_connector=chance.random() < 0.5)
        for engine in (self.prefill, self.decode):
            if chance.random() < 0.8:
                engine.step()

    def route(self, at: int, ask: Ask) -> None:
        """Does what a router does for a request."""
        chance, name = self.chance, ask.name(at)
        if ask.where == "router" and chance.random() < 0.2:
            self.prefill.add(name, ask.prompt, 1, asks=dict(PREFILL))
            ask.where, ask.steps = "prefill", 400
        elif ask.where == "prefill":
            ask.steps -= 1
            if name in self.prefill.handed or done(self.prefill, name) or not ask.steps:
                self.hand(name, ask)
        elif ask.where == "decode" and done(self.decode, name):
            wanted, have = undisturbed(ask.prompt, ask.most), self.decode.answer(name)
            if have != wanted:
                raise Wrong(f"{name} has sampled {have}, and undisturbed it is {wanted}")
            ask.where = "done"

    def hand(self, name: str, ask: Ask) -> None:
        """Passes what the prefill engine has said to the decode engine, or something else."""
        said = self.prefill.handed.get(name)
        fate = self.chance.random() if self.faults else 1.0
        if said is not None and fate < 0.1:
            said = None
            self.seen["offers lost"] += 1
        elif fate < 0.2 and self.prefill.handed:
            said = self.chance.choice(list(self.prefill.handed.values()))
            self.seen["offers of another request"] += 1
        elif said is not None and fate < 0.25:
            said = said | {"blockyard.offer": {"id": "no", "at": 7}}
            self.seen["offers malformed"] += 1
        self.decode.add(name, ask.prompt, ask.most, asks=said)
        ask.where = "decode"

    def abort(self) -> None:
        """Aborts a request, whose client comes back: it begins again."""
        # A prompt is soon computed: one at the prefill engine goes first.
        every = list(range(len(self.asks)))
        first = [at for at in every if self.asks[at].where == "prefill"]
        at = self.chance.choice(first or every)
        ask = self.asks[at]
        engine = {"prefill": self.prefill, "decode": self.decode}.get(ask.where)
        if engine is None or done(engine, ask.name(at)):
            return
        self.seen[f"aborted at the {ask.where} engine"] += 1
        self.seen["aborted with a copy in the air"] += is_loading(engine.requests[ask.name(at)])
        engine.abort(ask.name(at))
        ask.tries += 1
        ask.where = "router"

    def reset(self, *, with_connector: bool) -> None:
        """Resets the prefix cache of an engine; with the connector it hands nothing over then."""
        engine = self.chance.choice([self.prefill, self.decode])
        with contextlib.suppress(RuntimeError):
            engine.scheduler.reset_prefix_cache(self.chance.random() < 0.5, with_connector)
        self.seen["resets with the connector"] += with_connector

    def kill_prefill(self) -> None:
        """Ends a prefill engine without a word to anybody, and starts another in its place."""
        self.seen["prefill engines killed"] += 1
        self.prefill.front.handing.prefill.close()
        self.prefill.close()
        self.prefill = prefiller(self.at, **self.shapes[0], copier=self.copiers())
        self.again("prefill")

    def kill_decode(self) -> None:
        """The same of the decode engine; its connections end."""
        self.seen["decode engines killed"] += 1
        self.count(self.decode)
        self.decode.close()
        self.decode.scheduler.connector.shutdown()
        self.decode = self.new_decoder()
        self.again("decode")

    def again(self, where: str) -> None:
        """Requests whose engine has died begin again."""
        for ask in self.asks:
            if ask.where == where:
                ask.tries += 1
                ask.where = "router"

    def count(self, decode: Engine) -> None:
        """Counts what has happened."""
        stats = decode.front.handing.decode.stats()
        for name in ("taken", "gone", "late", "foreign", "malformed"):
            self.seen[f"offers {name}"] += stats[f"handover_{name}"]
        loaded = decode.front.connector.stats()["cached_remote"] // SIZE
        self.seen["blocks handed over"] += loaded
        self.seen["loads cut short"] += decode.front.cut
        self.seen["asynchronous"] += decode.asynchronous
        self.seen["preempted"] += decode.preempted


if __name__ == "__main__":
    sys.exit(run(__doc__, CASES, Duo, WANTED, 200))
