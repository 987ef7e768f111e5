"""What a sweep comes to, in numbers and then in sentences."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from blockyard.tools.sweep.recency import Curve
from blockyard.tools.sweep.result import Advice, Point, SplitResult
from blockyard.tools.units import size

__all__ = ["POINT", "Setting", "advise", "sentences"]

POINT: Final = 0.01
"""The share of prompt tokens that the next doubling must add to be worth it."""
_NOTICED: Final = 0.0005
"""Shares closer than this are told to be the same: they are shown with one digit."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known beside the points."""

    curve: Curve
    tokens: int
    """Prompt tokens of all requests."""
    block: int
    """Tokens per block."""
    block_bytes: int
    preset: str
    device_blocks: int
    """Blocks that the device of the preset has beside the weights."""
    largest: int
    """The largest size that was asked for."""
    sampled: int
    """Of how many blocks one was simulated."""
    cut: bool
    """Whether the trace is incomplete."""

    def share(self, hits: float) -> float:
        """Returns blocks found as a share of the prompts' tokens."""
        return hits * self.block / max(self.tokens, 1)

    def at(self, blocks: int) -> float:
        """Returns what recency finds at a size."""
        return self.share(self.curve.hits(blocks))

    def bytes(self, blocks: int) -> str:
        """Returns a size as a person reads it."""
        return size(blocks * self.block_bytes)

    @property
    def knee(self) -> int:
        """The size from which on no doubling adds a point."""
        return self.curve.knee(POINT * self.tokens / self.block)


def advise(setting: Setting, points: Sequence[Point]) -> Advice:
    """Returns what to buy.

    Args:
        setting: The curve of recency, and what it is about.
        points: The sizes, with what each order finds there. That of the knee should be one.
    """
    curve, blocks = setting.curve, setting.knee
    infinite = setting.share(curve.most)
    if not curve.most or infinite < POINT:
        return _none("little" if curve.most else "nothing", curve.enough)
    there = next((point.hit_ratio for point in points if point.blocks == blocks), {})
    others = {name: ratio for name, ratio in there.items() if name not in {"recency", "optimum"}}
    better = max(others, key=lambda name: others[name], default=None)
    ratio = others[better] if better else None
    return Advice(
        kind="knee" if blocks <= setting.largest else "beyond",
        blocks=blocks,
        bytes=blocks * setting.block_bytes,
        hit_ratio=setting.at(blocks),
        next_gain=setting.at(2 * blocks) - setting.at(blocks),
        bound=there.get("optimum"),
        better=better,
        better_hit_ratio=ratio,
        better_equals=None
        if ratio is None
        # Rounding must not ask for one block more than there is.
        else curve.size_of(ratio * setting.tokens / setting.block - 1e-6),
        enough=curve.enough,
    )


def _none(kind: str, enough: int) -> Advice:
    return Advice(
        kind="little" if kind == "little" else "nothing",
        blocks=0,
        bytes=0,
        hit_ratio=0.0,
        next_gain=0.0,
        bound=None,
        better=None,
        better_hit_ratio=None,
        better_equals=None,
        enough=enough,
    )


def sentences(
    setting: Setting, points: Sequence[Point], advice: Advice, splits: Sequence[SplitResult] = ()
) -> list[str]:
    """Returns the answer: what to buy first, then what else should be known."""
    infinite = setting.share(setting.curve.most)
    if advice.kind == "nothing":
        said = (
            "Buy no memory for this traffic: no full block of a prompt ever comes again, so no "
            "size and no order finds anything."
        )
        return [said, *_cut(setting)]
    if advice.kind == "little":
        said = (
            "Buy no memory for this traffic: even an infinite cache finds only "
            f"{_points(infinite)} of 100, and {setting.bytes(advice.enough)} are as good as that."
        )
        return [said, _device(setting), *_cut(setting)]
    return [
        _main(setting, advice, splits),
        _device(setting),
        *_rest(setting, advice, infinite),
        *_worth(setting, points),
        *_sampled(setting),
        *_cut(setting),
    ]


