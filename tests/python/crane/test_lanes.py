"""Lanes of a crane, with a third tier: what is slow between two tiers holds up nothing else."""

from collections import Counter
from collections.abc import Iterator
from inspect import getattr_static
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockyard._core import Misuse, Unavailable, Unsupported
from blockyard.crane.copiers import Copier, Landed, Pair, Receipt, Slots
from blockyard.crane.copiers.cuda_copier import CudaCopier
from blockyard.crane.copiers.select import select_copiers
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.crane import Crane
from blockyard.crane.tiers import Tier, is_mapped, planes_of
from blockyard.crane.tiers.device import DeviceTier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.crane.tiers.pinned import PinnedTier
from blockyard.shared.layout import KVLayout
from blockyard.shared.plan import Cause, Outcome, Plan
from blockyard.testing import Script, ScriptedCopier
from blockyard.testing.simulated_gpu import SimulatedGpu
from cranes import (
    LAYOUTS,
    SHARED,
    SMALL,
    after,
    filled,
    gated,
    held,
    outcomes,
    same,
    slots,
    until,
)
from yard import plan_of, profile

SIZES = {"device": 12, "host": 9, "disk": 15}
TIERS = "device", "host", "disk"
WAYS = [*permutations(TIERS, 2), ("device", "device")]


def moved(number: int, way: Pair, sources: list[int], destinations: list[int]) -> Plan:
    return plan_of(sources, destinations, flight=1 << 32 | number, way=" ".join(way))


def three(layout: KVLayout = SMALL, **keywords: Any) -> dict[str, Any]:
    """Three tiers of memory, full of different bytes."""
    tiers: dict[str, Any] = {
        name: MemoryTier(layout, SIZES[name], name=name, **keywords) for name in TIERS
    }
    for seed, tier in enumerate(tiers.values()):
        filled(tier, seed)
    return tiers


class Doors:
    """A copier that takes no copy between tiers that are shut, and carries the others at once."""

    def __init__(self, *shut: Pair) -> None:
        self.shut = set(shut)
        self.taken: list[tuple[Pair, int]] = []
        self.asked: Counter[Pair] = Counter()
        self.calls: list[str] = []
        self._inner = ThreadCopier(workers=0)

    def start(
        self, source: Tier, destination: Tier, sources: Slots, destinations: Slots
    ) -> Receipt | None:
        pair = source.name, destination.name
        self.asked[pair] += 1
        if pair in self.shut:
            return None
        self.taken.append((pair, int(sources[0])))
        return self._inner.start(source, destination, sources, destinations)

    def reset(self) -> None:
        self.calls.append("reset")

    def close(self) -> None:
        self.calls.append("close")


@pytest.mark.law("R1-1")
@pytest.mark.parametrize("way", WAYS)
def test_a_full_lane_holds_up_no_other_and_keeps_its_order(way: Pair) -> None:
    copier = Doors(way)
    hands = Crane(SMALL, **three(), copier=copier)
    others = [other for other in WAYS if other != way]
    turns = [one for other in others for one in (way, other)]
    hands.submit(moved(n, one, [n % 9], [n % 9]) for n, one in enumerate(turns))
    landed = [outcome.flight & 0xFFFF for outcome in hands.poll()]
    assert landed == list(range(1, 12, 2)), "in the order in which they were submitted"
    assert hands.waiting == {way: 6}
    assert hands.in_flight == 6
    assert [pair for pair, _ in copier.taken] == others
    before = copier.asked[way]
    assert hands.poll() == []
    assert copier.asked[way] == before + 1, "a lane that is full is asked once"
    copier.shut.clear()
    assert [outcome.flight & 0xFFFF for outcome in outcomes(hands)] == list(range(0, 12, 2))
    assert hands.waiting == {}
    hands.close()


