"""The groups of layers of a vLLM engine: which kind each is, and its blocks in bytes, by layer."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from blockyard._core import Unsupported
from blockyard.shared.groups import (
    ChunkedAttention,
    Full,
    Group,
    Groups,
    RecurrentState,
    SlidingWindow,
)
from blockyard.shared.layout import WIDTHS, KVLayout, Plane

__all__ = ["Layered", "layered"]

_LATENT: Final = frozenset({"MLAAttentionSpec", "SlidingWindowMLASpec"})
"""Specs of KV that is the same on all tensor-parallel ranks."""
_FULL: Final = frozenset({"FullAttentionSpec", "MLAAttentionSpec"})
_WINDOWS: Final = frozenset({"SlidingWindowSpec", "SlidingWindowMLASpec"})
_CHUNKS: Final = "ChunkedLocalAttentionSpec"
_STATES: Final = "MambaSpec"
_NOT_KEPT: Final[Mapping[str, str]] = {
    "CrossAttentionSpec": "the KV of an encoder belongs to no token of the prompt",
    "EncoderOnlyAttentionSpec": "an encoder keeps no KV",
    "CircularBufferSpec": "a ring holds one block for a whole request",
    "HiSparseHotSpec": "HiSparse keeps its own KV on the host",
    "HiSparseResidentSpec": "HiSparse keeps its own KV on the host",
    "HiddenStateCacheSpec": "hidden states are no KV",
    "SinkFullAttentionSpec": "the blocks of its sinks belong to no request",
    "RSWASpec": "it frees blocks between the prompt and its window",
}
"""Why a kind of KV is not kept below."""
_WITHOUT: Final = "start without this connector"


class Layered(NamedTuple):
    """What the layers of an engine keep, ours first: the spine, then vLLM's order."""

    groups: Groups | None
    """The groups; None for one of full attention."""
    layouts: tuple[KVLayout, ...]
    """Of each group."""
    layers: tuple[tuple[str, ...], ...]
    """The names of each group's layers, in the order of their pieces."""
    kinds: tuple[str, ...]
    """The class of each group's spec."""


def layered(kv: Any, *, ranks: int, stages: int, ahead: bool = False) -> Layered:
    """Reads the groups of layers, and makes a layout of each, by layer.

    Args:
        kv: A `KVCacheConfig`: of a worker, or vLLM's scheduler's, which has of layers with unequal
            pages the spec of the first alone.
        ranks: Tensor-parallel ranks, times the stages.
        stages: Stages of a pipeline.
        ahead: Whether there is a drafter that looks ahead.

    Raises:
        Unsupported: A group cannot be served; the message names it and what to write.
    """
    found = list(kv.kv_cache_groups)
    if not found:
        raise Unsupported(f"no layer of this model keeps KV: {_WITHOUT}")
    kept = getattr(kv, "prefix_cacheable_group_ids", range(len(found)))
    specs = [_specs(group.kv_cache_spec) for group in found]
    kinds = [type(one[0]).__name__ for one in specs]
    for number, (group, own) in enumerate(zip(found, specs, strict=True)):
        _check_kind(_name(number, own[0], found), own, is_kept=number in kept)
        if len({type(one) for one in own}) > 1 and ranks > 1:
            names = ", ".join(sorted({type(one).__name__ for one in own}))
            raise Unsupported(
                f"{_name(number, own[0], found)} has layers of {names}, whose KV is not alike on "
                f"all ranks: use one rank, or {_WITHOUT}"
            )
        if len(found) > 1 and not group.layer_names:
            raise Unsupported(
                f"{_name(number, own[0], found)} has no layer in this stage: {_WITHOUT}"
            )
    _check_together(kv, specs, stages)
    if ahead and _STATES in kinds:
        raise Unsupported(
            "a drafter that looks ahead (EAGLE, MTP) beside recurrent states: vLLM restores other "
            "states than the drafter needs; leave --speculative-config out"
        )
    made = []
    for number, own in enumerate(specs):
        layout, layers = _layout(kv, number, own, ranks)
        made.append((_group(own[0], layout), layers))
    if len(found) == 1:
        ((group_, layers),) = made
        return Layered(None, (group_.layout,), (layers,), tuple(kinds))
    groups = Groups(group for group, _ in made)
    return Layered(
        groups,
        tuple(group.layout for group in groups),
        tuple(made[number][1] for number in groups.numbers),
        tuple(kinds[number] for number in groups.numbers),
    )


def _specs(spec: Any) -> list[Any]:
    """Returns the specs of a group's layers; a group's own where all are equal."""
    return list(getattr(spec, "kv_cache_specs", {}).values()) or [spec]


def _name(number: int, spec: Any, found: Sequence[Any]) -> str:
    kind = type(spec).__name__
    return f"group {number} ({kind})" if len(found) > 1 else f"a KV cache of {kind}"


