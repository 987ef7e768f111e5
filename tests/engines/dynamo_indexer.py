"""Does Dynamo's own indexer know of a cache what the cache has?

    python dynamo_indexer.py [--seeds 12] [--mistake NAME]

It starts `python -m dynamo.indexer` of ai-dynamo-runtime, on loopback, and publishes caches of two
and three tiers in random lives to it: with copies that fail, corrupt blocks, parks, clears,
resizes, rings that overflow, an indexer that comes late, and publishers that are restarted. In the
end every block that the indexer knows is compared with the slots of the cache, and what it answers
for a prompt with what its own rule gives. Each check is a line. With a mistake, it has to fail.
"""

import argparse
import itertools
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial

import dynamo_cases
import dynamo_rules
from blockyard.publishing.options import PublisherOptions
from blockyard.publishing.publisher import Publisher
from dynamo_life import TURNS, Life
from dynamo_mistakes import FROM_0, MISTAKES, told
from dynamo_process import ANY, Blocks, Indexer, Wrong

RING = 24
"""Events that wait at most in a third of the lives; they are lost there, and told again."""


def settled(indexer: Indexer, worker: int, life: Life, publisher: Publisher, pokes: int) -> str:
    """Waits until it knows all; returns what it does not know, or knows wrong.

    A gap is seen with the next batch, so that whoever has missed the last one needs one more.
    """
    blocks: Blocks = set()
    for poke in range(pokes + 1):
        if poke:
            life.turn()
        blocks = life.blocks()
        publisher.flush()
        if indexer.has(blocks, worker, 1):
            break
    known = indexer.blocks(worker)
    over, under = len(known - blocks), len(blocks - known)
    answers = [(indexer.known(worker, one), right) for one, right in life.answers(blocks)]
    wrong = [pair for pair in answers if pair[0] != pair[1]]
    if over or under or wrong:
        return f"{over} blocks over, {under} under, {len(wrong)} of {len(answers)} prompts wrong"
    return ""


def play(indexer: Indexer, worker: int, seed: int, *, disk: int, mistake: str | None) -> Life:
    """One life; a fourth of the publishers are restarted under their name."""
    ring = RING if seed % 3 == 0 else 1 << 17
    endpoint = replay = ANY
    last = 0
    for part in range(2 if seed % 4 == 3 else 1):
        life = Life(1000 * part + worker, disk=disk)
        chance = life.chance
        # Where much is to be lost, nobody looks for as long as may be.
        every = 0.1 if ring == RING else 0.01
        options = PublisherOptions(ring=ring, rank=0, keep=chance.choice([5, 10_000]), every=every)
        clock = time.time if part == 0 or mistake != FROM_0 else lambda: 0.0
        cache = told(life.cache, mistake)
        with Publisher(cache, endpoint, replay=replay, options=options, clock=clock) as publisher:
            endpoint, replay = publisher.endpoint, str(publisher.replay)
            first = publisher.stats()["next"] - publisher.stats()["batches"]
            if part and mistake is None and first <= last:
                raise Wrong(f"a restart begins at {first}, which is no gap after {last - 1}")
            for turn in range(TURNS):
                life.turn()
                if part == 0 and turn == TURNS // 2:
                    indexer.register(worker, endpoint, replay)
                if turn % 12 == 11 if ring == RING else chance.random() < 0.3:
                    publisher.flush()
            fault = settled(indexer, worker, life, publisher, pokes=4 if mistake is None else 1)
            if fault:
                raise Wrong(f"seed {seed}, {'three' if disk else 'two'} tiers: {fault}")
            lost = publisher.stats()["lost"]
            last = publisher.stats()["next"]
            if mistake is None and (lost > 0) != (ring == RING):
                raise Wrong(f"seed {seed}: {lost} events were lost with a ring of {ring}")
    indexer.unregister(worker)
    return life


def lives(indexer: Indexer, seeds: int, *, disk: int, mistake: str | None = None) -> str:
    """All lives of so many tiers."""
    prompts = blocks = 0
    for seed in range(seeds):
        life = play(indexer, (300 if disk else 200) + seed + 1, seed, disk=disk, mistake=mistake)
        prompts += len(life.prompts)
        blocks += len(life.blocks())
    return f"{seeds} lives, {prompts} prompts and {blocks} blocks known exactly, 0 over, 0 under"


def noticed(indexer: Indexer, mistake: str, workers: "itertools.count[int]") -> str:
    """A mistake that lives must not survive."""
    for seed, disk in itertools.product((1, 2, 4, 7), (0, 30)):
        try:
            play(indexer, next(workers), seed, disk=disk, mistake=mistake)
        except Wrong as seen:
            return str(seen)
    raise Wrong("nothing has noticed it")


def run(name: str, check: Callable[[], str | None]) -> int:
    """Runs a check, and says in a line what it has seen; returns 1 where it is broken."""
    try:
        said = check()
    except Exception as error:  # noqa: BLE001 - whatever it is, the check shows it
        print(f"BROKEN  dynamo: {name}: {error}", flush=True)
        if not isinstance(error, Wrong):
            traceback.print_exc()
        return 1
    print(f"ok      dynamo: {name}{f': {said}' if said else ''}", flush=True)
    return 0


def main() -> int:
    """Runs all, or the lives with a mistake."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--mistake", choices=MISTAKES)
    options = parser.parse_args()
    indexer = Indexer()
    checks: dict[str, Callable[[], str | None]] = {}
    for tiers, disk in (("two", 0), ("three", 30)):
        live = partial(lives, indexer, options.seeds, disk=disk, mistake=options.mistake)
        checks[f"{tiers} tiers"] = live
    if options.mistake is None:
        for one in (*dynamo_cases.CASES, *dynamo_rules.RULES):
            checks[one.__name__.replace("_", " ")] = partial(one, indexer)
        workers = itertools.count(10_000)
        for mistake in MISTAKES:
            checks[f"noticed {mistake}"] = partial(noticed, indexer, mistake, workers)
    try:
        return int(sum(run(*named) for named in checks.items()) > 0)
    finally:
        indexer.kill()


if __name__ == "__main__":
    sys.exit(main())
