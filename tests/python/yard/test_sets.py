"""A cache of a further group of layers: rows are sets, and plans and outcomes are of its group."""

import pickle
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.shared.layout import Hello
from blockyard.shared.plan import WIRE
from blockyard.yard.presence import Presence

MISSING, READY, FILLING = Presence.MISSING, Presence.READY, Presence.FILLING


def config(group: int = 1, **other: Any) -> by.Config:
    sizes = {"engine": 32, "host": 8, "block_size": 4, "ahead": 0, "yard": 7}
    return by.Config(**sizes | {"linked": group == 0, "group": group} | other)


def cache(group: int = 1, **other: Any) -> by.KVCache:
    return by.KVCache(config(group, **other))


def row(own: by.KVCache, tokens: int, *blocks: int) -> by.Keys:
    """The keys of some blocks of a text, in any order."""
    whole = bytes(own.keys(range(tokens)))
    some = b"".join(whole[32 * block : 32 * (block + 1)] for block in blocks)
    return own.ready_keys(some, 4 * len(blocks))


def land(own: by.KVCache, good: int | None = None) -> None:
    plans = own.dispatch()
    own.commit([by.Outcome.of(one, 0, len(one) if good is None else good) for one in plans])
    assert own.audit() is None


@pytest.mark.law("G4")
def test_each_key_is_answered_for_by_itself_and_nothing_changes() -> None:
    own = cache()
    keys = own.keys(range(40))
    own.offload(row(own, 40, 7, 2), [5, 9])
    digest, stats = own.digest(), own.stats()
    found = own.which(keys)
    assert (str(found.dtype), found.shape) == ("uint8", (10,))
    assert found.tolist() == [0, 0, FILLING, 0, 0, 0, 0, FILLING, 0, 0]
    land(own, good=1)
    before = own.digest()
    assert own.which(keys).tolist() == [0, 0, 0, 0, 0, 0, 0, READY, 0, 0]
    assert own.find(keys).stop == "missing", "as a prefix nothing of it is found"
    raw = np.frombuffer(bytes(keys), np.uint8)
    for same in (raw, raw.reshape(-1, 32), raw.tobytes(), bytearray(raw)):
        assert own.which(same).tolist() == own.which(keys).tolist()  # type: ignore[arg-type]
    assert own.which(b"").tolist() == own.which(own.keys([1])).tolist() == []
    assert own.digest() == before != digest
    assert own.stats().keys() == stats.keys()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (5, "keys is <class 'int'>: pass bytes"),
        (None, "keys is <class 'NoneType'>: pass bytes"),
        (["00" * 32], "keys is <class 'list'>: pass bytes"),
        (b"short", "keys has 5 bytes: pass 32 per key"),
        (np.zeros((2, 31), np.uint8), "keys has 62 bytes: pass 32 per key"),
        (np.zeros((2, 32), np.uint32), "keys"),
        (by.KVCache(device=4, block_size=8).keys(range(8)), "blocks of 8 tokens"),
    ],
    ids=["number", "none", "list", "short", "width", "type", "size"],
)
def test_which_names_what_is_wrong_with_its_keys(keys: Any, message: str) -> None:
    own = cache()
    with pytest.raises(by.Misuse, match=message):
        own.which(keys)


def test_which_is_for_an_engine_that_allocates_its_blocks() -> None:
    own = by.KVCache(device=8, block_size=4)
    with pytest.raises(by.Misuse, match=r"which on a cache that owns its device.*engine="):
        own.which(own.keys(range(8)))


@pytest.mark.law("G8")
def test_a_set_is_kept_whole_with_its_partial_block_or_not_at_all() -> None:
    own = cache()
    # Blocks 6 to 8 of a request, and three tokens of block 9.
    kept = own.save_request(row(own, 40, 6, 7, 8), [1, 2, 3, 4], 15)
    land(own)
    assert (kept.state, kept.computed) == ("kept", 15)
    plans = own.fetch(kept, [10, 11, 12, 13])
    assert isinstance(plans, list)
    assert plans[0].destinations.tolist() == [10, 11, 12, 13]
    land(own)
    own.abandon(kept)
    second = own.save_request(row(own, 80, 15, 16, 17), [1, 2, 3], 12)
    land(own, good=2)
    assert second.state == "broken"
    assert own.which(own.keys(range(80)))[15:18].tolist() == [READY, READY, MISSING]
    with pytest.raises(by.NoRoom):
        own.save_request(own.keys(range(200, 236)), range(9), 36)
    own.abandon(second)


