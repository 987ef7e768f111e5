"""Starting processes that are ended by who started them."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

__all__ = ["ignore_sigint"]


@contextmanager
def ignore_sigint() -> Iterator[None]:
    """Who is started meanwhile never hears Ctrl-C, which a terminal sends to all: we end it."""
    # The first start would start this, too, which lets the signal through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
