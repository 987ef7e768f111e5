"""Azure's traces have lengths and times, and no hits are claimed of them."""

from pathlib import Path

import pytest

from blockyard.tools.traces.formats.format import How
from blockyard.tools.traces.formats.times import milliseconds
from blockyard.tools.traces.formats.tokenizer import Words
from logs import ids, made, put, refused


def test_azures_two_forms_are_read_and_no_hits_are_claimed(tmp_path: Path) -> None:
    header = "TIMESTAMP,ContextTokens,GeneratedTokens"
    old = put(
        tmp_path,
        header,
        "2023-11-16 18:15:46.6805900,374,44",
        "2023-11-16 18:15:50.9951690,396,109",
    )
    how = How(Words())
    trace, _ = made(tmp_path, "azure", old, how=how)
    assert trace.arrival.tolist() == [0, 4315]
    assert trace.input_length.tolist() == [374, 396]
    assert trace.output_length.tolist() == [44, 109]
    assert ids(trace) == [[], []]
    assert "lengths only" in trace.hits_unknown
    new = put(tmp_path, "\ufeff" + header, "2024-05-10 00:00:00.009930+00:00,0,1",
              "2024-05-10 00:00:01+00:00,1452,3")  # fmt: skip
    trace, _ = made(tmp_path, "azure", new, how=how)
    assert trace.input_length.tolist() == [1452]
    assert list(how.notes) == ["requests left out as they have no prompt: 1"]
    time = "2024-05-10 00:00:00"
    for lines, says in (
        (["a,b,c"], ", line 1, field TIMESTAMP: there is no such column"),
        ([header, f"{time},12"], ", line 2: it has 2 columns"),
        ([header, f"{time},12,x"], ", line 2, field GeneratedTokens: 'x'; give a number of tokens"),
        ([header, f"{time},1e3,2"], ", line 2, field ContextTokens: '1e3'; give a number"),
        ([header, "noon,12,2"], ", line 2, field TIMESTAMP: 'noon' is no time"),
        ([header, f"{time},12,{2**31}"], ", line 2, field GeneratedTokens: '2147483648'"),
    ):
        assert refused(tmp_path, "azure", *lines).startswith(says)


def test_times_are_exact_in_every_unit() -> None:
    moment = 1_700_000_000_123
    assert milliseconds(moment, "ms") == moment
    assert milliseconds(moment * 1_000_000 + 999_999, "ns") == moment
    assert milliseconds(1_700_000_000.123, "s") == moment
    assert milliseconds("2023-11-14T22:13:20.123456789Z", "s") == moment
    for wrong in (True, -1, float("nan"), None, "2023-13-01"):
        with pytest.raises(ValueError, match="is no time"):
            milliseconds(wrong, "s")
