"""Two engines over one store, of which anything differs that bytes depend on, share nothing."""

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from blockyard.crane.tiers.remote import RemoteTier
from blockyard.stores.open import open_store

BLOCKS = 6
FIGURES: Any = {"layers": 2, "kv_heads": 2, "head_dim": 8, "block_size": 4, "dtype": "float16"}
LAYOUT = by.KVLayout.llama(**FIGURES)
OURS = {"model": "a model", "weights": "v1"}
TOKENS = range(4 * BLOCKS)
CONFIG = by.Config(
    layout=LAYOUT, device=BLOCKS + 2, remote=64, write="through", ahead=BLOCKS, namespace=OURS
)
UNLIKE: dict[str, by.Config] = {
    "weights": replace(CONFIG, namespace={**OURS, "weights": "v2"}),
    "model": replace(CONFIG, namespace={**OURS, "model": "another"}),
    "dtype": replace(CONFIG, layout=replace(LAYOUT, dtype="bfloat16")),
    "layers": replace(CONFIG, layout=by.KVLayout.llama(**FIGURES | {"layers": 3})),
    "key hash": replace(CONFIG, key_hash="xxh3"),
    "group of layers": replace(CONFIG, group=1),
}


def settle(cache: Any) -> None:
    until = time.monotonic() + 30
    while cache.step() or cache.stats()["flights"]:
        assert time.monotonic() < until
        time.sleep(1e-4)


def plane(cache: Any) -> Any:
    """The bytes of the device."""
    return cache.crane.device.planes[0]


def write(url: str) -> None:
    """Has an engine write blocks into a store."""
    with by.local(CONFIG, stores=[url]) as cache:
        lease = cache.begin(TOKENS)
        plane(cache)[:] = 7
        cache.seal(lease, len(TOKENS))
        settle(cache)
        cache.finish(lease)
        assert cache.stats()["remote_put_blocks"] == BLOCKS


def loaded(url: str, config: by.Config) -> tuple[int, dict[str, int]]:
    """How many blocks an engine loads that takes all of them for there, and its counts."""
    with by.local(config, stores=[url]) as cache:
        keys = cache.keys(TOKENS)
        assert cache.adopt(keys) == BLOCKS
        lease = cache.begin(TOKENS)
        settle(cache)
        blocks = -(-lease.cached // 4)
        table = cache.block_tables(lease)[0][:blocks]
        assert (plane(cache)[table] == 7).all()
        cache.finish(lease)
        assert cache.audit() is None
        return blocks, cache.stats()


def addresses(config: by.Config, url: str, rank: int = 0) -> list[str]:
    """Where an engine looks for the blocks."""
    layout = config.layout
    assert layout is not None
    with closing(
        RemoteTier(
            layout,
            1,
            [open_store(url)],
            identity=config.identity,
            rank=rank,
            group=config.group,
        )
    ) as tier:
        keys = by.KVCache(replace(config, layout=None)).keys(TOKENS)
        return [tier.place.address(bytes.fromhex(key)) for key in keys.hex()]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with the blocks of an engine."""
    write(tmp_path.as_uri())
    return tmp_path.as_uri()


def test_two_engines_that_are_alike_share_all(url: str) -> None:
    blocks, counts = loaded(url, replace(CONFIG, device=40, spare=0, host=8))
    assert blocks == BLOCKS
    assert counts["remote_got_blocks"] == BLOCKS


@pytest.mark.parametrize("what", UNLIKE)
def test_an_unlike_one_finds_nothing(url: str, what: str) -> None:
    theirs = addresses(UNLIKE[what], url)
    # Also where an engine makes its keys, and these do not depend on what differs.
    (ours,), (other,) = (
        {one.split("/")[1] for one in each} for each in (addresses(CONFIG, url), theirs)
    )
    assert ours != other
    with closing(open_store(url).connect()) as session:
        assert session.has(addresses(CONFIG, url)) == [True] * BLOCKS
        assert session.has(theirs) == [False] * BLOCKS
    blocks, counts = loaded(url, UNLIKE[what])
    assert blocks == 0
    assert counts["remote_missing"] > 0


@pytest.mark.parametrize("what", UNLIKE)
def test_an_unlike_one_takes_no_value_that_a_store_mixed_up(url: str, what: str) -> None:
    """The record says whose a value is, also where the address lies."""
    room = memoryview(bytearray(1 << 16))
    with closing(open_store(url).connect()) as session:
        for ours, theirs in zip(addresses(CONFIG, url), addresses(UNLIKE[what], url), strict=True):
            value = session.get(ours, room)
            assert value is not None
            session.put(theirs, memoryview(bytes(value)))
    blocks, counts = loaded(url, UNLIKE[what])
    assert blocks == 0
    assert counts["remote_corrupt"] > 0


def test_ranks_and_numbers_of_ranks_share_nothing(url: str) -> None:
    two = replace(CONFIG, layout=by.KVLayout.llama(**FIGURES, ranks=2), ranks=2)
    every = [addresses(CONFIG, url), addresses(two, url), addresses(two, url, rank=1)]
    assert len({*every[0], *every[1], *every[2]}) == 3 * BLOCKS
