"""vLLM's real scheduler over Blockyard, by seed.

Each seed has requests that share prefixes, a pool that is too small, a host that is large or small,
faults of copies, aborts with a copy in the air, resets of the prefix cache, priorities, synchronous
or asynchronous scheduling, one rank or two. Every position of every running table is checked in
every step.
"""

import random
from collections import Counter
from typing import Any, NamedTuple

from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.testing import Script, ScriptedCopier
from simulated_model import SIZE, Engine, Wrong, undisturbed


class Ask(NamedTuple):
    """What a request asks for."""

    prompt: list[int]
    most: int
    salt: str | None


def engine_of(seed: int, chance: random.Random, *, faults: bool) -> Engine:
    """Returns the engine of a seed."""
    failing = 0.18 if faults else 0

    def copier(rank: int) -> ScriptedCopier:
        script = Script.seeded(10 * seed + rank, late=0.5, failing=failing, corrupting=failing)
        return ScriptedCopier(ThreadCopier(workers=0), script)

    return Engine(
        blocks=chance.randint(24, 50),
        host=chance.choice([64, 80, 300, 300]),
        seats=chance.randint(3, 10),
        budget=chance.choice([16, 64, 128, 512]),
        ranks=chance.choice([1, 1, 2]),
        asynchronous=chance.random() < 0.5,
        policy=chance.choice(["fcfs", "fcfs", "priority"]),
        copier=copier,
        deadline=chance.choice([None, 12]) if faults else None,
        stow=chance.choice(["finish", "finish", "through", "none"]),
        decode=chance.random() < 0.7,
    )


class Game:
    """A seed, from its first request to its end."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.faults = chance.random() < 0.6
        self.resets = chance.random() < 0.4
        self.engine = engine_of(seed, chance, faults=self.faults)
        self.asked = {f"r{number}": self.ask() for number in range(chance.randint(8, 25))}
        self.waiting = list(self.asked)
        self.live: list[str] = []
        self.aborted: set[str] = set()

    def ask(self) -> Ask:
        """Draws a request; a third of them begin alike."""
        chance = self.chance
        room = (self.engine.config.cache_config.num_gpu_blocks - 1) * SIZE
        family = 1000 * chance.randrange(3)
        shared = range(family, family + chance.choice([0, 16, 40, 96, 160]))
        own = [chance.randrange(1000) for _ in range(chance.randint(1, 60))]
        most = chance.randint(1, min(90, room // 3))
        return Ask([*shared, *own][: room // 2], most, chance.choice([None, None, None, "salt"]))

    def play(self) -> Counter[str]:
        """Plays it; returns what has happened."""
        engine = self.engine
        try:
            while self.waiting or engine.scheduler.has_requests() or engine.flying:
                self.turn()
                if engine.steps > 6_000:
                    left = {name: one.status.name for name, one in engine.requests.items()}
                    raise Wrong(f"it does not end: {left}")
            self.check_answers()
            check_at_rest(engine)
            self.count()
        finally:
            engine.close()
        return self.seen

    def turn(self) -> None:
        """What happens before a step, and the step."""
        chance, engine = self.chance, self.engine
        if self.waiting and chance.random() < 0.3:
            name = self.waiting.pop(0)
            prompt, most, salt = self.asked[name]
            engine.add(name, prompt, most, cache_salt=salt, priority=chance.randrange(3))
            self.live.append(name)
        if self.live and chance.random() < 0.02:
            self.abort()
        if self.resets and chance.random() < 0.01:
            self.reset()
        engine.step()

    def abort(self) -> None:
        """Aborts a request: one that loads, if there is one."""
        requests = self.engine.requests
        loads = [name for name in self.live if is_loading(requests[name])]
        name = self.chance.choice(loads or self.live)
        if not requests[name].is_finished():
            self.seen["aborted"] += 1
            self.seen["aborted with a copy in the air"] += is_loading(requests[name])
            self.aborted.add(name)
            self.engine.abort(name)

    def reset(self) -> None:
        """Resets vLLM's prefix cache, and in half of the cases what is below."""
        running, below = (self.chance.random() < 0.5 for _ in range(2))
        try:
            self.engine.scheduler.reset_prefix_cache(running, below)
            self.seen["reset"] += 1
        except RuntimeError:
            # vLLM's own word where a load is in the air.
            self.seen["reset refused by vLLM"] += 1

    def check_answers(self) -> None:
        """Checks that each has sampled what it samples undisturbed."""
        for name, ask in self.asked.items():
            wanted, have = undisturbed(*ask), self.engine.answer(name)
            if have != (wanted[: len(have)] if name in self.aborted else wanted):
                raise Wrong(f"{name} has sampled {have}, and undisturbed it is {wanted}")

    def count(self) -> None:
        """Counts what has happened."""
        stats = self.engine.front.cache.stats()
        self.seen["preempted"] += self.engine.preempted
        self.seen["parked"] += stats["parkings"]
        self.seen["blocks from the host"] += stats["host_hits"]
        self.seen["loads cut short"] += self.engine.front.cut
        self.seen["copies failed"] += stats["failed"]
        self.seen["copies corrupt"] += stats["corrupt"]
        self.seen["asynchronous"] += self.engine.asynchronous
        self.seen["two ranks"] += len(self.engine.ranks) > 1


def is_loading(request: Any) -> bool:
    """Whether copies may be on their way to a request."""
    return bool(request.status.name == "WAITING_FOR_REMOTE_KVS")


def check_at_rest(engine: Engine) -> None:
    """Checks that neither pool has lost a block."""
    for _ in range(40):
        engine.step()
    stats: dict[str, Any] = engine.front.cache.stats()
    names = ("parked", "flights", "host_pinned", "host_quarantined", "host_promised")
    left = {name: stats[name] for name in names if stats[name]}
    if left:
        raise Wrong(f"left behind: {left}")
    pool = engine.scheduler.kv_cache_manager.block_pool
    if pool.get_num_free_blocks() != pool.num_gpu_blocks - 1:
        raise Wrong(f"{pool.get_num_free_blocks()} of vLLM's {pool.num_gpu_blocks - 1} are free")
