"""The disk of each host pool of SGLang's: all are opened or none, and a hit needs all of them."""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blockyard._core import (
    BlockyardError,
    DiskInspector,
    DiskLane,
    Misuse,
    Unavailable,
    Unsupported,
)
from blockyard.connectors.sglang.disk_identity import shared_identity
from blockyard.connectors.sglang.disk_pages import KEY_BYTES, DiskPages
from blockyard.connectors.sglang.host_pool import BESIDE, KV, HostPages
from blockyard.connectors.sglang.storage_settings import StorageSettings
from blockyard.connectors.sglang.store_pages import BothPages, Pages, StorePages
from blockyard.crane.tiers.disk import DiskTier, fields_of
from blockyard.shared.layout import KVLayout
from blockyard.shared.log import Limited
from blockyard.shared.sizes import counted, parse_size, size_text
from blockyard.yard.tier_sizes import in_blocks

__all__ = ["Agreed", "PoolDisk", "agreed", "clear_all", "close_all", "divided", "of", "open_all"]

_GROUP: Final = "group of layers"
"""The field of an identity that names a pool beside the KV, whose own has none."""
_log = Limited(__name__, 600.0)


class PoolDisk(NamedTuple):
    """A host pool, and its pages on the disk."""

    host: HostPages
    disk: Pages


class Agreed(NamedTuple):
    """What of a sequence is there in all pools."""

    lengths: list[int]
    """The lengths, in pages, at which every pool has what SGLang reads; ascending, without 0."""
    pools: dict[str, int]
    """Of each pool the longest one, as far as the KV goes; none for a pool that has nothing."""


def open_all(
    pools: Mapping[str, tuple[HostPages, object]],
    settings: StorageSettings,
    identity: Mapping[str, str],
    rank: int,
) -> dict[str, PoolDisk]:
    """Opens the disks of all pools, or none.

    The KV's folder is the one that a model without other pools has. The disk is divided as SGLang
    divides the host's memory, or as it was before, and all pools share the threads.

    Args:
        pools: By SGLang's names, the KV first: where the pages are, and what keeps that memory.
        settings: The operator's.
        identity: What all pages depend on.
        rank: The tensor parallel rank.

    Raises:
        Misuse: `disk` is too small, or not the one that a folder has.
        Unavailable: There is no room, or another process owns a folder.
    """
    hosts = {name: host for name, (host, _) in pools.items()}
    whose = {
        name: {**identity, "pages": host.meaning} | ({} if name == KV else {_GROUP: name})
        for name, host in hosts.items()
    }
    had = {}
    root = settings.disk_path
    if len(hosts) > 1 and root is not None:
        had = {name: _before(root, host.layout, whose[name], rank) for name, host in hosts.items()}
    blocks = divided(settings.disk, hosts, had) if root is not None else {}
    tiers: dict[str, DiskTier] = {}
    stores: dict[str, StorePages] = {}
    made: dict[str, PoolDisk] = {}
    try:
        for name, (host, memory) in pools.items() if settings.remote is not None else ():
            stores[name] = StorePages(
                host.layout,
                planes=host.planes,
                memory=memory,
                stores=settings.stores(),
                identity=shared_identity(whose[name]),
                rank=rank,
                patience=settings.patience,
            )
        for name, host in hosts.items():
            if root is None:
                break
            tiers[name] = DiskTier(
                host.layout,
                root,
                blocks=blocks[name],
                identity=whose[name],
                rank=rank,
                direct=settings.direct,
                threads=tiers[KV].threads if tiers else settings.threads,
                reclaim=settings.disk_reclaim,
            )
        for name, (host, memory) in pools.items():
            if name not in tiers:
                made[name] = PoolDisk(host, stores[name])
                continue
            disk = DiskPages(
                tiers[name],
                pages=host.pages,
                page_tokens=host.page_tokens,
                planes=host.planes,
                memory=memory,
                linked=BESIDE.get(name, True),
                patience=settings.patience,
            )
            pages = BothPages(disk, stores[name]) if name in stores else disk
            made[name] = PoolDisk(host, pages)
    except BaseException:
        for tier in tiers.values():
            tier.abandon()
        for store in stores.values():
            store.close()
        raise
    return made


def _before(root: Path, layout: KVLayout, identity: Mapping[str, str], rank: int) -> int:
    """Returns how many pages the folder of a pool has; 0 if there is none, or it is damaged."""
    fields = sorted(fields_of(layout, identity).items())
    size = layout.block_bytes
    folder, _ = DiskLane.lacking(root, fields, rank=rank, slots=1, block_bytes=size)
    try:
        return DiskInspector(folder).slots
    except BlockyardError:
        return 0


