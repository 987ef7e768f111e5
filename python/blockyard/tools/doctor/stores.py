"""The shared stores of a command line: whether each answers, and keeps what it is given."""

from functools import partial

from blockyard._core import BlockyardError, Unavailable
from blockyard.connectors.shared_stores import opened
from blockyard.tools.doctor.finding import Check, Finding, Site, judged
from blockyard.tools.store.check import check
from blockyard.tools.units import size

__all__ = ["checks"]

_BYTES, _BLOCKS = 1 << 20, 4
_ALONE = "the engine starts, and computes what others have: it shares less, or nothing"
_NOT_STARTED = "the engine refuses it at the start"


def checks(site: Site) -> tuple[Check, ...]:
    """Returns the checks of all stores that a command line names."""
    return tuple(partial(answers, url, password) for url, password in site.asked.stores)


def answers(url: str, password_file: str | None, site: Site) -> Finding:
    """Whether a store takes a few blocks, and gives them back; it has none of them afterwards."""
    layout = site.asked.layout
    nbytes = _BYTES if layout is None else min(layout.block_bytes, _BYTES)
    try:
        (store,) = opened([url], password_file)
    except Unavailable as error:
        return Finding("store", "fail", f"{url}: {error}", _NOT_STARTED, "install what it names")
    except BlockyardError as error:
        return Finding("store", "fail", str(error), _NOT_STARTED, "write it as the message says")
    seen = check(store, block_bytes=nbytes, blocks=_BLOCKS, step=lambda: None)
    if seen.faults:
        facts = [fault.removeprefix(f"{store.url}: ") for fault in seen.faults[:1]]
    else:
        rates = (f"{size(round(seen.rate(name)))}/s {name}" for name in ("write", "read"))
        facts = [f"{', '.join(rates)}, in blocks of {size(nbytes)}", *seen.notes[:1]]
    return judged(
        "store",
        f"{store.url}: {'; '.join(facts)}",
        (seen.faults, "warn", _ALONE, f"mend it, and see `blockyard store check {store.url}`"),
        (seen.notes, "warn", "it keeps less than it could, or nothing", "set it as it says"),
    )
