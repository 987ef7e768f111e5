"""A model's engine with several groups of layers, over real caches.

The model is `../shared/models/groups_below.py`. Its engine runs as it is: its blocks, its prefix
cache, windows that slide, states that it freezes; and every block that it reads is compared with
what it should have. What the model has below the engine is replaced by a `KVCache` for each group,
the first one linked, whose plans move the contents of slots.
"""

import importlib.util
import itertools
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, cast

import numpy as np

import blockyard as by
from blockyard.shared.layout import TIERS
from blockyard.yard.presence import Presence
from needs import without

_PLACE = Path(__file__).parents[4] / "shared" / "models" / "groups_below.py"
_KEY = 32
_STAND_INS = 16
"""Ids that the engine never uses: each stands for a block that is below, and not the engine's."""
_ANONYMOUS = bytes(24)


@cache
def model() -> ModuleType:
    """The model; without it the test is skipped, or fails where BLOCKYARD_REQUIRE has "models"."""
    if not _PLACE.exists():
        without("models", "no groups_below.py in ../shared/models")
    spec = importlib.util.spec_from_file_location("groups_below", _PLACE)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


def world(seed: int, mix: str) -> Any:
    """The model's engine with this mix of groups, over real caches."""
    made = type("GroupedWorld", (_Caches, model().World), {})
    return made(seed, model().MIXES[mix])


def _bad(why: str) -> NoReturn:
    raise model().Bad(why)


