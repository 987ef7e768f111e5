"""The decode side alone: what it asks of peers, whom it refuses, and for how long it waits."""

from typing import Any, NamedTuple

import pytest

import blockyard as by
from blockyard.handover import decode_side
from blockyard.handover.decode_side import DecodeSide
from blockyard.handover.offer import Offer
from blockyard.shared.log import Limited
from fake_peers import AT, FakePeer, FakePeers, Rig, Told, offer


class Said(NamedTuple):
    blocks: int
    others: tuple[()] = ()


class Store:
    """A lookup below, which notes who asks."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.dropped: list[Any] = []
        self.closed = False

    def ask(self, request: Any, _keys: by.Keys, _patience: float | None = None) -> Said:
        self.asked.append(request)
        return Said(1)

    def drop(self, request: Any) -> None:
        self.dropped.append(request)

    def close(self) -> None:
        self.closed = True


def taken(rig: Rig, name: str = "one", blocks: int = 4) -> by.Keys:
    """Brings a request as far as its answer."""
    keys = rig.keys(16)
    rig.side.reserve(name, 16, 4)
    assert rig.side.offered(name, offer())
    assert rig.side.ask(name, keys) is None
    rig.peer.answer(blocks, keys)
    answer = rig.side.ask(name, keys)
    assert answer is not None
    assert answer.blocks == blocks
    return keys


@pytest.mark.law("INV-36e")
def test_inv_36e_room_is_promised_before_anything_is_asked() -> None:
    rig = Rig(device=9)
    first = rig.side.reserve("one", 16, 5)
    assert first is not None
    assert first.blocks == 5, "of its prompt and what it may sample: the last token is not kept"
    assert rig.side.reserve("two", 16, 5) is None, "full, and said at once"
    rig.cache.release(first)
    assert rig.side.stats()["handover_full"] == 1
    with pytest.raises(by.TooLarge):
        rig.side.reserve("three", 400, 5)
    with pytest.raises(by.Misuse, match="'one' has room already"):
        rig.side.reserve("one", 16, 5)
    assert not rig.peer.said, "nobody was asked"


@pytest.mark.law("INV-36e")
def test_inv_36e_no_ticket_has_headroom() -> None:
    rig = Rig(device=10)
    running = rig.cache.begin(rig.keys(4))
    assert rig.cache.set_headroom(4) == 4
    assert rig.side.reserve("one", 16, 5) is None
    assert rig.side.reserve("two", 12, 5) is not None
    assert rig.cache.room().headroom == 4
    rig.cache.finish(running)


def test_an_offer_is_taken_and_ends_when_its_blocks_have_come() -> None:
    rig = Rig()
    keys = taken(rig)
    assert rig.cache.adopt(keys, 4) == 4
    assert rig.side.explain("one") == f"It takes 4 blocks over, of offer 01010101 of {AT}."
    assert rig.peer.said == [("take", b"\1" * 16, 9, 4)]
    rig.side.over("one")
    assert rig.peer.said[1:] == [("done", b"\1" * 16)]
    assert rig.cache.probe(keys).remote == 0, "its names are dropped"
    stats = rig.side.stats()
    assert (stats["handover_taken"], stats["handover_blocks"]) == (1, 4)
    assert (stats["handover_open"], stats["handover_waiting"]) == (0, 0)


@pytest.mark.parametrize("bad", [{}, {"blockyard.offer": {}}, "x", offer(at="10.0.0.1:1")])
def test_what_is_no_offer_of_a_peer_is_not_waited_for(bad: Any) -> None:
    rig = Rig()
    rig.side.reserve("one", 16, 4)
    assert not rig.side.offered("one", bad)
    answer = rig.side.ask("one", rig.keys(16))
    assert answer is not None
    assert answer.blocks == 0
    assert not rig.peer.said, "no other address is connected to"
    stats = rig.side.stats()
    assert stats["handover_foreign" if isinstance(bad, Offer) else "handover_malformed"] == 1
    assert stats["handover_late"] == 0, "each is counted once"


@pytest.mark.parametrize("sweeps", [False, True])
def test_none_says_that_no_offer_will_come(sweeps: bool) -> None:
    rig = Rig()
    rig.side.reserve("one", 16, 4)
    assert not rig.side.offered("one", None)
    if sweeps:
        rig.side.sweep()
    answer = rig.side.ask("one", rig.keys(16))
    assert answer is not None
    assert rig.side.stats()["handover_malformed"] == rig.side.stats()["handover_late"] == 0


def test_a_false_offer_after_a_true_one_changes_nothing() -> None:
    rig = Rig()
    rig.side.reserve("one", 16, 4)
    assert rig.side.offered("one", offer())
    assert not rig.side.offered("one", {"blockyard.offer": "?"})
    assert rig.side.ask("one", rig.keys(16)) is None
    assert rig.peer.said == [("take", b"\1" * 16, 9, 4)]


@pytest.mark.law("INV-36d")
def test_inv_36d_a_request_waits_for_its_offer_as_long_as_its_patience() -> None:
    rig = Rig(patience=2.0)
    rig.side.reserve("one", 16, 4)
    rig.side.reserve("two", 16, 4, patience=5.0)
    keys = rig.keys(16)
    rig.now = 1.9
    assert rig.side.ask("one", keys) is None
    assert rig.side.explain("one") == "It waits for an offer, for 0.1 s at most."
    rig.now = 2.0
    answer = rig.side.ask("one", keys)
    assert answer is not None
    assert answer.blocks == 0
    assert rig.side.ask("two", keys) is None
    assert not rig.side.offered("one", offer()), "it is too late"
    assert rig.peer.said == [("refuse", b"\1" * 16, "late")], "and the prefill side is told"
    assert rig.side.stats()["handover_late"] == 2


@pytest.mark.law("INV-36d")
def test_inv_36d_a_take_that_is_not_answered_is_given_up() -> None:
    rig = Rig(patience=2.0)
    keys = rig.keys(16)
    rig.side.reserve("one", 16, 4)
    rig.side.offered("one", offer())
    assert rig.side.ask("one", keys) is None
    rig.now = 2.0
    answer = rig.side.ask("one", keys)
    assert answer is not None
    assert answer.blocks == 0
    assert rig.peer.said[-1] == ("refuse", b"\1" * 16, "late")
    rig.peer.answer(4, keys)
    answer = rig.side.ask("one", keys)
    assert answer is not None
    assert answer.blocks == 0, "what comes later is of no account"


def test_a_request_that_never_comes_is_forgotten() -> None:
    rig = Rig(patience=2.0)
    ticket = rig.side.reserve("one", 16, 4)
    assert ticket is not None
    rig.side.offered("one", offer())
    rig.side.sweep(1.9)
    assert rig.side.stats()["handover_waiting"] == 1
    rig.side.sweep(2.0)
    assert rig.side.stats()["handover_waiting"] == 0
    assert rig.peer.said == [("refuse", b"\1" * 16, "late")]
    assert rig.side.stats()["handover_late"] == 1
    assert rig.side.reserve("one", 16, 4) is not None


def test_an_offer_whose_request_does_not_begin_is_given_up() -> None:
    rig = Rig(longest=60.0)
    keys = taken(rig)
    rig.cache.adopt(keys, 4)
    rig.side.sweep(59.9)
    assert len(rig.peer.said) == 1
    rig.side.sweep(60.0)
    assert rig.peer.said[-1] == ("refuse", b"\1" * 16, "late")
    assert rig.side.stats()["handover_late"] == 0, "it was taken"
    assert rig.cache.probe(keys).remote == 0


def test_an_aborted_request_refuses_its_offer() -> None:
    rig = Rig()
    rig.side.reserve("one", 16, 4)
    rig.side.offered("one", offer())
    rig.side.drop("one")
    assert rig.peer.said == [("refuse", b"\1" * 16, "aborted")], "before it was taken"
    rig.side.reserve("two", 16, 4)
    rig.side.offered("two", offer(2))
    assert rig.side.ask("two", rig.keys(16)) is None
    rig.side.drop("two")
    assert rig.peer.said[-1] == ("refuse", b"\2" * 16, "aborted"), "and while it is taken"
    rig.side.drop("two")
    assert len(rig.peer.said) == 3, "once"


def test_a_peer_that_rests_is_not_asked() -> None:
    rig = Rig()
    rig.peer.rests = True
    rig.side.reserve("one", 16, 4)
    rig.side.offered("one", offer())
    answer = rig.side.ask("one", rig.keys(16))
    assert answer is not None
    assert answer.blocks == 0
    assert not rig.peer.said
    assert rig.side.stats()["handover_gone"] == 1


@pytest.mark.parametrize("why", ["ended", "cleared", "reset", "no room", "failed"])
def test_an_offer_that_is_gone_is_computed(why: str) -> None:
    rig = Rig(lookup=(store := Store()))
    rig.side.reserve("one", 16, 4)
    rig.side.offered("one", offer())
    assert rig.side.ask("one", rig.keys(16)) is None
    assert not store.asked
    rig.peer.answer(0, why=why)
    answer = rig.side.ask("one", rig.keys(16))
    assert answer is not None
    assert answer.blocks == 1, "where there are stores they are asked"
    assert store.asked == ["one"]
    assert rig.side.stats()["handover_gone"] == 1


def test_why_a_peer_has_failed_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_side, "_log", Limited("blockyard"))
    rig = Rig()
    rig.side.reserve("one", 16, 4)
    rig.side.offered("one", offer())
    rig.side.ask("one", rig.keys(16))
    rig.peer.answer(0, why="failed")
    with caplog.at_level("WARNING", logger="blockyard"):
        rig.side.ask("one", rig.keys(16))
    assert f'the peer {AT} has failed: weights is "v1" there' in caplog.text


def test_only_keys_of_the_request_itself_are_adopted() -> None:
    rig = Rig()
    other = rig.keys(16, first=500)
    rig.side.reserve("one", 16, 4)
    rig.side.offered("one", offer())
    assert rig.side.ask("one", rig.keys(16)) is None
    rig.peer.answer(4, other)
    answer = rig.side.ask("one", rig.keys(16))
    assert answer is not None
    assert answer.blocks == 0, "an offer of another prompt has none of them"
    assert rig.peer.said[-1] == ("refuse", b"\1" * 16, "nothing")


def test_blocks_behind_a_gap_are_not_adopted() -> None:
    rig = Rig()
    keys = rig.keys(16)
    rig.side.reserve("one", 16, 4)
    rig.side.offered("one", offer())
    assert rig.side.ask("one", keys) is None
    rig.peer.answer(4, keys)
    rig.peer.there.discard(bytes(keys)[32:64])
    answer = rig.side.ask("one", keys)
    assert answer is not None
    assert answer.blocks == 1


def test_two_requests_share_one_offer_and_the_last_ends_it() -> None:
    rig = Rig()
    keys = taken(rig)
    rig.side.reserve("two", 16, 4)
    assert rig.side.offered("two", offer())
    answer = rig.side.ask("two", keys)
    assert answer is not None
    assert answer.blocks == 4, "it is there already"
    assert len(rig.peer.said) == 1, "and is asked for once"
    rig.cache.adopt(keys, 4)
    rig.side.over("one")
    assert len(rig.peer.said) == 1
    assert rig.cache.probe(keys).remote == 4, "the other one has yet to load them"
    rig.side.over("two")
    assert rig.peer.said[1:] == [("done", b"\1" * 16)]
    assert rig.cache.probe(keys).remote == 0


def test_the_last_of_an_offer_drops_its_names_though_it_took_none_over_itself() -> None:
    """Else the next request finds them, and what they name is not there any more."""
    rig = Rig()
    keys = rig.keys(16)
    for name in ("one", "two"):
        rig.side.reserve(name, 16, 4)
        assert rig.side.offered(name, offer())
        assert rig.side.ask(name, keys) is None
    rig.peer.answer(4, keys)
    assert rig.side.ask("one", keys) is not None
    assert rig.cache.adopt(keys, 4) == 4
    rig.side.over("one")
    assert rig.cache.probe(keys).remote == 4, "the other one finds them by name"
    rig.side.over("two")
    assert rig.cache.probe(keys).remote == 0


def test_names_are_dropped_when_the_copy_that_reads_them_has_ended_however_late() -> None:
    """A report that was lost leaves it in the air until a reset."""
    rig = Rig()
    keys = taken(rig)
    assert rig.cache.adopt(keys, 4) == 4
    lease = rig.cache.begin(keys)
    plans = rig.cache.dispatch()
    rig.side.over("one")
    rig.cache.finish(lease)
    for _ in range(2):
        rig.now += 31
        rig.side.sweep()
        assert rig.cache.stats()["remote_free"] == rig.cache.stats()["remote_capacity"] - 4
    for plan in plans:
        rig.cache.commit(plan, 0)
    rig.now += 31
    rig.side.sweep()
    assert rig.cache.stats()["remote_free"] == rig.cache.stats()["remote_capacity"]


def test_the_end_of_an_offer_drops_no_names_of_what_it_never_had() -> None:
    """Those are a store's: who waits with them was asked about once, and would compute."""
    rig = Rig(lookup=Store())
    keys = taken(rig, blocks=2)
    lease = rig.cache.begin(rig.keys(8))
    rig.cache.seal(lease, 8)
    assert rig.cache.adopt(keys, 4) == 4
    rig.side.over("one")
    assert rig.cache.probe(keys).remote == 2
    rig.cache.finish(lease)


