"""What an operator deploys, tried with Prometheus itself."""

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import pytest

from blockyard.metrics.engine_view import EngineView
from blockyard.metrics.server import MetricsServer, serve
from blockyard.publishing.publisher import Publisher
from blockyard.scheduling.reservations import Reservations
from busy import Busy
from needs import need
from prometheus import DEPLOY, Prometheus, panels_of, queries

RULES: Final = DEPLOY / "prometheus" / "rules.yml"
ALERT: Final = re.compile(r"- alert: (\w+)")
METRIC: Final = re.compile(r"blockyard_\w+")
BOARD: Final = (DEPLOY / "grafana" / "blockyard.json").read_text()
PANELS: Final = panels_of(DEPLOY / "grafana" / "blockyard.json")


def promtool(*what: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    tool = need("promtool")
    return subprocess.run(  # noqa: S603 - the tool that is tested with
        [tool, *what], input=given, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture(scope="module")
def busy() -> Iterator[tuple[Busy, MetricsServer]]:
    """An engine under traffic, and its metrics."""
    loop = Busy()
    with Publisher(loop.cache, "tcp://127.0.0.1:*") as publisher:
        engine = EngineView(
            loop.scheduler, reservations=Reservations(loop.cache), publisher=publisher
        )
        with serve(engine, port=0, names="vllm") as server:
            for _ in range(150):
                loop.once()
            yield loop, server
    loop.local.close()


def scraped(server: MetricsServer) -> str:
    with urlopen(f"{server.url}/metrics", timeout=20) as answer:  # noqa: S310 - our own
        words: str = answer.read().decode()
        return words


def test_promtool_finds_no_fault_with_our_names(busy: tuple[Busy, MetricsServer]) -> None:
    lines = scraped(busy[1]).splitlines(keepends=True)
    # Colons are for recording rules, and for vLLM.
    own = "".join(line for line in lines if "vllm:" not in line)
    checked = promtool("check", "metrics", given=own)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_promtool_finds_no_fault_with_the_rules_and_the_example() -> None:
    for what, name in (("rules", "rules.yml"), ("config", "prometheus.yml")):
        checked = promtool("check", what, str(DEPLOY / "prometheus" / name))
        assert checked.returncode == 0, checked.stderr
        assert "SUCCESS" in checked.stdout


def test_each_alert_fires_for_its_trouble_alone(tmp_path: Path) -> None:
    tests = sorted((DEPLOY / "prometheus").glob("*_test.yml"))
    checked = promtool("test", "rules", *map(str, tests))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = "".join(test.read_text() for test in tests)
    alerts = ALERT.findall(RULES.read_text())
    assert len(alerts) > 12
    assert [name for name in alerts if f'"{name}"' not in tested] == []
    # The tests can fail: here one alert waits for what never comes.
    shutil.copy(DEPLOY / "prometheus" / "rules_test.yml", tmp_path)
    broken = RULES.read_text().replace("blockyard_healthy == 0", "blockyard_healthy == 2")
    (tmp_path / "rules.yml").write_text(broken)
    assert promtool("test", "rules", str(tmp_path / "rules_test.yml")).returncode != 0


def test_rules_panels_and_the_page_name_only_metrics_that_there_are(
    busy: tuple[Busy, MetricsServer],
) -> None:
    told = set(METRIC.findall(scraped(busy[1])))
    page = (DEPLOY.parent / "docs" / "monitoring.md").read_text()
    for words in (RULES.read_text(), BOARD, page):
        named = set(METRIC.findall(words))
        assert len(named) > 8
        # With several groups of layers there is one more: test_collector.py has it.
        assert named - told - {"blockyard_core", "blockyard_hits_cut_total"} == set()
    assert [name for name in ALERT.findall(RULES.read_text()) if f"`{name}`" not in page] == []


def test_each_panel_has_a_place_and_asks_of_the_engines_that_were_chosen() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in PANELS]
    assert len(set(places)) == len({panel["title"] for panel in PANELS}) == len(PANELS) > 8
    chosen = 'engine=~"$engine",instance=~"$instance"'
    for query in (target["expr"] for panel in PANELS for target in panel["targets"]):
        assert query.count(chosen) == len(METRIC.findall(query)) > 0, query


def test_a_prometheus_that_scrapes_a_live_cache_answers_each_query_of_each_panel(
    busy: tuple[Busy, MetricsServer], tmp_path: Path
) -> None:
    loop, server = busy
    prometheus = Prometheus(need("prometheus"), tmp_path, server.address, RULES)
    try:
        until = time.monotonic() + 60
        while len(prometheus.ask("count_over_time(blockyard_steps_total[1m]) > 4")) == 0:
            assert time.monotonic() < until, "it does not scrape"
            for _ in range(4):
                loop.once()
            time.sleep(0.05)
        for panel in PANELS:
            for query, legend in queries(panel):
                rows = prometheus.ask(query)
                # A rule that does not speak gives no row: that is what one hopes for.
                assert rows or query.endswith("== 1"), (panel["title"], query)
                for label in re.findall(r"{{(\w+)}}", legend):
                    assert all(label in row["metric"] for row in rows), (panel["title"], label)
        wanted = 'blockyard_slots{tier="host"}'
        assert {row["metric"]["engine"] for row in prometheus.ask(wanted)} == {"0"}
        loaded = prometheus.ask("up{job='blockyard'} == 1")
        assert len(loaded) == 1
    finally:
        prometheus.close()
