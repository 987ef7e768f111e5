"""Schedulers that a test drives, over one store: what one evacuates goes on at another."""

from collections.abc import Hashable
from typing import Any, NamedTuple

import blockyard as by
from blockyard._typing import override
from blockyard.scheduling.engine import Step
from blockyard.scheduling.request import RequestState, Result
from loop import Loop, continuation

SIZE = 4
_KEY = 32


class Found(NamedTuple):
    blocks: int
    others: tuple[()] = ()


class Store:
    """The keys that it has acknowledged. It is a lookup, too."""

    def __init__(self) -> None:
        self.keys: set[bytes] = set()

    def ask(self, _request: Hashable, keys: by.Keys, _patience: float | None = None) -> Found:
        names = [one in self.keys for one in split(bytes(keys))]
        return Found([*names, False].index(False))

    def drop(self, request: Hashable) -> None:
        """Has nothing to forget."""


def split(keys: bytes) -> list[bytes]:
    return [keys[at : at + _KEY] for at in range(0, len(keys), _KEY)]


class Mover(Loop):
    """A scheduler whose cache has names of a store."""

    def __init__(
        self,
        store: Store,
        *,
        device: int = 33,
        host: int = 0,
        remote: int = 64,
        recompute: bool = True,
        **keywords: Any,
    ) -> None:
        cache = by.KVCache(
            block_size=SIZE, device=device, host=host, remote=remote, recompute=recompute, ahead=0
        )
        super().__init__(cache=cache, recompute=recompute, lookup=store, **keywords)
        self.store = store
        self.computed: dict[Hashable, int] = {}
        """Tokens that steps have computed, by request."""
        self.written: list[tuple[str, int]] = []
        """From where blocks went to the store, and how many."""

    @override
    def schedule(self) -> Step:
        step = super().schedule()
        seats = self.scheduler._shared.seats
        for number, count in zip(self.rows(step), step.counts.tolist(), strict=True):
            seat = seats.at(number)
            assert seat is not None
            name = seat.request.id
            self.computed[name] = self.computed.get(name, 0) + count
        return step

    @override
    def land(self) -> None:
        """Ends all copies, those that `results` has planned, too."""
        self.plans += self.cache.dispatch()
        for plan in self.plans:
            keys = plan.keys
            if plan.destination_tier == "remote":
                assert keys is not None
                self.written.append((plan.source_tier, len(plan)))
                self.store.keys.update(split(keys.tobytes()))
            elif plan.source_tier == "remote":
                assert keys is not None
                assert self.store.keys.issuperset(split(keys.tobytes()))
        super().land()

    def fail(self) -> int:
        """Has all copies fail; returns how many blocks that were."""
        self.plans += self.cache.dispatch()
        blocks = sum(map(len, self.plans))
        for plan in self.plans:
            self.cache.commit(plan, 0)
        self.plans.clear()
        return blocks

    def moved(self, request: Hashable, turns: int = 50) -> Result:
        """Runs on until a request has moved."""
        for _ in range(turns):
            if request in self.results:
                break
            self.turn()
        result = self.results[request]
        assert result.state is RequestState.MOVED, result
        assert self.scheduler.state(request) is None
        return result

    def taken(self, result: Result, prompt: list[int], most: int) -> int:
        """Goes on with a request that another one has moved; returns the tokens that it found.

        All tokens of its answer are compared.
        """
        name, had = result.request, result.tokens.tolist()
        assert had == continuation(name, len(prompt), len(had))
        self.add(name, prompt + had, most - len(had))
        self.finish()
        whole = self.results.pop(name)
        assert whole.state is RequestState.FINISHED
        assert had + whole.tokens.tolist() == continuation(name, len(prompt), most)
        return whole.cached_tokens.total


def again(left: Mover, result: Result, prompt: list[int], most: int) -> int:
    """Tokens that another engine computes again of a request that moves to it.

    Its own engine had computed all but the newest token at most.
    """
    computed = min(left.computed.get(result.request, 0), len(prompt) + len(result.tokens) - 1)
    return computed - Mover(left.store).taken(result, prompt, most)
