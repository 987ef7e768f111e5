"""Amounts of memory as text."""

from fractions import Fraction
from typing import TYPE_CHECKING, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockyard._core import Misuse
from blockyard.shared.layout import KVLayout
from blockyard.shared.sizes import UNITS, Size, parse_blocks, parse_bytes, parse_size
from blockyard.yard.tier_sizes import in_blocks
from yard import profile

if TYPE_CHECKING:
    from collections.abc import Callable

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
        "4_ GiB",
        "4__0 GiB",
        "9" * 5000,
    ],
)
def test_what_is_no_size_is_named_and_the_units_are_listed(text: str) -> None:
    with pytest.raises(Misuse) as caught:
        parse_size("host", text)
    assert str(caught.value) == (
        f"host = {text!r}: give blocks, or memory like '64 GiB' or '8 GiB/rank', "
        "in KiB, MiB, GiB, TiB, MB, GB"
    )


LAYOUT = KVLayout.llama(layers=32, kv_heads=8, head_dim=128, dtype="bfloat16", block_size=16)


def read_everywhere(text: str, tier: str = "host") -> list[int | str]:
    """Returns what a configuration and a command make of a size: blocks, or the error."""
    found: list[int | str] = []
    reads: list[Callable[[], int | str]] = [
        lambda: in_blocks(tier, text, LAYOUT),
        lambda: parse_blocks(tier, text, LAYOUT.block_bytes, least=0),
    ]
    for read in reads:
        try:
            found.append(read())
        except Misuse as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("4096 blocks", 4096),
        (" 4_096 blocks ", 4096),
        ("4096Blocks", 4096),
        ("1 block", 1),
        ("0 blocks", 0),
        ("0 GiB", 0),
        ("4GiB", 2048),
        ("4 gib", 2048),
        ("4GiB/rank", 2048),
        ("4 GiB/host", 2048),
    ],
)
def test_a_size_is_the_same_in_a_configuration_and_a_command(text: str, blocks: int) -> None:
    assert read_everywhere(text) == [blocks, blocks]


def test_a_number_in_quotes_is_refused_but_on_a_command_line_where_all_is_text() -> None:
    library, command = read_everywhere("4_096")
    assert str(library).startswith("host = '4_096': give blocks, or memory like '64 GiB'")
    assert command == 4096


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "-1", "-4 GiB", "+4GiB", "1.5", "1e3", "nan", "4_", "4__0", "4,096", "10 %"),
        *("4 PiB", "1024 block s", "1024 tokens", "4Gb", "0x10", "٣", "1 KiB", "4GiB 2MiB"),
        "9" * 5000,
    ],
)
def test_what_is_no_size_is_refused_alike_in_a_configuration_and_a_command(text: str) -> None:
    library, command = read_everywhere(text)
    assert library == command
    assert str(library).startswith(f"host = {text!r}: ")
    assert "give " in str(library)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("much", "give bytes, or memory like '2 MiB', in KiB, MiB, GiB, TiB, MB, GB"),
        ("8 blocks", "give bytes, or memory like '2 MiB', in KiB, MiB, GiB, TiB, MB, GB"),
        ("4 MiB/rank", "this is not by rank or host; give '4 MiB'"),
        ("0", "must be 1 to 4,194,304 bytes"),
        ("5 MiB", "must be 1 to 4,194,304 bytes"),
    ],
)
def test_an_amount_of_bytes_is_refused_in_its_own_words(text: str, says: str) -> None:
    with pytest.raises(Misuse) as caught:
        parse_bytes("--bytes", text, most=4 << 20)
    assert str(caught.value) == f"--bytes = {text!r}: {says}"
    assert parse_bytes("--bytes", "4096", most=4 << 20) == 4096
    assert parse_bytes("--bytes", "4MiB", most=4 << 20) == 4 << 20