@pytest.mark.law("R1-1")
@pytest.mark.parametrize("slow", ["disk", "host"])
def test_copies_that_never_end_hold_up_no_other_lane_of_stock_copiers(slow: str) -> None:
    """More of them than a copier takes, from a tier that answers no read. (R1-1)"""
    tiers = three()
    hands = Crane(SMALL, **tiers)
    gate = gated(tiers[slow])
    stuck = [way for way in WAYS if way[0] == slow]
    hands.submit(moved(n, stuck[n % 2], [0], [0]) for n in range(200))
    assert gate.reached.wait(30)
    free = [way for way in WAYS if slow not in way]
    said: list[Outcome] = []

    def landed() -> bool:
        said.extend(hands.poll())
        return hands.in_flight == 200

    for number in range(200, 230):
        hands.submit(moved(number, free[number % len(free)], [1], [2]))
        until(landed)
    assert [one.flight & 0xFFFF for one in said] == list(range(200, 230))
    assert {one.good for one in said} == {1}
    assert hands.in_flight == 200
    assert set(hands.waiting) == set(stuck)
    assert gate.entered <= 4, "two threads a lane"
    gate.opened.set()
    assert len(outcomes(hands)) == 200
    hands.close()


@given(st.integers(0, 2**32), st.sampled_from(["page-first", "fp8 with scales, layer-first"]))
@profile(25)
def test_copies_between_three_tiers_leave_what_a_simple_model_says(seed: int, name: str) -> None:
    chance = np.random.default_rng(seed)
    tiers = three(LAYOUTS[name])
    script = Script.seeded(seed, late=0.3, failing=0.1)
    shared = ScriptedCopier(ThreadCopier(workers=1, depth=3), script)
    some: dict[tuple[str, str], ScriptedCopier] = {
        way: shared for way in WAYS if chance.random() < 0.5
    }
    hands = Crane(LAYOUTS[name], **tiers, copier=some)
    truth = {tier: held(memory) for tier, memory in tiers.items()}
    busy: set[tuple[str, int]] = set()
    plans: dict[int, Plan] = {}

    def land() -> bool:
        for outcome in hands.poll():
            made, good = plans.pop(outcome.flight), outcome.good
            to, sources, into = made.destination_tier, made.sources.tolist(), made.destinations
            after(truth[to], truth[made.source_tier], sources[:good], into.tolist()[:good])
            for mine, now in zip(truth[to], held(tiers[to]), strict=True):
                mine[into[good:]] = now[into[good:]]
            busy.difference_update((made.source_tier, slot) for slot in sources)
            busy.difference_update((to, slot) for slot in into.tolist())
        return not plans

    for number in range(60):
        way = WAYS[chance.integers(len(WAYS))]
        ends = []
        for tier in way:
            free = [slot for slot in range(SIZES[tier]) if (tier, slot) not in busy]
            ends.append(chance.permutation(free)[:2].tolist())
            busy |= {(tier, slot) for slot in ends[-1]}
        blocks = min(map(len, ends))
        busy -= {(tier, slot) for tier, end in zip(way, ends, strict=True) for slot in end[blocks:]}
        made = moved(number, way, ends[0][:blocks], ends[1][:blocks])
        plans[made.flight] = made
        hands.submit(made)
        land()
    until(land)
    assert all(same(memory, truth[tier]) for tier, memory in tiers.items())
    hands.close()


class Told:
    """A copier that carries nothing: a copy ends as the test has it."""

    def __init__(self) -> None:
        self.taken: list[tuple[list[str], list[int]]] = []
        self.receipts: list[Told] = []
        self.landed: Landed | None = None

    def start(self, *what: Any) -> "Told":
        _, destination, _, destinations = what
        names = [plane.name for plane in destination.layout.planes]
        self.taken.append((names, destinations.tolist()))
        self.receipts.append(Told())
        return self.receipts[-1]

    def poll(self) -> Landed | None:
        return self.landed

    def reset(self) -> None: ...

    def close(self) -> None: ...


