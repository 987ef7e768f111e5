"""The KV cache of an inference engine: which block lives where, and who may use it."""

from blockyard._core import (
    BlockyardError,
    Breach,
    ForeignLease,
    InUse,
    Keys,
    Lease,
    Misuse,
    NoRoom,
    Parked,
    Plan,
    Probe,
    Soon,
    SpentLease,
    TooLarge,
    Unavailable,
    Unsupported,
    __version__,
)
from blockyard.cache import KVCache

__all__ = [
    "BlockyardError",
    "Breach",
    "ForeignLease",
    "InUse",
    "KVCache",
    "Keys",
    "Lease",
    "Misuse",
    "NoRoom",
    "Parked",
    "Plan",
    "Probe",
    "Soon",
    "SpentLease",
    "TooLarge",
    "Unavailable",
    "Unsupported",
    "__version__",
]
