"""Mistakes in what a publisher says, each of which Dynamo's indexer must be seen to suffer from.

They are made between a cache and its publisher; `tests/mutants.toml` has those of the core.
"""

from collections.abc import Callable
from typing import Any

import msgspec

import blockyard as by

Event = dict[str, Any]
Change = Callable[[list[Event]], list[Event]]


class Altered:
    """A cache whose events are told wrong; all else it does as always."""

    def __init__(self, cache: by.KVCache, change: Change) -> None:
        self._cache, self._change = cache, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def take_events(self, **named: Any) -> tuple[bytes | None, bool]:
        """The next batch, changed."""
        payload, more = self._cache.take_events(**named)
        if payload is None:
            return None, more
        at, events, *rest = msgspec.msgpack.decode(payload)
        return msgspec.msgpack.encode([at, self._change(events), *rest]), more


def one_by_one(event: Event) -> list[Event]:
    """A stored event as one for each of its blocks."""
    names, size = event["block_hashes"], event["block_size"]
    parents = [event["parent_block_hash"], *names]
    tokens = [event["token_ids"][at : at + size] for at in range(0, len(names) * size, size)]
    return [
        event | {"block_hashes": [name], "parent_block_hash": parent, "token_ids": own}
        for name, parent, own in zip(names, parents[:-1], tokens, strict=True)
    ]


def deepest_first(events: list[Event]) -> list[Event]:
    """A child is told before its parent."""
    told: list[Event] = []
    run: list[Event] = []
    for event in [*events, None]:
        if event is not None and event["type"] == "BlockStored":
            run += one_by_one(event)
            continue
        told += run[::-1] + ([] if event is None else [event])
        run = []
    return told


def every_seventh(kind: str) -> Change:
    """Of one kind of event every seventh is not told, as where a verb does not tell."""
    seen = 0

    def change(events: list[Event]) -> list[Event]:
        nonlocal seen
        told = []
        for event in events:
            seen += event["type"] == kind
            if event["type"] != kind or seen % 7:
                told.append(event)
        return told

    return change


def epoch_forgotten() -> Change:
    """What was published before a clear is told after it, as of copies that land later."""
    before: list[Event] = []

    def change(events: list[Event]) -> list[Event]:
        nonlocal before
        stored = [event for event in events if event["type"] == "BlockStored"]
        cleared = any(event["type"] == "AllBlocksCleared" for event in events)
        told, before = events + before if cleared else events, stored
        return told

    return change


def clear_not_told() -> Change:
    """Only the clear of the start is told."""
    started = False

    def change(events: list[Event]) -> list[Event]:
        nonlocal started
        told = [one for one in events if not started or one["type"] != "AllBlocksCleared"]
        started = True
        return told

    return change


CHANGES: dict[str, Callable[[], Change]] = {
    "deepest-first": lambda: deepest_first,
    "stored-skipped": lambda: every_seventh("BlockStored"),
    "removed-skipped": lambda: every_seventh("BlockRemoved"),
    "epoch-forgotten": epoch_forgotten,
    "clear-not-told": clear_not_told,
}
"""What is done to batches."""
FROM_0 = "numbers-from-0"
"""The mistake of a publisher that begins at 0 after a restart."""
MISTAKES = (*CHANGES, FROM_0)


def told(cache: by.KVCache, mistake: str | None) -> by.KVCache:
    """What a publisher is given."""
    change = CHANGES.get(mistake or "")
    return cache if change is None else Altered(cache, change())  # type: ignore[return-value]
