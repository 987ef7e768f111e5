"""Layouts: what a block is in bytes."""

import json
import pickle
import subprocess
import sys
import tomllib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockyard._core import Misuse
from blockyard.shared.layout import WIDTHS, Hello, KVLayout, Order, Plane
from blockyard.shared.models import MODELS, Heads
from cranes import LAYOUTS
from yard import profile

small = st.integers(1, 9)
orders: st.SearchStrategy[Order] = st.sampled_from(["page-first", "layer-first"])


@pytest.mark.parametrize(
    ("name", "bytes_per_token"),
    [
        ("llama-3-8b", 128 << 10),
        ("llama-3-70b", 320 << 10),
        ("llama-3.1-405b", 504 << 10),
        ("qwen2.5-7b", 56 << 10),
        ("qwen3-235b-a22b", 188 << 10),
        ("deepseek-v3", 61 * 576 * 2),
    ],
)
def test_the_figures_of_well_known_models_are_theirs(name: str, bytes_per_token: int) -> None:
    assert KVLayout.preset(name).block_bytes == 16 * bytes_per_token
    assert KVLayout.preset(name, block_size=1).block_bytes == bytes_per_token


@pytest.mark.parametrize("name", MODELS)
def test_every_preset_has_the_same_bytes_in_either_order(name: str) -> None:
    page, layer = (KVLayout.preset(name, order=order) for order in ("page-first", "layer-first"))
    assert page.block_bytes == layer.block_bytes > 0
    assert page.name == layer.name == name
    model = MODELS[name]
    kinds = 2 if isinstance(model, Heads) else 1
    assert [plane.pieces for plane in page.planes] == [1]
    assert [plane.pieces for plane in layer.planes] == [kinds * model.layers]
    assert page.planes[0].replicated == (kinds == 1)


def test_what_a_preset_says_can_be_given_otherwise() -> None:
    layout = KVLayout.preset(
        "llama-3-8b", layers=3, dtype="float8_e4m3", scale_dtype="float32", ranks=2, block_size=32
    )
    assert layout == KVLayout.llama(
        3,
        8,
        128,
        dtype="float8_e4m3",
        scale_dtype="float32",
        ranks=2,
        block_size=32,
        name="llama-3-8b",
    )
    assert KVLayout.preset("kimi-k2", rope=0, ranks=8).block_bytes == 61 * 512 * 2 * 16


@given(small, small, small, small, st.sampled_from(sorted(WIDTHS)), orders, st.booleans())
@profile(100)
def test_heads_are_divided_over_ranks(
    layers: int, heads: int, dim: int, ranks: int, dtype: str, order: Order, scales: bool
) -> None:
    layout = KVLayout.llama(
        layers,
        heads * ranks,
        dim,
        dtype=dtype,
        ranks=ranks,
        order=order,
        scale_dtype="float32" if scales else None,
    )
    values = 2 * layers * 16 * heads
    assert layout.block_bytes == values * dim * WIDTHS[dtype] + scales * values * 4
    assert layout.host_block_bytes == ranks * layout.block_bytes


def test_each_rank_holds_one_head_where_there_are_more_ranks_than_heads() -> None:
    assert (
        KVLayout.llama(4, 2, 8, ranks=8).block_bytes == KVLayout.llama(4, 2, 8, ranks=2).block_bytes
    )


def test_what_is_replicated_is_on_the_host_once() -> None:
    layout = KVLayout.mla(61, ranks=8)
    assert layout.host_block_bytes == layout.block_bytes
    assert layout.host_blocks(1) == layout.device_blocks(1)
    assert layout.host_blocks(1, per="rank") == pytest.approx(8 * layout.host_blocks(1), abs=8)


