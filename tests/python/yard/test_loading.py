"""What a lease holds is not told while it is on its way: the model reads its own bytes alone."""

import re
from collections.abc import Callable
from random import Random
from typing import Any, Literal

import numpy as np
import pytest

import blockyard as by
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.tiers import planes_of
from blockyard.local_cache import LocalCache
from blockyard.testing import ScriptedCopier, delay, fail
from yard import at_rest, begin, publish, publish_below, text

SIZE = 4
LAYOUT = by.KVLayout.llama(layers=1, kv_heads=1, head_dim=8, block_size=SIZE)


def local(device: int, host: int = 64, copier: Any = None) -> LocalCache:
    # Without threads a copy is made by the step that hands it out, and reported by the next one.
    copier = copier or ThreadCopier(workers=0)
    return by.local(LAYOUT, device=device, host=host, copier=copier, ahead=8)


class Model:
    """Writes for each token what follows from the prompt up to there, and checks what it reads."""

    def __init__(self, cache: LocalCache) -> None:
        (plane,) = planes_of(cache.crane.device)
        self.kv = plane.reshape(len(plane), SIZE, -1)
        self.read = self.wrong = 0

    def run(self, table: Any, prompt: list[int], cached: int) -> None:
        for at in range(len(prompt)):
            cell = self.kv[table[at // SIZE], at % SIZE]
            if at < cached:
                self.read += 1
                self.wrong += bool((cell != self.mark(prompt, at)).any())
            cell[:] = self.mark(prompt, at)

    @staticmethod
    def mark(prompt: list[int], at: int) -> int:
        return hash(tuple(prompt[: at + 1])) % 251 + 1


def wait(cache: LocalCache, lease: by.Lease) -> None:
    while lease.state == "loading":
        cache.step()


@pytest.mark.parametrize("host", [64, 0])
@pytest.mark.parametrize("waits", ["never", "behind the model", "before the model"])
def test_in_any_order_of_the_verbs_the_model_reads_its_own_bytes(waits: str, host: int) -> None:
    chance = Random(5)
    prompts = [text(name, chance.choice((24, 26, 32, 33))) for name in range(8)]
    # Without a host only a prompt that is found whole loads: the private copy of its last block.
    device = 33 if host else 80
    refused = 0
    with local(device, host) as cache:
        model = Model(cache)
        for _ in range(120):
            prompt = chance.choice(prompts)
            try:
                lease = begin(cache, prompt)
            except by.NoRoom:  # slots of leases that ended while they loaded
                cache.step()
                continue
            if waits == "before the model":
                wait(cache, lease)
            try:
                (table,) = cache.block_tables(lease)
            except by.Misuse:
                refused += 1
                wait(cache, lease)
                (table,) = cache.block_tables(lease)
            model.run(table, prompt, lease.cached)
            if waits == "behind the model":
                wait(cache, lease)
            cache.seal(lease, computed=len(prompt))
            cache.finish(lease)
            cache.step()
        assert (model.wrong, cache.audit()) == (0, None)
        assert model.read > 500
        assert bool(refused) == (waits != "before the model")
        assert (cache.stats()["host_hits"] > 0) == bool(host)


Ask = Callable[[by.KVCache, Any, Any, Literal["refuse", "joined"]], Any]
ASKS: list[tuple[str, Ask]] = [
    ("all", lambda c, batch, out, how: c.block_tables(batch, out, loading=how)),
    (
        "changed",
        lambda c, batch, out, how: c.block_tables(batch, out, cells="changed", loading=how),
    ),
    (
        "mapping",
        lambda c, batch, out, how: c.slot_mapping(batch, 0, 1, out.ravel(), loading=how),
    ),
]


@pytest.mark.parametrize("columns", [4, 9000], ids=["short", "without the GIL"])
@pytest.mark.parametrize("ask", [pytest.param(ask, id=name) for name, ask in ASKS])
def test_one_row_that_loads_refuses_the_batch_and_nothing_is_written(
    ask: Ask, columns: int
) -> None:
    cache = by.KVCache(block_size=SIZE, device=33, null_slots=1)
    publish(cache, text(1, 12))
    lease, loads = begin(cache, text(2, 9)), begin(cache, text(1, 12))
    mapped = ask is ASKS[2][1]
    out = np.full((2, columns), 77, np.int64 if mapped else np.int32)
    says = rf"row 1 is lease {loads.id}, which is loading.*cache\.step\(\).*joined.*join\(\)"
    for _ in range(2):
        with pytest.raises(by.Misuse, match=says):
            ask(cache, [lease, loads], out, "refuse")
        assert (out == 77).all()
    cache.commit(loads.plans)
    assert ask(cache, [lease, loads], out, "refuse") >= 2, "nothing counts as shown"
    if not mapped:
        assert out[:, :3].tolist() == cache.block_tables([lease, loads]).tolist()


def test_who_joins_the_copies_is_told_and_others_are_not() -> None:
    cache = by.KVCache(block_size=SIZE, device=33)
    publish(cache, text(1, 12))
    loads = begin(cache, text(1, 12))
    row = np.zeros((1, 8), np.int32)
    assert cache.block_tables(loads, row, cells="changed", loading="joined") == 3
    joined = cache.block_tables(loads, loading="joined").tolist()
    places = cache.slot_mapping(loads, [11], loading="joined").tolist()
    assert row[:, :3].tolist() == joined
    for act in (
        lambda: cache.block_tables(loads),
        lambda: cache.block_tables(loads, row, cells="changed"),
        lambda: cache.slot_mapping(loads, [11]),
    ):
        with pytest.raises(by.Misuse, match="row 0"):
            act()
    cache.commit(loads.plans)
    assert cache.block_tables(loads).tolist() == joined
    assert cache.slot_mapping(loads, [11]).tolist() == places == [joined[0][2] * SIZE + 3]
    assert cache.block_tables(loads, row, cells="changed") == 0
    cache.finish(loads)
    at_rest(cache)


@pytest.mark.parametrize("word", ["join", "", "Refuse"])
def test_another_word_is_refused_and_the_right_ones_are_named(word: Any) -> None:
    cache = by.KVCache(block_size=SIZE, device=33)
    lease = begin(cache, text(1, 9))
    says = re.escape(f'loading = "{word}"') + '.*"refuse", "joined"'
    with pytest.raises(by.Misuse, match=says):
        cache.block_tables(lease, loading=word)
    with pytest.raises(by.Misuse, match=says):
        cache.slot_mapping(lease, 0, loading=word)


def test_a_fork_is_told_when_its_partial_block_has_come_and_its_parent_at_once() -> None:
    prompt = text(1, 10)
    with local(33) as cache:
        model = Model(cache)
        parent = begin(cache, prompt)
        model.run(cache.block_tables(parent)[0], prompt, 0)
        child = cache.fork(parent, 10)
        with pytest.raises(by.Misuse, match=rf"row 1 is lease {child.id}"):
            cache.block_tables([parent, child])
        with pytest.raises(by.Misuse, match=f"forking lease {child.id}"):
            cache.fork(child, 10)
        assert cache.block_tables(parent).shape == (1, 3)
        wait(cache, child)
        model.run(cache.block_tables(child)[0], prompt, child.cached)
        assert (model.read, model.wrong) == (10, 0)
        shared = cache.fork(parent, 8)
        assert shared.state == "ready", "at a block's border nothing is copied"
        assert cache.block_tables(shared).shape == (1, 3)


def test_a_sequence_that_resumes_is_told_when_its_blocks_are_back() -> None:
    prompt = text(1, 22)
    with local(9) as cache:
        model = Model(cache)
        lease = begin(cache, prompt)
        model.run(cache.block_tables(lease)[0], prompt, 0)
        parked = cache.park(lease, 22)
        assert cache.demote(6, of=parked) is not None
        while parked.moving:
            cache.step()
        other = begin(cache, text(2, 32))
        model.run(cache.block_tables(other)[0], text(2, 32), 0)
        cache.finish(other)
        lease = begin(cache, parked)
        assert (lease.state, lease.cached) == ("loading", 22)
        for act in (cache.block_tables, lambda row: cache.slot_mapping(row, 21)):
            with pytest.raises(by.Misuse, match=f"lease {lease.id}, which is loading"):
                act(lease)
        wait(cache, lease)
        model.run(cache.block_tables(lease)[0], prompt, lease.cached)
        assert (model.read, model.wrong) == (22, 0)


def test_one_that_loads_grows_and_is_neither_sealed_cut_forked_nor_parked() -> None:
    cache = by.KVCache(block_size=SIZE, device=33, host=32)
    publish_below(cache, text(1, 12))
    lease = begin(cache, [*text(1, 12), 5])
    assert lease.state == "loading"
    cache.append(lease, range(6))
    assert len(cache.grow(lease, 6)) == 0, "it asks for slots, and is told none"
    for act in (
        lambda: cache.seal(lease, 12),
        lambda: cache.trim(lease, 13),
        lambda: cache.fork(lease, 12),
        lambda: cache.park(lease, 12),
        lambda: cache.block_tables(lease),
        lambda: cache.slot_mapping(lease, 13, 6),
    ):
        before = cache.digest()
        with pytest.raises(by.Misuse, match="loading"):
            act()
        assert cache.digest() == before
    cache.commit(lease.plans)
    assert cache.block_tables(lease).shape == (1, 5)
    assert len(cache.slot_mapping(lease, 13, 6)) == 6
    cache.finish(lease)
    at_rest(cache)


def test_of_a_load_that_fails_only_what_has_come_is_cached_when_it_is_told() -> None:
    prompt = text(1, 17)
    copier = ScriptedCopier(ThreadCopier(workers=0), [delay(0), fail(2)])
    with local(9, 32, copier) as cache:
        model = Model(cache)
        lease = begin(cache, prompt)
        model.run(cache.block_tables(lease)[0], prompt, 0)
        cache.seal(lease, 17)
        cache.finish(lease)
        cache.demote(8)
        while cache.step() or cache.stats()["flights"]:
            pass
        other = begin(cache, text(2, 32))
        model.run(cache.block_tables(other)[0], text(2, 32), 0)
        cache.finish(other)
        lease = begin(cache, prompt)
        assert (lease.state, lease.cached) == ("loading", 16)
        wait(cache, lease)
        assert lease.cached == 8
        model.run(cache.block_tables(lease)[0], prompt, lease.cached)
        assert (model.read, model.wrong) == (8, 0)
