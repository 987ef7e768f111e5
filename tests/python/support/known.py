"""What the machine knows of what it does: enough to say what must hold after every step."""

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from numpy.typing import NDArray
from typing_extensions import override

import blockyard as by
from blockyard.shared.layout import TIERS
from blockyard.yard.config import Eviction
from yard import at_rest

if TYPE_CHECKING:
    from blockyard._core import HeldBlocks

WIDTH = 64
Salt = str | None

ANY = st.integers(0, 255)
FEW = st.integers(0, 6)
BOOL = st.booleans()
SALT = st.sampled_from([None, None, None, "a"])
RETENTION: st.SearchStrategy[Literal["ordinary", "session-ended", "retain"]] = st.sampled_from(
    ["ordinary", "session-ended", "retain"]
)
# One run of equal tokens per block, 0 or 1 by the bits of a path; most paths are the same.
PATH = st.one_of(st.just(0), st.just(0b100), st.integers(0, 63))


class NothingToDoError(Exception):
    """A rule found nothing that it could act on."""


def need(something: object) -> None:
    if not something:
        raise NothingToDoError


def step(**strategies: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Any]:
    """A rule; one that finds nothing to act on is no reason to give the example up."""

    def wrap(act: Callable[..., None]) -> Any:
        @functools.wraps(act)
        def quietly(self: "Known", **drawn: Any) -> None:
            with contextlib.suppress(NothingToDoError):
                act(self, **drawn)

        made: Any = rule(**strategies)  # type: ignore[call-overload]
        return made(quietly)

    return wrap


@dataclass
class Sequence:
    tokens: list[int]
    salt: Salt


@dataclass
class Running(Sequence):
    lease: by.Lease
    table: list[int] = field(default_factory=list)
    row: NDArray[np.int32] = field(default_factory=lambda: np.zeros((1, WIDTH), np.int32))
    shrinks: bool = False


@dataclass
class Resting(Sequence):
    handle: by.Parked


SIZES = st.one_of(st.just(0), st.integers(1, 24), st.integers(12, 24))
"""Blocks of a tier below the device."""


