"""Requests that move: another engine goes on at the same token, with what is in the store."""

from contextlib import suppress
from typing import Any

import pytest

import blockyard as by
from blockyard._typing import override
from blockyard.scheduling import evacuation
from blockyard.scheduling.engine import Ack
from blockyard.scheduling.request import RequestState
from blockyard.shared.log import Limited
from evacuated import SIZE, Mover, Store, again
from interrupted import Interrupter
from loop import Loop, continuation, squeezed
from yard import publish, text

S = RequestState
PROMPT = text(1, 9)
MOST = 20


@pytest.fixture
def store() -> Store:
    return Store()


def running(store: Store, turns: int = 4, **keywords: Any) -> Mover:
    """ "one" has run some steps."""
    loop = Mover(store, **keywords)
    loop.add("one", PROMPT, MOST)
    loop.turn(turns)
    return loop


@pytest.mark.law("INV-36h", "T37")
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("flying", [0, 1, 2])
@pytest.mark.parametrize("turns", range(1, 10))
def test_inv_36h_it_goes_on_at_the_same_token_wherever_it_was(
    turns: int, flying: int, drafts: int, store: Store
) -> None:
    loop = running(store, turns, num_speculative_tokens=drafts, accept=1 + drafts // 2)
    for _ in range(flying):
        loop.schedule()
    loop.scheduler.evacuate("one")
    assert loop.state("one") in {S.STOPPING, S.MOVING}
    # What steps in flight have sampled counts, each token once.
    while loop.air:
        loop.output()
    heard = loop.scheduler.sampled("one")
    loop.ack()
    result = loop.moved("one")
    assert (result.reason, result.held) == ("moved", None)
    assert result.tokens.tolist() == heard
    assert 0 <= again(loop, result, PROMPT, MOST) < SIZE
    written = (min(loop.computed["one"], 9 + len(result.tokens) - 1)) // SIZE
    assert sum(blocks for _, blocks in loop.written) == written
    stats = loop.scheduler.stats()
    told = stats["moved"], stats["moved_blocks"], stats["unmoved_blocks"], stats["moving"]
    assert told == (1, written, 0, 0)
    loop.finish()


def test_its_blocks_stay_until_they_are_written_and_its_seat_is_free_before(store: Store) -> None:
    loop = running(store, max_num_seqs=1)
    loop.add("next", text(2, 5), 3)
    loop.scheduler.evacuate("one")
    loop.schedule()
    loop.output()
    loop.ack()
    assert (loop.state("one"), loop.told("moving"), loop.told("seats")) == (S.MOVING, 1, 0)
    assert loop.cache.stats()["leases"] == 1
    assert "0 of its 3 full blocks are in a store" in str(loop.scheduler.explain("one"))
    loop.turn(lands=False)
    assert loop.state("next") is S.DECODE, "its seat is another's"
    assert loop.state("one") is S.MOVING
    loop.land()
    loop.look()
    assert loop.results["one"].reason == "moved"
    loop.finish()


def test_what_the_store_has_already_is_not_written_again(store: Store) -> None:
    loop = running(store)
    loop.cache.write_down(bytes(loop.cache.keys(PROMPT)), "remote", b"")
    loop.land()
    assert loop.written == [("device", 2)]
    loop.scheduler.evacuate("one")
    result = loop.moved("one")
    assert loop.written == [("device", 2), ("device", 1)]
    assert again(loop, result, PROMPT, MOST) < SIZE
    loop.finish()


def test_a_prompt_that_is_partly_computed_is_found_elsewhere(store: Store) -> None:
    loop = Mover(store, max_num_batched_tokens=8)
    prompt = text(1, 30)
    loop.add("one", prompt, 5)
    loop.turn(2)
    assert loop.state("one") is S.PREFILL
    loop.scheduler.evacuate("one")
    result = loop.moved("one")
    assert (len(result.tokens), result.reason) == (0, "moved")
    assert Mover(store).taken(result, prompt, 5) == 16
    loop.finish()


def test_what_waits_is_given_back_at_once(store: Store) -> None:
    loop = running(store, max_num_seqs=1)
    ticket = loop.cache.promise(3)
    loop.add("waits", text(2, 9), 3, ticket=ticket)
    loop.scheduler.evacuate("waits")
    loop.look()
    result = loop.results["waits"]
    assert (result.state, result.reason, len(result.tokens)) == (S.MOVED, "moved", 0)
    assert ticket.state != "open"
    loop.finish()


def shrunk(store: Store, *, host: int) -> Mover:
    """ "new" was preempted, and waits."""
    loop = Mover(store, device=9, host=host)
    loop.add("old", text(1, 14), 12)
    loop.add("new", text(2, 14), 12)
    loop.turn(2)
    loop.until_stopping("new")
    return loop


@pytest.mark.law("T37")
@pytest.mark.parametrize("host", [0, 32])
@pytest.mark.parametrize("down", [False, True])
def test_what_was_preempted_is_written_from_where_it_is(
    host: int, down: bool, store: Store
) -> None:
    loop = shrunk(store, host=host)
    if down:
        loop.ack()
        while host and loop.handle().on_device:
            loop.cache.demote(8, of=loop.handle())
            loop.land()
    # Else it stops for its preemption still: one ack is enough.
    loop.scheduler.evacuate("new")
    loop.ack()
    result = loop.moved("new")
    assert result.reason == "moved"
    tiers = {tier for tier, _ in loop.written}
    assert tiers == ({"host"} if host and down else {"device"})
    assert 0 <= again(loop, result, text(2, 14), 12) < SIZE
    assert loop.cache.stats()["parked"] == 0
    loop.finish()


def test_what_loads_is_moved_from_below(store: Store) -> None:
    loop = Mover(store, device=9, host=32)
    publish(loop.cache, text(1, 16))
    loop.cache.demote(8)
    loop.land()
    publish(loop.cache, text(9, 32))
    loop.add("one", text(1, 17), 3)
    loop.schedule()
    assert loop.state("one") is S.LOADING
    loop.scheduler.evacuate("one")
    assert loop.state("one") is S.MOVING
    loop.output()
    assert loop.moved("one").reason == "moved"
    assert ("host", 4) in loop.written
    loop.finish()


def test_samples_of_a_prompt_move_one_by_one_and_the_others_go_on(store: Store) -> None:
    prompt = text(1, 9)
    loop = Mover(store, max_num_batched_tokens=8)
    loop.add("one", prompt, 6, n=3)
    loop.turn()
    # The first computes their prompt: the second does from now on.
    loop.scheduler.evacuate(("one", 0))
    loop.scheduler.evacuate(("one", 2))
    first, last = loop.moved(("one", 0)), loop.results[("one", 2)]
    assert (first.reason, last.reason, len(last.tokens)) == ("moved", "moved", 0)
    loop.finish()
    assert loop.results[("one", 1)].state is S.FINISHED
    assert Mover(store).taken(first, prompt, 6) == 8


def test_a_held_request_moves_and_is_not_queued_by_its_reader(store: Store) -> None:
    loop = running(store)
    loop.scheduler.pause_decoding("one")
    loop.scheduler.evacuate("one")
    loop.schedule()
    loop.output()
    loop.ack()
    loop.scheduler.resume_decoding("one")
    loop.scheduler.pause_decoding("one")
    assert (loop.state("one"), loop.told("waiting")) == (S.MOVING, 0)
    assert loop.moved("one").reason == "moved"
    loop.finish()


def test_its_blocks_are_room_that_comes_and_nobody_is_preempted_for_them(store: Store) -> None:
    loop = Mover(store, device=9)
    loop.add("old", text(1, 14), 12)
    loop.add("new", text(2, 14), 12)
    loop.turn(2)
    loop.scheduler.evacuate("new", patience=9)
    for _ in range(100):
        loop.turn(lands=False)
        loop.fail()
        loop.now += 0.04
    assert (loop.state("new"), loop.told("preempted")) == (S.MOVING, 0)
    assert loop.scheduler.stalled() == ()
    assert "new" in str(loop.scheduler.explain("old")), "it is named as a holder"
    loop.now += 1
    loop.finish()
    assert loop.results["old"].state is S.FINISHED


# -- how it ends otherwise -------------------------------------------------------------------------


@pytest.mark.law("INV-36h", "INV-35b")
@pytest.mark.parametrize("fails", [False, True])
def test_inv_36h_a_store_that_is_dead_or_stands_still_costs_no_token(
    fails: bool, store: Store
) -> None:
    loop = running(store)
    loop.scheduler.evacuate("one", patience=3.0)
    failed = 0
    for tenth in range(60):
        loop.turn(lands=False)
        loop.now = tenth / 10
        if fails:
            failed += loop.fail()
        if "one" in loop.results:
            break
    result = loop.results["one"]
    assert result.state is S.MOVED
    assert loop.now == pytest.approx(3.0, abs=0.11)
    assert result.reason == "moved: 3 of its 3 full blocks are in no store after 3 s"
    assert result.tokens.tolist() == continuation("one", 9, len(result.tokens))
    assert loop.told("unmoved_blocks") == 3
    if fails:
        # It is tried again, ever more seldom.
        assert 3 * 4 < failed < 3 * 16
    assert loop.cache.stats()["leases"] == 0
    # What was put on its way ends by itself.
    loop.land()
    loop.finish()
    Mover(Store()).taken(result, PROMPT, MOST)


def test_a_store_that_comes_back_within_the_patience_has_it_all(store: Store) -> None:
    loop = running(store)
    loop.scheduler.evacuate("one")
    loop.turn(2, lands=False)
    loop.fail()
    loop.now = 0.5
    assert loop.moved("one").reason == "moved"
    assert loop.written == [("device", 3)]
    loop.finish()


def test_a_part_that_is_written_counts(store: Store) -> None:
    loop = running(store)
    loop.scheduler.evacuate("one")
    loop.turn(2, lands=False)
    (plan,) = loop.plans
    loop.plans.clear()
    loop.cache.commit(plan, 2)
    loop.now = 5.0
    loop.look()
    assert loop.results["one"].reason == "moved: 1 of its 3 full blocks are in no store after 5 s"
    assert (loop.told("moved_blocks"), loop.told("unmoved_blocks")) == (2, 1)
    loop.finish()


def test_a_long_request_is_written_piece_by_piece(store: Store) -> None:
    loop = Mover(store, device=500, remote=500, max_num_batched_tokens=2048, max_num_seqs=8)
    for name in range(6):
        loop.add(name, text(name, 4 * 40 + 1), 3)
    loop.add("long", text(99, 4 * 150 + 1), 3)
    loop.turn()
    loop.scheduler.evacuate_all()
    most = 0
    while not loop.scheduler.idle:
        loop.schedule()
        most = max(most, loop.cache.blocks_in_flight()[0])
        loop.land()
        loop.output()
        loop.ack()
    assert sum(blocks for _, blocks in loop.written) == 6 * 40 + 150
    assert 64 <= most <= 256
    assert {one.reason for one in loop.results.values()} == {"moved"}
    loop.finish()


def asks(loop: Loop) -> bool:
    return loop.scheduler.asks_stores


def test_a_store_that_was_asked_about_it_is_asked_no_more() -> None:
    class Slow(Store):
        asked = dropped = 0

        @override
        def ask(self, *_what: Any) -> Any:
            self.asked += 1
            return None

        @override
        def drop(self, _request: Any) -> None:
            self.dropped += 1

    store = Slow()
    loop = Mover(store, max_num_seqs=1, lookup_patience=9)
    for name in ("first", "next"):
        loop.add(name, text(1, 9), 3)
    loop.schedule()
    assert asks(loop)
    for name in ("first", "next"):
        loop.scheduler.evacuate(name)
    assert not asks(loop)
    assert store.asked == store.dropped > 0
    loop.finish()


def test_names_that_are_too_few_are_evicted_and_the_rest_is_said(store: Store) -> None:
    loop = running(store, remote=2)
    loop.scheduler.evacuate("one", patience=1.0)
    loop.turn(3)
    loop.now = 1.0
    loop.look()
    assert loop.results["one"].reason == "moved: 1 of its 3 full blocks are in no store after 1 s"
    loop.finish()


def test_an_engine_that_never_stops_it_is_waited_for_no_longer(store: Store) -> None:
    loop = running(store)
    loop.schedule()
    loop.scheduler.evacuate("one", patience=1.0)
    loop.schedule()
    loop.now = 0.9
    loop.look()
    assert loop.state("one") is S.STOPPING
    loop.now = 1.0
    loop.look()
    result = loop.results["one"]
    assert result.reason == "moved: the engine has not stopped it in 1 s, and it was not written"
    # Tokens that come now are not its any more: another engine samples them.
    before = loop.told("outputs_ignored")
    loop.output()
    assert loop.told("outputs_ignored") == before + 1
    assert loop.told("stopping") == 1, "its seat and its blocks wait for the ack"
    loop.finish()
    Mover(Store()).taken(result, PROMPT, MOST)


def test_no_patience_moves_the_tokens_at_once(store: Store) -> None:
    loop = running(store)
    had = loop.scheduler.sampled("one")
    loop.scheduler.evacuate("one", patience=0)
    loop.look()
    assert loop.results["one"].tokens.tolist() == had
    loop.finish()


def test_a_clock_that_goes_back_ends_the_patience(store: Store) -> None:
    loop = running(store)
    loop.now = 100.0
    loop.scheduler.evacuate("one")
    loop.turn(2, lands=False)
    loop.now = 99.0
    loop.look()
    assert loop.results["one"].state is S.MOVED
    loop.land()
    loop.finish()


def test_another_call_gives_it_another_limit(store: Store) -> None:
    loop = running(store)
    loop.scheduler.evacuate("one", patience=1000)
    loop.turn(2, lands=False)
    loop.now = 50.0
    loop.scheduler.evacuate("one", patience=2)
    loop.look()
    assert loop.state("one") is S.MOVING
    loop.now = 52.0
    loop.look()
    assert loop.results["one"].state is S.MOVED
    loop.land()
    loop.finish()


def test_one_that_ends_meanwhile_has_ended(store: Store) -> None:
    loop = Mover(store)
    loop.add("one", PROMPT, 3)
    loop.turn(2)
    loop.schedule()
    loop.scheduler.evacuate("one")
    loop.output()
    assert loop.results["one"].state is S.FINISHED
    loop.finish()
    assert loop.told("moved") == 0


@pytest.mark.parametrize("turns", [0, 2])
def test_an_abort_of_what_moves_ends_it(turns: int, store: Store) -> None:
    loop = running(store)
    loop.scheduler.evacuate("one")
    if turns:
        loop.turn(turns, lands=False)
        assert loop.state("one") is S.MOVING
    loop.scheduler.abort("one")
    loop.finish()
    assert loop.results["one"].state is S.ABORTED


def test_what_is_aborted_is_moved_no_more(store: Store) -> None:
    loop = running(store)
    loop.scheduler.abort("one")
    loop.scheduler.evacuate("one")
    loop.finish()
    assert loop.results["one"].state is S.ABORTED


def gone(loop: Mover) -> None:
    """The engine is gone, and all that it was told."""
    loop.air.clear()
    loop.bound.clear()
    loop.stops.clear()
    loop.plans.clear()


def test_a_dead_engine_and_a_reset_end_it_with_its_tokens(store: Store) -> None:
    for turns in (0, 2):
        for verb in ("fail", "reset"):
            loop = running(store)
            had = loop.scheduler.sampled("one")
            loop.scheduler.evacuate("one")
            if turns:
                loop.turn(turns, lands=False)
            if verb == "fail":
                loop.scheduler.fail("it is gone")
                loop.look()
                assert loop.results["one"].reason == "moved: it is gone"
                assert loop.scheduler.idle is bool(turns)
            gone(loop)
            loop.scheduler.reset(requests="abort")
            loop.look()
            result = loop.results["one"]
            assert (result.state, result.tokens.tolist()) == (S.MOVED, had)
            assert result.reason.startswith("moved: ")
            loop.finish()


def test_new_weights_leave_it_its_tokens(store: Store) -> None:
    loop = running(store)
    loop.scheduler.evacuate("one")
    loop.scheduler.update_weights()
    result = loop.moved("one")
    assert result.reason.startswith("moved: the weights are no more those")
    assert loop.written == []
    loop.finish()


@pytest.mark.parametrize(
    "sizes", [{}, {"remote": 64, "remote_writes": False}], ids=["none", "peers alone"]
)
def test_without_a_store_the_tokens_move(
    sizes: dict[str, Any], caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another test may have logged it within the second.
    monkeypatch.setattr(evacuation, "_log", Limited("blockyard.scheduling.evacuation"))
    loop = Loop(cache=by.KVCache(block_size=SIZE, device=33, **sizes))
    loop.add("one", PROMPT, MOST)
    loop.turn(4)
    loop.scheduler.evacuate("one")
    loop.turn()
    result = loop.results["one"]
    assert result.state is S.MOVED
    assert result.reason == "moved: this engine has no store: pass stores=[...] to by.local"
    assert len(result.tokens) == 4
    assert "requests move with their tokens alone" in caplog.text
    loop.finish()


def test_a_store_whose_names_are_taken_away_is_none(store: Store) -> None:
    loop = running(store)
    loop.scheduler.evacuate("one")
    loop.turn(2, lands=False)
    loop.fail()
    loop.cache.resize("remote", 0)
    assert loop.moved("one").reason.startswith("moved: this engine has no store")
    loop.finish()


def test_what_must_be_parked_gives_back_what_was_promised_to_it() -> None:
    loop = squeezed(host=32, recompute=False)
    loop.until_stopping("new")
    assert loop.cache.stats()["tickets"] == 1
    loop.scheduler.evacuate("new")
    loop.ack()
    loop.turn()
    assert loop.results["new"].state is S.MOVED
    assert loop.cache.stats()["tickets"] == 0
    loop.finish()


def test_no_blocks_are_held_of_what_moves(store: Store) -> None:
    loop = Mover(store)
    loop.add("one", PROMPT, MOST, hold=True)
    loop.turn(3)
    loop.scheduler.evacuate("one")
    assert loop.moved("one").held is None
    assert loop.cache.stats()["held_blocks"] == 0
    loop.finish()


# -- all of them -----------------------------------------------------------------------------------


@pytest.mark.law("INV-36h")
def test_inv_36h_all_leave_and_no_other_comes_until_they_have(store: Store) -> None:
    loop = Mover(store, max_num_seqs=3)
    prompts = {name: text(name, 5 + name) for name in range(6)}
    for name, prompt in prompts.items():
        loop.add(name, prompt, MOST)
    loop.turn(5)
    loop.schedule()
    assert loop.scheduler.evacuate_all() == tuple(range(6))
    loop.look()
    assert set(loop.results) == {3, 4, 5}, "those that never ran"
    assert loop.scheduler.moves
    with pytest.raises(by.Unavailable, match="add this one there"):
        loop.scheduler.add(by.NewRequest("late", [1, 2, 3], max_tokens=2))
    assert "late" not in loop.scheduler.requests
    loop.finish()
    assert {one.reason for one in loop.results.values()} == {"moved"}
    for name in range(3):
        assert 0 <= again(loop, loop.results[name], prompts[name], MOST) < SIZE
    assert loop.scheduler.stats()["moving"] == 0
    loop.add("late", [1, 2, 3], 2)
    loop.finish()


def test_none_are_moved_where_there_are_none(store: Store) -> None:
    loop = Mover(store)
    assert loop.scheduler.evacuate_all() == ()
    with pytest.raises(by.Unavailable, match="evacuate_all"):
        loop.scheduler.add(by.NewRequest("late", [1], max_tokens=2))
    loop.look()
    loop.add("late", [1], 2)
    loop.finish()


@pytest.mark.parametrize("patience", [-1, "soon", float("nan"), None])
def test_a_patience_that_is_none_is_refused(patience: Any, store: Store) -> None:
    loop = running(store)
    with pytest.raises(by.Misuse, match="patience = "):
        loop.scheduler.evacuate("one", patience=patience)
    with pytest.raises(by.Misuse, match="patience = "):
        loop.scheduler.evacuate_all(patience=patience)
    with pytest.raises(by.Misuse, match="there is no request 'two'"):
        loop.scheduler.evacuate("two")
    loop.add("two", text(2, 5), 2)
    loop.finish()


# -- interrupts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("calls", [False, True])
def test_an_interrupt_of_results_loses_and_doubles_nothing(calls: bool) -> None:
    interrupter = Interrupter(calls=calls)
    lines = ends = 0
    while True:
        store = Store()
        loop = running(store)
        loop.scheduler.evacuate("one")
        loop.add("cut", text(2, 5), 9)
        loop.turn(2, lands=False)
        loop.land()
        loop.schedule()
        loop.scheduler.evacuate("cut", patience=0.0)
        before = interrupter.times
        found: list[Any] = []
        try:
            found += interrupter.during(lines, loop.scheduler.results)
        except KeyboardInterrupt:
            found += loop.scheduler.results()
        # Behind its very last line it has returned.
        if found or interrupter.where != interrupter.passed[-1]:
            reasons = {one.request: one.reason[:5] for one in found}
            assert reasons == {"one": "moved", "cut": "moved"}
            assert len(found) == 2
        ends += not found
        loop.output()
        assert loop.told("outputs_ignored") == 1, interrupter.where
        for stop in loop.stops:
            loop.scheduler.on_acks([Ack(*stop)])
        loop.finish()
        if interrupter.times == before:
            break
        lines += 1
    assert lines > (10 if calls else 60)
    assert ends <= 1


def cut(loop: Mover, interrupter: Interrupter, lines: int, verb: str) -> None:
    """Interrupts a verb in the way of a request."""
    if verb == "evacuate":
        interrupter.during(lines, lambda: loop.scheduler.evacuate("one"))
        return
    loop.scheduler.evacuate("one")
    loop.schedule()
    acks = [Ack(*stop) for stop in loop.stops]
    interrupter.during(lines, lambda: loop.scheduler.on_acks(acks))


@pytest.mark.parametrize("verb", ["evacuate", "acks"])
def test_what_is_interrupted_elsewhere_is_made_good_by_a_reset(verb: str) -> None:
    interrupter, lines, before = Interrupter(), 0, -1
    while interrupter.times > before:
        before = interrupter.times
        loop = running(Store())
        with suppress(KeyboardInterrupt):
            cut(loop, interrupter, lines, verb)
        gone(loop)
        loop.scheduler.reset()
        loop.look()
        if loop.state("one") is None:
            assert loop.results["one"].state is S.MOVED
            had = loop.results["one"].tokens.tolist()
        else:
            had = loop.scheduler.sampled("one")
        assert had == continuation("one", 9, 4)
        loop.finish()
        lines += 1
    assert lines > 10
