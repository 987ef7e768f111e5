"""What can go wrong, by the names of `docs/laws.md`: a simulation counts how often it did."""

from typing import Final

__all__ = ["PARKING", "ROWS"]

ROWS: Final[dict[str, str]] = {
    "2.3 down failed": "a copy down has failed",
    "2.3 down unknown": "the end of a copy down was unknown at its deadline",
    "2.3 up failed": "a copy up has failed",
    "2.3 up unknown": "the end of a copy up was unknown at its deadline",
    "2.3 across failed": "a copy within the device has failed",
    "2.3 across unknown": "the end of a copy within the device was unknown at its deadline",
    "2.3 twice": "an outcome came twice",
    "2.3 late": "an outcome came after its deadline, or after its rank was reset",
    "2.3 foreign": "an outcome of a flight or a rank that there is not",
    "T4": "a load came back short: its request computed the rest",
    "T5": "a begin found no room, and has changed nothing",
    "T27": "an abort while loading",
    "T28": "an end of sequence while the ack was awaited",
    "T29 absent": "no ack, and the engine had the seat no more",
    "T29 present": "no ack, and the engine had the seat still: the stop was sent again",
    "T29 dead": "no ack, and the engine died",
    "T30": "an ack came twice",
    "T31 late": "an ack came when nobody waited for it any more",
    "T31 foreign": "an ack of another epoch, seat or request",
    "T36": "a row found no room to grow",
    "T13, T21": "what was kept of a parked request was lost, and it was computed again",
    "T15": "the host had no room to park",
    "T17": "one that was parked found or gave no room for too long, and was computed again",
    "T19, T20": "a resume came back short, and was parked again",
    "2.6 expired": "a ticket was too late",
    "2.6 peer": "a ticket's peer died",
    "2.6 spent": "a ticket was committed after its end",
    "2.6 second": "a second ticket was asked for a request",
    "2.6 refused": "there was no room for a ticket",
    "2.7 in use": "a tier was not made smaller, as it was in use",
}
"""Rows marked F, and what happens in them."""

PARKING: Final[dict[str, str]] = {
    "T13, T21": "kv_lost",
    "T15": "no_host",
    "T17": "aged",
    "T19, T20": "retried",
}
"""Of these, what the scheduler counts itself."""
