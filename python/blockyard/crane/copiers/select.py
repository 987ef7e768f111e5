"""The copier for a pair of tiers, where none was given."""

from blockyard._core import Misuse
from blockyard.crane.copiers import Copier
from blockyard.crane.copiers.cuda import CudaCopier
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.tiers import Tier
from blockyard.crane.tiers.device import DeviceTier
from blockyard.crane.tiers.pinned import PinnedTier
from blockyard.shared.thresholds import Thresholds

__all__ = ["select_copier"]


def select_copier(device: Tier, host: Tier | None, thresholds: Thresholds | None = None) -> Copier:
    """Makes a copier for these tiers.

    Args:
        device: The device tier.
        host: The host tier, if there is one.
        thresholds: How copies are best made, on a GPU.

    Raises:
        Misuse: One of them is a GPU's, and the other is not.
    """
    if not isinstance(device, DeviceTier):
        if isinstance(host, PinnedTier):
            raise Misuse("host = pinned memory, but the device is no GPU: give it a MemoryTier")
        return ThreadCopier()
    if host is not None and not isinstance(host, PinnedTier):
        raise Misuse("device = a GPU, but the host's memory is not pinned: give it a PinnedTier")
    return CudaCopier(device, host, thresholds=thresholds)
