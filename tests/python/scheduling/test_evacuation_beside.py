"""Requests that move, and those beside them: samples, waiting ones, victims, and who may begin."""

from collections.abc import Hashable
from contextlib import suppress
from typing import Any

import pytest

import blockyard as by
from blockyard._typing import override
from blockyard.scheduling.request import RequestState
from evacuated import SIZE, Found, Mover, Store, split
from interrupted import Interrupter
from yard import text

S = RequestState


def stop(loop: Mover, request: Hashable) -> None:
    """Preempts a row by hand, and has the engine ack it."""
    seat = loop.scheduler._shared.seats.at(loop.scheduler._lifecycle.get(request).seat or 0)
    assert seat is not None
    loop.scheduler._lifecycle.stop(seat)
    loop.schedule()
    loop.output()
    loop.ack()


def no_store(loop: Mover) -> None:
    """Ends all copies; those to a store fail."""
    loop.plans += loop.cache.dispatch()
    for plan in loop.plans:
        loop.cache.commit(plan, 0 if plan.destination_tier == "remote" else None)
    loop.plans.clear()


def test_no_other_comes_while_one_that_was_aborted_before_has_no_result() -> None:
    loop = Mover(Store())
    loop.add("one", text(1, 9), 20)
    loop.turn(4)
    loop.scheduler.abort("one")
    assert loop.scheduler.evacuate_all() == ("one",)
    loop.look()
    with pytest.raises(by.Unavailable):
        loop.scheduler.add(by.NewRequest("late", [1], max_tokens=2))
    loop.finish()
    assert loop.results["one"].state is S.ABORTED
    assert loop.scheduler.takes_requests


def test_a_reset_ends_it_for_all_and_requests_come_again() -> None:
    loop = Mover(Store())
    loop.add("one", text(1, 9), 20)
    loop.turn(4)
    loop.scheduler.evacuate_all()
    for left in (loop.air, loop.bound, loop.stops, loop.plans):
        left.clear()
    loop.scheduler.reset()
    assert loop.scheduler.takes_requests
    loop.finish()
    assert loop.results["one"].state is S.MOVED


def test_samples_do_not_wait_for_one_that_moves_after_a_preemption() -> None:
    loop = Mover(Store(), max_num_batched_tokens=8)
    loop.add("one", text(1, 9), 6, n=2)
    loop.turn()
    assert loop.state(("one", 0)) is S.PREFILL
    stop(loop, ("one", 0))
    loop.scheduler.evacuate(("one", 0), patience=1000)
    loop.turn(3, lands=False)
    assert (loop.state(("one", 0)), loop.state(("one", 1))) == (S.MOVING, S.DECODE)
    loop.land()
    loop.finish()


def test_an_interrupt_at_the_end_of_one_that_moves_leaves_no_sample_behind() -> None:
    interrupter, lines, before = Interrupter(), 0, -1
    while interrupter.times > before:
        before = interrupter.times
        loop = Mover(Store(), max_num_batched_tokens=8)
        loop.add("one", text(1, 9), 6, n=3)
        loop.turn()
        assert loop.state(("one", 0)) is S.PREFILL
        # It ends before its ack.
        loop.scheduler.evacuate(("one", 0), patience=0)
        with suppress(KeyboardInterrupt):
            interrupter.during(lines, loop.scheduler.results)
        loop.finish()
        ends = [loop.results[("one", sample)].state for sample in (1, 2)]
        assert ends == [S.FINISHED, S.FINISHED], interrupter.where
        lines += 1
    assert lines > 40


def test_no_row_gives_way_to_one_that_moves() -> None:
    loop = Mover(
        Store(),
        device=17,
        max_num_seqs=8,
        priority_preemption=True,
        preempt_cooldown=0,
        preempt_mode="recompute",
    )
    loop.add("low", text(1, 14), 12)
    loop.add("high", text(3, 30), 8, priority=5)
    loop.turn(2)
    stop(loop, "high")
    ticket = loop.cache.promise(loop.cache.room().available - 6)
    loop.schedule()
    loop.output()
    assert len(loop.scheduler._admission.needs()) == 1
    loop.scheduler.evacuate("high", patience=1000)
    assert loop.scheduler._admission.needs() == []
    loop.add("next", text(4, 3), 1, priority=5)
    loop.turn()
    assert (loop.told("displaced"), loop.state("low")) == (0, S.DECODE)
    loop.cache.release(ticket)
    loop.finish()


