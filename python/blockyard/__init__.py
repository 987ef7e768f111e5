"""The KV cache of an inference engine: which block lives where, and who may use it."""

import sys
import typing

if any(word.endswith("blockyard") for word in sys.orig_argv):
    from blockyard import _command  # noqa: F401 - what Ctrl-C does while the rest is imported

from blockyard._core import (
    BlockyardError,
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
    Violation,
    __version__,
)
from blockyard.crane.crane import Crane
from blockyard.local import local
from blockyard.scheduling.engine import Ack, Output, Step
from blockyard.scheduling.new_request import NewRequest
from blockyard.scheduling.options import SchedulerOptions
from blockyard.scheduling.scheduler import Scheduler
from blockyard.shared.hints import Hints
from blockyard.shared.layout import KVLayout
from blockyard.shared.plan import Cause, Outcome
from blockyard.yard.cache import KVCache
from blockyard.yard.config import Config
from blockyard.yard.handshake import agree
from blockyard.yard.rejoining import rejoin

__all__ = [
    "Ack",
    "AsyncEngine",
    "BlockyardError",
    "Cause",
    "Config",
    "Crane",
    "ForeignLease",
    "Hints",
    "InUse",
    "KVCache",
    "KVLayout",
    "Keys",
    "Lease",
    "Misuse",
    "NewRequest",
    "NoRoom",
    "Outcome",
    "Output",
    "Parked",
    "Plan",
    "Probe",
    "Scheduler",
    "SchedulerOptions",
    "Soon",
    "SpentLease",
    "Step",
    "TooLarge",
    "Unavailable",
    "Unsupported",
    "Violation",
    "__version__",
    "agree",
    "local",
    "rejoin",
]

if typing.TYPE_CHECKING:
    from blockyard.serving.async_engine import AsyncEngine
else:

    def __getattr__(name: str) -> object:
        """Imports what needs asyncio when it is used: most programs do not."""
        if name == "AsyncEngine":
            from blockyard.serving.async_engine import AsyncEngine  # noqa: PLC0415 - see above

            return AsyncEngine
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
