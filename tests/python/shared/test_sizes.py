"""Amounts of memory as text."""

from fractions import Fraction
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockyard._core import Misuse
from blockyard.shared.sizes import UNITS, Size, parse_size
from yard import profile

PER: list[Literal["host", "rank"] | None] = [None, "host", "rank"]


def test_the_units_are_binary_ones_and_decimal_ones() -> None:
    assert dict(UNITS) == {
        "KiB": 1024,
        "MiB": 1024**2,
        "GiB": 1024**3,
        "TiB": 1024**4,
        "MB": 1000**2,
        "GB": 1000**3,
    }


@given(
    st.decimals(0, 10**6, places=3),
    st.sampled_from(sorted(UNITS)),
    st.sampled_from(PER),
    st.data(),
)
@profile(200)
def test_spaces_and_case_do_not_matter(
    amount: object, unit: str, per: Literal["host", "rank"] | None, data: st.DataObject
) -> None:
    def space(least: int = 0) -> str:
        return " " * data.draw(st.integers(least, 2))

    spelt = data.draw(st.sampled_from([unit, unit.lower(), unit.upper()]))
    each = ""
    if per is not None:
        slash = f"/{space()}"
        each = space() + data.draw(st.sampled_from([per, per.upper()]))
        each = data.draw(st.sampled_from([slash, f" per{space(1)}"])) + each
    found = parse_size("host", f"{space()}{amount}{space()}{spelt}{space()}{each}{space()}")
    exact = Fraction(str(amount)) * UNITS[unit]
    assert found.nbytes - 1 < exact <= found.nbytes
    assert found == Size(found.nbytes, f"{amount} {unit}", per)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("2.3 MB", 2_300_000),
        (".5 TiB", 2**39),
        ("5. KiB", 5120),
        ("1e3 GB", 10**12),
        ("1_000 MiB", 1000 << 20),
        ("0 GiB", 0),
        ("1e-9 GiB", 2),
        ("1e-999 GiB", 1),
    ],
)
def test_a_number_is_exact_and_rounded_up(text: str, nbytes: int) -> None:
    assert parse_size("host", text).nbytes == nbytes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "64",
        "GiB",
        "64 G",
        "64 KB",
        "64 TB",
        "64 bytes",
        "64 Gb",
        "64 Gib",
        "-1 GiB",
        "nan GiB",
        "1e400 GiB",
        "1e-99999999999999999999 GiB",
        "1.2.3 GiB",
        "٣ GiB",
        "8 GiB/node",
        "8 GiB/",
        "8 GiBrank",
        "8 GiB rank",
        "8 GiB/rank/rank",
    ],
)
def test_what_is_no_size_is_named_and_the_units_are_listed(text: str) -> None:
    with pytest.raises(Misuse) as caught:
        parse_size("host", text)
    assert str(caught.value) == (
        f"host = {text!r}: give blocks, or memory like '64 GiB' or '8 GiB/rank', "
        "in KiB, MiB, GiB, TiB, MB, GB"
    )
