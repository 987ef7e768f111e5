"""Nothing from outside ends the process: sizes that cannot be, and what a panic leaves."""

import itertools
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard import _core
from blockyard.shared.machine import free_memory
from yard import at_rest, begin, text, unchanged

ENDLESS = 10**13


class Claims:
    """A sequence of a few ones that says that it has more."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        return iter([1, 1, 1])


LONG: list[tuple[str, Callable[[], Any]]] = [
    ("a range", lambda: range(ENDLESS)),
    ("a range longer than any len", lambda: range(10**20)),
    ("a len of 2**62", lambda: Claims(2**62)),
    ("a len of 2**63 - 1", lambda: Claims(2**63 - 1)),
    ("an array of one cell", lambda: np.broadcast_to(np.int32(1), ENDLESS)),
    ("an array of one wide cell", lambda: np.broadcast_to(np.uint64(1), ENDLESS)),
]
VERBS: list[tuple[str, Callable[[Any, Any, Any], object]]] = [
    ("begin", lambda cache, _, given: cache.begin(given)),
    ("dry_run", lambda cache, _, given: cache.dry_run(given)),
    ("probe", lambda cache, _, given: cache.probe(given)),
    ("keys", lambda cache, _, given: cache.keys(given)),
    ("media", lambda cache, _, given: cache.keys([1], media=given)),
    ("ready_keys", lambda cache, _, given: cache.ready_keys(given, 8)),
    ("append", lambda cache, lease, given: cache.append(lease, given)),
    ("append by counts", lambda cache, lease, given: cache.append([lease], [1], given)),
    ("append_ready", lambda cache, lease, given: cache.append_ready(lease, 8, given)),
    ("grow", lambda cache, lease, given: cache.grow([lease], given)),
    ("a batch", lambda cache, _, given: cache.grow(given)),
    ("trim", lambda cache, lease, given: cache.trim([lease], given)),
    ("seal", lambda cache, lease, given: cache.seal([lease], given)),
    ("park", lambda cache, lease, given: cache.park(lease, given)),
    ("slot_mapping", lambda cache, lease, given: cache.slot_mapping([lease], given)),
    ("its counts", lambda cache, lease, given: cache.slot_mapping([lease], 0, given)),
    ("commit", lambda cache, _, given: _core.Cache.commit(cache, given, 1)),
    ("good", lambda cache, _, given: _core.Cache.commit(cache, [], given)),
    ("corrupt", lambda cache, _, given: _core.Cache.commit(cache, [], [], corrupt=given)),
    ("abort", lambda cache, _, given: _core.Cache.abort(cache, given)),
    ("mark_unknown", lambda cache, _, given: cache.mark_unknown(given)),
    ("finish", lambda cache, _, given: cache.finish(given)),
    ("consecutive", lambda _, __, given: _core.consecutive(given, given)),
    ("through", lambda _, __, given: _core.through(given, (np.zeros(1, np.uint64), 8), 0, 4, 8)),
    ("marks", lambda _, __, given: _core.Marks(8).touch(given, 1)),
]


def rows(table: list[tuple[str, Any]]) -> list[Any]:
    return [pytest.param(value, id=name.replace(" ", "_")) for name, value in table]


@pytest.mark.law("R2-8")
@pytest.mark.parametrize("verb", rows(VERBS))
@pytest.mark.parametrize("long", rows(LONG))
def test_what_is_too_long_is_refused_before_it_is_read(
    verb: Callable[[Any, Any, Any], object], long: Callable[[], Any]
) -> None:
    cache = by.KVCache(block_size=4, device=32, host=16)
    lease = begin(cache, text(1, 6))
    before = unchanged(cache.stats())
    with pytest.raises((by.Misuse, by.TooLarge)):
        verb(cache, lease, long())
    assert unchanged(cache.stats()) == before
    assert cache.audit() is None
    assert (lease.appended, lease.tokens) == (6, 6)
    cache.finish(lease)
    at_rest(cache)


def test_a_prompt_that_is_too_large_says_by_how_much() -> None:
    cache = by.KVCache(block_size=4, device=32)
    with pytest.raises(by.TooLarge) as caught:
        cache.begin(range(ENDLESS), reserve=8)
    assert (caught.value.need, caught.value.capacity) == (ENDLESS // 4 + 2, 31)
    with pytest.raises(by.Misuse, match=f"tokens has {ENDLESS} values: one call takes 33554432"):
        cache.keys(range(ENDLESS))


@pytest.mark.parametrize(
    "verb",
    [
        lambda cache, given: cache.keys(given),
        lambda cache, given: cache.ready_keys((b"k" * 32 for _ in given), 4),
        lambda cache, given: cache.mark_unknown(
            [7 for _ in range(3)] + [*itertools.islice(given, 3)]
        ),
    ],
)
def test_what_never_ends_is_refused(verb: Callable[[Any, Any], object]) -> None:
    cache = by.KVCache(block_size=1 << 20, device=8)
    with pytest.raises(by.Misuse):
        verb(cache, itertools.repeat(1))
    assert cache.audit() is None


def test_a_block_may_have_more_tokens_than_there_is_memory() -> None:
    assert "12884901888" in limited(
        """
        cache = by.KVCache(block_size=2**32 - 1, device=4)
        lease = cache.begin([1, 2, 3])
        cache.append(lease, range(100_000))
        cache.grow(lease, 100_000)
        assert cache.seal(lease, 3) == 0 and lease.blocks == 1
        print(cache.slot_mapping(lease, 4, 2)[0] + 8589934589)
        try:
            cache.slot_mapping(lease, 0, 2**32 - 1)
        except by.Misuse as refused:
            assert "counts together has 4294967295 values" in str(refused)
        assert cache.audit() is None
        """,
        1 << 30,
    )


def limited(code: str, limit: int) -> str:
    """Runs this in a process that is given so many bytes of addresses, and no more."""
    head = f"""
        import resource
        import blockyard as by
        from blockyard import _core
        resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))
    """
    script = textwrap.dedent(head) + textwrap.dedent(code)
    words = [sys.executable, "-c", script]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


MEMORY = [
    "by.KVCache(device=2_147_483_000)",
    "by.KVCache(device=8, host=2_147_483_000)",
    "by.KVCache(device=20_000_000, eviction='heap')",
    "by.KVCache(device=8, write='second-touch', ghosts=2**30)",
    "by.KVCache(device=2_147_483_000, write='through')",
    "_core.Cache(device=2_147_483_000)",
    "_core.Cache(device=8, host=2_147_483_000)",
    "_core.Marks(2**32 - 1)",
]


@pytest.mark.parametrize("made", MEMORY)
def test_a_cache_for_which_there_is_no_memory_is_refused_with_the_bytes(made: str) -> None:
    said = limited(
        f"""
        for _ in range(2):
            try:
                {made}
            except by.Unavailable as refused:
                print(refused)
        """,
        1 << 30,
    )
    assert len(re.findall(r"no memory for .*: it takes \d{9,} bytes", said)) == 2, said


@pytest.mark.law("R2-8")
def test_a_resize_for_which_there_is_no_memory_changes_nothing() -> None:
    said = limited(
        """
        for keywords in ({}, {"host": 16}, {"eviction": "heap"}, {"write": "through"}):
            cache = by.KVCache(block_size=4, device=64, **{"host": 0, **keywords})
            lease = cache.begin(range(40), reserve=16)
            cache.seal(lease, 40)
            cache.finish(cache.begin(range(100, 120)))
            before, digest = cache.stats(), cache.digest()
            for tier in ("device", "host"):
                for slots in (2_147_483_000, 20_000_000):
                    for core in (by.KVCache, _core.Cache):
                        try:
                            core.resize(cache, tier, slots)
                        except by.Unavailable as refused:
                            print(refused)
                assert (cache.stats(), cache.digest()) == (before, digest)
                assert cache.limit(tier) == (63 if tier == "device" else keywords.get("host", 0))
            assert cache.audit() is None
            cache.resize("host", 128)
            cache.grow(lease, 16)
            parked = cache.park(lease, 40)
            cache.commit(cache.demote(10, of=parked))
            cache.finish(cache.begin(parked))
            assert cache.audit() is None
        """,
        1 << 30,
    )
    assert len(re.findall(r"no memory for .*: it takes \d{9,} bytes", said)) == 32, said


def test_there_is_as_much_memory_as_the_caller_says() -> None:
    with pytest.raises(by.Unavailable, match=r"it takes 1[0-9]{8} bytes, and 1000 are there"):
        _core.Cache(device=1_000_000, memory=1000)
    cache: Any = by.KVCache(device=8, host=4)
    before = cache.stats()
    with pytest.raises(
        by.Unavailable, match=r"more slots: it takes [0-9]+ bytes, and 1000 are there"
    ):
        cache.resize("host", 1_000_000, memory=1000)
    assert cache.stats() == before
    assert cache.limit("host") == 4
    cache.resize("host", 1_000, memory=1 << 20)
    assert cache.limit("host") == 1_000


def test_a_cache_larger_than_the_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockyard.shared.machine.free_memory", lambda: 50_000_000)
    with pytest.raises(by.Unavailable, match="and 50000000 are there"):
        by.KVCache(device=1_000_000)
    with pytest.raises(by.Unavailable, match="and 50000000 are there"):
        by.KVCache(device=8, write="second-touch", ghosts=1 << 24)
    cache = by.KVCache(device=8, host=4)
    with pytest.raises(by.Unavailable, match="and 50000000 are there"):
        cache.resize("host", 1_000_000)
    cache.resize("host", 1_000)


def written(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


INFO = {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   1000 kB\nHugePages_Total: 0\n"}
GROUPS = "sys/fs/cgroup"
MACHINES: list[tuple[str, dict[str, str], int | None]] = [
    ("nothing is said", {}, None),
    ("no group", INFO, 1_024_000),
    ("a group without a limit", INFO | {
        "proc/self/cgroup": "0::/user\n",
        f"{GROUPS}/user/memory.max": "max\n",
        f"{GROUPS}/user/memory.current": "5\n",
    }, 1_024_000),
    ("a group", INFO | {
        "proc/self/cgroup": "0::/user/one\n",
        f"{GROUPS}/user/one/memory.max": "900000\n",
        f"{GROUPS}/user/one/memory.current": "500000\n",
        f"{GROUPS}/user/one/memory.stat": "anon 200000\nfile 300000\nshmem 100000\n",
    }, 600_000),
    ("a group above it", INFO | {
        "proc/self/cgroup": "0::/user/one\n",
        f"{GROUPS}/user/one/memory.max": "max\n",
        f"{GROUPS}/user/one/memory.current": "5\n",
        f"{GROUPS}/user/memory.max": "700\n",
        f"{GROUPS}/user/memory.current": "900\n",
    }, 0),
    ("a container that does not see its path", INFO | {
        "proc/self/cgroup": "0::/far/away\n",
        f"{GROUPS}/memory.max": "800\n",
        f"{GROUPS}/memory.current": "100\n",
    }, 700),
    ("version 1", INFO | {
        "proc/self/cgroup": "4:memory:/job\n3:cpu,cpuacct:/job\n",
        f"{GROUPS}/memory/job/memory.limit_in_bytes": "800\n",
        f"{GROUPS}/memory/job/memory.usage_in_bytes": "300\n",
        f"{GROUPS}/memory/job/memory.stat": "total_cache 120\ntotal_shmem 20\n",
    }, 600),
]  # fmt: skip


@pytest.mark.parametrize(("files", "there"), [pytest.param(*m, id=i) for i, *m in MACHINES])
def test_what_is_there_is_the_least_of_what_the_machine_and_the_groups_say(
    tmp_path: Path, files: dict[str, str], there: int | None
) -> None:
    assert free_memory(written(tmp_path, files)) == there


@pytest.fixture(name="quiet")
def _quiet(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Panics say on standard error where they were."""
    yield
    assert "on purpose" in capfd.readouterr().err


