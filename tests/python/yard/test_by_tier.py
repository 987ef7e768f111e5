"""Settings by tier: one value for all of them, or a mapping by their names."""

import pickle
import re
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from blockyard.shared.plan import Outcome
from blockyard.yard.config import BlockCosts
from blockyard.yard.flights import Flights
from yard import begin, plan_of, text

FIRST = 1 << 32
SIZES = {"device": 64, "host": 320, "disk": 6400}


def config(**keywords: Any) -> by.Config:
    return by.Config(**(SIZES | keywords))


def made(**keywords: Any) -> by.KVCache:
    return by.KVCache(**({"block_size": 4} | SIZES | keywords))


def aheads(one: by.Config) -> list[int]:
    return [one.ahead_of(tier) for tier in SIZES]


def test_ahead_has_a_default_for_each_tier_that_has_one_below_it() -> None:
    assert aheads(config()) == [4, 20, 0]
    assert aheads(config(disk=0)) == [4, 0, 0]
    assert aheads(config(host=0)) == [4, 0, 0]
    assert aheads(config(host=0, disk=0)) == [0, 0, 0]
    assert aheads(config(host=2**20)) == [4, 4096, 0]
    assert config(host=0).ahead_blocks == config(disk=0).ahead_blocks == 4
    # A victim without a copy is lost there, though it had one before.
    for first in ({"host_copies": "first"}, {"eviction": "learned"}):
        assert config(**first).ahead_blocks == 4 * config().ahead_blocks
    assert config(eviction="learned", host_copies="last").ahead_blocks == 4


def test_ahead_is_one_number_for_all_or_a_mapping_with_defaults() -> None:
    assert aheads(config(ahead=7)) == [7, 7, 0]
    assert aheads(config(ahead=7, disk=0)) == [7, 0, 0]
    assert aheads(config(ahead={"host": 9})) == [4, 9, 0]
    assert aheads(config(ahead={"host": 0, "device": 3})) == [3, 0, 0]
    assert aheads(config(ahead={})) == [4, 20, 0]


def test_write_is_the_devices_where_it_is_one_word() -> None:
    def writes(**keywords: Any) -> list[str]:
        core = config(**keywords).core()
        return [core["write"], *core["writes_below"]]

    assert writes() == ["on-evict"] * 3
    assert writes(write="through") == ["through", "on-evict", "on-evict"]
    assert writes(write={"disk": "through"}) == ["on-evict", "on-evict", "through"]
    both = {"host": "second-touch", "device": "through"}
    assert writes(write=both) == ["through", "second-touch", "on-evict"]
    assert config(write=both).write_of("host") == "second-touch"
    assert writes(write={}) == ["on-evict"] * 3


def test_a_deadline_is_for_all_or_for_the_tiers_that_it_names() -> None:
    def deadlines(given: Any) -> list[int | None]:
        return [config(deadline=given).deadline_of(tier) for tier in SIZES]

    assert deadlines(None) == [None, None, None]
    assert deadlines(5) == [5, 5, 5]
    assert deadlines({"disk": 50, "host": 5}) == [None, 5, 50]
    assert deadlines({"device": 2}) == [2, None, None]


MAPPINGS: list[dict[str, Any]] = [
    {"write": {"host": "through"}},
    {"write": {"host": "second-touch", "device": "through"}},
    {"ahead": {"device": 3}},
    {"ahead": {"host": 0, "device": 3}},
    {"deadline": {"disk": 50, "device": 1, "host": 5}},
    {"block_costs": (1, 2, 3, 40)},
    {"block_costs": (1, 2)},
]


