"""Slot files below memory that the caller gives: they get bytes, and a restart finds them."""

from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from blockyard.crane.tiers.disk import DiskTier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.local_cache import LocalCache
from disks import BLOCKS, LAYOUT, OURS, TALKS, talks

ALL = TALKS * BLOCKS


def memory(device: int = 9, host: int = 64) -> Any:
    return (
        MemoryTier(LAYOUT, device, name="device"),
        MemoryTier(LAYOUT, host, name="host") if host else None,
    )


def tier(path: Path, identity: Any = OURS, **more: Any) -> DiskTier:
    return DiskTier(LAYOUT, path, **({"blocks": 64, "identity": identity} | more))


def found_again(make: Any) -> None:
    """Plays talks in a cache, and in one of the next process."""
    with make() as cache:
        assert cache.restored == 0
        assert set(talks(cache).values()) == {0}
        while cache.step() or cache.stats()["flights"]:
            pass
        assert cache.stats()["disk_written_blocks"] == ALL
        assert cache.stats()["disk_failed"] == 0
    with make() as cache:
        assert cache.restored == ALL
        assert set(talks(cache).values()) == {4 * BLOCKS - 1}
        cache.clear()
    with make() as cache:
        assert cache.restored == 0


@pytest.mark.parametrize("host", [0, 64])
def test_a_disk_tier_in_memory_gets_bytes_and_a_restart_finds_them(
    tmp_path: Path, host: int
) -> None:
    # As the error recommends that disk_path and memory get: nothing else is said.
    more: dict[str, Any] = {"write": {"host": "through"}} if host else {}
    found_again(lambda: by.local(LAYOUT, memory=(*memory(host=host), tier(tmp_path)), **more))


def test_a_disk_and_its_path_below_memory_that_is_given(tmp_path: Path) -> None:
    given: dict[str, Any] = {"disk": 64, "namespace": OURS, "write": {"host": "through"}}
    found_again(lambda: by.local(LAYOUT, memory=memory(), disk_path=tmp_path, **given))
    config = by.Config(layout=LAYOUT, device=9, host=64, **given)
    other = tmp_path / "config"
    found_again(lambda: by.local(config, memory=memory(), disk_path=other))


def test_a_disk_tier_stands_in_the_hosts_place(tmp_path: Path) -> None:
    device = memory()[0]
    with by.local(LAYOUT, memory=(device, tier(tmp_path, name="host"))) as cache:
        assert cache.config.keyed == ("host",)
        talks(cache)
        order = cache.eviction_order("host").tolist()
    device = memory()[0]
    with by.local(LAYOUT, memory=(device, tier(tmp_path, name="host"))) as cache:
        assert cache.restored == ALL
        assert cache.eviction_order("host").tolist() == order


def test_each_way_to_the_same_identity_finds_the_same_blocks(tmp_path: Path) -> None:
    config = by.Config(layout=LAYOUT, device=9, disk=64, namespace=OURS)
    with by.local(config, disk_path=tmp_path) as cache:
        talks(cache)
    ways: list[dict[str, Any]] = [{}, {"keyed": ("disk",)}]
    for more in ways:
        disk = tier(tmp_path, config.identity)
        whole = {"memory": (memory()[0], None, disk), "namespace": OURS, **more}
        with by.local(LAYOUT, **whole) as cache:
            assert set(talks(cache).values()) == {4 * BLOCKS - 1}


@pytest.mark.parametrize(
    ("identity", "more", "says"),
    [
        (OURS, {"namespace": OURS | {"weights": "v2"}}, "weights is 'v1' in .* and 'v2' in"),
        (OURS, {"namespace": OURS | {"lora": "x"}}, "lora is None in .* and 'x' in"),
        (OURS | {"tp": "2"}, {"namespace": OURS}, "tp is '2' in .* and None in"),
        (OURS, {"namespace": {}}, "model is 'a model' in .* and None in the namespace"),
        (OURS | {"keys": "xxh3, blocks of 4 tokens"}, {}, "keys is 'xxh3.*' in .* and 'sha256"),
    ],
)
def test_another_identity_than_the_namespace_is_refused(
    tmp_path: Path, identity: Any, more: Any, says: str
) -> None:
    with pytest.raises(by.Misuse, match=f"{says}.*give DiskTier\\(identity=config.identity\\)"):
        by.local(LAYOUT, memory=(*memory(), tier(tmp_path, identity)), **more)


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_is_one_identity_on_both_sides(tmp_path: Path, kind: Any) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    names = {"model": "m", "weights": kind(tmp_path)}
    disk = tier(tmp_path / "kv", names)
    with by.local(LAYOUT, memory=(*memory(), disk), namespace=names) as cache:
        assert cache.restored == 0
    assert disk.identity["weights"].startswith("sha256:")


def test_what_is_missing_or_in_another_place_is_said(tmp_path: Path) -> None:
    with pytest.raises(by.Misuse, match="disk = 9 blocks, and no disk_path: give the folder"):
        by.local(LAYOUT, memory=memory(), disk=9, namespace=OURS)
    with pytest.raises(by.Misuse, match=r"memory\[0\] is slot files.*on the device"):
        by.local(LAYOUT, memory=(tier(tmp_path), None), namespace=OURS)


def test_two_ways_to_a_disk_are_one_too_many(tmp_path: Path) -> None:
    disk = tier(tmp_path / "a")
    with pytest.raises(by.Misuse, match="disk_path was given, and memory has a disk"):
        by.local(LAYOUT, memory=(*memory(), disk), disk_path=tmp_path / "b")
    with pytest.raises(by.Misuse, match="disk = 9: the memory given has its size"):
        by.local(LAYOUT, memory=(*memory(), disk), disk_path=tmp_path / "b", disk=9)
    with pytest.raises(by.Misuse, match='no size: give disk="200 GiB"'):
        by.local(LAYOUT, memory=memory(), disk_path=tmp_path / "b")
    host = tier(tmp_path / "b", name="host")
    with pytest.raises(by.Misuse, match="host and disk are slot files: one tier of a cache can be"):
        by.local(LAYOUT, memory=(memory()[0], host, disk))
    with pytest.raises(by.Misuse, match="namespace names no model"):
        by.local(LAYOUT, memory=memory(), disk=9, disk_path=tmp_path / "c")


def test_what_fails_beside_a_disk_leaves_no_folder_with_an_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {"disk": 9, "disk_path": tmp_path, "namespace": OURS}
    with pytest.raises(by.Misuse, match="device") as error:
        by.local(LAYOUT, memory=memory()[::-1], **given)
    with pytest.raises((by.Unavailable, MemoryError)) as other:
        by.local(LAYOUT, device=9, host=1 << 40, **given)
    monkeypatch.setattr(LocalCache, "measure", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError) as last:
        by.local(LAYOUT, device=9, metrics=True, **given)
    with by.local(LAYOUT, device=9, **given) as cache:
        assert cache.restored == 0
    assert last.traceback
    assert error.traceback
    assert other.traceback
