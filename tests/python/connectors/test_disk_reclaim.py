"""New weights on a disk that has room for one identity: inside vLLM and SGLang."""

import logging
import os
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from blockyard.connectors.vllm.settings import Settings
from blockyard.crane.tiers.disk_folders import identities, wipe
from mounts import tmpfs
from sglang_pages import opened
from sglang_stub import Pool
from vllm_disk import Engine
from vllm_front import SIZE, no_torch

__all__ = ["no_torch"]


def fill(disk: Path) -> None:
    """Leaves room for the small files of a folder alone."""
    (disk / "another").write_bytes(bytes(os.statvfs(disk).f_bavail * 4096 - (48 << 10)))


def start(engine: str, disk: Path, weights: str, **more: Any) -> None:
    """Starts an engine with these weights, and ends it."""
    if engine == "vLLM":
        made = Engine(disk, namespace={"weights": weights}, **more)
        if weights == "v1":
            made.offload("one", [*range(4 * SIZE), 1], [3, 4, 5, 6, 7], 100)
        made.close()
    else:
        opened(disk, extra={"namespace": {"weights": weights}, **more}).close()


@pytest.mark.parametrize("engine", ["vLLM", "SGLang"])
def test_new_weights_take_the_room_of_the_old_ones_where_they_may(
    tmp_path: Path, engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    with tmpfs(tmp_path / "kv", "8m") as disk:
        start(engine, disk, "v1")
        fill(disk)
        (old,) = [one.name for one in identities(disk)]
        with pytest.raises(by.Unavailable, match="bytes are wanted") as refused:
            start(engine, disk, "v2")
        assert f"{old} (model: " in str(refused.value)
        assert "operator v1" in str(refused.value)
        assert f"blockyard disk wipe {disk} {old};" in str(refused.value)
        with caplog.at_level(logging.WARNING):
            start(engine, disk, "v2", disk_reclaim=True)
        assert [line for line in caplog.messages if f"(disk_reclaim): {old} (" in line]
        assert old not in [one.name for one in identities(disk)]


@pytest.mark.parametrize("other", [{"dp_rank": 1}, {"pp_rank": 1}])
def test_what_sglangs_other_replicas_and_stages_have_is_not_taken(
    tmp_path: Path, other: dict[str, int]
) -> None:
    more: dict[str, Any] = {"pp_size": 2, "dp_rank": 0}
    with tmpfs(tmp_path / "kv", "8m") as disk:
        opened(disk, extra={"disk_reclaim": True}, **{**more, **other}).close()
        fill(disk)
        (one,) = [found.name for found in identities(disk)]
        with pytest.raises(by.Unavailable, match=f"other replicas or groups of layers, as {one} "):
            opened(disk, extra={"disk_reclaim": True}, **more)
        assert one in [found.name for found in identities(disk)]


def test_what_sglangs_other_pools_have_is_not_taken(tmp_path: Path) -> None:
    beside, reclaim = {"swa": Pool(12)}, {"disk_reclaim": True}
    with tmpfs(tmp_path / "kv", "8m") as disk:
        opened(disk, beside=beside, extra=reclaim).close()
        kv, swa = sorted(identities(disk), key=lambda one: one.fields.get("group of layers", ""))
        wipe(kv)
        fill(disk)
        with pytest.raises(by.Unavailable, match=f"replicas or groups of layers, as {swa.name} "):
            opened(disk, beside=beside, extra=reclaim)
        assert swa.name in [found.name for found in identities(disk)]


def test_an_option_without_a_disk_is_refused() -> None:
    with pytest.raises(by.Misuse, match="disk_reclaim was given without disk_path"):
        Settings.of_extra({"host": 64, "disk_reclaim": True})
