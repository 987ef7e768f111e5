"""Yard and crane in one process, over shared stores: what goes there comes back, also elsewhere."""

import gc
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from blockyard._typing import override
from blockyard.crane.copiers.bounce import BounceCopier
from blockyard.crane.copiers.store_copier import StoreCopier
from disks import BLOCKS, LAYOUT, OURS, TALKS, settle, talks, value
from memory_stores import MemoryStore, Turned

pytestmark = pytest.mark.law("INV-35b")

THREADS = 2
"""That put, by default."""


def cache_over(*stores: Any, **more: Any) -> Any:
    given: dict[str, Any] = {"device": 9, "remote": 64, "namespace": OURS} | more
    return by.local(LAYOUT, stores=list(stores), **given)


def played(cache: Any, numbers: Any) -> dict[int, int]:
    """Plays talks, each of which goes down as far as there are tiers."""
    found: dict[int, int] = {}
    for number in numbers:
        found |= talks(cache, [number])
        for tier in ("host", "disk"):
            if cache.stats()[f"{tier}_capacity"]:
                cache.demote(64, tier=tier)
                settle(cache)
    return found


TIERS: dict[str, dict[str, Any]] = {
    "device": {},
    "device, host": {"host": 8, "write": {"host": "through"}},
    "device, disk": {"disk": 8, "write": {"disk": "through"}},
    "all": {"host": 8, "disk": 12, "write": {"host": "through", "disk": "through"}},
}


@pytest.mark.parametrize("name", TIERS)
def test_blocks_go_down_to_a_store_and_come_back(tmp_path: Path, name: str) -> None:
    store, others = MemoryStore(), set(threading.enumerate())
    more = TIERS[name] | ({"disk_path": tmp_path} if "disk" in TIERS[name] else {})
    with cache_over(store, **more) as cache:
        found: dict[int, int] = {}
        for _ in range(3):
            found = played(cache, range(TALKS))
        assert sum(found.values()) > 12 * TALKS, found
        stats = cache.stats()
        assert stats["remote_put_blocks"] > 0
        assert len(store.blocks()) > 0
        assert stats["remote_failed"] == stats["remote_corrupt"] == 0
        assert cache.audit() is None
    assert not set(threading.enumerate()) - others, "its threads have ended"


def test_a_disk_and_a_store_copy_through_a_little_memory(tmp_path: Path) -> None:
    store = MemoryStore()
    with cache_over(store, disk=12, disk_path=tmp_path) as cache:
        copiers = cache.crane.copiers
        assert isinstance(copiers["disk", "remote"], BounceCopier)
        assert isinstance(copiers["device", "remote"], StoreCopier)
        found: dict[int, int] = {}
        for _ in range(2):
            found = played(cache, range(6))
        assert list(found.values()) == [4 * BLOCKS - 1] * 6
        stats = cache.stats()
        assert stats["copied_disk_to_remote"] == stats["remote_put_blocks"] == len(store.blocks())
        assert stats["crane_failed"] == 0


@pytest.mark.law("INV-35c")
def test_another_process_finds_what_it_adopts() -> None:
    store = MemoryStore()
    with cache_over(store) as cache:
        talks(cache)
    with cache_over(store) as other:
        found = 0
        for talk in range(TALKS):
            keys = other.keys(range(100 * talk, 100 * talk + 4 * BLOCKS))
            found += other.adopt(keys)
        assert found == TALKS * BLOCKS
        assert all(found == 4 * BLOCKS - 1 for found in talks(other).values())
    with cache_over(store, namespace=OURS | {"weights": "v2"}) as stranger:
        keys = stranger.keys(range(4 * BLOCKS))
        assert stranger.adopt(keys) == BLOCKS, "believed"
        assert talks(stranger, [0]) == {0: 0}, "and not found"