def ranked(tmp_path: Path) -> dict[str, Any]:
    """The tiers of one of two ranks, which share some planes below the device."""
    return {
        name: MemoryTier(SHARED, SIZES[name], name=name, shared=tmp_path / name) for name in TIERS
    }


def test_a_flight_is_reported_when_all_its_copies_landed(tmp_path: Path) -> None:
    """On its way down to a disk a flight of several ranks is two copies, as to a host."""
    copier = Told()
    hands = Crane(SHARED, rank=1, **ranked(tmp_path), copier=copier)
    hands.submit(moved(1, ("host", "disk"), [0, 1, 2, 3], [4, 5, 7, 8]))
    assert copier.taken == [(["same"], [5, 7]), (["own"], [4, 5, 7, 8])]
    copier.receipts[1].landed = Landed(4)
    assert hands.poll() == []
    copier.receipts[0].landed = Landed(1, Cause.FAILED)
    assert hands.poll() == [Outcome(1 << 32 | 1, 1, 2, Cause.FAILED)]
    hands.submit(moved(2, ("disk", "device"), [4, 5], [1, 2]))
    assert copier.taken[2:] == [(["own", "same"], [1, 2])], "a rank reads all"
    hands.close()


def test_ranks_share_a_disk_as_they_share_a_host(tmp_path: Path) -> None:
    ranks = []
    for rank in range(2):
        tiers = ranked(tmp_path)
        filled(tiers["device"], 5)
        tiers["device"].planes[0][...] += rank
        ranks.append((Crane(SHARED, rank=rank, **tiers), tiers))
    whole = [held(tiers["device"]) for _, tiers in ranks]
    for number, (way, sources, to) in enumerate(
        [
            (("device", "host"), [1, 2, 3, 4], [5, 6, 7, 8]),
            (("host", "disk"), [5, 6, 7, 8], [14, 0, 3, 2]),
            (("device", "disk"), [9, 10], [5, 6]),
            (("disk", "host"), [14, 6], [0, 1]),
            (("disk", "device"), [14, 0, 3, 2, 5, 6], [8, 9, 10, 11, 1, 2]),
            (("host", "device"), [0, 1], [6, 7]),
        ]
    ):
        for rank, (hands, _) in enumerate(ranks):
            hands.submit(moved(number, way, sources, to))
            assert outcomes(hands) == [Outcome(1 << 32 | number, rank, len(to))]
    for (hands, tiers), before in zip(ranks, whole, strict=True):
        back = {8: 1, 9: 2, 10: 3, 11: 4, 1: 9, 2: 10, 6: 1, 7: 10}
        wanted = after(
            [bytes_.copy() for bytes_ in before], before, list(back.values()), list(back)
        )
        assert same(tiers["device"], wanted)
        hands.close()


class Joined(Doors):
    """A copier for whose copies a stream can wait."""

    def __init__(self, *shut: Pair, waits: bool = True) -> None:
        super().__init__(*shut)
        self.waits = waits
        self.joins: list[int | None] = []

    def join(self, stream: object = None, *, layer: int | None = None) -> bool:
        del stream
        self.joins.append(layer)
        return self.waits


def test_to_join_is_to_wait_for_every_lane_up_to_the_device_and_for_no_other() -> None:
    """Every copier is asked, and what no stream can wait for must have landed. (INV-6)"""
    up, other = Joined(), Joined()
    copiers: dict[Pair, Copier] = dict.fromkeys(WAYS, Told())
    copiers |= {("host", "device"): up, ("device", "device"): up, ("device", "disk"): other}
    hands = Crane(SMALL, **three(), copier=copiers)
    hands.submit(moved(n, way, [0], [1]) for n, way in enumerate(WAYS) if way[1] != "device")
    hands.submit(moved(10, ("host", "device"), [0], [1]))
    assert hands.join(layer=3)
    assert (up.joins, other.joins) == ([3], []), "once, and not one that brings nothing up"
    up.waits = False
    assert not hands.join()
    up.waits = True
    hands.submit(moved(11, ("disk", "device"), [0], [2]))
    assert not hands.join(), "its copier has no stream"
    hands.reset()
    assert hands.join()
    up.shut.add(("host", "device"))
    hands.submit(moved(12, ("host", "device"), [0], [1]))
    assert not hands.join(), "it waits in the crane"
    hands.close()