def test_nobody_is_lost_for_want_of_the_room_below_of_one_that_moves() -> None:
    loop = Mover(Store(), device=13, host=8, recompute=False)
    loop.add("runs", text(1, 18), 14)
    loop.add("leaves", text(2, 22), 7)
    loop.until_stopping("leaves")
    loop.ack()
    while loop.handle("leaves").on_device:
        loop.cache.demote(8, of=loop.handle("leaves"))
        loop.land()
    loop.scheduler.evacuate("leaves", patience=50)
    loop.add("comes", text(3, 18), 14)
    for _ in range(40):
        loop.schedule()
        no_store(loop)
        loop.output()
        loop.ack()
        loop.now += 1
        no_store(loop)
        both = {loop.state("runs"), loop.state("comes")}
        # All but one of the three could not be parked.
        assert None in both or both == {S.DECODE, S.WAITING}
    assert loop.scheduler.stalled() == ()
    parked = loop.scheduler._lifecycle.get("leaves").parked
    assert parked is not None
    named = f"request 'leaves' (parked {parked.handle.id})"
    said = loop.scheduler._stalls.with_names(f"parked {parked.handle.id}")
    assert said == named
    loop.now = 100
    loop.finish()
    states = {name: one.state for name, one in loop.results.items()}
    assert states == {"runs": S.FINISHED, "leaves": S.MOVED, "comes": S.FINISHED}


class Peer(Store):
    """Beside a store, what another engine offers for as long as its taker wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.offered: set[bytes] = set()
        self.cache: by.KVCache | None = None
        self._taken: dict[Hashable, bytes] = {}

    @override
    def ask(self, request: Hashable, keys: by.Keys, _patience: float | None = None) -> Found:
        self._taken[request] = bytes(keys)
        names = [one in self.offered | self.keys for one in split(bytes(keys))]
        return Found([*names, False].index(False))

    def over(self, request: Hashable) -> None:
        if (keys := self._taken.pop(request, b"")) and self.cache is not None:
            every = self.cache.ready_keys(keys, len(keys) // 32 * SIZE)
            self.cache.forget(every, tier="remote")

    def explain(self, _request: Hashable) -> None:
        """Says nothing."""

    def changes(self) -> int:
        return len(self._taken)


@pytest.mark.law("INV-36h")
@pytest.mark.parametrize("landed", [False, True])
def test_inv_36h_what_is_taken_over_from_a_peer_is_written_to_the_store(landed: bool) -> None:
    peer, prompt = Peer(), text(1, 17)
    loop = Mover(peer)
    peer.cache = loop.cache
    peer.offered |= set(split(bytes(loop.cache.keys(prompt))))
    loop.add("one", prompt, 5)
    loop.schedule()
    assert loop.state("one") is S.LOADING
    if landed:
        land_from(loop, peer)
    loop.scheduler.evacuate("one")
    loop.output()
    if not landed:
        land_from(loop, peer)
    result = loop.moved("one")
    assert (result.reason, loop.written) == ("moved", [("device", 4)])
    assert Mover(peer).taken(result, prompt, 5) == 16
    assert peer._taken == {}
    loop.finish()


def land_from(loop: Mover, peer: Peer) -> None:
    """Ends the loads: the bytes came from the peer."""
    keys = set(peer.keys)
    peer.keys |= peer.offered
    loop.land()
    peer.keys.clear()
    peer.keys |= keys
    peer.offered.clear()


@pytest.mark.parametrize("sizes", [{"recompute": True}, {"host": 40}])
def test_blocks_that_another_holds_too_are_written_once(sizes: dict[str, Any]) -> None:
    loop = Mover(Store(), **sizes)
    loop.add("one", text(1, 17), 6, n=2)
    loop.turn(2)
    loop.scheduler.evacuate(("one", 0))
    loop.scheduler.evacuate(("one", 1))
    first, second = loop.moved(("one", 0)), loop.moved(("one", 1))
    assert (first.reason, second.reason) == ("moved", "moved")
    assert sum(blocks for _, blocks in loop.written) == len(loop.store.keys)
    loop.finish()
