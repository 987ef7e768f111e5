"""Groups of layers: which blocks each kind needs, and which groups fit together."""

import pickle
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

import blockyard as by
from blockyard.shared.groups import Group, Groups
from blockyard.shared.layout import Plane
from blockyard.shared.models import HYBRIDS

lengths = st.integers(0, 200)
sizes = st.integers(1, 20)
spans = st.integers(1, 80)


def layout(block_size: int = 4, ranks: int = 1) -> by.KVLayout:
    return by.KVLayout((Plane("kv", 1, 8),), block_size=block_size, ranks=ranks, dtype="uint8")


def blocks_of(read: Callable[[int], bool], length: int, block_size: int) -> list[int]:
    """By definition: the blocks with a token that is read."""
    return sorted({t // block_size for t in range(length) if read(t)})


def longest(group: Group, length: int, size: int) -> int:
    every = (one for one in range(length + 1) if group.resumes_at(one, size))
    return max(len(group.needs(one, size)) for one in every)


@given(lengths, sizes)
def test_full_attention_needs_every_block(length: int, size: int) -> None:
    group = by.Full(layout())
    assert list(group.needs(length, size)) == blocks_of(lambda _: True, length, size)
    assert group.most_needed(length, size) == longest(group, length, size)


@given(lengths, sizes, spans)
def test_a_window_needs_the_blocks_of_its_earlier_tokens(length: int, size: int, w: int) -> None:
    group = by.SlidingWindow(layout(), tokens=w)
    needed = blocks_of(lambda t: t >= length - w + 1, length, size)
    assert list(group.needs(length, size)) == needed
    assert longest(group, length, size) <= group.most_needed(length, size)


@given(st.integers(100, 200), sizes, spans)
def test_the_most_that_a_window_needs_is_reached(length: int, size: int, w: int) -> None:
    group = by.SlidingWindow(layout(), tokens=w)
    assert longest(group, length, size) == group.most_needed(length, size)


@given(lengths, sizes, spans)
def test_a_chunk_needs_the_blocks_from_where_it_begins(length: int, size: int, c: int) -> None:
    group = by.ChunkedAttention(layout(), tokens=c)
    needed = blocks_of(lambda t: t // c == length // c, length, size)
    assert list(group.needs(length, size)) == needed
    most = group.most_needed(length, size)
    assert longest(group, length, size) <= most
    if c % size == 0:
        assert longest(group, length, size) == most


@given(lengths, sizes, st.none() | st.integers(1, 5))
def test_a_state_needs_the_block_that_ends_where_it_ends(
    length: int, size: int, units: int | None
) -> None:
    group = by.RecurrentState(layout(), every=units and units * size)
    assert group.resumes_at(length, size) == (length % ((units or 1) * size) == 0)
    assert group.most_needed(length, size) == longest(group, length, size)
    if group.resumes_at(length, size):
        ends = [b for b in range(length + 1) if (b + 1) * size == length]
        assert list(group.needs(length, size)) == ends
    else:
        with pytest.raises(by.Misuse, match=f"length = {length}.*RecurrentState.*resume at"):
            group.needs(length, size)


KINDS: list[Callable[[by.KVLayout], Group]] = [
    by.Full,
    lambda one: by.SlidingWindow(one, tokens=5),
    lambda one: by.ChunkedAttention(one, tokens=8),
    by.RecurrentState,
]


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_at_length_0_nothing_is_needed_and_a_wrong_length_is_refused(kind: int) -> None:
    group = KINDS[kind](layout())
    assert not group.needs(0, 4)
    assert group.most_needed(0, 4) == 0
    assert group.resumes_at(0, 4)
    assert pickle.loads(pickle.dumps(group)) == group
    for wrong in (-1, 1.5, "8", None, True):
        for verb in (group.needs, group.most_needed, group.resumes_at):
            with pytest.raises(by.Misuse, match="length = "):
                verb(wrong, 4)  # type: ignore[arg-type]


@pytest.mark.parametrize("tokens", [0, -1, 1.5, None, "128", True])
def test_a_window_or_a_chunk_below_1_token_is_refused(tokens: int) -> None:
    with pytest.raises(by.Misuse, match=r"tokens of SlidingWindow = .*'sliding_window'"):
        by.SlidingWindow(layout(), tokens=tokens)
    with pytest.raises(by.Misuse, match=r"tokens of ChunkedAttention = .*'attention_chunk_size'"):
        by.ChunkedAttention(layout(), tokens=tokens)
    if tokens is not None:
        with pytest.raises(by.Misuse, match="every of RecurrentState = "):
            by.RecurrentState(layout(), every=tokens)


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_a_group_without_a_layout_is_refused(kind: int) -> None:
    with pytest.raises(by.Misuse, match=r"layout of \w+ = 64: give a KVLayout"):
        KINDS[kind](64)  # type: ignore[arg-type]


def test_the_first_group_of_full_attention_is_the_spine() -> None:
    window, full = by.SlidingWindow(layout(), tokens=5), by.Full(layout())
    state = by.RecurrentState(layout(), every=8)
    groups = Groups([window, state, full, full])
    assert groups.numbers == (2, 0, 1, 3)
    assert list(groups) == [full, window, state, full] == [groups[n] for n in range(len(groups))]
    assert groups.name(1) == "group 0 (SlidingWindow of 5 tokens)"
    assert (groups.block_size, groups.boundary) == (4, 8)
    assert [groups.last_boundary(length) for length in (0, 7, 8, 23)] == [0, 0, 8, 16]


def full(block_size: int = 4, ranks: int = 1) -> by.Full:
    return by.Full(layout(block_size, ranks))


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([], "no group of full attention .no group was given.: add Full"),
        ([KINDS[1](layout())], "no group of full attention .group 0 is SlidingWindow of 5 tokens"),
        (None, "groups = None: give a list"),
        ("full", "groups = 'full': give a list"),
        ([full(), 7], "group 1 = 7: give Full"),
        ([full()] * 257, "more than 256 groups"),
        ([full(8), KINDS[1](layout(12))], "block_size = 12 of group 1 .*8 of group 0.*=24"),
        ([KINDS[1](layout(12)), full(8)], "block_size = 12 of group 0 .*8 of group 1"),
        ([full(ranks=2), full()], "ranks = 1 of group 1 .*2 of group 0"),
        ([full(8), by.RecurrentState(layout(8), every=20)], "every = 20 of group 1 .*16 or 24"),
        ([full(8), by.RecurrentState(layout(8), every=4)], "every = 4 of group 1 .*give 8"),
    ],
)
def test_groups_that_do_not_fit_are_refused_by_name(groups: list[Group], message: str) -> None:
    with pytest.raises(by.Misuse, match=message):
        Groups(groups)


def test_a_checkpoint_must_be_a_boundary() -> None:
    groups = Groups([full(), by.RecurrentState(layout(), every=12), KINDS[1](layout())])
    assert groups.checkpoint(24) == 24
    with pytest.raises(by.Misuse, match=r"checkpoint = 16: .*group 1 .RecurrentState.*12 or 24"):
        groups.checkpoint(16)
    with pytest.raises(by.Misuse, match=r"checkpoint = 5: .*give 12"):
        groups.checkpoint(5)
    for wrong in (0, -12, 12.0, None):
        with pytest.raises(by.Misuse, match="checkpoint = "):
            groups.checkpoint(wrong)


@pytest.mark.parametrize(
    ("name", "per_token", "others"),
    [
        ("gpt-oss-120b", 36 << 10, 36 << 10),
        ("gpt-oss-20b", 24 << 10, 24 << 10),
        ("gemma-3-27b", 10 * 2 * 16 * 128 * 2, 52 * 2 * 16 * 128 * 2),
        ("llama-4-scout", 48 << 10, 144 << 10),
        ("qwen3-next-80b-a3b", 24 << 10, (72 << 20) + 36 * 3 * 8192 * 2),
        ("kimi-linear-48b-a3b", 7 * 576 * 2, 20 * (32 * 128 * 128 * 4 + 3 * 12288 * 2)),
        ("lfm2.5-350m", 12 << 10, 10 * 2 * 1024 * 2),
    ],
)
def test_the_groups_of_well_known_models_are_theirs(name: str, per_token: int, others: int) -> None:
    spine, rider = by.Groups.preset(name)
    assert spine.layout.block_bytes == 16 * per_token
    state = isinstance(rider, by.RecurrentState)
    assert rider.layout.block_bytes == others * (1 if state else 16)


@pytest.mark.parametrize("name", HYBRIDS)
def test_every_preset_has_the_same_bytes_in_either_order_and_over_ranks(name: str) -> None:
    whole = by.Groups.preset(name)
    pieces = by.Groups.preset(name, order="layer-first")
    for one, other in zip(whole, pieces, strict=True):
        assert one.layout.block_bytes == other.layout.block_bytes > 0
        assert {plane.pieces for plane in one.layout.planes} == {1}
        assert all(plane.pieces > 1 for plane in other.layout.planes)
        assert one.layout.name == name
    for one, other in zip(whole, by.Groups.preset(name, ranks=2), strict=True):
        shared = one.layout.planes[0].replicated or one.layout.block_bytes % 2
        assert other.layout.host_block_bytes == one.layout.block_bytes or shared or "-1b" in name
    with pytest.raises(by.Misuse, match=f"preset {name!r}: its layers keep KV in 2 ways.*Groups"):
        by.KVLayout.preset(name)


def test_a_preset_takes_types_and_an_unknown_one_names_the_nearest() -> None:
    half = by.Groups.preset("qwen3-next-80b-a3b", state_dtype="bfloat16", block_size=32)
    assert [plane.name for plane in half[1].layout.planes] == ["conv", "ssm"]
    assert half[1].layout.block_bytes == (36 << 20) + 36 * 3 * 8192 * 2
    assert half.block_size == 32
    with pytest.raises(by.Misuse, match="did you mean 'gemma-3-27b'"):
        by.Groups.preset("gemma3-27b")
    with pytest.raises(by.Misuse, match="ssm = 100 on ranks = 3"):
        by.KVLayout.state(2, 9, 100, ranks=3)
    with pytest.raises(by.Misuse, match="dtype of ssm = 'fp32': did you mean"):
        by.KVLayout.state(2, 9, 100, ssm_dtype="fp32")


def test_groups_of_groups_keep_their_numbers() -> None:
    groups = Groups([by.SlidingWindow(layout(), tokens=5), full()])
    assert Groups(groups).numbers == groups.numbers == (1, 0)
    assert Groups(groups).in_engine_order() == groups.in_engine_order()