@pytest.mark.law("INV-42")
def test_inv_42_what_is_forgotten_is_deleted_in_the_store() -> None:
    store = MemoryStore()
    with cache_over(store) as cache:
        # Its close ends with the delete, however long a busy machine takes.
        cache.crane.remote._ending = 60.0
        talks(cache)
        before = len(store.blocks())
        cache.forget(cache.keys(range(4 * BLOCKS)))
        settle(cache)
        assert len(store.blocks()) == before - BLOCKS
        store.down = "it is down"
        cache.forget(cache.keys(range(100, 100 + 4 * BLOCKS)))
        for _ in range(20):
            cache.step()
        store.down = ""
    assert len(store.blocks()) == before - 2 * BLOCKS, "at the latest by the close"


@pytest.mark.law("INV-42")
def test_inv_42_a_close_counts_what_is_not_deleted_once(caplog: pytest.LogCaptureFixture) -> None:
    store, well = MemoryStore(), MemoryStore("memory://well")
    store.down = "it is down"
    with cache_over(store, well) as cache:
        cache.forget(cache.keys(range(16)))
        cache.step()
        cache.forget(cache.keys(range(100, 108)))
        cache.step()
        assert cache.crane.undeleted()[store.url] == 6
        answered(cache, well, 0)
        assert cache.crane.undeleted()[store.url] == 6, "it delays no deletes but its own"
    said = [line.getMessage() for line in caplog.records]
    assert said[-1] == f"{store.url}: 6 values were not deleted: it is down"
    assert cache.crane.remote.undeleted == {store.url: 6, well.url: 0}, "and it says so later"


def answered(cache: Any, store: MemoryStore, left: int) -> None:
    """Waits until a store has deleted all but so many values."""
    until = time.monotonic() + 60
    while cache.crane.undeleted()[store.url] > left:
        assert time.monotonic() < until
        cache.step()
        time.sleep(0.001)


@pytest.mark.law("INV-42")
def test_inv_42_which_store_has_deleted_is_told(caplog: pytest.LogCaptureFixture) -> None:
    slow, well = MemoryStore(), MemoryStore("memory://well")
    with cache_over(slow, well) as cache:
        assert cache.crane.undeleted() == {slow.url: 0, well.url: 0}
        slow.down = "it is down"
        cache.forget(cache.keys(range(16)))
        assert cache.crane.undeleted()[slow.url] == 4, "from the call on"
        answered(cache, well, 0)
        assert cache.crane.undeleted() == {slow.url: 4, well.url: 0}
        for _ in range(2):
            # As a second later.
            cache.crane.copiers["device", "remote"]._looked = 0.0
            cache.step()
        slow.down = ""
        answered(cache, slow, 0)
        assert cache.crane.undeleted() == {slow.url: 0, well.url: 0}
        settle(cache)
    said = [line.getMessage() for line in caplog.records if slow.url in line.getMessage()]
    assert said == [
        f"{slow.url}: 4 values are not deleted yet: it is down",
        f"{slow.url}: all values are deleted that were to be",
    ]


def test_a_step_pays_nothing_for_what_a_dead_store_has_not_deleted() -> None:
    store = MemoryStore()
    store.down = "it is down"
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    def of_a_step() -> int:
        nonlocal calls
        calls = 0
        sys.setprofile(count)
        cache.step()
        sys.setprofile(None)
        return calls

    with cache_over(store) as cache:
        least = []
        for forgotten in (range(3), range(3, 300)):
            for number in forgotten:
                cache.forget(cache.keys(range(100 * number, 100 * number + 4)))
            for _ in range(300):
                cache.step()
            assert cache.stats()["voiding"] == forgotten.stop
            least.append(min(of_a_step() for _ in range(20)))
        assert 0 < least[0] <= least[1] < 1.2 * least[0], "it looks at a few"
        store.down = ""


