"""Checks of arguments: each returns the value, or raises `Misuse` with a remedy."""

from collections.abc import Hashable
from typing import Final

import numpy as np

from blockyard._core import Misuse, Ticket
from blockyard._typing import NDArray
from blockyard.shared.validate import integer
from blockyard.yard.cache import KVCache

__all__ = ["prompt_of", "ticket_of", "whole"]

_LARGEST_TOKEN: Final = 0xFFFFFFFF
_LARGEST: Final = 2**31 - 1


def whole(name: str, value: object, least: int | None = 1) -> int:
    """An integer, NumPy's included, from `least` to 2^31 - 1; of either sign where it is None.

    Raises:
        Misuse: The value is no integer, or out of range.
    """
    return integer(name, value, least=-_LARGEST if least is None else least, most=_LARGEST)


def prompt_of(tokens: object) -> NDArray[np.uint32]:
    """A copy of a caller's prompt, read-only.

    Raises:
        Misuse: The prompt is empty, or no sequence of token ids.
    """
    try:
        given = np.array(tokens, copy=True)
        # NumPy makes an empty list an array of floats.
        wide = given.astype(np.int64) if given.dtype.kind in "iu" or not given.size else None
    except (TypeError, ValueError, OverflowError) as error:
        raise Misuse(f"prompt = {tokens!r:.60}: must be token ids, one-dimensional") from error
    if wide is None:
        raise Misuse(f"prompt of {given.dtype}: must be token ids, which are integers")
    if wide.ndim != 1 or not len(wide):
        raise Misuse(f"prompt of shape {wide.shape}: must be one token id or more, one-dimensional")
    if wide.min() < 0 or wide.max() > _LARGEST_TOKEN:
        bad = given[(wide < 0) | (wide > _LARGEST_TOKEN)][0]
        raise Misuse(f"token {bad} in the prompt: must be from 0 to {_LARGEST_TOKEN}")
    made = wide.astype(np.uint32)
    made.flags.writeable = False
    return made


def ticket_of(request: Hashable, ticket: object, cache: KVCache) -> Ticket:
    """A ticket that can be spent on a request of that cache.

    Raises:
        Misuse: It is none, is spent, or is of the host or of another cache.
    """
    if not isinstance(ticket, Ticket):
        raise Misuse(
            f"ticket = {ticket!r:.60} of request {request!r}: must be what `KVCache.promise` or "
            "`Reservations.commit` returned"
        )
    if ticket.tier != "device" or ticket.state != "open":
        what = "of the host" if ticket.tier != "device" else "spent"
        raise Misuse(f"ticket {ticket.id} of request {request!r} is {what}: promise again")
    if ticket.cache is not cache:
        raise Misuse(
            f"ticket {ticket.id} of request {request!r} was made by another cache: promise "
            "the room with the cache of this scheduler"
        )
    return ticket
