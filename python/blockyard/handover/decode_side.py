"""The decode side of a hand-over: it reserves room, and takes offers over."""

import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from itertools import count
from threading import Lock
from typing import Final, NamedTuple, Protocol

import numpy as np

from blockyard._core import Keys, Misuse, NoRoom, Peer, Ticket, TooLarge
from blockyard.crane.tiers.peers import Peers, TakenOffer
from blockyard.handover.handover_stats import DECODE_STATS
from blockyard.handover.offer import MOST_BLOCKS, Offer, check_supported
from blockyard.scheduling.new_request import max_blocks
from blockyard.shared.log import Limited
from blockyard.shared.single import Single
from blockyard.shared.validate import integer, seconds
from blockyard.yard.asking import Answer, Lookup
from blockyard.yard.cache import KVCache

__all__ = ["DecodeSide", "ToldRank"]

_KEY: Final = 32
"""Bytes of a key."""
_AGAIN: Final = 30.0
"""Seconds after which hardly a copy goes on that began before."""
_SOON: Final = 2e-3
"""Seconds after which it is asked again for an offer whose blocks are on their way."""
_log = Limited("blockyard", 1.0)


class ToldRank(Protocol):
    """Another rank, which is told where the blocks of offers lie, as `Peers`."""

    def tell(self, offer: TakenOffer) -> None:
        """Says where the blocks of an offer lie, before the plans that read them."""

    def end(self, at: str, number: bytes) -> None:
        """Says that nothing more of it is read."""


class _Found(NamedTuple):
    blocks: int
    others: Sequence[Sequence[bool]] = ()


_NOTHING: Final = _Found(0)


class _Take:
    """An offer that is open here, and the requests that want its blocks."""

    __slots__ = ("again", "keys", "number", "offer", "peer", "requests", "why")

    def __init__(self, offer: Offer, peer: Peer, number: int) -> None:
        self.offer, self.peer, self.number = offer, peer, number
        self.keys = b""
        """What is asked for, and then what the offer has of that."""
        self.again = 0.0
        """When it is asked for again, where its blocks were on their way."""
        self.requests: set[Hashable] = set()
        self.why: str | None = None
        """None while it is out, then "" where it was taken, or why not."""


class _Asked:
    """A request for which there is room."""

    __slots__ = ("keys", "offer", "since", "take", "until")

    def __init__(self, now: float, until: float) -> None:
        self.since, self.until = now, until
        self.offer: Offer | None = None
        self.take: _Take | None = None
        self.keys: bytes | None = None
        """The keys of the blocks that it takes over; None before."""


