"""A cache in a random life, and a ledger that says which block is on which tier at its end.

    python dynamo_life.py ENDPOINT REPLAY SEED

So called, it publishes a life, says in a line of JSON what its end is, and again for each line that
it reads, after one turn more: it is there to be killed.
"""

import contextlib
import json
import random
import sys
from collections import deque
from typing import Any

import blockyard as by
from blockyard.publishing.options import PublisherOptions
from blockyard.publishing.publisher import Publisher
from dynamo_process import SIZE, TIERS, Blocks, Wrong

TURNS = 120
ASKED = 36
"""Prompts that are looked at in the end."""


def numbers(keys: by.Keys) -> list[int]:
    """What blocks are told by: the last 8 bytes of their keys."""
    plain = bytes(keys)
    return [int.from_bytes(plain[at + 24 : at + 32], "big") for at in range(0, len(plain), 32)]


def followed(names: list[int], blocks: Blocks) -> tuple[int, ...]:
    """What Dynamo's rule gives for a prompt: how many leading blocks it follows, tier by tier.

    It goes from the root as far as the device has the blocks, from there as far as the host has
    them, and from there as far as the disk has them. It does not come back to a tier.
    """
    at, known = 0, []
    for tier in TIERS:
        while at < len(names) and (names[at], tier) in blocks:
            at += 1
        known.append(at)
    return tuple(known)


