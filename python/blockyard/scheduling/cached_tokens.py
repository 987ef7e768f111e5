"""How many tokens of a prompt were found, and on which tier."""

from typing import NamedTuple

from blockyard._core import Lease

__all__ = ["CachedTokens", "found_by"]


class CachedTokens(NamedTuple):
    """Prompt tokens that were found and not computed, by the tier that had them."""

    device: int = 0
    host: int = 0
    disk: int = 0
    remote: int = 0

    @property
    def total(self) -> int:
        """All of them: `cached_tokens` of an OpenAI-style `usage`."""
        return sum(self)


def found_by(lease: Lease, block_size: int) -> CachedTokens:
    """Prompt tokens that a lease found: of incomplete loads, the good ones.

    Of a prompt that was found whole the last token is computed again, so that one less was found.

    Args:
        lease: The lease, before it grows.
        block_size: Tokens per block.
    """
    left = lease.cached
    found = dict.fromkeys(CachedTokens._fields, 0)
    found["device"] = min(lease.hits[0] * block_size, left)
    left -= found["device"]
    for plan in lease.plans:
        if plan.source_tier != "device":
            more = min(len(plan) * block_size, left)
            found[plan.source_tier] += more
            left -= more
    # A fork has the tokens that another sample has computed.
    found["device"] += left
    return CachedTokens(**found)
