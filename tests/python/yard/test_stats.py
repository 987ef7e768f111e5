"""One schema for every number of `stats()`, and the page made from it."""

import logging
import re
from pathlib import Path

import pytest

import blockyard as by
from blockyard.handover.handover_stats import DECODE_STATS, PREFILL_STATS
from blockyard.local_cache import LocalCache
from blockyard.publishing.publisher import Publisher
from blockyard.scheduling.reservations import Reservations
from blockyard.shared.log import Limited
from blockyard.shared.stats import HELP, Stat
from blockyard.tools.replay.result import Run

LAYOUT = by.KVLayout.llama(layers=1, kv_heads=1, head_dim=8)


def test_the_schema_names_every_number_once() -> None:
    cache = by.KVCache(device=8, host=8)
    names = [stat.name for stat in cache.schema()]
    assert sorted(names) == sorted(cache.stats())
    assert len(set(names)) == len(names)
    with by.local(LAYOUT, device=8, host=8) as wired:
        names = [stat.name for stat in wired.schema()]
        assert sorted(names) == sorted(wired.stats())
    for stat in wired.schema():
        assert stat.unit
        assert stat.help
        assert not stat.help.endswith(".")


@pytest.mark.law("O6")
def test_each_number_has_a_kind_a_unit_and_a_metric_of_its_own() -> None:
    every = (
        *LocalCache.schema(),
        *by.Scheduler.SCHEMA,
        *Reservations.SCHEMA,
        *Publisher.SCHEMA,
        *PREFILL_STATS,
        *DECODE_STATS,
    )
    metrics = [stat.metric for stat in every]
    assert len(set(metrics)) == len(metrics)
    families: dict[str, list[Stat]] = {}
    for stat in every:
        assert stat.unit
        assert stat.help
        assert stat.kind in {"counter", "gauge"}
        assert re.fullmatch(r"[a-z_]+(\{([a-z]+=[a-z_]+,?)+\})?", stat.metric), stat
        # The words by which Prometheus tells kinds apart are added to them.
        assert not stat.family.endswith(("_total", "_count", "_sum", "_bucket", "_info"))
        families.setdefault(stat.family, []).append(stat)
    shared = {name: stats for name, stats in families.items() if len(stats) > 1}
    for name, stats in shared.items():
        most = max((stat.labels for stat in stats), key=len)
        assert all(stat.labels.keys() <= most.keys() for stat in stats), name
        assert len({stat.kind for stat in stats}) == 1, name
    assert shared.keys() == HELP.keys()


def test_a_query_names_a_number_as_prometheus_does() -> None:
    stats = {stat.name: stat for stat in LocalCache.schema()}
    assert stats["host_idle"].query == 'blockyard_slots{tier="host", set="idle"}'
    assert stats["begun"].query == 'blockyard_sequences_total{event="begun"}'
    assert stats["leases"].query == "blockyard_leases"


def test_a_message_is_logged_once_a_second_and_says_what_was_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seconds = [0.0]
    log = Limited("blockyard.test", clock=lambda: seconds[0])
    with caplog.at_level(logging.WARNING, "blockyard"):
        for at in range(5):
            log.warning("flight %d failed", at)
        log.warning("another")
        log.debug("not wanted")
        seconds[0] = 1.5
        log.warning("flight %d failed", 9)
    assert caplog.messages == ["flight 0 failed", "another", "flight 9 failed (and 4 more like it)"]


def test_every_number_that_the_page_on_sizing_sends_the_reader_to_is_there() -> None:
    page = (Path(__file__).parents[3] / "docs/sizing.md").read_text(encoding="utf-8")
    table = page.partition("\n## What each mistake looks like\n")[2]
    rows = [line.rpartition(" | ")[2] for line in table.splitlines() if line.startswith("| ")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    known = {stat.name for stat in (*LocalCache.schema(), *by.Scheduler.SCHEMA)}
    of_a_replay = re.findall(r"`(\w+)` of a replay", page)
    assert len(rows) > 8
    assert len(named) > 15
    assert set(named) - known == set(of_a_replay)
    assert set(of_a_replay) <= set(Run.__struct_fields__)
