"""What one pass counts as it goes, and the `Run` that comes of it."""

from dataclasses import dataclass, field

import numpy as np

from blockyard.cache import KVCache
from blockyard.replay.fcfs import FirstCome
from blockyard.replay.hands import scaled
from blockyard.replay.meter import Timeline, spread
from blockyard.replay.result import Bookkeeping, Moved, Run, Verified, Waits
from blockyard.replay.setup import Setup

__all__ = ["Tally"]


@dataclass(slots=True, eq=False)
class Tally:
    """Sums and lists; times are seconds of the modelled engine, `_ns` is measured."""

    timeline: Timeline = field(default_factory=Timeline)
    ended: int = 0
    arrived: int = 0
    device_hit: int = 0
    host_hit: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    loaded_requests: int = 0
    moved: dict[str, int] = field(default_factory=lambda: {"down": 0, "up": 0, "across": 0})
    peak: dict[str, int] = field(default_factory=lambda: {"device": 0, "host": 0, "pinned": 0})
    ttft: list[float] = field(default_factory=list)
    queue: list[float] = field(default_factory=list)
    gaps: list[tuple[float, int]] = field(default_factory=list)
    """Time between two tokens, and of how many requests."""
    step_ns: list[int] = field(default_factory=list)
    jump_ns: int = 0
    """Of a jump to the next event, until the next step takes it."""
    request_ns: int = 0
    written: int = 0
    checked: int = 0
    wrong: int = 0

    @property
    def hit_ratio(self) -> float:
        """Prompt tokens found / prompt tokens."""
        return (self.device_hit + self.host_hit) / max(self.input_tokens, 1)

    def result(
        self,
        setup: Setup,
        cache: KVCache,
        admission: FirstCome,
        *,
        levels: list[int],
        complete: bool,
        seconds: float,
        wall: float,
    ) -> Run:
        """The whole of it.

        Args:
            setup: What was modelled.
            cache: Its bookkeeping, audited here.
            admission: Who waited and who was refused.
            levels: As `Timeline.series` takes them.
            complete: Whether every request has ended or was refused.
            seconds: Of the modelled engine.
            wall: Seconds that the pass took.
        """
        stats = cache.stats()
        breach = cache.audit()
        tokens = max(self.input_tokens, 1)
        gaps = np.array([gap for gap, _ in self.gaps])
        rows = np.array([count for _, count in self.gaps], np.int64)
        return Run(
            model="virtual",
            policy=setup.policy,
            write_policy=setup.write_policy,
            device_blocks=setup.device_blocks,
            host_blocks=setup.host_blocks,
            requests=self.ended,
            refused=admission.refused,
            complete=complete,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            hit_ratio=self.hit_ratio,
            hit_ratio_by_tier={"device": self.device_hit / tokens, "host": self.host_hit / tokens},
            skipped_slow=stats["slow"],
            engine_seconds=seconds,
            wall_seconds=wall,
            tokens_per_second=self.output_tokens / max(seconds, 1e-9),
            ttft_ms=spread(np.array(self.ttft) * 1e3),
            itl_ms=spread(gaps * 1e3, rows),
            waits=Waits(
                no_room=admission.no_room,
                filling=admission.filling,
                loading=self.loaded_requests,
                queue_ms=spread(np.array(self.queue) * 1e3),
            ),
            moved=self._moved(setup, stats["failed"]),
            peak=dict(self.peak),
            bookkeeping=self._bookkeeping(seconds),
            verified=self._verified(setup),
            audit="ok" if breach is None else f"{breach.law}: {breach.what}",
            series=self.timeline.series(levels),
        )

    def _moved(self, setup: Setup, failed: int) -> Moved:
        return Moved(
            blocks_down=self.moved["down"],
            blocks_up=self.moved["up"],
            blocks_across=self.moved["across"],
            bytes_down=self.moved["down"] * setup.block_bytes,
            bytes_up=self.moved["up"] * setup.block_bytes,
            failed_blocks=failed,
        )

    def _bookkeeping(self, seconds: float) -> Bookkeeping:
        ns = np.array(self.step_ns, np.float64)
        spent = float(ns.sum()) + self.jump_ns + self.request_ns
        return Bookkeeping(
            steps=len(ns),
            us_per_step=spread(ns / 1e3),
            us_per_request=self.request_ns / max(self.arrived, 1) / 1e3,
            share=spent / 1e9 / max(seconds, 1e-9),
        )

    def _verified(self, setup: Setup) -> Verified | None:
        if not setup.verify:
            return None
        return Verified(
            written=self.written,
            checked=self.checked,
            wrong=self.wrong,
            block_bytes=scaled(setup.block_size, setup.ranks).block_bytes,
        )