def test_a_reset_and_a_close_end_every_lane() -> None:
    down, rest = Doors(("device", "host")), Doors(*WAYS)
    copiers: dict[Pair, Copier] = dict.fromkeys(WAYS, rest)
    hands = Crane(SMALL, **three(), copier=copiers | {("device", "host"): down})
    assert hands.copiers == copiers | {("device", "host"): down}
    everything = [moved(n, way, [n], [n]) for n, way in enumerate(WAYS)]
    hands.submit(everything)
    assert hands.waiting == dict.fromkeys(WAYS, 1)
    hands.reset()
    assert (down.calls, rest.calls) == (["reset"], ["reset"]), "each once"
    assert {(one.good, one.cause) for one in hands.poll()} == {(0, Cause.DEAD)}
    assert (hands.waiting, hands.in_flight) == ({}, 0)
    hands.submit(moved(9 + n, way, [n], [n]) for n, way in enumerate(WAYS))
    hands.close()
    assert (down.calls, rest.calls) == (["reset", "close"],) * 2
    assert [(one.good, one.cause) for one in hands.poll()] == [(0, Cause.DEAD)] * len(WAYS)
    assert hands.in_flight == 0


def test_hello_and_plans_know_the_third_tier_and_a_host_may_be_missing() -> None:
    tiers = three()
    hands = Crane(SMALL, **tiers)
    assert hands.hello() == (0, SMALL.fingerprint, 12, 9, SMALL.fingerprint, 15, 0, 0, 0)
    assert hands.stats()["crane_bytes"] == sum(tier.nbytes for tier in tiers.values())
    with pytest.raises(Misuse, match="disk slot 15, but the disk tier of rank 0 has slots 0 to 14"):
        hands.submit(moved(1, ("disk", "host"), [15], [0]))
    for name in ("host", "disk"):
        with pytest.raises(Unsupported, match=f"no copies from {name} to {name} here"):
            hands.submit(moved(1, (name, name), [1], [2]))
    hands.close()
    assert not any(tier.planes for tier in tiers.values())
    tiers = three()
    del tiers["host"]
    hands = Crane(SMALL, **tiers)
    assert hands.hello() == (0, SMALL.fingerprint, 12, 0, SMALL.fingerprint, 15, 0, 0, 0)
    below = after(held(tiers["disk"]), held(tiers["device"]), [3, 4], [14, 0])
    hands.submit(moved(1, ("device", "disk"), [3, 4], [14, 0]))
    assert outcomes(hands) == [Outcome(1 << 32 | 1, 0, 2)]
    assert same(tiers["disk"], below)
    with pytest.raises(Misuse, match="there is no host tier on rank 0"):
        hands.submit(moved(2, ("host", "disk"), [1], [1]))
    hands.close()
    with pytest.raises(Misuse, match="disk = a tier named 'host': make it with name='disk'"):
        Crane(SMALL, device=three()["device"], disk=MemoryTier(SMALL, 3))


class Planeless:
    """A tier that holds blocks where no copier of ours reaches them."""

    def __init__(self, layout: KVLayout, blocks: int = 15) -> None:
        self.name = "disk"
        self.layout = layout
        self.blocks = blocks
        self.nbytes = 0
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


BELOW = [way for way in WAYS if "disk" in way]


