"""Lengths that lie, and rows that are none, where the core reads several of anything."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard import _core
from blockyard._typing import override


class Liar(list[Any]):
    """A list that says that it has any number of items."""

    def __init__(self, items: list[Any], said: int) -> None:
        super().__init__(items)
        self._said = said

    @override
    def __len__(self) -> int:
        return self._said


class Sized:
    """No list: `len` says one thing, and iterating another."""

    def __init__(self, items: list[Any], said: int) -> None:
        self._items, self._said = items, said

    def __len__(self) -> int:
        return self._said

    def __getitem__(self, at: int) -> Any:
        return self._items[at]


@pytest.mark.parametrize("kind", [Liar, Sized])
@pytest.mark.parametrize("said", [2**62, 2**31, 0])
def test_a_length_that_lies_ends_no_process(kind: type, said: int, tmp_path: Any) -> None:
    core: Any = _core
    fields = {"rank": 0, "slots": 4, "block_bytes": 4096}

    def tried(act: Callable[[], object]) -> None:
        with contextlib.suppress(by.BlockyardError):
            act()

    tried(lambda: core.Cache(device=8, host=8, writes_below=kind(["on-evict"], said)))
    tried(lambda: core.DiskLane(tmp_path / "a", kind([("model", "m")], said), **fields).close())
    lane = core.DiskLane(tmp_path / "b", [("model", "m")], **fields)
    memory = np.zeros(4096, np.uint8)
    planes = [([memory.ctypes.data], 4096, 4096)]
    key = bytes(range(32))
    rows = [0], key, bytes(32), [lane.run << 32]
    tried(lambda: lane.submit_down(*rows, kind(planes, said), [0]))
    tried(lambda: lane.submit_up([0], key, kind(planes, said), [0]))
    lane.close()


@pytest.mark.parametrize("wrong", [None, 7, "host", [7], [None], ["x"], [(1,)], [("a", 1)]])
def test_rows_of_a_disk_that_are_none_are_refused_by_name(wrong: Any, tmp_path: Any) -> None:
    core: Any = _core
    given = {"rank": 0, "slots": 4, "block_bytes": 4096}
    with pytest.raises(by.Misuse, match="fields = "):
        core.DiskLane(tmp_path / "a", wrong, **given)
    if wrong is not None:
        with pytest.raises(by.Misuse, match="writes_below = "):
            core.Cache(device=8, host=8, writes_below=wrong)
    lane = core.DiskLane(tmp_path / "b", [("model", "m")], **given)
    with pytest.raises(by.Misuse, match="planes = "):
        lane.submit_up([0], bytes(range(32)), wrong, [0])
    lane.close()
