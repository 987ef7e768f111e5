"""The prefill side of a hand-over: it offers held blocks, and sends them to who takes them."""

import os
import secrets
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, get_args

from blockyard._core import HeldBlocks, Misuse, Offers, OfferServer, Unsupported
from blockyard.crane.copiers.lane_flights import Place, memory_places
from blockyard.crane.tiers import Tier, is_mapped, planes_of
from blockyard.crane.tiers.peers import called
from blockyard.handover.handover_stats import PREFILL_STATS
from blockyard.handover.offer import Offer, check_supported
from blockyard.shared.endpoints import Carrier, endpoint, is_unspecified, read_secret
from blockyard.shared.layout import KVLayout
from blockyard.shared.single import Single
from blockyard.shared.validate import one_of, seconds, shown
from blockyard.stores.identity import fields_of
from blockyard.yard.cache import KVCache

if TYPE_CHECKING:
    from blockyard.crane.tiers.nixl_source import NixlSource

__all__ = ["PrefillSide"]

Why = Literal["aborted", "cleared", "room"]

_LEAST: Final = 0.02
"""Seconds between two looks for leases that have ended, at least."""
_PARTS: Final = 8
"""So often in the shortest of its times it looks."""


class PrefillSide(Single):
    """Holds the blocks of computed prompts for decode engines, which read them over TCP.

    Add a request with `NewRequest(…, max_tokens=1, hold=True)`; give the `held` of its result to
    `offer`, and the offer to the router. The blocks stay where they are until every reader has
    taken or refused them, no reader has renewed its lease, or none has come. Each offer ends by
    this side's own clock, whatever the others do.

    It has threads of its own, for connections and for leases. Any thread may call it.

    Args:
        cache: The cache whose blocks are held.
        device: The memory of its device, as `Crane.device`: memory of this process. Where an
            engine allocates its blocks itself, that of its host.
        listen: Where it listens, as `host:port`; port 0 is any free one. Without a secret it must
            be of the loopback.
        advertise: What stands in offers as its address, where other machines reach it by another
            one; None for that where it listens, which must be of one interface then.
        secret_file: A file with a secret of 16 bytes or more, which both sides prove to know.
        lease: Seconds after which a reader that has not renewed its lease counts as gone.
        unread: Seconds after which an offer ends that no reader has taken.
        ending: Seconds that `close` waits for connections.
        carrier: "tcp"; or "nixl", with which decode sides that have it, too, read the memory of the
            device by themselves: whoever proves the secret may read all of that memory.
        fields: All that the bytes depend on, by name, where that is more than the cache says; None
            for what its configuration says.

    Raises:
        Misuse: A value is out of range, the memory is not of the cache's device, the namespace does
            not name model and weights, there is no secret for an address of the network, or offers
            would name an address as 0.0.0.0.
        Unavailable: One listens there already, or NIXL does not start.
        Unsupported: The memory is a GPU's, the layout has several ranks, the cache is of one group
            of layers among several, or NIXL is not installed.
    """

    SCHEMA = PREFILL_STATS
    """Name, unit, kind, metric and meaning of each number in `stats`."""

    def __init__(  # noqa: PLR0913 - keywords
        self,
        cache: KVCache,
        device: Tier,
        *,
        listen: str = "127.0.0.1:0",
        advertise: str | None = None,
        secret_file: str | os.PathLike[str] | None = None,
        lease: float = 10.0,
        unread: float = 60.0,
        ending: float = 1.0,
        carrier: Carrier = "tcp",
        fields: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(cache, KVCache):
            raise Misuse(f"cache = {shown(cache)}: give a cache, such as that of by.local")
        if not isinstance(getattr(device, "layout", None), KVLayout):
            raise Misuse(f"device = {shown(device)}: give the memory of the cache, as crane.device")
        config, layout = cache.config, device.layout
        check_supported(config)
        if not is_mapped(device):
            raise Unsupported(
                f"device = {type(device).__name__}: blocks are sent from memory of this process, "
                "and a GPU's is not supported as source"
            )
        of = "host" if config.engine else "device"
        if device.name != of or layout.block_size != cache.block_size:
            raise Misuse(
                f"device = the {device.name}'s memory, in blocks of {layout.block_size}: give that "
                f"of the cache's {of}, which has blocks of {cache.block_size}"
            )
        if layout.ranks != 1:
            raise Unsupported(
                f"a layout of {layout.ranks} ranks: the blocks of one rank alone can be offered"
            )
        at = endpoint("listen", listen, least=0)
        named = None if advertise is None else endpoint("advertise", advertise)
        if is_unspecified(named or at) and (named or secret_file is not None):
            raise Misuse(
                f"offers would name {named or at}, to which nobody connects: give advertise=, the "
                "address where others reach this side"
            )
        times = {
            "lease": seconds("lease", lease, zero=False),
            "unread": seconds("unread", unread, zero=False),
        }
        secret = read_secret(secret_file)
        self._ending = seconds("ending", ending)
        planes = [place for plane in memory_places(device, "peers") for place in plane]
        self._source = _source(carrier, cache, device, planes)
        self._cache, self._boot = weakref.ref(cache), cache.boot
        self._offers = Offers(**times)
        self._server = OfferServer(
            self._offers,
            at,
            boot=self._boot,
            name=called("prefill"),
            fields=fields_of(config.identity, layout) if fields is None else fields,
            planes=[planes],
            blocks=device.blocks,
            secret=secret,
            memory=None if self._source is None else self._source.memory,
        )
        # The server reads this memory, whoever closes its tier before.
        self._memory = planes_of(device)
        self._address = named or self._server.address
        self._stop = threading.Event()
        every = max(_LEAST, min(times.values()) / _PARTS)
        watched = self._offers, self._stop, every
        self._thread = threading.Thread(
            target=_look, args=watched, name="blockyard-offers", daemon=True
        )
        self._finalizer = weakref.finalize(self, _end, self._stop, self._offers, self._server)
        self._thread.start()

    @property
    def address(self) -> str:
        """What stands in its offers as the address."""
        return self._address

    @property
    def listens(self) -> str:
        """Where it listens, with the port that it has got."""
        return self._server.address

    def offer(self, held: HeldBlocks | None) -> Offer | None:
        """Offers blocks: they are held until the offer ends, and not by the caller any more.

        Args:
            held: What `KVCache.hold` has returned, or a result's `held`. Offer each once.

        Returns:
            What the router carries; None where nothing is held, or not any more, where the weights
            have changed under one namespace, and where another thread has closed it meanwhile.

        Raises:
            Misuse: It is something else, of another cache, or of more than 65,536 blocks; or the
                side is closed. The hold goes on.
        """
        if held is None:
            return None
        offer = self._new()
        return offer if self._has_offered(offer, held) else None

    def promise(self) -> Offer:
        """Makes an offer whose blocks are on their way to where they are held; then `fulfil` it.

        Who takes it meanwhile is told to ask again. It ends as one does that nobody reads.

        Returns:
            What the router carries.

        Raises:
            Misuse: The side is closed.
        """
        offer = self._new()
        self._offers.promise(offer.id, time.monotonic())
        return offer

    def fulfil(self, offer: Offer, held: HeldBlocks | None) -> bool:
        """Offers the blocks of an offer that was promised.

        Args:
            offer: From `promise`.
            held: As in `offer`; None ends it, as there was no room for its blocks.

        Returns:
            Whether they are held now. If not, it has ended, and so has the hold: a reader has
            refused it, say.

        Raises:
            Misuse: As in `offer`.
        """
        if not isinstance(offer, Offer):
            raise Misuse(f"offer = {shown(offer)}: give what `promise` has returned")
        if held is not None and self._offers.is_promised(offer.id):
            if self._has_offered(offer, held):
                return True
        elif held is not None:
            held.release()
        self._offers.end(offer.id, "room")
        return False

    def _new(self) -> Offer:
        if self._stop.is_set():
            raise Misuse("this prefill side is closed: make another one")
        return Offer(secrets.token_bytes(16), self._address, self._boot)

    def _has_offered(self, offer: Offer, held: HeldBlocks) -> bool:
        if not isinstance(held, HeldBlocks):
            raise Misuse(f"held = {shown(held)}: give what KVCache.hold has returned")
        if self._stop.is_set():
            raise Misuse("this prefill side is closed: make another one")
        cache = self._cache()
        if cache is None or held.cache is not cache:
            raise Misuse(
                "held is of another cache, whose slots are in other memory: give its side it"
            )
        if cache.has_own_weights:
            # Who takes them has the weights that the namespace names.
            held.release()
        if not held.is_held:
            return False
        self._offers.offer(offer.id, held, time.monotonic())
        # Else another thread has closed it meanwhile, and nobody would end this one.
        return not (self._stop.is_set() and self._offers.end(offer.id, "closed"))

    def end(self, offer: object, why: Why = "aborted") -> bool:
        """Ends an offer, where its request was aborted or its room is needed.

        Args:
            offer: What `offer` has returned, or that as a router carries it.
            why: "aborted", "cleared" or "room", as which it is counted.

        Returns:
            Whether it was held, or promised.

        Raises:
            Misuse: It is something else.
        """
        found = Offer.of(offer)
        if found is None and offer is not None:
            raise Misuse(f"offer = {shown(offer)}: give what `offer` has returned")
        why = one_of("why", why, ("aborted", "cleared", "room"))
        return found is not None and self._offers.end(found.id, why)

    def make_room(self) -> bool:
        """Ends the oldest offer, where the engine needs the room; returns whether there was one."""
        return self._offers.end_oldest() is not None

    def sweep(self, now: float | None = None) -> int:
        """Ends the offers whose time is over. A thread of its own does so, too.

        Args:
            now: Seconds of `time.monotonic`; None to look.

        Returns:
            How many have ended.
        """
        return self._offers.sweep(time.monotonic() if now is None else now)

    def stats(self) -> dict[str, int]:
        """Returns counters and sizes; `SCHEMA` has units and meanings."""
        return _numbers(self._offers.stats(), self._server.stats())

    def explain(self) -> tuple[str, ...]:
        """Returns for each held offer how many blocks it holds, for whom and how long."""
        return tuple(
            f"Offer {number.hex()[:8]} has held {blocks} blocks for {age:.1f} s, "
            + (f"and {readers} readers have a lease" if readers else "and nobody has taken it")
            + f"; it ends in {left:.1f} s if none comes or renews."
            for number, blocks, age, readers, left in self._offers.holding()
        )

    def close(self) -> bool:
        """Ends all offers and connections; called again, it is done.

        Returns:
            Whether all its threads have ended in time.
        """
        self._stop.set()
        self._offers.end_all("closed")
        ended = self._server.close(patience=self._ending)
        if self._source is not None:
            self._source.close()
        self._memory = ()
        self._thread.join(self._ending)
        self._finalizer.detach()
        return ended and not self._thread.is_alive()


def _source(
    carrier: Carrier, cache: KVCache, device: Tier, planes: Sequence[Place]
) -> "NixlSource | None":
    """Returns what lets others read the memory of the device, where a carrier needs that."""
    if one_of("carrier", carrier, get_args(Carrier)) == "tcp":
        return None
    from blockyard.crane.tiers.nixl_source import NixlSource  # noqa: PLC0415 - most have no NIXL

    return NixlSource(planes, device.blocks, cache.slot_generations(), planes_of(device))


def _look(offers: Offers, stop: threading.Event, every: float) -> None:
    """What its thread does: it has no side, so that who drops that ends it."""
    while not stop.wait(every):
        offers.sweep(time.monotonic())


def _end(stop: threading.Event, offers: Offers, server: OfferServer) -> None:
    if server.closed:
        return  # in a forked child, say: the parent has the threads, and the offers
    stop.set()
    offers.end_all("closed")
    server.close(patience=0.0)


def _numbers(offers: Mapping[str, int], server: Mapping[str, int]) -> dict[str, int]:
    every = {**offers, **{f"offers_{name}": count for name, count in server.items()}}
    return {stat.name: every[stat.name] for stat in PREFILL_STATS}
