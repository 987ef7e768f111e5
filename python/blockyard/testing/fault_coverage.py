"""The faults of `docs/laws.md`, by name; a simulation counts how often each happened."""

from typing import Final

__all__ = ["PARKING", "ROWS"]

ROWS: Final[dict[str, str]] = {
    "2.3 down failed": "a copy down has failed",
    "2.3 down unknown": "the outcome of a copy down was unknown at its deadline",
    "2.3 up failed": "a copy up has failed",
    "2.3 up unknown": "the outcome of a copy up was unknown at its deadline",
    "2.3 across failed": "a copy within the device has failed",
    "2.3 across unknown": "the outcome of a copy within the device was unknown at its deadline",
    "2.3 twice": "an outcome came twice",
    "2.3 late": "an outcome came after its deadline, or after its rank was reset",
    "2.3 foreign": "an outcome of an unknown flight or rank",
    "T4": "a load came back short, and its request computed the rest",
    "T5": "a begin found no room, and changed nothing",
    "T27": "an abort while loading",
    "T28": "a sequence ended while the ack of its stop was awaited",
    "T29 absent": "no ack came, and the engine no longer had the seat",
    "T29 present": "no ack came, and the engine still had the seat: the stop was sent again",
    "T29 dead": "no ack came, and the engine died",
    "T30": "an ack came twice",
    "T31 late": "an ack came when it was no longer awaited",
    "T31 foreign": "an ack of another epoch, seat or request",
    "T36": "a row found no room to grow",
    "T13, T21": "the kept KV of a parked request was lost, and it was recomputed",
    "T15": "the host had no room to park",
    "T17": "a parked request found or freed no room for too long, and was recomputed",
    "T19, T20": "a resume came back short, and the request was parked again",
    "2.6 expired": "a ticket expired",
    "2.6 peer": "a ticket's peer died",
    "2.6 spent": "a ticket was committed after its end",
    "2.6 second": "a second ticket was requested for the same request",
    "2.6 refused": "there was no room for a ticket",
    "2.7 in use": "a tier was not made smaller, since it was in use",
}
"""The rows marked F, and what happens in them."""

PARKING: Final[dict[str, str]] = {
    "T13, T21": "kv_lost",
    "T15": "no_host",
    "T17": "aged",
    "T19, T20": "retried",
}
"""The rows that the scheduler counts itself, with the name of its counter."""
