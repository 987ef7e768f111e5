"""vLLM's real scheduler over Blockyard, by seed.

Each seed has requests that share prefixes, a pool that is too small, a host that is large or small,
faults of copies, bits that flip in host memory, reports that come late, twice or never, aborts with
a copy in the air, resets of the prefix cache, new weights, priorities, drafted tokens, synchronous
or asynchronous scheduling, the first or the second runner's order, one rank or two. Every position
of every running table is checked in every step.
"""

import random
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from vllm.lora.request import LoRARequest

from blockyard.connectors.vllm.messages import Reports
from blockyard.crane.copiers import Copier
from blockyard.crane.copiers.checked import CheckedCopier, Checksums
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.testing import Script, ScriptedCopier
from simulated_model import SIZE, Engine, Wrong, adapter_path, start_of, undisturbed

_DEADLINE = 12
"""Steps after which the end of a copy counts as unknown."""
_OWN = (
    {"blockyard.offload": "none"},
    {"blockyard.offload": "through"},
    {"blockyard.preempt": "recompute"},
    {"blockyard.load": False},
    {"blockyard.decode": False},
)


class Ask(NamedTuple):
    """What a request asks for."""

    prompt: list[int]
    most: int
    salt: str | None
    adapter: LoRARequest | None
    own: dict[str, Any] | None


class Post:
    """Reports on their way from a rank: some come late, some twice, and some never."""

    def __init__(self, chance: random.Random, *, loses: bool) -> None:
        self.chance, self.loses = chance, loses
        self.down: set[tuple[int, int]] = set()
        self.late: list[Any] = []
        self.seen: Counter[str] = Counter()

    def __call__(self, orders: Any, reports: Reports | None) -> Reports | None:
        """Returns what arrives in this step."""
        self.down |= {(plan.group, plan.flight) for plan in orders.down}
        late, self.late = self.late, []
        arrived = []
        for outcome in [*late, *(reports.outcomes if reports else ())]:
            chance = self.chance.random()
            # A load whose end nobody hears of holds its blocks for ever, as it has to.
            flight = outcome.group, outcome.flight
            if self.loses and chance < 0.04 and flight in self.down:
                self.seen["reports lost"] += 1
            elif chance < 0.2:
                self.seen["reports late"] += 1
                self.late.append(outcome)
            else:
                arrived.append(outcome)
                if chance > 0.9:
                    self.seen["reports twice"] += 1
                    self.late.append(outcome)
        ready = reports.ready if reports else ()
        return Reports(arrived, ready=ready) if arrived or ready else None


class CheckedByTier:
    """A copier of several cranes, which checks the slots of each one's memory by themselves."""

    def __init__(self, inner: Copier) -> None:
        self.inner = inner
        self.made: dict[int, CheckedCopier] = {}

    def of(self, tier: Any) -> CheckedCopier:
        """Returns the one that checks a tier of memory."""
        if id(tier) not in self.made:
            self.made[id(tier)] = CheckedCopier(self.inner, Checksums(workers=0))
        return self.made[id(tier)]

    def start(self, source: Any, destination: Any, sources: Any, destinations: Any) -> Any:
        """Begins a copy."""
        memory = destination if source.name == "device" else source
        return self.of(memory).start(source, destination, sources, destinations)

    def reset(self) -> None:
        """Ends all copies."""
        for one in self.made.values():
            one.reset()

    def close(self) -> None:
        """Closes all."""
        for one in self.made.values():
            one.close()