def divided(
    disk: int | str, hosts: Mapping[str, HostPages], had: Mapping[str, int]
) -> dict[str, int]:
    """Returns how many pages each pool has on the disk.

    Args:
        disk: Bytes as text, or pages of the KV.
        hosts: The pools, by name, the KV first: the pages of the others to those of the KV are as
            in the host's memory.
        had: The pages of each folder from before, 0 without one. They stay if they divide the same
            disk: SGLang sizes the host's memory by what is free on a GPU, which differs with each
            start.

    Raises:
        Misuse: A pool would have no page; the message has the least size.
    """
    kv, size = hosts[KV], counted(disk)
    before = {name: pages for name, pages in had.items() if pages}
    if len(hosts) == 1 or not isinstance(size, str):
        pages = int(in_blocks("disk", size, kv.layout))
        found = {name: -(-pages * host.pages // kv.pages) for name, host in hosts.items()}
        kept = found | before
        return kept if kept[KV] == pages else found
    nbytes, _, per = parse_size("disk", size)
    page = {name: host.layout.host_block_bytes for name, host in hosts.items()}
    total = sum(host.pages * page[name] for name, host in hosts.items())
    ranks = kv.layout.ranks if per == "rank" else 1
    found = {name: host.pages * nbytes * ranks // total for name, host in hosts.items()}
    kept = found | before
    left = nbytes * ranks - sum(kept[name] * page[name] for name in hosts)
    if 0 <= left < sum(page.values()):  # Each pool is rounded down by less than a page.
        found = kept
    for name, pages in found.items():
        if pages < 1:
            least = -(-total // (min(host.pages for host in hosts.values()) * ranks))
            each = "/rank" if per == "rank" else ""
            raise Misuse(
                f"disk = {disk!r}: host pool {name!r} would have no page of "
                f"{size_text(hosts[name].layout.block_bytes)} a rank, as it is divided among "
                f"{', '.join(hosts)}; give '{-(-least // 1024)} KiB{each}' or more"
            )
    return found


def agreed(keys: bytes, pools: Mapping[str, PoolDisk], wanted: Iterable[Any]) -> Agreed:
    """Returns at which lengths a sequence has what SGLang reads, in the KV and in other pools.

    Args:
        keys: 32 bytes a page.
        pools: The disks, by name.
        wanted: SGLang's `PoolTransfer` of each other pool.

    Raises:
        Misuse: There is no such pool; or a disk is closed.
        Unsupported: SGLang asks in a way that is not known.
    """
    found = pools[KV].disk.count(keys)
    longest = {KV: found} if found else {}
    good = np.ones(found, np.bool_)
    for transfer in wanted:
        if not good.any():
            break
        name, policy = str(transfer.name), str(getattr(transfer.hit_policy, "value", "all_pages"))
        disk = of(pools, name).disk
        there = disk.which(keys[: found * KEY_BYTES])
        if policy == "all_pages":
            read = found
        elif policy == "trailing_pages":
            read = max(len(transfer.keys or ()), 1)
            if read > disk.slots:
                _log.warning(
                    "host pool %r has room for %d pages on the disk, and a window takes %d: no "
                    "prefix that is longer than this room can be a hit; give a larger disk",
                    *(name, disk.slots, read),
                )
        else:
            raise Unsupported(
                f"host pool {name!r}: SGLang asks for {policy}, and only all_pages and "
                "trailing_pages are served; start without --hicache-storage-backend"
            )
        whole = _whole(there, read)
        if whole.any():
            longest[name] = int(np.flatnonzero(whole)[-1]) + 1
        good &= whole
    return Agreed((np.flatnonzero(good) + 1).tolist(), longest)


def _whole(there: NDArray[np.bool_], read: int) -> NDArray[np.bool_]:
    """Returns of each length from 1 on whether the last `read` pages of it are there, or all."""
    lacking = np.concatenate([[0], np.cumsum(~there)])
    lengths = np.arange(1, len(there) + 1)
    whole: NDArray[np.bool_] = lacking[lengths] == lacking[np.maximum(lengths - read, 0)]
    return whole


def of(pools: Mapping[str, PoolDisk], name: str) -> PoolDisk:
    """Returns the disk of a pool.

    Raises:
        Misuse: SGLang has registered none of this name.
    """
    if name not in pools:
        raise Misuse(f"host pool {name!r}: SGLang has registered {', '.join(pools) or 'none'}")
    return pools[name]


def clear_all(pools: Mapping[str, PoolDisk]) -> None:
    """Forgets all pages of all pools, the KV first: without it nothing is a hit.

    Raises:
        Unavailable: It is not durable in time on a disk; all others are cleared.
    """
    refused: Unavailable | None = None
    for pool in pools.values():
        try:
            pool.disk.clear()
        except Unavailable as error:
            refused = refused or error
    if refused is not None:
        raise refused


def close_all(pools: Mapping[str, PoolDisk], *, flush: float) -> int:
    """Closes all disks; returns the pages that were not written in `flush` seconds."""
    until, left = time.monotonic() + flush, 0
    for pool in pools.values():
        left += pool.disk.close(flush=max(until - time.monotonic(), 0.0))
    return left
