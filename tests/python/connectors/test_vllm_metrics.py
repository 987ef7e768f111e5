"""The connector's numbers on vLLM's own `/metrics`."""

import re
from pathlib import Path
from typing import Any

import pytest

from blockyard.connectors.connector import Connector
from blockyard.connectors.vllm.metrics import INFO, Figures
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.testing import ScriptedCopier, fail
from blockyard.yard.cache import KVCache
from disks import dies
from vllm_disk import Engine
from vllm_front import Blocks, Front, ended, front, idle, no_torch
from vllm_prom import MODEL, Prom
from vllm_stub import Recorded

__all__ = ["front", "no_torch"]


def config_of(engine: Front) -> dict[str, Any]:
    """As the front end of an engine has it."""
    config = engine.scheduler.front.cache.config
    extra: dict[str, Any] = {"host": config.host_blocks}
    if config.disk_blocks:
        extra |= {"disk": config.disk_blocks, "disk_path": "/kv"}
    return {"kv_connector_extra_config": extra}


def truth(engine: Front, prom: Prom) -> list[str]:
    """Names what the front end has otherwise than the cache says now."""
    stats = engine.scheduler.front.cache.stats()
    # What the connector counts itself the cache knows nothing of.
    own = {stat.metric for stat in Connector.SCHEMA}
    names = {
        (f"blockyard_{stat.family}", frozenset(stat.labels.items())): stat.name
        for stat in KVCache.schema()
        if stat.metric not in own
    }
    seen, wrong = 0, []
    for metric in prom.registry.collect():
        for sample in metric.samples:
            labels = frozenset(sample.labels.items() - {("model_name", MODEL), ("engine", "0")})
            name = names.get((metric.name, labels))
            if name is not None and not sample.name.endswith("_created"):
                seen += 1
                if sample.value != stats[name]:
                    wrong.append(f"{name}: {sample.value}, and {stats[name]} in truth")
    assert seen > 20
    return wrong


def test_before_the_first_request_each_series_is_there_and_sizes_are_told(front: Front) -> None:
    prom = Prom(**config_of(front))
    # A counter that begins above 0 has no increase for Prometheus.
    assert set(prom.counters().values()) == {0.0}
    assert prom.value("blockyard_copies_failed_total", cause="unknown") == 0
    idle(front)
    prom.take(front.told)
    assert prom.value("blockyard_tier_slots", tier="host") == 64
    assert prom.value("blockyard_block_tokens") == 4
    assert truth(front, prom) == []


def test_an_idle_engine_has_told_its_last_numbers(front: Front) -> None:
    prom = Prom(**config_of(front))
    for at in range(3):
        ended(front, f"r{at}", [100 * at + one for one in range(11)], [1, 2, 3])
        assert idle(front) > 0
        prom.take(front.told)
        assert truth(front, prom) == []
        assert prom.value("blockyard_slots", tier="host", set="idle") == 2 * (at + 1)
    assert prom.copied_down() == 6
    # It sleeps, and what changes nothing keeps it asleep.
    assert idle(front) == 0


def test_a_reset_of_an_engine_that_sleeps_is_told(front: Front) -> None:
    prom = Prom(**config_of(front))
    ended(front, "one", list(range(11)), [1, 2, 3])
    idle(front)
    front.scheduler.reset_cache()
    assert idle(front) > 0
    prom.take(front.told)
    assert prom.value("blockyard_clears_total") == 1
    assert truth(front, prom) == []


