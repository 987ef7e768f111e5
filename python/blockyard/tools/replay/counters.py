"""What one pass counts, and the `Run` made of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blockyard.scheduling.cached_tokens import CachedTokens
from blockyard.scheduling.scheduler import Scheduler
from blockyard.shared.plan import Outcome, Plan
from blockyard.tools.replay.arrivals import Arrivals, Transfers
from blockyard.tools.replay.engine import VirtualEngine
from blockyard.tools.replay.load import NEVER, offered
from blockyard.tools.replay.real_memory import scaled
from blockyard.tools.replay.result import (
    Bookkeeping,
    DiskReport,
    Load,
    Moved,
    Preempted,
    PromisedBlocks,
    Run,
    StoreReport,
    TicketCounts,
    Verified,
    Waits,
)
from blockyard.tools.replay.samples import Played, Samples
from blockyard.tools.replay.spec import RunSpec
from blockyard.tools.replay.timeline import Timeline, spread
from blockyard.tools.replay.verify import Verifier

__all__ = ["End", "Levels", "RunCounts", "bookkeeping", "verified"]

_WAYS: Final = ("down", "up", "across", "disk down", "disk up", "remote down", "remote up")


@dataclass(frozen=True, slots=True)
class Levels:
    """How full everything is at one moment."""

    device: int
    pinned: int
    promised: int
    host: int
    disk: int
    remote: int
    running: int
    waiting: int
    headroom: int
    stopping: int

    @property
    def seen(self) -> list[int]:
        """The levels in the order of `Timeline.close`."""
        return [self.device, self.pinned, self.promised, self.host, self.running, self.waiting]


class End(NamedTuple):
    """How a pass has ended."""

    levels: Levels
    complete: bool
    """Whether every request has ended or was refused."""
    seconds: float
    """Time of the modelled engine."""
    wall: float
    """Seconds that the pass took."""
    verified: Verified | None


@dataclass(slots=True, eq=False)
class RunCounts:
    """Sums and lists. Times are seconds of the modelled engine; `_ns` is measured."""

    requests: int
    """In the trace."""
    timeline: Timeline = field(default_factory=Timeline)
    ended: int = 0
    hits: CachedTokens = field(default_factory=CachedTokens)
    input_tokens: int = 0
    output_tokens: int = 0
    loaded_requests: int = 0
    moved: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_WAYS, 0))
    disk_peak: int = 0
    remote_peak: int = 0
    loaded: int = 0
    """Blocks that came from a store."""
    losses: int = 0
    """Loads that a store had lost a block of."""
    peak: dict[str, int] = field(default_factory=lambda: {"device": 0, "host": 0, "pinned": 0})
    pinned: list[int] = field(default_factory=list)
    headroom: list[int] = field(default_factory=list)
    promised: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """The duration of each step, for the means of `pinned`, `headroom` and `promised`."""
    ttft: list[float] = field(default_factory=list)
    gaps: list[tuple[float, int]] = field(default_factory=list)
    """Times between two tokens, and how many requests had each."""
    stopping: int = 0
    found: int = 0
    away: list[float] = field(default_factory=list)
    stopped: dict[int, tuple[float, int]] = field(default_factory=dict)
    """Preempted requests that are not running again: when, and how many tokens were computed."""
    step_ns: list[int] = field(default_factory=list)
    """CPU time of the bookkeeping, for each step."""
    jump_ns: int = 0
    """What was spent while no request could run, until the next step takes it."""
    began: NDArray[np.float64] = field(init=False)
    """When each request was admitted first."""
    said: NDArray[np.float64] = field(init=False)
    """When each request sampled its newest token."""

    def __post_init__(self) -> None:
        """Marks every request as not begun."""
        self.began = np.full(self.requests, NEVER)
        self.said = np.zeros(self.requests)

    @property
    def hit_ratio(self) -> float:
        """The prompt tokens found / all prompt tokens."""
        return self.hits.total / max(self.input_tokens, 1)

    def begins(self, request: int, at: float, prompt: int, found: CachedTokens) -> None:
        """Counts a request that was admitted and computes from now on.

        Args:
            request: Its number.
            at: When it was admitted.
            prompt: The tokens of its prompt.
            found: The tokens that it found on the device, and those that were loaded for it.
        """
        below = found.host + found.disk + found.remote
        self.loaded_requests += below > 0
        if self.began[request] != NEVER:
            since, lost = self.stopped.pop(request)
            self.found += min(found.total, lost)
            self.away.append(at - since)
            return
        self.began[request] = at
        self.hits = CachedTokens(*map(add, self.hits, found))
        self.input_tokens += prompt
        self.timeline.add("device_hit", found.device)
        self.timeline.add("host_hit", below)
        self.timeline.add("missed", prompt - found.total)

    def sampled(
        self, requests: NDArray[np.int64], places: NDArray[np.int64], at: float, times: list[float]
    ) -> None:
        """Counts tokens that were sampled at `at`; `times` are the arrivals of all requests."""
        first = places == 0
        if first.any():
            self.ttft += [at - times[request] for request in requests[first].tolist()]
        later = requests[~first]
        if len(later):
            gaps = at - self.said[later]
            if gaps.min() == gaps.max():
                self.gaps.append((float(gaps[0]), len(gaps)))
            else:
                values, counts = np.unique(gaps, return_counts=True)
                self.gaps += zip(values.tolist(), counts.tolist(), strict=True)
        self.said[requests] = at

    def landed(self, plans: Sequence[Plan], outcomes: Sequence[Outcome]) -> None:
        """Counts what came from a store, and what it had lost."""
        stored = {plan.flight for plan in plans if plan.source_tier == "remote"}
        for outcome in outcomes:
            if outcome.rank == 0 and outcome.flight in stored:
                self.loaded += outcome.good
                self.losses += outcome.cause is not None

    def looked(self, levels: Levels, seconds: float) -> None:
        """Counts the levels of a step, and raises the peaks."""
        self.disk_peak = max(self.disk_peak, levels.disk)
        self.remote_peak = max(self.remote_peak, levels.remote)
        peak = self.peak
        peak["device"] = max(peak["device"], levels.device)
        peak["host"] = max(peak["host"], levels.host)
        peak["pinned"] = max(peak["pinned"], levels.pinned)
        if seconds:
            self.pinned.append(levels.pinned)
            self.headroom.append(levels.headroom)
            self.promised.append(levels.promised)
            self.seconds.append(seconds)

    def result(
        self,
        spec: RunSpec,
        scheduler: Scheduler,
        engine: VirtualEngine,
        arrivals: Arrivals,
        end: End,
    ) -> Played:
        """Returns all figures of the pass, and the values behind them.

        Args:
            spec: What was modelled.
            scheduler: Has counted waits and preemptions; its cache is audited here.
            engine: Has counted what was computed.
            arrivals: Has counted arrivals and refusals.
            end: How it has ended.
        """
        stats = scheduler.cache.stats()
        violation = scheduler.cache.audit()
        hits, tokens = self.hits, max(self.input_tokens, 1)
        samples = self._samples(arrivals, engine)
        run = Run(
            model="virtual",
            policy=spec.policy,
            write_policy=spec.write_policy,
            host_copies=spec.host_copies,
            hints=None,
            owner=spec.owner,
            role=spec.role,
            headroom=spec.headroom,
            victims=spec.victims,
            preempt_mode=spec.preempt_mode,
            device_blocks=spec.device_blocks,
            host_blocks=spec.host_blocks,
            disk_blocks=spec.disk_blocks,
            remote_blocks=spec.remote_blocks,
            block_bytes=spec.block_bytes,
            requests=self.ended,
            refused=arrivals.refused,
            complete=end.complete,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            hit_ratio=self.hit_ratio,
            hit_ratio_by_tier={"device": hits.device / tokens, "host": hits.host / tokens},
            skipped_slow=stats["slow"],
            engine_seconds=end.seconds,
            wall_seconds=end.wall,
            tokens_per_second=self.output_tokens / max(end.seconds, 1e-9),
            load=self._load(engine, arrivals, end.seconds),
            replicas=[],
            ttft_ms=spread(samples.ttft),
            itl_ms=spread(samples.gaps, samples.gap_counts),
            waits=self._waits(scheduler.stats(), samples),
            preempted=self._preempted(scheduler.stats(), engine, samples),
            reservations=self._reservations(arrivals),
            moved=self._moved(spec, stats["failed"]),
            pinned=self._mean(self.pinned),
            peak=dict(self.peak),
            disk=self._disk(spec) if spec.disk_blocks else None,
            remote=self._remote(spec) if spec.remote_blocks else None,
            bookkeeping=bookkeeping(samples, end.seconds),
            verified=end.verified,
            audit="ok" if violation is None else f"{violation.law}: {violation.detail}",
            series=self.timeline.series(end.levels.seen),
        )
        return Played(run, samples)

    def _samples(self, arrivals: Arrivals, engine: VirtualEngine) -> Samples:
        there = self.began != NEVER
        steps = np.array(self.step_ns, np.float64)
        return Samples(
            ttft=np.array(self.ttft) * 1e3,
            gaps=np.array([gap for gap, _ in self.gaps]) * 1e3,
            gap_counts=np.array([count for _, count in self.gaps], np.int64),
            queue=(self.began[there] - np.array(arrivals.times)[there]) * 1e3,
            away=np.array(self.away) * 1e3,
            step_us=steps / 1e3,
            added_us=arrivals.spent_ns / 1e3,
            taken=arrivals.taken,
            spent=(float(steps.sum()) + self.jump_ns + arrivals.spent_ns) / 1e9,
            computed=engine.computed,
        )

    def _load(self, engine: VirtualEngine, arrivals: Arrivals, seconds: float) -> Load | None:
        return offered(
            np.array(arrivals.times),
            self.began,
            engine.tokens,
            now=seconds,
            refused=arrivals.refused,
        )

    def _mean(self, blocks: list[int]) -> float:
        return float(np.average(blocks, weights=self.seconds)) if blocks else 0.0

    def _waits(self, counts: dict[str, int], samples: Samples) -> Waits:
        began = self.began[self.began != NEVER]
        # Of each request, the first admission among all that arrived later.
        after = np.minimum.accumulate(began[::-1])[::-1]
        return Waits(
            queue_ms=spread(samples.queue),
            no_room=counts["no_room"],
            soon=counts["soon"],
            loading=self.loaded_requests,
            overtaken=int((after < began).sum()),
            skipped=counts["skipped"],
            stopping=self.stopping,
        )

    def _preempted(
        self, counts: dict[str, int], engine: VirtualEngine, samples: Samples
    ) -> Preempted:
        return Preempted(
            count=counts["preempted"],
            parked=counts["parkings"],
            kept=counts["kept_blocks"],
            relieved=counts["relieved"],
            requests=len(engine.before),
            lost=counts["lost"],
            found=self.found,
            recomputed=engine.recomputed,
            share=engine.recomputed / max(engine.computed, 1),
            away_ms=spread(samples.away),
        )

    def _reservations(self, arrivals: Arrivals) -> PromisedBlocks:
        tickets = None
        if isinstance(arrivals, Transfers):
            counts = arrivals.reservations.stats()
            tickets = TicketCounts(
                granted=arrivals.granted,
                refused=counts["tickets_refused"],
                expired=counts["tickets_expired"],
                blocks=arrivals.blocks,
            )
        return PromisedBlocks(
            headroom=self._mean(self.headroom),
            headroom_peak=max(self.headroom, default=0),
            promised=self._mean(self.promised),
            promised_peak=max(self.promised, default=0),
            tickets=tickets,
        )

    def _disk(self, spec: RunSpec) -> DiskReport:
        down, up = self.moved["disk down"], self.moved["disk up"]
        return DiskReport(
            hit_ratio=self.hits.disk / max(self.input_tokens, 1),
            blocks_down=down,
            blocks_up=up,
            bytes_down=down * spec.block_bytes,
            bytes_up=up * spec.block_bytes,
            peak=self.disk_peak,
        )

    def _remote(self, spec: RunSpec) -> StoreReport:
        down = self.moved["remote down"]
        return StoreReport(
            hit_ratio=self.hits.remote / max(self.input_tokens, 1),
            blocks_down=down,
            blocks_up=self.loaded,
            bytes_down=down * spec.block_bytes,
            bytes_up=self.loaded * spec.block_bytes,
            losses=self.losses,
            peak=self.remote_peak,
        )

    def _moved(self, spec: RunSpec, failed: int) -> Moved:
        return Moved(
            blocks_down=self.moved["down"],
            blocks_up=self.moved["up"],
            blocks_across=self.moved["across"],
            bytes_down=self.moved["down"] * spec.block_bytes,
            bytes_up=self.moved["up"] * spec.block_bytes,
            failed_blocks=failed,
        )


def bookkeeping(samples: Samples, seconds: float) -> Bookkeeping:
    """Returns what the bookkeeping cost in so many modelled seconds, summed over engines."""
    return Bookkeeping(
        steps=len(samples.step_us),
        us_per_step=spread(samples.step_us),
        us_per_request=samples.added_us / max(samples.taken, 1),
        share=samples.spent / max(seconds, 1e-9),
    )


def verified(spec: RunSpec, verifier: Verifier | None) -> Verified | None:
    """Returns what a verifier has compared; None without --verify."""
    if verifier is None:
        return None
    return Verified(
        written=verifier.written,
        checked=verifier.checked,
        wrong=verifier.wrong,
        wrong_answers=verifier.wrong_answers,
        block_bytes=scaled(spec.block_size, spec.ranks).block_bytes,
    )
