"""One yard and two cranes, each in a process of its own: plans and outcomes travel pickled."""

import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.testing import Action, ScriptedCopier, delay, fail, hang
from yard import at_rest, begin, text

LAYOUT = by.KVLayout.llama(
    layers=2, kv_heads=2, head_dim=8, block_size=4, ranks=2, order="layer-first"
)
CONFIG = by.Config(device=24, host=16, layout=LAYOUT, ahead=0, deadline=50)


def serve(pipe: Connection, config: by.Config, rank: int, script: list[Action]) -> None:
    """A worker's loop, as an engine would have it beside its model."""
    device = MemoryTier(LAYOUT, config.device_blocks + rank, name="device")
    host = MemoryTier(LAYOUT, config.host_blocks, name="host")
    copier = ScriptedCopier(ThreadCopier(workers=1), script)
    with by.Crane(
        LAYOUT, rank=rank, device=device, host=host, copier=copier, fingerprint=config.fingerprint
    ) as crane:
        pipe.send(crane.hello())
        while True:
            try:
                verb, what = pipe.recv()
            except EOFError:
                return
            if verb == "submit":
                crane.submit(what)
            elif verb == "poll":
                pipe.send(crane.poll())
            elif verb == "write":
                for slot, value in what:
                    device.planes[0][slot] = value + rank
            else:
                pipe.send([bool(np.all(device.planes[0][slot] == v + rank)) for slot, v in what])


class Ranks:
    """Two workers and their yard."""

    def __init__(self, scripts: tuple[list[Action], list[Action]] = ([], [])) -> None:
        self.context = multiprocessing.get_context("spawn")
        self.workers: list[tuple[Any, Connection]] = []
        hellos = []
        for rank in range(2):
            self.workers.append(self.start(rank, scripts[rank]))
            hellos.append(self.workers[rank][1].recv())
        self.cache = by.KVCache(by.agree(CONFIG, hellos))
        self.tick = 0

    def start(self, rank: int, script: list[Action]) -> tuple[Any, Connection]:
        here, there = self.context.Pipe()
        process = self.context.Process(
            target=serve, args=(there, CONFIG, rank, script), daemon=True
        )
        process.start()
        there.close()
        return process, here

    def tell(self, verb: str, what: Any) -> None:
        for process, pipe in self.workers:
            if process.is_alive():
                pipe.send((verb, what))

    def step(self, *, twice: bool = False) -> None:
        """One step of an engine: outcomes in, plans out."""
        self.tick += 1
        self.tell("poll", None)
        outcomes = []
        for process, pipe in self.workers:
            if process.is_alive():
                said = pipe.recv()
                outcomes += said * 2 if twice else said
        self.cache.commit(outcomes, now=self.tick)
        plans = self.cache.dispatch()
        if plans:
            self.tell("submit", plans)
        assert self.cache.audit() is None
        time.sleep(0.002)

    def until(self, done: Any, **how: Any) -> None:
        for _ in range(500):
            if done():
                return
            self.step(**how)
        raise AssertionError("it never came")

    def below(self, tokens: list[int]) -> list[tuple[int, int]]:
        """Publishes a prompt with bytes on both ranks, and leaves it on the host alone."""
        lease = begin(self.cache, tokens)
        slots = self.cache.block_tables(lease)[0][: len(tokens) // 4].tolist()
        self.tell("write", [(slot, 10 * (block + 1)) for block, slot in enumerate(slots)])
        self.cache.seal(lease, len(tokens))
        self.cache.finish(lease)
        assert self.cache.demote(1_000) is not None
        self.until(lambda: self.cache.stats()["flights"] == 0)
        room = self.cache.room()
        self.cache.finish(begin(self.cache, text(9, 4 * (room.free + room.evictable))))
        return [(slot, 10 * (block + 1)) for block, slot in enumerate(slots)]

    def intact(self, lease: by.Lease, blocks: int) -> bool:
        slots = self.cache.block_tables(lease)[0][:blocks].tolist()
        self.tell("check", [(slot, 10 * (block + 1)) for block, slot in enumerate(slots)])
        return all(all(pipe.recv()) for process, pipe in self.workers if process.is_alive())

    def close(self) -> None:
        for process, pipe in self.workers:
            pipe.close()
            process.join(10)
            assert not process.is_alive()


@pytest.fixture
def scripts() -> tuple[list[Action], list[Action]]:
    return [], []


@pytest.fixture
def ranks(scripts: tuple[list[Action], list[Action]]) -> Iterator[Ranks]:
    ranks = Ranks(scripts)
    yield ranks
    ranks.close()


PROMPT = text(1, 16)


def test_the_yard_opens_with_what_the_smallest_rank_has(ranks: Ranks) -> None:
    assert ranks.cache.config.device_blocks == CONFIG.device_blocks


def test_bytes_of_both_ranks_come_back(ranks: Ranks) -> None:
    ranks.below(PROMPT)
    lease = begin(ranks.cache, [*PROMPT, 0])
    ranks.until(lambda: lease.state == "ready")
    assert lease.cached == 16
    assert ranks.intact(lease, 4)
    ranks.cache.finish(lease)
    at_rest(ranks.cache)


@pytest.mark.law("R1-11")
@pytest.mark.parametrize("scripts", [([delay(3), delay(1)], [delay(0), fail(2)])])
def test_where_one_rank_fails_the_prefix_is_as_long_as_its_good_part(ranks: Ranks) -> None:
    ranks.below(PROMPT)
    lease = begin(ranks.cache, [*PROMPT, 0])
    ranks.until(lambda: lease.state == "ready")
    assert lease.cached == 8
    assert ranks.intact(lease, 2)
    ranks.cache.finish(lease)
    at_rest(ranks.cache)


def test_outcomes_reported_twice_count_once(ranks: Ranks) -> None:
    ranks.below(PROMPT)
    ignored = ranks.cache.stats()["outcomes_ignored"]
    lease = begin(ranks.cache, [*PROMPT, 0])
    ranks.until(lambda: lease.state == "ready", twice=True)
    assert lease.cached == 16
    assert ranks.cache.stats()["outcomes_ignored"] == ignored + 2
    ranks.cache.finish(lease)
    at_rest(ranks.cache)


@pytest.mark.parametrize("scripts", [([], [delay(0), hang()])])
def test_where_one_rank_is_killed_its_slots_come_back_with_its_successor(ranks: Ranks) -> None:
    ranks.below(PROMPT)
    lease = begin(ranks.cache, [*PROMPT, 0])
    ranks.step()
    process, pipe = ranks.workers[1]
    process.kill()
    process.join()
    pipe.close()
    ranks.until(lambda: lease.state == "incomplete")
    assert lease.cached == 0
    assert ranks.cache.stats()["device_quarantined"] == 4
    ranks.workers[1] = ranks.start(1, [])
    ranks.workers[1][1].recv()
    assert ranks.cache.reset(1) == 1
    assert ranks.cache.stats()["device_quarantined"] == 0
    ranks.cache.finish(lease)
    # The blocks of the dead process are gone, and no request finds them.
    assert ranks.cache.probe(ranks.cache.keys(PROMPT)).host == 0
    at_rest(ranks.cache)