def every_verb(cache: Any, lease: Any, parked: Any, ticket: Any) -> Iterator[Callable[[], object]]:
    yield from (lambda verb=verb: verb(cache, lease, [1]) for name, verb in VERBS[:16])
    yield from (
        lambda name=name: getattr(cache, name)()
        for name in ("stats", "audit", "holders", "digest", "clear", "draining", "dispatch", "room",
                     "blocks_in_flight", "probe", "step")
        if hasattr(cache, name)
    )  # fmt: skip
    yield lambda: cache.begin(parked)
    yield lambda: cache.abandon(parked)
    yield lambda: cache.release(ticket)
    yield lambda: cache.promise(1)
    yield lambda: cache.resize("device", 100)
    yield lambda: cache.demote(3)
    yield lambda: cache.promote(keys_of(cache))
    yield lambda: cache.fork(lease, 6)
    yield lambda: cache.block_tables(lease)
    yield lambda: cache.exclusive_blocks(lease)
    yield lambda: cache.worth_loading(1)
    yield lambda: cache.dry_run([1])
    yield lambda: lease.state
    yield lambda: lease.tokens
    yield lambda: parked.state
    yield lambda: parked.moving
    yield lambda: cache.explain([1, 2])
    yield lambda: cache.finish(lease)


def keys_of(cache: Any) -> Any:
    """Keys of blocks of the same size, of a cache that is sound."""
    return by.KVCache(block_size=cache.block_size, device=8).keys([1, 2, 3, 4])