def test_an_engine_that_works_reports_once_a_second_and_not_at_each_step(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter = front.scheduler._reporter
    now, reads = 0.0, 0
    read = reporter.read

    def counting() -> dict[str, int]:
        nonlocal reads
        reads += 1
        return read()

    monkeypatch.setattr(reporter, "clock", lambda: now)
    monkeypatch.setattr(reporter, "read", counting)
    one = front.request("one", list(range(10)))
    front.begin(one, [1, 2, 3])
    front.step({one: ([1, 2, 3], 10)})
    for _ in range(256):
        now += 1 / 64
        front.step(more={one: (None, 10, 1)})
    # Four seconds, and the first step.
    assert (len(front.told), reads) == (5, 5)


def test_no_counter_falls_and_reports_add_up_whoever_joins_them(front: Front) -> None:
    prom, joined = Prom(**config_of(front)), Prom(**config_of(front))
    before, reports = prom.counters(), []
    for at in range(4):
        ended(front, f"r{at}", [100 * at + one for one in range(11)], [1, 2, 3])
        idle(front)
        reports += [Figures(dict(one)) for one in front.told]
        prom.take(front.told)
        now = prom.counters()
        assert all(now[name] >= number for name, number in before.items())
        before = now
    total = reports[0]
    for one in reports[1:]:
        total = total.aggregate(one)
    joined.take([total.data])
    assert joined.counters() == prom.counters()
    shown = total.reduce()
    assert shown["blockyard copied_blocks{from=device,to=host}"] == 8
    assert not {"version", "block_tokens"} & {name.removeprefix("blockyard ") for name in shown}
    assert not total.is_empty()
    total.reset()
    assert total.is_empty()


def test_an_engine_that_is_made_anew_counts_on_where_its_front_end_lives() -> None:
    prom = Prom(kv_connector_extra_config={"host": 64})
    for at in range(2):
        engine = Front()
        ended(engine, "one", list(range(11)), [1, 2, 3])
        idle(engine)
        prom.take(engine.told)
        assert prom.copied_down() == 2 * (at + 1)
        assert prom.value("blockyard_slots", tier="host", set="idle") == 2
        engine.worker.shutdown()


def test_prompts_are_counted_once_by_the_tier_that_had_them() -> None:
    engine = Front()
    prom = Prom(**config_of(engine))
    ended(engine, "one", list(range(11)), [1, 2, 3])
    idle(engine)
    two = engine.request("two", list(range(17)))
    # vLLM has its first block itself, and asks again, as it finds no room at first.
    for _ in range(2):
        assert engine.scheduler.get_num_new_matched_tokens(two, 4) == (4, True)
    engine.scheduler.update_state_after_alloc(two, Blocks([7, 8, 9, 10, 11]), 4)
    engine.until("two")
    engine.scheduler.update_state_after_alloc(two, Blocks([7, 8, 9, 10, 11]), 0)
    engine.step({two: ([7, 8, 9, 10, 11], 9)})
    two.num_tokens, two.num_preemptions = 18, 1
    engine.step(preempted={"two"})
    idle(engine)
    assert engine.begin(two, [1, 2, 3, 4, 5]) == 17
    engine.until("two")
    engine.scheduler.update_state_after_alloc(two, Blocks([1, 2, 3, 4, 5]), 0)
    engine.scheduler.request_finished(two, [])
    idle(engine)
    prom.take(engine.told)
    assert prom.value("blockyard_prompt_tokens_total") == 8 + 16
    found = [prom.value("blockyard_cached_tokens_total", tier=tier) for tier in ("device", "host")]
    assert found == [4, 4]
    assert prom.value("blockyard_admitted_requests_total") == 3
    assert prom.value("blockyard_preempted_requests_total") == 1
    assert prom.value("blockyard_victims_total", fate="parked") == 1
    assert prom.value("blockyard_sequences_total", event="parked") == 1
    assert truth(engine, prom) == []
    engine.worker.shutdown()


def test_what_comes_from_the_disk_is_counted_as_its(tmp_path: Path) -> None:
    first = Engine(tmp_path)
    ended(first, "one", list(range(11)), [1, 2, 3])
    idle(first)
    first.close()
    first.scheduler.shutdown()
    second = Engine(tmp_path)
    prom = Prom(**config_of(second))
    second.load("two", list(range(11)), [7, 8, 9], [0, 0], 0)
    idle(second)
    prom.take(second.told)
    assert prom.value("blockyard_cached_tokens_total", tier="disk") == 8
    assert prom.value("blockyard_hit_blocks_total", tier="disk") == 2
    second.close()


def test_a_preempted_request_without_room_below_and_one_whose_kv_is_lost_are_told() -> None:
    engine = Front(ScriptedCopier(ThreadCopier(workers=0), [fail(0)] * 20), host=16)
    prom = Prom(kv_connector_extra_config={"host": 16})
    rows = []
    for at, ids in enumerate(([*range(1, 13)], [*range(13, 25)])):
        one = engine.request(f"r{at}", [100 * at + token for token in range(45)])
        assert engine.begin(one, ids) == 0
        engine.step({one: (ids, 45)})
        one.num_tokens = 46
        rows.append(one)
    for one in rows:
        one.num_preemptions = 1
    engine.step(preempted={"r0", "r1"})
    idle(engine)
    assert [engine.begin(one, [*range(1, 13)]) for one in rows] == [0, 0]
    idle(engine)
    prom.take(engine.told)
    fates = [prom.value("blockyard_victims_total", fate=fate) for fate in ("parked", "no_host")]
    assert fates == [1, 1]
    assert prom.value("blockyard_preempted_requests_total") == 2
    assert prom.value("blockyard_parked_lost_total", why="kv_lost") == 1
    assert prom.value("blockyard_copies_failed_total", cause="failed") > 0
    assert truth(engine, prom) == []
    engine.worker.shutdown()


def test_each_rank_tells_of_its_disk_by_its_number(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    prom = Prom(tensor_parallel_size=2, **config_of(engine))
    ended(engine, "one", list(range(11)), [1, 2, 3])
    idle(engine)
    prom.take(engine.told)
    assert prom.value("blockyard_disk_written_bytes_total", rank="0") > 0
    assert prom.value("blockyard_disk_written_bytes_total", rank="1") == 0
    dies(tmp_path)
    ended(engine, "two", list(range(100, 111)), [4, 5, 6])
    idle(engine)
    prom.take(engine.told)
    assert prom.value("blockyard_disk_failures_total", rank="0") > 0
    assert prom.value("blockyard_disk_failures_total", rank="1") == 0
    engine.close()


def test_two_ranks_reports_of_a_step_are_both_there() -> None:
    one, other = (Figures({f"disk_failures{{rank={at}}}": 1 + at}) for at in (0, 1))
    both = one.aggregate(other)
    assert both.data == {"disk_failures{rank=0}": 1, "disk_failures{rank=1}": 2}
    assert both.aggregate(other).data["disk_failures{rank=1}"] == 4


def test_replicas_are_apart_by_vllms_own_label() -> None:
    engine = Front()
    prom = Prom(2, kv_connector_extra_config={"host": 64})
    ended(engine, "one", list(range(11)), [1, 2, 3])
    idle(engine)
    prom.take(engine.told, 1)
    assert [prom.copied_down(replica) for replica in (0, 1)] == [0, 2]
    engine.worker.shutdown()


@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("events", [False, True])
def test_there_are_series_for_what_the_engine_has_and_no_others(
    tmp_path: Path, *, disk: bool, events: bool
) -> None:
    changes: dict[str, Any] = {}
    if events:
        said = Recorded("KVEventsConfig", enable_kv_cache_events=True)
        changes["kv_events_config"] = said
    engine = Engine(tmp_path, changes=changes) if disk else Front(changes=changes)
    prom = Prom(**config_of(engine), **changes)
    ended(engine, "one", list(range(11)), [1, 2, 3])
    idle(engine)
    # As vLLM does at the end of each step.
    list(engine.scheduler.take_events())
    idle(engine)
    known = {metric for _, metric in prom.metrics._series} | set(INFO)
    told = {metric for data in engine.told for metric in data}
    assert told <= known
    assert bool(re.search(r"tier=disk|rank=", " ".join(known))) == disk
    assert any(metric.startswith("events") for metric in known) == events
    if events:
        assert sum(one.get("events{kind=stored}", 0) for one in engine.told) >= 2
    prom.take(engine.told)
    (info,) = [
        sample.labels
        for metric in prom.registry.collect()
        for sample in metric.samples
        if sample.name == "blockyard_engine_info"
    ]
    assert (info["write"], info["ranks"]) == ("through" if disk else "none", "1")
    assert len(known) < 120
    engine.worker.shutdown()