@pytest.mark.law("INV-35a")
@pytest.mark.parametrize("tiers", [{}, {"host": 16, "write": {"host": "through"}}], ids=str)
def test_inv_35a_a_clear_puts_nothing_of_memory_that_is_lost(tiers: dict[str, Any]) -> None:
    store = MemoryStore()
    store.hangs = {"put"}
    with cache_over(store, device=17, **tiers) as cache:
        plane = cache.crane.device.planes[0]
        leases = [cache.begin(range(100 * talk, 100 * talk + 4 * BLOCKS)) for talk in range(4)]
        for talk, lease in enumerate(leases):
            for block, slot in enumerate(cache.block_tables(lease)[0]):
                plane[slot] = value(talk, block)
            cache.seal(lease, 4 * BLOCKS)
        cache.finish(leases)
        cache.demote(64)
        until = time.monotonic() + 60
        for _ in range(THREADS):
            while not store.reached.acquire(timeout=0.001):
                assert time.monotonic() < until
                cache.step()
                cache.demote(64, tier="host" if tiers else "device")
        # The engine died, and with it what its memory had. All threads hang, and read no more.
        for name in {"device", "host"} & cache.crane._tiers.keys():
            cache.crane._tiers[name].planes[0][...] = 0
        cache.clear()
        store.hangs.clear()
        store.go.set()
        settle(cache)
        cache.demote(64)
        settle(cache)
    lost = [name for name, put in store.blocks().items() if not any(put[128:])]
    assert lost == []


def test_weights_that_change_leave_the_store_alone() -> None:
    store = MemoryStore()
    with cache_over(store) as cache:
        talks(cache, range(4))
        before = dict(store.values)
        cache.update_weights()
        talks(cache, range(4))
        assert store.values == before
        assert talks(cache, range(2)) is not None


@pytest.mark.law("INV-42")
def test_inv_42_nothing_forgotten_is_put_before_its_delete_behind_a_load_that_hangs() -> None:
    store = MemoryStore()
    # It would leave the old value, and acknowledge the new one.
    store.keeps = True
    with cache_over(store, device=33) as cache:
        talks(cache, [0, 1])
        cache.demote(64)
        settle(cache)
        cache.finish([cache.begin(range(5000, 5000 + 4 * 31))])
        store.hangs = {"get"}
        loads = cache.begin(range(4 * BLOCKS))
        cache.step()
        assert store.reached.acquire(timeout=60)
        forgotten = cache.keys(range(100, 100 + 4 * BLOCKS))
        cache.forget(forgotten)
        again = cache.begin(forgotten)
        cache.append([again], list(range(100, 100 + 4 * BLOCKS)))
        cache.seal([again], [4 * BLOCKS])
        cache.finish([again])
        store.calls.clear()
        cache.demote(64)
        for _ in range(20):
            cache.step()
            time.sleep(1e-3)
        assert "put" not in store.calls
        store.hangs = set()
        store.go.set()
        settle(cache)
        cache.finish([loads])
        assert store.calls.count("delete") == 1
        cache.demote(64)
        settle(cache)
        assert cache.probe(forgotten).stop == "whole"


class Looping(MemoryStore):
    """A store whose client keeps an error in a cycle as it connects, as socket code often does."""

    refuses = False

    @override
    def connect(self) -> Any:
        kept = ValueError("no address")
        try:
            raise kept
        except ValueError:
            if self.refuses:
                raise
        return super().connect()


@pytest.mark.parametrize("refuses", [False, True])
def test_a_client_whose_errors_are_garbage_keeps_no_staging_buffer(refuses: bool) -> None:
    store = Looping()
    gc.collect()
    gc.disable()
    try:
        with cache_over(store) as cache:
            talks(cache)
            store.refuses, store.down = refuses, "it is down" if refuses else ""
            talks(cache)
            settle(cache)
            assert cache.stats()["remote_calls"] == cache.stats()["remote_held"] == 0
    finally:
        gc.enable()


@pytest.mark.law("INV-35a")
def test_after_weights_that_changed_the_store_is_asked_about_nothing() -> None:
    store = MemoryStore()
    with cache_over(store) as cache:
        cache.update_weights()
        assert cache.lookup.ask("one", cache.keys(range(16))) == (0, ())
        assert not store.calls


