"""Which requests reach which engine, and when: how fast time runs, and what a router does.

The router by prefix works as those of SGLang and vLLM do (`cache_aware`): a request goes where the
longest prefix of it went before, if that is at least 0.3 of its prompt, and else to the engine with
the least load. How many requests run there is not known ahead of the replay, so the load is the
tokens that were sent to be computed, which fade with time. An engine takes no more for the sake of
a prefix while it has over 1.25 times the mean, as in consistent hashing with bounded loads
(arXiv:1608.01350), and is also some seconds of work ahead of the least loaded one.
"""

import math
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Misuse
from blockyard.tools.traces.trace import Trace

__all__ = ["RouterName", "faster", "routed"]

RouterName = Literal["prefix", "random"]

_LATEST: Final = 2**63 // 10**6 - 1
"""The latest millisecond of a trace."""
_MATCH: Final = 0.3
"""The least share of a prompt for which it is sent where its prefix went."""
_BOUND: Final = 1.25
"""The most load of an engine, as a multiple of the mean."""
_AHEAD: Final = 65_536
"""Tokens by which an engine may be ahead at any load: eight steps of 8,192."""
_FADE_MS: Final = 60_000.0
"""After so long 1/e of a load is left; about as long as a request takes under load."""


def faster(trace: Trace, speed: float) -> Trace:
    """Returns the trace with the time between two arrivals divided by `speed`.

    Raises:
        Misuse: The speed is not above 0, or so low that the last arrival is out of range.
    """
    if not (math.isfinite(speed) and speed > 0):
        raise Misuse(f"--speed {speed:g}: must be a number > 0, such as 2 for twice as fast")
    if speed == 1 or not len(trace):
        return trace
    first = int(trace.arrival[0])
    later = np.rint((trace.arrival - first) / speed)
    if first + float(later[-1]) > _LATEST:
        raise Misuse(f"--speed {speed:g}: the last request would arrive too late; give more")
    return Trace(
        name=trace.name,
        trace_block=trace.trace_block,
        arrival=first + later.astype(np.int64),
        input_length=trace.input_length,
        output_length=trace.output_length,
        ids=trace.ids,
        offsets=trace.offsets,
        session=trace.session,
        sessions=trace.sessions,
    )


def routed(trace: Trace, replicas: int, router: RouterName, seed: int = 0) -> list[Trace]:
    """Returns the requests of each engine, in the order of arrival.

    Args:
        trace: All requests.
        replicas: How many engines there are.
        router: What chooses one for a request.
        seed: Draws what is random.

    Raises:
        Misuse: There are more engines than requests.
    """
    if replicas > len(trace):
        raise Misuse(
            f"--replicas {replicas}: the trace has {len(trace):,} requests; give at most as many"
        )
    if replicas == 1:
        return [trace]
    chosen = (
        _ByPrefix(trace, replicas).choices()
        if router == "prefix"
        else np.random.default_rng(seed).integers(replicas, size=len(trace))
    )
    return [_part(trace, np.flatnonzero(chosen == engine)) for engine in range(replicas)]


class _ByPrefix:
    """A router that remembers where each prefix went, and forgets nothing.

    Equal ids have equal prefixes, so a set of engines for each id stands for the tree of prompts.
    """

    def __init__(self, trace: Trace, replicas: int) -> None:
        self._trace = trace
        self._went: dict[int, int] = {}
        """The engines that have had an id, as bits."""
        self._loads = np.zeros(replicas)

    def choices(self) -> NDArray[np.int64]:
        """Returns the engine of each request, shape (requests,)."""
        trace = self._trace
        engines = np.zeros(len(trace), np.int64)
        gaps = np.diff(trace.arrival, prepend=trace.arrival[:1]) / _FADE_MS
        fades = np.exp(-gaps).tolist()
        tokens = (trace.input_length + trace.output_length).tolist()
        prompts = trace.input_length.tolist()
        for request, (fade, size, prompt) in enumerate(zip(fades, tokens, prompts, strict=True)):
            self._loads *= fade
            ids = trace.ids_of(request).tolist()
            engine, matched = self._choose(ids, prompt)
            engines[request] = engine
            self._loads[engine] += size - matched
            for block in ids:
                self._went[block] = self._went.get(block, 0) | 1 << engine
        return engines

    def _choose(self, ids: list[int], prompt: int) -> tuple[int, int]:
        """Returns an engine, and how many tokens of the prompt it has had before."""
        matches = self._matches(ids, prompt)
        limit = max(_BOUND * float(self._loads.mean()), float(self._loads.min()) + _AHEAD)
        for tokens, engines in matches:
            if tokens < _MATCH * prompt:
                break
            free = [engine for engine in _bits(engines) if self._loads[engine] <= limit]
            if free:
                return min(free, key=self._loads.__getitem__), tokens
        least = int(self._loads.argmin())
        return least, next((tokens for tokens, engines in matches if engines >> least & 1), 0)

    def _matches(self, ids: list[int], prompt: int) -> list[tuple[int, int]]:
        """Returns the lengths of prefixes that went somewhere, longest first, and where."""
        matches: list[tuple[int, int]] = []
        there = -1
        for depth, block in enumerate(ids):
            before, there = there, there & self._went.get(block, 0)
            if there != before and depth:
                matches.append((min(depth * self._trace.trace_block, prompt), before))
            if not there:
                break
        else:
            if ids:
                matches.append((min(len(ids) * self._trace.trace_block, prompt), there))
        return matches[::-1]


def _bits(word: int) -> list[int]:
    """Returns which bits of a word are set."""
    return [bit for bit in range(word.bit_length()) if word >> bit & 1]


def _part(trace: Trace, requests: NDArray[np.int64]) -> Trace:
    """Returns some of the requests as a trace of its own."""
    counts = np.diff(trace.offsets)[requests]
    offsets = np.concatenate(([0], np.cumsum(counts)))
    # The place of each id in the whole trace.
    places = np.arange(offsets[-1]) + np.repeat(trace.offsets[requests] - offsets[:-1], counts)
    return Trace(
        name=trace.name,
        trace_block=trace.trace_block,
        arrival=trace.arrival[requests],
        input_length=trace.input_length[requests],
        output_length=trace.output_length[requests],
        ids=trace.ids[places],
        offsets=offsets,
        session=trace.session[requests] if len(trace.session) else trace.session,
        sessions=trace.sessions,
    )
