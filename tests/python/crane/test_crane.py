"""`Crane`: plans in, bytes moved, outcomes out."""

import gc
import logging
import pickle
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockyard._core import Misuse
from blockyard.crane import traffic
from blockyard.crane.copiers import Receipt, Slots
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.crane import Crane
from blockyard.crane.tiers import Tier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.shared.layout import KVLayout
from blockyard.shared.log import Limited
from blockyard.shared.plan import Cause, Outcome, Plan
from blockyard.testing import Script, ScriptedCopier, corrupt, delay, deliver, fail, hang
from cranes import (
    LAYOUTS,
    SMALL,
    after,
    gated,
    held,
    outcomes,
    pair,
    plan,
    same,
)
from yard import profile


def at_once() -> ThreadCopier:
    return ThreadCopier(workers=0)


def crane(layout: KVLayout = SMALL, **keywords: Any) -> tuple[Crane, MemoryTier, MemoryTier]:
    device, host = pair(layout)
    return Crane(layout, device=device, host=host, **keywords), device, host


@pytest.mark.parametrize("name", LAYOUTS)
def test_it_carries_plans_out_and_reports_each_flight_once(name: str) -> None:
    hands, device, host = crane(LAYOUTS[name])
    down, up = ((3, 4, 5, 11), (8, 0, 1, 2)), ((6, 7), (9, 1))
    below = after(held(host), held(device), *down)
    above = after(held(device), held(host), *up)
    hands.submit([plan(1, "down", *down), plan(2, "up", *up), plan(3, "down", (), ())])
    hands.submit(plan(4, "across", (0,), (2,)))
    said = outcomes(hands)
    assert {(one.flight & 0xFFFF, *one[1:4]) for one in said} == {
        (1, 0, 4, None),
        (2, 0, 2, None),
        (3, 0, 0, None),
        (4, 0, 1, None),
    }
    assert len(said) == 4
    assert hands.poll() == []
    assert same(host, below)
    assert same(device, after(above, above, (0,), (2,)))
    hands.close()


class Wild:
    """A world of slots and flights as a yard would make it: no copy in flight meets another."""

    def __init__(self, layout: KVLayout, copier: Any) -> None:
        self.hands, self.device, self.host = crane(layout, copier=copier)
        self.truth = {"device": held(self.device), "host": held(self.host)}
        self.busy: set[tuple[str, int]] = set()
        self.plans: dict[int, Plan] = {}
        self.in_flight = 0

    def launch(self, way: Any, chance: np.random.Generator) -> None:
        from_name, to_name = {"down": ("device", "host"), "up": ("host", "device")}[way]
        tiers = {"device": 12, "host": 9}
        free = {
            name: [slot for slot in range(size) if (name, slot) not in self.busy]
            for name, size in tiers.items()
        }
        blocks = int(chance.integers(0, 1 + min(len(free[from_name]), len(free[to_name]))))
        sources = chance.permutation(free[from_name])[:blocks].tolist()
        to = chance.permutation(free[to_name])[:blocks].tolist()
        self.in_flight += 1
        made = plan(self.in_flight, way, sources, to)
        self.busy |= {(from_name, slot) for slot in sources} | {(to_name, slot) for slot in to}
        self.plans[made.flight] = made
        self.hands.submit(made)

    def land(self) -> None:
        for outcome in self.hands.poll():
            made = self.plans.pop(outcome.flight)
            good, source, to = outcome.good, made.source_tier, made.destination_tier
            sources, destinations = made.sources.tolist(), made.destinations.tolist()
            after(self.truth[to], self.truth[source], sources[:good], destinations[:good])
            actual = held(self.device if to == "device" else self.host)
            for truth, now in zip(self.truth[to], actual, strict=True):
                truth[destinations[good:]] = now[destinations[good:]]
            self.busy -= {(source, slot) for slot in sources} | {
                (to, slot) for slot in destinations
            }


@given(st.integers(0, 2**32), st.sampled_from(sorted(LAYOUTS)), st.integers(0, 2))
@profile(40)
def test_up_and_down_over_reused_slots_leave_what_a_simple_model_says(
    seed: int, name: str, workers: int
) -> None:
    chance = np.random.default_rng(seed)
    script = Script.seeded(seed, failing=0.1, corrupting=0.1)
    world = Wild(LAYOUTS[name], ScriptedCopier(ThreadCopier(workers=workers, depth=3), script))
    for _ in range(40):
        world.launch(chance.choice(["up", "down"]), chance)
        world.land()
    while world.plans:
        world.land()
    assert same(world.device, world.truth["device"])
    assert same(world.host, world.truth["host"])
    world.hands.close()


def test_plans_wait_in_the_crane_when_the_queue_is_full_and_go_in_order() -> None:
    copier = ThreadCopier(workers=1, depth=2)
    hands, device, host = crane(copier=copier)
    gate = gated(device)
    hands.submit(plan(n, "down", (n,), (n,)) for n in range(6))
    assert hands.in_flight == 6
    assert hands.poll() == []
    assert hands.in_flight == 6
    gate.opened.set()
    assert [outcome.flight & 0xFFFF for outcome in outcomes(hands)] == list(range(6))
    assert same(host, after(held(host), held(device), range(6), range(6)))
    hands.close()


