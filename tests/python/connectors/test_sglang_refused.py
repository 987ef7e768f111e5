"""What SGLang's storage refuses, with the line to write instead."""

import re
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from blockyard._typing import override
from blockyard.connectors.sglang import Storage
from blockyard.connectors.sglang.storage_settings import StorageSettings
from sglang_pages import PAGES, config, keys, opened, put, refused, store, take, whole
from sglang_stub import Pool

__all__ = ["store"]


WORDS: list[tuple[dict[str, Any], str]] = [
    ({"disk": None}, 'disk is missing: give it, as "disk": "200 GiB"'),
    ({"disk_path": None}, 'disk_path is missing: give it, as "disk_path": "/data/kv"'),
    ({"disk_path": 3}, "disk_path = 3: must be the path of a folder"),
    ({"disk_path": "~nobody-of-that-name/a"}, "Give the whole path"),
    ({"disk_path": "a\0b"}, "a path has no NUL in it"),
    ({"host": "64 GiB"}, "the memory of the host is SGLang's: give --hicache-size"),
    ({"split": [1, 4]}, "leave it out: SGLang's --swa-full-tokens-ratio and --mamba-full-memory"),
    ({"typical": 8192}, "leave it out: SGLang's"),
    ({"disk": ["1 GiB", "1 GiB"]}, "SGLang divides the disk among its groups of layers; give one"),
    ({"DISK": "1 GiB"}, "did you mean 'disk'?"),
    ({"interface_v1": None}, 'write "interface_v1": 1, as in --hicache-storage-backend-extra'),
    ({"interface_v1": 0}, "interface_v1 is missing"),
    ({"thread": 2}, "there is no 'thread' in --hicache-storage-backend-extra-config: did you mean"),
    ({"threads": 0}, "threads = 0: must be an integer from 1 to 64"),
    ({"patience": 0}, "patience = 0: must be seconds, more than 0"),
    ({"patience": True}, "patience = True: must be seconds"),
    ({"patience": "long"}, "patience = 'long': must be seconds"),
    ({"direct": 1}, "direct = 1: must be one of True, False"),
    ({"disk_reclaim": 1}, "disk_reclaim = 1: must be one of True, False"),
    ({"namespace": "v1"}, "namespace = 'v1': give a mapping of names to text"),
    ({"namespace": {"weights": 1}}, "namespace = {'weights': 1}: give a mapping of names to text"),
    ({"namespace": {}}, 'give "namespace": {"weights": "v1"}'),
    ({"namespace": None}, "the weights cannot be identified"),
]


@pytest.mark.parametrize(("words", "text"), WORDS, ids=[str(one[0]) for one in WORDS])
def test_a_word_that_is_wrong_is_named(tmp_path: Path, words: dict[str, Any], text: str) -> None:
    refused(tmp_path, by.Misuse, text, extra=words)


@pytest.mark.parametrize("extra", ["text", 5, [1]])
def test_what_is_no_mapping_is_named(extra: Any) -> None:
    with pytest.raises(by.Misuse, match="is no mapping"):
        StorageSettings.of_extra(extra)


def test_words_of_sglang_itself_are_no_concern_of_ours(tmp_path: Path) -> None:
    opened(tmp_path, extra={"prefetch_threshold": 4, "prefetch_timeout_base": 2}).close()


SHAPES: list[tuple[dict[str, Any], str]] = [
    ({"is_mla_model": True, "tp_size": 2}, "start with --enable-dp-attention"),
    ({"attn_cp_size": 2}, "attn_cp_size = 2: a page's tokens must lie on one rank"),
    ({"dcp_size": 2}, "dcp_size = 2: a page's tokens must lie on one rank"),
    ({"should_split_heads": True}, "leave tp_lcm_size out"),
]


@pytest.mark.parametrize(("more", "text"), SHAPES, ids=[str(one[0]) for one in SHAPES])
def test_ranks_that_cannot_be_served_are_refused(
    tmp_path: Path, more: dict[str, Any], text: str
) -> None:
    refused(tmp_path, by.Unsupported, text, **more)


def test_latent_kv_of_one_rank_is_served(tmp_path: Path) -> None:
    storage = opened(tmp_path, is_mla_model=True)
    whole(storage, "a", 3)
    storage.close()


def test_a_model_without_a_name_is_refused_unless_the_operator_gives_one(tmp_path: Path) -> None:
    refused(tmp_path, by.Misuse, 'give "namespace": {"model": …}', model_name=None)
    named = {"namespace": {"weights": "v1", "model": "mine"}}
    opened(tmp_path, model_name=None, extra=named).close()


@pytest.mark.parametrize("layout", ["layer_first", "page_head", "page_unified"])
def test_other_layouts_of_the_host_are_refused_with_the_option(tmp_path: Path, layout: str) -> None:
    with pytest.raises(by.Misuse, match="start with --hicache-mem-layout page_first"):
        opened(tmp_path, Pool(PAGES, layout=layout))


