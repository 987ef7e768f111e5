"""Hints of an engine about a request's future, with a chosen error.

The truth comes from the trace. A request's session has ended if no later one uses the last full
block of its prompt; otherwise the next use is when the next one does. Hints degrade it by seed.
"""

import math
from dataclasses import dataclass
from typing import Final, Literal, NotRequired, Self, TypedDict

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Misuse
from blockyard._typing import override
from blockyard.tools.traces.future import full_blocks, next_users
from blockyard.tools.traces.trace import Trace

__all__ = ["Hint", "Hints"]

_FALSE: Final = 0.02
"""Default share of requests that are wrongly marked as their session's end."""
_FACTOR: Final = 2.0
"""By what factor a next use is wrong at most, likewise."""
_LATEST: Final = 4096.0
"""The latest random time of a lie, in seconds; the earliest is 1."""
_FORM: Final = "end=RECALL[:FALSE],next=RECALL[:FACTOR] with either part, or lies, or none"


class Hint(TypedDict):
    """The hint of one request, for `KVCache.finish` and `KVCache.used`."""

    retention: NotRequired[Literal["session-ended"]]
    next_use: NotRequired[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """How well the future is known.

    A request marked as the last of its session gets no next use.

    Raises:
        Misuse: A value is out of range.
    """

    end: float = 0.0
    """The share of session ends that are marked."""
    end_false: float = 0.0
    """The share of other requests that are wrongly marked as session ends."""
    next: float = 0.0
    """The share of continued requests with a next use."""
    factor: float = 1.0
    """A next use is too late or too early by up to this factor; its logarithm is uniform."""
    lies: bool = False
    """Whether all hints are random: an ended session, or a random time."""

    def __post_init__(self) -> None:
        """Checks every value."""
        for name in ("end", "end_false", "next"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise Misuse(f"{name} = {value}: must be a share from 0 to 1")
        if not (self.factor >= 1 and math.isfinite(self.factor)):
            raise Misuse(f"factor = {self.factor}: must be a finite number >= 1")

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Reads hints from text such as "end=0.8:0.02,next=0.8:2", or "lies"; None for "none".

        Raises:
            Misuse: The text is something else.
        """
        if text in {"none", "lies"}:
            return None if text == "none" else cls(lies=True)
        values: dict[str, float] = {}
        for part in text.split(","):
            name, equals, numbers = part.partition("=")
            degree = {"end": "end_false", "next": "factor"}.get(name)
            share, colon, wrong = numbers.partition(":")
            if degree is None or not equals or name in values:
                raise Misuse(f"hints {text!r}: give {_FORM}")
            try:
                values[name] = float(share)
                values[degree] = float(wrong) if colon else _FALSE if name == "end" else _FACTOR
            except ValueError:
                raise Misuse(f"hints {text!r}: {numbers!r} has no numbers; give {_FORM}") from None
        return cls(**values)  # type: ignore[arg-type]

    @override
    def __str__(self) -> str:
        """Returns the text that `parse` reads."""
        parts = (f"end={self.end:g}:{self.end_false:g}", f"next={self.next:g}:{self.factor:g}")
        shares = (self.end or self.end_false, self.next)
        said = [part for part, share in zip(parts, shares, strict=True) if share]
        return "lies" if self.lies else ",".join(said or parts[:1])

    def of(self, trace: Trace, seed: int) -> list[Hint]:
        """Returns the hint of each request's end, the same for the same seed.

        Args:
            trace: The requests. One without a full block is given no hint.
            seed: 0 or more.
        """
        requests = len(trace)
        full = full_blocks(trace)
        paths = np.stack((trace.offsets[:-1], trace.offsets[:-1] + full), 1)
        last = paths[:, 1] - 1
        # Of an empty path this is another request's block, or none: it is masked below.
        user = next_users(trace.ids, paths)[last] if len(trace.ids) else last
        following = np.minimum(user, requests - 1)
        ahead = (trace.arrival[following] - trace.arrival) / 1e3
        ended, seconds = self._said(
            user == requests, ahead, np.random.Generator(np.random.PCG64(seed))
        )
        said = full > 0
        return [
            _hint(after, ended=ends)
            for ends, after in zip(
                (ended & said).tolist(), np.where(said, seconds, np.nan).tolist(), strict=True
            )
        ]

    def _said(
        self, ends: NDArray[np.bool_], ahead: NDArray[np.float64], draw: np.random.Generator
    ) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """Returns the marked session ends, and the next uses; NaN for none."""
        coin, chance, error = draw.random((3, len(ends)))
        if self.lies:
            return coin < 0.5, np.exp(error * math.log(_LATEST))  # noqa: PLR2004 - a coin's
        ended = coin < np.where(ends, self.end, self.end_false)
        wrong = np.exp((2 * error - 1) * math.log(self.factor))
        return ended, np.where(~ends & (chance < self.next), ahead * wrong, np.nan)


def _hint(seconds: float, *, ended: bool) -> Hint:
    if ended:
        return {"retention": "session-ended"}
    return {} if math.isnan(seconds) else {"next_use": seconds}