def test_what_is_refused_is_named_and_nothing_of_the_call_is_taken() -> None:
    hands, _device, host = crane(copier=at_once())
    before = held(host)
    good = plan(1, "down", (1,), (1,))
    group = plan(2, "down", (1,), (1,)).to_bytes()
    group = group[:2] + b"\1" + group[3:]
    disk = plan(2, "down", (1,), (1,)).to_bytes()
    disk = disk[:3] + b"\2" + disk[4:]
    for bad, message in (
        (plan(2, "down", (1, 12), (1, 2)), r"device slot 12, but the device tier .* slots 0 to 11"),
        (plan(2, "up", (9,), (2,)), "host slot 9, but the host tier of rank 0 has slots 0 to 8"),
        (plan(2, "up", (2**32 - 1,), (2,)), f"host slot {2**32 - 1}"),
        (good, f"flight = {1 << 32 | 1}: it is in flight already"),
        (Plan.from_bytes(disk), "there is no disk tier on rank 0"),
        (Plan.from_bytes(group), "flight .* group = 1, and this crane has group 0: give the plan"),
    ):
        with pytest.raises(Misuse, match=message):
            hands.submit([good, bad])
    assert hands.in_flight == 0
    assert hands.poll() == []
    assert same(host, before)
    hands.submit(good)
    with pytest.raises(Misuse, match="in flight already"):
        hands.submit(good)
    assert len(hands.poll()) == 1
    hands.close()
    alone = Crane(SMALL, device=MemoryTier(SMALL, 4, name="device"), copier=at_once())
    with pytest.raises(Misuse, match="there is no host tier"):
        alone.submit(good)
    alone.submit(plan(3, "across", (1,), (2,)))
    assert outcomes(alone) == [Outcome(1 << 32 | 3, 0, 1)]
    alone.close()


def test_tiers_that_are_not_what_they_should_be_are_named() -> None:
    device, host = pair(SMALL)
    other = KVLayout.llama(2, 2, 8, block_size=8)
    with pytest.raises(Misuse, match=r"host tier has another layout: its planes = .*, the crane's"):
        Crane(SMALL, device=device, host=MemoryTier(other, 3))
    with pytest.raises(Misuse, match="device tier has another layout"):
        Crane(other, device=device)
    with pytest.raises(Misuse, match="device = a tier named 'host': make it with name='device'"):
        Crane(SMALL, device=host)
    for rank in (-1, 1, 0.5):
        with pytest.raises(Misuse, match=f"rank = {rank}"):
            Crane(SMALL, rank=rank, device=device)  # type: ignore[arg-type]


def test_hello_says_rank_fingerprint_and_sizes() -> None:
    device, host = pair(SMALL)
    hands = Crane(SMALL, device=device, host=host)
    assert hands.hello() == (0, SMALL.fingerprint, 12, 9, SMALL.fingerprint, 0, 0, 0, 0)
    hands = Crane(SMALL, device=device, fingerprint="the yard's")
    assert hands.hello() == (0, "the yard's", 12, 0, SMALL.fingerprint, 0, 0, 0, 0)


def test_a_failing_copy_fails_its_flight_alone_and_logs_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hands, device, _host = crane(copier=ThreadCopier(workers=1))
    gated(device, bad=5, opened=True)
    with caplog.at_level(logging.DEBUG, "blockyard"):
        hands.submit(plan(n, "down", (n,), (n,)) for n in range(4, 7))
        said = outcomes(hands)
    assert [(one.good, one.cause) for one in said] == [(1, None), (0, Cause.FAILED), (1, None)]
    assert len(caplog.records) <= 1
    assert hands.stats()["crane_failed"] == 1
    hands.close()


class Broken:
    """A copier that raises when it is asked."""

    def start(self, *what: Tier | Slots) -> Receipt | None:
        raise RuntimeError(f"no thread for {len(what)} things")

    def reset(self) -> None: ...

    def close(self) -> None: ...


def test_a_copier_that_raises_fails_flights_and_not_the_crane(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic, "_log", Limited("blockyard"))
    hands, _device, _host = crane(copier=Broken())
    with caplog.at_level(logging.WARNING, "blockyard"):
        hands.submit(plan(n, "down", (n,), (n,)) for n in range(3))
        assert hands.poll() == [Outcome(1 << 32 | n, 0, 0, Cause.FAILED) for n in range(3)]
    assert [record.getMessage() for record in caplog.records] == [
        "a copy of 1 blocks was refused: RuntimeError('no thread for 4 things')"
    ]


