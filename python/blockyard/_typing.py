"""Typing names: what Python 3.11 lacks, and arrays without `numpy.typing`, whose import is slow."""

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

__all__ = ["NDArray", "override"]

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import override
else:
    _Scalar = TypeVar("_Scalar", bound=np.generic)
    NDArray = np.ndarray[tuple[Any, ...], np.dtype[_Scalar]]
    override = staticmethod(lambda method: method)