@pytest.mark.law("R2-8")
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("where", ["verb", "long verb", "keys", "long keys"])
def test_a_panic_of_the_core_breaks_that_cache_alone(where: Any) -> None:
    cache: Any = by.KVCache(block_size=4, device=32, host=16)
    other: Any = by.KVCache(block_size=4, device=32, host=16)
    lease, kept = (begin(one, text(1, 10), reserve=4) for one in (cache, other))
    parked = cache.park(begin(cache, text(2, 6)), 6)
    ticket = cache.promise(2)
    with pytest.raises(by.Unavailable, match=r"bug of Blockyard's own .on purpose.*make another"):
        _core._panic(cache, where)
    told = 0
    for verb in every_verb(cache, lease, parked, ticket):
        try:
            verb()
        except by.Unavailable as refused:
            told += "on purpose" in str(refused)
        except by.SpentLease:
            continue
    assert told > 40
    del lease, parked, ticket
    other.grow(kept, 4)
    other.finish(kept)
    at_rest(other)


@pytest.mark.usefixtures("quiet")
def test_to_drop_what_one_has_of_a_broken_cache_does_not_end_the_process() -> None:
    cache: Any = by.KVCache(block_size=4, device=32, host=16)
    held = [begin(cache, text(name, 6)) for name in range(3)]
    held.append(cache.park(held.pop(), 6))
    held.append(cache.promise(2))
    with pytest.raises(by.Unavailable):
        _core._panic(cache, "verb")
    held.clear()
    with pytest.raises(by.Unavailable), begin(by.KVCache(device=8), [1]):
        cache.stats()


@pytest.mark.law("R2-8")
@pytest.mark.usefixtures("quiet")
def test_a_panic_outside_of_every_cache_is_an_error_like_any_other() -> None:
    cache: Any = by.KVCache(block_size=4, device=32)
    with pytest.raises(by.Unavailable, match=r"on purpose.* has cut this call short"):
        _core._panic(cache, "binding")
    cache.finish(begin(cache, [1, 2, 3]))
    at_rest(cache)
