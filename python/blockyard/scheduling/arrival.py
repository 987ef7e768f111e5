"""What a caller gives of a request, checked, as a `Request`; n samples are n requests."""

from collections.abc import Hashable, Iterable
from typing import Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Keys, Misuse, Ticket, TooLarge
from blockyard.scheduling.request import Media, Request
from blockyard.scheduling.validate import prompt_of, ticket_of, whole
from blockyard.shared.hints import Hints, Retention
from blockyard.shared.validate import integer, one_of
from blockyard.yard.cache import KVCache

__all__ = ["RequestKeywords", "arrived", "check_id", "hints_of", "sample_ids"]


class RequestKeywords(TypedDict, total=False):
    """What `Scheduler.add` may be told of a request, and an `AsyncEngine` passes on."""

    priority: int
    salt: str | bytes | None
    lora: str | bytes | None
    media: Iterable[Media] | None
    keys: Keys | None
    read_prefix: bool
    retention: Retention
    next_use: float | None
    retention_priority: int | None
    retention_ttl: int | None
    ticket: Ticket | None


_MOST: Final = 16_384
"""Samples of one prompt: as many as vLLM takes."""


def check_id(request: object) -> None:
    """Refuses what is no id.

    Raises:
        Misuse: It cannot be hashed.
    """
    try:
        hash(request)
    except TypeError as error:
        raise Misuse(f"request {request!r:.60}: must be an id that can be hashed") from error


def sample_ids(request: Hashable, n: object) -> tuple[Hashable, ...]:
    """The ids of a request's samples: its own where there is one, else (id, 0), (id, 1), ...

    Raises:
        Misuse: The id cannot be hashed, or it is no number of samples.
    """
    check_id(request)
    n = integer("n", n, most=_MOST)
    return (request,) if n == 1 else tuple((request, at) for at in range(n))


def hints_of(
    retention: object, next_use: object, retention_priority: object, retention_ttl: object
) -> Hints:
    """Hints by the names that they have here, where a priority is the queue's.

    Raises:
        Misuse: A value is none of those that are allowed.
    """
    return Hints.checked(
        retention, next_use, retention_priority, retention_ttl, prefix="retention_"
    )


def arrived(  # noqa: PLR0913 - keywords
    cache: KVCache,
    request: Hashable,
    samples: tuple[Hashable, ...],
    prompt: object,
    *,
    max_tokens: int,
    priority: int,
    order: int,
    arrival_step: int,
    salt: str | bytes | None,
    lora: str | bytes | None,
    media: Iterable[Media] | None,
    keys: Keys | None,
    read_prefix: bool,
    hints: Hints,
    ticket: Ticket | None,
) -> list[Request]:
    """The samples of a request; the first computes the prompt, and leads the others.

    Raises:
        Misuse: A value is out of range, or does not fit the others.
        TooLarge: The device can never hold one.
    """
    max_tokens, priority = whole("max_tokens", max_tokens), whole("priority", priority, None)
    one_of("read_prefix", read_prefix, (True, False))
    if ticket is not None:
        ticket = ticket_of(request, ticket, cache)
    tokens = prompt_of(prompt)
    prompt_keys = _prompt_keys(cache, tokens, salt, lora, media, keys)
    entries = [
        Request(
            sample,
            tokens,
            max_tokens,
            priority,
            order + at,
            arrival_step,
            salt,
            lora,
            prompt_keys,
            read_prefix=read_prefix,
            hints=hints,
        )
        for at, sample in enumerate(samples)
    ]
    leader = entries[0]
    leader.ticket = ticket
    leader.lead(entries[1:])
    blocks, capacity = leader.max_blocks(cache.block_size), cache.limit()
    if blocks > capacity:
        raise TooLarge(
            f"request {request!r} may need {blocks} blocks and the device has {capacity}: "
            "shorten it, or sample fewer tokens"
        )
    if cache.recorder is not None:
        # Samples of one prompt are one request, and a trace has one answer for each.
        leader.arrived = cache.recorder.arrived()
    return entries


def _prompt_keys(
    cache: KVCache,
    tokens: NDArray[np.uint32],
    salt: str | bytes | None,
    lora: str | bytes | None,
    media: Iterable[Media] | None,
    keys: Keys | None,
) -> Keys | None:
    """The keys of a prompt; None where they are made later, in a step that can afford it."""
    if keys is not None:
        if not isinstance(keys, Keys):
            raise Misuse(f"keys = {keys!r:.60}: must be what `KVCache.keys` or `ready_keys` made")
        if salt is not None or lora is not None or media is not None:
            raise Misuse("salt, lora and media are in the keys already: pass them to `keys`")
        if keys.tokens != len(tokens):
            raise Misuse(
                f"keys of {keys.tokens} tokens, and the prompt has {len(tokens)}: pass those of "
                "this prompt"
            )
        # Keys that the engine has made go on with the tokens that are sampled, too.
        return cache.keys(tokens[len(keys) * cache.block_size :], after=keys)
    # What cannot be encoded is refused here, and not in a step.
    try:
        if media is not None:
            return cache.keys(tokens, salt=salt, lora=lora, media=media)
        cache.keys(tokens[:1], salt=salt, lora=lora)
    except UnicodeError as error:
        raise Misuse(f"salt = {salt!r:.60}, lora = {lora!r:.60}: {error}") from error
    return None