class DecodeSide(Single):
    """Takes the KV of prompts over from prefill engines. It is a `Lookup` for `Scheduler`.

    First `reserve` for a request: where it returns no ticket, say so to the router at once, before
    a prefill engine has computed anything. Add the request with the ticket, and give `offered`
    what the router brings. The request waits for that as long as the patience lasts, others
    overtake it, and then it computes what it lacks. Nothing an offer says is believed: blocks come
    only from `peers`, under keys that the request itself has, with a sum and a generation that
    agree. An offer that is not used is refused, so that the prefill side has its blocks back.

    Any thread may call it. It never waits.

    Args:
        cache: The cache of the scheduler. It has names of `remote`.
        peers: The peers of a rank, as `RemoteTier.peers`.
        lookup: What is asked about requests without an offer, such as a `StoreLookup`.
        patience: Seconds that a request waits for its offer, and that this is taken.
        longest: Seconds after which an offer is given up whose request has not begun.
        ranks: The other ranks, which are told of each offer before it is answered.
        clock: Seconds.

    Raises:
        Misuse: The cache has no names of `remote`.
        Unsupported: It is of one group of layers among several.
    """

    SCHEMA = DECODE_STATS
    """Name, unit, kind, metric and meaning of each number in `stats`."""

    def __init__(  # noqa: PLR0913 - keywords
        self,
        cache: KVCache,
        peers: Peers,
        *,
        lookup: Lookup | None = None,
        patience: float = 2.0,
        longest: float = 60.0,
        ranks: Sequence[ToldRank] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_supported(cache.config)
        if not cache.config.remote_blocks:
            raise Misuse("the cache has no names of remote: give it remote=1_000_000 and peers")
        # The cache may have this side: who drops both ends both.
        self._cache, self._size = weakref.ref(cache), cache.block_size
        self._peers, self._ranks = peers, tuple(ranks)
        self._lookup, self._clock = lookup, clock
        self._patience = seconds("patience", patience)
        self._longest = seconds("longest", longest)
        self._lock = Lock()
        self._asked: dict[Hashable, _Asked] = {}
        self._due = math.inf
        """No request has waited too long before this second."""
        self._takes: dict[tuple[str, bytes], _Take] = {}
        self._out: dict[int, _Take] = {}
        """Those whose answer has not come, by number."""
        self._changes = 0
        self._again: dict[int, _Take] = {}
        """Those that are asked for again, as their blocks were on their way."""
        self._named: deque[tuple[float, bytes]] = deque()
        """Keys of which names may be left, and when these are dropped."""
        self._numbers = count(1)
        self._counts = dict.fromkeys((stat.name for stat in self.SCHEMA), 0)
        self._closed = False

    # -- for the engine's server ---------------------------------------------------------------

    def reserve(
        self, request: Hashable, tokens: int, growth: int, *, patience: float | None = None
    ) -> Ticket | None:
        """Promises room to a request, before a prefill engine computes its prompt.

        Headroom that is kept for running requests is not given away.

        Args:
            request: Its id; of several samples that of the first, `NewRequest.samples[0]`.
            tokens: Tokens of its prompt.
            growth: Most tokens that it samples.
            patience: Seconds that it waits for its offer, more where the prefill engine has a
                queue; None for the side's own.

        Returns:
            The ticket for `NewRequest`; None where there is no room now.

        Raises:
            Misuse: The request has room already, a value is out of range, or the side is closed.
            TooLarge: The device can never hold it.
        """
        own = self._patience if patience is None else seconds("patience", patience)
        tokens, growth = integer("tokens", tokens), integer("growth", growth)
        _check_id(request)
        with self._lock:
            cache = self._cache()
            if self._closed or cache is None:
                raise Misuse("this decode side is closed: make another one")
            if request in self._asked:
                raise Misuse(f"request {request!r:.60} has room already: drop it first")
            try:
                ticket = cache.promise(max_blocks(tokens, growth, self._size))
            except TooLarge:
                raise
            except NoRoom:
                self._counts["handover_full"] += 1
                return None
            now = self._clock()
            self._asked[request] = _Asked(now, now + own)
            self._due = min(self._due, now + own)
            self._counts["handover_reserved"] += 1
            return ticket

    def expect(self, request: Hashable, offer: object, *, patience: float | None = None) -> bool:
        """Waits for the blocks of an offer that has come with its request.

        It is for an engine that allocates its blocks itself, whose requests have no ticket.

        Args:
            request: Its id.
            offer: As in `offered`.
            patience: Seconds that it waits until the offer is taken; None for the side's own.

        Returns:
            Whether its blocks will be asked for. If not, the request computes its prompt.

        Raises:
            Misuse: The request has an offer already, a value is out of range, or the side is
                closed.
        """
        own = self._patience if patience is None else seconds("patience", patience)
        _check_id(request)
        with self._lock:
            if self._closed:
                raise Misuse("this decode side is closed: make another one")
            if request in self._asked:
                raise Misuse(f"request {request!r:.60} has an offer already: drop it first")
            now = self._clock()
            self._asked[request] = _Asked(now, now + own)
            self._due = min(self._due, now + own)
        if self.offered(request, offer):
            return True
        self.over(request)
        return False

    def offered(self, request: Hashable, offer: object) -> bool:
        """Takes what a router has brought for a request.

        Args:
            request: Its id.
            offer: An `Offer`, or the router's JSON. None says that none will come.

        Returns:
            Whether its blocks will be asked for. If not, the request computes its prompt.

        Raises:
            Misuse: The id cannot be hashed.
        """
        found = Offer.of(offer)
        _check_id(request)
        peer = None if found is None else self._peers.get(found.at)
        with self._lock:
            asked = self._asked.get(request)
            if found is None or peer is None:
                name = "malformed" if found is None else "foreign"
                self._counts[f"handover_{name}"] += offer is not None
                if asked is not None and asked.offer is None:
                    # It does not wait for what cannot come.
                    asked.until = self._due = asked.since
                return False
            if asked is None or asked.offer is not None or self._clock() >= asked.until:
                if asked is None or asked.offer != found:
                    self._counts["handover_late"] += 1
                    self._refuse(peer, found, "late")
                    return False
                return True  # said twice
            asked.offer = found
            self._changes += 1
            return True

    def explain(self, request: Hashable) -> str | None:
        """Says what a request waits for; None where it waits for nothing here.

        Raises:
            Misuse: The id cannot be hashed.
        """
        _check_id(request)
        with self._lock:
            asked = self._asked.get(request)
            if asked is None:
                return None
            left = max(0.0, asked.until - self._clock())
            if asked.offer is None:
                return f"It waits for an offer, for {left:.1f} s at most."
            where = f"offer {asked.offer.id.hex()[:8]} of {asked.offer.at}"
            if asked.keys is not None:
                return f"It takes {len(asked.keys) // _KEY} blocks over, of {where}."
            return f"It waits for {where}, for {left:.1f} s at most."

    def sweep(self, now: float | None = None) -> None:
        """Gives up what was waited for too long. `LocalCache.step` calls it.

        Args:
            now: Seconds of its clock; None to look.
        """
        now = self._clock() if now is None else now
        if self._out or self._again:
            with self._lock:
                self._collect()
                self._take_again(now)
        if now < self._due:
            return
        with self._lock:
            self._due = math.inf
            for request, asked in list(self._asked.items()):
                taken = asked.take is not None and asked.take.why == ""
                due = asked.since + self._longest if taken else asked.until
                if now >= due:
                    self._late(request, asked)
                else:
                    self._due = min(self._due, due)
            late = sum(now >= due for due, _ in self._named)
            for _, keys in [self._named.popleft() for _ in range(late)]:
                self._forget(keys)
            if self._named:
                self._due = min(self._due, self._named[0][0])

    def stats(self) -> dict[str, int]:
        """Returns counters and sizes; `SCHEMA` has units and meanings."""
        with self._lock:
            waiting = sum(asked.keys is None for asked in self._asked.values())
            return self._counts | {
                "handover_waiting": waiting,
                "handover_open": sum(take.why == "" for take in self._takes.values()),
            }

    def close(self) -> None:
        """Refuses all offers that are open here, and answers no more. Called again, it is done."""
        with self._lock:
            self._closed = True
            for request in list(self._asked):
                self._leave(request, "closed")
        close = getattr(self._lookup, "close", None)
        if close is not None:
            close()

    # -- for the scheduler ---------------------------------------------------------------------

    def ask(self, request: Hashable, keys: Keys, patience: float | None = None) -> Answer | None:
        """Returns what an offer has of a request, or what its lookup finds, as `Lookup.ask`.

        Args:
            request: Who asks.
            keys: The keys of its full blocks.
            patience: As there, for requests without an offer.

        Returns:
            None while the offer may come, or is being taken.
        """
        with self._lock:
            asked, cache = self._asked.get(request), self._cache()
            if cache is None or cache.has_own_weights:
                # Who offers has the weights that the namespace names, as stores have.
                self._leave(request, "other weights")
                return _NOTHING
            if asked is not None and asked.keys is None:
                blocks = self._taken_over(request, asked, bytes(keys))
                if blocks is None:
                    return None
                if blocks:
                    return _Found(blocks)
        return _NOTHING if self._lookup is None else self._lookup.ask(request, keys, patience)

    def changes(self) -> int:
        """Returns another number than before where a question may have another answer than then."""
        with self._lock:
            cache = self._cache()
            moves = (
                self._out or self._again or self._lookup is not None or self._clock() >= self._due
            )
            if moves or cache is None or cache.has_own_weights:
                self._changes += 1
            return self._changes

    def drop(self, request: Hashable) -> None:
        """Refuses the offer of a request that waits no more, as `Lookup.drop`."""
        with self._lock:
            self._leave(request, "aborted")
        if self._lookup is not None:
            self._lookup.drop(request)

    def over(self, request: Hashable) -> None:
        """Ends the offer of a request whose loads have ended, or that has ended.

        Names of its blocks are dropped: who offered them may write elsewhere there from now on.
        """
        with self._lock:
            self._leave(request, "")

    # -- its own -------------------------------------------------------------------------------

    def _taken_over(self, request: Hashable, asked: _Asked, keys: bytes) -> int | None:
        """Returns how many leading blocks are taken over; None while that is not known."""
        now = self._clock()
        take = asked.take
        if take is None and asked.offer is not None and now < asked.until:
            take = asked.take = self._take(request, asked.offer, keys, now)
        self._collect()
        if take is None or take.why is None:
            if now < asked.until:
                return None
            self._late(request, asked)
            return 0
        blocks = 0 if take.why else _leading(take.peer, keys[: MOST_BLOCKS * _KEY])
        if not blocks:
            self._leave(request, "nothing")
            return 0
        asked.keys, asked.since = keys[: blocks * _KEY], now
        take.keys = max(take.keys, asked.keys, key=len)
        self._counts["handover_blocks"] += blocks
        return blocks

    def _take(self, request: Hashable, offer: Offer, keys: bytes, now: float) -> _Take | None:
        """Asks a peer for an offer, once for all requests that want its blocks."""
        take = self._takes.get((offer.at, offer.id))
        if take is None:
            peer = self._peers.get(offer.at)
            if peer is None:
                return None
            take = _Take(offer, peer, next(self._numbers))
            if peer.shut(down=False, now=now):
                take.why = "the peer is left alone"
                self._counts["handover_gone"] += 1
                return take
            take.keys = keys[: MOST_BLOCKS * _KEY]
            self._takes[offer.at, offer.id] = self._out[take.number] = take
            peer.take(take.number, offer.id, offer.boot, _rows(take.keys), now)
        take.requests.add(request)
        return take

    def _take_again(self, now: float) -> None:
        """Asks again for offers whose blocks were on their way."""
        for number, take in list(self._again.items()):
            if not take.requests:
                del self._again[number]
            elif now >= take.again:
                del self._again[number]
                self._out[number] = take
                take.peer.take(number, take.offer.id, take.offer.boot, _rows(take.keys), now)

    def _collect(self) -> None:
        """Takes what peers have answered."""
        for peer in {take.peer for take in self._out.values()}:
            for number, _, why in peer.taken():
                take = self._out.pop(number, None)
                if take is None:
                    continue
                if why == "soon":
                    take.again, self._again[number] = self._clock() + _SOON, take
                    continue
                take.why = why or self._tell(take)
                take.keys = take.keys[: _leading(peer, take.keys) * _KEY]
                self._changes += 1
                self._counts["handover_gone" if take.why else "handover_taken"] += 1
                if take.why:
                    self._log_gone(take)

    @staticmethod
    def _log_gone(take: _Take) -> None:
        """Logs why an offer was not taken. A peer that has failed may need the operator."""
        if take.why == "failed":
            _log.warning("the peer %s has failed: %s", take.offer.at, take.peer.why())
        else:
            _log.info("could not take an offer of %s: %s", take.offer.at, take.why)

    def _tell(self, take: _Take) -> str:
        """Tells the other ranks where its blocks lie; returns why not, "" where they know."""
        if not self._ranks:
            return ""
        offer, found = take.offer, take.peer.blocks(take.offer.id)
        if found is None:
            return "ended"
        for rank in self._ranks:
            rank.tell(TakenOffer(offer.at, offer.id, offer.boot, *found))
        return ""

    def _late(self, request: Hashable, asked: _Asked) -> None:
        # What was no offer was counted when it came, and one that was taken is not late.
        self._counts["handover_late"] += asked.keys is None and asked.until > asked.since
        self._leave(request, "late")

    def _leave(self, request: Hashable, why: str) -> None:
        """Wants no more of an offer for a request; the last one that does ends it."""
        asked = self._asked.pop(request, None)
        self._changes += asked is not None
        if asked is None or asked.offer is None:
            return
        take = asked.take
        if take is None:
            # It was never asked for.
            peer = self._peers.get(asked.offer.at)
            if peer is not None:
                self._refuse(peer, asked.offer, why or "unused")
            return
        take.requests.discard(request)
        keys = [asked.keys]
        if not take.requests and self._takes.pop((take.offer.at, take.offer.id), None) is take:
            self._out.pop(take.number, None)
            self._again.pop(take.number, None)
            if why:
                self._refuse(take.peer, take.offer, why)
            else:
                take.peer.done(take.offer.id)
            for rank in self._ranks:
                rank.end(take.offer.at, take.offer.id)
            # Others may have adopted them, whom the offer has outlived.
            keys += [take.keys] if take.why == "" and take.keys != asked.keys else []
        for one in filter(None, keys):
            self._forget(one)

    def _refuse(self, peer: Peer, offer: Offer, why: str) -> None:
        self._counts["handover_refused"] += 1
        if (offer.at, offer.id) not in self._takes:
            # Else another request takes it, and ends it.
            peer.refuse(offer.id, why)

    def _forget(self, keys: bytes) -> None:
        """Drops names of blocks that no open offer has any more.

        A copy that goes on after an abort has names until it ends: they are dropped later.
        """
        cache = self._cache()
        if cache is None or cache.closed:
            return
        rows, dropped = _rows(keys), 0
        gone = rows[~self._peers.has(rows)]
        if len(gone):
            every = cache.ready_keys(gone.tobytes(), len(gone) * self._size)
            dropped = cache.forget(every, tier="remote")
        # What is named beside a store is there, mostly.
        if dropped == len(rows) or self._lookup is not None:
            return
        probe = cache.probe(cache.ready_keys(keys, len(rows) * self._size))
        if probe.remote or probe.stop == "filling":
            due = self._clock() + _AGAIN
            self._named.append((due, keys))
            self._due = min(self._due, due)


def _check_id(request: Hashable) -> None:
    try:
        hash(request)
    except TypeError as error:
        raise Misuse(f"request {request!r:.60}: must be an id that can be hashed") from error


def _rows(keys: bytes) -> "np.ndarray[tuple[int, int], np.dtype[np.uint8]]":
    return np.frombuffer(keys, np.uint8).reshape(-1, _KEY)


def _leading(peer: Peer, keys: bytes) -> int:
    """Returns how many leading blocks an offer of a peer has."""
    return int(np.append(peer.has(_rows(keys)), False).argmin())
