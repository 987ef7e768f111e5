"""A decode step in one verb: what its four verbs do, one after the other, or nothing."""

import gc
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import blockyard as by
from blockyard._core import LeaseBatch
from yard import begin, profile, table, text

WIDTH = 40
SIZES: tuple[dict[str, Any], ...] = ({}, {"host": 24}, {"host": 12, "disk": 24, "keyed": ["disk"]})


class Twin:
    """Two caches with the same calls; a step is one verb over a batch in one, four in the other."""

    def __init__(self, sizes: dict[str, Any], *, listen: bool) -> None:
        self.caches = [by.KVCache(block_size=4, device=30, yard=7, **sizes) for _ in range(2)]
        self.leases: list[tuple[by.Lease, by.Lease]] = []
        self.batch = self.caches[0].batch()
        self.tables = [np.zeros((12, WIDTH), np.int32) for _ in range(2)]
        self.listens = listen
        if listen:
            for cache in self.caches:
                cache.listen()
        self.steps, self.unserved, self.refused = 0, 0, 0

    def begin(self, name: int, tokens: int) -> None:
        pair = []
        for cache in self.caches:
            try:
                lease = begin(cache, text(name, tokens), load=0)
            except by.NoRoom:
                continue
            cache.commit(lease.plans)
            pair.append(lease)
        if pair:
            self.leases.append((pair[0], pair[1]))
            self.batch.add(pair[0])

    def end(self, row: int, how: str) -> None:
        pair = self.leases.pop(row)
        for cache, lease in zip(self.caches, pair, strict=True):
            if how == "park":
                try:
                    cache.abandon(cache.park(lease, max(lease.sealed * 4, lease.cached)))
                except by.NoRoom:
                    cache.finish(lease)
            else:
                cache.finish(lease)
        before = self.caches[0].digest()
        with pytest.raises(by.SpentLease, match=rf"batch\[{row}\]: lease"):
            self.caches[0].decode_step(self.batch, np.zeros(len(self.batch)), 0)
        assert self.caches[0].digest() == before
        self.caches[1].stats()
        self.batch.remove([row])

    def step(self, counts: list[int], late: int, grow: list[int], *, out: bool) -> None:
        rows = len(self.leases)
        tokens = np.arange(sum(counts[:rows]), dtype=np.uint32) % 2
        ones, others = ([pair[at] for pair in self.leases] for at in range(2))
        computed = np.array(
            [
                max(min(one.appended + count - late, one.tokens, one.blocks * 4), 0)
                for one, count in zip(ones, counts, strict=False)
            ],
            np.int64,
        )
        one, four = self.caches
        said = one.decode_step(
            self.batch,
            tokens,
            computed,
            counts=counts[:rows],
            grow=grow[:rows],
            out=self.tables[0] if out else None,
        )
        four.append(others, tokens, counts[:rows])
        sealed = four.seal(others, computed)
        unserved = four.grow(others, grow[:rows])
        cells = four.block_tables(others, self.tables[1], cells="changed") if out else 0
        assert said[0].dtype == np.int32
        assert (said[0].tolist(), said[1], said[2]) == (unserved.tolist(), cells, sealed)
        self.steps += 1
        self.unserved += len(unserved)

    def act(self, what: str, first: Any, second: Any) -> None:
        rows = len(self.leases)
        if what == "begin" and rows < 12:
            self.begin(first, second)
        elif what == "step":
            counts, grow, out = first
            self.step(counts, second, grow, out=out)
        elif what == "end":
            self.end(first % rows, second)
        elif what == "trim":
            for cache, lease in zip(self.caches, self.leases[first % rows], strict=True):
                least = max(lease.sealed * 4, lease.cached, 1)
                cache.trim(lease, [min(max(least, lease.tokens - 3), lease.tokens)])
        elif what == "dedup":
            given = zip(self.caches, zip(*self.leases, strict=True), strict=True)
            changed = [cache.dedup(list(leases)) for cache, leases in given]
            assert changed[0] == changed[1]
        elif what == "demote":
            self.demote()

    def demote(self) -> None:
        for cache in self.caches:
            plan = cache.demote(3) if cache.config.host else None
            if plan is not None:
                cache.commit(plan)

    def check(self) -> None:
        one, four = self.caches
        assert one.digest() == four.digest()
        spent = {"rejected": 0}
        assert one.stats() | spent == four.stats() | spent
        assert one.audit() is None
        assert (self.tables[0] == self.tables[1]).all()
        for ours, theirs in self.leases:
            assert ours.appended == theirs.appended
            assert table(one, ours) == table(four, theirs)
        assert self.batch.leases == [pair[0] for pair in self.leases]
        if self.listens:
            assert one.take_events(now=1.0) == four.take_events(now=1.0)


