"""Both sides of a hand-over between two engines of vLLM, in the scheduler's process."""

import secrets
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from blockyard._core import Keys, Unsupported
from blockyard.connectors.connector import Connector
from blockyard.connectors.vllm.messages import Ready, TakenEvent
from blockyard.connectors.vllm.roles import HandoverOptions
from blockyard.connectors.vllm.rows import Row
from blockyard.crane.tiers import Tier
from blockyard.crane.tiers.peers import Peers, TakenOffer
from blockyard.handover.decode_side import DecodeSide
from blockyard.handover.handover_stats import DECODE_STATS, PREFILL_STATS
from blockyard.handover.offer import MOST_BLOCKS, Offer
from blockyard.handover.prefill_side import PrefillSide
from blockyard.shared.endpoints import read_secret
from blockyard.shared.log import Limited
from blockyard.shared.stats import Stat
from blockyard.yard.asking import Lookup
from blockyard.yard.cache import KVCache
from blockyard.yard.presence import Presence

__all__ = ["HandingOver", "Lent"]

_ENDED: Final = ("FINISHED_LENGTH_CAPPED", "FINISHED_STOPPED")
"""States of vLLM's requests whose KV is whole."""
_log = Limited(__name__, 0)
_LENT: "weakref.WeakValueDictionary[int, Lent]" = weakref.WeakValueDictionary()
"""What workers of this process lend, by its number."""


class Lent:
    """The host's memory of a worker, from which a prefill engine sends what it offers.

    Args:
        tier: The memory.
    """

    def __init__(self, tier: Tier) -> None:
        self.number = secrets.randbits(62) + 1
        """By it the scheduler's half finds the memory, where it is in one process with it."""
        self.tier = tier
        self._ends: list[Callable[[], object]] = []
        _LENT[self.number] = self

    @staticmethod
    def of(number: int) -> "Lent | None":
        """Returns what has this number; None where no worker of this process has lent it."""
        return _LENT.get(number)

    def ending(self, end: Callable[[], object]) -> None:
        """Has this called before the memory goes."""
        self._ends.append(end)

    def close(self) -> None:
        """Ends what reads it; called again, it is done."""
        ends, self._ends = self._ends, []
        for end in ends:
            end()


class _Promised(NamedTuple):
    offer: Offer
    keys: Keys
    until: float
    """The second after which its copies are waited for no more."""


class _Telling:
    """Tells the workers of offers, with the orders of a step."""

    def __init__(self) -> None:
        self.events: list[TakenEvent] = []

    def tell(self, offer: TakenOffer) -> None:
        """Says where the blocks of an offer lie, before the plans that read them."""
        self.events.append(offer)

    def end(self, at: str, number: bytes) -> None:
        """Says that nothing more of it is read."""
        self.events.append((at, number))


