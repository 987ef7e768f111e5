"""What happens to a publisher, to the indexer and to a subscriber beside it, each by name."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import zmq

import blockyard as by
from blockyard.publishing.options import PublisherOptions
from blockyard.publishing.publisher import Publisher
from dynamo_life import Life, followed, numbers
from dynamo_process import ANY, SIZE, TIERS, Blocks, Indexer, Wrong, until

sys.path.append(str(Path(__file__).parents[1] / "python" / "support"))

from kv_events import Router

Case = Callable[[Indexer], str | None]
CASES: list[Case] = []
MEDIA: dict[str | None, str] = dict(zip(("GPU", "CPU", "STORAGE"), TIERS, strict=True))


def case(function: Case) -> Case:
    """Registers a case."""
    CASES.append(function)
    return function


@contextmanager
def published(cache: by.KVCache, **options: Any) -> Iterator[Publisher]:
    """A publisher of a cache."""
    told = PublisherOptions(**({"rank": 0} | options))
    with Publisher(cache, ANY, replay=ANY, options=told) as publisher:
        yield publisher


def register(indexer: Indexer, worker: int, publisher: Publisher, rank: int = 0) -> None:
    """Tells the indexer of a publisher."""
    indexer.register(worker, publisher.endpoint, publisher.replay, rank)


def same(have: object, wants: object, what: str) -> None:
    """Checks a value."""
    if have != wants:
        raise Wrong(f"{what}: {have}, not {wants}")


def learns(
    indexer: Indexer, worker: int, life: Life, publisher: Publisher, rank: int | None = None
) -> Blocks:
    """Waits until it knows all that a life has; whoever has missed a batch sees it by the next.

    For a prompt it answers with the best of a worker's ranks: of one among several only the blocks
    are compared.
    """
    own = rank or 0
    blocks: Blocks = set()
    for _ in range(6):
        life.turn()
        blocks = life.blocks()
        publisher.flush()
        if indexer.has(blocks, worker, 2, own):
            break
    known = indexer.blocks(worker, own)
    same((len(known - blocks), len(blocks - known)), (0, 0), "blocks over and under")
    for prompt, answer in life.answers(blocks) if rank is None else []:
        same(indexer.known(worker, prompt), answer, f"what it knows of {prompt[::SIZE]}")
    return blocks


def compute(cache: by.KVCache, tokens: list[int], **extras: Any) -> None:
    """A request, from its begin to its end."""
    lease = cache.begin([*tokens, 99], **extras)
    assert isinstance(lease, by.Lease)
    cache.commit(cache.dispatch())
    cache.seal(lease, len(tokens))
    cache.finish(lease)


@case
def an_indexer_that_is_killed_and_started_again_learns_all(indexer: Indexer) -> str:
    before: Blocks = set()
    after: Blocks = set()
    for keep in (5, 10_000):
        life = Life(keep, disk=30)
        with published(life.cache, keep=keep) as publisher:
            register(indexer, 1, publisher)
            for _ in range(60):
                life.turn()
                publisher.flush()
            before = learns(indexer, 1, life, publisher)
            indexer.kill()
            life.turn()
            publisher.flush()
            indexer.start()
            same(indexer.blocks(1), set(), "what it knows at its start")
            register(indexer, 1, publisher)
            after = learns(indexer, 1, life, publisher)
        indexer.unregister(1)
    return f"{len(before)} blocks before, {len(after)} after"


class Killed:
    """A publisher in a process of its own."""

    def __init__(self, endpoint: str, replay: str, seed: int) -> None:
        words = [sys.executable, str(Path(__file__).with_name("dynamo_life.py"))]
        words += [endpoint, replay, str(seed)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)

    def says(self) -> dict[str, Any]:
        """What its cache has."""
        assert self.process.stdout
        said: dict[str, Any] = json.loads(self.process.stdout.readline())
        return said

    def goes_on(self) -> dict[str, Any]:
        """Has it do one turn more."""
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.says()

    def kill(self) -> None:
        """Ends it at once, with SIGKILL: it closes nothing and says nothing."""
        self.process.kill()
        self.process.wait()


@case
def a_publisher_that_is_killed_and_started_again_is_believed_anew(indexer: Indexer) -> str:
    endpoint = replay = ANY
    ends: list[dict[str, Any]] = []
    for seed in (1, 2, 3):
        killed = Killed(endpoint, replay, seed)
        try:
            said = killed.says()
            if not ends:
                endpoint, replay = said["endpoint"], said["replay"]
                indexer.register(2, endpoint, replay)
            blocks: Blocks = set()
            for _ in range(10):
                said = killed.goes_on()
                blocks = {(name, tier) for name, tier in said["blocks"]}
                if indexer.has(blocks, 2, 2):
                    break
            known = indexer.blocks(2)
            same((len(known - blocks), len(blocks - known)), (0, 0), "blocks over and under")
            for prompt, answer in said["answers"]:
                same(list(indexer.known(2, prompt)), answer, f"what it knows of {prompt[::SIZE]}")
        finally:
            killed.kill()
        if ends and said["first"] <= ends[-1]["next"]:
            raise Wrong(f"{said['first']} is no gap after {ends[-1]['next'] - 1}")
        ends.append(said)
    indexer.unregister(2)
    gaps = [after["first"] - before["next"] for before, after in pairwise(ends)]
    return f"numbers go on after gaps of {' and '.join(f'{gap:,}' for gap in gaps)}"


class Slow:
    """A subscriber that reads when it is too late."""

    def __init__(self, publisher: Publisher) -> None:
        self.context = zmq.Context()
        self.sub = self.context.socket(zmq.SUB)
        self.sub.setsockopt(zmq.RCVHWM, 1)
        self.sub.setsockopt(zmq.RCVBUF, 4096)
        self.sub.setsockopt(zmq.SUBSCRIBE, b"")
        self.sub.connect(publisher.endpoint)
        self.asks = self.context.socket(zmq.DEALER)
        self.asks.connect(str(publisher.replay))
        self.router = Router()
        self.heard: list[int] = []

    def hear(self) -> int:
        """Reads what has come; returns the first number that it lacks."""
        while self.sub.poll(500):
            _, number, payload = self.sub.recv_multipart()
            at = int.from_bytes(number, "big")
            if not self.heard or at == self.heard[-1] + 1:
                self.heard.append(at)
                self.router.hear(payload)
        return self.heard[-1] + 1

    def repair(self, start: int) -> int:
        """Asks for what it lacks, as vLLM's subscribers do; returns how many batches it got."""
        self.asks.send_multipart((b"", start.to_bytes(8, "big")))
        batches = 0
        while self.asks.poll(10_000):
            *_, payload = self.asks.recv_multipart()
            if not payload:
                return batches
            self.router.hear(payload)
            batches += 1
        raise Wrong("a replay does not end")