@given(st.sampled_from(sorted(LAYOUTS)), small, st.floats(0, 100))
@profile(100)
def test_blocks_of_a_size_fit_into_it_and_one_more_would_not(
    name: str, ranks: int, gib: float
) -> None:
    layout = KVLayout.from_mapping(LAYOUTS[name].to_mapping() | {"ranks": ranks})
    room = int(gib * 2**30)
    for blocks, size, bytes_ in (
        (layout.device_blocks(gib), layout.block_bytes, room),
        (layout.host_blocks(gib), layout.host_block_bytes, room),
        (layout.host_blocks(gib, per="rank"), layout.host_block_bytes, room * ranks),
    ):
        assert blocks * size <= bytes_ < (blocks + 1) * size


planes = st.builds(Plane, st.text(min_size=1), small, small, st.booleans())


@given(
    st.lists(planes, min_size=1, max_size=4, unique_by=lambda plane: plane.name),
    small,
    small,
    st.sampled_from(sorted(WIDTHS)),
    st.text(min_size=1),
)
@profile(100)
def test_a_layout_travels_as_plain_values_and_pickled(
    parts: list[Plane], block_size: int, ranks: int, dtype: str, name: str
) -> None:
    layout = KVLayout(tuple(parts), block_size=block_size, ranks=ranks, dtype=dtype, name=name)
    for back in (
        KVLayout.from_mapping(json.loads(json.dumps(layout.to_mapping()))),
        pickle.loads(pickle.dumps(layout)),
    ):
        assert back == layout
        assert back.fingerprint == layout.fingerprint


def test_it_is_read_from_toml_whole_or_by_its_preset() -> None:
    text = """
        dtype = "int8"
        [[planes]]
        name = "kv"
        pieces = 2
        piece_bytes = 64
    """
    layout = KVLayout((Plane("kv", 2, 64),), dtype="int8")
    assert KVLayout.from_mapping(tomllib.loads(text)) == layout
    mapping = {"preset": "qwen3-8b", "ranks": 2}
    assert KVLayout.from_mapping(mapping) == KVLayout.preset("qwen3-8b", ranks=2)


def test_its_fingerprint_is_the_same_in_another_process_and_other_for_any_field() -> None:
    layout = LAYOUTS["fp8 with scales"]
    script = (
        "import pickle, sys; from blockyard.shared.layout import KVLayout;"
        "print(pickle.load(sys.stdin.buffer).fingerprint, end='')"
    )
    answer = subprocess.run(  # noqa: S603
        [sys.executable, "-c", script], input=pickle.dumps(layout), capture_output=True, check=True
    )
    assert answer.stdout.decode() == layout.fingerprint
    mapping = layout.to_mapping()
    first, *rest = mapping["planes"]
    others: list[dict[str, Any]] = [
        {"block_size": 5},
        {"ranks": 2},
        {"dtype": "int8"},
        {"name": "another"},
        {"planes": rest},
        {"planes": [*rest, first]},
        *({"planes": [first | change, *rest]} for change in (
            {"name": "x"}, {"pieces": 7}, {"piece_bytes": 9}, {"replicated": True},
        )),
    ]  # fmt: skip
    prints = {KVLayout.from_mapping(mapping | other).fingerprint for other in others}
    assert len(prints | {layout.fingerprint}) == len(others) + 1


def test_a_hello_travels_pickled() -> None:
    hello = Hello(rank=1, fingerprint="f", device=3, host=0, disk=5)
    assert pickle.loads(pickle.dumps(hello)) == hello


DTYPES = (
    "dtype = .*: did you mean '.*'\\? A dtype is one of these names: "
    "float32, bfloat16, float16, float8_e4m3, float8_e5m2, int8, uint8$"
)

