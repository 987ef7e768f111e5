"""One pass over a trace with the virtual-time engine: arrivals, steps, copies, ends."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from blockyard._core import Keys, NoRoom
from blockyard.cache import KVCache
from blockyard.config import Config, Speeds, agree
from blockyard.replay.clock import Link
from blockyard.replay.fcfs import FirstCome, Running, Waiting
from blockyard.replay.hands import BookHands, Hands, ProcessHands, RealHands, scaled
from blockyard.replay.meter import Timeline, spread
from blockyard.replay.result import Bookkeeping, Moved, Run, Verified, Waits
from blockyard.replay.setup import Progress, Setup
from blockyard.replay.tokens import Tokens
from blockyard.replay.trace import Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["run"]

_SAMPLE: Final = 16
"""Steps between two looks at the pinned slots."""
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
        hands = RealHands(config)
    else:
        hands = ProcessHands(config)
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
        # Times in the trace are milliseconds.
        self.arrivals = trace.arrival / 1000.0
        self.now = float(self.arrivals[0]) if len(trace) else 0.0
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
        # What is reported.
        self.timeline = Timeline()
        self.ended = 0
        self.device_hit = self.host_hit = self.input_tokens = self.output_tokens = 0
        self.loaded_requests = 0
        self.moved = {"down": 0, "up": 0, "across": 0}
        self.peak = {"device": 0, "host": 0, "pinned": 0}
        self.ttft: list[float] = []
        self.queue: list[float] = []
        self.gaps: list[tuple[float, int]] = []
        self.step_ns: list[int] = []
        self.request_ns = 0
        self.written = self.checked = self.wrong = 0
        room = cache.room()
        self.capacity = {"device": room.free, "host": setup.host_blocks}

    def run(self, progress: Callable[[Progress], None]) -> Run:
        wall = time.perf_counter()
        told = 0.0
        complete = False
        try:
            while self.step():
                if time.monotonic() - told > 0.1:  # noqa: PLR2004 - seconds between two lines
                    told = time.monotonic()
                    progress(self.progress())
            complete = True
        except KeyboardInterrupt:
            pass
        progress(self.progress())
        return self.result(complete=complete, wall=time.perf_counter() - wall)

    def step(self) -> bool:
        """One step of the engine, or one jump to the next event; False when all is done."""
        self.arrive()
        spent = self.land()
        spent += self.admit()
        decode, chunks = self.first_come.step()
        spent += self.dispatch()
        if not decode and not chunks:
            return self.jump()
        self.tick += 1
        seconds = self.roofline.step_seconds(
            sum(count for _, count in chunks),
            sum(count * (row.computed + count / 2) for row, count in chunks),
            len(decode),
            sum(row.computed + 1 for row in decode),
        )
        spent += self.place(decode, chunks)
        self.now += seconds
        spent += self.output(decode, chunks, seconds)
        self.step_ns.append(spent)
        self.look()
        return True

    def arrive(self) -> None:
        """Requests come into the line; their tokens are made and, once, turned into keys."""
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
            outputs = self.tokens.output(request)
            start = _now()
            keys = self.cache.keys(prompt)
            self.request_ns += _now() - start
            line.append(Waiting(request, float(arrivals[request]), keys, outputs))
            if self.setup.verify:
                whole = self.cache.keys(np.concatenate((prompt, outputs)))
                words = np.frombuffer(bytes(whole), np.uint64).reshape(-1, 4)
                self.keys64[request] = np.bitwise_xor.reduce(words, axis=1)

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
                    self.check(row, 0, row.computed // self.setup.block_size)
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
        self.device_hit += device
        self.host_hit += host
        self.input_tokens += row.prompt
        self.timeline.add("device_hit", device)
        self.timeline.add("host_hit", host)
        self.timeline.add("missed", row.prompt - row.computed)
        self.queue.append(self.now - row.arrival)
        self.loaded_requests += host > 0
        for flight in row.loading:
            self.waits_on[flight] = row
        if self.setup.verify:
            seat = len(self.first_come.running) - 1
            self.cache.block_tables(row.lease, out=self.tables[seat : seat + 1])
            if not row.loading:
                self.check(row, 0, row.computed // size)
            else:
                self.check(row, 0, min(row.lease.hits[0], row.computed // size))

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
                self.moved[way] += len(plan)
                if way != "across":
                    self.timeline.add(f"bytes_{way}", int(len(plan) * self.block_bytes))
        return spent

    def jump(self) -> bool:
        """Nothing can be computed: on to the next landing or arrival."""
        events = []
        landing = self.link.next()
        if landing is not None:
            events.append(landing)
        if self.arrived < len(self.trace) and self.arrivals[self.arrived] > self.now:
            events.append(float(self.arrivals[self.arrived]))
        if not events:
            return False
        self.now = max(self.now, min(events))
        self.look()
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
        """The step is done: tokens are appended, full blocks published, ended requests finished."""
        sampled = []
        for row in decode:
            row.computed += 1
            sampled.append(row)
        for row, count in chunks:
            row.computed += count
            if row.computed == row.prompt and len(row.outputs):
                sampled.append(row)
                self.ttft.append(self.now - row.arrival)
        if decode:
            self.gaps.append((seconds, len(decode)))
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
        spent = _now() - start
        done = [
            row for row in rows if row.computed >= row.prompt and row.sampled == len(row.outputs)
        ]
        if done:
            start = _now()
            self.cache.finish([row.lease for row in done])
            self.request_ns += _now() - start
            self.leave(done)
        return spent

    def leave(self, done: list[Running]) -> None:
        """The last seats move into the empty ones, so that the other rows' cells stay."""
        running = self.first_come.running
        for row in done:
            seat, last = running.index(row), len(running) - 1
            if seat != last:
                running[seat] = running[last]
                self.tables[seat] = self.tables[last]
            running.pop()
            self.output_tokens += row.sampled
            self.ended += 1
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
            self.written += sum(map(len, slots))

    def check(self, row: Running, first: int, end: int) -> None:
        """Blocks that a request reuses hold what their keys say."""
        if not self.setup.verify or end <= first:
            return
        seat = self.first_come.running.index(row)
        keys = self.keys64[row.request][first:end]
        self.wrong += self.hands.wrong(self.tables[seat, first:end].copy(), keys)
        self.checked += end - first

    def look(self) -> None:
        """Peaks, and the timeline."""
        device = self.capacity["device"] - self.cache.room().free
        host = self.host_used()
        self.peak["device"] = max(self.peak["device"], device)
        self.peak["host"] = max(self.peak["host"], host)
        if self.tick % _SAMPLE == 0 or self.now >= self.timeline.end:
            self.timeline.close(self.now, self.levels())

    def host_used(self) -> int:
        if not self.capacity["host"]:
            return 0
        return self.capacity["host"] - self.cache.room("host").free

    def levels(self) -> list[int]:
        pinned = self.cache.stats()["device_pinned"]
        self.peak["pinned"] = max(self.peak["pinned"], pinned)
        device = self.capacity["device"] - self.cache.room().free
        running = len(self.first_come.running)
        waiting = int(np.searchsorted(self.arrivals, self.now)) - self.started
        return [device, pinned, self.host_used(), running, waiting]

    @property
    def started(self) -> int:
        """Requests that have left the line."""
        return self.arrived - len(self.first_come.line)

    def progress(self) -> Progress:
        hits = self.device_hit + self.host_hit
        return Progress(
            requests_done=self.ended,
            requests=len(self.trace),
            engine_seconds=self.now,
            hit_ratio=hits / max(self.input_tokens, 1),
            device_used=self.capacity["device"] - self.cache.room().free,
            host_used=self.host_used(),
            blocks_down=self.moved["down"],
            blocks_up=self.moved["up"],
        )

    def result(self, *, complete: bool, wall: float) -> Run:
        stats = self.cache.stats()
        breach = self.cache.audit()
        setup, tokens = self.setup, max(self.input_tokens, 1)
        seconds = self.now - (float(self.arrivals[0]) if len(self.trace) else 0.0)
        gaps = np.array([gap for gap, _ in self.gaps])
        rows = np.array([count for _, count in self.gaps], np.int64)
        ns = np.array(self.step_ns, np.float64)
        verified = None
        if setup.verify:
            layout = scaled(setup.block_size, setup.ranks)
            verified = Verified(
                written=self.written,
                checked=self.checked,
                wrong=self.wrong,
                block_bytes=layout.block_bytes,
            )
        return Run(
            model="virtual",
            policy=setup.policy,
            write_policy=setup.write_policy,
            device_blocks=setup.device_blocks,
            host_blocks=setup.host_blocks,
            requests=self.ended,
            refused=self.first_come.refused,
            complete=complete,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            hit_ratio=(self.device_hit + self.host_hit) / tokens,
            hit_ratio_by_tier={"device": self.device_hit / tokens, "host": self.host_hit / tokens},
            skipped_slow=stats["slow"],
            engine_seconds=seconds,
            wall_seconds=wall,
            tokens_per_second=self.output_tokens / max(seconds, 1e-9),
            ttft_ms=spread(np.array(self.ttft) * 1e3),
            itl_ms=spread(gaps * 1e3, rows),
            waits=Waits(
                no_room=self.first_come.no_room,
                filling=self.first_come.filling,
                loading=self.loaded_requests,
                queue_ms=spread(np.array(self.queue) * 1e3),
            ),
            moved=Moved(
                blocks_down=self.moved["down"],
                blocks_up=self.moved["up"],
                blocks_across=self.moved["across"],
                bytes_down=int(self.moved["down"] * self.block_bytes),
                bytes_up=int(self.moved["up"] * self.block_bytes),
                failed_blocks=stats["failed"],
            ),
            peak=dict(self.peak),
            bookkeeping=Bookkeeping(
                steps=len(ns),
                us_per_step=spread(ns / 1e3),
                us_per_request=self.request_ns / max(self.ended, 1) / 1e3,
                share=(float(ns.sum()) + self.request_ns) / 1e9 / max(seconds, 1e-9),
            ),
            verified=verified,
            audit="ok" if breach is None else f"{breach.law}: {breach.what}",
            series=self.timeline.series(self.levels()),
        )


_WAYS: Final = {
    ("device", "host"): "down",
    ("host", "device"): "up",
    ("device", "device"): "across",
}
