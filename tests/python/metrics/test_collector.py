"""What Prometheus is told of an engine: each number once, by its own name."""

import itertools
import pickle
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Info, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

import blockyard as by
from blockyard import _core
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.metrics.collector import MOST, EngineCollector
from blockyard.metrics.engine_view import EngineView
from blockyard.metrics.text import text as page
from blockyard.publishing.publisher import Publisher
from blockyard.scheduling.queue import BEGUN
from blockyard.scheduling.reservations import Reservations
from blockyard.shared.layout import TIERS
from blockyard.shared.timings import Copied, CopyTimes, CraneNumbers, Reading
from busy import LAYOUT, Busy
from loop import Loop, loading
from yard import begin, publish, text

ANY = "tcp://127.0.0.1:*"


def told(collector: EngineCollector) -> dict[str, float]:
    """Each series as Prometheus writes it, and its value."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page(collector.collect())):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sample.labels.items() if k != "engine")
            series = f"{sample.name}{{{labels}}}"
            assert series not in found, "a series is told twice"
            found[series] = sample.value
    return found


def exported(loop: Busy, **more: Any) -> EngineCollector:
    return EngineCollector({"0": EngineView(loop.scheduler, **more)})


@pytest.mark.law("O6")
def test_each_number_of_stats_is_told_once_and_as_it_is() -> None:
    loop = Busy()
    reservations = Reservations(loop.cache)
    reservations.open("other", 2, deadline=9)
    for _ in range(120):
        loop.once()
    collector = exported(loop, reservations=reservations)
    found = told(collector)
    numbers = {
        by.KVCache.schema(): loop.cache.stats(),
        by.Scheduler.SCHEMA: loop.scheduler.stats(),
        Reservations.SCHEMA: reservations.stats(),
        by.Crane.SCHEMA: loop.local.crane.stats(),
    }
    names = {metric.name: metric for metric in collector.describe()}
    seen = 0
    for schema, stats in numbers.items():
        for stat in schema:
            ending = "_total" if stat.kind == "counter" else ""
            wanted = stat.labels | ({"rank": "0"} if stat.name.startswith("crane") else {})
            series = {
                name: value
                for name, value in found.items()
                if name.startswith(f"blockyard_{stat.family}{ending}{{")
                and all(f"{label}={word}" in name for label, word in wanted.items())
            }
            # One that has fewer labels than its family is the sum of those that have more.
            assert sum(series.values()) == stats[stat.name], stat
            assert names[f"blockyard_{stat.family}"].type == stat.kind
            seen += stats[stat.name] > 0
    assert seen > 45
    loop.local.close()


@pytest.mark.law("O6")
def test_there_are_at_most_300_series_with_all_that_there_may_be() -> None:
    loop = Busy()
    with Publisher(loop.cache, ANY) as publisher:
        reservations = Reservations(loop.cache)
        collector = exported(loop, reservations=reservations, publisher=publisher)
        # Whatever was counted so far: a series is there from the first scrape on.
        before = set(told(collector))
        for _ in range(200):
            loop.once()
        found = told(collector)
    assert found.keys() == before
    assert len(found) == collector.most_series <= MOST
    assert found["blockyard_copy_bytes_count{from=disk,to=above}"] > 0
    loop.local.close()


@pytest.mark.law("O6")
def test_ways_between_tiers_are_told_as_two_for_each_below_the_device() -> None:
    ways = {("device", "host"), ("host", "device")}
    assert set(EngineView(by.KVCache(device=9, host=9)).ways()) == ways
    assert set(EngineView(by.KVCache(device=9, host=9, disk=9)).ways()) == ways | {
        ("above", "disk"),
        ("disk", "above"),
    }
    stores = {("above", "remote"), ("remote", "above")}
    of_four = EngineView(by.KVCache(device=9, host=9, disk=9, remote=9))
    disk = {("above", "disk"), ("disk", "above")}
    assert set(of_four.ways()) == ways | disk | stores
    assert set(EngineView(by.KVCache(device=9, disk=9, remote=9)).ways()) == stores | {
        ("device", "disk"),
        ("disk", "device"),
    }
    assert set(EngineView(by.KVCache(device=9, remote=9)).ways()) == {
        ("device", "remote"),
        ("remote", "device"),
    }
    below = EngineView(by.KVCache(device=9, disk=9))
    assert set(below.ways()) == {("device", "disk"), ("disk", "device")}
    one = CopyTimes()
    one.add(0.5, 64)
    pairs = [(a, b) for a in TIERS for b in TIERS if a != b]
    copies = of_four.copies([CraneNumbers(0, {}, dict.fromkeys(pairs, one.read()))])
    # None is lost.
    counted = dict.fromkeys(ways, 1) | dict.fromkeys(disk, 2) | dict.fromkeys(stores, 3)
    assert {way: len(copied) for way, copied in copies.items()} == counted


@pytest.mark.law("O6")
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "none"),
        ({"host": 9, "write": "second-touch"}, "second-touch"),
        ({"host": 9, "disk": 9}, "on-evict"),
        ({"host": 9, "disk": 9, "write": "through"}, "through, on-evict"),
        ({"disk": 9, "write": {"device": "second-touch", "host": "through"}}, "second-touch"),
    ],
)
def test_the_write_policies_are_told_of_the_tiers_that_have_one_below(
    options: dict[str, Any], says: str
) -> None:
    collector = EngineCollector({"0": EngineView(by.KVCache(device=9, **options))})
    (info,) = (name for name in told(collector) if name.startswith("blockyard_engine_info"))
    assert f"write={says}" in info


@pytest.mark.law("O6")
def test_events_are_told_as_soon_as_somebody_listens_and_a_publishers_beside() -> None:
    cache = by.KVCache(block_size=4, device=33, host=8)
    collector = EngineCollector({"0": EngineView(cache)})
    most = collector.most_series
    assert not [name for name in told(collector) if name.startswith("blockyard_event")]
    with Publisher(cache, ANY) as publisher:
        own = EngineCollector({"0": EngineView(cache, publisher=publisher)})
        publish(cache, text(1, 17))
        publish(cache, text(2, 9), salt="s")
        assert publisher.flush()
        for found in (told(collector), told(own)):
            assert found["blockyard_events_total{kind=stored}"] == 4
            assert found["blockyard_events_total{kind=salted}"] == 2
            assert found["blockyard_events_total{kind=removed}"] == 0
            assert found["blockyard_events_lost_total{}"] == 0
        assert "blockyard_event_batches_total{}" not in told(collector)
        assert told(own)["blockyard_event_batches_total{}"] == publisher.stats()["batches"] > 0
        assert told(own)["blockyard_event_replays_total{}"] == 0
        assert (collector.most_series, own.most_series) == (most, most + 3)
        with pytest.raises(by.Misuse, match="this publisher is of another cache"):
            EngineView(by.KVCache(device=9), publisher=publisher)
    with pytest.raises(by.Misuse, match="publisher = 3"):
        EngineView(cache, publisher=3)  # type: ignore[arg-type]


@pytest.mark.law("O6")
def test_events_that_are_lost_are_told() -> None:
    cache = by.KVCache(block_size=4, device=65)
    cache.listen(ring=16)
    for name in range(4):
        publish(cache, text(name, 41))
    collector = EngineCollector({"0": EngineView(cache)})
    assert told(collector)["blockyard_events_total{kind=stored}"] == 0, "nobody took them"
    cache.take_events()
    found = told(collector)
    assert found["blockyard_events_lost_total{}"] == cache.event_stats()["lost"] > 0


@pytest.mark.law("O6")
@pytest.mark.parametrize(("ranks", "labels"), [(2, {"0", "1"}), (32, {"all"})])
def test_one_process_exports_for_all_ranks_by_rank_where_they_are_few(
    ranks: int, labels: set[str]
) -> None:
    cache = by.KVCache(device=64, host=64, ranks=ranks)
    engine = EngineView(by.Scheduler(cache, metrics=True))
    collector = EngineCollector({"0": engine})
    crane = {stat.name: 0 for stat in by.Crane.SCHEMA}
    for rank in range(ranks):
        engine.tell(CraneNumbers(rank, crane | {"crane_blocks": 10 + rank}, {}))
    assert collector.most_series <= MOST
    found = {name: n for name, n in told(collector).items() if "crane_blocks" in name}
    assert {name.partition("rank=")[2].rstrip("}") for name in found} == labels
    assert sum(found.values()) == sum(10 + rank for rank in range(ranks))
    with pytest.raises(by.Misuse, match="rank = "):
        engine.tell(CraneNumbers(ranks, crane, {}))
    with pytest.raises(by.Misuse, match=r"Crane\.numbers"):
        engine.tell(crane)  # type: ignore[arg-type]


def test_what_cranes_in_other_processes_have_copied_comes_with_what_they_send() -> None:
    layout = by.KVLayout.llama(layers=1, kv_heads=2, head_dim=2, block_size=4, ranks=2)
    cache = by.KVCache(layout, device=17, host=17)
    cranes = [
        by.Crane(
            layout,
            rank=rank,
            device=MemoryTier(layout, 17, name="device"),
            host=MemoryTier(layout, 17, name="host"),
            copier=ThreadCopier(workers=0),
        )
        for rank in range(2)
    ]
    engine = EngineView(cache)
    collector = EngineCollector({"0": engine})
    seconds = [0.0]
    for crane in cranes:
        crane.measure(lambda: seconds[0])
    publish(cache, text(1, 17))
    assert cache.demote(3) is not None
    plans = cache.dispatch()
    for crane in cranes:
        crane.submit(plans)
    seconds[0] = 0.02
    assert cache.commit([outcome for crane in cranes for outcome in crane.poll()]) == 1
    for crane in cranes:
        engine.tell(pickle.loads(pickle.dumps(crane.numbers())))
    found = told(collector)
    pair = "from=device,to=host"
    sizes = "blockyard_copy_bytes"
    assert found[f"{sizes}_sum{{{pair}}}"] == 2 * 3 * layout.block_bytes
    assert found[f"{sizes}_count{{{pair}}}"] == 2
    assert found[f"{sizes}_bucket{{{pair},le=1048576.0}}"] == 2
    times = "blockyard_copy_seconds"
    assert found[f"{times}_count{{{pair}}}"] == found[f"{times}_bucket{{{pair},le=0.1}}"] == 2
    assert found[f"{times}_bucket{{{pair},le=0.01}}"] == 0
    assert found[f"{times}_count{{from=host,to=device}}"] == 0
    assert found["blockyard_crane_blocks_total{rank=1}"] == 3
    for crane in cranes:
        crane.close()


def copied(flights: int, nbytes: int) -> dict[tuple[str, str], Copied]:
    one = CopyTimes()
    for _ in range(flights):
        one.add(0.5, nbytes)
    return {("device", "host"): one.read()}


@pytest.mark.law("O6")
@pytest.mark.parametrize(("ranks", "rank"), [(2, "1"), (32, "all")])
def test_no_counter_falls_where_a_crane_in_another_process_is_made_anew(
    ranks: int, rank: str
) -> None:
    engine = EngineView(by.KVCache(device=9, host=9, ranks=ranks))
    collector = EngineCollector({"0": engine})
    names = (
        f"blockyard_crane_blocks_total{{rank={rank}}}",
        f"blockyard_crane_memory_bytes{{rank={rank}}}",
        "blockyard_copy_bytes_sum{from=device,to=host}",
        "blockyard_copy_seconds_count{from=device,to=host}",
    )

    def after(blocks: int, memory: int, flights: int, made: int) -> tuple[float, ...]:
        stats = {stat.name: 0 for stat in by.Crane.SCHEMA}
        stats |= {"crane_blocks": blocks, "crane_bytes": memory}
        engine.tell(CraneNumbers(1, stats, copied(flights, 8), made))
        found = told(collector)
        return tuple(found[name] for name in names)

    assert after(70, 5, 9, made=1) == (70, 5, 72, 9)
    # What overtook it was later: counters stay.
    assert after(60, 5, 8, made=1) == (70, 5, 72, 9)
    # Another crane: it counts from 0, and gauges are its own.
    assert after(2, 6, 1, made=2) == (72, 6, 80, 10)
    assert after(80, 6, 3, made=2) == (150, 6, 96, 12)
    # The last word of the first comes late.
    assert after(71, 5, 9, made=1) == (150, 6, 96, 12)
    assert after(1, 7, 0, made=3) == (151, 7, 96, 12)


@pytest.mark.parametrize(
    "numbers",
    [
        CraneNumbers(0, {"crane_blocks": "7"}, {}),  # type: ignore[dict-item]
        CraneNumbers(0, None, {}),  # type: ignore[arg-type]
        CraneNumbers(0, {}, {("device", "host"): Copied(Reading((1,), 0.0), Reading((1,), 0.0))}),
    ],
)
def test_what_no_crane_of_this_version_says_is_refused_and_spoils_no_scrape(
    numbers: CraneNumbers,
) -> None:
    engine = EngineView(by.KVCache(device=9, host=9))
    with pytest.raises(by.Misuse, match=r"give what Crane\.numbers\(\) returns"):
        engine.tell(numbers)
    assert "blockyard_crane_blocks_total{rank=0}" not in told(EngineCollector({"0": engine}))


def test_each_crane_says_when_it_was_made() -> None:
    cranes = [by.local(LAYOUT, device=9).crane for _ in range(2)]
    first, second = (crane.numbers().made for crane in cranes)
    assert 0 < first != second
    assert cranes[0].numbers().made == first


@pytest.mark.law("O6")
def test_no_counter_falls_and_a_scrape_changes_nothing() -> None:
    loop = Busy()
    collector = exported(loop)
    before: dict[str, float] = {}
    gauges = {metric.name for metric in collector.describe() if metric.type == "gauge"}
    for turn in range(150):
        loop.once()
        if turn % 5:
            continue
        digest = loop.cache.digest(), loop.scheduler.stats(), loop.cache.stats()
        found = told(collector)
        assert (loop.cache.digest(), loop.scheduler.stats(), loop.cache.stats()) == digest
        fallen = [
            name
            for name, value in found.items()
            if name.partition("{")[0] not in gauges and value < before.get(name, 0)
        ]
        assert not fallen
        before = found
    assert before["blockyard_preempted_requests_total{}"] > 0
    loop.local.close()


@pytest.mark.law("O6")
def test_no_token_salt_key_or_id_is_in_a_label() -> None:
    loop = Busy()
    loop.add("a-secret-name", text(7, 40), 4, salt="a-secret-salt")
    for _ in range(20):
        loop.once()
    words = page(exported(loop).collect())
    assert "secret" not in words
    assert "7001" not in words
    for line in words.splitlines():
        assert len(line.partition("}")[0]) < 200, line
    loop.local.close()


def test_hits_and_misses_are_told_by_tier_and_by_reason() -> None:
    cache = by.KVCache(block_size=4, device=33, host=8)
    collector = EngineCollector({"0": EngineView(cache)})
    for _ in range(2):
        publish(cache, text(1, 17))
    found = told(collector)
    assert found["blockyard_hit_blocks_total{tier=device}"] == 4
    assert found["blockyard_miss_blocks_total{reason=unseen}"] == 4
    assert found["blockyard_prompt_tokens_total{}"] == 34
    assert found["blockyard_cached_tokens_total{}"] == 16
    assert not [name for name in found if "disk" in name], "a tier that is not there is not told"


@pytest.mark.law("O6")
def test_the_parts_of_a_step_waits_and_copies_are_counted_by_the_clock_given() -> None:
    ticks = itertools.count()
    loop = Busy()
    # Between two readings of the clock one millisecond goes by, and nothing else moves it.
    clock = type("Clock", (), {"__call__": lambda _: next(ticks) / 1000})()
    scheduler = by.Scheduler(
        by.local(LAYOUT, device=33, host=24, copier=ThreadCopier(workers=0)),
        clock=clock,
        metrics=True,
    )
    scheduler.cache.begin(text(3, 8))
    scheduler.add(by.NewRequest("one", text(1, 9), max_tokens=1))
    scheduler.schedule()
    found = told(EngineCollector({"0": EngineView(scheduler)}))
    part = "blockyard_step_seconds"
    assert found[f"{part}_count{{part=schedule}}"] == 1
    assert found[f"{part}_bucket{{part=schedule,le=0.0002}}"] == 0
    assert found[f"{part}_bucket{{part=schedule,le=+Inf}}"] == 1
    assert 0.001 <= found[f"{part}_sum{{part=schedule}}"] < 0.01
    assert found["blockyard_wait_seconds_count{reason=seat}"] == 1
    assert 0 < found["blockyard_wait_seconds_sum{reason=seat}"] < 0.1

    for _ in range(200):
        loop.once()
    found = told(exported(loop))
    assert found[f"{part}_count{{part=schedule}}"] == 200
    assert found[f"{part}_count{{part=output}}"] == 200
    assert found[f"{part}_count{{part=dispatch}}"] == 200
    # By `step` of the cache: that of the output, which says only that its step is done, is not.
    assert found[f"{part}_count{{part=commit}}"] == 200
    stats = loop.scheduler.stats()
    assert found["blockyard_parked_seconds_count{}"] == stats["resumes"] > 0
    waits = {why: found[f"blockyard_wait_seconds_count{{reason={why}}}"] for why in BEGUN}
    assert sum(waits.values()) == stats["admitted"] - stats["resumes"]
    assert all(waits.values()), waits
    for pair in ("from=device,to=host", "from=host,to=device"):
        plans = found[f"blockyard_copied_blocks_total{{{pair}}}"]
        nbytes = found[f"blockyard_copy_bytes_sum{{{pair}}}"]
        assert nbytes == plans * LAYOUT.block_bytes > 0
        assert found[f"blockyard_copy_seconds_count{{{pair}}}"] > 0
    loop.local.close()


@pytest.mark.law("O6")
def test_a_wait_is_counted_by_what_kept_the_request_last() -> None:
    loop = Loop(device=17, max_num_seqs=2, metrics=True)
    loop.add("first", text(1, 30), 8)
    loop.add("same", text(1, 30), 2)
    loop.add("large", text(2, 50), 2)
    while not loop.scheduler.idle:
        loop.now += 1.0
        loop.turn()
    waited = loop.scheduler.monitor.waited()
    assert waited is not None
    # The first waited for its turn, the second for the prompt of the first, the third for room.
    assert {why: sum(times.counts) for why, times in waited.begun.items()} == dict.fromkeys(
        BEGUN, 1
    )
    assert waited.begun["seat"].total < waited.begun["prefix"].total < waited.begun["room"].total
    loop.finish()


def test_nothing_is_measured_where_nobody_asked_for_it() -> None:
    scheduler = by.Scheduler(by.KVCache(device=33))
    scheduler.schedule()
    found = told(EngineCollector({"0": EngineView(scheduler)}))
    assert not [name for name in found if "seconds" in name]
    assert scheduler.monitor.steps() == {}
    assert scheduler.monitor.waited() is None


def test_our_text_says_what_that_of_the_library_says() -> None:
    loop = Busy()
    for _ in range(60):
        loop.once()
    collector = EngineCollector({'"0"\n\\': EngineView(loop.scheduler)}, names="vllm")
    registry = CollectorRegistry()
    registry.register(collector)
    ours = list(text_string_to_metric_families(page(collector.collect())))
    theirs = list(text_string_to_metric_families(generate_latest(registry).decode()))
    assert ours == theirs
    assert len(ours) > 60
    odd = Metric("odd", 'of "a" \\ and\nb', "gauge")
    for number in (float("nan"), float("inf"), -float("inf"), 1.5):
        odd.add_sample("odd", {"is": str(number)}, number)
    parsed = next(iter(text_string_to_metric_families(page([odd]))))
    assert parsed.documentation == 'of "a" \\ and\nb'
    assert [str(sample.value) for sample in parsed.samples] == ["nan", "inf", "-inf", "1.5"]
    loop.local.close()


def test_vllms_names_say_the_same_numbers() -> None:
    cache = by.KVCache(block_size=4, device=33, host=8)
    scheduler = by.Scheduler(cache)
    collector = EngineCollector({"0": EngineView(scheduler)}, names="vllm")
    assert told(collector)["vllm:kv_cache_usage_perc{}"] == 0
    for _ in range(2):
        publish(cache, text(1, 17))
    held = begin(cache, text(2, 15))
    scheduler.add(by.NewRequest("one", text(3, 4), max_tokens=1))
    found = told(collector)
    assert found["vllm:kv_cache_usage_perc{}"] == 4 / 32
    assert found["vllm:prefix_cache_queries_total{}"] == 17 + 17 + 15
    assert found["vllm:prefix_cache_hits_total{}"] == 16
    assert found["vllm:external_prefix_cache_queries_total{}"] == 49 - 16
    assert found["vllm:external_prefix_cache_hits_total{}"] == 0
    assert found["vllm:num_requests_waiting{}"] == 1
    assert found["vllm:num_requests_running{}"] == 0
    sizes = "block_size=4,num_gpu_blocks=33,num_cpu_blocks=8"
    assert found[f"vllm:cache_config_info{{{sizes}}}"] == 1
    cache.finish(held)


def test_vllms_names_tell_running_and_waiting_requests_as_vllm_counts_them() -> None:
    loop = loading()
    loop.add("two", text(2, 9), 3)
    loop.turn()
    collector = EngineCollector({"0": EngineView(loop.scheduler)}, names="vllm")
    # What is loaded from below waits there.
    running, waiting = "vllm:num_requests_running{}", "vllm:num_requests_waiting{}"
    loop.add("three", text(3, 9), 3)
    found = told(collector)
    assert (found[running], found[waiting]) == (1, 2)
    loop.scheduler.fail("gone")
    found = told(collector)
    # Of a dead engine none runs, though its seats are not free yet.
    assert (loop.told("seats"), found[running], found[waiting]) == (1, 0, 2)


def test_nothing_is_looked_for_below_a_device_that_is_alone() -> None:
    cache = by.KVCache(block_size=4, device=33)
    begin(cache, text(1, 17))
    found = told(EngineCollector({"0": EngineView(cache)}, names="vllm"))
    assert found["vllm:prefix_cache_queries_total{}"] == 17
    assert found["vllm:external_prefix_cache_queries_total{}"] == 0


def test_a_registry_refuses_vllms_names_where_they_are_there_already() -> None:
    for name, kind in (("vllm:prefix_cache_hits", Counter), ("vllm:cache_config", Info)):
        registry = CollectorRegistry()
        kind(name, "Those of the engine.", registry=registry)
        own = EngineCollector({"0": EngineView(by.KVCache(device=9))}, names="vllm")
        with pytest.raises(ValueError, match=name):
            registry.register(own)


def test_two_engines_of_a_process_have_a_label_each() -> None:
    engines = {
        name: EngineView(by.KVCache(device=blocks)) for name, blocks in (("a", 9), ("b", 17))
    }
    (slots,) = (
        metric
        for metric in EngineCollector(engines).collect()
        if metric.name == "blockyard_tier_slots"
    )
    assert {sample.labels["engine"]: sample.value for sample in slots.samples} == {"a": 8, "b": 16}


def test_of_a_broken_cache_only_that_is_told() -> None:
    cache = by.KVCache(device=33)
    collector = EngineCollector({"0": EngineView(cache), "1": EngineView(by.KVCache(device=9))})
    with pytest.raises(by.Unavailable):
        _core._panic(cache, "verb")
    healthy = {
        sample.labels["engine"]: sample.value
        for metric in collector.collect()
        if metric.name == "blockyard_healthy"
        for sample in metric.samples
    }
    assert healthy == {"0": 0, "1": 1}


@pytest.mark.parametrize(
    ("engines", "names", "said"),
    [
        ({}, None, "give one at least"),
        ({"": None}, None, "its name must be a word"),
        ({"a\ud800": by.KVCache}, None, r"engines\['a\\ud800'\]: its name is no text"),
        ({"0": by.KVCache}, None, r"engines\['0'\] = .*must be EngineView"),
        ({"0": EngineView(by.KVCache(device=9))}, "sglang", "names = 'sglang': must be one of"),
        ({"0": EngineView(by.KVCache(device=9))}, 3, "names = 3"),
    ],
)
def test_what_cannot_be_collected_is_named(engines: Any, names: Any, said: str) -> None:
    with pytest.raises(by.Misuse, match=said):
        EngineCollector(engines, names=names)


def test_only_an_engine_can_be_exported() -> None:
    with pytest.raises(by.Misuse, match="give a Scheduler or a KVCache"):
        EngineView(3)  # type: ignore[arg-type]
    cache = by.KVCache(device=9)
    with pytest.raises(by.Misuse, match="reservations = 3"):
        EngineView(cache, reservations=3)  # type: ignore[arg-type]
    with pytest.raises(by.Misuse, match="stalled = 3"):
        EngineView(cache, stalled=3)  # type: ignore[arg-type]


@pytest.mark.law("O6")
@pytest.mark.parametrize(("others", "names"), [(0, {""}), (1, {"1", "0"}), (5, {"1", "others"})])
def test_numbers_of_tiers_name_their_group_where_there_are_several(
    others: int, names: set[str]
) -> None:
    def cache(group: int) -> by.KVCache:
        fields: dict[str, Any] = {"engine": 64, "host": 16, "disk": 16, "block_size": 4}
        return by.KVCache(**fields, linked=not group, group=group)

    spine = cache(0)
    # The engine calls the first group of full attention 1.
    numbers = [0, *range(2, others + 1)][:others]
    groups = {number: cache(at) for at, number in enumerate(numbers, 1)}
    for one in groups.values():
        one.offload(one.keys(range(8)), [1, 2])
        one.commit([by.Outcome.of(plan, 0, len(plan)) for plan in one.dispatch()])
    cuts = dict.fromkeys(groups, 7)
    view = EngineView(spine, groups={1: spine, **groups}, group=1, hits_cut=lambda: cuts)
    collector = EngineCollector({"0": view})
    found = told(collector)
    assert len(found) <= collector.most_series <= MOST
    slots = {one: value for one, value in found.items() if one.startswith("blockyard_slots{")}
    host = {one: value for one, value in slots.items() if "tier=host" in one and "idle" in one}
    shown = {part[6:] for one in host for part in one.strip("}").split(",") if "group=" in part}
    assert shown == (names - {""})
    assert sum(host.values()) == 2 * others
    assert [value for one, value in found.items() if "hits_cut" in one] == [7] * others


def test_stores_are_told_of_where_there_are_some_and_nowhere_else() -> None:
    none = told(EngineCollector({"0": EngineView(by.KVCache(device=9, host=9, disk=9))}))
    assert not [name for name in none if "remote" in name or "_store_" in name]
    view = EngineView(by.KVCache(device=9, remote=9))
    some = told(EngineCollector({"0": view}))
    assert [name for name in some if "tier=remote" in name]
    assert {stat.family for stat in view.crane_schema()} >= {"store_put_blocks", "store_rests"}
    few = EngineView(by.KVCache(device=9, host=9)).crane_schema()
    assert not [stat for stat in few if stat.family.startswith("store_")]