ROWS = st.lists(st.integers(0, 6), min_size=12, max_size=12)
ACTS = st.one_of(
    st.tuples(st.just("begin"), st.integers(1, 3), st.integers(1, 20)),
    st.tuples(st.just("end"), st.integers(0, 11), st.sampled_from(["finish", "park"])),
    st.tuples(st.just("trim"), st.integers(0, 11), st.just(0)),
    st.tuples(st.sampled_from(["dedup", "demote"]), st.just(0), st.just(0)),
    *[st.tuples(st.just("step"), st.tuples(ROWS, ROWS, st.booleans()), st.integers(0, 3))] * 6,
)


@pytest.mark.law("INV-17", "R2-10")
@given(st.sampled_from(SIZES), st.booleans(), st.lists(ACTS, min_size=10, max_size=30))
@profile(25)
def test_a_step_is_its_four_verbs(sizes: Any, listen: bool, acts: list[Any]) -> None:
    twin = Twin(sizes, listen=listen)
    # Of equal prompts, all but one become duplicates.
    for name in (1, 2, 1, 3, 2):
        twin.begin(name, 7)
    for what, first, second in acts:
        if twin.leases or what == "begin":
            twin.act(what, first, second)
        twin.check()


def test_rows_without_room_are_named_and_the_others_are_served() -> None:
    cache = by.KVCache(block_size=4, device=6)
    leases = [begin(cache, text(name, 6)) for name in (1, 2)]
    out = np.zeros((2, 8), np.int32)
    unserved, cells, sealed = cache.decode_step(
        cache.batch(leases), [1, 2, 3, 4], [6, 6], counts=2, grow=[4, 6], out=out
    )
    # One block is left: the first row takes it.
    assert (unserved.tolist(), cells, sealed) == ([1], 5, 2)
    assert [lease.tokens for lease in leases] == [10, 6]
    assert [lease.appended for lease in leases] == [8, 8]
    assert [lease.sealed for lease in leases] == [1, 1]
    assert out[1].tolist() == [*table(cache, leases[1]), *[0] * 6]
    assert cache.stats()["unserved"] == 1


