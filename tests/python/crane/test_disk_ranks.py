"""Ranks and schedulers that die one by one: what all ranks have written is found again."""

import logging
import random
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.crane.crane import Crane
from blockyard.crane.tiers import planes_of
from blockyard.crane.tiers.disk import DiskTier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.shared.restored import Restored
from disks import OURS
from yard import there

SIZE, BLOCKS = 4, 4
DEVICE, DISK = 17, 64


def layout_of(ranks: int) -> by.KVLayout:
    return by.KVLayout.llama(2, 4, 8, block_size=SIZE, ranks=ranks)


class Engine:
    """Ranks with a folder each, and a yard. What is killed loses all but its folder."""

    def __init__(self, path: Path, ranks: int, disk: int = DISK) -> None:
        self.path, self.layout, self.disk = path, layout_of(ranks), disk
        self.config = by.Config(
            layout=self.layout, device=DEVICE, disk=disk, namespace=OURS, keyed=("disk",), ahead=0
        )
        self.cranes = [self.opened(rank) for rank in range(ranks)]
        self.sent: set[bytes] = set()
        self.written: set[bytes] = set()
        self.run = 0
        self.start()

    def opened(self, rank: int) -> Crane:
        identity, device = self.config.identity, MemoryTier(self.layout, DEVICE, name="device")
        disk = DiskTier(self.layout, self.path, blocks=self.disk, identity=identity, rank=rank)
        named = self.config.fingerprint
        return Crane(self.layout, rank=rank, device=device, disk=disk, fingerprint=named)

    def start(self) -> int:
        """A scheduler starts: it shakes hands, and restores what all ranks have."""
        config = self.config.named()
        self.cache = by.KVCache(by.agree(config, [one.hello(config.yard) for one in self.cranes]))
        offers = [one for crane in self.cranes if (one := crane.persistent.restored()) is not None]
        found = Restored.agreed(offers)
        self.cache.restore("disk", found.slots, found.keys, found.parents)
        self.run = found.run
        for crane in self.cranes:
            crane.persistent.count_as(self.run)
        keys = {key.tobytes() for key in found.keys}
        assert self.written <= keys <= self.sent
        self.sent, self.written = set(keys), set(keys)
        return len(keys)

    def kill(self, rank: int, *, all_count: bool) -> None:
        """A rank's process is killed, and another comes in its place beside living ones."""
        self.cranes[rank].close()
        self.cranes[rank] = crane = self.opened(rank)
        crane.hello(self.cache.config.yard)
        offer = there(crane.persistent.restored())
        for one in self.cranes if all_count else ():
            one.persistent.count_as(offer.run)
        self.cache.reset(rank, memory="kept")

    def restart(self) -> int:
        """All processes end, and begin again."""
        for crane in self.cranes:
            crane.close()
        self.cranes = [self.opened(crane.rank) for crane in self.cranes]
        return self.start()

    def plan(self, talk: int, blocks: int = BLOCKS) -> by.Plan:
        """Computes a talk, and orders its blocks down."""
        tokens = range(100 * talk, 100 * talk + blocks * SIZE)
        lease = self.cache.begin(tokens)
        assert lease.cached == 0
        self.cache.seal(lease, len(tokens))
        self.cache.finish(lease)
        plan = there(self.cache.demote(64))
        self.cache.dispatch()
        keys = {key.tobytes() for key in there(plan.keys)}
        self.sent |= keys
        return plan

    def submit(self, plan: by.Plan, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self.cranes[rank].submit(plan)

    def settle(self) -> None:
        """All that was submitted ends."""
        until = time.monotonic() + 30
        while any(crane.in_flight for crane in self.cranes):
            assert time.monotonic() < until
            for crane in self.cranes:
                self.cache.commit(crane.poll())

    def write(self, *talks: int, ranks: Iterable[int] | None = None) -> None:
        """Talks go down to the disk on all ranks; or their plan comes to some ranks alone."""
        for talk in talks:
            plan = self.plan(talk)
            to = range(len(self.cranes)) if ranks is None else ranks
            self.submit(plan, to)
            self.settle()
            for rank in set(range(len(self.cranes))) - set(to):
                self.cache.commit(self.cranes[rank].reconcile(self.cache.unreported(rank)))
            if ranks is None:
                self.written |= {key.tobytes() for key in there(plan.keys)}
        assert self.cache.audit() is None

    def clear(self) -> None:
        self.cache.clear()
        for crane in self.cranes:
            assert crane.persistent.clear()
        self.sent.clear()
        self.written.clear()

    def close(self) -> None:
        for crane in self.cranes:
            crane.close()


@pytest.mark.law("INV-27")
@pytest.mark.parametrize("all_count", [True, False])
@pytest.mark.parametrize("ranks", [2, 4])
def test_inv_27_what_is_written_beside_a_rank_that_was_restarted_is_found_again(
    tmp_path: Path, ranks: int, all_count: bool
) -> None:
    engine = Engine(tmp_path, ranks)
    engine.write(1)
    engine.kill(1, all_count=all_count)
    engine.write(2, 3, 4)
    assert engine.restart() == 4 * BLOCKS
    engine.close()


@pytest.mark.law("INV-27")
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_inv_27_what_a_new_yard_writes_beside_living_ranks_is_found_again(
    tmp_path: Path, ranks: int
) -> None:
    engine = Engine(tmp_path, ranks)
    engine.write(1)
    # The scheduler is killed when one rank has got the plan.
    plan = engine.plan(2)
    engine.submit(plan, [0])
    assert engine.start() >= BLOCKS
    engine.write(3, 4, 5)
    assert engine.restart() >= 4 * BLOCKS
    engine.close()


@pytest.mark.law("INV-27")
@pytest.mark.parametrize("lost", [0, 1])
def test_inv_27_a_plan_that_one_rank_never_got_costs_no_later_block(
    tmp_path: Path, lost: int
) -> None:
    engine = Engine(tmp_path, 2)
    engine.write(1)
    engine.write(2, ranks=[1 - lost])
    # They are on the device still, and go down again with the next ones.
    engine.write(3, 4)
    assert engine.restart() == 4 * BLOCKS
    engine.close()


@pytest.mark.law("INV-31")
def test_inv_31_a_clear_is_heard_by_ranks_that_count_otherwise(tmp_path: Path) -> None:
    engine = Engine(tmp_path, 2)
    engine.write(1)
    engine.kill(1, all_count=False)
    engine.write(2)
    engine.write(3, ranks=[0])
    engine.clear()
    assert engine.restart() == 0
    engine.write(4)
    engine.kill(0, all_count=False)
    engine.clear()
    engine.write(5, 6)
    assert engine.restart() == 2 * BLOCKS
    engine.close()


@pytest.mark.law("INV-27")
@pytest.mark.parametrize("seed", range(12))
def test_inv_27_whatever_dies_what_all_ranks_have_reported_is_found_again(
    tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    ranks = draw.choice([2, 2, 4])
    engine = Engine(tmp_path, ranks)
    talk = 0
    for _ in range(8):
        talk += 1
        match draw.choice(["write", "rank", "scheduler", "lost", "clear", "all"]):
            case "rank":
                engine.kill(draw.randrange(ranks), all_count=draw.random() < 0.5)
            case "scheduler":
                engine.submit(engine.plan(talk), draw.sample(range(ranks), ranks - 1))
                engine.start()
            case "lost":
                engine.write(talk, ranks=[draw.randrange(ranks)])
            case "clear":
                engine.clear()
            case "all":
                engine.restart()
            case _:
                engine.write(talk)
        talk += 1
        if len(engine.written) < DISK - 3 * BLOCKS:
            engine.write(talk)
    engine.restart()
    engine.close()


def test_the_log_says_what_is_not_restored_and_which_rank_is_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(tmp_path, 2)
    engine.write(1)
    engine.write(2, ranks=[0])
    with caplog.at_level(logging.WARNING, "blockyard"):
        assert engine.restart() == BLOCKS
    (line,) = [one.message for one in caplog.records if "restored" in one.message]
    assert line == (
        "of 8 blocks that ranks have from before, 4 are not restored, as not all have them: "
        "rank 1 lacks 4"
    )
    engine.close()


def offer(*rows: tuple[int, int, int, int]) -> Restored:
    """Slots, keys, stamps and plans."""
    keys = np.zeros((len(rows), 32), np.uint8)
    keys[:, 0] = [row[1] for row in rows]
    numbers = [np.array([row[at] for row in rows]) for at in (0, 2, 3)]
    slots, stamps, plans = (
        numbers[0].astype(np.uint32),
        numbers[1].astype(np.uint64),
        numbers[2].astype(np.uint32),
    )
    return Restored(slots, keys, keys * 0, stamps, plans=plans)


def test_a_rank_without_a_disk_is_named_where_ranks_are_to_agree() -> None:
    with pytest.raises(by.Misuse, match=r"ranks\[1\] = None: .* a rank has no disk, nothing is"):
        Restored.agreed([offer((0, 1, 7, 0)), None])  # type: ignore[list-item]


@pytest.mark.law("INV-28")
def test_ranks_agree_by_plans_and_by_stamps_where_a_folder_names_no_plan(
    caplog: pytest.LogCaptureFixture,
) -> None:
    old = offer((0, 1, 7, 0), (1, 2, 8, 0), (2, 3, 9, 0))
    other = offer((0, 1, 7, 0), (1, 2, 9, 0), (2, 3, 9, 4))
    new = offer((3, 4, 20, 5), (4, 5, 21, 6))
    theirs = offer((3, 4, 90, 5), (4, 5, 21, 7), (5, 6, 99, 8))
    ranks = [Restored.joined([old, new]), Restored.joined([other, theirs])]
    with caplog.at_level(logging.WARNING, "blockyard"):
        found = Restored.agreed(ranks)
    assert found.slots.tolist() == [0, 3]
    assert found.stamps.tolist() == [7, 20]
    (line,) = [one.message for one in caplog.records]
    assert line.endswith(
        "of 6 blocks that ranks have from before, 4 are not restored, as not all have them: "
        "rank 0 lacks 1; rank 1 lacks 0 and has 3 of another plan than rank 0"
    )
    caplog.clear()
    assert len(Restored.agreed([old, old])) == len(Restored.agreed([replace(old, plans=None), old]))
    assert not caplog.records, "nothing is lost"


@pytest.mark.law("INV-31")
def test_stamps_of_a_plan_are_given_when_it_is_submitted(tmp_path: Path) -> None:
    """So a clear is between the plans before it and after it, whenever their copiers begin."""
    engine = Engine(tmp_path, 2)
    disk: Any = engine.cranes[0].persistent._tiers[0]
    first, second = engine.plan(1), engine.plan(2)
    for plan in (first, second):
        disk.submitted(plan)
    begun = [disk.stamps_of(plan.destinations) for plan in (second, first)]
    assert begun[0][0].tolist() == [stamp + BLOCKS for stamp in begun[1][0].tolist()]
    assert begun[0][1] != begun[1][1]
    again, number = disk.stamps_of(first.destinations[:1])
    assert (again[0], number) == (begun[0][0][-1] + 1, 0), "nobody has submitted it"
    engine.close()


def value(rank: int, talk: int, block: int) -> int:
    return (40 * rank + 17 * talk + 5 * block) % 251 + 1


def computed(engine: Engine, talk: int) -> int:
    """Computes a talk where it is not found, and checks each byte that is; returns those tokens."""
    tokens = range(100 * talk, 100 * talk + BLOCKS * SIZE)
    lease = engine.cache.begin([*tokens, 7])
    for plan in engine.cache.dispatch():
        engine.submit(plan, range(len(engine.cranes)))
    engine.settle()
    table = engine.cache.block_tables(lease)[0]
    for crane in engine.cranes:
        (plane,) = planes_of(crane.device)
        for block in range(BLOCKS):
            if block < lease.cached // SIZE:
                assert (plane[table[block]] == value(crane.rank, talk, block)).all()
            plane[table[block]] = value(crane.rank, talk, block)
    found = lease.cached
    engine.cache.seal(lease, len(tokens))
    engine.cache.finish(lease)
    return found


def gone_down(engine: Engine) -> None:
    engine.cache.demote(64)
    for plan in engine.cache.dispatch():
        engine.submit(plan, range(len(engine.cranes)))
    engine.settle()


@pytest.mark.parametrize("memory", ["lost", "disk kept"])
@pytest.mark.parametrize("how", ["rejoin", "the cache", "the scheduler"])
def test_what_was_planned_from_lost_memory_is_not_written_under_good_keys(
    tmp_path: Path, memory: Any, how: str
) -> None:
    engine = Engine(tmp_path, 2)
    assert computed(engine, 1) == 0
    assert engine.cache.demote(64) is not None
    scheduler = by.Scheduler(engine.cache)
    engine.cranes[-1].close()
    engine.cranes[-1] = crane = engine.opened(1)
    hello = crane.hello(engine.cache.config.yard)
    if how == "rejoin":
        by.rejoin(engine.cache, hello, memory=memory)
    elif how == "the cache":
        engine.cache.reset(1, memory=memory)
    else:
        scheduler.reset(memory=memory)
    for plan in engine.cache.dispatch():
        engine.submit(plan, range(2))
    engine.settle()
    engine.restart()
    assert computed(engine, 1) == 0, "the new process never had it"
    engine.close()


@pytest.mark.law("INV-24")
@pytest.mark.parametrize("ranks", [2, 4])
def test_one_dead_rank_does_not_cost_the_disk(tmp_path: Path, ranks: int) -> None:
    engine = Engine(tmp_path, ranks)
    for talk in (1, 2):
        assert computed(engine, talk) == 0
    gone_down(engine)
    assert computed(engine, 3) == 0
    # The copies of the third are under way when the process dies.
    engine.cache.demote(64)
    for plan in engine.cache.dispatch():
        engine.submit(plan, range(ranks - 1))
    engine.cranes[-1].close()
    engine.cranes[-1] = crane = engine.opened(ranks - 1)
    by.rejoin(engine.cache, crane.hello(engine.cache.config.yard))
    engine.settle()
    assert engine.cache.audit() is None
    found = [computed(engine, talk) for talk in (1, 2, 3)]
    assert found == [BLOCKS * SIZE, BLOCKS * SIZE, 0]
    gone_down(engine)
    for crane in engine.cranes:
        crane.close()
    engine.cranes = [engine.opened(crane.rank) for crane in engine.cranes]
    offers = [crane.persistent.restored() for crane in engine.cranes]
    assert len(Restored.agreed([one for one in offers if one is not None])) == 3 * BLOCKS
    engine.close()
