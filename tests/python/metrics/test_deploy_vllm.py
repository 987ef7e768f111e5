"""What an operator deploys beside vLLM: rules and panels that the connector has all numbers for."""

import importlib.util
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from needs import need
from prometheus import DEPLOY, panels_of
from vllm_front import Front, no_torch
from vllm_prom import Prom
from vllm_stub import Recorded

__all__ = ["no_torch"]

ROOT: Final = Path(__file__).parents[3]
OWN: Final = (DEPLOY / "prometheus" / "rules.yml").read_text()
RULES: Final = DEPLOY / "vllm" / "rules.yml"
PANELS: Final = panels_of(DEPLOY / "vllm" / "blockyard.json")
ALERT: Final = re.compile(r"- alert: (\w+)")
SELECTOR: Final = re.compile(r"(?<![\w:])((?:blockyard|vllm)[_:][\w:]*)(?:{([^}]*)})?")
MATCHER: Final = re.compile(r'(\w+)(=~|!=|=)"([^"]*)"')
NAMED: Final = re.compile(r"\b(?:by|on|ignoring|group_left|group_right) \(([^)]*)\)")
SCRAPED: Final = {"job", "instance"}
"""Labels that Prometheus adds."""


@pytest.fixture
def told(no_torch: None) -> Prom:  # noqa: ARG001 - it is set before
    """All that the connector tells: of two ranks and two replicas, with a disk and with events."""
    prom = Prom(
        2,
        tensor_parallel_size=2,
        kv_connector_extra_config={"host": 16, "disk": 64, "disk_path": "/kv"},
        kv_events_config=Recorded("KVEventsConfig", enable_kv_cache_events=True),
    )
    engine = Front()
    engine.scheduler.has_pending_push_work()
    engine.step()
    for replica in (0, 1):
        prom.take([*engine.told], replica)
    engine.worker.shutdown()
    return prom


def expressions() -> Iterator[str]:
    """All that is asked inside vLLM."""
    blocks = re.split(r"^      - (?=alert|record)", RULES.read_text(), flags=re.MULTILINE)[1:]
    for block in blocks:
        expression = block.partition("expr:")[2]
        yield re.split(r"\n        (?:for|labels|annotations):|\n\n", expression)[0]
    for panel in PANELS:
        for target in panel["targets"]:
            yield re.sub(r",?(?:engine|instance)=~\"\$\w+\"", "", target["expr"])


def fits(labels: dict[str, str], matchers: str) -> bool:
    """Whether a series is one that a selector means; what Prometheus adds is left out."""
    for name, how, wanted in MATCHER.findall(matchers):
        value = labels.get(name, "")
        holds = {"=": value == wanted, "!=": value != wanted, "=~": True}[how]
        if name not in SCRAPED and not holds:
            return False
    return True