def test_a_second_offer_for_a_request_is_refused() -> None:
    rig = Rig()
    rig.side.reserve("one", 16, 4)
    assert rig.side.offered("one", offer(1))
    assert not rig.side.offered("one", offer(2))
    assert rig.peer.said == [("refuse", b"\2" * 16, "late")]
    assert rig.side.offered("one", offer(1)), "the same again is a router's retry"
    assert len(rig.peer.said) == 1


def test_each_rank_is_told_before_the_answer() -> None:
    other = Told()
    rig = Rig(ranks=[other])
    taken(rig)
    assert other.said == [("tell", AT, b"\1" * 16, 4, 77)]
    rig.side.over("one")
    assert other.said[1:] == [("end", AT, b"\1" * 16)]


def test_requests_without_room_ask_the_stores() -> None:
    rig = Rig(lookup=(store := Store()))
    answer = rig.side.ask("one", rig.keys(16))
    assert answer is not None
    assert store.asked == ["one"]
    rig.side.drop("one")
    assert store.dropped == ["one"]


def test_its_close_refuses_all_and_answers_no_more() -> None:
    rig = Rig(lookup=(store := Store()))
    keys = taken(rig)
    rig.cache.adopt(keys, 4)
    rig.side.close()
    rig.side.close()
    assert rig.peer.said[1:] == [("refuse", b"\1" * 16, "closed")]
    assert store.closed
    with pytest.raises(by.Misuse, match="this decode side is closed"):
        rig.side.reserve("two", 16, 4)
    assert not rig.side.offered("two", offer(2))


