"""Why a prefix missed, why a request waits, who holds what: answers for people."""

from collections.abc import Iterable
from dataclasses import dataclass

from blockyard._core import Cache, Keys, Lease, NoRoom, Parked, Probe
from blockyard._typing import override

__all__ = ["Explanation", "explain"]

_STOPS = {
    "whole": "all of it was found",
    "missing": "the next block is nowhere",
    "filling": "the next block is in the air",
    "slow": "loading the rest would take longer than computing it",
    "promised": "the next block backs a promise that nobody may spend",
    "contradiction": "the next key is known with another parent: these keys were made otherwise",
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """What there is to say, in sentences; `str` joins them."""

    lines: tuple[str, ...]
    holders: tuple[tuple[str, int, int, int], ...]
    """Who holds the device: (kind, id, blocks held, blocks promised), the largest first."""

    @override
    def __str__(self) -> str:
        return "\n".join(self.lines)


def explain(cache: Cache, request: Keys | Iterable[int] | Lease | Parked | NoRoom) -> Explanation:
    """See `KVCache.explain`."""
    holders = tuple(cache.holders())
    match request:
        case Lease():
            lines = _of_lease(request)
        case Parked():
            lines = _of_parked(request)
        case NoRoom():
            lines = _of_refusal(request, holders)
        case _:
            keys = request if isinstance(request, Keys) else cache.keys(request)
            lines = _of_prompt(cache, keys)
    return Explanation((*lines, _room(cache, holders)), holders)


def _of_prompt(cache: Cache, keys: Keys) -> list[str]:
    probe = cache.probe(keys)
    found = probe.device + probe.host + probe.disk
    lines = [
        (
            f"Of {len(keys)} full blocks, {probe.device} are on the device, {probe.host} on the "
            f"host: {found * cache.block_size} of {keys.tokens} tokens."
        )
    ]
    if probe.stop != "whole":
        lines.append(f"The prefix ends at block {found}: {_why(probe)}.")
    if probe.host and not cache.worth_loading(probe.host, probe.device):
        lines.append(f"Now the {probe.host} on the host would be skipped: {_STOPS['slow']}.")
    room = cache.room()
    need = -(-keys.tokens // cache.block_size) - probe.device
    spare = room.free + room.evictable - room.promised
    if need > spare:
        lines.append(f"It waits: it needs {need} slots, and {max(spare, 0)} can be had.")
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
    device, host, disk = lease.hits
    found = "" if lease.stop == "whole" else f", and the prefix ended there: {_STOPS[lease.stop]}"
    lines = [
        (
            f"Lease {lease.id} is {lease.state}: {lease.blocks} blocks, {lease.sealed} of them "
            f"published, {lease.promised} more promised."
        ),
        f"At its start {device} blocks were on the device and {host + disk} below{found}.",
    ]
    if lease.state == "loading":
        flights = ", ".join(str(plan.flight) for plan in lease.plans)
        lines.append(f"It waits for flights {flights}.")
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


def _of_refusal(refusal: NoRoom, holders: tuple[tuple[str, int, int, int], ...]) -> list[str]:
    spare = refusal.free + refusal.evictable - refusal.promised
    lines = [
        (
            f"The {refusal.tier} has no room: {refusal.need} slots are needed, {max(spare, 0)} can "
            f"be had ({refusal.free} free and {refusal.evictable} evictable, {refusal.promised} "
            "promised)."
        )
    ]
    missing = refusal.need - spare
    if refusal.tier != "device" or missing <= 0:
        return lines
    freed, ends = 0, []
    for kind, number, blocks, promised in holders:
        if freed >= missing:
            break
        freed += blocks + promised
        ends.append(f"{kind} {number}")
    if freed >= missing:
        lines.append(f"The end of {', '.join(ends)} would make room.")
    else:
        lines.append("Even with every sequence ended it would not fit.")
    return lines


def _room(cache: Cache, holders: tuple[tuple[str, int, int, int], ...]) -> str:
    room = cache.room()
    most = ", ".join(f"{kind} {number}: {blocks}" for kind, number, blocks, _ in holders[:3])
    return (
        f"The device has {room.free} slots free, {room.evictable} evictable, {room.promised} "
        f"promised. Holders of blocks: {len(holders)}" + (f" ({most})." if most else ".")
    )
