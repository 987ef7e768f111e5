"""What a caller says of a request: checked and copied when it is made, and frozen."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import blockyard as by
from loop import Loop
from yard import text


def test_it_is_frozen_and_what_the_caller_does_later_changes_nothing() -> None:
    tokens, media = np.arange(8, dtype=np.uint32), [(0, 2, "a")]
    new = by.NewRequest("one", tokens, max_tokens=2, media=media)
    tokens[:] = 9
    media.clear()
    assert new.prompt.tolist() == list(range(8))
    assert new.media == [(0, 2, "a")]
    with pytest.raises(ValueError, match="read-only"):
        new.prompt[0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        new.max_tokens = 3  # type: ignore[misc]


def test_an_iterator_of_items_is_read_once_and_serves_again() -> None:
    loop = Loop()
    new = by.NewRequest("one", text(1, 9), max_tokens=1, media=iter([(0, 2, "a")]))
    for _ in range(2):
        loop.scheduler.add(new)
        loop.finish()
        assert len(loop.results.pop("one").tokens) == 1


@pytest.mark.parametrize("wrong", [None, "one", 3, ("one", [1], 2), by.NewRequest])
def test_what_is_no_request_is_refused(wrong: Any) -> None:
    loop = Loop()
    with pytest.raises(by.Misuse, match="must be NewRequest"):
        loop.scheduler.add(wrong)
    assert loop.scheduler.idle


@pytest.mark.parametrize("wrong", [None, {"ttl": 1}, ("retain",)])
def test_what_are_no_hints_is_refused(wrong: Any) -> None:
    loop = Loop()
    with pytest.raises(by.Misuse, match=r"hints = .*: must be Hints"):
        by.NewRequest("one", [1], max_tokens=1, hints=wrong)
    loop.add("one", 5, 2)
    with pytest.raises(by.Misuse, match=r"hints = .*: must be Hints"):
        loop.scheduler.hint("one", wrong)
    loop.finish()
