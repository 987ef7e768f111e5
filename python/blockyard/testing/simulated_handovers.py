"""A router, a prefill and a decode engine, tick by tick, with all that may come between."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from blockyard._core import NoRoom
from blockyard.handover.offer import Offer
from blockyard.scheduling.new_request import max_blocks
from blockyard.testing.requests import Ask
from blockyard.testing.scenario import Scenario
from blockyard.testing.setup import ONCE_READ, Event
from blockyard.testing.simulated_decode import DecodeEngine
from blockyard.testing.simulated_engine import check
from blockyard.testing.simulated_peers import AT, Road
from blockyard.testing.simulated_prefill import PrefillEngine
from blockyard.testing.simulated_store import SimulatedStore

__all__ = ["HandOvers"]

_OTHER: Final = "127.0.0.1:7001"
"""An address that is none of a peer."""
_AGAIN: Final = 5
"""Ticks after which a request for which there was no room is tried again."""
_TRIES: Final = 4
"""So often; then it is added without a hand-over."""
_BOTH: Final = frozenset({"abort", "forget"})
"""Events of a request, of which every third is the prefill side's."""
_DECODES: Final = frozenset({"hint", "pause_decoding", "resume_decoding"})


@dataclass(slots=True)
class _Routed:
    """A request, as the router knows it."""

    ask: Ask
    again: int = 0
    """The tick at which it is tried."""
    tries: int = 0
    asked: int = 0
    """How often a prefill side was asked for it."""
    waits: bool = True
    """Whether it is to be given to the decode side."""


