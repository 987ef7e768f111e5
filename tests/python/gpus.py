"""A GPU for a test, or the reason why it is skipped."""

import pytest

import blockyard as by
from blockyard.devices import Device, device

__all__ = ["gpu"]


def gpu() -> Device:
    """This machine's; without one, or without CuPy, the test is skipped."""
    try:
        return device("cuda")
    except by.Unavailable as error:
        pytest.skip(str(error))
