"""Records the lengths and keys of requests as they end."""

from collections.abc import Hashable
from dataclasses import dataclass

from blockyard._core import Keys, Recorder

__all__ = ["RecordedRequests"]


@dataclass(slots=True, eq=False)
class _Arrived:
    """A request."""

    time: int
    keys: Keys | None = None
    """Those that it came with, before anything was sampled."""
    has_run: bool = False


class RecordedRequests:
    """Requests from their arrival to their end, for the recorder; none are kept without one.

    Args:
        recorder: Takes each request that has ended; None for no recording.
    """

    def __init__(self, recorder: Recorder | None) -> None:
        self._recorder = recorder
        self._waiting: dict[Hashable, _Arrived] = {}

    def add(self, request: Hashable, keys: Keys | None = None) -> None:
        """Notes a request's arrival; the first call counts."""
        if self._recorder is None:
            return
        entry = self._waiting.get(request)
        if entry is None:
            entry = self._waiting[request] = _Arrived(self._recorder.arrived())
        if entry.keys is None:
            entry.keys = keys

    def run(self, request: Hashable) -> None:
        """Notes that a request runs or loads."""
        if self._recorder is not None and request in self._waiting:
            self._waiting[request].has_run = True

    def end(
        self, request: Hashable, keys: Keys | None, prompt: int | None, answer: int | None
    ) -> None:
        """Records a request that has run, and forgets it.

        Args:
            request: Its id.
            keys: Those of its full blocks, if it has any that count.
            prompt: Tokens of its prompt; None for those of the keys that it came with.
            answer: Tokens of its answer; None for those that its keys have more.

        Raises:
            Misuse: A number is out of range.
        """
        entry = self._waiting.get(request)
        if entry is None or self._recorder is None:
            return
        if entry.keys is not None and entry.has_run:
            longest = entry.keys if keys is None or len(keys) < len(entry.keys) else keys
            prompt = entry.keys.tokens if prompt is None else prompt
            answer = max(longest.tokens - prompt, 0) if answer is None else answer
            self._recorder.ended(entry.time, longest, prompt, answer)
        del self._waiting[request]
