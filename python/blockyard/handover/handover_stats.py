"""What both sides of a hand-over count: name, unit, kind, metric and meaning of each number."""

from typing import Final

from blockyard.shared.stats import Kind, Stat

__all__ = ["DECODE_STATS", "PREFILL_STATS"]

_ENDS: Final = {
    "done": "every reader has taken its blocks, or refused",
    "lease": "the last reader has not renewed its lease",
    "unread": "no reader has come",
    "cleared": "the cache was cleared, or has forgotten a block",
    "closed": "the side was closed",
    "room": "the prefill engine needed the room",
    "aborted": "the engine ended them",
}

PREFILL_STATS: Final = (
    Stat("offers_held", "offers", "gauge", "offers_held", "offers whose blocks are held"),
    Stat(
        "offer_blocks_held",
        "blocks",
        "gauge",
        "offer_blocks_held",
        "blocks of held offers, counted for each offer",
    ),
    *(
        Stat(
            f"offers_ended_by_{why}",
            "offers",
            "counter",
            f"offers_ended{{by={why}}}",
            f"offers that have ended because {about}",
        )
        for why, about in _ENDS.items()
    ),
    Stat("offers_made", "offers", "counter", "offers_made", "offers that were made"),
    Stat("offers_sent_blocks", "blocks", "counter", "offers_sent_blocks", "blocks that were sent"),
    Stat("offers_sent_bytes", "bytes", "counter", "offers_sent_bytes", "bytes of the sent blocks"),
    Stat(
        "offers_stale",
        "blocks",
        "counter",
        "offers_stale_blocks",
        "blocks whose slot had another generation by the time that they were sent",
    ),
    Stat(
        "offers_connections",
        "connections",
        "gauge",
        "offers_connections",
        "connections of decode engines",
    ),
    *(
        Stat(
            f"offers_{why}",
            "connections",
            "counter",
            f"offers_connections_closed{{by={why}}}",
            f"connections that were closed because {about}",
        )
        for why, about in (
            ("refused", "there were too many"),
            ("unproved", "the secret was not proved"),
            ("differing", "a field of the identity differs"),
            ("faulty", "a message was malformed, or late"),
        )
    ),
)
"""The schema of `PrefillSide.stats`."""

_WAYS: Final[tuple[tuple[str, str, Kind, str, str], ...]] = (
    (
        "reserved",
        "requests",
        "counter",
        "handover_reservations{event=reserved}",
        "requests for which room was promised",
    ),
    (
        "full",
        "requests",
        "counter",
        "handover_reservations{event=full}",
        "requests that were refused because there was no room",
    ),
    ("taken", "offers", "counter", "handover_offers{result=taken}", "offers that were taken"),
    (
        "gone",
        "offers",
        "counter",
        "handover_offers{result=gone}",
        "offers that were not to be had any more, or whose peer did not answer",
    ),
    (
        "late",
        "offers",
        "counter",
        "handover_offers{result=late}",
        "offers that did not come, or were not taken, within the patience; again where they come",
    ),
    (
        "foreign",
        "offers",
        "counter",
        "handover_offers{result=foreign}",
        "offers of an address that is not among the peers, which was not connected to",
    ),
    (
        "malformed",
        "offers",
        "counter",
        "handover_offers{result=malformed}",
        "offers that could not be parsed",
    ),
    (
        "refused",
        "offers",
        "counter",
        "handover_refused",
        "offers that were given back without use",
    ),
    ("blocks", "blocks", "counter", "handover_blocks", "blocks that offers had of requests"),
    (
        "waiting",
        "requests",
        "gauge",
        "handover_waiting",
        "requests that have room and wait for their offer",
    ),
    ("open", "offers", "gauge", "handover_open", "offers whose blocks are being taken over"),
)

DECODE_STATS: Final = tuple(
    Stat(f"handover_{name}", unit, kind, metric, about) for name, unit, kind, metric, about in _WAYS
)
"""The schema of `DecodeSide.stats`."""
