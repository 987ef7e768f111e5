"""An engine in virtual time: a roofline times its steps, and the trace says what they sample."""

from collections import deque
from typing import Final, cast

import numpy as np

from blockyard.scheduling.engine import Ack, Chunk, Output, Start, Step, Stop
from blockyard.tools.replay.spec import RunSpec
from blockyard.tools.replay.tokens import Tokens
from blockyard.tools.traces.trace import Trace

__all__ = ["VirtualEngine"]


class VirtualEngine:
    """An `Engine` whose steps are done when they are polled; its caller keeps the clock.

    A prompt costs its arithmetic, except with role "decode": there it arrives computed, and its
    first step costs as much as one token. A preempted request is recomputed in any role.

    Args:
        spec: What is modelled.
        trace: The requests; their numbers are their ids.
        tokens: The tokens that they sample.
    """

    stops: Final = "in-order"

    def __init__(self, spec: RunSpec, trace: Trace, tokens: Tokens) -> None:
        self._roofline = spec.roofline
        self._tokens = tokens
        self._prompts = trace.input_length
        self._answers = spec.answers(trace)
        self.tokens = self._prompts + self._answers
        """Of each request: the tokens of its prompt, and of the answer that it samples here."""
        self._came_computed = spec.role == "decode"
        self._request = np.zeros(spec.max_num_seqs, np.int64)
        self._known = np.zeros(spec.max_num_seqs, np.int64)
        self._computed = np.zeros(spec.max_num_seqs, np.int64)
        self._air: deque[Step] = deque()
        self.before: dict[int, int] = {}
        """Of each preempted request: the tokens that were computed before."""
        self.seconds = 0.0
        """The duration of the step that was submitted last."""
        self.requests = np.zeros(0, np.int64)
        """The requests that sampled in the step polled last, in the order of its output."""
        self.places = np.zeros(0, np.int64)
        """The index of the token that each of them sampled in its answer."""
        self.computed = 0
        """Tokens computed so far, repeated ones included."""
        self.recomputed = 0
        """Tokens of these that had been computed before."""

    def request(self, seat: int) -> int:
        """Returns the request in a seat."""
        return int(self._request[seat])

    def computed_in(self, seat: int) -> int:
        """Returns the tokens whose KV a seat has, or had until it was stopped."""
        return int(self._computed[seat])

    def submit(self, step: Step) -> None:
        """Begins a step."""
        for stop in step.stops:
            self._hear(stop)
        for start in step.starts:
            self._bind(start)
        self._air.append(step)
        self.seconds = self._duration(step) if len(step) else 0.0

    def poll(self) -> tuple[list[Output], list[Ack]]:
        """Returns the output of the oldest step, which acknowledges its stops as well."""
        return ([self._compute(self._air.popleft())] if self._air else []), []

    def _hear(self, stop: Stop) -> None:
        request = self.request(stop.seat)
        self.before[request] = max(self.before.get(request, 0), self.computed_in(stop.seat))

    def _bind(self, start: Start) -> None:
        # Requests go by their numbers in the trace.
        self._request[start.seat] = cast("int", start.request)
        self._known[start.seat] = len(start.tokens)
        self._computed[start.seat] = start.cached

    def _duration(self, step: Step) -> float:
        rows = len(step.decode)
        context = int(step.positions[:rows].sum()) + rows
        prefill, pairs, read = 0, 0.0, 0
        for chunk in step.chunks:
            first, count = chunk.first, chunk.tokens
            again = self.before.get(self.request(chunk.seat))
            if self._came_computed and again is None:
                rows += self._last(chunk)
                context += (first + count) * self._last(chunk)
                continue
            prefill += count
            pairs += count * (first + count / 2)
            read += first + count
            if again is not None:
                self.recomputed += max(0, min(first + count, again) - first)
        self.computed += prefill + rows
        return self._roofline.step_seconds(prefill, pairs, read, rows, context)

    def _last(self, chunk: Chunk) -> bool:
        """Returns whether a chunk ends its prompt, so that the request samples."""
        return chunk.first + chunk.tokens == int(self._known[chunk.seat])

    def _compute(self, step: Step) -> Output:
        seats = step.decode
        if step.chunks:
            numbers = np.fromiter((chunk.seat for chunk in step.chunks), np.int32)
            lasts = np.fromiter((self._last(chunk) for chunk in step.chunks), np.bool_)
            seats = np.concatenate((seats, numbers[lasts]))
            self._computed[numbers] = (step.positions + step.counts)[len(step.decode) :]
        self._computed[step.decode] += 1
        self.requests = self._request[seats]
        self.places = self._known[seats] - self._prompts[self.requests]
        self._known[seats] += 1
        ended = self.places + 1 >= self._answers[self.requests]
        return Output(
            step.number,
            seats,
            self._tokens.sampled(self.requests, self.places),
            ended=ended if ended.any() else None,
        )
