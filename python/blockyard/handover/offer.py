"""`Offer`: what a router carries from a prefill engine to a decode engine."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple, Self

from blockyard._core import Unsupported
from blockyard.shared.endpoints import is_endpoint
from blockyard.yard.config import Config

__all__ = ["MOST_BLOCKS", "Offer", "check_supported"]

MOST_BLOCKS: Final = 65_536
"""Blocks that an offer has at most."""

_NAME: Final = "blockyard.offer"
_ID: Final = re.compile("[0-9a-f]{32}")
_MOST_BOOT: Final = (1 << 32) - 1


class Offer(NamedTuple):
    """Where the blocks of a prompt can be had: a hint, about which nothing is believed.

    It may come from any client. A decode side connects only to its own `peers`, and takes over only
    blocks whose keys its own request has.
    """

    id: bytes
    """16 random bytes."""
    at: str
    """The prefill side's address, as its option `advertise` says."""
    boot: int
    """The number of the prefill side's start, 1 to 2^32 - 1."""

    def to_json(self) -> dict[str, dict[str, str | int]]:
        """Returns it as a router carries it: `{"blockyard.offer": {…}}`."""
        return {_NAME: {"id": self.id.hex(), "at": self.at, "boot": self.boot}}

    @classmethod
    def of(cls, said: object) -> Self | None:
        """Returns the offer in what a router has sent.

        Args:
            said: A mapping, as `to_json` returns it; other names in it are of no account. Or an
                offer, which may have been made of anything.

        Returns:
            None where it has no offer, or anything of that is malformed.
        """
        number: object
        at: object
        boot: object
        if isinstance(said, Offer):
            number, at, boot = bytes.hex(said.id) if type(said.id) is bytes else None, *said[1:]
        else:
            found = said.get(_NAME) if isinstance(said, Mapping) else None
            if not isinstance(found, Mapping):
                return None
            number, at, boot = (found.get(name) for name in ("id", "at", "boot"))
        if not isinstance(number, str) or _ID.fullmatch(number) is None:
            return None
        if not isinstance(at, str) or not is_endpoint(at):
            return None
        if isinstance(boot, bool) or not isinstance(boot, int) or not 1 <= boot <= _MOST_BOOT:
            return None
        return cls(bytes.fromhex(number), at, boot)


def check_supported(config: Config) -> None:
    """Refuses a cache whose blocks cannot be handed over.

    Raises:
        Unsupported: It is of one group of layers among several.
    """
    if config.group or not config.linked:
        raise Unsupported(
            "offers of hybrid models are not supported: give a cache of one group of layers"
        )
