"""Whose the values in a store are: the disk tier's identity, of which engines have the same."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from blockyard._core import DiskLane, Misuse
from blockyard.shared.layout import KVLayout
from blockyard.shared.weights import stated

__all__ = ["fields_of", "number_of", "read_text", "text_of"]

_NAMED: Final = ("model", "weights")
_FORMAT: Final = 1
LONGEST: Final = 1 << 16
"""Bytes of the clear text."""


def fields_of(
    identity: Mapping[str, str | os.PathLike[str]], layout: KVLayout
) -> Mapping[str, str]:
    """Returns all that the bytes depend on, by name; of a path to weights their content.

    Args:
        identity: As `Config.identity`.
        layout: What a block is.

    Raises:
        Misuse: It names no model or no weights.
        Unavailable: There are no weights at a path.
    """
    missing = [name for name in _NAMED if not identity.get(name)]
    if missing:
        raise Misuse(
            f"namespace names no {missing[0]}: engines that share KV could read that of other "
            f'{missing[0].removesuffix("s")}s; give namespace={{"{missing[0]}": …}}'
        )
    said = {name: str(stated(name, part)) for name, part in identity.items()}
    # The fingerprint last: peers name the first one that differs, and it says of all of them alike.
    return {**said, "ranks": str(layout.ranks), "blocks of": layout.fingerprint}


def number_of(fields: Mapping[str, str]) -> int:
    """Returns the number of an identity, which is that of a disk with the same fields."""
    folder, _ = DiskLane.lacking(Path("/"), sorted(fields.items()), rank=0, slots=1, block_bytes=1)
    return int(folder.parent.name, 16)


def text_of(fields: Mapping[str, str]) -> bytes:
    """Returns the clear text of an identity, which stands in the store beside its values."""
    return json.dumps({"format": _FORMAT, "fields": dict(fields)}, sort_keys=True).encode()


def read_text(text: bytes) -> dict[str, str] | None:
    """Returns the fields that a clear text names; None where it is none. It may be anybody's."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    fields = found.get("fields") if isinstance(found, dict) else None
    if not isinstance(fields, dict):
        return None
    return {str(name): str(value) for name, value in fields.items()}
