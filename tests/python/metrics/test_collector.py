"""What Prometheus is told of an engine: each number once, by its own name."""

import itertools
import pickle
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

import blockyard as by
from blockyard import _core
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.tiers.disk import DiskTier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.metrics.collector import MOST, EngineCollector
from blockyard.metrics.exported import Exported
from blockyard.metrics.text import text as page
from blockyard.scheduling.reservations import Reservations
from blockyard.shared.timings import CraneNumbers
from busy import LAYOUT, Busy
from loop import Loop
from yard import begin, text


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
    return EngineCollector({"0": Exported(loop.scheduler, **more)})


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


def test_there_are_at_most_250_series_with_all_that_there_may_be() -> None:
    loop = Busy()
    collector = exported(loop, reservations=Reservations(loop.cache))
    found = [name for name in told(collector) if not name.startswith("blockyard_disk")]
    disk = [stat for stat in DiskTier.SCHEMA if stat.metric]
    assert len(found) + len(disk) == collector.most_series <= MOST
    loop.local.close()


@pytest.mark.parametrize(("ranks", "labels"), [(2, {"0", "1"}), (32, {"all"})])
def test_one_process_exports_for_all_ranks_by_rank_where_they_are_few(
    ranks: int, labels: set[str]
) -> None:
    cache = by.KVCache(device=64, host=64, ranks=ranks)
    engine = Exported(by.Scheduler(cache, metrics=True))
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
    engine = Exported(cache)
    collector = EngineCollector({"0": engine})
    seconds = [0.0]
    for crane in cranes:
        crane.measure(lambda: seconds[0])
    lease = begin(cache, text(1, 17))
    cache.seal(lease, 17)
    cache.finish(lease)
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
    assert found[f"blockyard_copied_bytes_total{{{pair}}}"] == 2 * 3 * layout.block_bytes
    times = "blockyard_copy_seconds"
    assert found[f"{times}_count{{{pair}}}"] == found[f"{times}_bucket{{{pair},le=0.03}}"] == 2
    assert found[f"{times}_bucket{{{pair},le=0.003}}"] == 0
    assert found[f"{times}_count{{from=host,to=device}}"] == 0
    assert found["blockyard_crane_blocks_total{rank=1}"] == 3
    for crane in cranes:
        crane.close()


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
    collector = EngineCollector({"0": Exported(cache)})
    for _ in range(2):
        lease = begin(cache, text(1, 17))
        cache.seal(lease, 17)
        cache.finish(lease)
    found = told(collector)
    assert found["blockyard_hit_blocks_total{tier=device}"] == 4
    assert found["blockyard_miss_blocks_total{reason=unseen}"] == 4
    assert found["blockyard_prompt_tokens_total{}"] == 34
    assert found["blockyard_cached_tokens_total{}"] == 16
    assert not [name for name in found if "disk" in name], "a tier that is not there is not told"


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
    scheduler.add("one", text(1, 9), max_tokens=1)
    scheduler.schedule()
    found = told(EngineCollector({"0": Exported(scheduler)}))
    part = "blockyard_step_seconds"
    assert found[f"{part}_count{{part=schedule}}"] == 1
    assert found[f"{part}_bucket{{part=schedule,le=0.000256}}"] == 0
    assert found[f"{part}_bucket{{part=schedule,le=+Inf}}"] == 1
    assert 0.001 <= found[f"{part}_sum{{part=schedule}}"] < 0.01
    assert found["blockyard_wait_seconds_count{}"] == 1
    assert 0 < found["blockyard_wait_seconds_sum{}"] < 0.1

    for _ in range(200):
        loop.once()
    found = told(exported(loop))
    assert found[f"{part}_count{{part=schedule}}"] == 200
    assert found[f"{part}_count{{part=output}}"] == 200
    assert found[f"{part}_count{{part=dispatch}}"] == 200
    # Once by `step` of the cache, and once by the output, which says that its step is done.
    assert found[f"{part}_count{{part=commit}}"] == 400
    stats = loop.scheduler.stats()
    assert found["blockyard_parked_seconds_count{}"] == stats["resumes"] > 0
    assert found["blockyard_wait_seconds_count{}"] == stats["admitted"] - stats["resumes"] > 0
    for pair in ("from=device,to=host", "from=host,to=device"):
        plans = found[f"blockyard_copied_blocks_total{{{pair}}}"]
        nbytes = found[f"blockyard_copied_bytes_total{{{pair}}}"]
        assert nbytes == plans * LAYOUT.block_bytes > 0
        assert found[f"blockyard_copy_seconds_count{{{pair}}}"] > 0
    loop.local.close()