def test_what_went_bad_is_said_with_its_cause() -> None:
    script = [fail(2), corrupt(1), delay(2), deliver()]
    hands, _device, _host = crane(copier=ScriptedCopier(at_once(), script))
    hands.submit(plan(n, "down", (n, n + 4, n + 8), (n, n + 3, n + 5)) for n in range(4))
    polls = [[one[2:4] for one in hands.poll()] for _ in range(3)]
    assert polls == [[(2, Cause.FAILED), (1, Cause.CORRUPT), (3, None)], [], [(3, None)]]
    hands.close()


def test_after_a_reset_all_in_flight_is_dead_and_late_ends_are_swallowed() -> None:
    copier = ScriptedCopier(at_once(), [deliver(), hang(), delay(1)])
    hands, _device, host = crane(copier=copier)
    hands.submit(plan(n, "down", (n,), (n,)) for n in range(3))
    assert [one.good for one in hands.poll()] == [1]
    before = held(host)
    hands.reset()
    assert hands.in_flight == 2
    copier.release()
    assert hands.poll() == [Outcome(1 << 32 | n, 0, 0, Cause.DEAD) for n in (1, 2)]
    assert [hands.poll() for _ in range(3)] == [[], [], []]
    assert same(host, before)
    hands.submit(plan(3, "down", (1,), (1,)))
    assert outcomes(hands) == [Outcome(1 << 32 | 3, 0, 1)], "it works again"
    hands.close()


def test_a_reset_returns_when_nothing_is_written_any_more() -> None:
    hands, device, host = crane(copier=ThreadCopier(workers=2, depth=1))
    gate = gated(device)
    hands.submit(plan(n, "down", (n, n + 4), (n, n + 4)) for n in range(4))
    assert gate.reached.wait(30)
    threading.Timer(0.02, gate.opened.set).start()
    hands.reset()
    before = held(host)
    time.sleep(0.02)
    assert same(host, before)
    assert {(one.good, one.cause) for one in hands.poll()} == {(0, Cause.DEAD)}
    hands.close()


def test_close_with_copies_in_flight_still_says_how_each_ended() -> None:
    hands, device, _host = crane(copier=ScriptedCopier(at_once(), [deliver(), hang(), delay(9)]))
    with hands:
        hands.submit(plan(n, "down", (n,), (n,)) for n in range(3))
    assert [(one.good, one.cause) for one in hands.poll()] == [
        (1, None),
        (0, Cause.DEAD),
        (0, Cause.DEAD),
    ]
    assert hands.in_flight == 0
    assert device.planes == ()
    with pytest.raises(Misuse, match="the crane is closed"):
        hands.submit(plan(4, "down", (1,), (1,)))
    hands.close()

    hands, device, _host = crane(copier=ThreadCopier(workers=1, depth=1))
    gate = gated(device)
    hands.submit(plan(n, "down", (n,), (n,)) for n in range(6))
    assert gate.reached.wait(30)
    threading.Timer(0.02, gate.opened.set).start()
    hands.close()
    said = {one.flight & 0xFFFF: one[2:4] for one in hands.poll()}
    assert said == {0: (1, None)} | dict.fromkeys(range(1, 6), (0, Cause.DEAD))


def test_its_statistics_are_what_its_schema_says() -> None:
    hands, device, host = crane(copier=ScriptedCopier(at_once(), [fail(1), hang()]))
    hands.submit(plan(n, "down", (n, n + 4), (n, n + 4)) for n in range(3))
    hands.poll()
    stats = hands.stats()
    assert list(stats) == [stat.name for stat in Crane.SCHEMA]
    assert stats == {
        "crane_flights": 3,
        "crane_in_flight": 1,
        "crane_failed": 1,
        "crane_blocks": 3,
        "crane_bytes": device.nbytes + host.nbytes,
    }
    hands.close()


def test_plans_outcomes_hellos_and_layouts_travel_pickled() -> None:
    hands, _device, _host = crane()
    for what in (
        plan(1, "down", (1, 2), (3, 4)),
        plan(1, "down", (), ()),
        Outcome(1 << 32 | 7, 3, 2, Cause.CORRUPT, yard=5),
        Outcome(1 << 32 | 7, 3, 2, yard=5),
        hands.hello(),
        *LAYOUTS.values(),
    ):
        assert pickle.loads(pickle.dumps(what)) == what
    hands.close()


def test_a_large_plan_costs_its_caller_under_a_millisecond() -> None:
    device, host = pair(SMALL, 1024, 1024)
    hands = Crane(SMALL, device=device, host=host)
    mixed = np.random.default_rng(1)
    costs = []
    for number in range(21):
        sources, to = (mixed.permutation(1024).tolist() for _ in range(2))
        made = plan(number, "down", sources, to)
        gc.collect()
        begun = time.thread_time()
        hands.submit(made)
        costs.append(time.thread_time() - begun)
        while not (said := hands.poll()):
            time.sleep(0.001)
        begun = time.thread_time()
        hands.poll()
        costs[-1] += time.thread_time() - begun
        assert said == [Outcome(1 << 32 | number, 0, 1024)]
    hands.close()
    assert sorted(costs)[10] < 0.001
