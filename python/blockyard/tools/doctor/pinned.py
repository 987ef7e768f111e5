"""How much memory may be locked, as pinning does where the driver counts it."""

import re
from typing import Final

from blockyard.tools.doctor.finding import Check, Finding, Problem, Site, judged, unknown
from blockyard.tools.units import size

__all__ = ["CHECKS"]

_MOST: Final = 64 << 20
"""Bytes that are locked at most, for a moment."""
_LEAST: Final = 1 << 16
_ONE: Final = 512 << 30
"""Bytes of one registration that CUDA refuses (vllm#51080)."""
_RAISE: Final = (
    "docker run --ulimit memlock=-1, LimitMEMLOCK=infinity of systemd, or ulimit -l unlimited"
)


def limit(site: Site) -> Finding:
    """The limit on locked memory, and whether it holds for this user."""
    found = re.search(
        r"^Max locked memory\s+(\d{1,20}|unlimited)\s",
        site.text("proc/self/limits") or "",
        re.MULTILINE,
    )
    if found is None:
        return unknown("memlock", "the limit of locked memory cannot be read")
    asked = site.asked.pinned
    if found[1] == "unlimited":
        return Finding("memlock", "ok", "unlimited")
    most = int(found[1])
    fact = f"{size(most)} may be locked"
    if not asked or asked <= most:
        return Finding("memlock", "ok", fact)
    fact += f", a rank pins {size(asked)}"
    if _locked(site, most) > most:
        return Finding("memlock", "ok", f"{fact}; this user may lock more than that")
    refused = "a driver that counts pinned memory refuses the host tier at the start"
    return Finding("memlock", "warn", fact, refused, _RAISE)


def _locked(site: Site, limit: int) -> int:
    """Locks memory in doubling steps until one is past the limit; returns what was locked last."""
    locked, nbytes = 0, _LEAST
    while nbytes <= _MOST and locked <= limit and site.locks(nbytes):
        locked, nbytes = nbytes, nbytes * 2
    return locked


def registration(site: Site) -> Finding:
    """What one rank pins in one piece."""
    asked = site.asked.piece
    if not asked:
        apart = "what each group of layers pins is not known here"
        return unknown("registration", apart if site.asked.pinned else "no host tier was named")
    fact = f"a rank pins {size(asked)} in one piece"
    refused = "CUDA refuses a registration of 512 GiB or more"
    less: Problem = (asked >= _ONE, "fail", refused, 'give "host": "500 GiB/rank" or less')
    return judged("registration", fact, less)


CHECKS: Final[tuple[Check, ...]] = (limit, registration)