def engine_of(seed: int, chance: random.Random, *, faults: bool, **more: Any) -> Engine:
    """Returns the engine of a seed; `more` goes before what is drawn."""
    failing = 0.25 if faults else 0
    deadline = chance.choice([None, _DEADLINE]) if faults else None
    posted = chance.random() < 0.3
    asynchronous = chance.random() < 0.5

    checks = chance.random() < 0.4

    def copier(rank: int) -> Any:
        script = Script.seeded(10 * seed + rank, late=0.5, failing=failing, corrupting=failing)
        made: Any = ScriptedCopier(ThreadCopier(workers=0), script)
        made = CheckedByTier(made) if checks else made
        pairs = ("device", "host"), ("host", "device")
        return dict.fromkeys(pairs, made) if "remote" in more else made

    def mail(rank: int) -> Post:
        return Post(random.Random(10 * seed + rank), loses=deadline is not None)

    # vLLM's n-gram drafts are of synchronous scheduling.
    drafted = not asynchronous and chance.random() < 0.4
    drawn: dict[str, Any] = {
        "blocks": chance.randint(24, 50),
        "host": chance.choice([64, 80, 300, 300]),
        "seats": chance.randint(3, 10),
        "budget": chance.choice([16, 64, 128, 512]),
        "ranks": chance.choice([1, 1, 2]),
        "parallel": chance.choice(["tensor", "stages", "latent"]),
        "asynchronous": asynchronous,
        "policy": chance.choice(["fcfs", "fcfs", "priority"]),
        "copier": copier,
        "mail": mail if posted else None,
        "deadline": deadline,
        "offload": chance.choice(["finish", "finish", "through", "none"]),
        "decode": chance.random() < 0.7,
        "keep_on_reset": chance.choice([None, False]),
        "zeroes": chance.choice([None, None, 1, 2]),
        "drafts": random.Random(seed) if drafted else None,
    }
    return Engine(**(drawn | more))


