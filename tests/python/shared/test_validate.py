"""One check of an integer and one of a word, which say what was given and what it must be."""

import enum
import re
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.shared.validate import integer, one_of


class Level(enum.IntEnum):
    LOW = 3


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), Level.LOW])
def test_an_integer_of_python_or_numpy_comes_out_as_a_plain_one(value: object) -> None:
    assert integer("n", value) == 3
    assert type(integer("n", value)) is int


def test_zero_and_less_are_for_those_that_say_so() -> None:
    assert integer("n", 0, least=0) == 0
    assert integer("n", np.int32(-5), least=None) == -5
    assert integer("n", 7, most=7) == 7


@pytest.mark.parametrize(
    ("value", "least", "most", "said"),
    [
        (0, 1, None, "n = 0: must be an integer >= 1"),
        (np.int64(-1), 0, 9, "n = np.int64(-1): must be an integer from 0 to 9"),
        (10, 0, 9, "n = 10: must be an integer from 0 to 9"),
        (True, 1, None, "n = True: must be an integer >= 1"),
        (np.True_, 1, None, "n = np.True_: must be an integer >= 1"),
        (1.0, None, 9, "n = 1.0: must be an integer <= 9"),
        (np.float64(1), 1, None, "n = np.float64(1.0): must be an integer >= 1"),
        ("8", 1, None, "n = '8': must be an integer >= 1"),
        (None, 1, None, "n = None: must be an integer >= 1"),
        ("x" * 99, 1, None, f"n = '{'x' * 59}: must be an integer >= 1"),
    ],
)
def test_what_is_no_integer_or_out_of_range_is_refused(
    value: object, least: int | None, most: int | None, said: str
) -> None:
    with pytest.raises(by.Misuse, match=f"^{re.escape(said)}$"):
        integer("n", value, least=least, most=most)


def test_an_integer_too_long_to_be_written_is_refused_all_the_same() -> None:
    with pytest.raises(by.Misuse, match="n = an integer of thousands of digits: must be"):
        integer("n", 10**5_000, most=9)


def test_a_word_comes_out_as_it_stands_in_the_list() -> None:
    assert one_of("mode", "b", ("a", "b")) == "b"
    assert type(one_of("mode", np.str_("b"), ("a", "b"))) is str
    assert one_of("flag", value=True, words=(True, False)) is True


@pytest.mark.parametrize(
    ("value", "words", "said"),
    [
        ("c", ("a", "b"), "mode = 'c': must be one of 'a', 'b'"),
        (1, ("a", "b"), "mode = 1: must be one of 'a', 'b'"),
        ([], ("a",), "mode = []: must be one of 'a'"),
        (1, (True, False), "mode = 1: must be one of True, False"),
    ],
)
def test_another_word_is_refused_with_all_that_are_allowed(
    value: object, words: tuple[str | bool, ...], said: str
) -> None:
    with pytest.raises(by.Misuse, match=f"^{re.escape(said)}$"):
        one_of("mode", value, words)


def test_a_configuration_of_numpy_integers_is_that_of_plain_ones() -> None:
    eight: Any = np.int64(8)
    small: Any = np.int8(100)
    layout = by.KVLayout.llama(small, eight, eight, block_size=2 * eight)
    plain = by.KVLayout.llama(100, 8, 8, block_size=16)
    assert layout == plain
    assert layout.fingerprint == plain.fingerprint
    config = by.Config(layout=layout, device=eight, copy_retries=eight, block_costs=(eight, 1, 2))
    other = by.Config(layout=plain, device=8, copy_retries=8, block_costs=(8, 1, 2))
    assert config.fingerprint == other.fingerprint
    assert by.KVCache(config).limit() == 7