class _Caches:
    """What is below the model's engine: a cache for each of its groups, the spine's first."""

    D: int
    """The engine's blocks, but the null block."""
    G: range
    """The groups."""
    R: range
    """The groups but the spine."""
    bs: int
    """Tokens per block."""
    w: int
    """The weights: what was computed with others is wrong."""

    def __init__(self, seed: int, mix: object) -> None:
        super().__init__(seed, mix)  # type: ignore[call-arg]
        self.engine: Any = super()
        self.own: Any = self
        self.yard = 0
        self.raw: dict[tuple[int, ...], bytes] = {}
        self.boot()

    def boot(self) -> None:
        """Makes empty caches. Their numbers of flights are alike."""
        self.yard += 1
        slots = {one: len(there) for one, there in self.own.slots.items()}
        self.caches = [
            by.KVCache(
                engine=self.D + 1 + _STAND_INS,
                host=slots[g, 1],
                disk=slots[g, 2],
                block_size=self.bs,
                linked=g == 0,
                group=g,
                keyed=("disk",),
                ahead=0,
                yard=self.yard,
            )
            for g in self.G
        ]

    # What is below, by its keys.

    def rows(self, toks: Sequence[int], blocks: Iterable[int]) -> bytes:
        """The keys of some blocks of a text."""
        whole = tuple(toks[: len(toks) // self.bs * self.bs])
        raw = self.raw.get(whole)
        if raw is None:
            raw = self.raw[whole] = bytes(self.caches[0].keys(whole))
        return b"".join(raw[_KEY * b : _KEY * (b + 1)] for b in blocks)

    def row(self, g: int, toks: Sequence[int], blocks: Sequence[int]) -> by.Keys:
        return self.caches[g].ready_keys(self.rows(toks, blocks), len(blocks) * self.bs)

    def which(self, g: int, toks: Sequence[int], blocks: Sequence[int]) -> list[int]:
        found: list[int] = self.caches[g].which(self.rows(toks, blocks)).tolist()
        return found

    def find(self, toks: Sequence[int], after: int) -> int | str:
        """The greatest agreed length past `after`, in blocks, or "soon" (G3)."""
        most = (len(toks) - 1) // self.bs
        before = [one.digest() for one in self.caches]
        found = self.caches[0].find(self.row(0, toks, range(most)), after)
        far = after + found.host + found.disk
        there = [self.which(g, toks, range(most)) for g in self.G]
        if [one.digest() for one in self.caches] != before:
            _bad("question: find or which has changed something")
        ended = {"filling": Presence.FILLING, "missing": Presence.MISSING}
        ready = [Presence.READY] * (far - after)
        if there[0][after:far] != ready or (far < most and there[0][far] != ended[found.stop]):
            _bad(f"question: find has {found} behind {after}, and which {there[0]}")
        for b in range(far, after, -1):
            got = {one for g in self.R for one in self.lacks(g, b, after, there[g])}
            if Presence.MISSING in got:
                self.own.stat["disagreed"] += b == far
            else:
                return "soon" if Presence.FILLING in got else b
        return "soon" if found.stop == "filling" and far == after else after

    def lacks(self, g: int, b: int, after: int, there: list[int]) -> Iterable[int]:
        """Where the blocks are that a group needs at this length, and the engine has not."""
        length, kind = b * self.bs, self.own.kinds[g]
        if kind[0] == "state" and length % kind[1]:
            return [Presence.MISSING]
        return [there[x] for x in self.own.need(g, length) if x >= after]

    def touch(self, toks: Sequence[int], n: int) -> None:
        for one in self.caches:
            one.used([self.row(0, toks, range(n))])

    # Copies.

    def take(self, load: Any = None, of: dict[tuple[int, int], list[int]] | None = None) -> None:
        """Gives the worker what was planned; `of` has the blocks of each flight of a load."""
        for g, one in enumerate(self.caches):
            for plan in one.dispatch():
                if plan.group != g:
                    _bad(f"group: {plan} of group {g} names {plan.group}")
                self.own.flights.append(self.flight(g, plan, load, of or {}))

    def flight(self, g: int, plan: by.Plan, load: Any, of: dict[tuple[int, int], list[int]]) -> Any:
        ends = [TIERS.index(tier) for tier in (plan.source_tier, plan.destination_tier)]
        kind = "up" if not ends[1] else "lower" if ends[0] else "down"
        sources, destinations = plan.sources.tolist(), plan.destinations.tolist()
        moves = list(zip(itertools.repeat(None), sources, destinations, strict=False))
        own = load if kind == "up" else None
        f = model().Flight(g, plan.flight, kind, *ends, moves, own)
        f.plan, f.since, f.bs = plan, self.w, of.get((g, plan.flight), [])
        if own:
            own.flights += 1
            own.spine += g == 0
        for slot in destinations if ends[1] == 2 else ():
            self.own.rec[g].pop(slot, None)  # INV-30
        self.own.stat[f"{kind}{int(g > 0)}"] += 1
        return f

    def fetch(self, load: Any) -> bool:
        """Copies up what a load lacks. False: ask again."""
        kept = isinstance(load.what, model().Keep)
        if kept and self.is_broken(load.what):
            load.short = True
            return True
        ids = [*load.todo.values()]
        if any(one.must_finish(ids) is not None for one in self.caches):
            return False
        lists = {g: sorted(b for h, b in load.todo if h == g) for g in self.G}
        if not kept and any(Presence.FILLING in self.which(g, load.what, lists[g]) for g in self.G):
            return False
        of: dict[tuple[int, int], list[int]] = {}
        for g in self.G:
            for blocks in _runs(lists[g]) if kept or g == 0 else filter(None, [lists[g]]):
                said = self.bring(g, load, blocks, kept=kept)
                plans = said if isinstance(said, list) else []
                ends = [*itertools.accumulate(map(len, plans), initial=0)]
                of |= {
                    (g, plan.flight): blocks[start:end]
                    for plan, start, end in zip(plans, ends, ends[1:], strict=False)
                }
                load.short = getattr(load, "short", False) or ends[-1] < len(blocks)
        self.take(load, of)
        return True

    def bring(self, g: int, load: Any, blocks: list[int], *, kept: bool) -> object:
        ids = [load.todo[g, b] for b in blocks]
        if kept:
            first = load.what.lists[g].index(blocks[0])
            return self.caches[g].fetch(load.what.parts[g], ids, first)
        return self.caches[g].fetch(self.row(g, load.what, blocks), ids)

    def copy_down(self, r: Any, rows: list[tuple[int, int, int]]) -> None:
        for g in self.G:
            own = {b: i for h, b, i in rows if h == g and i}
            if own:
                plan = self.caches[g].offload(self.row(g, r.toks, [*own]), [*own.values()])
                self.own.stat[f"offloaded{int(g > 0)}"] += 0 if plan is None else len(plan)
        self.take()

    def commit(self, g: int, n: int) -> None:
        mine = (f for f in self.own.flights if (f.g, f.n) == (g, n) and not f.over)
        f = next(mine, None)
        if f is None:
            self.own.stat["ignored"] += 1
            if self.caches[g].commit(by.Outcome(n, 0, 0, yard=self.yard, group=g)):
                _bad("route: a flight has ended twice")
            return
        f.over = True
        self.ended(f)
        if f.kind == "up":
            self.own.landed(f)

    def ended(self, f: Any) -> None:
        """The cache of its group hears how it has ended; the others refuse that."""
        self.own.make(f)
        self.own.flights.remove(f)
        cause = None if f.good == len(f.moves) else by.Cause(f.end)
        outcome = by.Outcome.of(f.plan, 0, f.good, cause)
        if len(self.caches) > 1 and f.n % 7 == 0:
            self.refused(self.caches[f.g - 1], outcome)
        self.caches[f.g].commit(outcome)
        if f.dst == 2 and not f.late:
            rows = zip(f.moves[: f.good], f.plan.keys, f.plan.parents, strict=False)
            for (_, _, slot), key, parent in rows:
                dead = self.own.slots[f.g, 2][slot].dead
                if not (dead or key.tobytes().startswith(_ANONYMOUS)):
                    self.own.rec[f.g][slot] = key.tobytes(), parent.tobytes(), f.since

    def refused(self, other: by.KVCache, outcome: by.Outcome) -> None:
        before = other.digest()
        try:
            other.commit(outcome)
        except by.Misuse:
            self.own.stat["refused"] += 1
        else:
            _bad(f"route: {outcome} was taken by another group")
        if other.digest() != before:
            _bad("route: a refused outcome has changed something")

    def overdue(self, f: Any) -> None:
        """Nobody knows its end; a load waits for its own."""
        if f.kind != "up" and not f.over:
            f.over = f.late = True
            self.own.stat["late"] += 1
            self.caches[f.g].mark_unknown([f.n])

    def write(self, g: int, i: int, what: object) -> None:
        for f in self.own.busy(i):
            if not f.late and self.caches[f.g].must_finish([i]) is None:
                _bad(f"E1: block {i} may be written, and flight {f.n} touches it")
        self.engine.write(g, i, what)

    # Keeps.

    def is_broken(self, k: Any) -> bool:
        return any(one.state != "kept" for one in k.parts.values())

    def keep(self, r: Any) -> Any:
        """Keeps what is preempted, at the last length of which all groups have what it needs."""
        states = [g for g in self.R if self.own.kinds[g][0] == "state"]
        lengths = [r.done]
        if states and not self.own.exact_park:
            frozen = {at for g in states for at, _ in r.frozen[g] if at <= r.done}
            lengths = sorted(frozen, reverse=True)
        for n in filter(None, lengths):
            ids = [self.needed(g, r, n) for g in self.G]
            if None not in ids:
                return self.save(r, n, cast("list[dict[int, int]]", ids))
            self.own.stat["keep: slid out"] += 1
        return None

    def needed(self, g: int, r: Any, n: int) -> dict[int, int] | None:
        """An id for each block that going on at a length needs; None where one is nowhere."""
        ids: dict[int, int] = {}
        for b in self.own.need(g, n):
            i = r.tab[g].get(b, 0)
            if self.own.kinds[g][0] == "state":
                frozen = next((i for at, i in r.frozen[g] if at == n), 0)
                i = r.cur.get(g, 0) if n == r.done else frozen
            if not i and (b >= n // self.bs or not self.which(g, r.toks, [b])[0]):
                return None
            ids[b] = i or self.D + 1 + b
        return ids

    def save(self, r: Any, n: int, ids: list[dict[int, int]]) -> Any:
        k = model().Keep(n)
        k.parts, k.lists = {}, {}
        try:
            for g in (*self.R, 0):
                if ids[g]:
                    k.lists[g] = [*ids[g]]
                    k.parts[g] = self.save_part(g, r, n, ids[g])
        except (by.NoRoom, by.TooLarge):
            self.own.stat["keep: no room"] += 1
            self.unkeep(k)
            self.take()
            return None
        k.air = {(g, plan.flight) for g, one in k.parts.items() for plan in one.plans}
        self.take()
        self.own.keeps.append(k)
        self.own.stat["kept"] += 1
        return k

    def save_part(self, g: int, r: Any, n: int, ids: dict[int, int]) -> by.Parked:
        row = self.row(g, r.toks, [b for b in ids if (b + 1) * self.bs <= n])
        parked = self.caches[g].save_request(row, [*ids.values()], n - min(ids) * self.bs)
        if any(plan.sources.max() > self.D for plan in parked.plans):
            _bad("keep: a block is copied that the engine has not")
        return parked

    def unkeep(self, k: Any) -> None:
        if k in self.own.keeps:
            self.own.keeps.remove(k)
        for g, parked in k.parts.items():
            self.caches[g].abandon(parked)
        k.parts = {}

    def admit(self, r: Any) -> None:
        k = r.keep
        if k and self.is_broken(k):
            self.own.stat["broken"] += 1
            self.unkeep(k)
            k.broken = True
        elif k and any((f.g, f.n) in k.air for f in self.own.flights):
            return
        self.engine.admit(r)

    # What happens to all.

    def clear(self) -> None:
        """The weights have changed (E9)."""
        self.w += 1
        self.own.stat["clears"] += 1
        loading = [r for r in self.own.reqs if r.st == "load"]
        self.own.reqs = [r for r in self.own.reqs if r.st != "load"]
        for r in self.own.reqs:
            self.own.preempt(r, keep=False)
            r.keep = None
        for r in loading:
            r.load.dead, r.keep = True, None
            if not r.load.flights:
                self.own.release(r)
        self.own.cached, self.own.name = {}, {}
        for g, one in enumerate(self.caches):
            self.own.floor[g] = self.w
            one.clear()
        for k in [*self.own.keeps]:
            if not self.is_broken(k):
                _bad("E9: something is kept behind a clear")
            self.unkeep(k)

    def restart(self) -> None:
        """Engine, host and caches are gone; of the disk each record is found again, or not."""
        self.own.stat["restarts"] += 1
        self.own.flights, self.own.keeps = [], []
        self.own.new_engine()
        if self.own.r.random() < 0.5:
            for g in self.G:
                for slot in self.own.slots[g, 2]:
                    slot.dead = False
        self.boot()
        for g, one in enumerate(self.caches):
            self.own.mem[g, 1] = [("junk",)] * len(self.own.mem[g, 1])
            dead = [at for at, slot in enumerate(self.own.slots[g, 2]) if slot.dead]
            if dead:
                one.withdraw("disk", dead)
            self.restore(g, one)

    def restore(self, g: int, one: by.KVCache) -> None:
        found: dict[bytes, tuple[int, bytes]] = {}
        for slot, (key, parent, since) in self.own.rec[g].items():
            if since >= self.own.floor[g] and self.own.r.random() > 0.2:
                found.setdefault(key, (slot, parent))
        self.own.rec[g] = {slot: self.own.rec[g][slot] for slot, _ in found.values()}
        slots = np.array([slot for slot, _ in found.values()], np.uint32)
        one.restore("disk", slots, b"".join(found), b"".join(p for _, p in found.values()))
        self.own.stat[f"restored{int(g > 0)}"] += len(found)
        alone = self.caches[0].which(b"".join(found)) == Presence.MISSING
        self.own.stat["restored without its spine"] += int(alone.sum())

    def withdraw(self) -> None:
        """One of several disks has died: it takes its slots in all groups."""
        share = self.own.r.random() * 0.9
        for g, one in enumerate(self.caches):
            slots = self.own.slots[g, 2]
            gone = [at for at in range(len(slots)) if share <= at / len(slots) < share + 0.1]
            if sum(not slot.dead for slot in slots) - len(gone) < 3:
                continue
            for at in gone:
                slots[at].dead = True
                self.own.mem[g, 2][at] = ("dead",)
                self.own.rec[g].pop(at, None)
            self.own.stat["withdrawn"] += one.withdraw("disk", gone) if gone else 0

    def step(self) -> None:
        r, x = self.own.r, self.own.r.random()
        g = r.choice(self.G)
        if x < 0.08:
            self.caches[g].demote(2, tier="host")
        elif x < 0.1 and self.own.keeps:
            for h, parked in r.choice(self.own.keeps).parts.items():
                self.caches[h].demote(4, of=parked, to="disk")
        elif x < 0.1 + self.own.rot:
            there = self.own.mem[g, r.choice((1, 2))]
            full = [at for at, one in enumerate(there) if len(one) == 3]
            if full:
                there[r.choice(full)] = ("flip",)
                self.own.stat["flips"] += 1
        self.take()
        self.engine.step()

    def audit(self) -> None:
        for g, one in enumerate(self.caches):
            found = one.audit()
            if found is not None:
                _bad(f"audit: group {g}: {found}")
        loading = [f.load.r for f in self.own.flights if f.load]
        held = Counter[int]()
        for r in {id(r): r for r in self.own.reqs + loading}.values():
            for g in self.G:
                frozen = (i for _, i in r.frozen.get(g, []))
                held.update(filter(None, (*r.tab.get(g, {}).values(), *frozen, r.cur.get(g))))
        for i in range(1, self.D + 1):
            refs = self.own.refs[i]
            if refs != held[i] or (i in self.own.free) != (refs == 0):
                _bad(f"leak: the engine's block {i} has {refs} holders, of {held[i]}")

    def finish(self) -> None:
        """All that was asked for ends, and nothing is held any more (E6)."""
        self.engine.finish()
        for g, one in enumerate(self.caches):
            held = ("claimed", "pinned", "quarantined", "promised")
            names = ["parked", "flights", *(f"{tier}_{name}" for tier in TIERS for name in held)]
            stats = one.stats()
            left = {name: stats[name] for name in names if stats[name]}
            if left:
                _bad(f"leak: group {g}: {left}")


def _runs(blocks: Sequence[int]) -> list[list[int]]:
    """Consecutive numbers together."""
    runs: list[list[int]] = []
    for block in blocks:
        if runs and runs[-1][-1] + 1 == block:
            runs[-1].append(block)
        else:
            runs.append([block])
    return runs