def blocks_of(cache: by.KVCache, prompts: list[list[int]]) -> Blocks:
    """What a cache says that it has, held against its slots and what it finds of prompts."""
    snapshot = Router()
    gone, payload = cache.snapshot_events()
    same(gone, None, "what the publisher has not sent")
    snapshot.hear(payload)
    blocks = {(name, MEDIA[medium]) for name, medium in snapshot.blocks}
    slots = sum(len(cache.eviction_order(tier)) for tier in ("device", "host"))
    same(len(blocks), slots, "blocks of the cache")
    for prompt in prompts:
        probe, names = cache.probe(prompt), numbers(cache.keys(prompt))
        found = probe.device, probe.device + probe.host
        same(found, followed(names, blocks)[:2], f"what is found of {prompt[0]}")
    return blocks


@case
def a_subscriber_that_never_reads_holds_up_nobody_and_repairs_itself(indexer: Indexer) -> str:
    said = []
    for keep in (5, 10_000):
        cache = by.KVCache(block_size=SIZE, device=2049, host=1024)
        with published(cache, keep=keep, backlog=10) as publisher:
            slow = Slow(publisher)
            register(indexer, 3, publisher)
            # What it hears first is the last that it hears: it is connected then.
            for name in range(1000):
                compute(cache, [name] * SIZE)
                publisher.flush()
                if slow.sub.poll(5):
                    break
            first = publisher.stats()["batches"]
            for name in range(300):
                # Batches of 40 KB, so that the buffers of the system are full too.
                compute(cache, [100_000 + name] * SIZE * 512)
                plan = cache.demote(8)
                if plan is not None:
                    cache.commit([plan])
                if not publisher.flush():
                    raise Wrong(f"the publisher stands still at request {name}")
            stats = publisher.stats()
            same(stats["lost"], 0, "events that the publisher was too slow for")
            right: Blocks = set()
            for name in range(6):
                compute(cache, [200_000 + name] * SIZE)
                publisher.flush()
                right = blocks_of(cache, [[100_000 + at] * SIZE * 512 for at in range(300)])
                if indexer.has(right, 3, 4):
                    break
            same(len(indexer.blocks(3) ^ right), 0, "blocks that the indexer knows wrong")
            lacks = slow.hear()
            dropped = publisher.stats()["batches"] - first - len(slow.heard)
            if dropped <= 0:
                raise Wrong(f"it has heard all {len(slow.heard)} batches: nothing was shown")
            got = slow.repair(lacks)
            known = {(name, MEDIA[medium]) for name, medium in slow.router.blocks}
            same(len(known ^ right), 0, "blocks that the slow one knows wrong")
            said.append(f"heard {len(slow.heard)} of {stats['batches']} batches, then got {got}")
            slow.context.destroy(linger=0)
        indexer.unregister(3)
    return "; ".join(said)