def test_no_verb_of_the_step_asks_a_store_and_none_waits_for_one() -> None:
    store = MemoryStore()
    store.hangs = {"put", "get", "delete", "has"}
    with cache_over(store, device=64, host=64) as cache:
        cache.crane.copiers["device", "remote"]._flights.clock = clock = Turned()
        mine = threading.get_ident()
        for turn in range(12):
            lease = cache.begin(range(100 * turn, 100 * turn + 16))
            cache.step()
            while lease.state == "loading":
                clock.now += 1
                cache.step()
            cache.seal(lease, 16)
            cache.finish(lease)
            cache.demote(64)
            cache.demote(64, tier="host")
            cache.step()
            cache.explain(range(16))
            cache.pending_copies()
            cache.stats()
            clock.now += 1
        cache.forget(cache.keys(range(16)))
        cache.step()
        assert store.reached.acquire(timeout=30), "somebody has asked"
        assert mine not in store.callers
        assert cache.audit() is None
        begun = time.monotonic()
        cache.close()
        assert time.monotonic() - begun < 30
    store.go.set()


def test_troubles_of_a_store_are_in_what_is_explained() -> None:
    store = MemoryStore()
    store.down = "the disk of it is full"
    with cache_over(store) as cache:
        talks(cache, range(4))
        settle(cache)
        said = str(cache.explain(range(8)))
        assert "memory://one takes no puts, and is tried again soon" in said
        assert "the disk of it is full" in said
        assert cache.stats()["remote_down_rests"] == 1
        assert cache.stats()["remote_failed"] >= 3


def test_stores_may_be_urls_and_without_a_size_a_million_names_are_remembered() -> None:
    with tempfile.TemporaryDirectory() as folder:
        given: dict[str, Any] = {"device": 9, "namespace": OURS}
        with by.local(LAYOUT, stores=[f"file://{folder}"], **given) as cache:
            assert cache.config.remote == 1_000_000
            assert "remote" in cache.config.keyed
            talks(cache, range(3))
            assert cache.stats()["remote_put_blocks"] > 0
        assert list(Path(folder).rglob("*"))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"remote": 10}, "remote = 10 blocks, and no stores"),
        ({"stores": []}, r"stores = \[\]: give a list of one or more"),
        ({"stores": "redis://one"}, "stores = 'redis://one': give a list"),
        ({"stores": ["redis//one"]}, "begins with a scheme"),
        ({"stores": [7]}, "stores have 7"),
        ({"stores": [MemoryStore()], "namespace": None}, "namespace names no model"),
        ({"stores": [MemoryStore()], "namespace": {"model": "m"}}, "namespace names no weights"),
        ({"stores": [MemoryStore()], "remote": -1}, "remote = -1"),
        ({"stores": [MemoryStore()], "remote": 2**33}, f"remote = {2**33}"),
    ],
)
def test_refusals_name_what_is_wrong(given: dict[str, Any], says: str) -> None:
    keywords: Any = {"device": 9, "namespace": OURS} | given
    with pytest.raises(by.Misuse, match=says):
        by.local(LAYOUT, **keywords)


def test_a_store_that_is_down_at_the_start_is_no_reason_not_to_start() -> None:
    store = MemoryStore()
    store.down = "it is not there yet"
    with cache_over(store) as cache:
        talks(cache, range(4))
        store.down = ""
        until = time.monotonic() + 30
        while not store.blocks():
            assert time.monotonic() < until, "it is tried again"
            talks(cache, range(4, 8))
            time.sleep(0.05)


def test_stats_have_a_schema_also_without_stores() -> None:
    with cache_over(MemoryStore()) as cache, by.local(LAYOUT, device=9) as without:
        names = [stat.name for stat in cache.schema()]
        assert list(cache.stats()) == names
        assert list(without.stats()) == names
        assert cache.stats()["remote_buffers"] > 0


def test_stores_of_a_configuration_are_opened_and_given_once(tmp_path: Path) -> None:
    urls = [f"file://{tmp_path}"]
    config = by.Config(layout=LAYOUT, device=9, stores=urls, namespace=OURS)
    with by.local(config) as cache:
        assert cache.crane.remote is not None
        assert [store.url for store in cache.crane.remote.stores] == urls
        assert cache.lookup is not None
    with pytest.raises(by.Misuse, match="give them once"):
        by.local(config, stores=urls)
    with by.local(LAYOUT, device=9) as cache:
        assert cache.lookup is None
