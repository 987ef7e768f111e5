"""SGLang's host pools: where their pages are in memory, and what they are."""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Misuse, Unsupported
from blockyard.shared.layout import WIDTHS, KVLayout, Plane

__all__ = ["BESIDE", "KV", "HostPages", "check_layout", "host_pages", "no_attention", "page_ids"]

KV: Final = "kv"
"""SGLang's name of the pool of full attention, which the others lie beside."""
BESIDE: Final[Mapping[str, bool]] = {
    "swa": False,
    "mamba": False,
    "draft_swa": False,
    "indexer": True,
    "draft": True,
    "draft_indexer": True,
}
"""Pools beside it that are kept, and whether they have a page for each of its pages."""

_LAYOUTS: Final = ("page_first", "page_first_direct")
_SHAPE: Final = (
    *("layer_num", "head_num", "head_dim", "v_head_dim", "start_layer", "end_layer"),
    *("kv_lora_rank", "qk_rope_head_dim", "kv_cache_dim", "storage_format_tag"),
)
"""What gives pages of equal bytes another meaning."""
_SHAPE_BESIDE: Final = (
    *("num_mamba_layers", "conv_state_shapes", "temporal_state_shape", "conv_dtype"),
    *("temporal_dtype", "target_layer_num", "indexer_dtype", "item_bytes"),
)
"""Likewise, of pools beside the KV."""


class HostPages(NamedTuple):
    """The pages of a host pool."""

    pages: int
    page_tokens: int
    planes: list[tuple[NDArray[np.uint64], int, int]]
    """For each plane the addresses of the pieces of page 0, the bytes from a page to the next, and
    the bytes of a piece."""
    layout: KVLayout
    meaning: str
    """What the bytes of a page mean."""


def check_layout(layout: str, *, moves: bool) -> None:
    """Refuses a host pool whose pages do not lie as a disk's threads need them.

    Args:
        layout: SGLang's name of how pages lie.
        moves: Whether they move in memory.

    Raises:
        Misuse: The layout must be another one; the message has the option to write.
        Unsupported: Pages move.
    """
    if layout not in _LAYOUTS:
        raise Misuse(
            f"hicache_mem_layout = {layout!r}: a page must be contiguous; start with "
            "--hicache-mem-layout page_first"
        )
    if moves:
        raise Unsupported(
            "the pages of the host pool move in memory; start without --enable-unified-memory"
        )


def no_attention() -> Unsupported:
    """Returns the refusal of a model that keeps states alone."""
    return Unsupported(
        f"host pool {KV!r}: its pages have no bytes, as no layer keeps every token; start without "
        "--hicache-storage-backend"
    )


def host_pages(pool: Any, *, ranks: int, name: str = KV) -> HostPages:
    """Reads a pool.

    Args:
        pool: SGLang's `HostKVCache`.
        ranks: Tensor parallel ranks, which each have such a pool.
        name: SGLang's name of it.

    Raises:
        Misuse: Its layout must be another one; the message has the option to write.
        Unsupported: It is none of the pools that are kept, or its pages do not lie in memory as a
            disk's threads need them.
    """
    if name != KV and name not in BESIDE:
        raise Unsupported(
            f"host pool {name!r}: beside {KV!r} only {', '.join(BESIDE)} are kept; start without "
            "--hicache-storage-backend"
        )
    kind = type(pool).__name__ if name == KV else f"host pool {name!r}, {type(pool).__name__}"
    moves = getattr(pool, "shared_allocation_domain", None) is not None
    check_layout(pool.layout, moves=moves)
    if getattr(pool, "dcp_size", 1) > 1:
        raise Unsupported(
            f"{kind} of {pool.dcp_size} ranks: all tokens of a page must be on one rank"
        )
    if name == KV and getattr(pool, "kv_buffer", None) is None:
        raise Unsupported(
            f"{kind}: it does not own its memory; start without --hicache-storage-backend"
        )
    tokens = int(pool.page_size)
    # Not every pool beside the KV counts them.
    pages = int(getattr(pool, "page_num", 0)) or int(pool.size) // tokens
    first, sizes = _places(pool, 0, kind)
    if not any(sizes):
        raise no_attention()
    strides = [0] * len(first)
    if pages > 1:
        strides = [later - one for one, later in zip(first, _places(pool, 1, kind)[0], strict=True)]
        last = [one + (pages - 1) * stride for one, stride in zip(first, strides, strict=True)]
        if _places(pool, pages - 1, kind) != (last, sizes) or min(strides) < 1:
            raise Unsupported(f"{kind}: its pages are not equally spaced in memory")
    planes = [
        (np.array([address], np.uint64), stride, size)
        for address, stride, size in zip(first, strides, sizes, strict=True)
    ]
    dtype = str(pool.dtype).removeprefix("torch.")
    layout = KVLayout(
        tuple(Plane(f"part {at}", 1, size) for at, size in enumerate(sizes)),
        block_size=tokens,
        ranks=ranks,
        dtype=dtype if dtype in WIDTHS else "uint8",
        # Not the model's: that may be a path, and what lies there counts by its content.
        name="SGLang",
    )
    said: dict[str, object] = {field: getattr(pool, field, None) for field in _SHAPE}
    if name != KV:
        said |= {one: getattr(pool, one) for one in _SHAPE_BESIDE if hasattr(pool, one)}
    said |= {"pool": type(pool).__name__, "layout": pool.layout, "dtype": dtype}
    meaning = json.dumps(said, sort_keys=True, default=str)
    return HostPages(pages, tokens, planes, layout, meaning)


def page_ids(host: HostPages, indices: Any, pages: int) -> NDArray[np.int64]:
    """Returns the pages that rows of a host pool make up.

    Args:
        host: Of that pool.
        indices: Its rows, shape (pages * page_tokens,), a page's in their order.
        pages: How many there must be.

    Raises:
        Misuse: They are not as many, or no whole pages.
    """
    flat = np.asarray(indices.cpu() if hasattr(indices, "cpu") else indices)
    tokens = host.page_tokens
    if flat.shape != (pages * tokens,):
        raise Misuse(
            f"host_indices has shape {flat.shape}: {pages} keys of pages of {tokens} tokens need "
            f"({pages * tokens},)"
        )
    rows = flat.astype(np.int64, copy=False).reshape(pages, tokens)
    starts = rows[:, :1]
    if (starts % tokens).any() or (rows != starts + np.arange(tokens)).any():
        raise Misuse(f"host_indices are no whole pages of {tokens} tokens")
    return starts[:, 0] // tokens


def _places(pool: Any, page: int, kind: str) -> tuple[list[int], list[int]]:
    """Returns addresses and bytes of a page's parts."""
    tokens = int(pool.page_size)
    # It asks them for `len` and `tolist` alone, which an array has as a tensor does.
    rows = np.arange(page * tokens, (page + 1) * tokens)
    try:
        addresses, sizes = pool.get_page_buffer_meta(rows)
    except (AttributeError, NotImplementedError, TypeError) as error:
        raise Unsupported(
            f"{kind}: SGLang does not say where its pages lie ({error}); start without "
            "--hicache-storage-backend"
        ) from error
    return list(map(int, addresses)), list(map(int, sizes))
