"""One run of the proof by seed: pressure, faults and aborts, held against an undisturbed run."""

import dataclasses
import random
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from blockyard.crane.copiers import Copier
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.devices import NUMPY, Device, fetched
from blockyard.reference.model import Model
from blockyard.reference.sampling import Sampling
from blockyard.reference.weights import ModelConfig
from blockyard.scheduling.engine import Step
from blockyard.scheduling.request import RequestState
from blockyard.testing import Script, ScriptedCopier
from blockyard.tools.proof.conversations import Conversation
from blockyard.tools.proof.play import MemoryBudget, Play

SIZE = 8
AT_ONCE = partial(ThreadCopier, workers=0)


@cache
def model(xp: Any) -> Model:
    return Model(ModelConfig(layers=4, vocabulary=512), 7, xp=xp)


class Bytes:
    """The KV of every position, by the tokens that led to it: computed or moved, it is the same."""

    def __init__(self) -> None:
        self.known: dict[int, bytes] = {}
        self.checked = 0

    def watch(self, play: Play) -> "Watched":
        return Watched(self, play)


class Watched:
    """A play whose memory is looked at after every step."""

    def __init__(self, known: Bytes, play: Play) -> None:
        self.bytes = known
        self.play = play
        self.air: list[tuple[Step, Any, list[Any]]] = []
        self.chains: dict[Any, list[int]] = {}

    def step(self) -> None:
        step = self.play.step()
        scheduler = self.play.scheduler
        if step is not None:
            requests = self.requests(step)
            for start in step.starts:
                self.begun(start)
            self.air.append((step, self.play.tables, requests))
        oldest = scheduler._batch.oldest
        first = scheduler._batch.number + 1 if oldest is None else oldest.number
        while self.air and self.air[0][0].number < first:
            self.computed(*self.air.pop(0))
        violation = self.play.cache.audit()
        assert violation is None, violation

    def requests(self, step: Step) -> list[Any]:
        seats = [*step.decode.tolist(), *(chunk.seat for chunk in step.chunks)]
        return [self.play.seats[seat] for seat in seats]

    def kv(self, slot: int, offset: int) -> bytes:
        return fetched(self.play.kv[slot, :, offset]).tobytes()

    def chain(self, request: Any, tokens: list[int]) -> list[int]:
        chain = self.chains.setdefault(request, [0])
        for token in tokens[len(chain) - 1 :]:
            chain.append(hash((chain[-1], token)))
        return chain

    def begun(self, start: Any) -> None:
        """What a sequence begins with, found or come back, is what was computed once."""
        lease = self.play.scheduler.lease(start.request)
        if lease is None or not start.cached:
            return
        table = self.play.cache.block_tables(lease)[0]
        chain = self.chain(start.request, start.tokens.tolist())
        for position in range(start.cached):
            slot = int(table[position // SIZE])
            assert self.kv(slot, position % SIZE) == self.bytes.known[chain[position + 1]], (
                f"{start.request}: position {position} of {start.cached}"
            )
            self.bytes.checked += 1

    def computed(self, step: Step, tables: Any, requests: list[Any]) -> None:
        """Checks that a step computes the same bytes as before, where it repeats a position."""
        for row, request in enumerate(requests):
            first, count = int(step.positions[row]), int(step.counts[row])
            tokens = self.play.said.get(request)
            if tokens is None:
                continue
            chain = self.chain(request, tokens)
            for position in range(first, min(first + count, len(chain) - 1)):
                kv = self.kv(int(tables[row][position // SIZE]), position % SIZE)
                assert self.bytes.known.setdefault(chain[position + 1], kv) == kv, (
                    f"{request}: position {position} was computed otherwise"
                )


def undisturbed(
    conversations: list[Conversation], known: Bytes, sampling: Sampling, on: Device = NUMPY
) -> dict[str, list[int]]:
    blocks = sum(-(-conversation.tokens // SIZE) for conversation in conversations)
    play = Play(
        conversations,
        MemoryBudget(blocks + 1, 0, "recompute"),
        model(on.xp),
        block_size=SIZE,
        sampling=sampling,
        on=on,
    )
    try:
        watched = known.watch(play)
        while not play.over:
            watched.step()
        assert play.scheduler.stats()["preempted"] == 0
        return play.tokens
    finally:
        play.close()


def prove(
    seed: int,
    on: Device = NUMPY,
    inner: Callable[[], Copier] | None = AT_ONCE,
) -> Counter[str]:
    """Plays with ample memory, then under pressure: no token, and no byte, may differ.

    Args:
        seed: Of conversations, pressure and faults.
        on: What computes, and in which memory.
        inner: Makes what moves the bytes, under the faults; None for what the crane takes.

    Returns:
        What came to pass under pressure.
    """
    chance = random.Random(seed)
    conversations = Conversation.seeded(seed, 22, longest=160)
    conversations = [
        dataclasses.replace(conversation, priority=chance.choice([0, 0, 1]))
        for conversation in conversations
    ]
    # Some come again when all is said, and what they find is on the host.
    late = sorted(
        conversations,
        key=lambda conversation: (len(conversation.turns[0].said) > 3 * SIZE, conversation.begins),
    )[-3:]
    spared = {
        name for conversation in late for name in (conversation.name, f"{conversation.name} again")
    }
    conversations += [
        dataclasses.replace(one, name=f"{one.name} again", begins=1000) for one in late
    ]
    assert max(conversation.tokens for conversation in conversations) >= 8 * SIZE
    sampling = Sampling(temperature=chance.choice([0.0, 0.8]), seed=seed)
    known = Bytes()
    tokens = undisturbed(conversations, known, sampling, on)
    blocks = [-(-conversation.tokens // SIZE) for conversation in conversations]
    device = 1 + max(sum(blocks) // 4, *blocks)
    slow = chance.choice([0.0, 0.4])
    script = Script.seeded(seed, copies=20_000, late=slow, failing=0.05, corrupting=0.03, longest=4)
    host, disk = chance.choice([device, 3 * device]), 0
    if inner is not None and seed % 3 == 2:
        # A third of them have little on the host, and a third tier behind it.
        host, disk = host // 4, 3 * device
    play = Play(
        conversations,
        MemoryBudget(device, host, "park", disk),
        model(on.xp),
        block_size=SIZE,
        sampling=sampling,
        stops=chance.choice(["acked", "in-order"]),
        lag=chance.choice([0, 1, 2, 3]),
        late=chance.choice([0, 0, 2]),
        copier=inner() if inner else None,
        on=on,
        deadline=chance.choice([None, 3]),
        eviction=chance.choice(["recency", "heap"]),
        write=dict.fromkeys(["device", "host"], chance.choice(["on-evict", "through"])),
    )
    traffic = play.cache.crane.traffic
    # It is one for all lanes: what was given, or a GPU's.
    (copier,) = traffic.copiers
    traffic.copiers = [ScriptedCopier(copier, script)]
    for lane in traffic.lanes.values():
        (lane.copier,) = traffic.copiers
    try:
        seen = pressed(known.watch(play), chance, spared)
        compare(tokens, play.tokens, aborted={name for name in seen if name in play.conversations})
        seen["checked"] = known.checked
        return seen
    finally:
        play.close()


def pressed(watched: Watched, chance: random.Random, spared: set[str]) -> Counter[str]:
    """Plays to the end, with one reset and some aborts; what came to pass, names of those too."""
    play, seen = watched.play, Counter[str]()
    aborts, dies, empty = 4, chance.randrange(60, 160), False
    while not play.over:
        watched.step()
        if not empty and not play.states and play.figures.steps > 300:
            empty = empties(play)
        if play.figures.steps == dies:
            # All that ran is computed again: the KV of an engine that was reset is gone.
            seen["recompute"] += play.scheduler.stats()["seats"]
            play.reset()
            watched.air.clear()
        for name, state in play.states.items():
            # Some die in each state; one that is parked for sure.
            likely = 0.3 if state is RequestState.PARKED and "parked" not in seen else 0.002
            if aborts and name not in spared and chance.random() < likely:
                aborts -= 1
                seen.update([str(state), name, "abort"])
                play.abort(name)
        explain = play.scheduler.explain
        assert play.figures.steps < 4000, [
            str(explain(one)) for one in play.scheduler._lifecycle._requests
        ]
    stats = play.scheduler.stats()
    seen["park"], seen["resume"] = stats["parkings"], stats["resumes"]
    seen["recompute"] += stats["preempted"] - stats["parkings"] + stats["kv_lost"]
    counts = play.cache.stats()
    seen["promote"] = counts["host_hits"] + counts["disk_hits"]
    return seen


def compare(wanted: dict[str, list[int]], said: dict[str, list[int]], *, aborted: set[str]) -> None:
    """Every answer is whole, or the beginning of one where its conversation was aborted."""
    for name, tokens in said.items():
        whole = wanted[name]
        ended = name.rpartition(", ")[0] in aborted
        assert tokens == (whole[: len(tokens)] if ended else whole), name
    missing = {name for name in wanted if name.rpartition(", ")[0] not in aborted}
    assert missing <= set(said)


def empties(play: Play) -> bool:
    """Evicts all idle blocks from the device, as another tenant would."""
    slots = play.memory.device
    play.cache.demote(slots)
    if play.cache.stats()["flights"]:
        return False
    play.cache.resize("device", 2)
    play.cache.resize("device", slots)
    return True
