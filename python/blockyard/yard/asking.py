"""Which blocks shared stores have of a request: asked once, and never waited for."""

from collections.abc import Hashable, Sequence
from itertools import compress
from typing import Final, Protocol, runtime_checkable

from blockyard._core import Keys
from blockyard.yard.cache import KVCache

__all__ = ["Answer", "Asking", "Lookup", "Taking"]

_KEY: Final = 32
"""Bytes of a key."""


class Answer(Protocol):
    """What stores say that they have of a request."""

    @property
    def blocks(self) -> int:
        """Leading blocks of the first group of layers."""

    @property
    def others(self) -> Sequence[Sequence[bool]]:
        """For each further group which of these blocks."""


class Lookup(Protocol):
    """Asks shared stores, as `StoreLookup`."""

    def ask(self, request: Hashable, keys: Keys, patience: float | None = None) -> Answer | None:
        """Returns what the stores have. It never waits.

        Args:
            request: Who asks. Asked again, it is the same question.
            keys: The keys of its full blocks.
            patience: Seconds that the question may take; None for the lookup's own.

        Returns:
            None while the answer may still come, and for as long as the patience lasts.
        """

    def drop(self, request: Hashable) -> None:
        """Forgets a question: nobody waits for its answer."""


@runtime_checkable
class Taking(Lookup, Protocol):
    """A lookup that takes blocks over, as `DecodeSide`. It ends its questions by itself."""

    def over(self, request: Hashable) -> None:
        """Ends what it holds for a request whose loads have ended, or that has ended."""

    def explain(self, request: Hashable) -> str | None:
        """Says what a request waits for."""

    def changes(self) -> int:
        """Returns another number than before where a question may have another answer than then."""


class Asking:
    """Asks for requests, each once, and has what the stores say adopted.

    Args:
        caches: The bookkeeping of each group of layers, the first one's first.
        lookup: What asks; None where there is nobody to be asked.
        patience: Seconds that a question may take; None for the lookup's own.
    """

    def __init__(
        self,
        caches: Sequence[KVCache],
        lookup: Lookup | None = None,
        *,
        patience: float | None = None,
    ) -> None:
        self._caches = tuple(caches)
        self._patience = patience
        self._lookup: Lookup | None = None
        self._taking: Taking | None = None
        self._asked: dict[Hashable, bool] = {}
        """Requests that have asked, and whether their answer has come."""
        if lookup is not None:
            self.start(lookup)

    @property
    def is_on(self) -> bool:
        """Whether there is anybody to be asked."""
        return self._lookup is not None

    @property
    def takes(self) -> bool:
        """Whether it is a lookup that takes blocks over: it is told when it has ended."""
        return self._taking is not None

    def changes(self) -> int | None:
        """Returns another number where an answer may have come; None where nobody knows."""
        return None if self._lookup is None or self._taking is None else self._taking.changes()

    def start(self, lookup: Lookup) -> None:
        """Asks this from now on, where there are names of what it finds."""
        if all(cache.config.remote_blocks for cache in self._caches):
            self._lookup = lookup
            self._taking = lookup if isinstance(lookup, Taking) else None

    def stop(self) -> None:
        """Asks nobody any more."""
        self.reset()
        # What takes blocks over still hears of each request that needs none of them.
        self._lookup = None

    def take(self, request: Hashable, keys: Keys) -> bool | None:
        """Asks, or takes the answer.

        Args:
            request: Who asks.
            keys: The keys of its full blocks.

        Returns:
            None while the answer may still come; then once whether it has adopted blocks, and
            False from then on.
        """
        if self._lookup is None or self._asked.get(request) or not len(keys):
            return False
        answer = self._lookup.ask(request, keys, self._patience)
        self._asked[request] = answer is not None
        return None if answer is None else self._adopt(keys, answer)

    def _adopt(self, keys: Keys, answer: Answer) -> bool:
        blocks = min(answer.blocks, len(keys))
        if blocks < 1:
            return False
        own = bytes(keys)
        every = [own[at : at + _KEY] for at in range(0, blocks * _KEY, _KEY)]
        for cache, there in zip(self._caches[1:], answer.others, strict=True):
            found = list(compress(every, there))
            if found:
                cache.adopt(cache.ready_keys(b"".join(found), len(found) * cache.block_size))
        return self._caches[0].adopt(keys, blocks) > 0

    def explain(self, request: Hashable) -> str:
        """Says what a request waits for whose answer may still come."""
        said = None if self._taking is None else self._taking.explain(request)
        return said or "It waits for a store's answer, but not for long."

    def is_out(self, request: Hashable) -> bool:
        """Returns whether a request has asked, and its answer may still come."""
        return self._asked.get(request) is False

    def expects(self, request: Hashable) -> bool:
        """Returns whether a request has an offer of its own: names are another's, or left over."""
        return self._taking is not None and self._taking.explain(request) is not None

    def end(self, request: Hashable) -> None:
        """Forgets a request that has ended."""
        has_answer = self._asked.pop(request, True)
        if self._lookup is not None and not has_answer:
            self._lookup.drop(request)

    def over(self, request: Hashable) -> None:
        """Says that a request's loads have ended, or that there are none."""
        if self._taking is not None:
            self._taking.over(request)

    def reset(self) -> None:
        """Forgets all requests."""
        for request in list(self._asked):
            self.end(request)
