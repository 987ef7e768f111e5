"""Products of matrices in which no sum is rounded, so the order of its terms does not matter.

A BLAS adds in any order: it differs by processor, by the number of rows, and in some by the row's
place among them. Where sums are rounded, their bits differ as well. Here no sum is rounded:

- Both sides are rounded first, to whole steps: 2**24 of them for the largest value of a row, and
  2**29 / inputs for that of a weight. Each row has steps of its own size.
- A sum of products is then a whole number of steps' products, at most 2**53 of them, and so is
  every part of it. A float64 holds all of these exactly: whatever is added first, and with whatever
  else in the call, the sum is the same, bit by bit.
- What comes out is rounded to float32 once.
"""

from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Unavailable
from blockyard.crane.devices import fetched
from blockyard.reference.weights import Floats

__all__ = ["check", "product", "weight"]

_DIGITS: Final = 53
"""Binary digits of a float64."""
_ROW: Final = 24
"""Binary digits of the largest value of a row, in steps."""
_ROWS: Final = 16
"""The most rows of a call: a BLAS starts no threads for so few; on a busy machine these wait."""
_PLACES: Final = 67
"""Values tried in every place: more than four of the widest registers hold, and a rest."""


def weight(values: Floats) -> NDArray[np.float64]:
    """Returns a weight of shape (in, out) in the form that `product` takes."""
    wide = values.astype(np.float64)
    rounded: NDArray[np.float64] = _stepped(wide, np.abs(wide).max(), _room(len(values)))
    return rounded


def product(xp: Any, left: Floats, right: list[Any]) -> Floats:  # noqa: ANN401 - a module
    """Returns the product of rows with each weight, as if each row were alone.

    Args:
        xp: The array module.
        left: Shape (1, rows, in) for all weights, or (weights, rows, in), rows for each weight.
        right: Weights in the form of `weight`, each of shape (in, out).

    Returns:
        Shape (weights, rows, out).
    """
    wide = left.astype(np.float64)
    sums = _sums(xp, _stepped(wide, abs(wide).max(axis=2, keepdims=True), _ROW), right)
    # Adding 0.0 makes every zero positive, whatever the order of terms.
    rounded: Floats = (sums + 0.0).astype(np.float32)
    return rounded


@cache
def check(xp: Any, shapes: tuple[tuple[int, int], ...]) -> None:  # noqa: ANN401 - a module
    """Checks, once in a process and within milliseconds, that a module has reproducible bits.

    It compares the module's products of whole numbers with NumPy's integers, for weights of these
    shapes, and its functions of one value for the same values in different places.

    Args:
        xp: The array module.
        shapes: (in, out) of each kind of weight.

    Raises:
        Unavailable: A product or a function differs.
    """
    for shape in shapes:
        _check_product(xp, *shape)
    spread = np.random.default_rng(0).permutation(np.linspace(0, 1, _PLACES + 1)[1:])
    for module, name, values in (
        (xp, "exp", (110 * spread - 90).astype(np.float32)),
        (xp, "log", spread),
        (np, "cos", 5000 * spread),
        (np, "sin", 5000 * spread),
    ):
        _check_function(module, name, values)


def _room(inputs: int) -> int:
    """Returns the digits left for a weight, less those of a row and of the number of terms."""
    return _DIGITS - _ROW - (inputs - 1).bit_length()


def _stepped(values: Any, largest: Any, digits: int) -> Any:  # noqa: ANN401 - of either module
    """Rounds float64s to whole steps, none of which is more than 2**digits.

    The anchor is so large that its float64 steps have the wanted size; adding it rounds to them.
    Just below a power of two the steps are half as large, so one digit is spare.
    """
    anchor = largest * 2.0 ** (_DIGITS + 1 - digits)
    return (values + anchor) - anchor


def _sums(xp: Any, rows: Any, right: list[Any]) -> Any:  # noqa: ANN401 - of a module
    """Multiplies rows (1 or weights, rows, in) with weights: (weights, rows, out), float64."""
    sums = xp.empty((len(right), rows.shape[1], right[0].shape[1]), np.float64)
    for at, one in enumerate(right):
        own = rows[at if len(rows) > 1 else 0]
        for first in range(0, len(own), _ROWS):
            part = slice(first, first + _ROWS)
            xp.matmul(own[part], one, out=sums[at, part])
    return sums


def _check_product(xp: Any, inputs: int, outputs: int) -> None:  # noqa: ANN401 - a module
    draw = np.random.default_rng(inputs * outputs).integers
    most, highest = 2**_ROW, 2 ** _room(inputs)
    left = draw(1 - most, most, (_ROWS, inputs))
    right = draw(1 - highest, highest, (inputs, outputs))
    # Some sums are small with large terms, and others are the largest possible.
    left[::2], right[:, ::2] = abs(left[::2]), abs(right[:, ::2])
    expected = left @ right  # integers, which no BLAS multiplies
    rows, columns = xp.asarray(left.astype(np.float64)), xp.asarray(right.astype(np.float64))
    for count in range(1, _ROWS + 1):
        found = fetched(_sums(xp, rows[None, :count], [columns]))[0]
        wrong = np.argwhere(found != expected[:count])
        if len(wrong):
            row, column = wrong[0].tolist()
            raise Unavailable(
                f"{xp.__name__} multiplies ({count}, {inputs}) by ({inputs}, {outputs}) and has "
                f"{found[row, column]!r} in row {row}, column {column}, where the exact sum is "
                f"{expected[row, column]}: its BLAS does not add in float64, and a token's bits "
                "would depend on what is computed beside it; use another build of it"
            )


def _check_function(xp: Any, name: str, values: NDArray[Any]) -> None:  # noqa: ANN401 - a module
    function, there = getattr(xp, name), xp.asarray(values)
    whole = fetched(function(there))
    for first in range(1, len(values)):
        part = fetched(function(there[first:]))
        wrong = np.flatnonzero(part.view(np.uint8) != whole[first:].view(np.uint8))
        if len(wrong):
            at = int(wrong[0]) // part.itemsize
            raise Unavailable(
                f"{xp.__name__}.{name} of {values[first + at]!r} is {whole[first + at]!r} in place "
                f"{first + at} of an array, and {part[at]!r} in place {at}: a token's bits would "
                "depend on what is computed beside it; use another build of it"
            )
