"""Blocks that are held for other engines, through the binding."""

import gc
import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest

import blockyard as by
from blockyard._core import Cache, HeldBlocks
from yard import begin, publish, text, unchanged

pytestmark = pytest.mark.law("INV-36a", "INV-36b")


def held_of(cache: by.KVCache, tokens: list[int], blocks: int | None = None) -> HeldBlocks:
    held = cache.hold(cache.keys(tokens), blocks)
    assert held is not None
    return held


def test_what_is_held_says_where_it_is_and_stays_there() -> None:
    cache = by.KVCache(block_size=4, device=9)
    publish(cache, text(1, 12))
    keys = cache.keys(text(1, 14))
    held = cache.hold(keys)
    assert held is not None
    assert (held.blocks, held.is_held, held.cache) == (3, True, cache)
    assert held.slots.dtype == np.uint32
    assert held.slots.tolist() == [1, 2, 3]
    assert held.generations.dtype == np.uint64
    assert held.generations.tolist() == [cache.boot << 32 | 1] * 3
    assert bytes(held.keys) == bytes(keys)
    assert (held.keys.shape, held.parents.shape) == ((3, 32), (3, 32))
    assert (held.parents[1:] == held.keys[:2]).all()
    assert not held.parents[0].any()
    assert repr(held) == f"HeldBlocks(id={held.id}, blocks=3, is_held=True)"
    assert cache.holders() == [("hold", held.id, 3, 0, 3, (0, 0, 0))]
    assert (cache.stats()["held_blocks"], cache.room().evictable) == (3, 0)
    with pytest.raises(by.NoRoom) as refused:
        cache.begin(text(2, 24))
    assert f"The end of hold {held.id} would make room." in str(cache.explain(refused.value))
    held.release()
    held.release()
    assert (held.is_held, cache.stats()["held_blocks"], cache.stats()["leaked"]) == (False, 0, 0)
    publish(cache, text(2, 24))
    assert held_of(cache, text(2, 24)).generations.max() == cache.boot << 32 | 2
    assert cache.audit() is None


def test_a_running_sequence_is_held_by_its_lease_as_far_as_it_is_sealed() -> None:
    cache = by.KVCache(block_size=4, device=9)
    lease = begin(cache, text(1, 15))
    assert cache.hold(lease) is None, "nothing is sealed"
    cache.seal(lease, 9)
    held, first = cache.hold(lease), cache.hold(lease, 1)
    assert held is not None
    assert first is not None
    assert (held.blocks, first.blocks, cache.hold(lease, 0)) == (2, 1, None)
    cache.finish(lease)
    assert cache.stats()["device_pinned"] == 2
    with pytest.raises(by.SpentLease):
        cache.hold(lease)
    with pytest.raises(by.ForeignLease):
        by.KVCache(block_size=4, device=9).hold(begin(cache, text(3, 5)))


@pytest.mark.parametrize(
    "end",
    [
        lambda cache: cache.clear(),
        lambda cache: cache.update_weights(),
        lambda cache: cache.reset(0),
        lambda cache: cache.forget(cache.keys(text(1, 12))),
    ],
)
def test_a_verb_that_drops_the_blocks_ends_the_hold(end: Callable[[by.KVCache], object]) -> None:
    cache = by.KVCache(block_size=4, device=9)
    publish(cache, text(1, 12))
    held = held_of(cache, text(1, 12))
    end(cache)
    assert (held.is_held, cache.stats()["held_blocks"]) == (False, 0)
    held.release()
    del held
    gc.collect()
    assert (cache.stats()["leaked"], cache.audit()) == (0, None)


def test_names_in_stores_are_forgotten_and_no_hold_ends() -> None:
    cache = by.KVCache(block_size=4, device=9, remote=8, keyed=("remote",))
    publish(cache, text(1, 8))
    held = held_of(cache, text(1, 8))
    cache.forget(cache.keys(text(1, 8)), tier="remote")
    assert held.is_held


def test_a_hold_that_is_dropped_ends_with_the_next_verb_and_is_counted() -> None:
    cache = by.KVCache(block_size=4, device=9)
    publish(cache, text(1, 8))
    held_of(cache, text(1, 8))
    gc.collect()
    assert (cache.stats()["leaked"], cache.stats()["held_blocks"]) == (1, 0)


@pytest.mark.parametrize("boots", [(7, 8), (None, None)])
def test_two_caches_have_no_generation_in_common(boots: tuple[int | None, int | None]) -> None:
    seen = []
    for boot in boots:
        cache = Cache(block_size=4, device=9, boot=boot)
        lease = cache.begin(text(1, 8))
        assert isinstance(lease, by.Lease)
        cache.seal(lease, 8)
        held = cache.hold(lease)
        assert held is not None
        assert boot in (None, cache.boot)
        seen.append((set(held.generations.tolist()), cache.digest()))
    (one, first), (other, second) = seen
    assert one.isdisjoint(other)
    assert first == second, "the boot decides nothing"