@pytest.mark.parametrize("given", MAPPINGS)
def test_what_is_given_by_tier_comes_back_whole_and_can_be_hashed(
    given: dict[str, Any], tmp_path: Path
) -> None:
    one = config(**given)
    assert hash(one) == hash(config(**given))
    assert by.Config.of(one.to_mapping()) == one
    assert by.Config.of(one.to_mapping()).fingerprint == one.fingerprint
    assert pickle.loads(pickle.dumps(one)) == one
    assert by.KVCache(one).config == one
    path = tmp_path / "yard.toml"
    lines = [f"{name} = {blocks}" for name, blocks in SIZES.items()]
    for name, value in given.items():
        if isinstance(value, dict):
            lines.append(f"[{name}]")
            lines += [f"{tier} = {said!r}" for tier, said in value.items()]
        else:
            lines.append(f"{name} = {list(value)}")
    path.write_text("\n".join(lines))
    assert by.Config.read(path) == one


def test_a_mapping_is_the_same_in_any_order_and_is_frozen() -> None:
    given = {"host": 5, "disk": 50}
    one = config(deadline=given)
    assert one == config(deadline=dict(reversed(given.items())))
    before = one.fingerprint
    given["host"] = 1
    assert (one.deadline_of("host"), one.fingerprint) == (5, before)
    assert one.to_mapping()["deadline"] == {"host": 5, "disk": 50}


def test_each_setting_by_tier_changes_the_fingerprint() -> None:
    prints = [config(**given).fingerprint for given in [{}, *MAPPINGS, {"block_costs": (1, 2, 3)}]]
    assert len(set(prints)) == len(prints)
    assert config(write="on-evict").fingerprint == config().fingerprint


BAD: list[tuple[dict[str, Any], str]] = [
    ({"write": {"tape": "through"}}, "write names 'tape': it is for 'device', 'host', 'disk'"),
    ({"write": {"remote": "through"}}, "write names 'remote': it is for 'device', 'host', 'disk'"),
    ({"write": {"host": "never"}}, "write: host = 'never': must be one of 'on-evict', 'through'"),
    ({"write": {1: "through"}}, "write names 1: it is for 'device', 'host'"),
    ({"write": ["through"]}, "write = ['through']: must be one of"),
    ({"ahead": {"remote": 1}}, "ahead names 'remote': it is for 'device', 'host', 'disk'"),
    ({"ahead": {"host": -1}}, "ahead: host = -1: must be an integer >= 0"),
    ({"ahead": {"device": None}}, "ahead: device = None"),
    ({"ahead": {"device": True}}, "ahead: device = True"),
    (
        {"deadline": {"tape": 1}},
        "deadline names 'tape': it is for 'device', 'host', 'disk', 'remote'",
    ),
    ({"deadline": {"disk": 0}}, "deadline: disk = 0: must be an integer >= 1"),
    ({"deadline": {"disk": 1.5}}, "deadline: disk = 1.5"),
    ({"deadline": "disk"}, "deadline = 'disk'"),
    ({"block_costs": (1, 2, 3, -4)}, "block_costs: disk = -4"),
    ({"block_costs": (1, 2, 3, None, -5)}, "block_costs: remote = -5"),
    (
        {"block_costs": (1, 2, 3, 4, 5, 6)},
        "block_costs = (1, 2, 3, 4, 5, 6): give (load, compute, attend",
    ),
    ({"block_costs": (1, 2, None, 4)}, "block_costs: attend = None"),
]


@pytest.mark.parametrize(("given", "says"), BAD)
def test_a_tier_that_has_no_such_setting_is_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(by.Misuse, match=re.escape(says)):
        config(**given)
    with pytest.raises(by.Misuse, match=re.escape(says)):
        made(**given)


@pytest.mark.parametrize("given", [(1,), ("through", "through"), (("host",),), ("tape", 1)])
@pytest.mark.parametrize("name", ["write", "deadline", "ahead"])
def test_what_is_no_mapping_is_named(name: str, given: Any) -> None:
    with pytest.raises(by.Misuse, match=re.escape(f"{name} = {given!r}: give one value, or a map")):
        config(**{name: given})


