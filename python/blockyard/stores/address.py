"""Addresses in a store: whose a value is, of which rank and group of layers, under which key.

    by1/<identity>/identity                               whose it is, in clear text, as JSON
    by1/<identity>/<rank>[-<group>]/<key>                 a block
    by1/<identity>/<rank>[-<group>]/tmp/<boot>/<number>   a block without a key, which expires

The identity and the boot are 16 hexadecimal digits, the key 64. Group 0 is not written.
"""

import re
from typing import Final, NamedTuple

__all__ = ["Address", "block_address", "identity_address", "parse", "prefix", "tail_address"]

ROOT: Final = "by1/"
"""What every address begins with; the number is the version of the addresses."""
_ADDRESS: Final = re.compile(
    r"by1/([0-9a-f]{16})/(?:(identity)|(0|[1-9][0-9]{0,9})(?:-([1-9][0-9]{0,9}))?/"
    r"(?:([0-9a-f]{64})|tmp/([0-9a-f]{16})/(0|[1-9][0-9]{0,19})))"
)


class Address(NamedTuple):
    """An address in parts."""

    identity: int
    rank: int | None
    """None for the clear text of the identity."""
    group: int
    key: bytes | None
    """None for what has no key."""


def prefix(identity: int) -> str:
    """What all addresses of an identity begin with, and none of another."""
    return f"{ROOT}{identity:016x}/"


def identity_address(identity: int) -> str:
    """Where the fields of an identity stand in clear text."""
    return f"{prefix(identity)}identity"


def block_address(identity: int, rank: int, key: bytes, group: int = 0) -> str:
    """Where a block is.

    Args:
        identity: The number of the identity.
        rank: Whose bytes they are.
        key: The block's key, 32 bytes.
        group: The group of layers.
    """
    return f"{_place(identity, rank, group)}{key.hex()}"


def tail_address(identity: int, rank: int, boot: int, number: int, group: int = 0) -> str:
    """Where a block without a key is, which nobody finds but who put it.

    Args:
        identity: The number of the identity.
        rank: Whose bytes they are.
        boot: A random number of the process that puts it.
        number: The block's number in that process.
        group: The group of layers.
    """
    return f"{_place(identity, rank, group)}tmp/{boot:016x}/{number}"


def parse(address: str) -> Address | None:
    """Returns the parts of an address; None where it is not Blockyard's."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        return None
    identity, _, rank, group, key, _, _ = found.groups()
    return Address(
        int(identity, 16),
        None if rank is None else int(rank),
        int(group or 0),
        None if key is None else bytes.fromhex(key),
    )


def _place(identity: int, rank: int, group: int) -> str:
    return f"{prefix(identity)}{rank}{f'-{group}' if group else ''}/"