class Life:
    """A cache, and what happens to it by chance.

    The ledger does not see events: it follows slots, by the tables of sequences that are sealed and
    by the copies that have landed. What is true at the end is what it says of the slots that the
    cache can evict.
    """

    def __init__(self, seed: int, *, disk: int) -> None:
        self.chance = random.Random(seed)
        self.cache = by.KVCache(block_size=SIZE, device=33, host=30, disk=disk)
        self.tiers: list[Any] = [tier for tier in TIERS if disk or tier != "disk"]
        self.prompts: deque[list[int]] = deque(maxlen=ASKED)
        self.written: dict[tuple[str, int], int | None] = {}
        """The block that each slot was written with last, since the last clear."""
        self.running: list[tuple[by.Lease, list[int]]] = []
        self.parked: list[tuple[by.Parked, list[int]]] = []
        self.air: list[by.Plan] = []

    def turn(self) -> None:
        """One request more, and what is copied, parked, resized and cleared around it."""
        chance, cache = self.chance, self.cache
        if self.parked and chance.random() < 0.4:
            self.resume()
        else:
            stem = [chance.randrange(4)] * SIZE * chance.randrange(1, 4)
            self.begin(stem + [chance.randrange(12)] * SIZE * chance.randrange(1, 4))
        while len(self.running) > chance.randrange(3):
            self.end(*self.running.pop(chance.randrange(len(self.running))))
        for _ in range(chance.randrange(3)):
            cache.demote(chance.randrange(1, 6), tier=chance.choice(self.tiers[:-1]))
        if self.parked and chance.random() < 0.5:
            cache.demote(chance.randrange(1, 4), of=chance.choice(self.parked)[0])
        self.air += cache.dispatch()
        for plan in list(self.air):
            if chance.random() < 0.7:
                self.land(plan)
        if chance.random() < 0.03:
            with contextlib.suppress(by.InUse):
                cache.resize(chance.choice(["device", "host"]), chance.choice([20, 25, 30]))
        if chance.random() < 0.01:
            cache.clear()
            # What is published, or is being copied, can be found by nobody from here on.
            self.written.clear()

    def begin(self, prompt: list[int]) -> None:
        """Begins a request, and computes it."""
        self.prompts.append(prompt)
        try:
            lease = self.cache.begin([*prompt, 99])
        except by.NoRoom:
            self.rest()
        else:
            assert isinstance(lease, by.Lease)
            self.compute(lease, prompt)

    def resume(self) -> None:
        """Brings a parked request back."""
        parked, prompt = self.parked.pop(self.chance.randrange(len(self.parked)))
        try:
            lease = self.cache.begin(parked)
        except by.NoRoom:
            self.cache.abandon(parked)
        else:
            if isinstance(lease, by.Soon):
                self.parked.append((parked, prompt))
            else:
                self.compute(lease, prompt)

    def compute(self, lease: by.Lease, prompt: list[int]) -> None:
        """Waits for a request's loads, some of which fail, and computes the rest."""
        self.air += self.cache.dispatch()
        # A load may wait for a copy of the same block that is on its way down.
        while lease.state == "loading":
            self.land(self.air[0])
        self.cache.grow(lease, 0)
        self.cache.seal(lease, len(prompt))
        if lease.state != "detached":
            table = self.cache.block_tables(lease)[0].tolist()
            names = numbers(self.cache.keys(prompt))
            for slot, name in zip(table, names, strict=False):
                self.written["device", slot] = name
        self.running.append((lease, prompt))

    def land(self, plan: by.Plan) -> None:
        """Ends a flight: well, or with a block that is bad, or that is found corrupt."""
        self.air.remove(plan)
        good = len(plan) if self.chance.random() < 0.85 else self.chance.randrange(len(plan))
        slots = zip(plan.sources.tolist(), plan.destinations.tolist(), strict=True)
        for source, destination in list(slots)[:good]:
            name = self.written.get((plan.source_tier, source))
            self.written[plan.destination_tier, destination] = name
        corrupt = good < len(plan) and self.chance.random() < 0.5
        if self.chance.random() < 0.1:
            self.cache.mark_unknown([plan])
        self.cache.commit([plan], good=[good], corrupt=[corrupt])

    def end(self, lease: by.Lease, prompt: list[int]) -> None:
        """Ends a request, or parks it."""
        if lease.state == "ready" and self.chance.random() < 0.3:
            with contextlib.suppress(by.NoRoom):
                self.parked.append((self.cache.park(lease, len(prompt)), prompt))
                return
        self.cache.finish(lease)

    def rest(self) -> None:
        """Ends all that runs, is parked or is in the air."""
        while self.running:
            self.cache.finish(self.running.pop()[0])
        while self.parked:
            self.cache.abandon(self.parked.pop()[0])
        self.air += self.cache.dispatch()
        while self.air:
            self.land(self.air[0])

    def blocks(self) -> Blocks:
        """Every block, and every tier where it is: what a router has to know. It rests for that."""
        self.rest()
        blocks: Blocks = set()
        for tier in self.tiers:
            for slot in self.cache.eviction_order(tier).tolist():
                name = self.written.get((tier, slot))
                if name is None:
                    continue  # it is of before a clear
                if (name, tier) in blocks:
                    raise Wrong(f"the ledger has {name} on {tier} twice, also in slot {slot}")
                blocks.add((name, tier))
        self.check(blocks)
        return blocks

    def check(self, blocks: Blocks) -> None:
        """Holds the ledger against what the cache answers."""
        if violation := self.cache.audit():
            raise Wrong(str(violation))
        for prompt in self.prompts:
            probe, names = self.cache.probe(prompt), numbers(self.cache.keys(prompt))
            anywhere = [any((name, tier) in blocks for tier in TIERS) for name in names]
            all_tiers = [*anywhere, False].index(False)
            found = probe.device + probe.host + probe.disk
            if probe.device != followed(names, blocks)[0]:
                raise Wrong(f"a probe finds {probe}, and the ledger has {blocks}")
            if found != all_tiers and not (probe.stop == "scattered" and found < all_tiers):
                raise Wrong(f"a probe finds {probe}, and the ledger has {all_tiers} in all")

    def answers(self, blocks: Blocks) -> list[tuple[list[int], tuple[int, ...]]]:
        """The last prompts, each with what Dynamo's rule gives for it."""
        return [(one, followed(numbers(self.cache.keys(one)), blocks)) for one in self.prompts]


def main() -> None:
    """Publishes a life until it is killed."""
    endpoint, replay, seed = sys.argv[1:]
    life = Life(int(seed), disk=30)
    options = PublisherOptions(rank=0)
    publisher = Publisher(life.cache, endpoint, replay=replay, options=options)
    for _ in range(TURNS):
        life.turn()
    while True:
        blocks = life.blocks()
        publisher.flush()
        stats = publisher.stats()
        said: dict[str, Any] = {"endpoint": publisher.endpoint, "replay": publisher.replay}
        said |= {"first": stats["next"] - stats["batches"], "next": stats["next"]}
        said |= {"blocks": list(blocks), "answers": life.answers(blocks)}
        print(json.dumps(said), flush=True)
        if not sys.stdin.readline():
            return
        life.turn()


if __name__ == "__main__":
    main()
