"""The prefill side of simulated hand-overs: an engine, its offers, and what serves their blocks."""

import zlib
from collections import deque
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blockyard._core import HeldBlocks, Offers
from blockyard._typing import override
from blockyard.handover.offer import Offer
from blockyard.scheduling.new_request import NewRequest
from blockyard.scheduling.request import Result
from blockyard.testing.requests import Ask, Requests
from blockyard.testing.scenario import Scenario
from blockyard.testing.setup import Setup
from blockyard.testing.simulated_engine import Sums, chained, check
from blockyard.testing.simulated_peers import AT, Block, Road
from blockyard.testing.simulator import Simulation

__all__ = ["PrefillEngine"]

_AT_ONCE: Final = 4
"""Blocks that are read in a tick."""
_ONE: Final = "one more reader"


class _Held(NamedTuple):
    """What an offer has."""

    made: int
    held: HeldBlocks
    words: NDArray[np.uint64]
    """What is computed in its blocks, a word for each token."""


class _Read(NamedTuple):
    """A block that is to be read, or half of which was."""

    by: str
    id: bytes
    at: int
    place: tuple[int, int]
    first: bytes | None
    """The first half."""
    due: int


class PrefillEngine(Simulation):
    """An engine that computes prompts and offers them, in all of its lives.

    Args:
        scenario: Sizes and events.
        shared: A folder.
        road: What carries messages.
        brings: Takes the offer of a request, or None.
    """

    def __init__(
        self,
        scenario: Scenario,
        shared: Path,
        road: Road,
        brings: Callable[[str, Offer | None], None],
    ) -> None:
        self._road, self._brings = road, brings
        self.until = 0
        """The tick at which it goes on, or lives again."""
        self.dead = False
        self.jump = 0.0
        """By how much its clock differs from the ticks."""
        self.slow: deque[int] = deque()
        """Ticks that the next blocks take to be read."""
        self.ghosts: deque[int] = deque()
        """What becomes of second readers, whose ticks follow."""
        super().__init__(scenario, shared, seen=road.seen)

    @override
    def _open(self, setup: Setup) -> None:
        self.offers = Offers(lease=float(setup.lease), unread=float(setup.unread_ticks))
        self.held: dict[bytes, _Held] = {}
        self._reads: list[_Read] = []
        self._ghosts: list[tuple[int, int, bytes]] = []
        self._open_ids: tuple[bytes, ...] = ()
        self._ended_by = 0, 0
        super()._open(setup)

    # -- a tick ----------------------------------------------------------------------------------

    @property
    def clock(self) -> float:
        """Seconds by its own clock, which nobody compares with another one."""
        return self.now + self.jump

    @property
    def is_away(self) -> bool:
        """Whether it is dead or stopped."""
        return self.dead or self.now < self.until

    @override
    def _tick(self, *, reconcile_every: int, schedule: bool = True) -> None:
        if self.now + 1 < self.until:
            self.now += 1
            return
        if self.dead:
            self._live_again()
        super()._tick(reconcile_every=reconcile_every, schedule=schedule)
        self._serve()
        self._haunt()
        self.offers.sweep(self.clock)
        self._check_held()

    def turn(self, *, schedule: bool) -> None:
        """Does what it does in a tick."""
        self._tick(reconcile_every=self.setup.reconcile_every or 8, schedule=schedule)

    def ask(self, ask: Ask, number: int) -> None:
        """Computes a prompt, whose offer it brings then."""
        if self.dead:
            self.seen["race 2 asked while dead"] += 1
            return
        name = f"{ask.name}#{number}"
        self._on_add(*ask._replace(name=name, most=1))

    @override
    def _add(self, ask: Ask, request: Hashable) -> None:
        new = NewRequest(
            request,
            ask.prompt,
            max_tokens=1,
            priority=ask.priority,
            salt=ask.salt or None,
            lora=ask.lora or None,
            hold=True,
        )
        self._scheduler.add(new)

    @override
    def _ended(self, name: str, result: Result) -> None:
        """Offers what it has computed."""
        asked, offer = self.requests[name], None
        cache, held = self._replicas.cache, result.held
        if held is not None:
            if cache.has_own_weights:
                held.release()
            if held.is_held:
                number = self._road.seen["offers"].to_bytes(16)
                self._road.seen["offers"] += 1
                self.offers.offer(number, held, self.clock)
                sums, sum_ = list[int](), 0
                for token in asked.prompt[: held.blocks * self.setup.block_size]:
                    sum_ = chained(sum_, token)
                    sums.append(sum_)
                tag = self._engine.version * 0x9E3779B9 ^ asked.ask.tag
                words = np.array(sums, np.uint64) ^ np.uint64(tag)
                self.held[number] = _Held(self.now, held, words)
                offer = Offer(number, AT, cache.boot)
                if self.ghosts:
                    what = self.ghosts.popleft()
                    self._ghosts.append((self.now + what % 8, what // 8, number))
        self._brings(name.partition("#")[0], offer)

    @property
    def memory(self) -> list[Sums]:
        """The devices of its ranks."""
        return [rank.memory[0] for rank in self._ranks]

    @property
    def in_use(self) -> int:
        """Offers that are held, and blocks that are."""
        return self.offers.stats()["offers_held"] + self._replicas.cache.stats()["held_blocks"]

    def is_open(self, number: bytes) -> bool:
        """Whether an offer is held."""
        return any(one[0] == number for one in self.offers.holding())

    # -- what it serves --------------------------------------------------------------------------

    def _serve(self) -> None:
        """Does what has come, in its order."""
        for message in self._road.come(AT):
            getattr(self, f"_{message.word}")(message.by, *message.what)
        ready = [read for read in self._reads if read.due <= self.now][:_AT_ONCE]
        for read in ready:
            self._reads.remove(read)
            self._read_on(read)

    def _take(self, by: str, id_: bytes, boot: int, reader: int, number: int) -> None:
        said: Any = "reset"
        if boot == self._replicas.cache.boot:
            said = self.offers.take(id_, reader, self.clock)
        else:
            self.seen["race 4 another boot"] += 1
        if isinstance(said, str):
            self._road.send(by, AT, "gone", number, id_, said)
            return
        keys, slots, generations, lease = said
        rows = [row.tobytes() for row in keys]
        where = slots.tolist(), generations.tolist()
        self._road.send(by, AT, "blocks", number, boot, rows, where, int(lease))

    def _read(self, by: str, id_: bytes, _reader: int, at: int, place: tuple[int, int]) -> None:
        self._reads.append(_Read(by, id_, at, place, None, self.now))

    def _read_on(self, read: _Read) -> None:
        """Reads a block, by halves: what is between them may change it."""
        its = self.held.get(read.id)
        if its is None or (read.first is None and not self.is_open(read.id)):
            self._road.send(read.by, AT, "no block", read.place, read.id)
            return
        slot = int(its.held.slots[read.at])
        rank = int(read.by.split()[1])
        data = self._ranks[rank].memory[0].block(slot)
        half = len(data) // 2
        if read.first is None:
            ticks = self.slow.popleft() if self.slow else 0
            if ticks:
                self._reads.append(read._replace(first=data[:half], due=self.now + ticks))
                return
        self.seen["race 1 during"] += not self.is_open(read.id)
        data = (read.first or data[:half]) + data[half:]
        generation = int(its.held.generations[read.at])
        now = int(its.held.generations_now[read.at])
        block = Block(slot, generation, data, zlib.crc32(data), now)
        self._road.send(read.by, AT, "block", read.place, block)

    def _renew(self, _by: str, id_: bytes, reader: int) -> None:
        self.seen["race 17 renewed after its end"] += not self.is_open(id_)
        self.offers.renew(id_, reader, self.clock)

    def _done(self, _by: str, id_: bytes, reader: int) -> None:
        before = self._readers(id_)
        self.seen["race 7 done after the end"] += not self.is_open(id_)
        self.offers.done(id_, reader, self.clock)
        self._left_by_one(id_, before)

    def _refuse(self, _by: str, id_: bytes, reader: int) -> None:
        before = self._readers(id_)
        self.offers.refuse(id_, reader, self.clock)
        self._left_by_one(id_, before)

    def _readers(self, id_: bytes) -> int:
        self.offers.sweep(self.clock)
        return next((one[3] for one in self.offers.holding() if one[0] == id_), 0)

    def _left_by_one(self, id_: bytes, before: int) -> None:
        """Checks that who leaves an offer ends no lease but his own."""
        if before > 1:
            self.seen["race 8 one of two is done"] += 1
            check(self._readers(id_) >= before - 1, "one reader's done has ended another's lease")

    # -- a second reader -------------------------------------------------------------------------

    def _haunt(self) -> None:
        """Has a second reader take an offer, and be done, refuse, stay or leave it."""
        due = [ghost for ghost in self._ghosts if ghost[0] <= self.now]
        self._ghosts = [ghost for ghost in self._ghosts if ghost[0] > self.now]
        for _, what, id_ in due:
            reader = 1 << 40
            if what >= 0:
                said = self.offers.take(id_, reader, self.clock)
                self.seen["race 8 two readers"] += not isinstance(said, str)
                self._ghosts.append((self.now + 1 + what // 4, what % 4 - 4, id_))
                continue
            verb = {-4: self._done, -3: self._refuse, -2: self._renew}.get(what)
            if verb is not None:
                verb(_ONE, id_, reader)

    # -- faults ----------------------------------------------------------------------------------

    def kill(self, ticks: int) -> None:
        """Ends its process; one comes after so many ticks, at its address."""
        if self.dead:
            return
        offers = self.offers.stats()["offers_held"]
        self.seen["race 2 killed with an offer"] += offers > 0
        self.seen["race 2 killed before the offer"] += bool(self.requests.unfinished)
        self.dead, self.until = True, self.now + ticks
        self._road.drop(AT)
        self._events.clear()
        self.close()

    def _live_again(self) -> None:
        self.dead = False
        self.requests = Requests(self.setup, self.seen, faulty=True)
        self._pending_aborts.clear()
        self._held.clear()
        self._open(self.setup)

    def stop(self, ticks: int) -> None:
        """Stops it for so many ticks."""
        if not self.dead:
            self.until = self.now + 1 + ticks

    def fault(self, word: str, number: int) -> None:
        """Has something happen to its offers."""
        if self.is_away:
            return
        open_ = [one[0] for one in self.offers.holding()]
        self.seen[f"race 10 {word}"] += bool(open_)
        if word == "clear":
            self._replicas.cache.clear()
        elif word == "weights":
            self._on_weights()
        elif word == "reset":
            self._on_rank(number % self.setup.ranks, "lost")
        elif word == "room":
            self.offers.end_oldest()
        elif open_:
            id_ = open_[number % len(open_)]
            if word == "abort":
                self.offers.end(id_, "aborted")
            else:
                self._forget(self.held[id_], number)

    def _forget(self, its: _Held, number: int) -> None:
        cache = self._replicas.cache
        keys = its.held.keys[number % its.held.blocks :]
        cache.forget(cache.ready_keys(keys.tobytes(), len(keys) * self.setup.block_size))
        check(not its.held.is_held, "a hold has outlived a block of it that was forgotten")

    # -- checks ----------------------------------------------------------------------------------

    def _check_held(self) -> None:
        """Checks that held slots keep bytes and generations, and offers end in time (36a, b)."""
        size, holding = self.setup.block_size, self.offers.holding()
        ids = tuple(one[0] for one in holding)
        for id_, blocks, age, readers, _ in holding:
            its = self.held[id_]
            same = (its.held.generations == its.held.generations_now).all()
            check(its.held.is_held and same, "INV-36a: a held block has another generation")
            slots = np.repeat(its.held.slots.astype(np.int64), size)
            offsets = np.tile(np.arange(size), blocks)
            for rank, memory in enumerate(self.memory):
                bad = memory.wrong(slots, offsets, its.words)
                check(
                    bad < 0, f"INV-36a: token {bad} of a held offer is overwritten on rank {rank}"
                )
            check(readers or age < self.setup.unread_ticks, f"an unread offer is {age} ticks old")
        for id_ in self._open_ids:
            if id_ not in ids:
                self._check_ended(self.held[id_], ids)
        self._open_ids = ids
        ended = self.offers.stats()
        self.seen["race 6 nobody has read"] += ended["offers_ended_by_unread"] - self._ended_by[0]
        self.seen["race 17 a lease has ended"] += ended["offers_ended_by_lease"] - self._ended_by[1]
        self._ended_by = ended["offers_ended_by_unread"], ended["offers_ended_by_lease"]

    def _check_ended(self, its: _Held, open_: tuple[bytes, ...]) -> None:
        """Checks that a generation has changed if and only if the last hold of its slot ended."""

        def held(ids: set[bytes]) -> NDArray[np.bool_]:
            slots = [self.held[id_].held.slots for id_ in sorted(ids)]
            return np.isin(its.held.slots, np.concatenate([np.zeros(0, np.uint32), *slots]))

        kept = its.held.generations == its.held.generations_now
        shared = held(set(open_) & set(self._open_ids))
        check(kept[shared].all(), "INV-36b: a slot that is held has another generation")
        # One that was made in this tick may hold it again.
        check(
            not kept[~held(set(open_))].any(), "INV-36b: a slot has its generation after its hold"
        )
        self.seen["race 9 two offers with one prefix"] += bool(shared.any())
        older = [id_ for id_ in open_ if self.held[id_].made < its.made]
        self.seen["race 18 one before an older one"] += bool(older)
