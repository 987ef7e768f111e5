"""The arguments of a request, checked and frozen."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from blockyard._core import Keys, Misuse, Ticket
from blockyard.scheduling.request_checks import prompt_of, whole
from blockyard.shared.hints import NO_HINTS, Hints
from blockyard.shared.validate import bounded, integer, one_of
from blockyard.yard.cache import KVCache

__all__ = ["Media", "NewRequest", "check_id", "checked", "max_blocks", "sample_ids"]

Media: TypeAlias = tuple[int, int, str | bytes]
"""An item at token positions [start, end) of a prompt, and its id."""
_MOST_SAMPLES: Final = 16_384
"""Samples of one prompt: as many as vLLM takes."""


@dataclass(frozen=True, slots=True, eq=False)
class NewRequest:
    """A new request, for `Scheduler.add` and `AsyncEngine.add`.

    Its arguments are checked and copied when it is made, so later changes to them have no effect.
    It is frozen, and any thread may make it and read it.

    Args:
        id: Its id. No other request that has not ended may have it.
        prompt: Token ids, shape (tokens,); a copy is taken.
        max_tokens: Most tokens to sample, 1 or more.
        priority: The larger comes first, and is the last to be preempted.
        n: Samples of the prompt, each a request with a result of its own. The prompt is computed
            once, and forked.
        salt: As in `KVCache.keys`.
        lora: As in `KVCache.keys`.
        media: As in `KVCache.keys`.
        keys: The prompt's keys, where they are made already: by `KVCache.keys` in another thread,
            or by the engine (`ready_keys`). Salt, lora and media are in them.
        read_prefix: False to find nothing of the prompt in the cache, so that every token of it is
            computed, as log probabilities of a prompt need it.
        hints: Expected reuse after its end, as in `KVCache.finish`; `Scheduler.hint` may replace
            them later.
        ticket: Room promised to it by `KVCache.promise`; it is given back if the request never
            begins.
        hold: True to hold its sealed blocks when it finishes, as `KVCache.hold` does, so that
            another engine can read them: `Result.held` has the hold. It is admitted only where all
            of them leave the running rows' headroom.

    Raises:
        Misuse: The prompt is empty, the id cannot be hashed, or a value is out of range or does not
            fit the others.

    Example:
        >>> new = NewRequest("one", range(40), max_tokens=2, priority=1)
        >>> new.prompt.dtype, new.prompt.shape
        (dtype('uint32'), (40,))
    """

    id: Hashable
    prompt: Any
    max_tokens: int
    priority: int = 0
    n: int = 1
    salt: str | bytes | None = None
    lora: str | bytes | None = None
    media: Iterable[Media] | None = None
    keys: Keys | None = None
    read_prefix: bool = True
    hints: Hints = NO_HINTS
    ticket: Ticket | None = None
    hold: bool = False

    def __post_init__(self) -> None:
        """Checks every value, and copies those that the caller could change."""
        check_id(self.id)
        one_of("read_prefix", self.read_prefix, (True, False))
        one_of("hold", self.hold, (True, False))
        put = object.__setattr__
        put(self, "n", integer("n", self.n, most=_MOST_SAMPLES))
        put(self, "prompt", prompt_of(self.prompt))
        put(self, "max_tokens", whole("max_tokens", self.max_tokens))
        put(self, "priority", whole("priority", self.priority, None))
        if isinstance(self.media, Iterable):
            put(self, "media", bounded("media", self.media))
        if self.hints is not NO_HINTS:
            put(self, "hints", Hints.given(self.hints))
        if self.keys is not None:
            self._check_keys(self.keys)

    def _check_keys(self, keys: object) -> None:
        """Refuses keys of something else.

        Raises:
            Misuse: They are of another prompt, or no keys, or their salt, lora or media is given
                again.
        """
        if not isinstance(keys, Keys):
            raise Misuse(f"keys = {keys!r:.60}: give the result of `KVCache.keys` or `ready_keys`")
        if self.salt is not None or self.lora is not None or self.media is not None:
            raise Misuse("salt, lora and media are in the keys already: pass them to `keys`")
        if keys.tokens != len(self.prompt):
            raise Misuse(
                f"keys of {keys.tokens} tokens, and the prompt has {len(self.prompt)}: pass those "
                "of this prompt"
            )

    @property
    def samples(self) -> tuple[Hashable, ...]:
        """The ids of its samples."""
        return sample_ids(self.id, self.n)

    def max_blocks(self, block_size: int) -> int:
        """Counts the most blocks that each sample may ever need.

        Args:
            block_size: Tokens per block.
        """
        return max_blocks(len(self.prompt), self.max_tokens, block_size)

    def prompt_keys(self, cache: KVCache) -> Keys | None:
        """Makes the keys of its prompt; None where they are made in a step that can afford it.

        Args:
            cache: The cache that hashes them.

        Raises:
            Misuse: Salt, lora or media cannot be encoded, or are none of this prompt.
        """
        if self.keys is not None:
            # Keys that the engine has made go on with the tokens that are sampled, too.
            made = len(self.keys) * cache.block_size
            return cache.keys(self.prompt[made:], after=self.keys)
        # What cannot be encoded is refused here, and not in a step.
        try:
            if self.media is not None:
                return cache.keys(self.prompt, salt=self.salt, lora=self.lora, media=self.media)
            cache.keys(self.prompt[:1], salt=self.salt, lora=self.lora)
        except UnicodeError as error:
            raise Misuse(f"salt = {self.salt!r:.60}, lora = {self.lora!r:.60}: {error}") from error
        return None


def checked(request: object) -> NewRequest:
    """Refuses any object but a `NewRequest`.

    Raises:
        Misuse: It is none.
    """
    if not isinstance(request, NewRequest):
        raise Misuse(f"request = {request!r:.60}: must be NewRequest(id, prompt, max_tokens=...)")
    return request


def max_blocks(prompt: int, max_tokens: int, block_size: int) -> int:
    """Counts the blocks that a request may need; its last token is sampled, never computed.

    Args:
        prompt: Tokens of its prompt.
        max_tokens: Most tokens that it samples.
        block_size: Tokens per block.
    """
    return -(-(prompt + max_tokens - 1) // block_size)


def check_id(request: object) -> None:
    """Refuses an id that cannot be hashed.

    Raises:
        Misuse: It cannot be hashed.
    """
    try:
        hash(request)
    except TypeError as error:
        raise Misuse(f"request {request!r:.60}: must be an id that can be hashed") from error


def sample_ids(request: Hashable, n: int) -> tuple[Hashable, ...]:
    """The ids of a request's samples: its own where there is one, else (id, 0), (id, 1), ..."""
    return (request,) if n == 1 else tuple((request, at) for at in range(n))