@case
def a_clear_of_one_rank_leaves_the_other(indexer: Indexer) -> str:
    lives = [Life(seed, disk=30) for seed in (5, 6)]
    with published(lives[0].cache) as one, published(lives[1].cache, rank=1) as other:
        for rank, publisher in enumerate((one, other)):
            register(indexer, 4, publisher, rank)
        for life in lives * 60:
            life.turn()
        learns(indexer, 4, lives[0], one, rank=0)
        left = learns(indexer, 4, lives[1], other, rank=1)
        lives[0].cache.clear()
        one.flush()
        if not indexer.has(set(), 4, 5):
            raise Wrong(f"rank 0 was cleared, and {len(indexer.blocks(4))} blocks are known of it")
        same(indexer.blocks(4, 1), left, "what is known of rank 1")
        lives[0].written.clear()
        back = learns(indexer, 4, lives[0], one, rank=0)
        same(indexer.blocks(4, 1), left, "what is known of rank 1")
    indexer.unregister(4)
    return f"{len(left)} blocks of rank 1 stay, and {len(back)} come back to rank 0"


@case
def a_salted_prompt_is_known_to_its_salt_alone_or_not_at_all(indexer: Indexer) -> None:
    salted, plain = [1] * 2 * SIZE, [2] * 2 * SIZE
    for salts in ("hide", "tell"):
        cache = by.KVCache(block_size=SIZE, device=33)
        with published(cache, salts=salts) as publisher:
            register(indexer, 5, publisher)
            compute(cache, salted, salt="one")
            # It comes later, so that what was told of the others has come before it.
            for _ in range(50):
                compute(cache, plain)
                publisher.flush()
                if until(lambda: indexer.known(5, plain)[0] == 2, 0.1):
                    break
                cache.clear()
                compute(cache, salted, salt="one")
            same(indexer.known(5, plain)[0], 2, "a plain prompt")
            same(indexer.known(5, salted)[0], 0, f"a plain query, and salts={salts}")
            same(indexer.known(5, plain, cache_salt="one")[0], 0, "a plain prompt asked salted")
            same(indexer.known(5, salted, cache_salt="two")[0], 0, "another tenant's query")
            own = indexer.known(5, salted, cache_salt="one")[0]
            same(own, 2 if salts == "tell" else 0, f"its own query, and salts={salts}")
        indexer.unregister(5)


@case
def an_adapter_is_known_by_its_name_alone(indexer: Indexer) -> None:
    cache, tokens = by.KVCache(block_size=SIZE, device=33), [3] * 2 * SIZE
    with published(cache) as publisher:
        register(indexer, 6, publisher)
        for _ in range(50):
            compute(cache, tokens, lora="own")
            publisher.flush()
            if until(lambda: indexer.known(6, tokens, lora_name="own")[0] == 2, 0.1):
                break
            cache.clear()
        same(indexer.known(6, tokens, lora_name="own")[0], 2, "its own query")
        same(indexer.known(6, tokens)[0], 0, "a query of the model itself")
        same(indexer.known(6, tokens, lora_name="other")[0], 0, "a query of another adapter")
    indexer.unregister(6)


@case
def whatever_a_full_ring_drops_is_told_again_with_its_tokens(indexer: Indexer) -> str:
    """Nobody takes what happens to many more blocks than the ring and the cache have."""
    life = Life(7, disk=0)
    with published(life.cache, ring=24, every=0.1) as publisher:
        register(indexer, 7, publisher)
        for _ in range(400):
            life.turn()
        blocks = life.blocks()
        publisher.flush()
        stats = publisher.stats()
        if not stats["lost"] or not stats["resyncs"]:
            raise Wrong(f"nothing was lost: {stats}")
        indexer.has(blocks, 7, 2)
        known = indexer.blocks(7)
        same((len(known - blocks), len(blocks - known)), (0, 0), "blocks over and under")
    indexer.unregister(7)
    return f"{stats['lost']} events lost, {len(blocks)} blocks known"
