"""Asks a store all that an engine asks it, and finds what is wrong with it."""

import random
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Final, TypeVar, TypeVarTuple

from blockyard._core import Unavailable
from blockyard.stores import PATIENCE, Session, Store, Telling
from blockyard.stores.address import block_address

__all__ = ["ASKED", "Checked", "check"]

ASKED: Final = 128
"""Blocks that one lookup asks for here."""
_LOOKUPS: Final = 16
_EXPIRES: Final = 3600.0
"""Seconds after which a store drops what a check that was killed has left."""
_Result = TypeVar("_Result")
_Given = TypeVarTuple("_Given")


@dataclass
class Checked:
    """What was seen."""

    blocks: int
    block_bytes: int
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """Of each call, by "write", "read" and "ask"."""
    notes: list[str] = field(default_factory=list)
    """What the store says of itself that an operator should know."""
    faults: list[str] = field(default_factory=list)
    """What is wrong, and what to do."""

    def rate(self, name: str) -> float:
        """Bytes per second of a kind of call, the median."""
        return self.block_bytes / median(self.seconds[name])

    def timed(self, name: str, call: Callable[[*_Given], _Result], *given: *_Given) -> _Result:
        """Makes a call, and notes how long it took."""
        begun = time.perf_counter()
        made = call(*given)
        self.seconds.setdefault(name, []).append(time.perf_counter() - begun)
        return made


def check(store: Store, *, block_bytes: int, blocks: int, step: Callable[[], object]) -> Checked:
    """Writes blocks of an identity that nobody has, reads them by another session, deletes them.

    Args:
        store: The store.
        block_bytes: Bytes of a block.
        blocks: How many.
        step: Called after each block that was written, and that was read.

    Returns:
        What was seen. A store that is down is a fault, and no error.
    """
    seen = Checked(blocks, block_bytes)
    identity = secrets.randbits(64)
    # As random as those of blocks, so that a store spreads them as it does these.
    addresses = [block_address(identity, 0, secrets.token_bytes(32)) for _ in range(blocks)]
    try:
        session = store.connect()
    except Unavailable as error:
        seen.faults.append(str(error))
        return seen
    try:
        _try_all(seen, store, session, addresses, step)
    except Unavailable as error:
        seen.faults.append(str(error))
        with suppress(Unavailable):
            session.delete(addresses)
    finally:
        session.close()
    if "ask" in seen.seconds and median(seen.seconds["ask"]) > PATIENCE:
        seen.faults.append(
            f"it is slow: a lookup of {ASKED} blocks takes {1e3 * median(seen.seconds['ask']):.0f} "
            f"ms, and engines wait {1e3 * PATIENCE:.0f} ms, and find nothing then; give them more "
            "patience, or a store that is nearer"
        )
    return seen


def _try_all(
    seen: Checked,
    store: Store,
    session: Session,
    addresses: list[str],
    step: Callable[[], object],
) -> None:
    if isinstance(session, Telling):
        seen.notes += session.notes()
    _ask_for_none(seen, session)
    _write(seen, session, addresses, step)
    if not seen.faults:
        _read(seen, store, addresses, step)
    session.delete(addresses)
    if left := sum(session.has(addresses)):
        seen.faults.append(f"it still has {left} blocks after it deleted them")


def _ask_for_none(seen: Checked, session: Session) -> None:
    identity = secrets.randbits(64)
    for _ in range(_LOOKUPS):
        absent = [block_address(identity, 0, secrets.token_bytes(32)) for _ in range(ASKED)]
        if any(seen.timed("ask", session.has, absent)):
            seen.faults.append("it says that it has blocks which nobody has written")
            return
    absent = [block_address(identity, 0, secrets.token_bytes(32))]
    if session.get(absent[0], memoryview(bytearray(64))) is not None:
        seen.faults.append("it has a value for a block which nobody has written")


def _write(
    seen: Checked, session: Session, addresses: list[str], step: Callable[[], object]
) -> None:
    value = bytearray(seen.block_bytes)
    for number, address in enumerate(addresses):
        _fill(value, number)
        seen.timed("write", session.put, address, memoryview(value), _EXPIRES)
        step()
    there = sum(session.has(addresses))
    if there < len(addresses):
        seen.faults.append(
            f"it has {there} of {len(addresses)} blocks, right after it acknowledged all of them: "
            "it is full, and evicts; give it more memory"
        )


def _read(seen: Checked, store: Store, addresses: list[str], step: Callable[[], object]) -> None:
    """Reads by a session of its own, as another engine does."""
    other = store.connect()
    try:
        into, wanted = bytearray(seen.block_bytes), bytearray(seen.block_bytes)
        lost = wrong = 0
        for number, address in enumerate(addresses):
            found = seen.timed("read", other.get, address, memoryview(into))
            _fill(wanted, number)
            lost += found is None
            wrong += found is not None and bytes(found) != wanted
            step()
    finally:
        other.close()
    if lost:
        seen.faults.append(f"it has lost {lost} of {len(addresses)} blocks within this check")
    if wrong:
        seen.faults.append(
            f"it lies: {wrong} of {len(addresses)} blocks came back with other bytes. Engines find "
            "that by checksums, and compute these blocks; do not use this store"
        )


def _fill(value: bytearray, number: int) -> None:
    """Makes the bytes of a block, which no other has."""
    value[:] = random.Random(number).randbytes(len(value))  # noqa: S311 - to compare with
