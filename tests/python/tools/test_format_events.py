"""KV cache events become a trace of what was stored, without hits."""

from io import BytesIO
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockyard._typing import override
from blockyard.tools.traces.formats.format import How
from blockyard.tools.traces.formats.msgpack import split
from blockyard.tools.traces.formats.registry import FORMATS
from blockyard.tools.traces.formats.tokenizer import Words
from logs import DATA, ids, made, put, refused
from yard import profile


@pytest.mark.parametrize("name", ["vllm-0.33.events.jsonl", "vllm-0.33.events.msgpack"])
def test_vllms_own_events_tell_what_was_stored_but_no_hits(tmp_path: Path, name: str) -> None:
    how = How(Words())
    trace, _ = made(tmp_path, "kv-events", DATA / name, how=how, block_size=16)
    assert ids(trace) == [[0, 1, 2, 3], [0, 1, 4, 5], [6, 7, 8, 9, 10]]
    assert trace.arrival.tolist() == [0, 500, 1000]
    assert trace.trace_block == 16
    assert "not what was asked for again" in trace.hits_unknown
    assert list(how.notes) == ["blocks stored again after they were removed, for want of room: 4"]


def test_sglangs_own_events_are_read(tmp_path: Path) -> None:
    path = DATA / "sglang-0.5.23.events.msgpack"
    trace, _ = made(tmp_path, "kv-events", path, block_size=16)
    # A branch grows while nothing else stands on its end.
    assert ids(trace) == [[0, 1, 2], [0, 1, 3, 4]]
    form = FORMATS["kv-events"]
    assert form.block_size is not None
    assert form.block_size(path) == 16


def stored(blocks: list[int], parent: int | None = None, **more: object) -> dict[str, object]:
    event = {"type": "BlockStored", "block_hashes": blocks, "parent_block_hash": parent}
    return {**event, "token_ids": [], "block_size": 8, "lora_id": None, "medium": "GPU", **more}


def test_events_of_other_media_groups_and_sizes_are_left_out(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        [1.0, [stored([1, 2]), stored([1, 2], medium="CPU"), stored([9], group_idx=1)], 0],
        [2.0, [["BlockStored", [3], 2, [], 8, None, "GPU"], {"type": "AllBlocksCleared"}], 0],
        [3.0, [stored([7], parent=5), stored([8], parent=3, block_size=4)]],
    )
    how = How(Words())
    trace, _ = made(tmp_path, "kv-events", path, how=how)
    assert ids(trace) == [[0, 1, 2], [3]]
    assert list(how.notes) == [
        "events left out as they are of further groups of layers: 1",
        "chains of blocks that begin before the file does: 1",
        "events left out as their blocks are not of 8 tokens: 1",
    ]
    for wrong, says in (
        ([1.0], "it is no batch; give batches of KV events"),
        (["x", []], "field time: 'x'; give seconds"),
        ([1.0, [3]], "3 is no event"),
        ([1.0, [stored([], block_size=0)]], "field block_size: 0; give a whole number from 1"),
        ([1.0, [{"type": "BlockRemoved", "block_hashes": [1]}]], "no block is stored in it"),
    ):
        assert says in refused(tmp_path, "kv-events", wrong)


ATOMS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=40)
    | st.binary(max_size=300)
)
INNER = st.lists(ATOMS, max_size=18) | st.dictionaries(st.text(max_size=3), ATOMS, max_size=18)


@given(st.lists(ATOMS | INNER | st.lists(INNER, max_size=3), max_size=4), st.integers(1, 40))
@profile(100)
def test_msgpack_objects_are_told_apart(objects: list[object], chunk: int) -> None:
    class Slow(BytesIO):
        @override
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or 0, chunk))

    parts = [msgspec.msgpack.encode(one) for one in objects]
    assert list(split(Slow(b"".join(parts)))) == parts
    if parts and len(parts[-1]) > 1:
        with pytest.raises(ValueError, match="ends within an object"):
            list(split(Slow(b"".join(parts)[:-1])))
