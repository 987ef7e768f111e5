"""The JSON of `blockyard trace describe`, field by field."""

import msgspec
from msgspec import Struct

__all__ = [
    "FORMAT",
    "Blocks",
    "Continued",
    "Curve",
    "Description",
    "Quantiles",
    "Rate",
    "Reuse",
    "Sessions",
    "rounded",
]

FORMAT = 1
"""Changes when a key is dropped or changes its meaning."""


class Quantiles(Struct, frozen=True, kw_only=True):
    """A distribution."""

    mean: float
    """The arithmetic mean."""
    p10: float
    """10 % of the values are not above it."""
    p50: float
    """The median."""
    p90: float
    """90 % of the values are not above it."""
    p99: float
    """99 % of the values are not above it."""
    max: float
    """The largest value."""
    quantiles: list[float]
    """101 values: the quantiles 0, 0.01 … 1, for plots."""


class Rate(Struct, frozen=True, kw_only=True):
    """When requests arrive."""

    mean: float
    """Requests per second, from the first arrival to the last."""
    tokens: float
    """Prompt tokens per second."""
    busiest: float
    """Requests per second in the busiest minute; of the whole, where it is shorter."""
    variation: float
    """Standard deviation of the gaps between arrivals / their mean: 1 for independent arrivals at a
    steady rate, more for bursts."""
    edges: list[float]
    """Seconds from the first arrival: intervals of equal length, one value more than intervals."""
    arrivals: list[float]
    """Requests per second in each interval."""


class Blocks(Struct, frozen=True, kw_only=True):
    """The full blocks of the prompts."""

    uses: int
    """Blocks of all prompts, each as often as it is used."""
    distinct: int
    """Different blocks."""
    once: float
    """The share of the distinct blocks that are never used again, 0 to 1."""
    infinite_hit_ratio: float
    """Prompt tokens that a cache without a limit would find / all prompt tokens, 0 to 1."""


class Curve(Struct, frozen=True, kw_only=True):
    """What LRU caches of some sizes find; requests come one after another, leaves go first."""

    blocks: list[int]
    """Sizes, each half as large again as the one before, or thereabouts."""
    hit_ratio: list[float]
    """Prompt tokens found at each / all prompt tokens, 0 to 1."""


class Reuse(Struct, frozen=True, kw_only=True):
    """From one use of a block to the next."""

    blocks: Quantiles
    """The least LRU cache that still holds it: blocks used since, those above it, and itself."""
    seconds: Quantiles
    """Seconds between the arrivals."""
    curve: Curve
    """The same as hits by size."""


class Continued(Struct, frozen=True, kw_only=True):
    """Requests that a later one continues: it uses the last full block of their prompt."""

    share: float
    """Their share of all requests, 0 to 1."""
    pause: Quantiles
    """Seconds from a request's arrival to the arrival of the next that continues it."""


class Sessions(Struct, frozen=True, kw_only=True):
    """The sessions that the trace names."""

    count: int
    """Sessions."""
    requests: int
    """Requests that belong to one."""
    turns: Quantiles
    """Requests per session."""
    pause: Quantiles | None
    """Seconds from one request of a session to the next, answer and thought together; null where
    none has two."""


class Description(Struct, frozen=True, kw_only=True):
    """What is in a trace."""

    format: int
    """Version of these keys."""
    blockyard: str
    """Version of Blockyard."""
    answer: list[str]
    """What matters most, in sentences."""
    trace: str
    """The file's name."""
    complete: bool
    """False where Ctrl-C cut the trace short when it was made."""
    block_size: int
    """Tokens per block."""
    requests: int
    """Requests."""
    seconds: float
    """From the first arrival to the last."""
    input_tokens: int
    """Tokens of all prompts."""
    output_tokens: int
    """Tokens of all answers."""
    rate: Rate
    """When requests arrive."""
    prompts: Quantiles
    """Tokens per prompt."""
    answers: Quantiles
    """Tokens per answer."""
    hits_unknown: str | None
    """Why the trace does not show hits; null if it does."""
    blocks: Blocks | None
    """Null if hits are unknown."""
    reuse: Reuse | None
    """Null if hits are unknown, or no block is used twice."""
    continued: Continued | None
    """Null if hits are unknown, or no request is continued."""
    sessions: Sessions | None
    """Null where the trace names none."""

    def encode(self) -> bytes:
        """Returns the JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


def rounded(value: float) -> float:
    """Returns six significant digits, which is what a page needs."""
    return float(f"{value:.6g}")
