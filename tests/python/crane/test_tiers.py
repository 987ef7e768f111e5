"""Tiers: memory made of slots."""

import multiprocessing
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard._core import Misuse, Unavailable
from blockyard.crane.copiers import Copier
from blockyard.crane.tiers import Mapped, Tier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.shared.layout import KVLayout
from cranes import LAYOUTS, SHARED, filled, same


@pytest.mark.parametrize("name", LAYOUTS)
def test_planes_have_the_shape_of_the_layout_and_every_byte_is_its_own(name: str) -> None:
    layout = LAYOUTS[name]
    for tier in (MemoryTier(layout, 5, name="device"), MemoryTier(layout, 5)):
        assert [plane.shape for plane in tier.planes] == [
            (5, plane.pieces, plane.piece_bytes) for plane in layout.planes
        ]
        assert not any(plane.any() for plane in tier.planes)
        assert same(tier, filled(tier, 1))
        for plane in tier.planes:
            before = filled(tier, 2)
            plane[...] = 0
            others = [other for other in tier.planes if other is not plane]
            kept = [
                held for held, view in zip(before, tier.planes, strict=True) if view is not plane
            ]
            assert all(map(np.array_equal, others, kept))


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_block_of_the_host_is_one_contiguous_slot(name: str) -> None:
    layout = LAYOUTS[name]
    tier = MemoryTier(layout, 3)
    first = tier.planes[0].__array_interface__["data"][0]
    at = 0
    for plane, view in zip(layout.planes, tier.planes, strict=True):
        assert view.__array_interface__["data"][0] == first + at
        assert view.strides == (layout.block_bytes, plane.piece_bytes, 1)
        at += plane.block_bytes


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_device_has_the_order_of_the_layout(name: str) -> None:
    layout = LAYOUTS[name]
    for plane, view in zip(layout.planes, MemoryTier(layout, 3, name="device").planes, strict=True):
        assert view.strides == (plane.piece_bytes, 3 * plane.piece_bytes, 1)


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def taken() -> tuple[int, int, int, int]:
    """Bytes of a tier, and what the process has more of: when made, when touched, when closed."""
    layout = KVLayout.preset("llama-3-8b")
    before = resident()
    tier = MemoryTier(layout, 64)
    made = resident() - before
    for plane in tier.planes:
        plane[...] = 1
    touched = resident() - before
    del plane
    tier.close()
    return tier.nbytes, made, touched, resident() - before


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
def test_memory_is_taken_as_it_is_touched_and_given_back_at_the_close() -> None:
    # In a process of its own: other tests leave threads and garbage, which come and go.
    with multiprocessing.get_context("spawn").Pool(1) as alone:
        nbytes, made, touched, closed = alone.apply(taken)
    assert nbytes == 128 << 20
    assert made < 16 << 20
    assert 0.9 * nbytes < touched < 1.1 * nbytes
    assert closed < 16 << 20


@pytest.mark.parametrize("layout", [LAYOUTS["fp8 with scales, layer-first"], SHARED])
def test_a_disk_of_memory_lies_as_a_host_does(layout: KVLayout, tmp_path: Path) -> None:
    host, disk = (
        MemoryTier(layout, 4, name=name, shared=tmp_path / name) for name in ("host", "disk")
    )
    assert disk.name == "disk"
    assert [plane.strides for plane in disk.planes] == [plane.strides for plane in host.planes]
    filled(host, 1)
    assert not any(plane.any() for plane in disk.planes), "each has memory of its own"
    with pytest.raises(Misuse, match="plane 'same' is the same on 2 ranks: give shared="):
        MemoryTier(SHARED, 4, name="disk")


def test_a_tier_smaller_than_one_block_is_refused() -> None:
    with pytest.raises(
        Misuse, match=r"blocks = 0: a host tier smaller than one block of 512 bytes"
    ):
        MemoryTier(LAYOUTS["page-first"], 0)
    for blocks in (-1, 1.5, "3", True):
        with pytest.raises(Misuse, match=f"blocks = {blocks!r}: must be an integer"):
            MemoryTier(LAYOUTS["page-first"], blocks)  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="name = 'gpu'"):
        MemoryTier(LAYOUTS["page-first"], 1, name="gpu")


@pytest.mark.parametrize("blocks", [2**38, 2**50, 2**70])
@pytest.mark.parametrize("name", ["device", "host"])
def test_more_than_there_is_is_unavailable_and_the_bytes_are_said(name: str, blocks: int) -> None:
    layout = KVLayout.preset("llama-3-8b")
    with pytest.raises(Unavailable, match=f"{name} tier of {blocks} blocks: {blocks << 21} bytes"):
        MemoryTier(layout, blocks, name=name)


def test_ranks_of_a_host_share_what_is_replicated_and_nothing_else(tmp_path: Path) -> None:
    one, two = (MemoryTier(SHARED, 4, shared=tmp_path / "host") for _ in range(2))
    filled(one, 1)
    own, common = two.planes
    assert not own.any()
    assert np.array_equal(common, one.planes[1])
    common[2, 1, 3] += 1
    assert np.array_equal(common, one.planes[1])
    assert (tmp_path / "host").stat().st_size == 4 * SHARED.planes[1].block_bytes
    assert one.nbytes == 4 * SHARED.block_bytes
    one.close()
    two.close()


def test_no_file_is_made_where_nothing_is_shared(tmp_path: Path) -> None:
    shared = tmp_path / "host"
    MemoryTier(LAYOUTS["page-first"], 4, shared=shared)
    MemoryTier(LAYOUTS["latent"], 4, shared=shared)
    MemoryTier(SHARED, 4, name="device", shared=shared)
    assert not shared.exists()


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="plane 'same' is the same on 2 ranks: give shared="):
        MemoryTier(SHARED, 4)
    shared = tmp_path / "host"
    MemoryTier(SHARED, 4, shared=shared)
    with pytest.raises(Misuse, match="host: it has 480 bytes and should have 600"):
        MemoryTier(SHARED, 5, shared=shared)
    for path in (tmp_path, tmp_path / "no" / "host"):
        with pytest.raises(Unavailable, match=str(path)):
            MemoryTier(SHARED, 5, shared=path)
    with pytest.raises(Unavailable, match="to share"):
        MemoryTier(KVLayout.mla(2, ranks=2), 2**30, shared=tmp_path / "large")


PAGE = (Path(__file__).parents[3] / "docs/cranes.md").read_text(encoding="utf-8")


def public(thing: object) -> set[str]:
    return {name for name in vars(thing) if not name.startswith("_")}


def test_the_tier_of_the_page_has_the_members_of_the_protocol_and_no_other() -> None:
    section = PAGE.partition("\n## A tier or copier of your own\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"by": by, "MemoryTier": MemoryTier}
    exec(compile(code, "cranes.md", "exec"), names)  # noqa: S102
    tier = names["RowTier"](LAYOUTS["fp8 with scales, layer-first"], 5)
    members = public(Tier) | public(Mapped)
    assert public(tier) | public(type(tier)) == members
    assert same(tier, filled(tier, 1))
    assert tier.nbytes == MemoryTier(tier.layout, 5).nbytes == sum(p.nbytes for p in tier.planes)
    # The first sentence names each of them, and the sentence about copiers theirs.
    sentence = section.partition(". ")[0]
    assert set(re.findall(r"`(\w+)`", sentence)) == members
    sentence = section.partition("A copier is a class with ")[2].partition(";")[0]
    assert set(re.findall(r"`(\w+)`", sentence)) == public(Copier)
