"""Steps beside hand-overs in the air: these cost a step nothing, and no end of one is missed."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.crane.copiers.store_copier import StoreCopier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.crane.tiers.remote import RemoteTier
from blockyard.scheduling.request import RequestState
from disks import OURS
from fake_peers import AT, Rig, offer
from loop import Loop
from opcodes import opcodes
from yard import text

LAYOUT = by.KVLayout.llama(layers=1, kv_heads=1, head_dim=8, block_size=4)
NAMES, PATIENCE = 400, 30.0


class Reader:
    """A peer whose blocks come when the test says so, its bell, and all peers of a rank."""

    def __init__(self) -> None:
        self.bell = self
        self.polls = self.rung = self.number = 0
        self.ends: list[tuple[int, int, str]] = []

    def __iter__(self) -> Iterator["Reader"]:
        yield self

    offering = __iter__

    def has(self, keys: Any) -> Any:
        return np.ones(len(keys), np.bool_)

    def shut(self, _down: bool, _now: float) -> bool:
        return False

    def submit_up(self, *_copy: Any) -> int:
        self.number += 1
        return self.number

    def end(self, number: int, good: int, why: str = "") -> None:
        self.ends.append((number, good, why))
        self.rung += 1

    def give_up(self, number: int, *, late: bool) -> None:
        self.end(number, 0, "failed" if late else "given up")

    def look(self, _now: float) -> int:
        return self.rung

    def poll(self, _now: float) -> list[tuple[int, int, str]]:
        self.polls += 1
        found, self.ends = self.ends, []
        return found

    def close(self, _patience: float) -> bool:
        return True


class Beside(Rig):
    """A request that decodes, and some whose blocks are on their way and have not come."""

    def __init__(self, many: int) -> None:
        super().__init__(device=5 * many + 99, names=NAMES)
        self.clock = 0.0
        tier: Any = RemoteTier(LAYOUT, NAMES, [], identity=OURS, peers=[AT])
        tier.peers.close(0.0)
        self.reader = tier.peers = Reader()
        copier = StoreCopier(tier, patience=PATIENCE, threads=0, clock=lambda: self.clock)
        memory = MemoryTier(LAYOUT, self.cache.limit(), name="device")
        self.crane = by.Crane(LAYOUT, device=memory, remote=tier, copier=copier)
        self.loop = Loop(cache=self.cache, lookup=self.side, max_num_seqs=many + 1)
        self.loop.add("decodes", text(0, 12), 400)
        for number in range(many):
            prompt = text(number + 1, 13)
            ticket = self.side.reserve(number, 13, 2)
            self.loop.add(number, prompt, 2, ticket=ticket)
            assert self.side.offered(number, offer(number + 1))
            self.step()
            self.peer.answer(3, self.cache.keys(prompt))
            self.step()
            assert self.loop.state(number) is RequestState.LOADING

    def step(self) -> None:
        self.loop.schedule()
        self.crane.submit(self.loop.plans)
        self.loop.plans.clear()
        self.cache.commit(self.crane.poll())
        self.loop.output()

    def states(self) -> list[Any]:
        return [self.loop.state(number) for number in range(self.reader.number)]


def test_a_step_beside_many_hand_overs_costs_what_it_does_beside_a_few() -> None:
    costs = []
    for many in (8, 64):
        beside = Beside(many)
        beside.step()
        beside.step()
        before = beside.reader.polls
        # The rules for stalls are looked at in every 16th step.
        costs.append([opcodes(beside.step) for _ in range(8)])
        assert beside.reader.polls == before, "nothing has ended: nobody is asked"
        assert beside.states() == [RequestState.LOADING] * many
    assert costs[0] == costs[1]


@pytest.mark.law("INV-6")
def test_inv_6_a_hand_over_that_ends_among_many_begins_in_the_next_step() -> None:
    beside = Beside(16)
    for number in (5, 11, 16):
        beside.step()
        beside.step()
        beside.reader.end(number, 3)
        beside.step()
        beside.loop.schedule()
        assert beside.loop.begun[-1] == number - 1
        beside.loop.output()
    assert beside.states().count(RequestState.LOADING) == 13
    done = [said[1][0] for said in beside.peer.said if said[0] == "done"]
    assert done == [5, 11, 16], "the prefill side has its blocks back"


@pytest.mark.law("INV-6")
def test_inv_6_late_hand_overs_are_given_up_though_none_has_ended() -> None:
    beside = Beside(4)
    beside.clock = PATIENCE
    beside.step()
    beside.step()
    assert beside.states() == [RequestState.LOADING] * 4
    beside.clock = PATIENCE + 1
    beside.step()
    beside.step()
    assert RequestState.LOADING not in beside.states()


def test_a_step_beside_many_that_wait_for_offers_costs_what_it_does_beside_a_few() -> None:
    costs = []
    for many in (8, 64):
        rig = Rig(device=5 * many + 99, patience=30.0)
        loop = Loop(cache=rig.cache, lookup=rig.side, max_num_seqs=many + 1)
        loop.add("decodes", text(0, 12), 400)
        for number in range(many):
            ticket = rig.side.reserve(number, 13, 2)
            loop.add(number, text(number + 1, 13), 2, ticket=ticket)
        loop.turn(16)
        costs.append([opcodes(loop.turn) for _ in range(8)])
        assert rig.side.offered(3, offer())
        loop.turn()
        assert rig.peer.said == [("take", b"\1" * 16, 9, 3)], "the next step asks for it"
        rig.now = 30.0
        loop.turn(2)
        assert loop.state(many - 1) is not RequestState.WAITING
    assert costs[0] == costs[1]
