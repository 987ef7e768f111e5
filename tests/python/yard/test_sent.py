"""Values that go from process to process: each comes back equal, or is refused with a reason."""

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.shared.layout import Hello
from blockyard.shared.plan import Unreported
from blockyard.shared.restored import Restored
from yard import begin, publish, text

LAYOUT = by.KVLayout.llama(layers=2, kv_heads=2, head_dim=8, block_size=4)


def make(**keywords: Any) -> by.KVCache:
    return by.KVCache(**{"block_size": 4, "device": 16, "host": 16, "ahead": 0} | keywords)


def keys_of(cache: by.KVCache, kind: str) -> by.Keys:
    match kind:
        case "none":
            return cache.keys([])
        case "partial":
            return cache.keys(text(1, 3))
        case "plain":
            return cache.keys(text(1, 10))
        case "apart":
            return cache.keys(text(1, 10), lora="a", salt=b"secret", media=[(3, 9, "id")])
        case "after":
            return cache.keys(text(2, 7), after=cache.keys(text(1, 10)))
        case _:
            return cache.ready_keys(b"k" * 32 + b"j" * 32, 9)


KINDS = ["none", "partial", "plain", "apart", "after", "ready"]


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", KINDS)
def test_keys_come_back_equal_and_go_on_alike(kind: str, protocol: int) -> None:
    cache, other = make(), make()
    keys = keys_of(cache, kind)
    back = pickle.loads(pickle.dumps(keys, protocol))
    assert (back, hash(back), back.tokens, bytes(back)) == (
        keys,
        hash(keys),
        keys.tokens,
        bytes(keys),
    )
    assert copy.deepcopy([keys]) == [keys]
    if kind != "ready":
        more = cache.keys(text(3, 9), after=keys), other.keys(text(3, 9), after=back)
        assert bytes(more[0]) == bytes(more[1])
        assert more[0] == more[1]
    if not keys.tokens:
        return
    # What is computed with one is found with the other.
    for home, first, second in ((cache, keys, back), (other, back, keys)):
        lease = begin(home, first)
        if kind != "ready":
            home.append(lease, text(4, 6))
        home.seal(lease, lease.tokens)
        home.finish(lease)
        assert home.probe(second).device == len(keys)
    assert cache.digest() == other.digest()


def test_keys_that_differ_in_anything_that_they_go_on_with_are_not_equal() -> None:
    cache = make()
    made = [keys_of(cache, kind) for kind in KINDS]
    made += [
        cache.keys(text(1, 2)),
        cache.keys(text(1, 11)),
        cache.keys([*text(1, 9), 7]),
        cache.keys(text(1, 10), salt="another"),
        make(key_hash="xxh3").keys(text(1, 10)),
        make(block_size=5).keys(text(1, 10)),
        make(block_size=8).keys(text(1, 3)),
        make(namespace={"model": "m"}).keys(text(1, 3)),
        cache.ready_keys(bytes(made[2]), 10),
    ]
    for at, one in enumerate(made):
        assert [at] == [n for n, other in enumerate(made) if other == one]
        assert one != "keys"


def test_keys_of_a_cache_that_is_heard_are_told_by_the_one_that_has_them() -> None:
    there, here = make(), make()
    there.listen()
    here.listen()
    back = pickle.loads(pickle.dumps(there.keys(text(1, 8), salt="s")))
    told = []
    for cache, keys in ((there, there.keys(text(1, 8), salt="s")), (here, back)):
        lease = begin(cache, keys)
        cache.seal(lease, 8)
        told.append(cache.take_events())
    assert told[0] == told[1]


def test_keys_come_back_in_another_process() -> None:
    keys = make().keys(text(1, 10), salt="s")
    program = (
        "import pickle, sys; keys = pickle.load(sys.stdin.buffer);"
        "sys.stdout.buffer.write(pickle.dumps(keys))"
    )
    said = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program], input=pickle.dumps(keys), capture_output=True, check=True
    )
    assert pickle.loads(said.stdout) == keys