def _check_kind(name: str, specs: Sequence[Any], *, is_kept: bool) -> None:
    """Refuses a group whose blocks cannot be found again by tokens."""
    for spec in specs:
        kind = type(spec).__name__
        if kind in _NOT_KEPT:
            raise Unsupported(f"{name}: {_NOT_KEPT[kind]}; {_WITHOUT}")
        if kind not in {*_FULL, *_WINDOWS, _CHUNKS, _STATES}:
            raise Unsupported(f"{name}: {kind} is not known here; {_WITHOUT}")
    if not is_kept:
        raise Unsupported(
            f"{name}: vLLM replays its tokens, and stores none of its blocks under a hash; "
            f"{_WITHOUT}"
        )


def _check_together(kv: Any, specs: Sequence[Sequence[Any]], stages: int) -> None:
    """Refuses groups that do not go together."""
    found = kv.kv_cache_groups
    kinds = [type(own[0]).__name__ for own in specs]
    if not _FULL.intersection(kinds):
        listed = ", ".join(dict.fromkeys(kinds))
        raise Unsupported(
            f"{listed} alone: models in which no group has full attention are not supported; "
            f"{_WITHOUT}"
        )
    for number, own in enumerate(specs):
        for spec in own:
            if type(spec).__name__ == _STATES and spec.mamba_cache_mode != "align":
                raise Unsupported(
                    f"{_name(number, spec, found)} has mamba_cache_mode = "
                    f"{spec.mamba_cache_mode!r}: vLLM keeps the states of block boundaries only "
                    "with its prefix cache; start with --enable-prefix-caching"
                )
    sizes = [group.kv_cache_spec.block_size for group in found]
    states = _STATES in kinds
    if len(set(sizes)) > 1:
        said = ", ".join(f"{size:,} in group {number}" for number, size in enumerate(sizes))
        do = "leave --mamba-block-size out"
        if not states:
            do = "add --disable-hybrid-kv-cache-manager, or set VLLM_KV_CACHE_LAYOUT=BLNHC"
        raise Unsupported(f"blocks of {said} tokens: groups with unequal blocks; {do}")
    hashed = getattr(kv, "hash_block_size", None)
    if hashed not in {None, sizes[0]}:
        raise Unsupported(
            f"blocks of {sizes[0]} tokens are hashed by {hashed}: leave --prefix-match-unit out"
        )
    if stages > 1 and len(found) > 1:
        do = "use tensor parallel ranks alone"
        if not states:
            do += ", or add --disable-hybrid-kv-cache-manager, with which layers with windows keep "
            do += "all tokens and requests take more memory"
        raise Unsupported(
            f"pipeline_parallel_size = {stages} with {len(found)} KV cache groups: the stages "
            f"would have unequal blocks; {do}"
        )


def _group(spec: Any, layout: KVLayout) -> Group:
    kind = type(spec).__name__
    if kind in _WINDOWS:
        # vLLM keeps these, too, where several drafters read a little below the window.
        more = getattr(spec, "extra_retained_tokens", 0)
        return SlidingWindow(layout, tokens=spec.sliding_window + more)
    if kind == _CHUNKS:
        return ChunkedAttention(layout, tokens=spec.attention_chunk_size)
    return RecurrentState(layout) if kind == _STATES else Full(layout)


def _layout(
    kv: Any, number: int, specs: Sequence[Any], ranks: int
) -> tuple[KVLayout, tuple[str, ...]]:
    """Returns the layout of a group, a plane per size of a page, and its layers in that order."""
    names, spec = list(kv.kv_cache_groups[number].layer_names), specs[0]
    replicated = type(spec).__name__ in _LATENT or getattr(spec, "tp_replicated", False)
    replicated = replicated or getattr(kv, "kv_tp_replicas", 1) > 1
    by_page: dict[int, list[str]] = {}
    for name, page in _pages(kv, names, spec).items():
        by_page.setdefault(page, []).append(name)
    planes = tuple(
        Plane(f"kv.{at}" if at else "kv", len(own), page, replicated=replicated)
        for at, (page, own) in enumerate(by_page.items())
    )
    dtype = str(getattr(spec, "dtype", "")).removeprefix("torch.")
    layout = KVLayout(
        planes,
        block_size=spec.block_size,
        ranks=ranks,
        dtype=dtype if dtype in WIDTHS else "uint8",
        # Not the model's: that may be a path, and what lies there counts by its content.
        name="vLLM",
    )
    return layout, tuple(name for own in by_page.values() for name in own)


def _pages(kv: Any, names: Sequence[str], spec: Any) -> dict[str, int]:
    """Returns the bytes of a block in each layer of a group.

    vLLM places layers with equal specs together. Where a group is in several places its layers
    have specs of their own, of which the scheduler sees none: a page is as far from the next one as
    the nearer of the next layer's and the next block's.
    """
    own = getattr(spec, "real_page_size_bytes", spec.page_size_bytes)
    places = [
        place
        for place in getattr(kv, "kv_cache_tensors", None) or ()
        if not set(names).isdisjoint(place.layers)
    ]
    # In other layouts the heads of a page are apart, and then all pages are equal.
    whole = str(kv.kv_cache_layout)[:2] in {"LB", "BL"} if len(places) > 1 else False
    if not whole:
        return dict.fromkeys(names, own)
    pages = {
        name: min(place.layer_stride, place.block_stride)
        for place in places
        for name in place.layers
    }
    return {name: pages[name] for name in names}
