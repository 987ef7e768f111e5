"""What was forgotten is found by nobody, on no tier and after no restart; all else stays."""

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import blockyard as by
from blockyard._core import Forgotten
from disks import BLOCKS, opened, settle

pytestmark = pytest.mark.law("INV-42")

TOKENS = 4 * BLOCKS
TENANTS = ("one", "two")


def prompt(talk: int) -> range:
    return range(100 * talk, 100 * talk + TOKENS)


def roomy(path: Path, **more: Any) -> Any:
    return opened(path, device=40, **more)


def publish(cache: Any, talk: int, salt: str | None = None) -> int:
    """Computes a talk; returns how many blocks of it were found."""
    lease = cache.begin(prompt(talk), salt=salt)
    settle(cache)
    cache.seal(lease, TOKENS)
    found = int(lease.cached)
    cache.finish(lease)
    return -(-found // 4)


def found(cache: Any, talk: int, salt: str | None = None) -> int:
    probe = cache.probe(cache.keys(prompt(talk), salt=salt))
    return int(probe.device + probe.host + probe.disk)


def voided(cache: Any) -> None:
    while cache.stats()["voiding"]:
        cache.step()


def test_a_tenant_is_forgotten_on_all_tiers_and_over_restarts(tmp_path: Path) -> None:
    with roomy(tmp_path, host=16) as cache:
        for salt in TENANTS:
            publish(cache, 1, salt)
        assert cache.flush(until=20) == 0
        # Of these one is on the device alone.
        publish(cache, 2, "one")
        forgotten = cache.forget(salt="one")
        assert (forgotten.blocks, forgotten.kept, len(forgotten.flights)) == (8, [], 1)
        assert [found(cache, 1, salt) for salt in TENANTS] == [0, 4]
        voided(cache)
        assert cache.stats()["forgotten"] == 8
        assert cache.audit() is None
    with roomy(tmp_path) as cache:
        assert cache.restored == 4
        assert [found(cache, 1, salt) for salt in TENANTS] == [0, 4]
        # Restored blocks say whose they are, too.
        assert cache.forget(salt="nobody").blocks == 0
        assert cache.forget(salt="two", adapter="an adapter").blocks == 0
        assert cache.forget(salt="two").blocks == 4
    with roomy(tmp_path) as cache:
        assert cache.restored == 0


def test_what_is_behind_a_shared_beginning_goes_alone(tmp_path: Path) -> None:
    with roomy(tmp_path) as cache:
        publish(cache, 1)
        keys = cache.keys(prompt(1))
        more = [*prompt(1)[:8], *range(7000, 7008)]
        lease = cache.begin(more)
        settle(cache)
        cache.seal(lease, TOKENS)
        cache.finish(lease)
        rows = [bytes(keys)[32 * at : 32 * at + 32] for at in range(2, BLOCKS)]
        assert cache.forget(keys=rows).blocks == 2
        assert found(cache, 1) == 2
        assert cache.probe(cache.keys(more)).device == 4
        assert cache.forget(keys=keys).blocks == 4
        settle(cache)
        assert cache.stats()["device_idle"] == 0, "copies have read what was there"
        assert cache.forget(keys=keys.hex()).blocks == 0
        assert cache.forget(keys=[]) == Forgotten(0, [], [])


def test_what_is_under_way_to_the_disk_is_not_there_after_it_has_landed(tmp_path: Path) -> None:
    for close in (True, False):
        with roomy(tmp_path) as cache:
            publish(cache, 1)
            cache.demote(BLOCKS)
            if close:
                cache.step()
            assert cache.forget(keys=cache.keys(prompt(1))).blocks == 4
            if not close:
                voided(cache)
                assert cache.stats()["disk_idle"] == 0
        with roomy(tmp_path) as cache:
            assert (cache.restored, found(cache, 1)) == (0, 0)


def test_records_of_what_was_evicted_go_too(tmp_path: Path) -> None:
    with roomy(tmp_path, flush=0) as cache:
        publish(cache, 1)
        publish(cache, 2)
        assert cache.flush(until=20) == 0
        # The cache has dropped them everywhere; their records are there still.
        cache.withdraw("disk", range(64))
        cache.finish(cache.begin(range(5000, 5000 + 4 * 39)))
        assert (found(cache, 1), found(cache, 2)) == (0, 0)
        assert cache.forget(keys=cache.keys(prompt(1))).blocks == 0
        voided(cache)
    with roomy(tmp_path) as cache:
        assert (found(cache, 1), found(cache, 2), cache.restored) == (0, 4, 4)


def test_what_is_computed_again_after_it_stays(tmp_path: Path) -> None:
    with roomy(tmp_path) as cache:
        publish(cache, 1, "one")
        assert cache.flush(until=20) == 0
        cache.forget(salt="one")
        # Written again before the records of before are void.
        assert publish(cache, 1, "one") == 0
    with roomy(tmp_path) as cache:
        assert (cache.restored, found(cache, 1, "one")) == (4, 4)
        assert publish(cache, 1, "one") == 4


def _die(path: str, told: Any) -> None:
    with opened(Path(path), device=40) as cache:
        for salt in TENANTS:
            publish(cache, 1, salt)
        assert cache.flush(until=20) == 0
        cache.forget(salt="one")
        voided(cache)
        told.send("void")
        told.close()
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_kill_right_after_the_report_brings_nothing_back(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    heard, told = context.Pipe(duplex=False)
    child = context.Process(target=_die, args=(str(tmp_path), told))
    child.start()
    told.close()
    assert heard.recv() == "void"
    child.join()
    assert child.exitcode == -signal.SIGKILL
    with roomy(tmp_path) as cache:
        assert [found(cache, 1, salt) for salt in TENANTS] == [0, 4]


def test_what_is_in_use_goes_with_its_last_user() -> None:
    cache = by.KVCache(device=33, block_size=4)
    one, two = cache.begin(prompt(1)), cache.begin(prompt(2))
    cache.seal(one, TOKENS)
    assert cache.forget(keys=cache.keys(prompt(1))).blocks == 4
    assert (one.state, two.state) == ("detached", "ready")
    assert (found(cache, 1), cache.stats()["device_pinned"]) == (0, 4)
    with pytest.raises(by.Misuse, match="forget"):
        cache.park(one, TOKENS)
    cache.finish(one)
    assert cache.stats()["device_pinned"] == 0
    assert cache.seal(two, TOKENS) == 4
    assert cache.audit() is None


def test_what_is_kept_is_named_and_goes_by_force_alone() -> None:
    cache = by.KVCache(device=33, host=16, block_size=4)
    lease = cache.begin(prompt(1), salt="one")
    parked = cache.park(lease, TOKENS)
    forgotten = cache.forget(salt="one")
    assert (forgotten.blocks, forgotten.kept) == (0, [parked.id])
    assert (parked.state, found(cache, 1, "one")) == ("kept", 4)
    assert cache.forget(salt="one", force=True) == Forgotten(4, [parked.id], [])
    assert (parked.state, found(cache, 1, "one")) == ("broken", 0)
    again = cache.begin(parked)
    assert isinstance(again, by.Lease)
    assert (again.cached, again.appended) == (0, TOKENS)
    assert cache.audit() is None


@pytest.mark.parametrize("tokens", [3, 4, 6])
def test_a_parked_request_is_named_by_its_salt_also_where_no_block_of_it_is_full(
    tokens: int,
) -> None:
    cache = by.KVCache(device=33, host=16, block_size=4)
    salts = ("one", "two")
    one, two = (cache.park(cache.begin(range(tokens), salt=salt), tokens) for salt in salts)
    assert cache.forget(salt="one") == Forgotten(0, [one.id], [])
    assert (one.state, cache.audit()) == ("kept", None)
    assert cache.forget(salt="one", force=True).kept == [one.id]
    assert (one.state, two.state, cache.audit()) == ("broken", "kept", None)


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "neither keys nor a salt"),
    ({"force": True}, "neither keys nor a salt"),
    ({"keys": [], "salt": "one"}, "keys and a salt"),
    ({"keys": [], "adapter": "one"}, "keys and an adapter"),
    ({"adapter": "one"}, "an adapter without a salt"),
    ({"keys": [b"short"]}, "32 bytes"),
    ({"keys": ["ab"]}, "64 hexadecimal digits"),
    ({"keys": b"x" * 33}, "keys"),
    ({"keys": 7}, "keys"),
    ({"salt": 7}, "salt"),
    ({"salt": "one", "adapter": 7}, "adapter"),
]


