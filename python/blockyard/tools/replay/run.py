"""One pass over a trace with the engine in virtual time: arrivals, steps, copies, ends."""

import time
from collections.abc import Callable
from typing import Final, cast

from blockyard.crane.devices import device
from blockyard.scheduling.cached_tokens import CachedTokens
from blockyard.scheduling.engine import Start, Step
from blockyard.scheduling.headroom import HeadroomPolicy, Watermark
from blockyard.scheduling.options import SchedulerOptions
from blockyard.scheduling.request import RequestState
from blockyard.scheduling.scheduler import Scheduler
from blockyard.scheduling.victims import LeastComputed, Newest
from blockyard.shared.plan import Plan
from blockyard.tools.endings import Broken
from blockyard.tools.replay.arrivals import Arrivals, Transfers
from blockyard.tools.replay.clock import Link, StoreTimes
from blockyard.tools.replay.counters import End, Levels, RunCounts, verified
from blockyard.tools.replay.engine import VirtualEngine
from blockyard.tools.replay.real_memory import (
    LocalMemory,
    ProcessMemory,
    RankMemory,
    UnbackedMemory,
    scaled,
)
from blockyard.tools.replay.result import Run
from blockyard.tools.replay.samples import Played
from blockyard.tools.replay.spec import HEADROOMS, Progress, RunSpec
from blockyard.tools.replay.step_tables import Tables
from blockyard.tools.replay.tokens import Tokens
from blockyard.tools.replay.verify import Verifier
from blockyard.tools.traces.trace import Trace
from blockyard.yard.cache import KVCache
from blockyard.yard.config import Config
from blockyard.yard.handshake import agree

__all__ = ["played", "run"]

_spent = time.thread_time_ns
"""CPU time of this thread, which has all of the bookkeeping; what else runs here does not count."""
_UNBOUNDED: Final = 2**31 - 1
_PATIENCE: Final = 8
"""Empty steps in a row, with nothing to wait for, after which the replay is called stuck."""


def run(spec: RunSpec, trace: Trace, progress: Callable[[Progress], None]) -> Run:
    """Replays a trace under one combination of policies; see `played`."""
    return played(spec, trace, progress).run


def played(spec: RunSpec, trace: Trace, progress: Callable[[Progress], None]) -> Played:
    """Replays a trace under one combination of policies.

    Ctrl-C ends it early: it returns the figures so far, with `complete` false.

    Args:
        spec: What is modelled.
        trace: The requests.
        progress: Called a few times per second.

    Raises:
        BlockyardError: The configuration is impossible here.
    """
    config = _config(spec)
    memory: RankMemory
    if not spec.verify:
        memory = UnbackedMemory(config, loss=spec.store_loss, seed=spec.seed)
    elif spec.ranks == 1:
        memory = LocalMemory(config, seed=spec.seed, on=device(spec.verify))
    else:
        memory = ProcessMemory(config, seed=spec.seed, on=spec.verify)
    try:
        replay = _Replay(spec, trace, KVCache(agree(config, memory.hello())), memory)
        return replay.played(progress)
    finally:
        memory.close()


def _config(spec: RunSpec) -> Config:
    layout = scaled(spec.block_size, spec.ranks) if spec.verify else None
    return Config(
        device=spec.device_blocks + 1,
        host=spec.host_blocks,
        disk=spec.disk_blocks,
        remote=spec.remote_blocks,
        layout=layout,
        ranks=spec.ranks,
        block_size=spec.block_size,
        # No spec of this model has the optimum.
        eviction="recency" if spec.policy == "optimum" else spec.policy,
        host_copies=spec.host_copies,
        write=spec.write_policy,
        block_costs=spec.block_costs if spec.gate else None,
        namespace={"model": spec.preset},
    )


