"""A Python thread that only computes, beside what is measured."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def busy() -> Iterator[None]:
    """Has a thread compute meanwhile; it gives the interpreter's lock back every 5 ms."""
    over = threading.Event()

    def spin() -> None:
        while not over.is_set():
            pass

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
