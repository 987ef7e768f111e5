"""Products in which no sum is rounded: a row has the same bits in any company, with any BLAS."""

import os
import subprocess
import sys
from hashlib import blake2b
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.reference.exact_matmul import check, product, weight
from blockyard.reference.model import Model
from blockyard.reference.weights import Floats, ModelConfig

# Those of the model, and some that fill no register.
SHAPES = [(32, 64), (64, 64), (64, 128), (64, 192), (128, 64), (33, 7), (5, 130), (1, 1)]


class Other:
    """NumPy, but for what is said."""

    __name__ = "broken"

    def __init__(self, **other: Any) -> None:
        vars(self).update(other)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def drawn(*shape: int, seed: int = 0) -> Floats:
    """Of many sizes and both signs."""
    draw = np.random.default_rng([seed, *shape])
    made: Floats = (10 ** draw.uniform(-3, 0, shape)).astype(np.float32)
    made[draw.random(shape) < 0.5] *= -1
    return made


def uneven(count: int, inputs: int) -> Floats:
    """Rows that differ by factors of up to 10**20."""
    sizes = 10 ** np.random.default_rng(count).uniform(-10, 10, (count, 1))
    made: Floats = drawn(count, inputs) * sizes.astype(np.float32)
    return made


def near_the_most(*shape: int) -> Floats:
    """All of one sign, and nearly as large as their row's largest: sums need all of the digits."""
    return np.random.default_rng(shape).uniform(0.9, 1, shape).astype(np.float32)


def plain(left: Floats, right: Any) -> Floats:
    made: Floats = product(np, left[None], [right])[0]
    return made


@pytest.mark.law("4.7-42")
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_bits_that_it_has_alone_in_any_place_of_any_number(
    shape: tuple[int, int],
) -> None:
    right = weight(drawn(*shape, seed=1))
    rows = uneven(67, shape[0])
    alone = [plain(row[None], right).tobytes() for row in rows]
    for count in (*range(1, 35), 67):
        for first in (0, 1, 67 - count):
            some = plain(rows[first : first + count], right)
            assert [row.tobytes() for row in some] == alone[first : first + count]
    # Wherever in memory they lie.
    memory = np.empty(rows.size + 16, np.float32)
    for start in range(16):
        moved = memory[start : start + rows.size].reshape(rows.shape)
        moved[...] = rows
        assert [row.tobytes() for row in plain(moved, right)] == alone


def test_what_stands_in_other_rows_does_not_come_in() -> None:
    right = weight(drawn(64, 64, seed=1))
    row = drawn(1, 64)
    for other in (0, 3e38, np.inf, np.nan):
        rows = np.full((9, 64), other, np.float32)
        rows[4] = row
        with np.errstate(invalid="ignore", over="ignore"):
            assert plain(rows, right)[4].tobytes() == plain(row, right).tobytes()


@pytest.mark.law("4.7-42")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("values", [drawn, near_the_most])
def test_in_whatever_order_terms_are_added_the_sum_is_the_same(
    shape: tuple[int, int], values: Any
) -> None:
    """With any BLAS, to its last digit: it sees the terms in another order."""
    left, right = values(16, shape[0]), weight(values(*shape))
    sums = []

    def matmul(left: Any, right: Any, out: Any) -> None:
        sums.append(np.matmul(left, right, out=out).tobytes())

    for seed in range(20):
        order = np.random.default_rng(seed).permutation(shape[0])
        product(Other(matmul=matmul), left[None, :, order], [right[order]])
    assert len(sums) == 20
    assert len(set(sums)) == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_is_nearly_that_of_float64(shape: tuple[int, int]) -> None:
    left, right = uneven(16, shape[0]), drawn(*shape, seed=1)
    expected = left.astype(np.float64) @ right.astype(np.float64)
    scale = abs(left).max(axis=1, keepdims=True) * shape[0] ** 0.5
    assert (abs(plain(left, weight(right)) - expected) / scale).max() < 2**-20


def test_each_weight_has_its_own_rows_or_all_have_the_same() -> None:
    left, right = drawn(3, 5, 64), [weight(drawn(64, 32, seed=at)) for at in range(3)]
    together = product(np, left, right)
    shared = product(np, left[:1], right)
    assert together.shape == shared.shape == (3, 5, 32)
    assert together.dtype == np.float32
    for at in range(3):
        assert np.array_equal(together[at], plain(left[at], right[at]))
        assert np.array_equal(shared[at], plain(left[0], right[at]))
    assert product(np, left[:, :0], right).shape == (3, 0, 32)


PROGRAM = """
import sys
sys.path[:0] = {path}
from test_exact_matmul import digest
print(digest())
"""


