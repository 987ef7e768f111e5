"""Keys: made as docs/keys.md says, the same however tokens arrive, and never shared by chance."""

import hashlib
import re
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

import blockyard as by
import key_reference
from key_reference import IV, states
from yard import array, begin, profile, publish, text

Media = list[tuple[int, int, bytes]]
NAMESPACE = {
    "model": "llama",
    "weights": "1",
    "dtype": "bfloat16",
    "layout": "hnd",
    "parallel": "tp1",
}
EXTRA = st.one_of(st.none(), st.binary(max_size=40))


@st.composite
def items(draw: st.DrawFn) -> Media:
    cuts = sorted(draw(st.lists(st.integers(0, 60), max_size=8, unique=True)))
    ids = draw(st.lists(st.binary(max_size=12), min_size=4, max_size=4))
    return [(cuts[at], cuts[at + 1], ids[at // 2]) for at in range(0, len(cuts) - 1, 2)]


TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=70)
FIELDS = ("model", "weights", "dtype", "layout", "parallel")


@profile(60)
@given(
    TOKENS,
    st.one_of(st.integers(1, 20), st.sampled_from([8, 16, 17, 32, 33, 64])),
    st.lists(st.text(max_size=9), min_size=5, max_size=5),
    EXTRA,
    EXTRA,
    items(),
)
def test_keys_are_those_of_another_implementation(
    tokens: list[int],
    size: int,
    fields: list[str],
    lora: bytes | None,
    salt: bytes | None,
    media: Media,
) -> None:
    namespace = dict(zip(FIELDS, fields, strict=True))
    cache = by.KVCache(block_size=size, device=8, namespace=namespace)
    media = [item for item in media if item[1] <= len(tokens)]
    keys = cache.keys(tokens, lora=lora, salt=salt, media=media)
    expected = key_reference.keys(tokens, size, fields, lora=lora, salt=salt, media=media)
    assert keys.hex() == [key.hex() for key in expected]
    assert (len(keys), keys.tokens) == (len(tokens) // size, len(tokens))
    assert bytes(keys) == b"".join(expected)


def test_the_compression_function_is_that_of_sha_256() -> None:
    for length in (0, 1, 55, 56, 63, 64, 119, 120, 500):
        message = bytes(range(256))[:length] + bytes(max(length - 256, 0))
        padded = message + b"\x80" + bytes(-(length + 9) % 64) + (8 * length).to_bytes(8)
        assert states(struct.pack(">8I", *IV), padded) == hashlib.sha256(message).digest()


def test_the_document_holds_what_it_shows() -> None:
    document = (Path(__file__).parents[3] / "docs/keys.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", document, re.DOTALL)
    shown: dict[str, Any] = {}
    exec(code, shown)  # noqa: S102
    root = shown["root"](NAMESPACE.values(), 0, 0, 16)
    (key,) = shown["keys"](root, list(range(16)), [], 0, 0, 16)
    assert key.hex() == by.KVCache(device=8, namespace=NAMESPACE).keys(range(16)).hex()[0]
    for made in (root, key):
        assert f"`{made.hex()[:16]}…`" in document
    # The rest of it: extras, a block size that zeros fill up.
    apart: dict[str, Any] = {"lora": b"a", "salt": b"b", "media": [(3, 9, b"image")]}
    for size in (1, 5, 16, 17):
        root = shown["root"](NAMESPACE.values(), 0, 0, size)
        root = shown["sequence_root"](root, b"a", b"b", 0, 0, size)
        made = shown["keys"](root, list(range(40)), apart["media"], 0, 0, size)
        cache = by.KVCache(device=64, block_size=size, namespace=NAMESPACE)
        assert [key.hex() for key in made] == cache.keys(range(40), **apart).hex()


def words(content: bytes) -> list[int]:
    """The tokens whose block would be hashed as this."""
    return [*struct.unpack(f"<{len(content) // 4}I", content)]


def test_no_tokens_pose_as_media_or_as_the_start_of_a_sequence() -> None:
    cache = by.KVCache(device=64, namespace=NAMESPACE)
    tokens, media = list(range(16)), [(3, 9, b"image")]
    (seen,) = cache.keys(tokens, media=media).hex()
    # What a block with media is hashed as, to the last byte, as the tokens of blocks.
    root = key_reference.root_of(16, list(NAMESPACE.values()))
    start = key_reference.start_of(root, 16)
    message = key_reference.message_of(start, tokens, media, 0)
    padded = message + b"\x80" + bytes(-(len(message) + 9) % 64) + (8 * len(message)).to_bytes(8)
    assert seen == hashlib.sha256(message).hexdigest()
    assert seen == states(struct.pack(">8I", *IV), padded).hex()
    assert seen not in cache.keys([*words(padded), *tokens]).hex()
    # The first piece of another sequence, whose first block follows.
    other = key_reference.root_of(16, list(NAMESPACE.values()), salt=b"tenant")
    first = key_reference.header(16, 4, 0) + other + bytes(16)
    salted = cache.keys(tokens, salt=b"tenant").hex()
    assert not {*salted} & {*cache.keys([*words(first), *tokens]).hex()}


@profile(100)
@given(TOKENS, st.integers(1, 9), st.lists(st.integers(0, 70), max_size=6), items())
def test_tokens_that_arrive_in_pieces_give_the_same_keys(
    tokens: list[int], size: int, cuts: list[int], media: Media
) -> None:
    tokens = [*tokens, 7]
    media = [item for item in media if item[1] <= len(tokens)]
    # Media are of the prompt; what comes behind it is sampled.
    first = media[-1][1] if media else 1
    ends = sorted({first, *(min(max(cut, first), len(tokens)) for cut in cuts), len(tokens)})
    cache = by.KVCache(block_size=size, device=80, null_slots=0)
    lease = begin(cache, tokens[:first], media=media, salt="s")
    for start, end in pairwise(ends):
        cache.append(lease, tokens[start:end])
        cache.grow(lease, end - start)
    cache.seal(lease, len(tokens))
    found = cache.probe(cache.keys(tokens, media=media, salt="s"))
    assert (found.device, found.stop) == (len(tokens) // size, "whole")
    cache.finish(lease)


def test_text_is_its_utf8_bytes_and_empty_is_not_missing() -> None:
    cache = by.KVCache(block_size=4, device=8)
    prompt = text(1, 8)
    assert cache.keys(prompt, salt="sälz").hex() == cache.keys(prompt, salt="sälz".encode()).hex()
    made = [
        cache.keys(prompt).hex()[0],
        cache.keys(prompt, salt="").hex()[0],
        cache.keys(prompt, lora="").hex()[0],
        cache.keys(prompt, lora="", salt="").hex()[0],
        cache.keys(prompt, lora="ab").hex()[0],
        cache.keys(prompt, lora="a", salt="b").hex()[0],
        cache.keys(prompt, salt="ab").hex()[0],
    ]
    assert len(set(made)) == len(made)


class Tokens(list[int]):
    """A list of a class of its own, which says itself what is in it."""

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(range(12))


def test_any_array_or_sequence_of_the_same_tokens_gives_the_same_keys() -> None:
    cache = by.KVCache(block_size=4, device=8)
    expected = cache.keys(range(12)).hex()
    whole = np.arange(24, dtype=np.int64)
    whole[::2] = np.arange(12)
    arrays: list[Any] = [np.arange(12, dtype=kind) for kind in ("i2", "u2", "i4", "u4", "i8", "u8")]
    lists: list[Any] = [list(range(12)), tuple(range(12)), iter(range(12)), Tokens([9])]
    lists += [list(one) for one in arrays]
    lists.append([0, 1, np.uint32(2), 3, np.int64(4), Word(5), 6, *range(7, 12)])
    for tokens in (*arrays, whole[::2], memoryview(arrays[2]), *lists):
        assert cache.keys(tokens).hex() == expected
    assert cache.keys(np.arange(12)[::-1]).hex() == cache.keys(range(11, -1, -1)).hex()


class Word(int):
    """An int of a class of its own."""


class Runs:
    """A token that runs code to say its value."""

    def __init__(self, run: Callable[[], object], value: int = 2) -> None:
        self.run, self.value = run, value

    def __index__(self) -> int:
        self.run()
        return self.value


def test_a_list_that_changes_while_it_is_read_gives_what_its_iterator_would() -> None:
    cache = by.KVCache(block_size=1, device=8)
    gone: list[Any] = [1]
    gone += [Runs(gone.clear), 3, 4]
    assert cache.keys(gone).hex() == cache.keys([1, 2]).hex()
    assert gone == []
    grown: list[Any] = []
    grown += [1, Runs(lambda: grown.extend(range(3, 100)))]
    assert cache.keys(grown).hex() == cache.keys(range(1, 100)).hex()
    moved: list[Any] = []
    moved += [1, Runs(lambda: moved.append("x"), 2)]
    with pytest.raises(by.Misuse, match=r"tokens\[2\] = x: must be an integer"):
        cache.keys(moved)


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_or_tuple_is_read_where_it_is(kind: Any) -> None:
    """A copy of one that is too long would need memory before it is refused."""
    cache, tokens = by.KVCache(block_size=4, device=8), kind(range(10_000))
    tracemalloc.start()
    try:
        cache.keys(tokens)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(tokens)
    finally:
        tracemalloc.stop()


def stops() -> None:
    raise KeyboardInterrupt


def test_what_a_token_raises_ends_the_call() -> None:
    cache = by.KVCache(block_size=1, device=8)
    both: list[Any] = [1, Runs(stops)]
    for tokens in (both, tuple(both), iter(both)):
        with pytest.raises(KeyboardInterrupt):
            cache.keys(tokens)
    both[1] = Runs(lambda: 1 / 0)
    with pytest.raises(by.Misuse, match=r"tokens\[1\] = .*must be an integer from 0 to 4294967295"):
        cache.keys(both)


BAD: list[Any] = [-1, 2**32, 2**63, 2**64, -(2**63) - 1, True, np.True_, np.int64(-1)]
BAD += [1.0, "1", None]


@pytest.mark.parametrize("bad", BAD, ids=map(str, range(len(BAD))))
@pytest.mark.parametrize("kind", [list, tuple, iter], ids=["list", "tuple", "iterator"])
def test_what_is_no_token_is_named_wherever_it_stands(kind: Any, bad: Any) -> None:
    cache = by.KVCache(block_size=4, device=8)
    says = re.escape(f"tokens[40] = {bad}: must be an integer from 0 to 4294967295")
    with pytest.raises(by.Misuse, match=says):
        cache.keys(kind([*range(40), bad, -7]))
    lease = begin(cache, [1, 2, 3])
    with pytest.raises(by.Misuse, match=says):
        cache.append(lease, kind([*range(40), bad]))
    with pytest.raises(by.Misuse, match=says):
        cache.begin(kind([*range(40), bad]))
    assert lease.appended == 3
    cache.finish(lease)


def test_the_callers_array_is_neither_kept_nor_changed() -> None:
    cache = by.KVCache(block_size=4, device=32, host=8)
    prompt = array(text(1, 10))
    before = prompt.copy()
    keys = cache.keys(prompt)
    lease = begin(cache, prompt)
    sampled = array([1, 2])
    cache.append(lease, sampled)
    prompt[:] = 0
    sampled[:] = 9
    cache.grow(lease, 2)
    cache.seal(lease, 12)
    assert cache.probe([*before.tolist(), 1, 2]).device == 3
    assert keys.hex() == cache.keys(before).hex()
    prompt[:] = before
    for _ in range(3):
        parked = cache.park(lease, lease.appended)
        again = cache.begin(parked)
        assert isinstance(again, by.Lease)
        lease = again
        cache.append(lease, prompt[:3])
        cache.grow(lease, 3)
    assert (prompt == before).all()
    cache.finish(lease)


@pytest.mark.parametrize("eviction", ["recency", "heap"])
def test_another_tenant_adapter_or_image_never_hits(eviction: Any) -> None:
    cache = by.KVCache(block_size=4, device=64, eviction=eviction)
    prompt = text(1, 13)
    own: dict[str, Any] = {"salt": "a", "lora": "b", "media": [(2, 6, "c")]}
    publish(cache, prompt, **own)
    assert begin(cache, prompt, **own).cached == 12
    for other in (
        {},
        {"salt": "x"},
        {"lora": "x"},
        {"salt": None},
        {"lora": None},
        {"salt": "b", "lora": "a"},
        {"media": None},
        {"media": [(2, 6, "x")]},
        {"media": [(2, 7, "c")]},
        {"media": [(1, 6, "c")]},
    ):
        apart: dict[str, Any] = own | other if other else {}
        lease = begin(cache, prompt, **apart)
        assert (lease.cached, lease.hits, lease.stop) == (0, (0, 0, 0, 0), "missing"), other
        assert cache.probe(cache.keys(prompt, **apart)).device == 0


def test_media_change_the_keys_from_their_block_on() -> None:
    cache = by.KVCache(block_size=4, device=64)
    prompt = text(1, 16)
    plain, seen = cache.keys(prompt), cache.keys(prompt, media=[(6, 9, "image")])
    assert plain.hex()[0] == seen.hex()[0]
    assert not set(plain.hex()[1:]) & set(seen.hex())
    adjacent = cache.keys(prompt, media=[(4, 8, "image")])
    assert adjacent.hex()[0] == plain.hex()[0]


def test_another_namespace_or_block_size_never_hits() -> None:
    made = [
        by.KVCache(device=8, namespace=namespace).keys(range(16)).hex()[0]
        for namespace in (None, {"model": "a"}, {"weights": "a"}, {"model": "a", "weights": "a"})
    ]
    made.append(by.KVCache(device=8, block_size=8).keys(range(16)).hex()[0])
    made.append(by.KVCache(device=8, key_hash="xxh3").keys(range(16)).hex()[0])
    assert len(set(made)) == len(made)
    assert by.KVCache(device=8, namespace={}).keys(range(16)).hex()[0] == made[0]


def test_ready_keys_come_as_a_buffer_bytes_a_list_or_hex() -> None:
    cache = by.KVCache(block_size=4, device=32)
    own = cache.keys(text(1, 14))
    whole = bytes(own)
    parts = [whole[at : at + 32] for at in range(0, 96, 32)]
    publish(cache, text(1, 14))
    as_array = np.frombuffer(whole, np.uint8)
    forms: list[Any] = [
        whole,
        bytearray(whole),
        memoryview(whole),
        as_array,
        as_array.reshape(3, 32),
    ]
    forms += [parts, tuple(parts), own.hex(), [text.upper() for text in own.hex()]]
    for form in forms:
        keys = cache.ready_keys(form, 14)
        assert bytes(keys) == whole
        assert (len(keys), keys.tokens) == (3, 14)
        assert cache.probe(keys).device == 3
    assert begin(cache, cache.ready_keys(parts, 14)).cached == 12


def test_a_sequence_with_ready_keys_goes_on_with_ready_keys() -> None:
    cache = by.KVCache(block_size=4, device=32)
    lease = begin(cache, cache.ready_keys([b"a" * 32], 5))
    with pytest.raises(by.Misuse, match="ready"):
        cache.append(lease, [1])
    with pytest.raises(by.Misuse, match="0 keys for 1"):
        cache.append_ready(lease, 3, [])
    cache.append_ready(lease, 2, [])
    cache.append_ready(lease, 6, [b"b" * 32, b"c" * 32])
    cache.grow(lease, 8)
    assert cache.seal(lease, 13) == 3
    assert cache.probe(cache.ready_keys([b"a" * 32, b"b" * 32, b"c" * 32], 12)).device == 3
    other = begin(cache, cache.ready_keys([b"b" * 32], 5))
    assert (other.cached, other.stop) == (0, "contradiction"), "b stood behind a"
