"""Explains in sentences why a prefix missed, why a request waits, and which holders have blocks."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from blockyard._core import Cache, InUse, Keys, Lease, NoRoom, Parked, Probe, TooLarge
from blockyard._typing import override
from blockyard.shared.layout import TIERS
from blockyard.yard.flights import Flights, ranks

__all__ = ["Explanation", "explain"]

_STOPS = {
    "whole": "all of it was found",
    "missing": "the next block is on no tier",
    "filling": "the next block is in flight",
    "slow": "loading the rest was bounded, or is slower than computing it",
    "promised": "the next block backs a promise to another request",
    "scattered": "the rest lies on the tiers below in more pieces than one begin loads",
    "contradiction": "the next key is known with another parent: they were made in another way",
}

_SHOWN: Final = 3
"""Most flights named in a sentence."""
_Holders: TypeAlias = tuple[tuple[str, int, int, int, int, tuple[int, int, int]], ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """An answer in sentences; `str` joins them."""

    lines: tuple[str, ...]
    holders: _Holders
    """Holders of device blocks: (kind, id, held, promised, exclusive, below), as in `holders`."""

    @override
    def __str__(self) -> str:
        return "\n".join(self.lines)


def explain(
    cache: Cache, flights: Flights, request: Keys | Iterable[int] | Lease | Parked | NoRoom
) -> Explanation:
    """Explains a request, for `KVCache.explain`."""
    holders = tuple(cache.holders())
    match request:
        case Lease():
            lines = _of_lease(request)
        case Parked():
            lines = _of_parked(request)
        case NoRoom():
            lines = _of_refusal(cache, flights, request, holders)
        case _:
            keys = request if isinstance(request, Keys) else cache.keys(request)
            lines = _of_prompt(cache, flights, keys, holders)
    return Explanation((*lines, _room(cache, holders)), holders)


def _of_prompt(cache: Cache, flights: Flights, keys: Keys, holders: _Holders) -> list[str]:
    probe = cache.probe(keys)
    found = probe.device + probe.host + probe.disk + probe.remote
    places = f"{probe.device} are on the device, {probe.host} on the host"
    places += f", {probe.disk} on the disk" if probe.disk else ""
    places += f", {probe.remote} in stores" if probe.remote else ""
    tokens = f"{found * cache.block_size} of {keys.tokens} tokens"
    lines = [f"Of {len(keys)} full blocks, {places}: {tokens}."]
    if probe.stop != "whole":
        lines.append(f"The prefix ends at block {found}: {_why(probe)}.")
    if probe.stop == "missing":
        lines += _lost(cache)
    if not keys.tokens:
        return lines
    asked = cache.dry_run(keys)
    if asked.slow:
        where = "below the device" if probe.disk or probe.remote else "on the host"
        lines.append(
            f"Now {asked.slow} blocks {where} would "
            "be skipped: loading them would take longer than computing them."
        )
    if not asked.ever:
        lines.append(
            f"It never fits a device of {cache.limit()} blocks: it needs {asked.need} slots more "
            "than it found."
        )
    elif asked.waits is not None:
        lines.append(f"It waits for flight {asked.waits}.")
    elif not asked.fits:
        had = "beside its cached blocks" if asked.device else "now"
        lines.append(
            f"It waits: it needs {asked.need} slots, and {max(asked.available, 0)} are available "
            f"{had}."
        )
        lines += _in_flight(cache, flights, "device")
        lines += _ends(cache, asked.need - asked.available, holders)
    return lines


def _lost(cache: Cache) -> list[str]:
    """Counts blocks evicted without another copy, and those that "through" failed to write."""
    stats = cache.stats()
    lines = []
    for tier in TIERS[:-1]:
        dropped, late = stats[f"{tier}_dropped"], stats[f"{tier}_unwritten"]
        if dropped or late:
            through = f", {late} were not written though write is 'through'" if late else ""
            lines.append(
                f"So far {dropped} blocks left the {tier} without another copy{through}; the "
                f"largest begin took {stats['largest_begin']}."
            )
    return lines


def _why(probe: Probe) -> str:
    if probe.stop == "filling":
        return f"{_STOPS['filling']}, in flight {probe.flight}"
    if probe.evicted is None:
        return _STOPS[probe.stop]
    history = "it was evicted" if probe.evicted else "it was not seen lately"
    return f"{_STOPS[probe.stop]}; {history}"


def _of_lease(lease: Lease) -> list[str]:
    if lease.state == "spent":
        return [f"Lease {lease.id} is spent."]
    device, *below = lease.hits
    found = "" if lease.stop == "whole" else f", and the prefix ended there: {_STOPS[lease.stop]}"
    lines = [
        (
            f"Lease {lease.id} is {lease.state}: {lease.blocks} blocks, {lease.sealed} of them "
            f"published, {lease.promised} more promised."
        ),
        f"At its start {device} blocks were on the device and {sum(below)} below{found}.",
    ]
    if lease.state == "loading":
        flights = ", ".join(str(plan.flight) for plan in lease.plans)
        lines.append(f"It waits for its plans: flights {flights}.")
    return lines


def _of_parked(parked: Parked) -> list[str]:
    if parked.state == "spent":
        return [f"Parked sequence {parked.id} is spent."]
    kept = "is kept whole" if parked.state == "kept" else "lost its keeps and will be recomputed"
    return [
        (
            f"Parked sequence {parked.id} {kept}: {parked.computed} tokens in {parked.blocks} "
            f"blocks, {parked.on_device} of them still on the device."
        )
    ]


def _of_refusal(cache: Cache, flights: Flights, refusal: NoRoom, holders: _Holders) -> list[str]:
    match refusal:
        case TooLarge():
            return [
                (
                    f"It never fits: {refusal.need} slots are needed, and the {refusal.tier} has "
                    f"{refusal.capacity}."
                )
            ]
        case InUse():
            return [
                (
                    f"The {refusal.tier} cannot have {refusal.want} slots: {refusal.used} are "
                    "held, promised or quarantined."
                )
            ]
        case _:
            lines = [
                (
                    f"The {refusal.tier} had no room: {refusal.need} slots were needed, "
                    f"{max(refusal.available, 0)} were available ({refusal.free} free and "
                    f"{refusal.evictable} evictable, {refusal.promised} promised)."
                )
            ]
            lines += _in_flight(cache, flights, refusal.tier)
            if refusal.tier == "device":
                lines += _ends(cache, refusal.need - refusal.available, holders)
            return lines


def _in_flight(cache: Cache, flights: Flights, tier: str) -> list[str]:
    """Names the flights that hold idle blocks of a tier, and the ranks that have not reported."""
    blocks, numbers = cache.idle_in_flight().get(tier, (0, []))
    if not blocks:
        return []
    waits = [
        f"flight {flight} waits "
        + ("to be dispatched" if missing is None else f"for {ranks(missing)}")
        for flight in numbers[:_SHOWN]
        if (missing := flights.missing(flight)) != []
    ]
    more = [f"and {len(numbers) - _SHOWN} others"] if len(numbers) > _SHOWN else []
    idle = f"{blocks} idle {'block' if blocks == 1 else 'blocks'} of the {tier}"
    return [f"Copies hold {idle} until flights end: {', '.join([*waits, *more])}."]


def _ends(cache: Cache, missing: int, holders: _Holders) -> list[str]:
    """Names the fewest holders whose end is certain to free `missing` device slots.

    The headroom comes first: it falls whenever a running sequence ends or grows.
    """
    headroom = cache.room().headroom
    lines = []
    if missing > 0 and headroom:
        lines.append(f"{headroom} slots are headroom, kept for the growth of running sequences.")
        missing -= headroom
        if missing <= 0:
            return [*lines, "They would be enough: it falls as rows end or grow."]
    # A parked sequence is promised slots below the device.
    gains = [
        (alone + (promised if kind in {"lease", "ticket"} else 0), f"{kind} {number}")
        for kind, number, _, promised, alone, _ in holders
    ]
    ends = []
    for gain, name in sorted(gains, key=lambda row: -row[0]):
        if missing <= 0 or not gain:
            break
        missing -= gain
        ends.append(name)
    if missing > 0:
        why = "The held blocks are shared or being copied: no single end is sure to make room."
        return [*lines, why]
    return [*lines, f"The end of {', '.join(ends)} would make room."] if ends else lines


def _room(cache: Cache, holders: _Holders) -> str:
    room = cache.room()
    most = ", ".join(f"{kind} {number}: {blocks}" for kind, number, blocks, *_ in holders[:3])
    return (
        f"The device has {room.free} slots free, {room.evictable} evictable, {room.promised} "
        f"promised. Holders of blocks: {len(holders)}" + (f" ({most})." if most else ".")
    )