def _headroom(spec: RunSpec) -> HeadroomPolicy:
    policy = HEADROOMS[spec.headroom]
    return Watermark(max(1, spec.device_blocks // 100)) if policy is Watermark else policy()


class _Replay:
    """The state of one pass."""

    def __init__(self, spec: RunSpec, trace: Trace, cache: KVCache, memory: RankMemory) -> None:
        self.spec = spec
        self.trace = trace
        self.cache = cache
        self.memory = memory
        roofline = spec.roofline
        self.now = 0.0
        self.end = 0.0
        self.tick = 0
        self.idle = 0
        self.block_bytes = roofline.kv_bytes_per_token * spec.block_size
        machine = roofline.machine
        self.link = Link(
            self.block_bytes / spec.ranks,
            machine.link_bytes_per_second,
            machine.link_latency,
            spec.disk_block_seconds,
            StoreTimes(spec.store_block_seconds, spec.store_latency),
        )
        decodes = spec.role == "decode"
        headroom = _headroom(spec)
        self.scheduler = Scheduler(
            cache,
            SchedulerOptions(
                max_num_seqs=spec.max_num_seqs,
                # A prompt that arrives computed takes nothing of it.
                max_num_batched_tokens=_UNBOUNDED if decodes else spec.max_num_batched_tokens,
                role=spec.role,
                headroom=headroom,
                preempt_mode=spec.preempt_mode,
                victim_policy=LeastComputed() if spec.victims == "least-computed" else Newest(),
                stops="in-order",
                prefetch_depth=spec.prefetch,
            ),
        )
        tokens = Tokens(trace, spec.seed)
        self.arrivals = (
            Transfers(spec, trace, tokens, self.scheduler, headroom)
            if decodes
            else Arrivals(spec, trace, tokens, self.scheduler)
        )
        self.engine = VirtualEngine(spec, trace, tokens)
        columns = cache.room().free + 1
        longest = int((trace.input_length + trace.output_length).max(initial=1))
        self.tables = Tables(
            cache,
            rows=spec.max_num_seqs,
            columns=min(columns, -(-longest // spec.block_size) + 1),
            tokens=spec.max_num_batched_tokens + spec.max_num_seqs,
        )
        self.verifier = (
            Verifier(cache, memory, tokens, spec.answers(trace)) if spec.verify else None
        )
        self.sent: dict[int, float] = {}
        self.counts = RunCounts(len(trace))

    def run(self, progress: Callable[[Progress], None]) -> Run:
        return self.played(progress).run

    def played(self, progress: Callable[[Progress], None]) -> Played:
        wall = time.perf_counter()
        told = 0.0
        stopped = True
        try:
            while self.step():
                if time.monotonic() - told > 0.1:  # noqa: PLR2004 - seconds between two lines
                    told = time.monotonic()
                    progress(self.progress())
            stopped = False
        except KeyboardInterrupt:
            pass
        progress(self.progress())
        return self.counts.result(
            self.spec,
            self.scheduler,
            self.engine,
            self.arrivals,
            End(
                levels=self.levels(),
                complete=self.over and not stopped,
                seconds=self.seconds,
                wall=time.perf_counter() - wall,
                verified=verified(self.spec, self.verifier),
            ),
        )

    @property
    def over(self) -> bool:
        """Whether every request has ended or was refused; copies may be in flight still."""
        return self.counts.ended + self.arrivals.refused == len(self.trace)

    @property
    def seconds(self) -> float:
        """The engine's time so far; copies that trail the last request do not count."""
        return self.end if self.over else self.now

    def step(self) -> bool:
        """Runs one step of the engine, or jumps to the next event; False when all is done."""
        spent = self.counts.jump_ns + self.land()
        self.arrivals.come(self.now, len(self.counts.stopped))
        start = _spent()
        step = self.scheduler.schedule()
        plans = self.cache.dispatch()
        spent += _spent() - start
        self.send(plans)
        self.engine.submit(step)
        spent += self.place(step)
        levels = self.levels()
        self.counts.stopping += levels.stopping
        self.now += self.engine.seconds
        self.counts.looked(levels, self.engine.seconds)
        spent += self.output(step)
        if len(step):
            self.tick += 1
            self.idle = self.counts.jump_ns = 0
            self.counts.step_ns.append(spent)
            # The levels are those before ended requests released their blocks.
            self.counts.timeline.close(self.now, levels.seen)
            return True
        self.counts.jump_ns = spent
        # A step that only stops requests takes no time.
        return bool(step.stops) or self.jump()

    def land(self) -> int:
        """Commits the copies that are due; returns the nanoseconds of CPU time it took."""
        plans = self.link.landed(self.now)
        if not plans:
            return 0
        outcomes = self.memory.land(plans)
        start = _spent()
        self.cache.commit(outcomes, now=self.tick)
        spent = _spent() - start
        self.counts.landed(plans, outcomes)
        return spent

    def send(self, plans: list[Plan]) -> None:
        """Sends plans to the memory and onto the link."""
        if not plans:
            return
        self.memory.submit(plans)
        self.link.send(plans, self.now)
        for plan in plans:
            way = _way(plan)
            self.counts.moved[way] += len(plan)
            if way in {"down", "up"}:
                self.counts.timeline.add(f"bytes_{way}", int(len(plan) * self.block_bytes))
            if plan.destination_tier == "device":
                self.sent[plan.flight] = self.now

    def place(self, step: Step) -> int:
        """Takes the stops and starts of a step, and updates the tables that its kernels read."""
        for stop in step.stops:
            lost, request = self.engine.computed_in(stop.seat), self.engine.request(stop.seat)
            if self.verifier is not None:
                self.verifier.stops(request, lost, self.tables.slots(stop.seat, 0, None))
            self.tables.leave(stop.seat)
            self.counts.stopped[request] = self.now, lost
            self.counts.timeline.add("preempted", 1)
        for begun in step.starts:
            self.begins(begun)
        if not len(step):
            return 0
        start = _spent()
        self.tables.update(step)
        spent = _spent() - start
        if self.verifier is not None:
            for begun in step.starts:
                blocks = -(-begun.cached // self.spec.block_size)
                slots = self.tables.slots(begun.seat, 0, blocks)
                self.verifier.starts(self.engine.request(begun.seat), slots)
        return spent

    def begins(self, start: Start) -> None:
        """Binds a request to its seat, and counts what it found."""
        request = self.engine.request(start.seat)
        lease = self.scheduler.lease(request)
        if lease is None:
            raise Broken(f"request {request} has started and holds nothing")
        self.tables.bind(start.seat, lease)
        # A request with loads was admitted when their plans were sent.
        admitted = [self.sent.pop(plan.flight) for plan in lease.plans]
        size = self.spec.block_size
        device = min(lease.hits[0] * size, start.cached)
        # What a store has lost ends the prefix, which it had the end of.
        left = start.cached - device
        remote = min(lease.hits[3] * size, max(left - (lease.hits[1] + lease.hits[2]) * size, 0))
        disk = min(lease.hits[2] * size, left - remote)
        self.counts.begins(
            request,
            min(admitted, default=self.now),
            int(self.trace.input_length[request]),
            CachedTokens(device, left - disk - remote, disk, remote),
        )

    def output(self, step: Step) -> int:
        """Ends a step: appends tokens, publishes full blocks, takes results."""
        (output,), _ = self.engine.poll()
        if self.verifier is not None:
            # Blocks are written before they are published, in the slots that this step has read.
            self.verifier.computed(step, self.engine, self.tables)
        start = _spent()
        self.scheduler.on_output(output)
        results = self.scheduler.results()
        spent = _spent() - start
        requests, places = self.engine.requests, self.engine.places
        spoken = self.trace.output_length[requests] > 0
        self.counts.sampled(requests[spoken], places[spoken], self.now, self.arrivals.times)
        if output.ended is not None:
            for seat in output.seats[output.ended].tolist():
                self.tables.leave(seat)
        for request, state, tokens, reason, *_ in results:
            number = cast("int", request)
            if state is not RequestState.FINISHED:
                raise Broken(f"request {number} is {state}: {reason}")
            answer = tokens[: self.trace.output_length[number]]
            if self.verifier is not None:
                self.verifier.ended(number, answer)
            self.counts.output_tokens += len(answer)
            self.counts.ended += 1
            self.end = self.now
        return spent

    def jump(self) -> bool:
        """Moves the clock to the next landing or arrival; False where there is none."""
        events = [at for at in (self.link.next(), self.arrivals.next(self.now)) if at is not None]
        if not events:
            return not self.over and self.wait()
        levels = self.levels()
        self.now = max(self.now, min(events))
        if not self.over:
            self.counts.timeline.close(self.now, levels.seen)
        return True

    def wait(self) -> bool:
        """Lets another step try, where no request runs and no event is to come.

        Raises:
            Broken: The replay is stuck.
        """
        self.idle += 1
        if self.idle > _PATIENCE:
            waiting = self.scheduler.stats()["waiting"]
            raise Broken(
                f"stuck after {self.now:.3f} s: no request runs, nothing is on its way, and "
                f"{waiting} requests wait; {self.cache.room()!r}"
            )
        return True

    def levels(self) -> Levels:
        """Returns how full everything is."""
        stats, scheduler = self.cache.stats(), self.scheduler.stats()
        return Levels(
            device=stats["device_capacity"] - stats["device_free"],
            pinned=stats["device_pinned"] + stats["device_claimed"],
            promised=stats["device_promised"],
            host=stats["host_capacity"] - stats["host_free"],
            disk=stats["disk_capacity"] - stats["disk_free"],
            remote=stats["remote_capacity"] - stats["remote_free"],
            running=scheduler["seats"] - scheduler["stopping"],
            waiting=scheduler["waiting"] + self.arrivals.outside(self.now),
            headroom=scheduler["headroom"],
            stopping=scheduler["stopping"],
        )

    def progress(self) -> Progress:
        levels = self.levels()
        return Progress(
            requests_done=self.counts.ended,
            requests=len(self.trace),
            engine_seconds=self.seconds,
            hit_ratio=self.counts.hit_ratio,
            device_used=levels.device,
            host_used=levels.host,
            blocks_down=self.counts.moved["down"],
            blocks_up=self.counts.moved["up"],
        )


def _way(plan: Plan) -> str:
    """Which way a plan goes: "disk down" and "disk up" between the disk and the tiers above it."""
    for lower in ("remote", "disk"):
        if plan.destination_tier == lower:
            return f"{lower} down"
        if plan.source_tier == lower:
            return f"{lower} up"
    return _WAYS[plan.source_tier, plan.destination_tier]


_WAYS: Final = {
    ("device", "host"): "down",
    ("host", "device"): "up",
    ("device", "device"): "across",
}
