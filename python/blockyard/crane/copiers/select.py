"""The copiers of a crane, where none were given. A kind of tier with its own has a line here.

Those of a disk and of a GPU are imported when there is one.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeGuard

from blockyard._core import Misuse
from blockyard.crane.copiers import Copier, Pair
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.tiers import Tier, is_mapped
from blockyard.crane.tiers.device import DeviceTier
from blockyard.crane.tiers.disk import DiskTier
from blockyard.crane.tiers.pinned import PinnedTier
from blockyard.shared.layout import TIERS
from blockyard.shared.validate import known

if TYPE_CHECKING:
    from blockyard.crane.copiers.copy_stream import GpuStream
    from blockyard.crane.copiers.disk_copier import DiskCopier
    from blockyard.crane.copiers.sharing import SharedCopying
    from blockyard.crane.copiers.store_copier import StoreCopier
    from blockyard.crane.tiers.remote import RemoteTier
    from blockyard.shared.copy_tuning import CopyTuning

__all__ = ["select_copiers"]

_ACROSS = "device", "device"


def select_copiers(
    tiers: Mapping[str, Tier],
    given: Copier | Mapping[Pair, Copier] | None = None,
    copy_tuning: "CopyTuning | None" = None,
    sharing: "SharedCopying | None" = None,
) -> dict[Pair, Copier]:
    """Returns the copier for each pair of these tiers, and for copies within the device.

    One `DiskCopier` serves all pairs of a disk, one `StoreCopier` those of shared stores, and a
    `BounceCopier` those where neither side has memory of this process. On a GPU,
    one `CudaCopier` serves both ways between the device and a tier of pinned memory. Each other
    pair gets a `ThreadCopier` of its own, as a slow tier keeps the threads of one busy.

    Args:
        tiers: The tiers by name, from the device down.
        given: A copier for all pairs, or copiers for some.
        copy_tuning: How copies are best made, on a GPU.
        sharing: What the copiers share with those of other groups of layers; None for nothing.

    Raises:
        Misuse: There is no copier for a pair (the message has the remedy); or `given` has a
            pair that there is not.
        Unavailable: There is not enough memory; nothing is left open.
    """
    pairs = [_ACROSS] + [(one, other) for one in tiers for other in tiers if one != other]
    if given is not None and not isinstance(given, Mapping):
        return dict.fromkeys(pairs, given)
    own = {} if given is None else _checked(given, pairs)
    made: dict[Pair, Copier] = {}
    device = tiers["device"]
    on_gpu = device if isinstance(device, DeviceTier) else None
    for tier in tiers.values():
        if isinstance(tier, DiskTier) or _is_remote(tier):
            made |= _by_threads(tier, tiers, own, copy_tuning, sharing)
    missing = [pair for pair in pairs if pair not in own and pair not in made]
    of_gpu = [pair for pair in missing if "device" in pair and on_gpu is not None]
    threads = [pair for pair in missing if pair not in of_gpu]
    for pair in threads:
        _check(pair, tiers, pinned=on_gpu is not None)
    for pair in threads:
        made[pair] = ThreadCopier(threads=None if sharing is None else sharing.threads(pair))
    if on_gpu is not None and of_gpu:
        made |= _of_gpu(on_gpu, of_gpu, tiers, copy_tuning, sharing)
    return made | own


def _by_threads(
    tier: "DiskTier | RemoteTier",
    tiers: Mapping[str, Tier],
    own: Mapping[Pair, Copier],
    copy_tuning: "CopyTuning | None",
    sharing: "SharedCopying | None",
) -> dict[Pair, Copier]:
    """Makes the copiers of a tier whose bytes go by threads of its own, with each other tier."""
    near = _near(tier)
    made: dict[Pair, Copier] = {}
    for name, other in tiers.items():
        pairs = [(name, tier.name), (tier.name, name)]
        if other is tier:
            continue
        made |= dict.fromkeys(pairs, near)
        if pairs[0] in own or not isinstance(other, DeviceTier | DiskTier):
            continue
        if isinstance(other, DeviceTier) or _is_remote(tier):
            from blockyard.crane.copiers.bounce import BounceCopier  # noqa: PLC0415

            streams = _streams(sharing, other, tier.name) if isinstance(other, DeviceTier) else None
            made |= dict.fromkeys(pairs, BounceCopier(other, tier, near, copy_tuning, streams))
    return made


def _is_remote(tier: Tier) -> "TypeGuard[RemoteTier]":
    if tier.name != "remote":
        return False
    from blockyard.crane.tiers.remote import RemoteTier  # noqa: PLC0415 - most have no stores

    return isinstance(tier, RemoteTier)


def _near(tier: "DiskTier | RemoteTier") -> "DiskCopier | StoreCopier":
    """Returns what copies between memory and such a tier."""
    if isinstance(tier, DiskTier):
        from blockyard.crane.copiers.disk_copier import DiskCopier  # noqa: PLC0415

        return tier.copier if isinstance(tier.copier, DiskCopier) else DiskCopier(tier)
    from blockyard.crane.copiers.store_copier import StoreCopier  # noqa: PLC0415

    return tier.copier if isinstance(tier.copier, StoreCopier) else StoreCopier(tier)


def _checked(given: Mapping[Any, Copier], pairs: list[Pair]) -> dict[Pair, Copier]:
    """Returns the copiers that were given, if each is for a pair that there is."""
    for pair in given:
        if not isinstance(pair, tuple) or len(pair) != len(_ACROSS):
            raise Misuse(f"copier has {pair!r}: give the names of two tiers for each copier")
        for name in pair:
            known(f"copier has {pair!r}: tier", name, TIERS)
        if pair not in pairs:
            raise Misuse(f"copier has {pair!r}: nothing is copied so here; there are {pairs}")
    return dict(given)


def _check(pair: Pair, tiers: Mapping[str, Tier], *, pinned: bool) -> None:
    """Raises where threads cannot copy between these tiers."""
    for name in pair:
        if not is_mapped(tiers[name]):
            raise Misuse(
                f"the {name} tier has no planes in memory, and no copier of its own from {pair[0]} "
                f"to {pair[1]}: give copier={{{pair}: ...}}"
            )
        if isinstance(tiers[name], PinnedTier) and not pinned:
            raise Misuse(f"{name} = pinned memory, but the device is no GPU: give it a MemoryTier")


def _of_gpu(
    device: DeviceTier,
    pairs: list[Pair],
    tiers: Mapping[str, Tier],
    copy_tuning: "CopyTuning | None",
    sharing: "SharedCopying | None",
) -> dict[Pair, Copier]:
    """Makes copiers between a GPU and each tier that is pinned for it, as these pairs need them."""
    from blockyard.crane.copiers.cuda_copier import CudaCopier  # noqa: PLC0415 - only a GPU needs it

    below: dict[str, PinnedTier] = {}
    for name in dict.fromkeys(name for pair in pairs for name in pair if name != "device"):
        tier = tiers[name]
        if not isinstance(tier, PinnedTier):
            raise Misuse(
                f"device = a GPU, but the {name}'s memory is not pinned: give it a PinnedTier, or "
                f"copies between them a copier, as in copier={{('device', {name!r}): ...}}"
            )
        below[name] = tier
    made: dict[Pair, Copier] = {}
    with ExitStack() as opened:
        for name, tier in below.items():
            streams = _streams(sharing, device, name)
            copier = CudaCopier(device, tier, copy_tuning=copy_tuning, streams=streams)
            opened.callback(copier.close)
            made |= dict.fromkeys([("device", name), (name, "device")], copier)
            made.setdefault(_ACROSS, copier)
        if not made:
            streams = _streams(sharing, device, "")
            made[_ACROSS] = CudaCopier(device, copy_tuning=copy_tuning, streams=streams)
        opened.pop_all()
    return made


def _streams(
    sharing: "SharedCopying | None", device: DeviceTier, below: str
) -> "tuple[GpuStream, GpuStream] | None":
    return None if sharing is None else sharing.streams(device.gpu, below)