def test_the_files_are_what_is_made_of_those_beside_them() -> None:
    spec = importlib.util.spec_from_file_location("deploy_vllm", ROOT / ".ci" / "deploy_vllm.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: dict[Path, str] = module.made()
    assert len(made) == 2
    for path, text in made.items():
        assert path.read_text() == text, f"make deploy-vllm writes {path.name} anew"


def test_rules_and_panels_name_only_series_and_labels_that_the_connector_tells(told: Prom) -> None:
    series: dict[str, list[dict[str, str]]] = {}
    for metric in told.registry.collect():
        for sample in metric.samples:
            series.setdefault(sample.name, []).append(sample.labels)
    recorded = set(re.findall(r"record: (\S+)", RULES.read_text()))
    asked = 0
    for expression in expressions():
        known = set(SCRAPED)
        for name, matchers in SELECTOR.findall(expression):
            if name in recorded:
                continue
            asked += 1
            assert name in series, f"{name} is not told: {expression}"
            assert any(fits(one, matchers) for one in series[name]), (name, matchers)
            labels = {label for label, _, _ in MATCHER.findall(matchers)}
            assert labels <= set(series[name][0]) | SCRAPED, (name, matchers)
            known |= set(series[name][0])
        for said in NAMED.findall(expression):
            assert set(re.findall(r"\w+", said)) <= known, expression
    assert asked > 35


def test_legends_and_summaries_name_labels_that_are_there() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert legend <= set(re.findall(r"\w+", " ".join(NAMED.findall(target["expr"])))), panel
    assert len(PANELS) >= 8
    assert "cache." not in RULES.read_text()
    assert "scheduler." not in RULES.read_text()


def test_each_alert_whose_numbers_are_told_holds_inside_vllm_and_the_page_names_it(
    told: Prom,
) -> None:
    names = {*told.labels(), "up"}
    left_out = []
    for block in re.split(r"^      - (?=alert)", OWN, flags=re.MULTILINE)[1:]:
        expression = block.partition("expr:")[2].partition("annotations:")[0]
        asks = {name for name, _ in SELECTOR.findall(expression) if ":" not in name}
        holds = asks <= names
        assert holds == ("\n          vllm: " in block), (block[:40], asks - names)
        if not holds:
            left_out.append(block.split()[1])
    there = ALERT.findall(RULES.read_text())
    assert len(there) >= 12
    page = (DEPLOY.parent / "docs" / "monitoring.md").read_text().partition("## Inside vLLM")[2]
    assert [name for name in (*there, *left_out) if f"`{name}`" not in page] == []


def test_the_page_of_vllm_has_each_metric_and_no_other(told: Prom) -> None:
    page = (ROOT / "docs" / "vllm.md").read_text().partition("## Metrics")[2]
    named = set(re.findall(r"^\| (`blockyard_.*?) \|", page, re.MULTILINE))
    names = set(re.findall(r"`(blockyard_\w+)`", " ".join(named)))
    of_groups = {"blockyard_hits_cut_total"}  # a model with one group of layers has none
    assert names - of_groups == {name for name in told.labels() if not name.endswith("_created")}
    assert of_groups <= names


def promtool(*what: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - the tool that is tested with
        [need("promtool"), *what], capture_output=True, text=True, timeout=60, check=False
    )


def inside_vllm(text: str, told: Prom) -> str:
    """Returns unit tests of rules with the series that vLLM has, and what they expect of those.

    The tiers are those below vLLM's own: what is the device's elsewhere is the host's here.
    """
    text = text.replace('tier="host"', 'tier="disk"').replace('tier="device"', 'tier="host"')
    labels, there = told.labels(), set(ALERT.findall(RULES.read_text()))

    def series(found: re.Match[str]) -> str:
        name, inside = found[1], found[2]
        own = {label for label, _, _ in MATCHER.findall(inside)} - SCRAPED
        if name != "up" and not own <= labels.get(name, set()):
            return ""
        more = "" if name == "up" else ',model_name="llama"'
        return found[0].replace(inside, inside.replace('job="blockyard"', 'job="vllm"') + more)

    text = re.sub(r" +- series: '(\w+){(.*)}'\n +values: .*\n", series, text)

    def expected(found: re.Match[str]) -> str:
        return found[0] if found[1] in there else ""

    text = re.sub(r" +- labels: '{alertname=\"(\w+)\".*\n +value: 1\n", expected, text)
    # What is recorded of numbers that vLLM has not.
    recorded = (
        r" +- expr: blockyard:hit_blocks.*\n +eval_time.*\n +exp_samples:\n +- labels.*\n.*\n"
    )
    return re.sub(recorded, "", text)


def test_each_alert_fires_inside_vllm_for_its_trouble_alone(told: Prom, tmp_path: Path) -> None:
    assert promtool("check", "rules", str(RULES)).returncode == 0
    tests = sorted((DEPLOY / "prometheus").glob("*_test.yml"))
    made = {test.name: inside_vllm(test.read_text(), told) for test in tests}
    for name, text in made.items():
        (tmp_path / name).write_text(text)
    rules = RULES.read_text()
    (tmp_path / "rules.yml").write_text(rules)
    files = [str(tmp_path / name) for name in made]
    checked = promtool("test", "rules", *files)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = "".join(made.values())
    alerts = ALERT.findall(rules)
    assert [name for name in alerts if f'"{name}"' not in tested] == []
    # Each of these expectations can fail: an alert of another name is noticed.
    for alert in alerts:
        (tmp_path / "rules.yml").write_text(
            rules.replace(f"- alert: {alert}\n", "- alert: Other\n")
        )
        assert promtool("test", "rules", *files).returncode != 0, alert
