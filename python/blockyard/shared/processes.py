"""Starts processes that only their parent ends."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

__all__ = ["ignore_sigint"]


@contextmanager
def ignore_sigint() -> Iterator[None]:
    """Makes processes that are started meanwhile ignore Ctrl-C, which a terminal sends to all."""
    # The first start would start the tracker, too, which unblocks the signal.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