def test_a_cache_without_names_has_no_decode_side() -> None:
    from blockyard.handover.decode_side import DecodeSide  # noqa: PLC0415

    peers: Any = {AT: FakePeer()}
    with pytest.raises(by.Misuse, match="no names of remote"):
        DecodeSide(by.KVCache(device=8), peers)


@pytest.mark.parametrize(
    "more", [{"engine": 8, "group": 1, "linked": False}, {"device": 8, "group": 1}]
)
def test_caches_of_hybrid_models_are_refused_by_name(more: dict[str, Any]) -> None:
    cache = by.KVCache(block_size=4, remote=64, remote_writes=False, **more)
    peers: Any = FakePeers()
    with pytest.raises(by.Unsupported, match="hybrid models"):
        DecodeSide(cache, peers)


def test_after_new_weights_nothing_of_the_old_ones_is_taken() -> None:
    store = Store()
    rig = Rig(lookup=store)
    rig.side.reserve("one", 16, 4)
    rig.side.offered("one", offer())
    rig.cache.update_weights()
    answer = rig.side.ask("one", rig.keys(16))
    assert answer is not None
    assert answer.blocks == 0
    assert rig.peer.said == [("refuse", b"\1" * 16, "other weights")]
    assert not store.asked


def test_who_comes_late_with_an_offer_ends_no_other_requests() -> None:
    rig = Rig()
    taken(rig)
    assert not rig.side.offered("two", offer())
    assert rig.side.stats()["handover_refused"] == 1
    assert [word for word, *_ in rig.peer.said] == ["take"]
    rig.side.over("one")
    assert rig.peer.said[-1] == ("done", offer().id)


