"""Checks an engine's output against its step."""

from collections.abc import Iterable
from typing import Final

import numpy as np

from blockyard._core import Misuse
from blockyard._typing import NDArray
from blockyard.scheduling.batch import InFlightStep
from blockyard.scheduling.engine import Ack, Output
from blockyard.scheduling.seats import Seat, Seats
from blockyard.shared.validate import bounded

_UINT32: Final = np.dtype(np.uint32)

__all__ = ["accepted", "check", "check_acks", "plain", "sampled"]


def check(output: object) -> list[Ack]:
    """Refuses malformed outputs; returns the acks.

    Raises:
        Misuse: A field has another type or shape than in `Output`.
    """
    if not isinstance(output, Output):
        raise Misuse(f"output = {output!r:.60}: must be an Output")
    step: object = output.step
    if not isinstance(step, int) or isinstance(step, bool):
        raise Misuse(f"step = {step!r:.60} of an output: must be the number of the step")
    fields: tuple[tuple[str, object, str, str], ...] = (
        ("seats", output.seats, "iu", "integers"),
        ("tokens", output.tokens, "u", "uint32"),
        ("counts", output.counts, "iu", "integers"),
        ("ended", output.ended, "b", "bools"),
    )
    for name, array, kinds, wanted in fields:
        if array is None and name in {"counts", "ended"}:
            continue
        if not isinstance(array, np.ndarray):
            raise Misuse(f"{name} of step {step} = {array!r:.60}: must be an array of {wanted}")
        if array.ndim != 1 or array.dtype.kind not in kinds:
            raise Misuse(
                f"{name} of step {step} are {array.dtype} of shape {array.shape}: must be "
                f"{wanted}, one-dimensional"
            )
    # Most outputs have none.
    acks: object = output.acks
    return [] if isinstance(acks, tuple) and not acks else check_acks(output.acks)


def check_acks(acks: Iterable[Ack]) -> list[Ack]:
    """The acks as a list, each of the right type.

    Raises:
        Misuse: One is no `Ack`.
    """
    if isinstance(acks, Ack) or not isinstance(acks, Iterable):
        raise Misuse(f"acks = {acks!r:.60}: must be a list of Acks")
    given = bounded("acks", acks)
    for ack in given:
        if not isinstance(ack, Ack) or not all(type(number) is int for number in ack[1:]):
            raise Misuse(f"ack = {ack!r:.60}: must be an Ack(request, seat, epoch) of a Stop")
        try:
            hash(ack.request)
        except TypeError as error:
            raise Misuse(f"ack = {ack!r:.60}: its request must be the id in a Stop") from error
    return [ack for ack in given if isinstance(ack, Ack)]


def plain(output: Output, in_flight: InFlightStep, seats: Seats) -> bool:
    """Whether every row decoded one token, and none has left or ends: most steps are so.

    The output has no acks.
    """
    decode, ended = in_flight.rows.decode, output.ended
    count = len(decode)
    return (
        in_flight.plain
        and in_flight.departures == seats.departures
        and output.counts is None
        and output.tokens.dtype == _UINT32
        and len(output.tokens) == len(output.seats) == count
        and not np.count_nonzero(output.seats != decode)
        and (ended is None or (len(ended) == count and not np.count_nonzero(ended)))
    )


def accepted(output: Output, in_flight: InFlightStep) -> NDArray[np.int64]:
    """Positions of each row whose KV is good: of drafts, those that were accepted."""
    rows = in_flight.rows
    computed = rows.counts.copy()
    if output.counts is None and len(output.seats) == len(rows.numbers):
        # Each row sampled one token, so no draft was accepted.
        computed[: len(rows.decode)] = 1
        return computed
    sampled_by_seat = dict(zip(output.seats.tolist(), _counts(output), strict=True))
    for at, number in enumerate(rows.decode.tolist()):
        computed[at] = sampled_by_seat.get(number, 0)
    return computed


def sampled(output: Output, in_flight: InFlightStep, seats: Seats) -> list[Seat | None]:
    """The seats that sampled; None where the request has left.

    Raises:
        Misuse: The output is not one of that step.
    """
    step, rows = output.step, in_flight.rows
    most_of = rows.counts[: len(rows.decode)].tolist()
    expected = {seat.number: (seat, most) for seat, most in zip(rows.seats, most_of, strict=False)}
    expected |= {
        seat.number: (seat, 1)
        for seat in rows.seats[len(rows.decode) :]
        if seat.number in in_flight.lasts
    }
    counts = _counts(output)
    if len(counts) != len(output.seats) or sum(counts) != len(output.tokens):
        raise Misuse(
            f"output of step {step}: {len(output.tokens)} tokens, but {sum(counts)} were sampled"
        )
    if output.ended is not None and len(output.ended) != len(output.seats):
        raise Misuse(
            f"output of step {step}: {len(output.ended)} ends, but {len(counts)} rows sampled"
        )
    if output.tokens.dtype != np.uint32:
        raise Misuse(f"tokens of step {step} are {output.tokens.dtype}: must be uint32")
    found: list[Seat | None] = []
    for number, count in zip(output.seats.tolist(), counts, strict=True):
        seat, most = expected.pop(number, (None, 0))
        if seat is None:
            raise Misuse(f"output of step {step}: seat {number} samples nothing in it")
        if not 1 <= count <= most:
            raise Misuse(
                f"{count} tokens of seat {number} in step {step}: must be from 1 to {most}"
            )
        found.append(seat if seats.lives(seat) else None)
    for number, (seat, _) in expected.items():
        if seats.lives(seat) and seat.stop is None:
            raise Misuse(f"output of step {step}: seat {number} samples in it, and is missing")
    return found


def _counts(output: Output) -> list[int]:
    return [1] * len(output.seats) if output.counts is None else output.counts.tolist()
