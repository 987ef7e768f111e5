"""Settings that hold for all tiers, or for each by its name."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from blockyard._core import Misuse
from blockyard.shared.layout import BELOW
from blockyard.shared.validate import one_of, shown

__all__ = ["ByTier", "by_tier", "check_memory", "of_tier", "tiers_below"]

_T = TypeVar("_T")

ByTier: TypeAlias = _T | tuple[tuple[str, _T], ...]
"""One value, or pairs of a tier's name and its value, from the device down."""


def by_tier(
    name: str, tiers: Sequence[str], check: Callable[[str, object], _T], given: object
) -> ByTier[_T]:
    """Returns a value, or a mapping by tier as pairs that can be hashed.

    Args:
        name: Its name in errors.
        tiers: The tiers that may have one, from the device down.
        check: Returns a value that is right; called with its name.
        given: One value, or a mapping of tiers' names to values.

    Raises:
        Misuse: A tier has none, it is neither a value nor a mapping, or as `check`.
    """
    if isinstance(given, tuple):
        try:
            given = dict(given)
        except (TypeError, ValueError):
            raise Misuse(f"{name} = {shown(given)}: give one value, or a mapping by tier") from None
    if not isinstance(given, Mapping):
        return check(name, given)
    for tier in given:
        if tier not in tiers:
            known = ", ".join(repr(known) for known in tiers)
            raise Misuse(f"{name} names {shown(tier)}: it is for {known}")
    return tuple((tier, check(f"{name}: {tier}", given[tier])) for tier in tiers if tier in given)


def of_tier(value: Any, tier: str, default: _T) -> _T:  # noqa: ANN401 - of any form that is given
    """Returns the value for one tier; the default if pairs or a mapping do not name it."""
    pairs: Mapping[str, _T] = dict(value) if isinstance(value, tuple | Mapping) else {tier: value}
    return pairs.get(tier, default)


def tiers_below(name: str, given: object) -> tuple[str, ...]:
    """Names of tiers, each once and from the top: the same in whatever order they were given.

    Raises:
        Misuse: One is no tier below the device.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise Misuse(f"{name} = {shown(given)}: give a sequence of names of tiers")
    names = {one_of(name, tier, BELOW) for tier in given}
    return tuple(tier for tier in BELOW if tier in names)


def check_memory(memory: str, known: Sequence[str]) -> None:
    """Checks the `memory` argument of a reset.

    Args:
        memory: What was given.
        known: `Config.known_tiers`.

    Raises:
        Misuse: It is no such word; or it is "disk kept", and no tier that there is is keyed.
    """
    one_of("memory", memory, ("lost", "kept", "disk kept"))
    if memory == "disk kept" and not known:
        raise Misuse(
            "memory = 'disk kept': no tier is keyed, so its blocks are unknown: give "
            '"lost", or configure keyed=("disk",)'
        )