def _main(setting: Setting, advice: Advice, splits: Sequence[SplitResult]) -> str:
    """What to buy, what it gives, what the next doubling would give, and the better order."""
    knee = setting.bytes(advice.blocks)
    found = f"{_percent(advice.hit_ratio)} of the prompt tokens"
    if advice.bound is not None:
        found += f" (no order can find more than {_percent(advice.bound)} there)"
    gain = f"twice as much would find {_points(advice.next_gain)} more"
    better = "; ".join(_better(setting, advice, splits))
    ending = f"; {better}." if better else "."
    if advice.kind == "beyond":
        largest = setting.largest
        doubled = setting.at(2 * largest) - setting.at(largest)
        return (
            f"None of these sizes is enough: {setting.bytes(largest)}, the largest, finds "
            f"{_percent(setting.at(largest))} of the prompt tokens and twice as much "
            f"{_points(doubled)} more; buy {knee}, which finds {found}; from there {gain}{ending}"
        )
    if advice.blocks <= setting.device_blocks:
        own = setting.bytes(setting.device_blocks)
        return (
            f"Buy no memory below the device: {knee} find {found}, {gain}, and {setting.preset} "
            f"has {own} beside its weights{ending}"
        )
    return f"Buy {knee}: it finds {found}, and {gain}{ending}"


def _better(setting: Setting, advice: Advice, splits: Sequence[SplitResult]) -> Iterator[str]:
    """What another order finds in the same memory, which costs nothing."""
    name, ratio = advice.better, advice.better_hit_ratio
    if name is None or ratio is None:
        return
    more = ratio - advice.hit_ratio
    lost, where = _lost(name, splits)
    if lost >= _NOTICED and more >= _NOTICED:
        yield (
            f"the {name} order finds {_percent(ratio)} there in one tier, but {_points(lost)} less "
            f"than recency in {where}"
        )
        return
    if more <= -_NOTICED:
        yield f"the {name} order finds {_points(-more)} less there"
    elif more < _NOTICED:
        yield f"the {name} order finds the same there"
    else:
        equal = advice.better_equals
        needs = "no size of recency does" if equal is None else _needs(setting, equal)
        yield f"for nothing the {name} order finds {_percent(ratio)} there, as {needs}"


def _lost(name: str, splits: Sequence[SplitResult]) -> tuple[float, str]:
    """What an order finds less than recency in the split that suits it least, and that split."""
    recency = {each.split: each.hit_ratio for each in splits if each.order == "recency"}
    losses = [
        (recency[each.split] - each.hit_ratio, each.split)
        for each in splits
        if each.order == name and each.split in recency
    ]
    return max(losses, default=(0.0, ""))


def _needs(setting: Setting, blocks: int) -> str:
    return f"recency does with {setting.bytes(blocks)}"


def _device(setting: Setting) -> str:
    """What the device alone finds, which costs nothing."""
    own = setting.device_blocks
    return (
        f"The {setting.bytes(own)} that {setting.preset} has beside its weights find "
        f"{_percent(setting.at(own))} by themselves."
    )


def _rest(setting: Setting, advice: Advice, infinite: float) -> Iterator[str]:
    """What lies beyond the knee."""
    if infinite - advice.hit_ratio >= _NOTICED:
        yield (
            f"All that comes again is {_percent(infinite)}, and takes "
            f"{setting.bytes(advice.enough)} under recency."
        )


def _worth(setting: Setting, points: Sequence[Point]) -> Iterator[str]:
    """Where another order is worth most."""
    gains = [
        (ratio - point.hit_ratio["recency"], point, name)
        for point in points
        for name, ratio in point.hit_ratio.items()
        if name not in {"recency", "optimum"}
    ]
    gain, point, name = max(gains, key=lambda each: each[0], default=(0.0, None, ""))
    if point is None or gain < POINT:
        return
    ratio, recency = point.hit_ratio[name], point.hit_ratio["recency"]
    equal = setting.curve.size_of(ratio * setting.tokens / setting.block - 1e-6)
    as_much = "" if equal is None else f", as {_needs(setting, equal)}"
    yield (
        f"The {name} order is worth most at {setting.bytes(point.blocks)}: {_percent(ratio)} "
        f"instead of {_percent(recency)}{as_much}."
    )


def _sampled(setting: Setting) -> Iterator[str]:
    """How far the figures can be trusted."""
    if setting.sampled > 1:
        yield (
            f"One block in {setting.sampled} was simulated; what the sample gets wrong under "
            "recency was taken off, and recency and the optimum are exact."
        )


def _cut(setting: Setting) -> Iterator[str]:
    if setting.cut:
        yield "The trace is incomplete: what comes again after its end does not count."


def _percent(share: float) -> str:
    return f"{share:.1%}".replace("%", " %")


def _points(share: float) -> str:
    points = 100 * share
    # At the knee it is just below a point, and must not be read as one.
    return f"{math.floor(100 * points) / 100:.2f} points" if points < 1 else f"{points:.1f} points"