@pytest.mark.parametrize(("wrong", "says"), BAD, ids=[str(at) for at in range(len(BAD))])
def test_what_is_wrong_is_named_and_nothing_is_changed(wrong: dict[str, Any], says: str) -> None:
    cache = by.KVCache(device=33, block_size=4)
    cache.finish(cache.begin(prompt(1), salt="one"))
    before = cache.digest()
    with pytest.raises(by.Misuse, match=says):
        cache.forget(**wrong)
    assert cache.digest() == before


def test_keys_of_other_blocks_a_closed_cache_and_an_engines_keys_are_refused(
    tmp_path: Path,
) -> None:
    cache = by.KVCache(device=33, block_size=4)
    other = by.KVCache(device=33, block_size=8)
    with pytest.raises(by.Misuse, match="blocks of 8 tokens"):
        cache.forget(keys=other.keys(prompt(1)))
    cache.begin(cache.ready_keys([b"k" * 32], 4))
    with pytest.raises(by.Misuse, match="salt"):
        cache.forget(salt="one")
    engine = by.KVCache(engine=33, host=16, block_size=4)
    with pytest.raises(by.Misuse, match="salt"):
        engine.forget(salt="one")
    with roomy(tmp_path) as local:
        publish(local, 1)
        keys = local.keys(prompt(1))
    for named in ({"salt": "one"}, {"keys": keys}):
        with pytest.raises(by.Misuse, match="closed"):
            local.forget(**named)
    with roomy(tmp_path) as local:
        assert found(local, 1) == 4


