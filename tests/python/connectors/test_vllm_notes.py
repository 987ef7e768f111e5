"""What the scheduler notes on a disk: a note that is not whole is no smaller number."""

from pathlib import Path

import pytest

import blockyard as by
from blockyard.connectors.vllm.restart_notes import RestartNotes


def test_inv_31_each_bit_of_what_was_cleared_may_flip_and_nothing_comes_back(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "a disk" / "0123456789abcdef"
    folder.mkdir(parents=True)
    noted, note = RestartNotes(str(folder)), folder / "cleared"
    assert noted.cleared() == 0
    assert noted.clear(97)
    whole = note.read_bytes()
    assert noted.cleared() == 97
    says = rf"cannot be read.*blockyard disk wipe '{folder.parent}' {folder.name}"
    for bit in range(8 * len(whole)):
        rotten = bytearray(whole)
        rotten[bit // 8] ^= 1 << bit % 8
        note.write_bytes(rotten)
        with pytest.raises(by.Unavailable, match=says):
            noted.cleared()
    for length in range(len(whole)):
        note.write_bytes(whole[:length])
        with pytest.raises(by.Unavailable, match=says):
            noted.cleared()
    # As versions before wrote it.
    note.write_text("97")
    assert noted.cleared() == 97
