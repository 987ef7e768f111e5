"""Cranes of several ranks: planes that all have alike, and processes of their own."""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockyard.crane.copiers import Landed
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.crane import Crane
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.shared.layout import KVLayout
from blockyard.shared.plan import Cause, Outcome
from blockyard.testing import Action, ScriptedCopier, corrupt, deliver, fail, hang
from cranes import SHARED, Bytes, after, filled, held, outcomes, plan, same, serve


@pytest.mark.parametrize("layout", [SHARED, KVLayout.mla(2, 6, 2, block_size=2, ranks=3)])
def test_ranks_split_the_writing_of_what_is_replicated_and_all_read_it(
    layout: KVLayout, tmp_path: Path
) -> None:
    common = [index for index, plane in enumerate(layout.planes) if plane.replicated]
    hands, devices, hosts = [], [], []
    for rank in range(layout.ranks):
        devices.append(MemoryTier(layout, 12, name="device"))
        hosts.append(MemoryTier(layout, 9, shared=tmp_path / "host"))
        filled(devices[-1], 10 + rank)
        for index in common:
            devices[-1].planes[index][...] = devices[0].planes[index]
        hands.append(Crane(layout, rank=rank, device=devices[-1], host=hosts[-1]))
    sources, to = (3, 4, 5, 11, 6), (8, 0, 1, 2, 4)
    expected = [
        after(held(host), held(device), sources, to)
        for host, device in zip(hosts, devices, strict=True)
    ]
    for rank, crane_ in enumerate(hands):
        mine = [slot for slot in range(9) if slot % layout.ranks == rank]
        before = held(hosts[rank])
        crane_.submit(plan(1, "down", sources, to))
        assert outcomes(crane_) == [Outcome(1 << 32 | 1, rank, 5)]
        for index in common:
            others = [slot for slot in range(9) if slot not in mine]
            assert np.array_equal(hosts[rank].planes[index][others], before[index][others])
    for host, bytes_ in zip(hosts, expected, strict=True):
        assert same(host, bytes_)
    back = (0, 1, 2, 9, 10)
    for rank, crane_ in enumerate(hands):
        expected_device = after(held(devices[rank]), held(hosts[rank]), to, back)
        crane_.submit(plan(2, "up", to, back))
        assert outcomes(crane_) == [Outcome(1 << 32 | 2, rank, 5)]
        assert same(devices[rank], expected_device)
        crane_.close()


@pytest.mark.law("2.3-up-failed")
@pytest.mark.parametrize(
    ("script", "good", "cause"),
    [
        ([fail(1), deliver()], 3, Cause.FAILED),
        ([deliver(), fail(2)], 2, Cause.FAILED),
        ([corrupt(0), fail(3)], 1, Cause.CORRUPT),
        ([fail(0), corrupt(1)], 1, Cause.CORRUPT),
        ([corrupt(0), fail(1)], 1, Cause.CORRUPT),
        ([fail(0), corrupt(3)], 1, Cause.FAILED),
        ([deliver(), deliver()], 5, None),
    ],
)
def test_good_counts_the_blocks_of_the_plan_whatever_planes_failed(
    script: list[Action], good: int, cause: Cause | None, tmp_path: Path
) -> None:
    """Rank 0 writes the common plane of blocks 1, 3 and 4 alone: those with an even slot."""
    device = MemoryTier(SHARED, 12, name="device")
    host = MemoryTier(SHARED, 9, shared=tmp_path / "host")
    copier = ScriptedCopier(ThreadCopier(workers=0), script)
    hands = Crane(SHARED, rank=0, device=device, host=host, copier=copier)
    hands.submit(plan(1, "down", (0, 1, 2, 3, 4), (5, 6, 7, 8, 0)))
    assert outcomes(hands) == [Outcome(1 << 32 | 1, 0, good, cause)]
    hands.close()


Ranks = list[tuple[Any, Any]]