def test_loads_from_the_disk_have_a_speed_of_their_own() -> None:
    assert BlockCosts(1, 2).disk is None
    cache = made(block_costs=BlockCosts(10, 20, 0, 30))
    assert cache.worth_loading(8)
    assert cache.worth_loading(8, tier="host")
    assert not cache.worth_loading(8, tier="disk")
    alike = made(block_costs=(10, 20, 0))
    assert alike.worth_loading(8, tier="disk"), "like the host where it has none"
    assert config(block_costs=(10, 20, 0)).block_costs == BlockCosts(10, 20, 0, None)
    late = made(block_costs=(10, 20, 1, 30))
    worth = [late.worth_loading(8, at, tier="disk") for at in range(8)]
    assert worth == sorted(worth), "later blocks attend to more"
    assert (worth[0], worth[-1]) == (False, True)
    for bad, says in (("device", "tier = 'device': blocks are loaded from"), ("tape", "tier =")):
        wrong: Any = bad
        with pytest.raises(by.Misuse, match=says):
            cache.worth_loading(8, tier=wrong)


# -- deadlines in flight -------------------------------------------------------------------------


def flights(**by_tier: int) -> Flights:
    return Flights(1, by_tier.get)


def overdue(flights: Flights, now: int) -> list[int]:
    """What is late now, which counts as unknown from here on."""
    late = flights.overdue(now)
    flights.unknown(late, now)
    return late


def test_two_deadlines_are_kept_apart_and_each_flight_is_late_at_its_own() -> None:
    all_ = flights(host=3, disk=30)
    ways = ["device host", "device disk", "host device", "disk device", "host disk"]
    for flight, way in enumerate(ways):
        all_.launch(plan_of(2, flight=FIRST + flight, way=way), flight)
    late = {now: [flight - FIRST for flight in overdue(all_, now)] for now in range(40)}
    assert {now: ended for now, ended in late.items() if ended} == {
        3: [0],
        5: [2],
        31: [1],
        33: [3],
        34: [4],
    }
    assert all_.stats()["flights_unknown"] == len(ways)


def test_where_one_tier_alone_has_a_deadline_others_wait_for_ever() -> None:
    all_ = flights(host=3)
    for flight, way in enumerate(["device disk", "device host", "device device"], FIRST):
        all_.launch(plan_of(2, flight=flight, way=way), 0)
    assert overdue(all_, 10**9) == [FIRST + 1]
    every = [FIRST, FIRST + 1, FIRST + 2]
    ended = all_.report(Outcome(flight, 0, 2) for flight in every).flights
    assert ended == every
    all_.forget(ended)
    assert len(all_) == 0


def test_a_flight_that_ended_in_time_is_not_late_though_others_of_its_tier_are() -> None:
    all_ = flights(host=3, disk=5)
    for flight, way in enumerate(["host device"] * 2 + ["device disk"] * 2, FIRST):
        all_.launch(plan_of(1, flight=flight, way=way), 0)
    all_.forget(all_.report([Outcome(FIRST, 0, 1), Outcome(FIRST + 2, 0, 1)]).flights)
    assert overdue(all_, 2) == []
    assert overdue(all_, 4) == [FIRST + 1]
    assert overdue(all_, 5) == [FIRST + 3]
    assert overdue(all_, 99) == []


def test_a_flight_to_a_slow_disk_is_not_late_at_the_deadline_of_the_host() -> None:
    cache = by.KVCache(
        block_size=4, device=17, host=8, disk=8, ahead=0, deadline={"host": 2, "disk": 6}
    )
    handles = [cache.park(begin(cache, text(name, 8)), 8) for name in (1, 2)]
    down = cache.demote(2, of=handles[0], to="disk"), cache.demote(2, of=handles[1])
    assert [plan.destination_tier for plan in cache.dispatch()] == ["disk", "host"]
    assert all(down)
    unknown = []
    for now in range(1, 9):
        cache.commit([], now=now)
        stats = cache.stats()
        unknown.append((stats["host_quarantined"], stats["disk_quarantined"]))
    assert unknown == [(0, 0)] + 4 * [(2, 0)] + 3 * [(2, 2)]
    assert cache.stats()["flights_unknown"] == 2
    assert cache.audit() is None