BAD: list[tuple[Callable[[], object], str]] = [
    (lambda: Plane("", 1, 1), "plane name = ''"),
    (lambda: Plane("kv", 0, 1), "pieces of plane 'kv' = 0: must be an integer >= 1"),
    (lambda: Plane("kv", 1, -4), "piece_bytes of plane 'kv' = -4"),
    (lambda: Plane("kv", pieces=True, piece_bytes=1), "pieces of plane 'kv' = True"),
    (lambda: Plane("kv", 1, 1, "no"), "replicated of plane 'kv' = 'no'"),  # type: ignore[arg-type]
    (lambda: KVLayout((), dtype="int8"), r"planes = \[\]"),
    (lambda: KVLayout((Plane("a", 1, 1),) * 2, dtype="int8"), "a name of its own"),
    (lambda: KVLayout((Plane("a", 1, 1),), dtype="int8", block_size=0), "block_size = 0"),
    (lambda: KVLayout((Plane("a", 1, 1),), dtype="int8", ranks=1.5), "ranks = 1.5"),  # type: ignore[arg-type]
    (lambda: KVLayout((Plane("a", 1, 1),), dtype="int8", name=""), "name = ''"),
    (lambda: KVLayout.llama(2, 2, 8, dtype="float8_e4m4"), "did you mean 'float8_e4m3'"),
    (lambda: KVLayout.llama(2, 2, 8, scale_dtype="float23"), "scale_dtype = 'float23'.*'float32'"),
    (lambda: KVLayout.llama(2, 2, 8, scale_dtype="fp32"), "scale_" + DTYPES),
    (lambda: KVLayout.llama(2, 2, 8, order="layers-first"), "one of 'page-first', 'layer-first'"),  # type: ignore[arg-type]
    (lambda: KVLayout.llama(0, 2, 8), "layers = 0"),
    (lambda: KVLayout.llama(2, 6, 8, ranks=4), "kv_heads = 6 on ranks = 4"),
    (lambda: KVLayout.llama(2, 4, 8, ranks=6), "kv_heads = 4 on ranks = 6"),
    (lambda: KVLayout.llama(2, 4, 8, ranks=0), "ranks = 0"),
    (lambda: KVLayout.mla(2, rope=-1), "rope = -1"),
    (lambda: KVLayout.mla(2, latent=0), "latent = 0"),
    (lambda: KVLayout.preset("lama-3-8b"), "no preset 'lama-3-8b': did you mean 'llama-3-8b'"),
    (lambda: KVLayout.preset("deepseek-v3", kv_heads=8), "no 'kv_heads' in preset 'deepseek-v3'"),
    (lambda: KVLayout.preset("kimi-k2", scale_dtype="int8"), "no 'scale_dtype' in preset"),
    (lambda: KVLayout.preset("qwen3-8b", layer=8), "did you mean 'layers'"),  # type: ignore[call-arg]
    (lambda: KVLayout.from_mapping({}), "planes = None in a layout"),
    (lambda: KVLayout.from_mapping({"planes": [3], "dtype": "int8"}), r"planes = \[3\]"),
    (lambda: KVLayout.from_mapping({"planes": [{}], "dtype": "int8"}), "name is missing"),
    (lambda: KVLayout.from_mapping({"planes": []}), "dtype is missing in a layout"),
    (lambda: KVLayout.from_mapping({"planes": [], "rank": 2}), "'rank' in a layout.*'ranks'"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), BAD)
def test_a_bad_value_is_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(Misuse, match=message):
        make()


@pytest.mark.parametrize(
    "dtype", ["fp16", "torch.bfloat16", "Float32", "", None, 2, ["x"], np.dtype("float16")]
)
def test_an_unknown_dtype_is_named_and_those_that_exist_are_listed(dtype: Any) -> None:
    makes: list[Callable[[], KVLayout]] = [
        lambda: KVLayout((Plane("kv", 1, 1),), dtype=dtype),
        lambda: KVLayout.llama(2, 2, 8, dtype=dtype),
        lambda: KVLayout.mla(2, dtype=dtype),
        lambda: KVLayout.preset("llama-3-8b", dtype=dtype),
    ]
    for make in makes:
        with pytest.raises(Misuse, match=DTYPES) as caught:
            make()
        assert str(caught.value).startswith(f"dtype = {dtype!r}: ")
    assert all(name in DTYPES for name in WIDTHS)
