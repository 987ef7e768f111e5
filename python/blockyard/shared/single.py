"""What owns threads, memory or requests is there once: neither copy nor pickle doubles it."""

from typing import NoReturn

from blockyard._typing import override

__all__ = ["Single"]


class Single:
    """A base class whose objects can be neither copied nor pickled, as a cache's cannot."""

    __slots__ = ()

    @override
    def __reduce__(self) -> NoReturn:
        """Refuses a copy: it would share what the original owns, and end it with its own end.

        Raises:
            TypeError: Always.
        """
        raise TypeError(f"cannot copy or pickle a {type(self).__name__!r} object: make another one")