def test_a_tier_without_planes_needs_a_copier_of_its_own_and_is_named() -> None:
    tiers = three()
    disk = Planeless(SMALL)
    assert not is_mapped(disk)
    assert all(map(is_mapped, tiers.values()))
    tiers_and_disk = tiers | {"disk": disk}
    with pytest.raises(
        Misuse, match=r"the disk tier has no planes in memory.* from device to disk"
    ):
        Crane(SMALL, **tiers_and_disk)
    partly: dict[Pair, Copier] = dict.fromkeys(BELOW[:-1], Doors())
    with pytest.raises(Misuse, match=r"give copier=\{\('disk', 'host'\): \.\.\.\}"):
        Crane(SMALL, **tiers_and_disk, copier=partly)
    copier = ThreadCopier(workers=0)
    for source, destination in ((tiers["host"], disk), (disk, tiers["host"])):
        with pytest.raises(Misuse, match="the disk tier has no planes in memory"):
            copier.start(source, destination, slots(1), slots(1))
    with Crane(SMALL, **tiers_and_disk, copier=dict.fromkeys(BELOW, Told())) as hands:
        stock = {way: one for way, one in hands.copiers.items() if way not in BELOW}
        assert {type(one) for one in stock.values()} == {ThreadCopier}
        assert len(set(map(id, stock.values()))) == len(stock) == 3, "each has its own"
        hands.submit(moved(1, ("host", "disk"), [1], [2]))
        hands.submit(moved(2, ("device", "host"), [1], [2]))
        until(lambda: [one.flight for one in hands.poll()] == [1 << 32 | 2])
    assert disk.closed == 1


def test_without_planes_a_copier_gets_all_planes_of_every_block_on_every_rank() -> None:
    copier = Told()
    disk = Planeless(SHARED)
    device = MemoryTier(SHARED, 12, name="device")
    given = dict.fromkeys([("device", "disk"), ("disk", "device")], copier)
    hands = Crane(SHARED, rank=1, device=device, disk=disk, copier=given)
    hands.submit(moved(1, ("device", "disk"), [1, 2, 3], [4, 5, 6]))
    assert copier.taken == [(["own", "same"], [4, 5, 6])]
    hands.close()


def test_a_copier_for_what_is_not_copied_is_refused() -> None:
    tiers = three()
    for key, message in (
        (("host", "disc"), r"\('host', 'disc'\): tier = 'disc': did you mean 'disk'\?"),
        (("host", "host"), r"\('host', 'host'\): nothing is copied so here"),
        ("host", "copier has 'host': give the names of two tiers"),
        (("host", 3), "must be one of device, host, disk"),
    ):
        given: dict[Any, Copier] = {key: Doors()}
        with pytest.raises(Misuse, match=message):
            Crane(SMALL, **tiers, copier=given)
    with pytest.raises(Misuse, match=r"\('host', 'disk'\): nothing is copied so here"):
        Crane(SMALL, device=tiers["device"], host=tiers["host"], copier={("host", "disk"): Doors()})


def test_tiers_are_named_device_host_or_disk() -> None:
    for name, near in (("disc", "disk"), ("devices", "device"), ("hosts", "host")):
        with pytest.raises(Misuse, match=f"name = '{name}': did you mean '{near}'"):
            MemoryTier(SMALL, 3, name=name)
    with pytest.raises(Misuse, match=r"name = 'device': did you mean .*one of host, disk"):
        PinnedTier(SMALL, 3, name="device", gpu=SimulatedGpu())


def test_planes_that_may_not_be_read_are_in_memory_all_the_same() -> None:
    gpu = SimulatedGpu()
    with gpu:
        memory = gpu.allocate(6 * SMALL.block_bytes)
        tensor = gpu.view(memory, (6, SMALL.block_bytes), (SMALL.block_bytes, 1))
    device = DeviceTier.adopt(SMALL, tensor, axis=0, gpu=gpu)
    assert is_mapped(device)
    with pytest.raises(Unsupported, match="planes of adopted memory"):
        planes_of(device)


@pytest.fixture
def gpu() -> Iterator[SimulatedGpu]:
    one = SimulatedGpu()
    yield one
    assert not one.held