def wrong(cache: by.KVCache, batch: LeaseBatch) -> list[tuple[type[Exception], str, Any]]:
    """Calls that are refused: with which error, and what it says."""
    step, good = cache.decode_step, np.array([1, 2, 3])
    narrow, flat = np.zeros((3, 2), np.int32), np.zeros(9, np.int32)
    few, wide = np.zeros((2, 9), np.int32), np.zeros((3, 9), np.int32)
    leases = batch.leases
    return [
        (by.Misuse, "tokens given and 3 counted", lambda: step(batch, [1], 6)),
        (by.Misuse, "tokens given and 4", lambda: step(batch, good, 6, counts=[1, 2, 1])),
        (by.Misuse, r"tokens\[1\] = -1", lambda: step(batch, [1, -1, 2], 6)),
        (by.Misuse, "counts has 2 values", lambda: step(batch, good, 6, counts=[1, 2])),
        (by.Misuse, "computed has 1 values", lambda: step(batch, good, [6])),
        (by.Misuse, "computed = 11: no more .* appended", lambda: step(batch, good, 11)),
        (by.Misuse, "computed = 9: no more .* slots", lambda: step(batch, [0] * 9, 9, counts=3)),
        (by.Misuse, "grow has 4 values", lambda: step(batch, good, 6, grow=[1] * 4)),
        (by.Misuse, "grow", lambda: step(batch, good, 6, grow=-1)),
        (by.Misuse, "out has 2 rows", lambda: step(batch, good, 6, out=few)),
        (by.Misuse, "blocks = 3: out is too narrow", lambda: step(batch, good, 6, out=narrow)),
        (by.Misuse, "out has shape", lambda: step(batch, good, 6, out=flat)),
        (by.Misuse, "loading = .no.", lambda: step(batch, good, 6, loading="no", out=wide)),  # type: ignore[arg-type]
        (by.Misuse, "twice", lambda: step([*leases[:2], leases[0]], good, 6)),
        (by.Misuse, "batch is", lambda: step(7, good, 6)),  # type: ignore[arg-type]
    ]


def test_what_is_wrong_is_named_and_changes_nothing() -> None:
    cache = by.KVCache(block_size=4, device=60)
    batch = cache.batch([begin(cache, text(name, 8)) for name in (1, 2, 3)])
    for error, said, call in wrong(cache, batch):
        before = cache.digest(), cache.stats(), [lease.appended for lease in batch.leases]
        with pytest.raises(error, match=said):
            call()
        assert before == (
            cache.digest(),
            cache.stats(),
            [lease.appended for lease in batch.leases],
        ), said


def test_a_refused_step_leaves_the_keys_as_they_were() -> None:
    cache, other = (by.KVCache(block_size=4, device=60) for _ in range(2))
    one, two = begin(cache, text(1, 6)), begin(other, text(1, 6))
    for tokens in ([1], [1, 2], [1, 2, 3], list(range(5)), list(range(13))):
        with pytest.raises(by.Misuse, match="too narrow"):
            cache.decode_step(one, tokens, 6, grow=1000, out=np.zeros((1, 4), np.int32))
        assert one.appended == 6
    for cached, lease in ((cache, one), (other, two)):
        cached.grow(lease, 20)
        cached.append(lease, range(20))
        cached.seal(lease, 26)
    assert cache.digest() == other.digest()


def test_rows_whose_keys_the_engine_makes_are_refused() -> None:
    cache = by.KVCache(block_size=4, device=60)
    leases = [begin(cache, text(1, 6)), begin(cache, cache.ready_keys(b"k" * 32, 6))]
    batch = cache.batch(leases)
    with pytest.raises(by.Misuse, match="the engine makes the keys"):
        cache.decode_step(batch, [1, 2], 6)
    assert [lease.appended for lease in leases] == [6, 6]
    batch.remove([1])
    assert cache.decode_step(batch, [1], 6)[2] == 1


def test_a_loading_row_is_refused_where_its_cells_are_wanted() -> None:
    cache = by.KVCache(block_size=4, device=12, host=24)
    lease = begin(cache, text(1, 9))
    cache.seal(lease, 8)
    cache.finish(lease)
    plan = cache.demote(2)
    assert plan is not None
    cache.commit(plan)
    cache.finish(begin(cache, text(2, 44)))
    loads, runs = begin(cache, text(1, 9)), begin(cache, text(3, 4))
    assert loads.state == "loading"
    batch, out = cache.batch([loads, runs]), np.zeros((2, 8), np.int32)
    with pytest.raises(by.Misuse, match="row 0 is lease"):
        cache.decode_step(batch, [1, 2], [0, 4], out=out)
    assert [loads.appended, runs.appended, runs.sealed] == [9, 4, 0]
    assert cache.decode_step(batch, [1, 2], [0, 4], out=out, loading="joined")[2] == 1


