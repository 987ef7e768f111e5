"""What a configuration says of whose KV it is: the names that every key begins with."""

import os

from blockyard._core import Misuse
from blockyard.shared.validate import shown
from blockyard.shared.weights import stated

__all__ = ["namespace_of"]


def namespace_of(given: object) -> tuple[tuple[str, str], ...]:
    """Returns sorted pairs, which hash alike in whatever order they were given.

    Weights that are named by their path are named by their content instead.

    Raises:
        Misuse: It is no mapping of names to text or to paths of weights.
    """
    try:
        pairs = sorted(dict(given).items())  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise Misuse(f"namespace = {shown(given)}: give a mapping of names to text") from None
    for name, part in pairs:
        if not isinstance(name, str) or not isinstance(part, str | os.PathLike):
            raise Misuse(
                f"namespace has {shown((name, part))}: give text, or the path of weights, for a "
                "name that is text"
            )
    return tuple((name, str(stated(name, part))) for name, part in pairs)
