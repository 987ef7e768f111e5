"""One pass over a trace with the virtual-time engine: arrivals, steps, copies, ends."""

import time
from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from blockyard._core import Keys, NoRoom
from blockyard.cache import KVCache
from blockyard.config import Config, Speeds, agree
from blockyard.replay.clock import Link
from blockyard.replay.fcfs import FirstCome, Running, Waiting
from blockyard.replay.hands import BookHands, Hands, ProcessHands, RealHands, scaled
from blockyard.replay.result import Run
from blockyard.replay.setup import Progress, Setup
from blockyard.replay.tally import Tally
from blockyard.replay.tokens import Tokens
from blockyard.replay.trace import Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["run"]

_now = time.perf_counter_ns


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
        hands = RealHands(config, seed=setup.seed)
    else:
        hands = ProcessHands(config, seed=setup.seed)
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


class _Replay:
    """The state of one pass."""

    def __init__(self, setup: Setup, trace: Trace, cache: KVCache, hands: Hands) -> None:
        self.setup = setup
        self.trace = trace
        self.cache = cache
        self.hands = hands
        self.tokens = Tokens(trace, setup.seed)
        self.roofline = setup.roofline
        # Times in the trace are milliseconds, since whenever; here, seconds from the first arrival.
        self.arrivals: list[float] = ((trace.arrival - trace.arrival[:1]) / 1000.0).tolist()
        self.now = 0.0
        self.end = 0.0
        self.tick = 0
        self.arrived = 0
        self.block_bytes = self.roofline.kv_bytes_per_token * setup.block_size
        machine = self.roofline.machine
        self.link = Link(
            self.block_bytes / setup.ranks,
            machine.link_bytes_per_second,
            machine.link_latency,
        )
        self.first_come = FirstCome(cache, seats=setup.max_running, budget=setup.token_budget)
        columns = cache.room().free + 1
        longest = int((trace.input_length + trace.output_length).max(initial=1))
        self.tables = np.zeros(
            (setup.max_running, min(columns, -(-longest // setup.block_size) + 1)), np.int32
        )
        self.mapping = np.zeros(setup.token_budget + setup.max_running, np.int64)
        self.waits_on: dict[int, Running] = {}
        self.keys64: dict[int, NDArray[np.uint64]] = {}
        self.tally = Tally()

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
        complete = self.over and not stopped
        self.tally.arrived = self.arrived
        return self.tally.result(
            self.setup,
            self.cache,
            self.first_come,
            levels=self.levels(),
            complete=complete,
            seconds=self.seconds,
            wall=time.perf_counter() - wall,
        )

    @property
    def over(self) -> bool:
        """Whether every request has ended or was refused; copies may still be in the air."""
        return self.tally.ended + self.first_come.refused == len(self.trace)

    @property
    def seconds(self) -> float:
        """Of the engine, so far: copies that trail the last request are none of its time."""
        return self.end if self.over else self.now

    def step(self) -> bool:
        """One step of the engine, or one jump to the next event; False when all is done."""
        self.arrive()
        spent = self.tally.jump_ns + self.land() + self.admit()
        # Of a line of too large ones nobody is left: who stood behind it comes now.
        while not self.first_come.line and self.arrive():
            spent += self.admit()
        decode, chunks = self.first_come.step()
        spent += self.dispatch()
        if not decode and not chunks:
            self.tally.jump_ns = spent
            return self.jump()
        self.tally.jump_ns = 0
        self.tick += 1
        seconds = self.roofline.step_seconds(
            sum(count for _, count in chunks),
            sum(count * (row.computed + count / 2) for row, count in chunks),
            sum(row.computed + count for row, count in chunks),
            len(decode),
            sum(row.computed + 1 for row in decode),
        )
        spent += self.place(decode, chunks)
        self.now += seconds
        self.tally.step_ns.append(spent + self.output(decode, chunks, seconds))
        # Before the ended ones let go of what they hold.
        self.tally.timeline.close(self.now, self.levels())
        self.finish(decode, chunks)
        return True

    def arrive(self) -> bool:
        """Requests come into the line, if any; their tokens are, once, turned into keys."""
        arrived = self.arrived
        arrivals, line = self.arrivals, self.first_come.line
        # Keys take memory: only as many as could be admitted soon are made ahead.
        while (
            self.arrived < len(self.trace)
            and arrivals[self.arrived] <= self.now
            and len(line) < self.setup.max_running
        ):
            request = self.arrived
            self.arrived += 1
            prompt = self.tokens.prompt(request)
            start = _now()
            keys = self.cache.keys(prompt)
            self.tally.request_ns += _now() - start
            outputs = self.tokens.output(request)
            line.append(Waiting(request, arrivals[request], keys, outputs))
        return self.arrived > arrived

    def land(self) -> int:
        """Copies whose time has come."""
        plans = self.link.landed(self.now)
        if not plans:
            return 0
        outcomes = self.hands.land(plans)
        start = _now()
        self.cache.commit(outcomes, now=self.tick)
        spent = _now() - start
        for plan in plans:
            row = self.waits_on.pop(plan.flight, None)
            if row is not None:
                row.loading.discard(plan.flight)
                if not row.loading:
                    row.computed = row.lease.cached
                    self.check(row, -(-row.computed // self.setup.block_size))
        return spent

    def admit(self) -> int:
        """Begins whoever fits."""
        start = _now()
        others = 0
        for row in self.first_come.admit():
            pause = _now()
            self.admitted(row)
            others += _now() - pause
        if self.setup.prefetch:
            self.first_come.prefetch(self.setup.prefetch, self.promote)
        return _now() - start - others

    def promote(self, keys: Keys) -> None:
        try:
            self.cache.promote(keys)
        except NoRoom:
            return

    def admitted(self, row: Running) -> None:
        """Counts what a begin found."""
        size = self.setup.block_size
        device = min(row.lease.hits[0] * size, row.computed)
        host = row.computed - device
        self.tally.device_hit += device
        self.tally.host_hit += host
        self.tally.input_tokens += row.prompt
        self.tally.timeline.add("device_hit", device)
        self.tally.timeline.add("host_hit", host)
        self.tally.timeline.add("missed", row.prompt - row.computed)
        self.tally.queue.append(self.now - row.arrival)
        self.tally.loaded_requests += host > 0
        for flight in row.loading:
            self.waits_on[flight] = row
        if self.setup.verify:
            whole = np.concatenate((self.tokens.prompt(row.request), row.outputs))
            words = np.frombuffer(bytes(self.cache.keys(whole)), np.uint64).reshape(-1, 4)
            self.keys64[row.request] = np.bitwise_xor.reduce(words, axis=1)
            seat = len(self.first_come.running) - 1
            self.cache.block_tables(row.lease, out=self.tables[seat : seat + 1])
            # What has to be copied first, the private last block of a full hit too, is seen then.
            self.check(row, min(row.lease.hits[0], row.computed // size))

    def dispatch(self) -> int:
        """Sends out what should move."""
        start = _now()
        plans = self.cache.dispatch()
        spent = _now() - start
        if plans:
            self.hands.submit(plans)
            self.link.send(plans, self.now)
            for plan in plans:
                way = _WAYS[plan.source_tier, plan.destination_tier]
                self.tally.moved[way] += len(plan)
                if way != "across":
                    self.tally.timeline.add(f"bytes_{way}", int(len(plan) * self.block_bytes))
        return spent

    def jump(self) -> bool:
        """Nothing can be computed: on to the next landing or arrival; False when there is none."""
        landing = self.link.next()
        events = [] if landing is None else [landing]
        events += [at for at in self.arrivals[self.arrived : self.arrived + 1] if at > self.now]
        if not events:
            return False
        levels = self.levels()
        self.now = max(self.now, min(events))
        if not self.over:
            self.tally.timeline.close(self.now, levels)
        return True

    def place(self, decode: list[Running], chunks: list[tuple[Running, int]]) -> int:
        """What the attention kernel of this step reads: slots, tables, mapping."""
        start = _now()
        cache = self.cache
        leases = [row.lease for row in self.first_come.running]
        rows = [row.lease for row in decode]
        if rows:
            cache.grow(rows)
        cache.block_tables(leases, out=self.tables, cells="changed")
        first = [row.computed for row in decode] + [row.computed for row, _ in chunks]
        counts = [1] * len(decode) + [count for _, count in chunks]
        rows += [row.lease for row, _ in chunks]
        cache.slot_mapping(rows, first, counts, out=self.mapping)
        return _now() - start

    def output(
        self, decode: list[Running], chunks: list[tuple[Running, int]], seconds: float
    ) -> int:
        """The step is done: tokens are appended, full blocks published."""
        sampled = []
        for row in decode:
            row.computed += 1
            sampled.append(row)
        for row, count in chunks:
            row.computed += count
            if row.computed == row.prompt and len(row.outputs):
                sampled.append(row)
                self.tally.ttft.append(self.now - row.arrival)
        if decode:
            self.tally.gaps.append((seconds, len(decode)))
        tokens = [row.outputs[row.sampled] for row in sampled]
        for row in sampled:
            row.sampled += 1
        rows = decode + [row for row, _ in chunks]
        if self.setup.verify:
            self.write(decode, chunks)
        start = _now()
        if sampled:
            self.cache.append([row.lease for row in sampled], tokens)
        self.cache.seal([row.lease for row in rows], [row.computed for row in rows])
        return _now() - start

    def finish(self, decode: list[Running], chunks: list[tuple[Running, int]]) -> None:
        """Who has all of its answer leaves."""
        done = [
            row
            for row in decode + [row for row, _ in chunks]
            if row.computed >= row.prompt and row.sampled == len(row.outputs)
        ]
        if not done:
            return
        start = _now()
        self.cache.finish([row.lease for row in done])
        self.tally.request_ns += _now() - start
        self.end = self.now
        # The last seats move into the empty ones, so that the other rows' cells stay.
        running = self.first_come.running
        for row in done:
            seat, last = running.index(row), len(running) - 1
            if seat != last:
                running[seat] = running[last]
                self.tables[seat] = self.tables[last]
            running.pop()
            self.tally.output_tokens += row.sampled
            self.tally.ended += 1
            self.keys64.pop(row.request, None)

    def write(self, decode: list[Running], chunks: list[tuple[Running, int]]) -> None:
        """Blocks that this step completed get the bytes of their keys."""
        size = self.setup.block_size
        seats = {id(row): seat for seat, row in enumerate(self.first_come.running)}
        slots, keys = [], []
        for row, count in [(row, 1) for row in decode] + chunks:
            old, new = (row.computed - count) // size, row.computed // size
            if new > old:
                slots.append(self.tables[seats[id(row)], old:new])
                keys.append(self.keys64[row.request][old:new])
        if slots:
            self.hands.write(np.concatenate(slots), np.concatenate(keys))
            self.tally.written += sum(map(len, slots))

    def check(self, row: Running, blocks: int) -> None:
        """The first blocks of a request, which it reuses, hold what their keys say."""
        if not self.setup.verify or not blocks:
            return
        seat = self.first_come.running.index(row)
        keys = self.keys64[row.request][:blocks]
        self.tally.wrong += self.hands.wrong(self.tables[seat, :blocks].copy(), keys)
        self.tally.checked += blocks

    def levels(self) -> list[int]:
        """For the timeline; and the peaks, which go up with them."""
        stats = self.cache.stats()
        device, host = (
            stats[f"{tier}_capacity"] - stats[f"{tier}_free"] for tier in ("device", "host")
        )
        pinned = stats["device_pinned"] + stats["device_claimed"]
        for what, slots in (("device", device), ("host", host), ("pinned", pinned)):
            self.tally.peak[what] = max(self.tally.peak[what], slots)
        line, running = len(self.first_come.line), len(self.first_come.running)
        # Those for whom there was no place in line wait as well.
        waiting = max(bisect_left(self.arrivals, self.now) - self.arrived, 0) + line
        return [device, pinned, host, running, waiting]

    def progress(self) -> Progress:
        device, _, host, _, _ = self.levels()
        return Progress(
            requests_done=self.tally.ended,
            requests=len(self.trace),
            engine_seconds=self.seconds,
            hit_ratio=self.tally.hit_ratio,
            device_used=device,
            host_used=host,
            blocks_down=self.tally.moved["down"],
            blocks_up=self.tally.moved["up"],
        )


_WAYS: Final = {
    ("device", "host"): "down",
    ("host", "device"): "up",
    ("device", "device"): "across",
}
