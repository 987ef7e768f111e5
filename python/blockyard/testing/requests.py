"""The requests of a simulation: what each asked for, and how each must end."""

import zlib
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from blockyard._core import Keys
from blockyard.scheduling.new_request import max_blocks, sample_ids
from blockyard.scheduling.request import RequestState, Result
from blockyard.testing.setup import Setup
from blockyard.testing.simulated_engine import check, continuation
from blockyard.yard.cache import KVCache

__all__ = ["Ask", "Death", "Request", "Requests"]


class Ask(NamedTuple):
    """The fields of an `add` event."""

    name: str
    family: int
    shared: int
    own: int
    most: int
    priority: int
    salt: str = ""
    lora: str = ""
    n: int = 1
    sampled: tuple[int, ...] = ()
    """What another engine had sampled when it moved here."""

    @property
    def prompt(self) -> list[int]:
        """What the family shares, and tokens that no other request has.

        What a prefill engine has behind the name and a "#" is the number of its try; what an
        engine has to which it has moved is the name of the sample.
        """
        own = sum(map(ord, self.name.partition("#")[0])) * 7919
        shared = range(1000 + 100 * self.family, 1000 + 100 * self.family + self.shared)
        return [*shared, *range(own, own + self.own), *self.sampled]

    def moved(self, name: str, tokens: list[int]) -> Self:
        """What is asked of another engine when a sample of it has moved with these tokens."""
        again = f"{name}+" if "#" in name else f"{self.name}#{name}+"
        left, sampled = self.most - len(tokens), (*self.sampled, *tokens)
        return self._replace(name=again, most=left, n=1, sampled=sampled)

    @property
    def samples(self) -> tuple[Hashable, ...]:
        """The ids of its samples."""
        return sample_ids(self.name, self.n)

    @property
    def tag(self) -> int:
        """What its KV depends on beside its tokens."""
        said = f"{self.salt} {self.lora}".encode()
        return zlib.crc32(said) if self.salt or self.lora else 0

    def keys(self, cache: KVCache) -> Keys:
        """The keys of its prompt."""
        return cache.keys(self.prompt, salt=self.salt or None, lora=self.lora or None)

    def forget(self, cache: KVCache, what: str) -> None:
        """Forgets the blocks of its prompt; or with "names" only that stores have them."""
        keys = self.keys(cache)
        if what == "names":
            cache.forget(keys, tier="remote")
        else:
            cache.forget(keys)


class Death(NamedTuple):
    """What is known of an engine that has died."""

    until: int
    """The tick at which it is reset."""
    requests: Any
    """What `Scheduler.reset` is given then."""
    slots: set[int]
    """The slots that it may still write."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request that was added."""

    ask: Ask
    prompt: list[int]
    max_tokens: int
    blocks: int
    """The most that it may need."""


class Requests:
    """All requests by name, and the result of each.

    Args:
        setup: The simulation's.
        faulty: Whether the scenario has a fault that may cost a sequence its KV.
        seen: Where ends are counted.
    """

    def __init__(self, setup: Setup, seen: Counter[str], *, faulty: bool) -> None:
        self._setup = setup
        self._seen = seen
        self._faulty = faulty
        self._asked: dict[str, Request] = {}
        self.ids: dict[str, Hashable] = {}
        """The scheduler's id of each: that of a sample is no name."""
        self.results: dict[str, Result] = {}
        self.aborted: set[str] = set()
        """Requests that an event has aborted."""
        self.held: set[str] = set()
        """Requests that an event has held at any time."""
        self.evacuated: dict[str, int] = {}
        """Requests that an event has moved, and how many of their tokens were heard of."""
        self.died: set[str] = set()
        """Requests that ran in an engine when it died."""
        self.work = 0
        """Tokens of all prompts and answers."""

    def __getitem__(self, name: str) -> Request:
        """Returns what a request asked for."""
        return self._asked[name]

    def __contains__(self, name: str) -> bool:
        """Returns whether there was such a request."""
        return name in self._asked

    @property
    def unfinished(self) -> list[str]:
        """The names of those that have no result."""
        return [name for name in self._asked if name not in self.results]

    def add(self, ask: Ask) -> None:
        """Notes requests that are about to be added to the scheduler: the samples of a prompt."""
        prompt = ask.prompt
        blocks = max_blocks(len(prompt), ask.most, self._setup.block_size)
        for sample in ask.samples:
            self.ids[str(sample)] = sample
            self._asked[str(sample)] = Request(ask, prompt, ask.most, blocks)
            self.work += len(prompt) + ask.most

    def left(self) -> None:
        """Ends those that were aborted, and whose process has ended before it said so."""
        for name in self.unfinished:
            if name in self.aborted:
                none = np.zeros(0, np.uint32)
                state, reason = RequestState.ABORTED, "the process has ended"
                self.results[name] = Result(self.ids[name], state, none, reason)

    def end(self, result: Result, state: RequestState | None, *, stopping: bool) -> None:
        """Checks that a request ends once, whole, and with the right tokens (INV-11, INV-12).

        Args:
            result: What the scheduler says.
            state: The state that the scheduler still has for it; it must be None.
            stopping: Whether the request was being stopped when the engine was last polled.
        """
        name = str(result.request)
        check(name in self._asked, f"{name} ended, and was never added")
        check(name not in self.results, f"{name} ended twice")
        check(state is None, f"{name} ended and is {state}")
        self.results[name] = result
        self._seen[f"{result.state}"] += 1
        asked = self._asked[name]
        whole = continuation(asked.prompt, asked.max_tokens, ending=self._setup.ends)
        tokens = result.tokens.tolist()
        found = result.cached_tokens.total
        check(
            found < len(asked.prompt), f"O6: {name} has found {result.cached_tokens} of its prompt"
        )
        if result.state is RequestState.FINISHED:
            check(tokens == whole, f"{name} sampled {tokens}, undisturbed it is {whole}")
            self._seen["T28"] += stopping
            return
        check(tokens == whole[: len(tokens)], f"{name} sampled {tokens}, not {whole}")
        if result.state is RequestState.MOVED:
            check(name in self.evacuated, f"{name} has moved, and nothing has moved it")
            heard = self.evacuated[name]
            check(len(tokens) >= heard, f"INV-36h: {name} has {len(tokens)} tokens of {heard}")
            return
        if result.state is RequestState.ABORTED:
            check(name in self.aborted, f"{name} ended as aborted, and nothing aborted it")
            return
        if not self._setup.recompute and result.reason.startswith("kv_lost"):
            check(self._faulty, f"INV-11: {name} is lost, and nothing has failed: {result.reason}")
            self._seen["kv lost"] += 1
            return
        if not self._setup.recompute and result.reason.startswith("unread"):
            check(name in self.held, f"INV-25: {name} is {result.reason}, and was never held")
            self._seen["unread"] += 1
            return
        check(name in self.died, f"{name} is {result.state}: {result.reason}")
