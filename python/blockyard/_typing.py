"""Typing names that Python 3.11 lacks, for type checkers alone: nothing to install."""

from typing import TYPE_CHECKING

__all__ = ["override"]

if TYPE_CHECKING:
    from typing_extensions import override
else:
    override = staticmethod(lambda method: method)
