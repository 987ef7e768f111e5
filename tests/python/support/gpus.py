"""A GPU for a test, or the reason why it is skipped."""

import blockyard as by
from blockyard.crane.devices import Device, device
from needs import without

__all__ = ["gpu"]


def gpu() -> Device:
    """This machine's; without one the test is skipped, or fails where one is required."""
    try:
        return device("cuda")
    except by.Unavailable as error:
        without("cuda", str(error))