class HandingOver:
    """Offers what prefill requests have computed, and takes the offers of decode requests.

    Where the operator gives neither `listen` nor `peers` it does nothing.

    Args:
        options: The operator's.
        cache: The bookkeeping.
        connector: Plans the copies.
        longest: Seconds that copies to the host may take.
        clock: Seconds.
    """

    def __init__(
        self,
        options: HandoverOptions,
        cache: KVCache,
        connector: Connector,
        *,
        longest: float,
        clock: Callable[[], float],
    ) -> None:
        self._options, self._cache, self._connector = options, cache, connector
        self._longest, self._clock = longest, clock
        self.prefill: PrefillSide | None = None
        """What offers; None without `listen`, and before the workers have reported."""
        self.decode: DecodeSide | None = None
        """What takes offers; None without `peers`, and before the workers have reported."""
        self._promised: list[_Promised] = []
        self._telling = _Telling()
        self._peers: Peers | None = None
        self._is_void = False
        """Whether the weights may be others than those that the namespace names."""

    def ready(self, workers: Sequence[Ready], lookup: Lookup | None) -> Lookup | None:
        """Begins to listen, and to take offers.

        Args:
            workers: What they report.
            lookup: What is asked about requests without an offer.

        Returns:
            What is asked about all requests.

        Raises:
            Misuse: As `PrefillSide`, or `Peers`.
            Unavailable: One listens there already.
            Unsupported: The worker is in another process.
        """
        options, (worker, *_) = self._options, workers
        if options.listen is not None and self.prefill is None:
            self._listen(options.listen, worker)
        if not options.peers or self.decode is not None:
            return lookup
        layout = self._cache.config.layout
        assert layout is not None  # noqa: S101 - `Settings.read` has given it
        self._peers = Peers(
            options.peers,
            fields=dict(worker.fields),
            rank=0,
            block_bytes=layout.block_bytes,
            secret=read_secret(options.secret_file),
            carrier=options.carrier,
            reads=False,
        )
        _log.info("Blockyard takes the KV of prompts from %s", ", ".join(options.peers))
        self.decode = DecodeSide(
            self._cache,
            self._peers,
            lookup=lookup,
            patience=options.patience,
            ranks=[self._telling],
            clock=self._clock,
        )
        return self.decode

    def _listen(self, listen: str, worker: Ready) -> None:
        lent = Lent.of(worker.lent)
        if lent is None:
            raise Unsupported(
                f"listen = {listen!r}: the worker is in another process than the scheduler, which "
                "sends from its memory; start vLLM with --distributed-executor-backend uni, and on "
                "a CPU with VLLM_ENABLE_V1_MULTIPROCESSING=0 in its environment, too"
            )
        options = self._options
        self.prefill = PrefillSide(
            self._cache,
            lent.tier,
            listen=listen,
            advertise=options.advertise,
            secret_file=options.secret_file,
            lease=options.lease,
            unread=options.unread,
            carrier=options.carrier,
            fields=dict(worker.fields),
        )
        lent.ending(self.prefill.close)
        _log.info("Blockyard offers the KV of prompts at %s", self.prefill.address)

    # -- a decode engine -----------------------------------------------------------------

    def added(self, row: Row) -> bool:
        """Takes the offer of a request that has come; returns whether it will be asked for."""
        params = row.request.kv_transfer_params
        if self.decode is None or not isinstance(params, Mapping) or not _names_offer(params):
            return False
        name = row.request.request_id
        # An id that a client uses twice is another request.
        self.decode.over(name)
        expected = self.decode.expect(name, params)
        if expected and (self._is_void or not row.settings.load):
            self.decode.drop(name)
            return False
        return expected

    def events(self) -> list[TakenEvent]:
        """Returns what the workers are to hear of offers, before the orders of this step."""
        events, self._telling.events = self._telling.events, []
        return events

    # -- a prefill engine ----------------------------------------------------------------

    def wants(self, request: Any) -> bool:
        """Whether what a request has computed is to be offered: it was not aborted."""
        params = request.kv_transfer_params
        return (
            self.prefill is not None
            and not self._is_void
            and isinstance(params, Mapping)
            and bool(params.get("do_remote_decode"))
            and request.status.name in _ENDED
        )

    def promise(self, keys: Keys) -> dict[str, Any]:
        """Promises the blocks of a request that has ended, which are on their way to the host.

        Args:
            keys: Those of its full blocks.

        Returns:
            What vLLM adds to its answer, and a router passes on.
        """
        assert self.prefill is not None  # noqa: S101 - `wants` has said so
        # What is on its way is told from what is not there.
        self._connector.plan_offloads()
        offer = self.prefill.promise()
        self._promised.append(_Promised(offer, keys, self._clock() + self._longest))
        return {"do_remote_prefill": True, "do_remote_decode": False, **offer.to_json()}

    def look(self) -> None:
        """Offers what has come to the host; and gives up what was waited for too long."""
        if self._promised:
            now = self._clock()
            self._promised = [one for one in self._promised if not self._fulfil(one, now)]
        if self.decode is not None:
            self.decode.sweep()

    def _fulfil(self, promised: _Promised, now: float) -> bool:
        """Offers what has come of a request; returns whether nothing more of it will."""
        assert self.prefill is not None  # noqa: S101 - as above
        offer, keys, until = promised
        # What is behind the most that an offer may have is computed there.
        flags = self._cache.which(keys).tobytes()[:MOST_BLOCKS]
        end = flags.find(Presence.MISSING)
        there = len(flags) if end < 0 else end
        if now < until and flags.find(Presence.FILLING, 0, there) >= 0:
            return False
        self.prefill.fulfil(offer, self._cache.hold(keys, there) if there else None)
        return True

    def has_held(self) -> bool:
        """Returns whether an offer is held: it ends by a read, or by its time."""
        return self.prefill is not None and self.prefill.stats()["offers_held"] > 0

    def sources(self) -> list[tuple[Sequence[Stat], Callable[[], Mapping[str, int]]]]:
        """Returns what is counted: the meaning of each number, and what returns the numbers."""
        found: list[tuple[Sequence[Stat], Callable[[], Mapping[str, int]]]] = []
        if self._options.listen is not None:
            found.append((PREFILL_STATS, lambda: _numbers(self.prefill, PREFILL_STATS)))
        if self._options.peers:
            found.append((DECODE_STATS, lambda: _numbers(self.decode, DECODE_STATS)))
        return found

    # -- both ----------------------------------------------------------------------------

    def clear(self) -> None:
        """Offers and takes nothing any more: the next weights may have the name of the last."""
        self._is_void = True
        for promised in self._promised:
            if self.prefill is not None:
                self.prefill.end(promised.offer, "cleared")
        self._promised = []

    def close(self) -> None:
        """Ends all offers and connections; called again, it is done."""
        if self.prefill is not None:
            self.prefill.close()
        if self.decode is not None:
            self.decode.close()
        if self._peers is not None:
            self._peers.close(1.0)


def _numbers(side: PrefillSide | DecodeSide | None, schema: Sequence[Stat]) -> Mapping[str, int]:
    return dict.fromkeys((stat.name for stat in schema), 0) if side is None else side.stats()


def _names_offer(params: Mapping[Any, Any]) -> bool:
    return params.get("blockyard.offer") is not None
