"""A scheduler and an engine that a test drives step by step."""

import zlib
from collections import deque
from collections.abc import Collection, Hashable
from typing import Any

import numpy as np

import blockyard as by
from blockyard.scheduling.engine import Ack, Output, Start, Step, Stop
from blockyard.scheduling.headroom import NoHeadroom
from blockyard.scheduling.options import SchedulerOptions
from blockyard.scheduling.request import ParkedWork, RequestState, Result
from blockyard.scheduling.scheduler import Scheduler
from yard import free_for_all, publish, publish_below, text

U32 = np.uint32


def column(*numbers: int, kind: Any = np.int32) -> Any:
    return np.array(numbers, kind)


def continuation(request: Hashable, prompt: int, max_tokens: int) -> list[int]:
    """What a request samples, whatever happens to it."""
    return [zlib.crc32(f"{request} {prompt + at}".encode()) % 900 for at in range(max_tokens)]


class Loop:
    """A scheduler, and an engine that acts when the test says so.

    `accept` is how many tokens a row samples of those it may, for engines with drafts. `now` is the
    scheduler's clock. What is sampled of a request that `add` has added is its `continuation`,
    whatever happens to it: each result is compared with that, unless `asked` is cleared.
    """

    def __init__(
        self,
        *,
        device: int = 33,
        host: int = 0,
        size: int = 4,
        accept: int = 1,
        recompute: bool = True,
        ahead: int | None = None,
        cache: by.KVCache | None = None,
        metrics: bool = False,
        lookup: Any = None,
        **keywords: Any,
    ) -> None:
        own = by.KVCache(
            block_size=size, device=device, host=host, recompute=recompute, ahead=ahead
        )
        self.cache = own if cache is None else cache
        chosen: dict[str, Any] = {
            "max_num_seqs": 4,
            "max_num_batched_tokens": 64,
            "headroom": NoHeadroom(),
            **keywords,
        }
        self.recompute = recompute
        self.now = 0.0
        options = SchedulerOptions(**chosen)
        self.scheduler = Scheduler(
            self.cache, options, clock=lambda: self.now, metrics=metrics, lookup=lookup
        )
        self.accept = accept
        self.air: deque[Step] = deque()
        self.bound: dict[int, tuple[Start, int]] = {}
        self.stops: list[Stop] = []
        self.plans: list[by.Plan] = []
        self.results: dict[Hashable, Result] = {}
        self.begun: list[Hashable] = []
        self.asked: dict[Hashable, tuple[int, int]] = {}

    def add(
        self, request: Hashable, prompt: int | list[int], max_tokens: int, **keywords: Any
    ) -> None:
        tokens = text(len(self.results) + 1, prompt) if isinstance(prompt, int) else prompt
        new = by.NewRequest(request, tokens, max_tokens=max_tokens, **keywords)
        self.scheduler.add(new)
        self.asked |= dict.fromkeys([request, *new.samples], (len(tokens), max_tokens))

    def state(self, request: Hashable) -> RequestState | None:
        return self.scheduler.state(request)

    def schedule(self) -> Step:
        step = self.scheduler.schedule()
        self.plans += self.cache.dispatch()
        assert {stop.seat for stop in step.stops}.isdisjoint(self.rows(step))
        self.air.append(step)
        self.stops += step.stops
        self.begun += [start.request for start in step.starts]
        return step

    def land(self) -> None:
        for plan in self.plans:
            self.cache.commit(plan)
        self.plans.clear()

    def rows(self, step: Step) -> list[int]:
        return [*step.decode.tolist(), *(chunk.seat for chunk in step.chunks)]

    def compute(self, *, ends: Collection[Hashable] = ()) -> Output:
        """The output of the oldest step in flight, which ends the requests of `ends`."""
        step = self.air.popleft()
        for start in step.starts:
            self.bound[start.seat] = start, len(start.tokens)
        seats, tokens, counts, ended = [], [], [], []
        for at, seat in enumerate(self.rows(step)):
            if seat not in self.bound:
                continue
            start, known = self.bound[seat]
            last = int(step.positions[at] + step.counts[at])
            if at >= len(step.decode) and last < known:
                continue
            count = min(self.accept, int(step.counts[at])) if at < len(step.decode) else 1
            sampled = continuation(start.request, known, count)
            self.bound[seat] = start, known + count
            seats.append(seat)
            tokens += sampled
            counts.append(count)
            ended.append(start.request in ends)
            if ended[-1]:
                del self.bound[seat]
        return Output(
            step.number,
            np.array(seats, np.int32),
            np.array(tokens, np.uint32),
            np.array(counts, np.int64)
            if self.scheduler._shared.options.num_speculative_tokens
            else None,
            np.array(ended, np.bool_) if ends else None,
        )

    def output(self, *, ends: Collection[Hashable] = ()) -> None:
        self.scheduler.on_output(self.compute(ends=ends))
        self.look()

    def ack(self) -> None:
        """Acks all stops that the engine was told."""
        for stop in self.stops:
            self.bound.pop(stop.seat, None)
        self.scheduler.on_acks([Ack(*stop) for stop in self.stops])
        self.stops.clear()
        self.look()

    def look(self) -> None:
        for result in self.scheduler.results():
            assert result.request not in self.results
            assert self.scheduler.state(result.request) is None
            self.results[result.request] = result
            if result.request in self.asked:
                prompt, most = self.asked[result.request]
                whole = result.state is RequestState.FINISHED and result.reason == "length"
                count = most if whole else len(result.tokens)
                assert result.tokens.tolist() == continuation(result.request, prompt, count)
        broken = self.cache.audit()
        assert broken is None, broken

    def turn(self, turns: int = 1, *, lands: bool = True) -> Step:
        """Runs steps, each computed and answered before the next; copies land if they may."""
        step = self.schedule()
        if lands:
            self.land()
        self.output()
        self.ack()
        return step if turns == 1 else self.turn(turns - 1, lands=lands)

    def until_stopping(self, request: Hashable) -> None:
        """Runs steps, whose stops have no ack, until a request stops."""
        while self.state(request) is not RequestState.STOPPING:
            self.schedule()
            self.output()

    def finish(
        self, bound: int = 400, *, leaked: int = 0, failed: Collection[Hashable] = ()
    ) -> None:
        """Runs steps until there is nothing to do, and checks that nothing is left.

        Where what is lost can be computed again, those of `failed` have failed, and no others.
        """
        while self.air:
            self.output()
        self.ack()
        while not self.scheduler.idle:
            bound -= 1
            assert bound, [
                str(self.scheduler.explain(one)) for one in self.scheduler._lifecycle._requests
            ]
            self.turn()
        # One more step gives back what the last one kept for the batch.
        self.turn()
        stats = self.cache.stats()
        stats["device_pinned"] -= stats["held_blocks"]
        held = ("leases", "tickets", "device_pinned", "device_claimed", "device_promised", "leaked")
        assert {name: stats[name] for name in held} == dict.fromkeys(held, 0) | {"leaked": leaked}
        self.empty()
        found = [one.request for one in self.results.values() if one.state is RequestState.FAILED]
        assert not self.recompute or sorted(found, key=str) == list(failed), found

    def empty(self) -> None:
        """Checks that no request is registered anywhere (INV-12)."""
        scheduler = self.scheduler
        seats = scheduler._shared.seats.bound()
        orders = scheduler._queue._orders
        assert (scheduler._lifecycle._requests, orders, seats) == ({}, {}, [])
        batch = scheduler._batch
        lists = (batch._loading, batch._prefill, batch._decode, scheduler._lifecycle._stops)
        assert lists == ([], {}, {}, [])
        assert batch.held == []
        assert scheduler._shared.moving == {}
        waits = scheduler._queue.waits
        assert waits is None or waits._since == {}
        sizes = scheduler.stats()
        assert (sizes["waiting"], sizes["seats"], sizes["stopping"]) == (0, 0, 0)

    def work(self, request: Hashable = "new") -> ParkedWork:
        """The work that is kept of a parked request."""
        parked = self.scheduler._lifecycle._requests[request].parked
        assert parked is not None
        return parked

    def handle(self, request: Hashable = "new") -> by.Parked:
        """The handle of a parked request."""
        return self.work(request).handle

    def told(self, name: str) -> int:
        return self.scheduler.stats()[name]


