"""The small hybrid model: its tokens follow from what it may read, and from nothing else."""

from itertools import pairwise

import numpy as np
import pytest

import blockyard as by
from blockyard.reference.hybrid import LAYER_TYPES, HybridModel, HybridRow

SIZE, LENGTH = 16, 75
TOKENS = np.random.default_rng(0).integers(1024, size=LENGTH + 1).tolist()
"""A length off the grid of blocks, which a window of 24 and chunks of 40 do not begin at either."""


def computed(model: HybridModel, ends: list[int]) -> tuple[int, list[list[int]]]:
    """Computes tokens in chunks that end there; returns the last token drawn, and the tables."""
    blocks = -(-ends[-1] // SIZE)
    tables = [list(range(at, 4 * blocks, 4)) for at in range(4)]
    token = -1
    for start, end in pairwise([0, *ends]):
        states = tuple(tables[2][max(length - 1, 0) // SIZE] for length in (start, end))
        token = model.forward(HybridRow(TOKENS[:end], start, tables, states))  # type: ignore[arg-type]
    return token, tables


def test_chunks_change_no_token() -> None:
    cuts = [[LENGTH], [32, 64, LENGTH], [1, 40, 41, LENGTH], list(range(1, LENGTH + 1))]
    assert len({computed(HybridModel(20), ends)[0] for ends in cuts}) == 1


def test_it_reads_what_its_groups_need_and_a_change_of_it_shows() -> None:
    model = HybridModel(20)
    _, tables = computed(model, [LENGTH])
    pages = model.pages.copy()
    needs = [kind.needs(LENGTH, SIZE) for kind in model.groups[:2]]
    needs += [range(LENGTH // SIZE, LENGTH // SIZE + 1), model.groups[3].needs(LENGTH, SIZE)]
    needed = [tables[group][block] for group, need in enumerate(needs) for block in need]
    rest = [one for one in range(20) if one not in needed]
    last = tables[2][LENGTH // SIZE]

    def drawn() -> int:
        return model.forward(HybridRow(TOKENS, LENGTH, tables, (last, last)))

    token = drawn()
    model.pages[:] = pages
    model.pages[rest] = 0xFF
    assert drawn() == token
    for group, need in enumerate(needs):
        for block in need:
            for poison in (0xFF, 0x3C):
                model.pages[:] = pages
                # Its first key and its last value, of which one is read at least.
                end = model.groups[group].layout.block_bytes
                page = model.pages[tables[group][block], :end]
                page[:64] = page[-64:] = poison
                changed = drawn() != token
                assert changed, (group, block)


def test_two_prompts_of_one_length_have_different_states() -> None:
    model = HybridModel(4, layer_types=["linear_attention"])
    for token in range(2):
        model.forward(HybridRow([token, 7], 0, [[]], (token, token)))
    matrix, total = (model.tensors[0][name] for name in ("matrix", "hash"))
    assert (matrix[0] != matrix[1]).any()
    assert (total[0] != total[1]).any()


def test_groups_follow_the_layers() -> None:
    kinds = [type(one) for one in HybridModel(1).groups]
    assert kinds == [by.Full, by.SlidingWindow, by.RecurrentState, by.ChunkedAttention]
    assert LAYER_TYPES.count("full_attention") == 2
    full, window = HybridModel(1).groups[:2]
    assert full.layout.block_bytes == 2 * window.layout.block_bytes
    with pytest.raises(by.Misuse, match="there is no 'mamba'; give some of"):
        HybridModel(1, layer_types=["mamba"])
