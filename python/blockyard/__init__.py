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
from blockyard.config import Config, agree
from blockyard.crane import Crane
from blockyard.engine import Ack, Output, Step
from blockyard.layout import KVLayout
from blockyard.local import local
from blockyard.plan import Cause, Outcome
from blockyard.scheduler import Scheduler

__all__ = [
    "Ack",
    "BlockyardError",
    "Breach",
    "Cause",
    "Config",
    "Crane",
    "ForeignLease",
    "InUse",
    "KVCache",
    "KVLayout",
    "Keys",
    "Lease",
    "Misuse",
    "NoRoom",
    "Outcome",
    "Output",
    "Parked",
    "Plan",
    "Probe",
    "Scheduler",
    "Soon",
    "SpentLease",
    "Step",
    "TooLarge",
    "Unavailable",
    "Unsupported",
    "__version__",
    "agree",
    "local",
]