def squeezed(**keywords: Any) -> Loop:
    """Eight blocks: "old" has run two steps, and "new" is to be its victim when both grow."""
    loop = Loop(device=9, **keywords)
    loop.add("old", text(1, 14), 12)
    loop.add("new", text(2, 14), 12)
    loop.turn(2)
    assert (loop.state("old"), loop.state("new")) == (RequestState.DECODE, RequestState.DECODE)
    return loop


def stopping(**keywords: Any) -> Loop:
    """ "new" is a victim, and its stop is with the engine."""
    loop = squeezed(**keywords)
    loop.until_stopping("new")
    assert [stop.request for stop in loop.stops] == ["new"]
    return loop


def sharing(**keywords: Any) -> Loop:
    """A full device: "shares" has blocks of its own, and "shared" holds only what both share."""
    loop = Loop(device=5, **keywords)
    loop.add("shared", text(1, 7), 5)
    loop.turn()
    whole = text(1, 7) + continuation("shared", 7, 1)
    loop.add("shares", [*whole, 5], 3, priority=1)
    loop.turn()
    seats = loop.scheduler._shared.seats.bound()
    assert [loop.cache.exclusive_blocks(seat.lease) for seat in seats] == [0, 2]
    assert loop.cache.room().free == 0
    return loop


def loading(**keywords: Any) -> Loop:
    """The prompt of "one" was found on the host, and is on its way up."""
    loop = Loop(device=17, host=16, **keywords)
    publish_below(loop.cache, text(1, 12))
    loop.add("one", text(1, 14), 3)
    step = loop.schedule()
    assert (loop.state("one"), step.starts, len(step)) == (RequestState.LOADING, (), 0)
    return loop


# -- begin ---------------------------------------------------------------------------------------


def parked(**keywords: Any) -> Loop:
    """ "new" is a victim, and the engine has acked: its work is kept."""
    loop = stopping(host=32, **keywords)
    loop.ack()
    assert loop.state("new") is RequestState.PARKED
    return loop


def resuming(**keywords: Any) -> Loop:
    """ "new" was wholly on the host, and its blocks are on their way up."""
    loop = parked(**keywords)
    while loop.told("parked") and loop.handle().on_device:
        loop.cache.demote(8, of=loop.handle())
        loop.plans += loop.cache.dispatch()
        loop.land()
    # What it left idle on the device is evicted for another prompt.
    publish(loop.cache, text(9, free_for_all(loop.cache) * 4))
    loop.scheduler.abort("old")
    for _ in range(20):
        if loop.state("new") is RequestState.LOADING:
            return loop
        loop.turn(lands=False)
    raise AssertionError(loop.scheduler.explain("new"))