@contextmanager
def processes(layout: KVLayout, shared: Path, scripts: list[list[Action]]) -> Iterator[Ranks]:
    """A crane per rank, each in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ranks: Ranks = []
    try:
        for rank, script in enumerate(scripts):
            here, there = context.Pipe()
            what = (there, layout, rank, shared, script)
            process = context.Process(target=serve, args=what, daemon=True)
            process.start()
            there.close()
            ranks.append((process, here))
        yield ranks
    finally:
        for process, pipe in ranks:
            pipe.close()
            process.join(20)
            process.kill()


def ask(pipe: Any, verb: str, what: Any = None) -> Any:
    pipe.send((verb, what))
    assert pipe.poll(30), f"no answer to {verb}"
    return pipe.recv()


DOWN, UP = ((0, 1, 2, 3, 4), (5, 6, 7, 8, 0)), ((5, 6, 7, 8, 0), (7, 8, 9, 10, 11))


def test_two_cranes_in_two_processes_of_which_one_fails(tmp_path: Path) -> None:
    with processes(SHARED, tmp_path / "host", [[], [deliver(), fail(2)]]) as ranks:
        hellos = [pipe.recv() for _process, pipe in ranks]
        assert [hello.rank for hello in hellos] == [0, 1]
        said = (SHARED.fingerprint, 12, 9, SHARED.fingerprint, 0, 0, 0, 0)
        assert {hello[1:] for hello in hellos} == {said}
        for _process, pipe in ranks:
            ask(pipe, "fill", 7)
        before = [ask(pipe, "device") for _process, pipe in ranks]
        down = [ask(pipe, "submit", [plan(1, "down", *DOWN, 7)]) for _process, pipe in ranks]
        assert down == [
            [Outcome(1 << 32 | 1, 0, 5, yard=7)],
            [Outcome(1 << 32 | 1, 1, 2, Cause.FAILED, 7)],
        ]
        good = min(outcome.good for said in down for outcome in said)
        up = plan(2, "up", UP[0][:good], UP[1][:good], 7)
        assert [ask(pipe, "submit", [up])[0].good for _process, pipe in ranks] == [good] * 2
        for (_process, pipe), bytes_ in zip(ranks, before, strict=True):
            expected: Bytes = after(bytes_, bytes_, range(good), UP[1][:good])
            assert all(map(np.array_equal, ask(pipe, "device"), expected))


@pytest.mark.law("R1-10", "4.7-41")
def test_two_cranes_in_two_processes_of_which_one_is_killed(tmp_path: Path) -> None:
    with processes(SHARED, tmp_path / "host", [[], [hang()]]) as ranks:
        for _process, pipe in ranks:
            pipe.recv()
            ask(pipe, "fill", 7)
        (_, one), (victim, two) = ranks
        before = ask(one, "device")
        assert ask(two, "launch", [plan(1, "down", *DOWN, 7)]) == []
        victim.kill()
        victim.join(20)
        assert two.poll(30)
        with pytest.raises((EOFError, ConnectionError)):
            two.recv()
        assert ask(one, "submit", [plan(1, "down", *DOWN, 7)]) == [
            Outcome(1 << 32 | 1, 0, 5, yard=7)
        ]
        with processes(SHARED, tmp_path / "host", [[], []]) as others:
            (_, idle), (_, again) = others
            assert [pipe.recv().rank for pipe in (idle, again)] == [0, 1]
            ask(again, "fill", 7)
            # One behind the other, as a yard sends them: no copier orders copies that meet.
            for copy in (plan(2, "down", *DOWN, 7), plan(3, "up", *UP, 7)):
                assert [outcome.good for outcome in ask(again, "submit", [copy])] == [5]
            expected = after(before, before, DOWN[0], UP[1])
            assert all(map(np.array_equal, ask(again, "device"), expected))
        assert ask(one, "submit", [plan(4, "up", *UP, 7)]) == [Outcome(1 << 32 | 4, 0, 5, yard=7)]
        assert all(map(np.array_equal, ask(one, "device"), expected))


class Told:
    """A copier that carries nothing: its copies end as the test has it, or never."""

    def __init__(self, *landings: Landed | None) -> None:
        self.landings = list(landings)

    def start(self, *_what: object) -> "Told":
        return Told(self.landings.pop(0))

    def poll(self) -> Landed | None:
        return self.landings[0]

    def reset(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.law("INV-6")
@pytest.mark.parametrize("other", [Landed(5), Landed(0, Cause.CORRUPT), Landed(0, Cause.FAILED)])
@pytest.mark.parametrize("lost", [0, 1])
def test_of_which_some_planes_are_lost_all_is_lost(
    other: Landed, lost: int, tmp_path: Path
) -> None:
    """It is unknown whether a slot of it is still written. (INV-6)"""
    device = MemoryTier(SHARED, 12, name="device")
    host = MemoryTier(SHARED, 9, shared=tmp_path / "host")
    landings = [other, other]
    landings[lost] = Landed(2, Cause.LOST)
    hands = Crane(SHARED, rank=0, device=device, host=host, copier=Told(*landings))
    hands.submit(plan(1, "down", (0, 1, 2, 3, 4), (5, 6, 7, 8, 0)))
    assert hands.poll() == [Outcome(1 << 32 | 1, 0, 0, Cause.LOST)]
    hands.close()


@pytest.mark.law("INV-6")
def test_to_join_is_to_wait_for_what_comes_up_and_not_for_what_goes_down(tmp_path: Path) -> None:
    """Without streams, `join` waits for the report of each copy up. (INV-6)"""
    device = MemoryTier(SHARED, 12, name="device")
    host = MemoryTier(SHARED, 9, shared=tmp_path / "host")
    hands = Crane(SHARED, rank=0, device=device, host=host, copier=Told(None, None, None))
    hands.submit(plan(1, "down", (0, 1), (5, 6)))
    assert hands.join()
    hands.submit(plan(2, "up", (5, 6), (2, 3)))
    assert not hands.join()
    hands.close()