def test_bytes_that_are_no_keys_are_refused() -> None:
    keys = keys_of(make(), "apart")
    _, (data,) = keys.__reduce__()
    for bad in [data[:at] for at in range(len(data))] + [data + b"\0", b"C0" + data[2:]]:
        with pytest.raises(by.Misuse, match=f"keys = {len(bad)} bytes: "):
            by.Keys(bad)
    # Those with C2 had keys of the first encoding.
    for other in (b"C9", b"C2"):
        with pytest.raises(by.Misuse, match="not keys of this version: run one version everywhere"):
            by.Keys(other + data[2:])
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 0xFF
        try:
            by.Keys(bytes(changed))
        except by.Misuse:
            continue
    with pytest.raises(TypeError):
        by.Keys("text")  # type: ignore[arg-type]


def answers() -> dict[str, object]:
    """One of each value that a cache gives."""
    cache = make()
    publish(cache, text(1, 12))
    plan = cache.demote(4)
    assert plan is not None
    keys = cache.keys(text(1, 12))
    with pytest.raises(by.TooLarge) as too_large:
        make(device=3).begin(text(1, 40))
    lease = begin(cache, text(2, 44))
    with pytest.raises(by.NoRoom) as no_room:
        cache.begin(text(3, 40))
    assert lease.state == "ready"
    rows = np.arange(2, dtype=np.uint32), np.ones((2, 32), np.uint8), np.zeros((2, 32), np.uint8)
    return {
        "plan": plan,
        "outcome": by.Outcome(plan.flight, 0, 2, by.Cause.CORRUPT, plan.yard),
        "unreported": Unreported(plan.yard, [plan.flight]),
        "hello": Hello(0, "f", 3, 4, "l", 5, 6),
        "probe": cache.probe(keys),
        "probe, filling": by.Probe(1, 2, 3, 4, "filling", 7, None),
        "probe, evicted": by.Probe(0, 0, 0, 0, "missing", None, evicted=True),
        "soon": by.Soon(plan.flight),
        "room": cache.room(),
        "need": cache.dry_run(text(1, 40)),
        "violation": by.Violation("INV-1", "found 2", "host", 3, "00" * 32),
        "violation of no slot": by.Violation("INV-2", "found 1", None, None, None),
        "config": by.Config(layout=LAYOUT, device=8, namespace={"model": "m"}, deadline=4),
        "layout": LAYOUT,
        "explanation": cache.explain(text(1, 12)),
        "explanation of NoRoom": cache.explain(no_room.value),
        "stats": cache.stats(),
        "schema": by.KVCache.schema(),
        "restored": Restored(*rows, np.arange(2, dtype=np.uint64), 3, (0, 2)),
        "no room": no_room.value,
        "too large": too_large.value,
        "holders": cache.holders(),
    }


def plain(value: Any) -> Any:
    """What can be compared."""
    if isinstance(value, Exception):
        return type(value), value.args, value.__dict__
    if isinstance(value, Restored):
        return [getattr(value, name).tolist() for name in ("slots", "keys", "stamps")], value.share
    return value


@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
@pytest.mark.parametrize("name", sorted(answers()))
def test_what_a_cache_answers_can_be_sent(name: str, protocol: int) -> None:
    value = answers()[name]
    back = pickle.loads(pickle.dumps(value, protocol))
    assert type(back) is type(value)
    assert plain(back) == plain(value)
    assert repr(back) == repr(value)
    assert plain(copy.deepcopy(value)) == plain(value)


@pytest.mark.parametrize(
    ("make_it", "says"),
    [
        (
            lambda: by.Probe(0, 0, 0, 0, "banana", None, None),
            'stop = "banana": must be one of whole',
        ),
        (lambda: by.Violation("INV-1", "x", "tape", 0, None), "tape"),
    ],
)
def test_a_word_that_no_answer_has_is_refused(make_it: Callable[[], object], says: str) -> None:
    with pytest.raises(by.Misuse, match=says):
        make_it()


def test_what_holds_something_is_not_sent_and_says_so() -> None:
    cache = make()
    lease = begin(cache, text(1, 8))
    parked = cache.park(begin(cache, text(2, 8)), 8)
    ticket = cache.promise(1)
    for one in (cache, lease, parked, ticket):
        for send in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=f"cannot.*{type(one).__name__}"):
                send(one)