class Known(RuleBasedStateMachine):
    """A cache, what was made of it, and what must hold of both."""

    def __init__(self) -> None:
        super().__init__()
        self.running: list[Running] = []
        self.parked: list[Resting] = []
        self.holds: list[HeldBlocks] = []
        self.over: dict[int, int] = {}
        """The last generation under which each slot was held."""
        self.in_flight: list[by.Plan] = []
        self.overdue: list[by.Plan] = []
        self.ended: list[by.Plan] = []
        self.sealed: set[tuple[Salt, tuple[int, ...]]] = set()
        self.step = 0

    @initialize(
        block_size=st.integers(2, 4),
        device=st.integers(6, 24),
        below=st.tuples(SIZES, SIZES, st.booleans()),
        null=st.integers(0, 2),
        eviction=st.sampled_from(get_args(Eviction)),
        recompute=st.sampled_from([True, True, True, False]),
        retries=st.integers(0, 2),
        spare=st.sampled_from([0, 1, 8]),
    )
    def make(
        self,
        block_size: int,
        device: int,
        below: tuple[int, int, bool],
        null: int,
        eviction: Eviction,
        recompute: bool,
        retries: int,
        spare: int,
    ) -> None:
        host, disk, through = below
        self.size, self.null, self.recompute = block_size, null, recompute
        self.tiers = TIERS[:3] if disk else TIERS[:2]
        self.cache = by.KVCache(
            block_size=block_size,
            device=device + null,
            host=host,
            disk=disk,
            write={"host": "through"} if through else "on-evict",
            null_slots=null,
            eviction=eviction,
            recompute=recompute,
            copy_retries=retries,
            spare=spare,
        )

    # What the tests know of prompts and of what was sealed.

    def prompt(self, path: int, blocks: int, tail: int) -> list[int]:
        tokens = [path >> at & 1 for at in range(blocks) for _ in range(self.size)]
        return tokens + [path >> blocks & 1] * (tail % self.size)

    def known(self, salt: Salt, tokens: list[int]) -> int:
        """Tokens of the longest prefix of which every block was sealed with this salt."""
        ends = range(self.size, len(tokens) + 1, self.size)
        full = 0
        for end in ends:
            if (salt, tuple(tokens[:end])) not in self.sealed:
                break
            full = end
        return full

    def seals(self, row: Running, computed: int) -> None:
        if row.lease.state not in {"detached", "spent"}:
            for end in range(self.size, computed + 1, self.size):
                self.sealed.add((row.salt, tuple(row.tokens[:end])))

    def enter(self, lease: by.Lease, sequence: Sequence, known: int | None) -> None:
        if known is not None:
            assert lease.cached <= known
        self.in_flight += lease.plans
        self.running.append(Running(list(sequence.tokens), sequence.salt, lease))

    def undone(self) -> None:
        """Where nothing can be recomputed, a fork whose copy failed is undone."""
        left = [row for row in self.running if row.lease.state != "spent"]
        assert len(left) == len(self.running) or not self.recompute
        self.running = left

    def pick(self, which: int, *states: str) -> Running:
        rows = [row for row in self.running if row.lease.state in states]
        need(rows)
        return rows[which % len(rows)]

    def range_of(self, row: Running, which: int) -> int:
        """Some count of computed tokens that this lease may have."""
        lease = row.lease
        most = min(lease.appended, lease.tokens, lease.blocks * self.size)
        least = min(max(lease.cached, lease.sealed * self.size), lease.tokens)
        need(least <= most)
        return most if which > 127 else least + which % (most - least + 1)

    # What is always true.

    @invariant()
    def the_audit_is_silent(self) -> None:
        if hasattr(self, "cache"):
            assert self.cache.audit() is None

    @invariant()
    def tables_only_grow_or_are_cut(self) -> None:
        holders: dict[int, tuple[int, Salt, tuple[int, ...]]] = {}
        for row in self.running:
            if row.lease.state == "incomplete" and not self.recompute:
                row.table = []  # what its lost load was to fill is gone, and it will not go on
                continue
            if row.lease.state == "loading":
                with pytest.raises(by.Misuse, match=f"lease {row.lease.id}, which is loading"):
                    self.cache.block_tables(row.lease, row.row, cells="changed")
            self.cache.block_tables(row.lease, row.row, cells="changed", loading="joined")
            table = [int(slot) for slot in self.cache.block_tables(row.lease, loading="joined")[0]]
            assert row.row[0, : len(table)].tolist() == table
            common = min(len(table), len(row.table))
            assert table[:common] == row.table[:common]
            assert len(table) >= len(row.table) or row.shrinks
            row.table, row.shrinks = table, False
            assert all(slot >= self.null for slot in table)
            for at, slot in enumerate(table):
                block = (at, row.salt, tuple(row.tokens[: (at + 1) * self.size]))
                assert holders.setdefault(slot, block) == block, "a slot of two blocks"

        self.a_destination_belongs_to_one_flight_until_its_fence()

    def a_destination_belongs_to_one_flight_until_its_fence(self) -> None:
        plans = self.in_flight + self.overdue
        places = [(plan.destination_tier, int(to)) for plan in plans for to in plan.destinations]
        assert len(places) == len(set(places))
        tables = {slot for row in self.running for slot in row.table}
        for plan in self.overdue:
            if plan.destination_tier == "device":
                assert not tables & set(plan.destinations.tolist())

    @override
    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.abort(self.overdue)
        self.cache.commit(self.in_flight)
        self.cache.finish([row.lease for row in self.running])
        for row in self.parked:
            self.cache.abandon(row.handle)
        for held in self.holds:
            held.release()
        self.cache.commit([], done=self.step)
        at_rest(self.cache)
