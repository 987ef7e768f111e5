"""An engine with groups of layers that gives out its block ids itself, and what lies below it.

All groups share the blocks. Each has real contents: the epoch of the weights, the group, and all
tokens up to a block's end; and all that a step reads is checked. It is the engine of a naive model
of the laws G1 to G13, with the connector and the bookkeeping of the package below it.
"""

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

import numpy as np

from blockyard._core import Keys
from blockyard.connectors.hybrid_connector import HybridConnector
from blockyard.testing.engine_blocks import EngineBlocks
from blockyard.testing.group_copies import Content, GroupCopies
from blockyard.testing.mixes import MIXES, Mix, reads
from blockyard.testing.simulated_engine import check
from blockyard.yard.cache import KVCache
from blockyard.yard.config import Config
from blockyard.yard.presence import Presence

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MIXES", "Mix", "OwnGroups"]

_NULL: Final = 0
"""The id of the null block."""


@dataclass(slots=True, eq=False)
class _Request:
    """A request, and its table in each group by block."""

    name: int
    tokens: tuple[int, ...]
    state: str = "waiting"
    computed: int = 0
    tables: list[dict[int, int]] = field(default_factory=list)
    current: dict[int, int] = field(default_factory=dict)
    """By group, the block of its state now."""
    frozen: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """By group, the blocks of states of before, with their lengths."""
    end: int = 0
    """How far the step under way computes."""
    replaced: dict[int, int] = field(default_factory=dict)
    """By group, the block of a state that the step under way reads and gives up."""
    is_kept: bool = False
    """Whether something may be kept of it."""
    has_failed: bool = False
    """Whether its last load was of no use, and it has not run since."""
    points: list[int] = field(default_factory=list)
    """Lengths that the connector has named as checkpoints."""