def digest() -> str:
    """Of products of all shapes."""
    said = blake2b(digest_size=8)
    for shape in SHAPES:
        for values in (drawn, near_the_most):
            said.update(plain(values(41, shape[0]), weight(values(*shape))).tobytes())
    return said.hexdigest()


def kernels() -> list[str]:
    """Of OpenBLAS, those that this processor can run; with another BLAS the name does nothing."""
    has = import_module("numpy._core._multiarray_umath").__cpu_features__
    needs = {"Prescott": "SSE3", "Sandybridge": "AVX", "Haswell": "AVX2", "SkylakeX": "AVX512_SKX"}
    return [name for name, feature in needs.items() if has.get(feature)]


@pytest.mark.parametrize("kernel", kernels())
def test_bits_are_the_same_with_every_kernel(kernel: str) -> None:
    said = subprocess.run(  # noqa: S603 - our own
        [sys.executable, "-c", PROGRAM.format(path=sys.path)],
        capture_output=True,
        check=True,
        text=True,
        env=os.environ | {"OPENBLAS_CORETYPE": kernel},
    )
    assert said.stdout.strip() == digest()


# -- machines that break it --------------------------------------------------------------------


def narrow(left: Any, right: Any, out: Any) -> None:
    """Adds in float32."""
    out[...] = left.astype(np.float32) @ right.astype(np.float32)


def narrow_at_the_end(left: Any, right: Any, out: Any) -> None:
    """The rest of four rows goes another way, as it does in a BLAS."""
    np.matmul(left, right, out=out)
    end = len(left) // 4 * 4
    narrow(left[end:], right, out[end:])


def narrow_in_the_last_row_of_16(left: Any, right: Any, out: Any) -> None:
    np.matmul(left, right, out=out)
    narrow(left[15:], right, out[15:])


def one_digit_short(left: Any, right: Any, out: Any) -> None:
    np.matmul(left, right, out=out)
    out[...] = (out + 2 * abs(out)) - 2 * abs(out)


@pytest.mark.law("4.7-42")
@pytest.mark.parametrize(
    "matmul", [narrow, narrow_at_the_end, narrow_in_the_last_row_of_16, one_digit_short]
)
def test_a_blas_that_rounds_its_sums_is_refused_when_the_engine_starts(matmul: Any) -> None:
    with pytest.raises(by.Unavailable, match=r"broken multiplies .* where the exact sum is -?\d+:"):
        Model(ModelConfig(), xp=Other(matmul=matmul))


@pytest.mark.law("4.7-42")
@pytest.mark.parametrize("name", ["exp", "log"])
def test_a_function_whose_bits_depend_on_the_place_is_refused(name: str) -> None:
    def strayed(values: Any) -> Any:
        """The rest of four values goes another way, as it does where registers are filled."""
        made = getattr(np, name)(values)
        end = len(made) // 4 * 4
        made[end:] = np.nextafter(made[end:], made.dtype.type(0))
        return made

    with pytest.raises(by.Unavailable, match=rf"broken\.{name} of .* in place \d+ of an array"):
        Model(ModelConfig(), xp=Other(**{name: strayed}))


def test_every_product_that_a_model_computes_was_checked_once_in_its_process() -> None:
    asked, calls = set(), 0

    def matmul(left: Any, right: Any, out: Any) -> None:
        nonlocal calls
        calls += 1
        asked.add((left.shape, right.shape))
        np.matmul(left, right, out=out)

    xp, config = Other(matmul=matmul), ModelConfig(vocabulary=200)
    model = Model(config, xp=xp)
    checked, before = set(asked), calls
    assert 0 < before < 100
    Model(config, 1, xp=xp)
    assert calls == before
    for rows in (1, 7, 16, 40):
        for right in [*model._output, *(one for layer in model._layers for one in layer.products)]:
            product(xp, drawn(1, rows, len(right)), [right])
    assert calls > before
    assert asked == checked


def test_a_sound_module_passes() -> None:
    check.cache_clear()
    check(np, ((64, 64), (33, 7)))
    Model(ModelConfig(), xp=Other())


def test_a_sum_of_zeros_is_zero_whatever_their_signs() -> None:
    def matmul(left: Any, right: Any, out: Any) -> None:
        """May be -0, if the first term is, and nothing is added before it."""
        np.matmul(left, right, out=out)
        out[out == 0] = -0.0

    zeros = np.zeros((1, 2, 64), np.float32)
    found = product(Other(matmul=matmul), zeros, [weight(-abs(drawn(64, 64)))])
    assert not np.signbit(found).any()
