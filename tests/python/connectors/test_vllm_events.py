"""What vLLM's publisher is told of the tiers below, by vLLM's own numbers."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest

import kv_events
import vllm_front  # noqa: F401 - its stubs come first
from kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from vllm_front import SIZE, Front, Pool, no_torch
from vllm_stub import Recorded

__all__ = ["no_torch"]

OPTIONS: Final = Path(__file__).parent / "vllm_0_33.json"


def events_config(**said: Any) -> dict[str, Any]:
    return {"kv_events_config": Recorded("KVEventsConfig", enable_kv_cache_events=True, **said)}


def numbers(tokens: list[int]) -> list[int]:
    """As vLLM tells the blocks of a request."""
    ends = range(SIZE, len(tokens) + 1, SIZE)
    hashes = [sha256(str(tokens[:end]).encode()).digest() for end in ends]
    return [int.from_bytes(one, "big") & ((1 << 64) - 1) for one in hashes]


def finished(front: Front, name: str, tokens: list[int], ids: list[int], **more: Any) -> list[Any]:
    request = front.request(name, tokens, **more)
    front.begin(request, ids)
    front.step({request: (ids, len(tokens))})
    front.scheduler.request_finished(request, ids)
    front.step({})
    front.step({})
    return list(front.scheduler.take_events())


@pytest.mark.law("O1")
def test_what_is_offloaded_is_told_by_the_numbers_of_vllm_with_its_tokens() -> None:
    front = Front(changes=events_config())
    tokens = list(range(3 * SIZE + 1))
    events = finished(front, "one", tokens, [1, 2, 3, 4])
    assert all(isinstance(one, BlockStored) and one.medium == "CPU" for one in events)
    told = [name for one in events for name in one.block_hashes]
    assert sorted(told) == sorted(numbers(tokens))
    assert [token for one in events for token in one.token_ids] == tokens[:-1]
    assert events[0].parent_block_hash is None
    assert list(front.scheduler.take_events()) == []


@pytest.mark.law("O1")
def test_what_a_reset_leaves_below_is_told_again_behind_vllms_clear() -> None:
    front, pool = Front(changes=events_config()), Pool()
    front.scheduler.bind_gpu_block_pool(pool)
    tokens = list(range(3 * SIZE + 1))
    finished(front, "one", tokens, [1, 2, 3, 4])
    pool.reset()
    events = list(front.scheduler.take_events())
    assert all(isinstance(one, BlockStored) and one.medium == "CPU" for one in events)
    assert [name for one in events for name in one.block_hashes] == numbers(tokens)
    assert list(front.scheduler.take_events()) == []


def test_a_reset_removes_what_is_below_and_nothing_of_vllms_own() -> None:
    front = Front(changes=events_config())
    tokens = list(range(3 * SIZE + 1))
    finished(front, "one", tokens, [1, 2, 3, 4])
    front.scheduler.reset_cache()
    events = list(front.scheduler.take_events())
    assert all(isinstance(one, BlockRemoved) and one.medium == "CPU" for one in events)
    assert {name for one in events for name in one.block_hashes} == set(numbers(tokens))
    assert not any(isinstance(one, AllBlocksCleared) for one in events)


@pytest.mark.law("O5")
def test_media_and_adapters_come_along_and_salts_do_not() -> None:
    front = Front(changes=events_config())
    place = Recorded("PlaceholderRange", offset=1, length=SIZE)
    image = Recorded("MultiModalFeatureSpec", identifier="an image", mm_position=place)
    tokens = list(range(2 * SIZE + 1))
    events = finished(front, "one", tokens, [1, 2, 3], mm_features=[image])
    assert [extra for one in events for extra in one.extra_keys or ()] == [
        (["an image", 1],),
        (["an image", 1 - SIZE],),
    ]
    assert finished(front, "two", [7] * (SIZE + 1), [4, 5], cache_salt="a tenant's") == []
    assert finished(front, "three", [8] * (SIZE + 1), [6, 7], prompt_embeds=object()) == []


@pytest.mark.parametrize("said", [None, "off"])
def test_where_vllm_publishes_nothing_nobody_listens(said: str | None) -> None:
    changes: dict[str, Any] = {}
    if said:
        own = Recorded("KVEventsConfig", enable_kv_cache_events=False)
        changes = {"kv_events_config": own}
    front = Front(changes=changes)
    assert finished(front, "one", list(range(2 * SIZE + 1)), [1, 2, 3]) == []


def test_the_types_that_tests_decode_with_have_the_fields_of_vllms() -> None:
    for name, fields in json.loads(OPTIONS.read_text("utf-8"))["wire"].items():
        assert list(getattr(kv_events, name).__struct_fields__) == fields
