"""Does Dynamo's own indexer know of every prompt what the cache knows?

    python dynamo_indexer.py [--seeds 12]

It starts `python -m dynamo.indexer` of ai-dynamo-runtime, on loopback, and publishes caches of two
and three tiers in random lives to it: with copies that fail, clears, resizes, rings that overflow,
an indexer that comes late, and a publisher that is restarted under its name.
"""

import argparse
import json
import random
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

import blockyard as by
from blockyard.publishing.options import PublisherOptions
from blockyard.publishing.publisher import Publisher

SIZE, TURNS, ASKED = 16, 120, 36
MODEL = "default"


def ask(port: int, path: str, body: dict[str, object] | None = None) -> Any:
    """An answer of the indexer."""
    data = None if body is None else json.dumps(body).encode()
    head = {"content-type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, head)
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - it is on loopback
        text = answer.read().decode()
    return json.loads(text) if text else None


def begin(port: int) -> subprocess.Popen[bytes]:
    """An indexer that answers."""
    words = [sys.executable, "-m", "dynamo.indexer", "--port", str(port), "--threads", "1"]
    process = subprocess.Popen([*words, "--block-size", str(SIZE)], stderr=subprocess.DEVNULL)
    for _ in range(100):
        try:
            ask(port, "/health")
        except (OSError, urllib.error.URLError, ValueError):
            time.sleep(0.1)
        else:
            return process
    process.kill()
    raise RuntimeError("the indexer does not answer")


def register(port: int, worker: int, publisher: Publisher) -> None:
    """Tells it of a publisher."""
    said = {"instance_id": worker, "endpoint": publisher.endpoint, "model_name": MODEL}
    more = {"block_size": SIZE, "dp_rank": 0, "replay_endpoint": publisher.replay}
    ask(port, "/register", said | more)


def play(cache: by.KVCache, chance: random.Random) -> list[int]:
    """One request, and what is copied and resized around it."""
    stem = [chance.randrange(4)] * SIZE * chance.randrange(1, 4)
    prompt = stem + [chance.randrange(12)] * SIZE * chance.randrange(1, 4)
    lease = cache.begin([*prompt, 99])
    assert isinstance(lease, by.Lease)
    cache.commit(cache.dispatch())
    cache.seal(lease, len(prompt))
    if chance.random() < 0.2:
        parked = cache.park(lease, len(prompt))
        cache.abandon(parked)
    else:
        cache.finish(lease)
    for _ in range(chance.randrange(3)):
        plan = cache.demote(chance.randrange(1, 6), tier=chance.choice(["device", "host"]))
        if plan is not None:
            good = len(plan) if chance.random() < 0.8 else chance.randrange(len(plan))
            cache.commit([plan], good=[good], corrupt=[good < len(plan)])
    if chance.random() < 0.03:
        cache.resize("host", chance.choice([20, 30]))
    if chance.random() < 0.01:
        cache.clear()
    return prompt


def compare(port: int, worker: int, cache: by.KVCache, prompts: list[list[int]]) -> list[int]:
    """How many prompts are known exactly, over and under."""
    counts = [0, 0, 0]
    for prompt in prompts:
        answer = ask(port, "/query", {"token_ids": prompt, "model_name": MODEL})
        known = answer["instances"].get(str(worker), {"gpu": 0, "disk": 0})
        probe = cache.probe(prompt)
        all_tiers = probe.device + probe.host + probe.disk
        told = known["gpu"] // SIZE, known["disk"] // SIZE
        true = probe.device, all_tiers
        over = any(one > other for one, other in zip(told, true, strict=True))
        counts[0 if told == true else 1 if over else 2] += 1
    return counts


def life(port: int, worker: int, *, disk: int, restarts: bool) -> list[int]:
    """One life; what the indexer knows at its end, of the prompts of its last turns."""
    chance = random.Random(worker)
    ring = 64 if worker % 3 == 0 else 1 << 17
    options = PublisherOptions(ring=ring, rank=0, keep=chance.choice([5, 10_000]))
    cache, endpoint, replay = None, "tcp://127.0.0.1:*", "tcp://127.0.0.1:*"
    prompts: list[list[int]] = []
    counts = [0, 0, 0]
    for part in range(2 if restarts else 1):
        cache = by.KVCache(block_size=SIZE, device=33, host=30, disk=disk)
        with Publisher(cache, endpoint, replay=replay, options=options) as publisher:
            endpoint, replay = publisher.endpoint, publisher.replay or replay
            for turn in range(TURNS):
                prompts.append(play(cache, chance))
                if part == 0 and turn == TURNS // 2:
                    register(port, worker, publisher)
                if chance.random() < 0.3:
                    publisher.flush()
            if part == 1:
                time.sleep(1)  # the indexer connects again
                play(cache, chance)
            publisher.flush()
            time.sleep(0.5)
            asked = prompts[-ASKED:]
            counts = compare(port, worker, cache, asked)
    return counts


def main() -> int:
    """Plays the lives, and says what was known."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=12)
    seeds = parser.parse_args().seeds
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    indexer = begin(port)
    bad = 0
    try:
        for tiers, disk in ((2, 0), (3, 30)):
            sums = [0, 0, 0]
            for seed in range(seeds):
                worker = 100 * tiers + seed + 1
                counts = life(port, worker, disk=disk, restarts=seed % 4 == 3)
                sums = [one + other for one, other in zip(sums, counts, strict=True)]
            print(
                f"dynamo: {tiers} tiers: {sums[0]} prompts known exactly, {sums[1]} over, "
                f"{sums[2]} under"
            )
            # On three tiers a path may lie on the disk before the host: Dynamo follows them once.
            bad += sums[1] + (sums[2] if tiers == 2 else 0)
    finally:
        indexer.terminate()
        indexer.wait()
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
