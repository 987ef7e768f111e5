"""One pass over a trace with the virtual-time engine: arrivals, steps, copies, ends."""

import time
from collections.abc import Callable
from typing import Final, cast

from blockyard._core import Unavailable
from blockyard.crane.devices import device
from blockyard.scheduling.engine import Start, Step
from blockyard.scheduling.headroom import (
    Adaptive,
    FullLength,
    HeadroomPolicy,
    NoHeadroom,
    Watermark,
)
from blockyard.scheduling.options import SchedulerOptions
from blockyard.scheduling.request import RequestState
from blockyard.scheduling.scheduler import Scheduler
from blockyard.scheduling.victims import LeastComputed, Newest
from blockyard.shared.plan import Plan
from blockyard.tools.replay.arrivals import Arrivals, Transfers
from blockyard.tools.replay.clock import Link
from blockyard.tools.replay.counters import Levels, Tally
from blockyard.tools.replay.engine import VirtualEngine
from blockyard.tools.replay.memory import BookHands, Hands, ProcessHands, RealHands, scaled
from blockyard.tools.replay.result import Run
from blockyard.tools.replay.setup import Progress, Setup
from blockyard.tools.replay.tables import Tables
from blockyard.tools.replay.tokens import Tokens
from blockyard.tools.replay.trace import Trace
from blockyard.tools.replay.verify import Witness
from blockyard.yard.cache import KVCache
from blockyard.yard.config import Config, Speeds, agree

__all__ = ["run"]

_now = time.perf_counter_ns
_UNBOUNDED: Final = 2**31 - 1
_PATIENCE: Final = 8
"""Steps in a row that run nobody, with nothing to wait for, until that is called stuck."""


def run(setup: Setup, trace: Trace, progress: Callable[[Progress], None]) -> Run:
    """Replays a trace under one policy.

    Ctrl-C ends it early: what is known so far is given, with `complete` false.

    Args:
        setup: What is modelled.
        trace: The requests.
        progress: Called a few times per second.

    Raises:
        BlockyardError: The configuration is not to be had.
    """
    config = _config(setup)
    hands: Hands
    if not setup.verify:
        hands = BookHands(config)
    elif setup.ranks == 1:
        hands = RealHands(config, seed=setup.seed, on=device(setup.device))
    else:
        hands = ProcessHands(config, seed=setup.seed, on=setup.device)
    try:
        replay = _Replay(setup, trace, KVCache(agree(config, hands.hello())), hands)
        return replay.run(progress)
    finally:
        hands.close()


def _config(setup: Setup) -> Config:
    layout = scaled(setup.block_size, setup.ranks) if setup.verify else None
    return Config(
        device=setup.device_blocks + 1,
        host=setup.host_blocks,
        layout=layout,
        ranks=setup.ranks,
        block_size=setup.block_size,
        eviction="heap" if setup.policy == "heap" else "recency",
        write=setup.write_policy,
        speeds=Speeds(*setup.roofline.speeds(setup.block_size)) if setup.gate else None,
        namespace={"model": setup.preset},
    )