def test_a_batch_changes_its_rows() -> None:
    cache, foreign = (by.KVCache(block_size=4, device=60) for _ in range(2))
    leases = [begin(cache, text(name, 4)) for name in range(1, 6)]
    batch = cache.batch(leases[0])
    batch.add(leases[1:4])
    assert (len(batch), batch.leases, repr(batch)) == (4, leases[:4], "LeaseBatch(4 rows)")
    with pytest.raises(by.Misuse, match="twice"):
        batch.add([leases[4], leases[2]])
    with pytest.raises(by.ForeignLease, match="another cache"):
        batch.add(begin(foreign, text(1, 4)))
    for rows, said in (([4], "4 rows, counted from 0"), ([1, 1], "twice"), ([-1], r"rows\[0\]")):
        with pytest.raises(by.Misuse, match=said):
            batch.remove(rows)
    assert batch.leases == leases[:4]
    batch.remove([2, 0])
    batch.add(leases[4])
    assert batch.leases == [leases[1], leases[3], leases[4]]
    assert cache.decode_step(batch, [1, 2, 3], 4)[2] == 3
    assert [lease.appended for lease in leases] == [4, 5, 4, 5, 5]
    with pytest.raises(by.ForeignLease, match="the batch belongs to another cache"):
        foreign.grow(batch)
    with pytest.raises(by.ForeignLease, match="the batch belongs to another cache"):
        foreign.decode_step(batch, [1, 2, 3], 4)


def test_every_verb_takes_a_batch() -> None:
    cache, lists = (by.KVCache(block_size=4, device=60) for _ in range(2))
    leases = [begin(cache, text(name, 8)) for name in (1, 2)]
    others = [begin(lists, text(name, 8)) for name in (1, 2)]
    batch = cache.batch(leases)

    def all_of(cache: by.KVCache, rows: Any) -> list[Any]:
        cache.append(rows, [1, 2])
        said = [cache.grow(rows, 5).tolist(), cache.seal(rows, [8, 7]), cache.dedup(rows)]
        cache.trim(rows, [11, 12])
        said += [cache.block_tables(rows).tolist(), cache.slot_mapping(rows, [8, 9]).tolist()]
        return said

    assert all_of(cache, batch) == all_of(lists, others)
    cache.finish(leases[1])
    with pytest.raises(by.SpentLease, match=r"batch\[1\]"):
        cache.grow(batch)
    with pytest.raises(by.SpentLease, match="1 of 2 rows"):
        cache.finish(batch)
    assert [lease.state for lease in leases] == ["spent", "spent"]


def test_a_batch_holds_its_leases_as_a_list_does() -> None:
    cache = by.KVCache(block_size=4, device=60)
    batch = cache.batch(begin(cache, text(1, 4)))
    gc.collect()
    assert cache.stats()["leaked"] == 0
    batch.remove([0])
    assert (cache.stats()["leaked"], cache.stats()["leases"]) == (1, 0)
    batch.add(begin(cache, text(1, 4)))
    del batch
    assert cache.stats()["leaked"] == 2


def test_steps_of_several_threads_come_one_after_another() -> None:
    cache = by.KVCache(block_size=4, device=4000)
    leases = [begin(cache, text(name, 5)) for name in range(1, 9)]
    batch, times, failures = cache.batch(leases), 200, list[BaseException]()

    def work(tokens: NDArray[np.uint32]) -> None:
        try:
            for _ in range(times):
                cache.decode_step(batch, tokens, 4, grow=2, counts=2)
        except BaseException as failure:  # noqa: BLE001
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(np.full(16, at),)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert {lease.appended for lease in leases} == {5 + 4 * 2 * times}
    assert {lease.tokens for lease in leases} == {5 + 4 * 2 * times}
    assert cache.audit() is None