def test_on_a_gpu_each_pinned_tier_has_a_copier_and_threads_copy_between_them(
    gpu: SimulatedGpu,
) -> None:
    layout = LAYOUTS["fp8 with scales, layer-first"]
    tiers: dict[str, Any] = {"device": DeviceTier(layout, 12, gpu=gpu)}
    tiers |= {name: PinnedTier(layout, SIZES[name], name=name, gpu=gpu) for name in TIERS[1:]}
    for seed, tier in enumerate(tiers.values()):
        filled(tier, seed)
    hands = Crane(layout, **tiers)
    kinds = {way: type(copier) for way, copier in hands.copiers.items()}
    threads = [("host", "disk"), ("disk", "host")]
    assert kinds == dict.fromkeys(WAYS, CudaCopier) | dict.fromkeys(threads, ThreadCopier)
    assert len(set(map(id, hands.copiers.values()))) == 4
    truth = {name: held(tier) for name, tier in tiers.items()}
    for number, way in enumerate([*WAYS, *WAYS]):
        hands.submit(moved(number, way, [number % 9, 3], [5, number % 5]))
        assert hands.join()
        while hands.in_flight:
            gpu.run()
            hands.poll()
        after(truth[way[1]], truth[way[0]], [number % 9, 3], [5, number % 5])
    assert all(same(tier, truth[name]) for name, tier in tiers.items())
    hands.close()


def test_on_a_gpu_a_tier_that_is_not_pinned_is_named_and_nothing_is_left(
    gpu: SimulatedGpu,
) -> None:
    device = DeviceTier(SMALL, 12, gpu=gpu)
    host = PinnedTier(SMALL, 9, gpu=gpu)
    before = gpu.held
    with pytest.raises(Misuse, match="the disk's memory is not pinned: give it a PinnedTier, or"):
        Crane(SMALL, device=device, host=host, disk=MemoryTier(SMALL, 3, name="disk"))
    with pytest.raises(Misuse, match="disk = pinned memory, but the device is no GPU"):
        Crane(SMALL, device=three()["device"], disk=PinnedTier(SMALL, 3, name="disk", gpu=gpu))
    disk = PinnedTier(SMALL, 3, name="disk", gpu=SimulatedGpu())
    with pytest.raises(Misuse, match="two GPUs"):
        Crane(SMALL, device=device, host=host, disk=disk)
    assert gpu.held == before
    own: dict[Pair, Copier] = dict.fromkeys(WAYS, Told())
    tiers: dict[str, Tier] = {
        "device": device,
        "host": host,
        "disk": MemoryTier(SMALL, 3, name="disk"),
    }
    assert select_copiers(tiers, own) == own
    assert gpu.held == before, "what is given is not made"
    disk.close()
    disk = PinnedTier(SMALL, 3, name="disk", gpu=gpu)
    before, calls = gpu.held, gpu.calls["allocate"]
    CudaCopier(device, host).close()
    for failing in range(gpu.calls["allocate"] - calls + 1):
        gpu.fail("allocate", after=failing)
        with pytest.raises(Unavailable):
            Crane(SMALL, device=device, host=host, disk=disk)
        assert gpu.held == before, "neither of the first copier nor of the second"
    for tier in (host, device, disk):
        tier.close()


def test_whether_a_tier_has_planes_is_seen_without_reading_them() -> None:
    class Refusing:
        @property
        def planes(self) -> tuple[Any, ...]:
            raise AssertionError("they were read")

    class Slotted:
        __slots__ = ("planes",)

    class Without(Refusing):
        planes = None  # type: ignore[assignment] # it has none of its parent's

    mine: Any = SimpleNamespace(planes=())
    none: Any = SimpleNamespace(planes=None)
    found: list[Any] = [Refusing(), Slotted(), mine, Without(), none, SimpleNamespace()]
    assert list(map(is_mapped, found)) == [True, True, True, False, False, False]
    # As the standard library sees it, which is too slow for every copy.
    assert [getattr_static(one, "planes", None) is not None for one in found] == list(
        map(is_mapped, found)
    )