def test_children_of_one_process_draw_other_boots() -> None:
    code = (
        "import os, blockyard as by\n"
        "drawn = []\n"
        "for _ in range(2):\n"
        "    out, into = os.pipe()\n"
        "    if os.fork() == 0:\n"
        "        os.write(into, str(by.KVCache(device=3).boot).encode())\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
        "    drawn.append(os.read(out, 20))\n"
        "print(len(set(drawn)))\n"
    )
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    assert run.stdout.split() == ["2"], run.stderr


def test_bad_values_are_refused_and_named() -> None:
    cache = by.KVCache(block_size=4, device=9)
    publish(cache, text(1, 8))
    before = unchanged(cache.stats())
    with pytest.raises(by.Misuse, match="boot = 0"):
        Cache(device=4, boot=0)
    with pytest.raises(by.Misuse, match="blocks = -1"):
        cache.hold(cache.keys(text(1, 8)), -1)
    with pytest.raises(by.Misuse, match="blocks of 8"):
        cache.hold(by.KVCache(block_size=8, device=9).keys(text(1, 8)))
    with pytest.raises(TypeError, match="Keys"):
        cache.hold(text(1, 8))  # type: ignore[arg-type]
    assert unchanged(cache.stats()) == before
    cache._close()
    with pytest.raises(by.Misuse, match="closed"):
        cache.hold(cache.keys(text(1, 8)))


def test_a_hold_of_a_closed_cache_can_be_released() -> None:
    cache = by.KVCache(block_size=4, device=9)
    publish(cache, text(1, 8))
    held = held_of(cache, text(1, 8))
    cache._close()
    held.release()
    assert not held.is_held


def test_other_threads_release_and_ask_while_verbs_run() -> None:
    cache = by.KVCache(block_size=4, device=33)
    publish(cache, text(1, 64))
    holds = [held_of(cache, text(1, 64)) for _ in range(64)]

    def work(own: list[HeldBlocks]) -> None:
        for held in own:
            assert held.is_held
            held.release()
            assert not held.is_held

    threads = [threading.Thread(target=work, args=(holds[at::4],)) for at in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert cache.audit() is None
    for thread in threads:
        thread.join()
    assert cache.stats()["held_blocks"] == 0
    assert held_of(cache, text(1, 64)).generations.tolist() == [cache.boot << 32 | 2] * 16


def offloaded(cache: by.KVCache, tokens: list[int], ids: list[int]) -> by.Keys:
    """Copies the blocks of an engine to the host."""
    keys = cache.keys(tokens)
    cache.offload(keys, ids)
    for plan in cache.dispatch():
        cache.commit([by.Outcome.of(plan, 0, len(plan))])
    return keys


def test_of_an_engine_blocks_on_the_host_are_held() -> None:
    cache = by.KVCache(block_size=4, engine=9, host=4)
    keys = cache.keys(text(1, 12))
    assert cache.hold(keys) is None, "nothing is below"
    offloaded(cache, text(1, 12), [3, 1, 2])
    held = cache.hold(keys)
    assert held is not None
    assert (held.blocks, held.is_held, cache.stats()["held_blocks"]) == (3, True, 3)
    assert bytes(held.keys) == bytes(keys)
    assert cache.holders() == [("hold", held.id, 0, 0, 0, (3, 0, 0))]
    # Held blocks are evicted by nothing: of three more one has room.
    offloaded(cache, text(2, 12), [4, 5, 6])
    assert cache.find(keys).host == 3
    assert cache.find(cache.keys(text(2, 12))).host == 1
    before = held.generations.tolist()
    held.release()
    assert (held.generations_now > before).all()
    assert cache.audit() is None
    offloaded(cache, text(3, 12), [4, 5, 6])
    assert cache.find(cache.keys(text(3, 12))).host == 3
    assert cache.audit() is None


@pytest.mark.parametrize(
    "end",
    [
        lambda cache, _: cache.clear(),
        lambda cache, _: cache.reset(0),
        lambda cache, keys: cache.forget(keys),
    ],
)
def test_a_verb_that_drops_what_the_host_has_ends_the_hold(end: Callable[..., object]) -> None:
    cache = by.KVCache(block_size=4, engine=9, host=9)
    keys = offloaded(cache, text(1, 12), [3, 1, 2])
    held = cache.hold(keys)
    assert held is not None
    end(cache, keys)
    assert not held.is_held
    assert (held.generations_now > held.generations).all()
    assert (cache.stats()["held_blocks"], cache.audit()) == (0, None)


def test_a_held_block_on_the_host_that_is_found_corrupt_ends_its_holds_alone() -> None:
    cache = by.KVCache(block_size=4, engine=9, host=9)
    keys = offloaded(cache, text(1, 12), [3, 1, 2])
    other = offloaded(cache, text(2, 8), [4, 5])
    held, first, others = cache.hold(keys), cache.hold(keys, 1), cache.hold(other)
    assert held is not None
    assert first is not None
    assert others is not None
    plans = cache.fetch(keys, [6, 7, 8])
    assert isinstance(plans, list)
    cache.dispatch()
    for plan in plans:
        cache.commit([by.Outcome.of(plan, 0, 1, by.Cause.CORRUPT)])
    assert (held.is_held, first.is_held, others.is_held) == (False, True, True)
    assert (cache.stats()["held_blocks"], cache.audit()) == (3, None)
    assert cache.find(keys).host == 1