def test_a_request_waits_for_one_reason() -> None:
    loop = Loop(device=17, host=32, max_num_seqs=2, metrics=True)
    monitor = loop.scheduler.monitor
    loop.add("runs", text(1, 30), 8)
    loop.turn()
    loop.add("large", text(2, 50), 2)
    loop.add("same", text(2, 50), 2)
    loop.add("held", text(3, 4), 2)
    loop.scheduler.hold("held")
    loop.turn()
    waits = monitor.waiting()
    assert sum(waits.values()) == loop.scheduler.stats()["waiting"] == 3
    assert waits["held"] == 1
    assert waits["room"] == 2
    loop.scheduler.unhold("held")
    loop.finish()
    assert sum(monitor.waiting().values()) == 0


def test_nothing_is_measured_where_nobody_asked_for_it() -> None:
    scheduler = by.Scheduler(by.KVCache(device=33))
    scheduler.schedule()
    found = told(EngineCollector({"0": Exported(scheduler)}))
    assert not [name for name in found if "seconds" in name]
    assert scheduler.monitor.steps() == {}
    assert scheduler.monitor.waited() is None


def test_our_text_says_what_that_of_the_library_says() -> None:
    loop = Busy()
    for _ in range(60):
        loop.once()
    collector = EngineCollector({'"0"\n\\': Exported(loop.scheduler)}, names="vllm")
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
    collector = EngineCollector({"0": Exported(scheduler)}, names="vllm")
    assert told(collector)["vllm:kv_cache_usage_perc{}"] == 0
    for _ in range(2):
        lease = begin(cache, text(1, 17))
        cache.seal(lease, 17)
        cache.finish(lease)
    held = begin(cache, text(2, 15))
    scheduler.add("one", text(3, 4), max_tokens=1)
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


def test_two_engines_of_a_process_have_a_label_each() -> None:
    engines = {name: Exported(by.KVCache(device=blocks)) for name, blocks in (("a", 9), ("b", 17))}
    (slots,) = (
        metric
        for metric in EngineCollector(engines).collect()
        if metric.name == "blockyard_tier_slots"
    )
    assert {sample.labels["engine"]: sample.value for sample in slots.samples} == {"a": 8, "b": 16}


def test_of_a_broken_cache_only_that_is_told() -> None:
    cache = by.KVCache(device=33)
    collector = EngineCollector({"0": Exported(cache), "1": Exported(by.KVCache(device=9))})
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
        ({"0": by.KVCache}, None, r"engines\['0'\] = .*must be Exported"),
        ({"0": Exported(by.KVCache(device=9))}, "sglang", "names = 'sglang': must be one of"),
        ({"0": Exported(by.KVCache(device=9))}, 3, "names = 3"),
    ],
)
def test_what_cannot_be_collected_is_named(engines: Any, names: Any, said: str) -> None:
    with pytest.raises(by.Misuse, match=said):
        EngineCollector(engines, names=names)


def test_only_an_engine_can_be_exported() -> None:
    with pytest.raises(by.Misuse, match="give a Scheduler or a KVCache"):
        Exported(3)  # type: ignore[arg-type]