def test_a_listener_hears_of_it_in_its_next_batch() -> None:
    cache = by.KVCache(device=33, block_size=4)
    cache.listen()
    lease = cache.begin(prompt(1))
    cache.seal(lease, TOKENS)
    cache.take_events()
    cache.forget(keys=cache.keys(prompt(1)))
    payload, _ = cache.take_events()
    assert payload is not None
    assert b"BlockRemoved" in payload
    cache.finish(lease)
    assert cache.take_events()[0] is None


ACTS = st.one_of(
    st.tuples(st.just("publish"), st.integers(0, 2), st.sampled_from(TENANTS)),
    st.tuples(st.just("salt"), st.just(0), st.sampled_from(TENANTS)),
    st.tuples(st.just("keys"), st.integers(0, 2), st.sampled_from(TENANTS)),
    st.tuples(st.sampled_from(["flush", "demote", "restart", "step"]), st.just(0), st.just("")),
)


class Tenants:
    """A cache over a disk, and which talks it must find."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cache = roomy(path)
        self.there: set[tuple[int, str]] = set()

    def act(self, act: str, talk: int, salt: str) -> None:
        match act:
            case "publish":
                publish(self.cache, talk, salt)
                self.there.add((talk, salt))
            case "salt":
                self.gone({one for one in self.there if one[1] == salt}, salt=salt)
            case "keys":
                keys = self.cache.keys(prompt(talk), salt=salt)
                self.gone(self.there & {(talk, salt)}, keys=keys)
            case "flush":
                assert self.cache.flush(until=20) == 0
            case "demote":
                self.cache.demote(3)
            case "step":
                self.cache.step()
            case "restart":
                assert self.cache.close() == 0
                self.cache = roomy(self.path)
        self.check()

    def gone(self, talks: set[tuple[int, str]], **named: Any) -> None:
        assert self.cache.forget(**named).blocks == BLOCKS * len(talks)
        self.there -= talks

    def check(self) -> None:
        for talk in range(3):
            for salt in TENANTS:
                here = BLOCKS if (talk, salt) in self.there else 0
                assert found(self.cache, talk, salt) == here, (talk, salt)
        assert self.cache.audit() is None


@settings(max_examples=25)
@given(acts=st.lists(ACTS, min_size=4, max_size=14))
def test_whatever_comes_before_and_after_it_all_of_it_is_gone_and_nothing_else(
    acts: list[tuple[str, int, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    tenants = Tenants(tmp_path_factory.mktemp("disk"))
    try:
        for act in acts:
            tenants.act(*act)
    finally:
        tenants.cache.close()
