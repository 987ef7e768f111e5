"""What a trace tells of its own future: which request uses a block next."""

import numpy as np
from numpy.typing import NDArray

from blockyard.tools.traces.trace import Trace

__all__ = ["full_blocks", "next_users"]


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
    lengths = paths[:, 1] - paths[:, 0]
    depth = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    places = np.repeat(paths[:, 0], lengths) + depth
    order = places[np.argsort(ids[places], kind="stable")]
    request = np.zeros(len(ids), np.int64)
    request[places] = np.repeat(np.arange(len(paths)), lengths)
    users = np.full(len(ids), len(paths))
    again = ids[order[1:]] == ids[order[:-1]]
    users[order[:-1][again]] = request[order[1:][again]]
    return users