class OwnGroups:
    """The loop of such an engine, in virtual time.

    Args:
        seed: Of all randomness.
        mix: The model.
        faults: Whether copies fail and come late, disks die, and processes begin anew.
    """

    def __init__(self, seed: int, mix: Mix, *, faults: bool = True) -> None:
        self._draw = draw = Random(seed)  # noqa: S311 - a simulation
        self.seen: Counter[str] = Counter()
        self._faults = faults
        self._size, self._groups = mix.size, mix.groups()
        self._words = mix.kinds.split()
        self._states = [group for group, word in enumerate(self._words) if word[0] == "S"]
        self._blocks = EngineBlocks(int(mix.blocks * draw.choice((0.7, 1, 1.4))))
        scale = draw.choice((0.5, 1, 1.6))
        slots = [max(3, int(mix.host[n] * scale)) for n in self._groups.numbers]
        below = [{"host": n, "disk": max(3, int(n * draw.choice((1, 1.7))))} for n in slots]
        if draw.random() < 0.3:  # noqa: PLR2004
            below = [{"host": tiers["host"]} for tiers in below]
        self._deadline = draw.choice((None, 12, 25)) if faults else None
        self._retries = draw.randint(0, 2)
        self._copies = GroupCopies(self._blocks.count, below, draw, self.seen)
        self._epoch = 1
        self._names = 0
        self._copies.can_fail = faults
        self._rot = draw.choice((0.0, 0.01, 0.04)) if faults else 0.0
        prompt = 7 * mix.size
        self._prompts = [[draw.choice((0, 0, 0, 1)) for _ in range(prompt)] for _ in range(3)]
        self._start()

    def _start(self) -> None:
        """Starts the engine and the yards with nothing but what the disks have."""
        self._blocks.lose()
        self._requests: list[_Request] = []
        self._leaving: dict[int, _Request] = {}
        """Requests that have ended while copies wrote to their ids."""
        self._caches = [
            KVCache(
                Config(
                    layout=group.layout,
                    engine=self._blocks.count + 1,
                    linked=not number,
                    group=number,
                    deadline=self._deadline,
                    keyed=("disk",) if "disk" in tiers else (),
                    **tiers,  # type: ignore[arg-type]
                )
            )
            for number, (group, tiers) in enumerate(
                zip(self._groups, self._copies.slots, strict=True)
            )
        ]
        self._connector = HybridConnector(self._caches, self._groups, retries=self._retries)

    def _release(self, row: _Request) -> None:
        for group in range(len(self._words)):
            for one in [*row.tables[group].values()] if row.tables else []:
                self._blocks.put(one)
            for _, one in row.frozen.get(group, []):
                self._blocks.put(one)
            if group in row.current:
                self._blocks.put(row.current[group])
        row.tables = [{} for _ in self._words]
        row.current, row.frozen = {}, {group: [] for group in self._states}
        row.computed = row.end = 0

    # -- a tick ------------------------------------------------------------------------------

    def run(self, ticks: int) -> None:
        """Plays so many ticks, and then on until all requests have ended and all is at rest."""
        for _ in range(ticks):
            self._event()
            self._tick()
        self._copies.can_fail, self._rot = False, 0.0
        self._copies.loads_fail = self._faults and self._draw.random() < 0.4  # noqa: PLR2004
        bound = self._copies.taken + 4000
        for _ in range(700):
            self._tick(calm=True)
            if not self._requests and not self._leaving and not len(self._copies):
                break
        else:
            states = [(row.state, row.computed, len(row.tokens)) for row in self._requests]
            check(False, f"the faults are over, and these requests are stuck: {states}")  # noqa: FBT003
        while self._connector.is_busy or len(self._copies):
            self._tick(calm=True)
            check(self._copies.taken < bound, "copies go on though nothing runs")
        self._check_at_rest()

    def _tick(self, *, calm: bool = False) -> None:
        if calm or self._draw.random() < 0.7:  # noqa: PLR2004
            self._connector.commit(self._copies.outcomes(every=calm))
            for name, tokens in self._connector.arrived().items():
                self._arrive(int(str(name)), tokens)
        waiting = [row for row in self._requests if row.state == "waiting"]
        for row in waiting if calm else waiting[:2]:
            if calm or self._draw.random() < 0.6:  # noqa: PLR2004
                self._admit(row)
        self._step(calm=calm)
        self._copies.go_on()
        for group, cache in enumerate(self._caches):
            violation = cache.audit()
            check(violation is None, f"the audit of group {group}: {violation}")
        self._check_ids()

    def _step(self, *, calm: bool) -> None:
        rows = []
        for row in [row for row in self._requests if row.state == "running"]:
            is_stalled = not calm and self._draw.random() < 0.4  # noqa: PLR2004
            if not is_stalled and row.state == "running" and self._prepare(row, calm=calm):
                rows.append(row)
        rows = [row for row in rows if row.state == "running"]
        orders = self._connector.step([one for row in rows for one in self._written(row)])
        self._copies.submit((*orders.down, *orders.up))
        if orders.fence is not None:
            self._copies.keep_fence(orders.written.tolist())
        for row in rows:
            self._compute(row)

    def _event(self) -> None:
        draw = self._draw
        running = [row for row in self._requests if row.state == "running"]
        events: dict[Callable[[], object], float] = {
            self._add: 0.16 if len(self._requests) < 6 else 0,  # noqa: PLR2004
            lambda: self._preempt(draw.choice(running)): 0.08 if running else 0,
            self._abort: 0.02 if self._requests else 0,
            self._copies.rot: self._rot,
            self._copies.find_lost: 0.05,
            self._blocks.drop_names: 0.01,
        }
        if self._faults:
            events |= dict.fromkeys((self._clear, self._restart, self._reset), 0.006)
            events[self._lose_disk] = 0.006 if "disk" in self._copies.slots[0] else 0
        nothing = 1 - sum(events.values())
        chosen = draw.choices([*events, None], [*events.values(), nothing])[0]
        if chosen is not None:
            chosen()

    def _add(self) -> None:
        draw = self._draw
        prompt = draw.choice(self._prompts)
        tail = [draw.choice((0, 1)) for _ in range(draw.randint(1, 2 * self._size))]
        self._names += 1
        row = _Request(self._names, (*prompt[: draw.randint(2, len(prompt))], *tail))
        self._requests.append(row)
        self._release(row)

    def _abort(self) -> None:
        row = self._draw.choice(self._requests)
        self._end(row, offloads=self._draw.random() < 0.5)  # noqa: PLR2004

    def _lose_disk(self) -> None:
        self._connector.withdraw(self._copies.die())
        self.seen["withdrawn"] += 1

    # -- requests ----------------------------------------------------------------------------

    def _keys(self, row: _Request) -> Keys:
        return self._caches[0].keys(row.tokens)

    def _needs(self, length: int) -> dict[int, range]:
        """Returns by group the blocks that going on at a length reads."""
        return {group: reads(word, length, self._size) for group, word in enumerate(self._words)}

    def _local(self, row: _Request) -> int:
        """Returns the blocks of the longest length that the engine has itself in every group."""
        size = self._size
        for block in range((len(row.tokens) - 1) // size, 0, -1):
            length = block * size
            if length % self._groups.boundary == 0 and all(
                (group, row.tokens[: (one + 1) * size]) in self._blocks.cached
                for group, needs in self._needs(length).items()
                for one in needs
            ):
                return block
        return 0

    def _admit(self, row: _Request) -> None:
        size = self._size
        local = self._local(row) if self._draw.random() < 0.6 else 0  # noqa: PLR2004
        more = self._connector.matched(row.name, self._keys(row), local)
        if not row.is_kept and not row.has_failed:
            best = self._best(row, local)
            check(
                more == best, f"G3: {row.name} is told {more} tokens behind {local} blocks: {best}"
            )
        if more is None:
            self.seen["asked again"] += 1
            return
        length = local * size + more
        loads = [
            (group, one)
            for group, needs in self._needs(length).items()
            for one in needs
            if more and one >= local
        ]
        if not self._hold_local(row, local, len(loads) + 3, {group for group, _ in loads}):
            self.seen["engine is full"] += 1
            return
        row.points = self._connector.checkpoints(row.name)
        self.seen["begun"] += 1
        row.computed = local * size
        if not more:
            self._connector.allocated(row.name)
            self._starts(row)
            return
        tables = [[_NULL] * (-(-length // size) - local) for _ in self._words]
        for group, block in loads:
            (one,) = self._blocks.take(1)
            tables[group][block - local] = one
            if group in self._states:
                row.current[group] = one
            else:
                row.tables[group][block] = one
        row.end, row.state = length, "loading"
        self._connector.allocated(row.name, tables)
        self.seen["loads"] += 1

    def _best(self, row: _Request, local: int) -> int | None:
        """Returns by definition what a request is told: tokens from a block on, or None."""
        size = self._size
        keys = np.frombuffer(bytes(self._keys(row)), np.uint8).reshape(-1, 32)
        there = [cache.which(keys).tolist() for cache in self._caches]
        for block in range((len(row.tokens) - 1) // size, local, -1):
            length = block * size
            if length % self._groups.boundary:
                continue
            needs = self._needs(length)
            asked = {
                there[number][one]
                for number, group in enumerate(self._groups.numbers)
                for one in needs[group]
                if one >= local
            }
            if Presence.MISSING not in asked:
                return None if Presence.FILLING in asked else length - local * size
        return 0

    def _hold_local(self, row: _Request, local: int, more: int, loaded: set[int]) -> bool:
        """Takes what the engine has itself; a state that is loaded too is given back."""
        size = self._size
        held = {
            (group, one): self._blocks.cached[group, row.tokens[: (one + 1) * size]]
            for group, needs in self._needs(local * size).items()
            for one in needs
        }
        for one in held.values():
            self._blocks.hold(one)
        if more > len(self._blocks.free):
            for one in held.values():
                self._blocks.put(one)
            return False
        for (group, block), one in held.items():
            if group not in self._states:
                row.tables[group][block] = one
            elif group in loaded:
                self._blocks.put(one)
            else:
                row.current[group] = one
        return True

    def _arrive(self, name: int, tokens: int) -> None:
        if name in self._leaving:
            self._release(self._leaving.pop(name))
            return
        row = next((row for row in self._requests if row.name == name), None)
        if row is None:
            return
        check(row.state == "loading", f"the load of {name} has ended, which is {row.state}")
        whole = tokens == row.end
        self.seen["loaded" if whole else "undone"] += 1
        self.seen["running state"] += whole and bool(self._states) and tokens % self._size > 0
        if not whole:
            check(tokens == row.computed, f"G10: {name} has {tokens} tokens, of {row.end}")
            self._release(row)
            row.state, row.has_failed = "waiting", True
            again = self._connector.matched(name, self._keys(row), 0)
            check(again == 0, f"G10: {name} is offered {again} tokens before it has run")
            return
        row.computed = tokens
        self._starts(row)

    def _starts(self, row: _Request) -> None:
        row.state, row.is_kept, row.has_failed = "running", False, False
        size = self._size
        for group, needs in self._needs(row.computed).items():
            for block in needs:
                end = (block + 1) * size
                one = row.current[group] if group in self._states else row.tables[group][block]
                if end <= row.computed:
                    self._blocks.name(group, row.tokens[:end], one)
                if group in self._states and row.computed % self._groups.boundary == 0:
                    row.frozen[group].append((row.computed, one))
                    self._blocks.hold(one)

    def _tables(self, row: _Request, blocks: int) -> list[list[int]]:
        return [
            [row.tables[group].get(block, _NULL) for block in range(blocks)]
            for group in range(len(self._words))
        ]

    def _told(self, row: _Request) -> list[tuple[int, int, int]]:
        return [(group, one, at) for group in self._states for at, one in row.frozen[group]]

    def _prepare(self, row: _Request, *, calm: bool) -> bool:
        """Takes blocks for the next tokens of a request; preempts another one for them."""
        size = self._size
        if row.computed >= len(row.tokens):
            self._end(row, offloads=True)
            return False
        first = row.computed
        end = min(first + self._draw.randint(1, 2 * size), len(row.tokens))
        cuts = [one for one in range(first + 1, end) if one % size == 0]
        cuts = [one for one in cuts if one in row.points] or cuts
        if cuts and (cuts[0] in row.points or self._draw.random() < 0.8):  # noqa: PLR2004
            end = cuts[0]
        new = [
            (group, block)
            for group in range(len(self._words))
            if group not in self._states
            for block in range(first // size, -(-end // size))
            if block not in row.tables[group]
        ]
        fresh = [group for group in self._states if not self._is_own(row.current.get(group))]
        if len(new) + len(fresh) > len(self._blocks.free):
            others = [one for one in self._requests if one.state == "running"]
            if len(others) > 1:
                self._preempt(row if calm else self._draw.choice(others))
            elif calm and not any(one.state == "loading" for one in self._requests):
                self._end(row, offloads=False)
                self.seen["too large"] += 1
            return False
        for group, block in new:
            row.tables[group][block] = self._blocks.take(1)[0]
        row.replaced = {group: row.current[group] for group in fresh if group in row.current}
        row.current |= {group: self._blocks.take(1)[0] for group in fresh}
        row.end = end
        self._read(row)
        return True

    def _is_own(self, one: int | None) -> bool:
        """Whether a state's block may be written: nothing else has it, or will find it."""
        return one is not None and self._blocks.is_own(one)

    def _read(self, row: _Request) -> None:
        """Checks all that the next tokens read."""
        size, at = self._size, row.computed
        for group, needs in self._needs(at).items():
            kind = self._words[group]
            for block in needs if group not in self._states else ():
                one = row.tables[group].get(block)
                check(one is not None, f"{kind} lacks block {block} at {at} tokens of {row.name}")
                have = self._copies.device[one or 0]
                tokens = row.tokens[: min(at, (block + 1) * size)]
                same = len(have) == 3 and have[:2] == (self._epoch, group)  # noqa: PLR2004
                same = same and have[2][: len(tokens)] == tokens
                check(same, f"{kind}: {row.name} reads {have} in block {block} for {tokens}")
                self.seen["reads"] += 1
            if group in self._states and at:
                one = row.replaced.get(group, row.current.get(group, 0))
                have = self._copies.device[one]
                wanted: Content = (self._epoch, group, row.tokens[:at])
                check(have == wanted, f"{kind}: {row.name} reads {have} for {wanted}")
                self.seen["reads"] += 1

    def _written(self, row: _Request) -> list[int]:
        size = self._size
        blocks = range(row.computed // size, -(-row.end // size))
        written = [
            row.tables[group][block]
            for group in range(len(self._words))
            if group not in self._states
            for block in blocks
        ]
        return written + [row.current[group] for group in self._states]

    def _compute(self, row: _Request) -> None:
        """Writes the next tokens, and gives up what no later step reads."""
        for one in row.replaced.values():
            self._blocks.put(one)
        row.replaced = {}
        self._write(row)
        row.computed = row.end
        if row.end % self._groups.boundary == 0 and (
            row.end in row.points or self._draw.random() < 0.4  # noqa: PLR2004
        ):
            told = [one for one in self._told(row) if one[2] == row.end]
            tables = self._tables(row, row.end // self._size)
            keys = self._keys(row)
            self._connector.offload(row.name, keys, tables, at=[row.end], states=told)
            self.seen["checkpoint"] += 1
        for group, needs in self._needs(row.end).items():
            least = needs.start if needs else -(-row.end // self._size)
            for block in [block for block in row.tables[group] if block < least]:
                self._blocks.put(row.tables[group].pop(block))
                self.seen["slid"] += 1

    def _write(self, row: _Request) -> None:
        """Writes the next tokens, names full blocks, and freezes states at boundaries."""
        size, end = self._size, row.end
        for group, word in enumerate(self._words):
            if group in self._states:
                one = row.current[group]
                self._copies.device[one] = self._epoch, group, row.tokens[:end]
                if end % size == end % int(word[1:]) == 0:
                    row.frozen[group].append((end, one))
                    self._blocks.hold(one)
                    self._blocks.name(group, row.tokens[:end], one)
                    while len(row.frozen[group]) > 2:  # noqa: PLR2004
                        self._blocks.put(row.frozen[group].pop(0)[1])
                continue
            for block in range(row.computed // size, -(-end // size)):
                tokens = row.tokens[: min(end, (block + 1) * size)]
                self._copies.device[row.tables[group][block]] = self._epoch, group, tokens
                if len(tokens) % size == 0:
                    self._blocks.name(group, tokens, row.tables[group][block])

    def _preempt(self, row: _Request) -> None:
        self._undo(row)
        tokens, blocks = row.computed, -(-row.computed // self._size)
        states = self._told(row)
        if row.name % 2:
            states += [(group, one, tokens) for group, one in row.current.items()]
        tables = self._tables(row, blocks)
        kept = self._connector.preempted(row.name, self._keys(row), tables, tokens, states)
        self.seen["kept" if kept else "not kept"] += 1
        row.is_kept = kept
        self._release(row)
        row.state = "waiting"

    def _undo(self, row: _Request) -> None:
        """Gives up a step that was prepared and is not computed."""
        for group, one in row.replaced.items():
            self._blocks.put(row.current[group])
            row.current[group] = one
        row.replaced = {}

    def _end(self, row: _Request, *, offloads: bool) -> None:
        self._undo(row)
        if offloads and row.state == "running":
            tables = self._tables(row, row.computed // self._size)
            writes = self._connector.finished(
                row.name, self._keys(row), tables, states=self._told(row)
            )
        else:
            writes = self._connector.finished(row.name)
        self._requests.remove(row)
        if writes:
            check(row.state == "loading", f"{row.name} has ended, and is not loading")
            self._leaving[row.name] = row
            self.seen["aborted loading"] += 1
        else:
            self._release(row)
        row.state = "ended"

    # -- what happens to all -----------------------------------------------------------------

    def _clear(self) -> None:
        """New weights: what was computed before is void."""
        self._epoch += 1
        self.seen["clears"] += 1
        for row in list(self._requests):
            if row.state == "running":
                self._undo(row)
                self._connector.preempted(row.name, self._keys(row), (), 0)
                self._release(row)
                row.state = "waiting"
            elif row.state == "loading":
                self._end(row, offloads=False)
        self._blocks.drop_names()
        self._connector.clear()
        self._copies.floors = [self._epoch] * len(self._words)

    def _reset(self) -> None:
        """The engine begins anew; what its hosts and disks have is kept."""
        self.seen["resets"] += 1
        self._copies.reset()
        self._connector.reset(memory="kept")
        self._lose_blocks()

    def _lose_blocks(self) -> None:
        self._blocks.lose()
        self._leaving.clear()
        for row in self._requests:
            row.tables, row.current, row.frozen, row.replaced = [], {}, {}, {}
            self._release(row)
            row.state = "waiting"

    def _restart(self) -> None:
        """Engine, host and bookkeeping are gone; of the disks each record is found, or not."""
        self.seen["restarts"] += 1
        requests = self._requests
        self._start()
        self._copies.restart(self._caches)
        self._requests = requests
        for row in requests:
            row.is_kept = row.has_failed = False
        self._lose_blocks()

    # -- laws --------------------------------------------------------------------------------

    def _check_ids(self) -> None:
        held: Counter[int] = Counter()
        for row in [*self._requests, *self._leaving.values()]:
            for table in row.tables:
                held.update(table.values())
            held.update(one for states in row.frozen.values() for _, one in states)
            held.update(row.current.values())
            held.update(row.replaced.values())
        self._blocks.check(held)

    def _check_at_rest(self) -> None:
        check(
            len(self._blocks.free) == self._blocks.count,
            "the engine's blocks are held, and nothing runs",
        )
        for group, cache in enumerate(self._caches):
            stats = cache.stats()
            names = ["parked", "flights"]
            names += [
                f"{tier}_{kind}"
                for tier in ("host", "disk")
                for kind in ("pinned", "quarantined", "promised")
            ]
            left = {name: stats[name] for name in names if stats[name]}
            check(not left, f"group {group}: left behind: {left}")
