"""What load a trace offers an engine, and what of it the engine serves."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from blockyard.tools.replay.result import Load

__all__ = ["NEVER", "offered", "summed"]

NEVER: Final = -1.0
"""In place of the time of what has not happened."""
_ENOUGH: Final = 40
"""With fewer requests a growing queue may be chance."""
_BEHIND: Final = 0.05
"""The most of the offered load that an engine does not serve and still keeps up with it."""
_CHANCE: Final = 2.0
"""Over the root of the requests: as much as that random arrivals leave behind by chance."""


def offered(
    arrived: NDArray[np.float64],
    began: NDArray[np.float64],
    tokens: NDArray[np.int64],
    *,
    now: float,
    refused: int = 0,
) -> Load | None:
    """Returns the load of an engine, or None for fewer than two requests, or all at one moment.

    What is offered is the arrivals per second up to the last arrival; what is served, the
    admissions per second up to the last one, or to `now` while requests wait. The backlog is the
    time by which the last admission is later than the last arrival. An engine that keeps up has
    about none, so that it serves what is offered.

    An engine is overloaded if three things hold. At least 40 requests were admitted. More than 5 %
    of what is offered is not served, or more than 2 / sqrt(requests) for less than 1,600 of them,
    as random arrivals leave so much by chance. And the queue grew: from the first half of the
    requests to the second, the median time in the queue rose by at least a quarter of the backlog.
    Under a load that is steady and too high it rises by half of that. A burst at the end leaves a
    backlog, too, but most requests of the second half do not wait for it.

    Args:
        arrived: When each request came, in seconds that never fall, shape (requests,).
        began: When it was admitted first, or `NEVER`, shape (requests,).
        tokens: Its tokens of prompt and answer, shape (requests,).
        now: The time up to which the engine ran; what came later does not count.
        refused: Requests that were too large, and so are among those that never began. Only where
            all others have begun is it known which ones.
    """
    begun = began != NEVER
    waits = np.count_nonzero(~begun) > refused
    there = (arrived <= now) if waits else begun
    arrived, began, tokens, begun = arrived[there], began[there], tokens[there], begun[there]
    span = float(arrived[-1] - arrived[0]) if len(arrived) else 0.0
    admitted = int(np.count_nonzero(begun))
    if not span or admitted < 2:  # noqa: PLR2004 - one has no rate
        return None
    last = max(span, (now if waits else float(began.max())) - float(arrived[0]))
    offers, serves = (len(arrived) - 1) / span, (admitted - 1) / last
    halves = np.array_split((began - arrived)[begun], 2)
    rose = float(np.median(halves[1]) - np.median(halves[0]))
    late = float(arrived[begun][-1] - arrived[0]) * (offers / serves - 1)
    behind = 1 - serves / offers > max(_BEHIND, _CHANCE / math.sqrt(admitted))
    return Load(
        offered_requests_per_second=offers,
        served_requests_per_second=serves,
        offered_tokens_per_second=offers * float(tokens[1:].mean()),
        served_tokens_per_second=serves * float(tokens[begun][1:].mean()),
        backlog_seconds=span * (offers / serves - 1),
        overloaded=admitted >= _ENOUGH and behind and rose >= late / 4,
    )


def summed(loads: Sequence[Load]) -> Load | None:
    """Returns the load of engines side by side, which is too high if it is for one of them."""
    if not loads:
        return None
    return Load(
        offered_requests_per_second=sum(load.offered_requests_per_second for load in loads),
        served_requests_per_second=sum(load.served_requests_per_second for load in loads),
        offered_tokens_per_second=sum(load.offered_tokens_per_second for load in loads),
        served_tokens_per_second=sum(load.served_tokens_per_second for load in loads),
        backlog_seconds=max(load.backlog_seconds for load in loads),
        overloaded=any(load.overloaded for load in loads),
    )
