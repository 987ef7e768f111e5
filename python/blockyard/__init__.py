"""KV-cache block manager for LLM inference engines: yard, crane and scheduler."""

import importlib
import sys
import typing

if any(word.endswith("blockyard") for word in sys.orig_argv):
    from blockyard import _command  # noqa: F401 - handles Ctrl-C during the imports below

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

__all__ = [
    "Ack",
    "AsyncEngine",
    "BlockyardError",
    "Cause",
    "ChunkedAttention",
    "Config",
    "Crane",
    "ForeignLease",
    "Full",
    "GroupConfigs",
    "Groups",
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
    "RecurrentState",
    "Scheduler",
    "SchedulerOptions",
    "SlidingWindow",
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

# Each part is imported when one of its names is first used: an engine that has a cache alone need
# not load crane, scheduler and asyncio.
if typing.TYPE_CHECKING:
    from blockyard.crane.crane import Crane
    from blockyard.local_cache import local
    from blockyard.scheduling.engine import Ack, Output, Step
    from blockyard.scheduling.new_request import NewRequest
    from blockyard.scheduling.options import SchedulerOptions
    from blockyard.scheduling.scheduler import Scheduler
    from blockyard.serving.async_engine import AsyncEngine
    from blockyard.shared.groups import (
        ChunkedAttention,
        Full,
        Groups,
        RecurrentState,
        SlidingWindow,
    )
    from blockyard.shared.hints import Hints
    from blockyard.shared.layout import KVLayout
    from blockyard.shared.plan import Cause, Outcome
    from blockyard.yard.cache import KVCache
    from blockyard.yard.config import Config
    from blockyard.yard.group_configs import GroupConfigs
    from blockyard.yard.handshake import agree
    from blockyard.yard.rejoining import rejoin
else:
    _MODULES = {
        "Ack": "scheduling.engine",
        "AsyncEngine": "serving.async_engine",
        "Cause": "shared.plan",
        "ChunkedAttention": "shared.groups",
        "Config": "yard.config",
        "Crane": "crane.crane",
        "Full": "shared.groups",
        "GroupConfigs": "yard.group_configs",
        "Groups": "shared.groups",
        "Hints": "shared.hints",
        "KVCache": "yard.cache",
        "KVLayout": "shared.layout",
        "NewRequest": "scheduling.new_request",
        "Outcome": "shared.plan",
        "Output": "scheduling.engine",
        "RecurrentState": "shared.groups",
        "Scheduler": "scheduling.scheduler",
        "SchedulerOptions": "scheduling.options",
        "SlidingWindow": "shared.groups",
        "Step": "scheduling.engine",
        "agree": "yard.handshake",
        "local": "local_cache",
        "rejoin": "yard.rejoining",
    }

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"blockyard.{_MODULES[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_MODULES})
