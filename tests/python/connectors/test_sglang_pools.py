"""SGLang's storage of a hybrid model: pools of windows and states beside the KV."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard._typing import override
from blockyard.connectors.sglang.pool_disks import agreed
from sglang_pages import PAGES, disk_of, keys, opened, put, take, whole
from sglang_stub import HiCacheStorageExtraInfo, Pool, PoolHitPolicy, PoolTransfer, States

LAST = PoolHitPolicy.TRAILING_PAGES


class Hybrid:
    """A storage with four pools, and what is in them."""

    def __init__(self, path: Path, **more: Any) -> None:
        self.pools: dict[str, Any] = {
            "kv": Pool(PAGES),
            # As many layers as the KV has, as in gpt-oss: its pages look like those.
            "swa": Pool(PAGES // 2),
            "mamba": States(PAGES // 3),
            "indexer": Pool(PAGES, layers=1, heads=1),
        }
        beside = {name: pool for name, pool in self.pools.items() if name != "kv"}
        self.storage = opened(path, self.pools["kv"], beside=beside, **more)

    def transfer(
        self, name: str, named: list[str], first: int = 0, policy: PoolHitPolicy = LAST
    ) -> PoolTransfer:
        """Pages of a pool, from `first` on."""
        pages = range(first, first + len(named))
        return PoolTransfer(name, self.pools[name].rows(*pages), None, named, policy)

    def bytes_of(self, name: str, page: int) -> list[Any]:
        pool = self.pools[name]
        return (
            [one[page] for one in pool.buffers]
            if name == "mamba"
            else list(pool.kv_buffer[:, page])
        )

    def write(self, name: str, named: list[str], policy: PoolHitPolicy = LAST) -> None:
        """Writes pages whose bytes follow from key and pool."""
        for page, key in enumerate(named):
            for part in self.bytes_of(name, page):
                part[:] = content(name, key, part.size)
        sent = self.transfer(name, named, policy=policy)
        said = self.storage.batch_set_v2([sent], HiCacheStorageExtraInfo(prefix_keys=[]))
        assert said == {name: [True] * len(named)}

    def read(self, name: str, named: list[str], policy: PoolHitPolicy = LAST) -> list[bool]:
        """Reads pages to the end of the pool, and checks their bytes."""
        first = self.pools[name].page_num - len(named)
        for at in range(len(named)):
            for part in self.bytes_of(name, first + at):
                part[:] = 0
        (said,) = self.storage.batch_get_v2([self.transfer(name, named, first, policy)]).values()
        for at, (key, good) in enumerate(zip(named, said, strict=True)):
            for part in self.bytes_of(name, first + at) if good else ():
                assert (part == content(name, key, part.size)).all()
        return list(said)

    def hit(self, named: list[str], **wanted: int | None) -> Any:
        """Asks for a length: of each pool for the last pages, or for all."""
        return self.storage.batch_exists_v2(
            named,
            [
                PoolTransfer(name, keys=["__placeholder__"] * last, hit_policy=LAST)
                if last
                else PoolTransfer(name)
                for name, last in wanted.items()
            ],
        )


def content(name: str, key: str, size: int) -> np.ndarray[Any, Any]:
    seed = int(key[:8], 16) + sum(name.encode())
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


@pytest.fixture
def hybrid(tmp_path: Path) -> Iterator[Hybrid]:
    made = Hybrid(tmp_path)
    yield made
    made.storage.close()


def test_a_hit_is_a_length_at_which_every_pool_has_what_is_read(hybrid: Hybrid) -> None:
    named = whole(hybrid.storage, "a", 9)
    # KV alone, or with half a window, or with a window and no state, is no hit.
    assert hybrid.hit(named, swa=2, mamba=1).kv_hit_pages == 0
    hybrid.write("swa", named[2:4])
    hybrid.write("swa", named[6:9])
    found = hybrid.hit(named, swa=2, mamba=1)
    assert (found.kv_hit_pages, found.extra_pool_hit_pages) == (0, {"kv": 9, "swa": 9})
    hybrid.write("mamba", [named[3], named[6], named[7]])
    found = hybrid.hit(named, swa=2, mamba=1)
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (8, [4, 8])
    assert found.extra_pool_hit_pages == {"kv": 9, "swa": 9, "mamba": 8}
    # A longer prompt finds it, too; a short one has a short window.
    assert hybrid.hit(named + keys("b", 3), swa=2, mamba=1).kv_hit_pages == 8
    hybrid.write("swa", named[:1])
    hybrid.write("mamba", named[:1])
    assert hybrid.hit(named[:2], swa=2, mamba=1).kv_hit_pages == 1
    assert hybrid.storage.batch_exists(named) == 9


def test_pages_of_each_pool_come_back_with_their_bytes_and_after_a_restart(tmp_path: Path) -> None:
    hybrid = Hybrid(tmp_path)
    named = whole(hybrid.storage, "a", 8)
    hybrid.write("swa", named[4:])
    hybrid.write("mamba", named[7:])
    hybrid.write("indexer", named, PoolHitPolicy.ALL_PAGES)
    for again in (False, True):
        if again:
            hybrid.storage.close()
            hybrid = Hybrid(tmp_path)
        assert hybrid.hit(named, swa=4, mamba=1, indexer=None).kv_hit_pages == 8
        assert take(hybrid.storage, named, *range(8, 16)) == [True] * 8
        assert hybrid.read("swa", named[4:]) == [True] * 4
        assert hybrid.read("mamba", named[7:]) == [True]
        assert hybrid.read("indexer", named, PoolHitPolicy.ALL_PAGES) == [True] * 8
    # One and the same key, in four pools.
    folders = {disk_of(hybrid.storage, name).path.parent for name in hybrid.pools}
    assert len(folders) == 4
    hybrid.storage.close()


def test_what_was_stored_without_other_pools_is_found_with_them(tmp_path: Path) -> None:
    alone = opened(tmp_path)
    named = whole(alone, "a", 5)
    folder = disk_of(alone).path
    alone.close()
    hybrid = Hybrid(tmp_path)
    assert disk_of(hybrid.storage).path == folder
    assert hybrid.storage.batch_exists(named) == 5
    hybrid.storage.close()


def flip(hybrid: Hybrid, name: str, key: str) -> None:
    """Flips a bit of a page, where it lies."""
    slots = disk_of(hybrid.storage, name).path / "slots"
    slot = slots.with_name("table").read_bytes().index(bytes.fromhex(key)) // 128
    with slots.open("r+b") as file:
        file.seek(slot * (slots.stat().st_size // disk_of(hybrid.storage, name).slots) + 11)
        (byte,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 4]))


@pytest.mark.parametrize("name", ["swa", "mamba", "indexer", "kv"])
def test_a_flipped_bit_in_any_pool_ends_the_hit(tmp_path: Path, name: str) -> None:
    hybrid = Hybrid(tmp_path, extra={"direct": False})
    named = whole(hybrid.storage, "a", 6)
    hybrid.write("swa", named[3:])
    hybrid.write("mamba", [named[3], named[5]])
    hybrid.write("indexer", named, PoolHitPolicy.ALL_PAGES)
    flip(hybrid, name, named[5])
    wanted = {"swa": 3, "mamba": 1, "indexer": None}
    assert hybrid.hit(named, **wanted).kv_hit_pages == 6
    said = {
        "kv": take(hybrid.storage, named, *range(8, 14)),
        # Two of its three pages would do nobody any good.
        "swa": hybrid.read("swa", named[3:]),
        "mamba": hybrid.read("mamba", named[5:]),
        "indexer": hybrid.read("indexer", named, PoolHitPolicy.ALL_PAGES),
    }
    expected = {"kv": [True] * 5 + [False], "swa": [False] * 3, "mamba": [False]}
    expected["indexer"] = expected["kv"]
    for pool, flags in said.items():
        assert flags == (expected[pool] if pool == name else [True] * len(flags)), pool
    assert hybrid.hit(named, **wanted).kv_hit_pages == 0
    if name == "mamba":
        # The state before it is of use, where the window is there, too.
        assert hybrid.hit(named, swa=1, mamba=1).kv_hit_pages == 4
    hybrid.storage.close()


def test_a_clear_forgets_every_pool_and_lasts(tmp_path: Path) -> None:
    hybrid = Hybrid(tmp_path)
    named = whole(hybrid.storage, "a", 4)
    hybrid.write("mamba", named[3:])
    hybrid.write("swa", named)
    hybrid.storage.clear()
    assert hybrid.read("mamba", named[3:]) == [False]
    hybrid.storage.close()
    hybrid = Hybrid(tmp_path)
    assert [disk_of(hybrid.storage, name).restored for name in hybrid.pools] == [0] * 4
    hybrid.storage.close()


def test_a_clear_that_one_disk_refuses_clears_the_others(
    hybrid: Hybrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = whole(hybrid.storage, "a", 4)
    hybrid.write("mamba", named[3:])
    monkeypatch.setattr(disk_of(hybrid.storage)._disk, "clear", lambda **_: False)
    with pytest.raises(by.Unavailable, match="a clear is not durable"):
        hybrid.storage.clear()
    assert hybrid.storage.batch_exists(named) == 0
    assert hybrid.read("mamba", named[3:]) == [False]


def test_windows_and_states_are_evicted_each_by_itself(hybrid: Hybrid) -> None:
    room = disk_of(hybrid.storage, "mamba").slots
    named = [key for name in "abcdefgh" for key in keys(name, 1)]
    for key in named:
        hybrid.write("mamba", [key])
        # The first is used all the time.
        assert hybrid.read("mamba", named[:1]) == [True]
    found = [hybrid.read("mamba", [key]) == [True] for key in named]
    assert found == [True] + [False] * (len(named) - room) + [True] * (room - 1)


def test_a_part_of_a_window_that_is_there_is_not_written_again(hybrid: Hybrid) -> None:
    named = keys("a", 6)
    hybrid.write("swa", named[1:3])
    hybrid.write("swa", named[4:5])
    hybrid.write("swa", named)
    assert hybrid.storage.stats("swa")["disk_in"] == 6
    assert hybrid.read("swa", named) == [True] * 6


def test_a_page_that_somebody_reads_is_there_and_one_that_is_written_is_not(
    hybrid: Hybrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, seen = whole(hybrid.storage, "a", 2), []
    disk = disk_of(hybrid.storage, "mamba")
    wait = disk._wait

    def watched(copy: Any) -> bool:
        seen.append(disk.which(bytes.fromhex(named[1])).tolist())
        return wait(copy)

    monkeypatch.setattr(disk, "_wait", watched)
    hybrid.write("mamba", named[1:])
    assert hybrid.read("mamba", named[1:]) == [True]
    assert seen == [[False], [True]]


def test_random_pools_agree_as_the_rule_says() -> None:
    """Against the plain rule: whole windows at a length, in every pool."""

    class Disk:
        slots = 99

        def __init__(self, there: list[bool]) -> None:
            self.there = there

        def count(self, _: bytes) -> int:
            return [*self.there, False].index(False)

        def which(self, keys: bytes) -> Any:
            return np.array(self.there[: len(keys) // 32], np.bool_)

    rng, seen = np.random.default_rng(5), set()
    for _ in range(400):
        pages = int(rng.integers(1, 12))
        there = {name: list(rng.random(pages) < 0.75) for name in ("kv", "swa", "mamba", "draft")}
        there["kv"] = [True] * int(rng.integers(0, pages + 1)) + [False]
        window = int(rng.integers(1, 5))
        pools: Any = {name: (None, Disk(flags)) for name, flags in there.items()}
        pools = {name: type("P", (), {"disk": one[1]}) for name, one in pools.items()}
        asked = [
            PoolTransfer("swa", keys=["x"] * window, hit_policy=LAST),
            PoolTransfer("mamba", hit_policy=LAST),
            PoolTransfer("draft"),
        ]
        found = agreed(bytes(32 * pages), pools, asked)
        rule = [
            length
            for length in range(1, there["kv"].index(False) + 1)
            if all(there["swa"][max(length - window, 0) : length])
            and there["mamba"][length - 1]
            and all(there["draft"][:length])
        ]
        assert found.lengths == rule
        seen.add(len(rule))
    assert len(seen) > 4


def test_a_window_that_no_disk_holds_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hybrid = Hybrid(tmp_path, extra={"disk": 6})
    named = whole(hybrid.storage, "a", 6)
    hybrid.write("swa", named[:3])
    assert hybrid.hit(named, swa=3).kv_hit_pages == 3
    assert "a window takes" not in caplog.text
    assert hybrid.hit(named, swa=4).kv_hit_pages == 3
    assert "host pool 'swa' has room for 3 pages on the disk, and a window takes 4" in caplog.text
    hybrid.storage.close()


def test_a_disk_is_divided_as_the_memory_of_the_host(tmp_path: Path) -> None:
    hybrid = Hybrid(tmp_path / "pages", extra={"disk": 12})
    slots = {name: disk_of(hybrid.storage, name).slots for name in hybrid.pools}
    assert slots == {"kv": 12, "swa": 6, "mamba": 4, "indexer": 12}
    hybrid.storage.close()
    hybrid = Hybrid(tmp_path / "bytes", extra={"disk": "32 KiB"})
    sizes = [pool.host.layout.block_bytes for pool in hybrid.storage._disks.values()]
    slots = {name: disk_of(hybrid.storage, name).slots for name in hybrid.pools}
    assert slots == {"kv": 12, "swa": 6, "mamba": 4, "indexer": 12}
    used = sum(size * number for size, number in zip(sizes, slots.values(), strict=True))
    assert 0 <= 32 * 1024 - used < sum(sizes)
    hybrid.storage.close()
    with pytest.raises(by.Misuse, match=r"disk = '4 KiB': host pool 'swa' .* give '8 KiB' or"):
        Hybrid(tmp_path / "small", extra={"disk": "4 KiB"})
    Hybrid(tmp_path / "least", extra={"disk": "8 KiB"}).storage.close()


@pytest.mark.parametrize("disk", [1000, "1000 blocks", "4 MiB", "4 MiB/rank"])
def test_a_restart_keeps_a_division_though_the_memory_of_the_host_is_another(
    tmp_path: Path, disk: int | str
) -> None:
    def started(kv: int, swa: int, mamba: int, size: int | str = disk) -> Any:
        beside = {"swa": Pool(swa), "mamba": States(mamba)}
        return opened(tmp_path, Pool(kv), beside=beside, extra={"disk": size})

    def slots(storage: Any) -> dict[str, int]:
        return {name: pool.disk.slots for name, pool in storage._disks.items()}

    storage = started(1001, 501, 101)
    before, named = slots(storage), whole(storage, "a", 3)
    for name in ("swa", "mamba"):
        sent = PoolTransfer(name, storage._pools[name][1].rows(0), None, named[2:], LAST)
        assert storage.batch_set_v2([sent]) == {name: [True]}
    storage.close()
    # SGLang sizes them by the memory that a GPU has free at the start.
    storage = started(1103, 549, 117)
    assert slots(storage) == before
    asked = [PoolTransfer(name, keys=["__placeholder__"], hit_policy=LAST) for name in before]
    assert storage.batch_exists_v2(named, asked[1:]).kv_hit_pages == 3
    storage.close()
    # Another size is refused, as it is without other pools, and what the error says is taken.
    said = f"give the size of before, {before['kv']} blocks"
    with pytest.raises(by.Unavailable, match=said):
        started(1001, 501, 101, "3 MiB" if isinstance(disk, str) and "MiB" in disk else 900)
    storage = started(1001, 502, 103, f"{before['kv']} blocks")
    assert slots(storage) == before
    storage.close()


def test_the_threads_of_a_rank_are_those_of_all_its_pools(hybrid: Hybrid) -> None:
    every = [disk_of(hybrid.storage, name)._disk.threads for name in hybrid.pools]
    assert len(every) == 4
    assert {id(one) for threads in every for one in threads} == {id(every[0][0])}


class Silent(States):
    """States that SGLang does not place."""

    @override
    def get_page_buffer_meta(self, indices: Any) -> Any:
        raise NotImplementedError("no slot side states")


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {"deepseek_v4_c4": Pool(8)},
        by.Unsupported,
        "host pool 'deepseek_v4_c4': beside 'kv' only swa, mamba,",
    ),
    (
        {"mamba": Silent(8)},
        by.Unsupported,
        "host pool 'mamba', Silent: SGLang does not say where its pages lie (no slot side",
    ),
    ({"swa": Pool(8, layout="layer_first")}, by.Misuse, "--hicache-mem-layout page_first"),
]


@pytest.mark.parametrize(("beside", "kind", "text"), REFUSED, ids=[one[2][:25] for one in REFUSED])
def test_what_cannot_be_served_is_refused_by_name_before_anything_is_made(
    tmp_path: Path, beside: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        opened(tmp_path, beside=beside)
    assert not list(tmp_path.iterdir())


def test_a_model_of_states_alone_is_refused(tmp_path: Path) -> None:
    class Empty(Pool):
        @override
        def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
            return super().get_page_buffer_meta(indices)[0], [0, 0]

    with pytest.raises(by.Unsupported, match="no layer keeps every token"):
        opened(tmp_path, Empty(8), beside={"mamba": States(8)})


def test_a_pool_that_comes_after_the_disk_was_divided_is_refused(hybrid: Hybrid) -> None:
    with pytest.raises(by.Unsupported, match=r"host pool 'draft' .* PUT /hicache/storage-backend"):
        hybrid.storage.register_mem_host_pool_v2(Pool(PAGES), "draft")


def room(path: Path) -> int:
    """Bytes of all slot files."""
    return sum(one.stat().st_size for one in path.glob("*/*/slots"))


def test_one_folder_that_is_owned_opens_none(tmp_path: Path) -> None:
    hybrid = Hybrid(tmp_path)
    taken = room(tmp_path)
    beside = {"swa": Pool(PAGES // 2)}
    with pytest.raises(by.Unavailable, match="owns it"):
        # Other pages of the KV are in another folder, which nobody has.
        opened(tmp_path, Pool(PAGES, layers=5), beside=beside)
    assert room(tmp_path) == taken
    hybrid.storage.close()


def test_a_wrong_transfer_is_named_and_nothing_of_the_call_is_done(hybrid: Hybrid) -> None:
    named = keys("a", 2)
    good = hybrid.transfer("mamba", named[1:])
    for bad, text in (
        (PoolTransfer("draft", None, None, named), "host pool 'draft': SGLang has registered kv"),
        (hybrid.transfer("swa", [*named, "x"]), "must be 64 hexadecimal digits"),
        (PoolTransfer("swa", hybrid.pools["swa"].rows(1), None, named), "2 keys of pages of 4"),
    ):
        for call in (hybrid.storage.batch_set_v2, hybrid.storage.batch_get_v2):
            with pytest.raises(by.Misuse, match=text):
                call([good, bad])
    assert hybrid.storage.stats("mamba")["disk_in"] == 0
    whole(hybrid.storage, "a", 2)
    with pytest.raises(by.Unsupported, match="host pool 'swa': SGLang asks for block_groups"):
        hybrid.storage.batch_exists_v2(
            named, [PoolTransfer("swa", hit_policy=PoolHitPolicy.BLOCK_GROUPS)]
        )


def test_the_log_and_the_metrics_have_every_pool(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    hybrid = Hybrid(tmp_path, enable_storage_metrics=True)
    assert re.search(r"keeps 6 pages of mamba of 1 tokens and 448 bytes in .*rank-0", caplog.text)
    named = keys("a", 3)
    assert put(hybrid.storage, named, 0, 1, 2) == [True] * 3
    hybrid.write("mamba", named[2:])
    figures = hybrid.storage.get_stats()
    assert figures.backup_pgs == [3, 1]
    hybrid.storage.close()


def test_a_storage_of_one_pool_takes_its_transfer(tmp_path: Path) -> None:
    storage = opened(tmp_path)
    named = whole(storage, "a", 3)
    assert storage.batch_exists_v2(named).kv_hit_pages == 3
    rows = storage.mem_pool_host.rows(4, 5, 6)
    assert storage.batch_get_v2([PoolTransfer("kv", rows, None, named)]) == {"kv": [True] * 3}
    storage.close()