@pytest.mark.parametrize(
    "bad",
    [
        {"id": b"short"},
        {"id": "1" * 16},
        {"at": "nowhere"},
        {"at": []},
        {"boot": 0},
        {"boot": None},
    ],
)
def test_an_offer_that_somebody_has_made_wrongly_is_malformed(bad: dict[str, Any]) -> None:
    rig = Rig()
    rig.side.reserve("one", 16, 4)
    assert not rig.side.offered("one", offer()._replace(**bad))
    assert rig.side.stats()["handover_malformed"] == 1
    rig.side.ask("one", rig.keys(16))
    rig.side.close()
    assert not rig.peer.said


def test_an_id_that_cannot_be_hashed_is_refused_by_name() -> None:
    rig, wrong = Rig(), ["one"]
    side: Any = rig.side
    for verb, more in ((side.reserve, (16, 4)), (side.offered, (offer(),)), (side.explain, ())):
        with pytest.raises(by.Misuse, match=r"request \['one'\]: must be an id"):
            verb(wrong, *more)
    assert rig.cache.room().promised == 0


# -- an engine that allocates its blocks itself ------------------------------------------------


def test_an_offer_that_comes_with_its_request_needs_no_ticket() -> None:
    rig = Rig()
    assert rig.side.expect("one", offer().to_json())
    with pytest.raises(by.Misuse, match="has an offer already"):
        rig.side.expect("one", offer())
    keys = rig.keys(16)
    assert rig.side.ask("one", keys) is None
    rig.peer.answer(4, bytes(keys))
    answer = rig.side.ask("one", keys)
    assert answer is not None
    assert answer.blocks == 4
    rig.side.over("one")
    assert rig.peer.said[-1] == ("done", offer().id)