class HandOvers:
    """A simulation of hand-overs: it has what `play.simulate` asks of one.

    Args:
        scenario: Sizes and events.
        folder: A folder.
    """

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        setup = replace(scenario.setup, second="")
        self.now = 0
        self.seen: Counter[str] = Counter()
        self._road = Road(self.seen)
        self._store: SimulatedStore | None = None
        if setup.store_values:
            self._store = SimulatedStore(setup, f"store {len(scenario.events)}", self.seen)
        self._events = deque(sorted(scenario.events, key=lambda event: event.tick))
        for name in ("prefill", "decode"):
            (folder / name).mkdir()
        # It has room for one prompt in any case, and its slots are given out again and again.
        prompts = [Ask(*event.what).prompt for event in self._events if event.verb == "add"]  # type: ignore[arg-type]
        most = max((max_blocks(len(prompt), 1, setup.block_size) for prompt in prompts), default=1)
        small = replace(setup, remote=0, store_values=1, device=min(setup.device, most + 5))
        small = replace(small, max_num_batched_tokens=max(setup.max_num_batched_tokens, 16))
        its = Scenario(small, self._of(prefill=True))
        self.prefill = PrefillEngine(its, folder / "prefill", self._road, self._brings)
        its = Scenario(setup, self._of(prefill=False))
        self.decode = DecodeEngine(its, folder / "decode", self._road, self._store)
        self._routed: dict[str, _Routed] = {}
        self._offers: list[tuple[int, int, str, object]] = []
        """What is on its way to the decode side."""
        self._fates: deque[tuple[str, int]] = deque()
        """The fates of the next offers."""
        self._seen_offers: list[tuple[str, Offer]] = []
        self._later: list[tuple[str, int]] = []
        """What happens once blocks are read."""
        self._sent = 0
        self.requests = self.decode.requests

    def _of(self, *, prefill: bool) -> tuple[Event, ...]:
        """Returns the events of one of both: a tick decides whose each is."""
        made = []
        for event in self._events:
            if event.verb in {"add", "handover"}:
                continue
            one_in = 3 if event.verb in _BOTH else 2
            its = event.verb not in _DECODES and event.tick % one_in == 0
            if its is prefill:
                what = event.what
                if prefill and event.verb in _BOTH:
                    what = (f"{what[0]}#0", *what[1:])
                made.append(event._replace(what=what))
        return tuple(made)

    def close(self) -> None:
        """Gives the memory back."""
        for engine in (self.prefill, self.decode):
            if not engine.dead:
                engine.close()

    def run(self) -> None:
        """Plays all events, and then on until all requests have ended and all is at rest."""
        while self._events or self.prefill._events or self.decode._events:  # noqa: SLF001
            self._tick()
        self._end_faults()
        # What was said last may have been lost: each side ends alone, by its own clock (36d).
        self._play_on(self._is_busy)
        running = [engine.settle() for engine in (self.prefill, self.decode)]
        over = object()
        while running:
            self._turn()
            running = [ticks for ticks in running if next(ticks, over) is not over]
        self.decode.check_at_rest()
        check(not self.prefill.in_use, f"{self.prefill.in_use} holds are left")
        for name, number in self.prefill.offers.stats().items():
            self.seen[f"stats {name}"] += number

    def _play_on(self, busy: Callable[[], bool]) -> None:
        bound = self.now + 600 + 16 * self.requests.work
        while busy():
            self._tick()
            check(self.now < bound, f"the faults are over, and this is stuck: {self._stuck()}")

    def _is_busy(self) -> bool:
        waits = any(name not in self.requests.results for name in self._routed)
        return waits or self.prefill.in_use > 0 or bool(self.prefill.requests.unfinished)

    def _stuck(self) -> str:
        left = [name for name in self._routed if name not in self.requests.results]
        offers = self.prefill.offers.holding()
        return f"{left}, {len(offers)} offers, {self.decode.side.stats()}"

    def _turn(self) -> None:
        self.now += 1
        self._road.now = self.now

    # -- a tick ----------------------------------------------------------------------------------

    def _tick(self) -> None:  # noqa: C901 - a loop in its order
        self._turn()
        while self._events and self._events[0].tick <= self.now:
            event = self._events.popleft()
            if event.verb == "add":
                ask = Ask(*event.what)  # type: ignore[arg-type]
                if ask.prompt and ask.name not in self._routed:
                    self._routed[ask.name] = _Routed(ask)
            elif event.verb == "handover":
                self._happens(str(event.what[0]), int(event.what[1]))
        later, self._later = self._later, []
        for what in later:
            self._happens(*what)
        decode = self.decode
        if decode.dead and self.now >= decode.until:
            for ask in decode.live_again():
                self._routed[ask.name].waits = True
        if not decode.is_away:
            self._bring()
            for name, routed in self._routed.items():
                if routed.waits and self.now >= routed.again:
                    self._route(name, routed)
        self.prefill.turn(schedule=True)
        decode.turn(schedule=True)

    def _route(self, name: str, routed: _Routed) -> None:
        """Has the decode side reserve room, and then a prefill side compute the prompt (36e)."""
        try:
            has_room = self.decode.reserve(routed.ask)
        except NoRoom:
            has_room = False
        if not has_room:
            self.seen["handover full"] += 1
            routed.tries += 1
            routed.again = self.now + _AGAIN
            if routed.tries < _TRIES:
                return
            self.decode.add(routed.ask)
        routed.waits = False
        if has_room:
            self._ask_prefill(name, routed)

    def _ask_prefill(self, name: str, routed: _Routed) -> None:
        check(self.decode.has_room(name), f"INV-36e: {name} is asked for before there is room")
        again = [offer for other, offer in self._seen_offers if other == name]
        if again and routed.asked % 2:
            # It was computed once, and whoever took it may have died.
            self.seen["race 8 offered again"] += 1
            self._send(name, again[-1].to_json())
        else:
            self.prefill.ask(routed.ask, routed.asked)
        routed.asked += 1

    def _brings(self, name: str, offer: Offer | None) -> None:
        """Sends the offer of a prefill side on its way, to its fate."""
        if offer is not None:
            self._seen_offers.append((name, offer))
        fate, ticks = self._fates.popleft() if self._fates else ("", 0)
        said: object = None if offer is None else offer.to_json()
        if offer is not None and fate:
            self.seen[f"handover offer {fate}"] += 1
            if fate == "foreign":
                said = Offer(offer.id, _OTHER, offer.boot).to_json()
            elif fate == "malformed":
                said = {"blockyard.offer": {"id": "0", "at": AT, "boot": 0}}
            elif fate == "another":
                self._send(name, self._seen_offers[0][1].to_json())
            elif fate == "shared":
                for other in self._routed:
                    self._send(other, said)
        if fate == "lost":
            return
        self._send(name, said, ticks if fate == "late" else 0)
        if fate == "twice":
            self._send(name, said, ticks)

    def _send(self, name: str, said: object, ticks: int = 0) -> None:
        self._sent += 1
        self._offers.append((self.now + 1 + ticks, self._sent, name, said))

    def _bring(self) -> None:
        """Gives the decode side the offers that have come."""
        due = sorted(one for one in self._offers if one[0] <= self.now)
        self._offers = [one for one in self._offers if one[0] > self.now]
        for *_, name, said in due:
            self.decode.offered(name, said)

    # -- events ----------------------------------------------------------------------------------

    def _happens(self, word: str, number: int) -> None:  # noqa: C901, PLR0912 - a word after the other
        if number >= ONCE_READ:
            # What happens in the read is the most of it; or before it, where nothing can be asked.
            its = (
                self.decode.open and not self.decode.reading
                if word == "rest"
                else self.decode.reading
            )
            if its and not self.decode.is_away and not self.prefill.is_away:
                number -= ONCE_READ
            else:
                self._later.append((word, number))
                return
        kind, _, what = word.partition(" ")
        if kind == "message":
            self._road.fates.append((what, number))
        elif kind == "done":
            self._road.dones.append((what, number))
        elif kind == "offer":
            self._fates.append((what, number))
        elif kind == "busy":
            self._road.muted = self.now + number
        elif kind == "spoilt":
            self._road.spoilt += 1
        elif kind == "slow":
            self.prefill.slow.append(number)
        elif kind == "reader":
            self.prefill.ghosts.append(number)
        elif kind == "cut":
            self.decode.broken()
        elif kind == "clock":
            self._jump(number)
        elif word == "prefill kill":
            self._kill_prefill(number)
        elif kind == "prefill":
            if what == "stop":
                self.seen["race 3 stopped in a read"] += bool(self.decode.reading)
                self.prefill.stop(number)
            else:
                self.prefill.fault(what, number)
        elif kind == "rest":
            self.decode.rest(number)
        else:
            self.decode.fault(what, number)

    def _kill_prefill(self, ticks: int) -> None:
        self.seen["race 2 killed in a read"] += bool(self.decode.reading and not self.prefill.dead)
        self.prefill.kill(ticks)
        # Its machine says so at once, or nobody does.
        if ticks % 2:
            self.decode.broken()
            for name, routed in self._routed.items():
                if routed.asked and not self.decode.is_away:
                    self.decode.offered(name, None)

    def _jump(self, number: int) -> None:
        """Sets a clock: that of the prefill side in either direction."""
        self.seen["race 19 clock"] += bool(self.prefill.in_use)
        if number % 2:
            self.decode.jump += number
        else:
            self.prefill.jump += number * (1 if number % 4 else -1)

    def _end_faults(self) -> None:
        """Lets both live and go on, and nothing go wrong any more."""
        self._road.fates.clear()
        self._road.dones.clear()
        self._fates.clear()
        self._road.muted = self._road.spoilt = 0
        self._later.clear()
        self.prefill.slow.clear()
        if self._store is not None:
            self._store.honest = True
        for engine in (self.prefill, self.decode):
            engine.until = min(engine.until, self.now)
        if self.decode.dead or self.prefill.dead:
            self._tick()
        for engine in (self.prefill, self.decode):
            engine._end_faults()  # noqa: SLF001 - it is a part of both