class Game:
    """A seed, from its first request to its end."""

    beside = False
    """Whether another connector stands before Blockyard."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.faults = chance.random() < 0.75
        self.resets = chance.random() < 0.4
        self.engine = self.make(seed)
        self.asked = {f"r{number}": self.ask() for number in range(chance.randint(9, 28))}
        self.waiting = list(self.asked)
        self.live: list[str] = []
        self.aborted: set[str] = set()

    def make(self, seed: int) -> Engine:
        """Makes its engine."""
        return engine_of(seed, self.chance, faults=self.faults, beside=self.beside)

    def room(self) -> int:
        """Tokens that vLLM has room for."""
        return int(self.engine.config.cache_config.num_gpu_blocks - 1) * SIZE

    def ask(self) -> Ask:
        """Draws a request; a third of them begin alike."""
        chance, room = self.chance, self.room()
        family = 1000 * chance.randrange(3)
        shared = range(family, family + chance.choice([0, 16, 40, 96, 160]))
        own = [chance.randrange(1000) for _ in range(chance.randint(1, 60))]
        most = chance.randint(1, min(90, room // 3))
        number = chance.choice([0, 0, 0, 0, 0, 1, 2])
        path = adapter_path(str(number))
        adapter = LoRARequest(f"adapter {number}", number, path) if number else None
        salt = chance.choice([None, None, None, "salt"])
        asks = chance.choice(_OWN) if chance.random() < 0.2 else None
        return Ask([*shared, *own][: room // 2], most, salt, adapter, asks)

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
            prompt, most, salt, adapter, own = self.asked[name]
            more = {"cache_salt": salt, "lora_request": adapter, "priority": chance.randrange(3)}
            engine.add(name, prompt, most, asks=own, **more)
            self.live.append(name)
        if self.live and chance.random() < 0.02:
            self.abort()
        if self.resets and chance.random() < 0.01:
            self.reset()
        if chance.random() < 0.05:
            self.flip()
        engine.step()

    def flip(self) -> None:
        """Flips a bit of a block on the host, where that is checked and nothing is copied."""
        number = self.chance.randrange(len(self.engine.ranks))
        cranes = list(self.engine.ranks[number].own.back.worker.cranes.values())
        crane = cranes[0] if len(cranes) == 1 else self.chance.choice(cranes)
        copier = crane.copiers["device", "host"]
        if not isinstance(copier, CheckedByTier) or crane.in_flight:
            return
        sums = copier.of(crane._tiers["host"]).sums
        slots = np.flatnonzero(sums._known.get(("host", "kv"), ()))
        if len(slots):
            (plane,) = crane._tiers["host"].planes
            bytes_ = plane[self.chance.choice(slots.tolist())]
            at = tuple(self.chance.randrange(size) for size in bytes_.shape)
            bytes_[at] ^= 1 << self.chance.randrange(8)
            self.seen["bits flipped"] += 1

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
        """Resets vLLM's prefix cache, and in half of the cases what is below.

        Where that ends with it, the weights are new.
        """
        running, below = (self.chance.random() < 0.5 for _ in range(2))
        extra = self.engine.extra
        try:
            if self.engine.scheduler.reset_prefix_cache(running, below):
                self.seen["reset"] += 1
                if below or extra["keep_on_reset"] is False:
                    self.seen["new weights"] += 1
                    self.engine.weights += 1
        except RuntimeError:
            # vLLM's own word where a load is in the air.
            self.seen["reset refused by vLLM"] += 1

    def check_answers(self) -> None:
        """Checks that each has sampled what it samples undisturbed."""
        for name, ask in self.asked.items():
            start = start_of(ask.salt, ask.adapter and ask.adapter.lora_path)
            wanted, have = undisturbed(ask.prompt, ask.most, start), self.engine.answer(name)
            if have != (wanted[: len(have)] if name in self.aborted else wanted):
                raise Wrong(f"{name} has sampled {have}, and undisturbed it is {wanted}")

    def count(self) -> None:
        """Counts what has happened."""
        stats: Counter[str] = Counter()
        for cache in self.engine.caches:
            stats.update(cache.stats())
        self.seen["preempted"] += self.engine.preempted
        self.seen["parked"] += stats["parkings"]
        self.seen["blocks from the host"] += stats["host_hits"]
        self.seen["loads cut short"] += self.engine.front.cut
        self.seen["copies failed"] += stats["failed"]
        self.seen["copies corrupt"] += stats["corrupt"]
        self.seen["asynchronous"] += self.engine.asynchronous
        self.seen["drafting"] += self.engine.drafts is not None
        if len(self.engine.ranks) > 1:
            self.seen[f"two ranks, {self.engine.parallel}"] += 1
        if self.engine.zeroes:
            self.seen[f"runner {self.engine.zeroes} zeroes blocks"] += 1
        for rank in self.engine.ranks:
            if rank.mail is not None:
                self.seen += rank.mail.seen


class StoreGame(Game):
    """A seed over one store, which has what the seeds before it have put there."""

    folder: Path

    def make(self, seed: int) -> Engine:
        """Makes its engine."""
        more = {"remote": self.folder.as_uri(), "namespace": {"weights": "v1"}}
        engine = engine_of(seed, self.chance, faults=self.faults, **more)
        engine.pause = 1e-3
        return engine

    def count(self) -> None:
        """Counts what has happened."""
        super().count()
        self.seen["tokens from the store"] += self.engine.front.connector.stats()["cached_remote"]


def is_loading(request: Any) -> bool:
    """Whether copies may be on their way to a request."""
    return bool(request.status.name == "WAITING_FOR_REMOTE_KVS")


def check_at_rest(engine: Engine) -> None:
    """Checks that neither pool has lost a block."""
    for _ in range(40):
        engine.step()
    if any(cache.stats()["flights"] for cache in engine.caches):
        # Of a copy whose end was lost, or heard of as unknown, only a reset tells that it is over.
        for rank in engine.ranks:
            rank.own.back.worker.reset()
        engine.front.connector.reset(memory="kept")
    names = ("parked", "flights", "host_pinned", "host_quarantined", "host_promised")
    for cache in engine.caches:
        stats: dict[str, Any] = cache.stats()
        left = {name: stats[name] for name in names if stats[name]}
        if left:
            raise Wrong(f"left behind: {left}")
    pool = engine.scheduler.kv_cache_manager.block_pool
    if pool.get_num_free_blocks() != pool.num_gpu_blocks - 1:
        raise Wrong(f"{pool.get_num_free_blocks()} of vLLM's {pool.num_gpu_blocks - 1} are free")