@pytest.mark.parametrize("said", [None, {}, {"blockyard.offer": 7}, offer(at="10.9.9.9:7000")])
def test_a_request_that_comes_with_no_offer_of_a_peer_does_not_wait(said: Any) -> None:
    rig = Rig()
    assert not rig.side.expect("one", said)
    assert rig.side.explain("one") is None
    assert rig.side.stats()["handover_waiting"] == 0


def test_an_offer_whose_blocks_are_on_their_way_is_taken_again() -> None:
    rig = Rig()
    rig.side.expect("one", offer())
    keys = rig.keys(16)
    assert rig.side.ask("one", keys) is None
    for _ in range(3):
        rig.peer.answer(0, why="soon")
        before = len(rig.peer.said)
        rig.side.sweep()
        assert len(rig.peer.said) == before, "not at once"
        rig.now += 0.01
        rig.side.sweep()
        assert len(rig.peer.said) == before + 1
    rig.peer.answer(4, bytes(keys))
    rig.now += 100
    rig.side.sweep()
    assert rig.side.stats()["handover_open"] == 0, "it is not kept for ever"
    assert rig.side.stats()["handover_refused"] == 1


def test_an_answer_that_a_sweep_has_collected_is_one_that_has_come() -> None:
    rig = Rig()
    rig.side.expect("one", offer())
    keys = rig.keys(16)
    assert rig.side.ask("one", keys) is None
    before = rig.side.changes()
    rig.peer.answer(4, bytes(keys))
    rig.side.sweep()
    assert rig.side.changes() != before
    assert rig.side.changes() == rig.side.changes(), "and nothing since"


def test_an_offer_that_was_taken_in_time_waits_for_its_request() -> None:
    rig = Rig()
    rig.side.expect("one", offer())
    keys = rig.keys(16)
    assert rig.side.ask("one", keys) is None
    rig.peer.answer(4, bytes(keys))
    rig.now += 30
    rig.side.sweep()
    answer = rig.side.ask("one", keys)
    assert answer is not None
    assert answer.blocks == 4
