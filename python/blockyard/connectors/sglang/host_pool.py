"""SGLang's host pool: where its pages are in memory, and what they are."""

import json
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Misuse, Unsupported
from blockyard.shared.layout import WIDTHS, KVLayout, Plane

__all__ = ["HostPages", "check_layout", "host_pages", "one_pool_alone", "page_ids"]

_LAYOUTS: Final = ("page_first", "page_first_direct")
_SHAPE: Final = (
    *("layer_num", "head_num", "head_dim", "v_head_dim", "start_layer", "end_layer"),
    *("kv_lora_rank", "qk_rope_head_dim", "kv_cache_dim", "storage_format_tag"),
)
"""What gives pages of equal bytes another meaning."""


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
            f"hicache_mem_layout = {layout!r}: a page must lie in one piece; start with "
            "--hicache-mem-layout page_first"
        )
    if moves:
        raise Unsupported(
            "the pages of the host pool move in memory; start without --enable-unified-memory"
        )


def one_pool_alone(name: object) -> Unsupported:
    """Returns the refusal of a model that keeps more than KV of full attention.

    Args:
        name: Of the pool that it has beside.
    """
    return Unsupported(
        f"host pool {str(name)!r}: only models with one pool, of full attention or MLA, are kept; "
        "start without --hicache-storage-backend"
    )


def host_pages(pool: Any, *, ranks: int) -> HostPages:
    """Reads a pool.

    Args:
        pool: SGLang's `HostKVCache`.
        ranks: Tensor parallel ranks, which each have such a pool.

    Raises:
        Misuse: Its layout must be another one; the message has the option to write.
        Unsupported: Its pages do not lie in memory as a disk's threads need them.
    """
    kind = type(pool).__name__
    moves = getattr(pool, "shared_allocation_domain", None) is not None
    check_layout(pool.layout, moves=moves)
    if getattr(pool, "dcp_size", 1) > 1:
        raise Unsupported(f"{kind} of {pool.dcp_size} ranks: a page's tokens must lie on one rank")
    if getattr(pool, "kv_buffer", None) is None:
        raise Unsupported(f"{kind}: it has no memory of its own")
    pages, tokens = int(pool.page_num), int(pool.page_size)
    first, sizes = _places(pool, 0)
    strides = [0] * len(first)
    if pages > 1:
        strides = [later - one for one, later in zip(first, _places(pool, 1)[0], strict=True)]
        last = [one + (pages - 1) * stride for one, stride in zip(first, strides, strict=True)]
        if _places(pool, pages - 1) != (last, sizes) or min(strides) < 1:
            raise Unsupported(f"{kind}: its pages do not lie at even distances")
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
    said: dict[str, object] = {name: getattr(pool, name, None) for name in _SHAPE}
    said |= {"pool": kind, "layout": pool.layout, "dtype": dtype}
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


def _places(pool: Any, page: int) -> tuple[list[int], list[int]]:
    """Returns addresses and bytes of a page's parts."""
    tokens = int(pool.page_size)
    # It asks them for `len` and `tolist` alone, which an array has as a tensor does.
    rows = np.arange(page * tokens, (page + 1) * tokens)
    addresses, sizes = pool.get_page_buffer_meta(rows)
    return list(map(int, addresses)), list(map(int, sizes))