def _reserve(setup: Setup) -> HeadroomPolicy:
    match setup.reserve:
        case "nothing":
            return NoHeadroom()
        case "full":
            return FullLength()
        case "watermark":
            return Watermark(max(1, setup.device_blocks // 100))
        case "growing":
            return Adaptive()


class _Replay:
    """The state of one pass."""

    def __init__(self, setup: Setup, trace: Trace, cache: KVCache, hands: Hands) -> None:
        self.setup = setup
        self.trace = trace
        self.cache = cache
        self.hands = hands
        roofline = setup.roofline
        self.now = 0.0
        self.end = 0.0
        self.tick = 0
        self.idle = 0
        self.block_bytes = roofline.kv_bytes_per_token * setup.block_size
        machine = roofline.machine
        self.link = Link(
            self.block_bytes / setup.ranks,
            machine.link_bytes_per_second,
            machine.link_latency,
        )
        decodes = setup.role == "decode"
        reserve = _reserve(setup)
        self.scheduler = Scheduler(
            cache,
            SchedulerOptions(
                max_num_seqs=setup.max_running,
                # A prompt that came computed takes nothing of it.
                max_num_batched_tokens=_UNBOUNDED if decodes else setup.token_budget,
                role=setup.role,
                headroom=reserve,
                preempt_mode=setup.preempt,
                victim_policy=LeastComputed() if setup.victims == "least-work" else Newest(),
                stops="in-order",
                prefetch_depth=setup.prefetch,
            ),
        )
        tokens = Tokens(trace, setup.seed)
        self.arrivals = (
            Transfers(setup, trace, tokens, self.scheduler, cache, reserve)
            if decodes
            else Arrivals(setup, trace, tokens, self.scheduler)
        )
        self.engine = VirtualEngine(setup, trace, tokens)
        columns = cache.room().free + 1
        longest = int((trace.input_length + trace.output_length).max(initial=1))
        self.tables = Tables(
            cache,
            rows=setup.max_running,
            columns=min(columns, -(-longest // setup.block_size) + 1),
            tokens=setup.token_budget + setup.max_running,
        )
        self.witness = Witness(cache, hands, tokens, setup.answers(trace)) if setup.verify else None
        self.sent: dict[int, float] = {}
        self.tally = Tally(len(trace))

    def run(self, progress: Callable[[Progress], None]) -> Run:
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
        return self.tally.result(
            self.setup,
            self.cache,
            self.scheduler,
            self.engine,
            self.arrivals,
            self.witness,
            levels=self.levels(),
            complete=self.over and not stopped,
            seconds=self.seconds,
            wall=time.perf_counter() - wall,
        )

    @property
    def over(self) -> bool:
        """Whether every request has ended or was refused; copies may still be in flight."""
        return self.tally.ended + self.arrivals.refused == len(self.trace)

    @property
    def seconds(self) -> float:
        """Of the engine, so far: copies that trail the last request are none of its time."""
        return self.end if self.over else self.now

    def step(self) -> bool:
        """One step of the engine, or one jump to the next event; False when all is done."""
        spent = self.tally.jump_ns + self.land()
        self.arrivals.come(self.now, len(self.tally.stopped))
        start = _now()
        step = self.scheduler.schedule()
        plans = self.cache.dispatch()
        spent += _now() - start
        self.send(plans)
        self.engine.submit(step)
        spent += self.place(step)
        levels = self.levels()
        self.tally.stopping += levels.stopping
        self.now += self.engine.seconds
        self.tally.looked(levels, self.engine.seconds)
        spent += self.output(step)
        if len(step):
            self.tick += 1
            self.idle = self.tally.jump_ns = 0
            self.tally.step_ns.append(spent)
            # As it was before the ended ones let go of what they held.
            self.tally.timeline.close(self.now, levels.seen)
            return True
        self.tally.jump_ns = spent
        # A step that only stops somebody takes no time.
        return bool(step.stops) or self.jump()

    def land(self) -> int:
        """Copies whose time has come."""
        plans = self.link.landed(self.now)
        if not plans:
            return 0
        outcomes = self.hands.land(plans)
        start = _now()
        self.cache.commit(outcomes, now=self.tick)
        return _now() - start

    def send(self, plans: list[Plan]) -> None:
        """Sends out what should move."""
        if not plans:
            return
        self.hands.submit(plans)
        self.link.send(plans, self.now)
        for plan in plans:
            way = _WAYS[plan.source_tier, plan.destination_tier]
            self.tally.moved[way] += len(plan)
            if way != "across":
                self.tally.timeline.add(f"bytes_{way}", int(len(plan) * self.block_bytes))
            if way != "down":
                self.sent[plan.flight] = self.now

    def place(self, step: Step) -> int:
        """Who stops and who starts in this step; and what its attention kernel reads."""
        for stop in step.stops:
            lost, request = self.engine.computed_in(stop.seat), self.engine.request(stop.seat)
            if self.witness is not None:
                self.witness.stops(request, lost, self.tables.slots(stop.seat, 0, None))
            self.tables.leave(stop.seat)
            self.tally.stopped[request] = self.now, lost
            self.tally.timeline.add("preempted", 1)
        for begun in step.starts:
            self.begins(begun)
        if not len(step):
            return 0
        start = _now()
        self.tables.update(step)
        spent = _now() - start
        if self.witness is not None:
            for begun in step.starts:
                blocks = -(-begun.cached // self.setup.block_size)
                slots = self.tables.slots(begun.seat, 0, blocks)
                self.witness.starts(self.engine.request(begun.seat), slots)
        return spent

    def begins(self, start: Start) -> None:
        """Counts what a request found."""
        request = self.engine.request(start.seat)
        lease = self.scheduler.lease(request)
        if lease is None:
            raise Unavailable(f"request {request} has started and holds nothing")
        self.tables.bind(start.seat, lease)
        # Those that had to be loaded were admitted when their plans went out.
        admitted = [self.sent.pop(plan.flight) for plan in lease.plans]
        device = min(lease.hits[0] * self.setup.block_size, start.cached)
        self.tally.begins(
            request,
            min(admitted, default=self.now),
            prompt=int(self.trace.input_length[request]),
            device=device,
            host=start.cached - device,
        )

    def output(self, step: Step) -> int:
        """The step is done: tokens are appended, full blocks published, who has ended leaves."""
        (output,), _ = self.engine.poll()
        if self.witness is not None:
            # Before they are published, and with the slots that they had in this step.
            self.witness.computed(step, self.engine, self.tables)
        start = _now()
        self.scheduler.on_output(output)
        results = self.scheduler.results()
        spent = _now() - start
        requests, places = self.engine.requests, self.engine.places
        spoken = self.trace.output_length[requests] > 0
        self.tally.sampled(requests[spoken], places[spoken], self.now, self.arrivals.times)
        if output.ended is not None:
            for seat in output.seats[output.ended].tolist():
                self.tables.leave(seat)
        for request, state, tokens, reason in results:
            number = cast("int", request)
            if state is not RequestState.FINISHED:
                raise Unavailable(f"request {number} is {state}: {reason}")
            answer = tokens[: self.trace.output_length[number]]
            if self.witness is not None:
                self.witness.ended(number, answer)
            self.tally.output_tokens += len(answer)
            self.tally.ended += 1
            self.end = self.now
        return spent

    def jump(self) -> bool:
        """Nothing can be computed: on to the next landing or arrival; False when there is none."""
        events = [at for at in (self.link.next(), self.arrivals.next(self.now)) if at is not None]
        if not events:
            return not self.over and self.wait()
        levels = self.levels()
        self.now = max(self.now, min(events))
        if not self.over:
            self.tally.timeline.close(self.now, levels.seen)
        return True

    def wait(self) -> bool:
        """Nobody runs, and nothing will happen: the next step may do better, or never will.

        Raises:
            Unavailable: It is stuck.
        """
        self.idle += 1
        if self.idle > _PATIENCE:
            waiting = self.scheduler.stats()["waiting"]
            raise Unavailable(
                f"stuck after {self.now:.3f} s: nobody runs, nothing is on its way, and {waiting} "
                f"requests are in line; {self.cache.room()!r}"
            )
        return True

    def levels(self) -> Levels:
        """How full everything is."""
        stats, scheduler = self.cache.stats(), self.scheduler.stats()
        return Levels(
            device=stats["device_capacity"] - stats["device_free"],
            pinned=stats["device_pinned"] + stats["device_claimed"],
            promised=stats["device_promised"],
            host=stats["host_capacity"] - stats["host_free"],
            running=scheduler["seats"] - scheduler["stopping"],
            waiting=scheduler["waiting"] + self.arrivals.outside(self.now),
            headroom=scheduler["headroom"],
            stopping=scheduler["stopping"],
        )

    def progress(self) -> Progress:
        levels = self.levels()
        return Progress(
            requests_done=self.tally.ended,
            requests=len(self.trace),
            engine_seconds=self.seconds,
            hit_ratio=self.tally.hit_ratio,
            device_used=levels.device,
            host_used=levels.host,
            blocks_down=self.tally.moved["down"],
            blocks_up=self.tally.moved["up"],
        )


_WAYS: Final = {
    ("device", "host"): "down",
    ("host", "device"): "up",
    ("device", "device"): "across",
}