POOLS: list[tuple[dict[str, Any], str]] = [
    ({"shared_allocation_domain": object()}, "start without --enable-unified-memory"),
    ({"dcp_size": 2}, "Pool of 2 ranks: all tokens of a page must be on one rank"),
    ({"kv_buffer": None}, "Pool: it does not own its memory"),
]


@pytest.mark.parametrize(("fields", "text"), POOLS, ids=[str(one[1]) for one in POOLS])
def test_pools_whose_pages_do_not_stay_in_place_are_refused(
    tmp_path: Path, fields: dict[str, Any], text: str
) -> None:
    pool = Pool(PAGES)
    vars(pool).update(fields)
    with pytest.raises(by.Unsupported, match=re.escape(text)):
        opened(tmp_path, pool)


def test_a_pool_with_uneven_pages_is_refused(tmp_path: Path) -> None:
    class Uneven(Pool):
        @override
        def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
            places, sizes = super().get_page_buffer_meta(indices)
            return [place + (int(indices[0]) > self.page_size) for place in places], sizes

    with pytest.raises(by.Unsupported, match="Uneven: its pages are not equally spaced in memory"):
        opened(tmp_path, Uneven(PAGES))


def test_what_is_registered_again_is_taken_and_another_is_not(store: Storage) -> None:
    store.register_mem_pool_host(store.mem_pool_host)
    store.register_mem_host_pool_v2(store.mem_pool_host, "kv")
    store.on_host_pools_registered()
    with pytest.raises(by.Misuse, match="another host pool"):
        store.register_mem_pool_host(Pool(4))


@pytest.mark.parametrize("call", ["get", "set", "batch_get", "batch_set"])
def test_calls_with_tensors_are_refused_with_the_line(store: Storage, call: str) -> None:
    with pytest.raises(
        by.Unsupported, match=f'{call}: pages are only copied .* write "interface_v1": 1'
    ):
        getattr(store, call)(keys("a", 1)[0])


def test_before_there_is_a_pool_it_says_so(tmp_path: Path) -> None:
    storage = Storage(config(tmp_path), {})
    with pytest.raises(by.Misuse, match="no host pool: call register_mem_pool_host"):
        storage.batch_exists(keys("a", 1))
    assert storage.get_stats() is None
    storage.close()
    with pytest.raises(by.Misuse, match="kwargs"):
        Storage(config(tmp_path), {"more": 1})


def test_a_disk_smaller_than_a_page_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        by.Misuse, match="disk = '1 KiB': smaller than one block of 1,536 bytes; give more"
    ):
        opened(tmp_path, extra={"disk": "1 KiB"})
    with pytest.raises(by.Misuse, match="disk = 0: must be an integer >= 1"):
        opened(tmp_path, extra={"disk": 0})


def test_another_size_of_a_disk_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    first = opened(tmp_path)
    named = whole(first, "a", 3)
    first.close()
    with pytest.raises(by.Unavailable, match="it has 65536 bytes, and 131072 are wanted"):
        opened(tmp_path, extra={"disk": 32})
    again = opened(tmp_path)
    assert again.batch_exists(named) == 3
    again.close()


KEYS: list[tuple[Any, str]] = [
    ("ab", "key 'ab': must be 64 hexadecimal digits"),
    ("x" * 64, "must be 64 hexadecimal digits, as SGLang makes them"),
    (" " * 32 + "a" * 32, "must be 64 hexadecimal digits"),
    (b"a" * 64, "must be 64 hexadecimal digits"),
    (None, "key None: must be 64"),
    ("0" * 64, "no page can have it"),
    ("F" * 64, "no page can have it"),
]


@pytest.mark.parametrize(("key", "text"), KEYS, ids=[str(one[0])[:9] for one in KEYS])
def test_a_key_that_is_none_is_refused(store: Storage, key: Any, text: str) -> None:
    for call in (
        lambda: store.batch_exists([key]),
        lambda: take(store, [key], 0),
        lambda: put(store, [key], 0),
        lambda: put(store, keys("a", 1), 0, before=[key]),
    ):
        with pytest.raises(by.Misuse, match=re.escape(text)):
            call()
    assert store.stats()["disk_in"] == 0


def test_rows_that_are_no_pages_are_refused(store: Storage) -> None:
    named, pool = keys("a", 2), store.mem_pool_host
    for rows, text in (
        (pool.rows(0), "host_indices has shape (4,): 2 keys of pages of 4 tokens need (8,)"),
        (pool.rows(0, 1)[::-1], "host_indices are no whole pages of 4 tokens"),
        (pool.rows(0, 1) + 1, "host_indices are no whole pages of 4 tokens"),
        (pool.rows(0, 1)[[0, 2, 1, 3, 4, 5, 6, 7]], "host_indices are no whole pages of 4 tokens"),
        (pool.rows(0, PAGES), f"ids = {PAGES}: the engine has no such block"),
        (pool.rows(0, -1), "ids"),
        (pool.rows(3, 3), "ids = 3: it comes twice"),
    ):
        for call in (store.batch_set_v1, store.batch_get_v1):
            with pytest.raises(by.Misuse, match=re.escape(text)):
                call(named, rows)
    assert put(store, named, 0, 1) == [True, True]
