"""What a store has of Blockyard's: identities, their ranks, and how to remove one."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from blockyard.stores import Session
from blockyard.stores.address import ROOT, identity_address, parse, prefix
from blockyard.stores.identity import LONGEST, read_text

__all__ = ["Content", "Part", "contents", "wipe"]

_AT_ONCE = 1000
"""Addresses of one call."""


@dataclass
class Part:
    """What a rank has, of a group of layers."""

    blocks: int = 0
    tails: int = 0
    """Blocks without a key, which expire."""
    nbytes: int = 0


@dataclass
class Content:
    """What an identity has."""

    number: int
    fields: dict[str, str] | None = None
    """What it depends on, as it stands in the store in clear text; None where it does not."""
    parts: dict[tuple[int, int], Part] = field(default_factory=dict)
    """By rank and group of layers."""

    @property
    def name(self) -> str:
        """16 hexadecimal digits."""
        return f"{self.number:016x}"


def contents(session: Session, step: Callable[[], object] = lambda: None) -> list[Content]:
    """Lists all identities of a store, by name. Addresses that are not Blockyard's do not count.

    Args:
        session: A session of the store.
        step: Called after each value.

    Raises:
        Unavailable: The store is down or slow, or refuses.
    """
    found: dict[int, Content] = {}
    for address, nbytes in session.list(ROOT):
        step()
        parts = parse(address)
        if parts is None:
            continue
        one = found.setdefault(parts.identity, Content(parts.identity))
        if parts.rank is None:
            continue
        part = one.parts.setdefault((parts.rank, parts.group), Part())
        part.nbytes += nbytes
        part.blocks += parts.key is not None
        part.tails += parts.key is None
    room = memoryview(bytearray(LONGEST))
    for one in found.values():
        text = session.get(identity_address(one.number), room)
        one.fields = None if text is None else read_text(bytes(text))
    return [found[number] for number in sorted(found)]


def wipe(
    session: Session, identity: int, step: Callable[[int], object] = lambda _: None
) -> tuple[int, int]:
    """Deletes the values of an identity, of all ranks and groups, and nothing else.

    Its clear text goes last, so that a wipe that was interrupted can be repeated by its name.

    Args:
        session: A session of the store.
        identity: The number of the identity.
        step: Called with the number of values that each call deleted.

    Returns:
        How many blocks were deleted, and their bytes.

    Raises:
        Unavailable: The store is down or slow, or refuses. Some may be deleted.
    """
    gone = nbytes = 0
    text = identity_address(identity)
    listed = (one for one in session.list(prefix(identity)) if one[0] != text)
    while batch := list(islice(listed, _AT_ONCE)):
        deleted = session.delete([address for address, _ in batch])
        gone += deleted
        nbytes += sum(size for _, size in batch)
        step(deleted)
    session.delete([text])
    return gone, nbytes