def test_a_linked_cache_cuts_what_it_keeps_as_before() -> None:
    own = cache(0)
    kept = own.save_request(own.keys(range(12)), [1, 2, 3], 12)
    land(own, good=2)
    assert (kept.state, kept.computed) == ("incomplete", 8)


@pytest.mark.law("G12")
def test_outcomes_of_another_group_are_refused_and_nothing_of_the_call_is_taken() -> None:
    one, two = cache(1), cache(2)
    for own in (one, two):
        own.offload(own.keys(range(8)), [1, 2])
    (plan,), (other,) = one.dispatch(), two.dispatch()
    assert (plan.flight, plan.yard) == (other.flight, other.yard), "numbers are a yard's own"
    assert (plan.group, other.group) == (1, 2)
    mine, theirs = by.Outcome.of(plan, 0, 2), by.Outcome.of(other, 0, 2)
    digest = one.digest()
    for outcomes in ([theirs], [mine, theirs], [theirs, mine]):
        with pytest.raises(by.Misuse, match="of group 2, and this cache has group 1: commit it to"):
            one.commit(outcomes)
        assert one.digest() == digest
    for verb in ("commit", "abort", "mark_unknown"):
        with pytest.raises(by.Misuse, match="a flight of group 2 in the cache of group 1: pass it"):
            getattr(one, verb)(other)
        assert one.digest() == digest
    with pytest.raises(by.Misuse, match="group must be integers"):
        one.commit([mine._replace(group=True)])
    assert one.which(one.keys(range(8))).tolist() == [FILLING] * 2
    assert one.commit([mine]) == two.commit([theirs]) == 1
    assert one.which(one.keys(range(8))).tolist() == [READY] * 2
    sent = pickle.loads(pickle.dumps(mine))
    assert (sent, sent.group) == (mine, 1)
    assert pickle.loads(pickle.dumps(plan)).group == 1


@pytest.mark.law("G12")
def test_ranks_of_another_group_are_refused_at_the_handshake() -> None:
    own = config(2)
    layout = by.KVLayout.llama(1, 1, 1, block_size=4)
    said = Hello(0, own.fingerprint, 32, 8, layout.fingerprint, yard=7, group=2)
    assert by.agree(own, [said]).group == 2
    with pytest.raises(by.Misuse, match="rank 0 has group 1 of the layers, and the yard 2"):
        by.agree(own, [said._replace(group=1)])
    with pytest.raises(by.Misuse, match=r"hellos\[0\].group = -1"):
        by.agree(own, [said._replace(group=-1)])
    linked = config(2, linked=True)
    with pytest.raises(by.Misuse, match="rank 0 is configured otherwise"):
        by.agree(linked, [said])


@pytest.mark.law("G12")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"device": 8, "linked": False}, "linked = False, with a device of its own.*engine="),
        ({"engine": 8, "linked": 0}, "linked = 0: must be one of True, False"),
        ({"engine": 8, "linked": None}, "linked = None: must be one of"),
        ({"engine": 8, "group": -1}, "group = -1: must be an integer from 0 to 255"),
        ({"engine": 8, "group": 256}, "group = 256: must be an integer from 0 to 255"),
        ({"engine": 8, "group": 1.0}, "group = 1.0: must be an integer"),
        ({"engine": 8, "group": True}, "group = True: must be an integer"),
    ],
    ids=["device", "zero", "none", "negative", "large", "float", "bool"],
)
def test_what_is_no_group_is_refused_by_name(given: Any, message: str) -> None:
    with pytest.raises(by.Misuse, match=message):
        by.Config(**given)
    with pytest.raises(by.Misuse, match=message):
        by.KVCache(**given)


def test_linked_and_group_are_part_of_what_processes_agree_on() -> None:
    prints = [config(*given).fingerprint for given in ((0,), (1,), (2,))]
    prints.append(config(1, linked=True).fingerprint)
    assert len(set(prints)) == 4
    assert WIRE == 3, "outcomes name their group"
    digests = {cache(*given).digest() for given in ((0,), (1,), (2,))}
    assert len(digests) == 3
    own = by.Config.of(config(3).to_mapping())
    assert (own.linked, own.group, own) == (False, 3, config(3))


def test_a_cache_of_sets_has_no_listener() -> None:
    with pytest.raises(by.Misuse, match="not linked: listen to the cache of group 0"):
        cache().listen()
    cache(0).listen()
