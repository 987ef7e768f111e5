"""Next and previous uses of blocks in a trace."""

import numpy as np
from numpy.typing import NDArray

from blockyard.tools.traces.trace import Trace

__all__ = ["full_blocks", "next_users", "on_paths", "previous_users"]


def full_blocks(trace: Trace) -> NDArray[np.int64]:
    """Returns how many full blocks each prompt has, shape (requests,)."""
    return np.minimum(trace.input_length // trace.trace_block, np.diff(trace.offsets))


def next_users(ids: NDArray[np.int64], paths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns, for each place in `ids`, the next request whose path holds the same id.

    Args:
        ids: The ids of all requests, one request after another.
        paths: Request i holds ids[paths[i, 0] : paths[i, 1]], shape (requests, 2).

    Returns:
        Numbers of requests; as many as there are requests where there is none, and at places that
        are on no path. Shape (ids,).
    """
    places, request = _uses(ids, paths)
    users = np.full(len(ids), len(paths))
    again = ids[places[1:]] == ids[places[:-1]]
    users[places[:-1][again]] = request[1:][again]
    return users


def previous_users(ids: NDArray[np.int64], paths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns, for each place in `ids`, the last request before whose path holds the same id.

    Args:
        ids: The ids of all requests, one request after another.
        paths: Request i holds ids[paths[i, 0] : paths[i, 1]], shape (requests, 2).

    Returns:
        Numbers of requests; -1 where there is none, and at places that are on no path. Shape
        (ids,).
    """
    places, request = _uses(ids, paths)
    users = np.full(len(ids), -1)
    again = ids[places[1:]] == ids[places[:-1]]
    users[places[1:][again]] = request[:-1][again]
    return users


def on_paths(paths: NDArray[np.int64]) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """Returns the places that are on paths, in order, and the request of each.

    Args:
        paths: Request i has the places [paths[i, 0], paths[i, 1]), shape (requests, 2).

    Returns:
        Two arrays of shape (places,), of 32-bit integers where these suffice.
    """
    # With ten million uses of blocks these two are most of the memory.
    kind = np.int32 if paths.max(initial=0) < 2**31 else np.int64
    lengths = paths[:, 1] - paths[:, 0]
    ends = np.cumsum(lengths)
    places = np.arange(lengths.sum(), dtype=kind)
    places += np.repeat((paths[:, 0] - ends + lengths).astype(kind), lengths)
    return places, np.repeat(np.arange(len(paths), dtype=kind), lengths)


def _uses(
    ids: NDArray[np.int64], paths: NDArray[np.int64]
) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """Returns the places on paths, by id and then by request, and the request of each."""
    places, request = on_paths(paths)
    order = np.argsort(ids[places], kind="stable")
    return places[order], request[order]
