"""The report: one page that needs no network, with the figures of the JSON."""

import functools
import html
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import msgspec
import pytest

from blockyard.tools.replay.hardware import preset
from blockyard.tools.replay.play import play
from blockyard.tools.replay.report import page
from blockyard.tools.replay.result import FORMAT, Result, TicketCounts
from blockyard.tools.replay.spec import Progress, RunSpec
from blockyard.tools.traces.workload import generate
from blockyard.tools.units import duration, size
from needs import without

Shown = Callable[[float], str]

ROOT = Path(__file__).parents[3]
DEVICE = 700
"""Blocks: so few that requests are preempted."""
NASTY = "</script><img src=x onerror=alert(1)>\u2028&amp; \"quoted\" 'too' ${x} <b>bold</b>"


def quiet(_: Progress) -> None:
    pass


@functools.cache
def result(model: str = "virtual", policies: int = 2) -> Result:
    trace = generate(5, requests=60)
    roofline = preset("llama-3-8b/h100")
    writes: tuple[Literal["on-evict"], Literal["second-touch"]] = ("on-evict", "second-touch")
    specs = [
        RunSpec(
            model="virtual" if model == "virtual" else "sequential",
            preset="llama-3-8b/h100",
            roofline=roofline,
            trace_block=16,
            block_size=16,
            device_blocks=DEVICE,
            host_blocks=2000,
            headroom="watermark",
            write_policy=write_policy,
            verify=model == "virtual",
        )
        for write_policy in writes[:policies]
    ]
    first = specs[0]
    return Result(
        format=FORMAT,
        blockyard="0",
        trace=NASTY,
        trace_block=16,
        trace_requests=60,
        block_size=16,
        block_bytes=first.block_bytes,
        max_num_batched_tokens=first.max_num_batched_tokens,
        max_num_seqs=first.max_num_seqs,
        prefetch=0,
        gate=True,
        seed=5,
        preset="llama-3-8b/h100",
        figures=roofline.figures(),
        command=f"blockyard replay '{NASTY}'",
        runs=[play(spec, trace, quiet) for spec in specs],
    )


@functools.cache
def chromium() -> str:
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        without("chromium", "no chromium to open the report with")
    return path


# What the page has drawn, as its plots know it, and whatever went wrong in it.
SPY = """<script>
window.addEventListener("error", (event) => { document.title = "error: " + event.message; });
document.addEventListener("securitypolicyviolation", (event) => {
  document.title = "refused: " + event.blockedURI;
});
</script>"""
TELL = """<script>
const drawn = {};
for (const plot of document.querySelectorAll(".js-plotly-plot")) {
  drawn[plot.id] = plot.data.map(({ name, x, y }) => ({ name, x, y }));
}
const told = { id: "drawn", textContent: JSON.stringify(drawn) };
document.body.append(Object.assign(document.createElement("pre"), told));
</script>"""


def opened(found: Result, folder: Path) -> tuple[str, dict[str, Any], str]:
    """The page's DOM after its scripts ran, what it drew, and what the browser complained about."""
    text = page(found).decode()
    assert text.count("<body>") == text.count("</body>") == 1
    path = folder / "report.html"
    path.write_text(text.replace("<body>", f"<body>{SPY}").replace("</body>", f"{TELL}</body>"))
    command = [chromium(), "--headless=new", "--disable-gpu", "--enable-logging=stderr"]
    # In a container there is often no sandbox to be had.
    command += ["--no-sandbox", f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    done = subprocess.run(  # noqa: S603
        [*command, "--window-size=1280,1000", "--virtual-time-budget=5000", path.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    drawn = re.search(r'<pre id="drawn">(.*?)</pre>', done.stdout, re.DOTALL)
    assert drawn is not None, done.stderr
    complaints = "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    return done.stdout, json.loads(html.unescape(drawn[1])), complaints


def test_the_page_loads_nothing_and_keeps_what_comes_from_outside_inert() -> None:
    text = page(result()).decode()
    ours, _, plotly = text.partition("plotly.js v")
    assert plotly
    assert not re.search(r"<\w[^>]*\s(src|href)=|url\(|@import|https?://", ours)
    assert "default-src 'none'" in ours
    embedded = re.search(r'id="result">\n(.*?)\n</script>', text, re.DOTALL)
    assert embedded is not None
    assert not set("<>&\u2028\u2029") & set(embedded[1])
    assert json.loads(embedded[1]) == json.loads(result().encode())
    title = re.search(r"<title>(.*?)</title>", text, re.DOTALL)
    assert title is not None
    assert html.unescape(title[1]) == f"Blockyard replay: {NASTY}"
    assert "<" not in title[1]


def test_it_opens_without_errors_and_shows_the_figures_of_the_json(tmp_path: Path) -> None:
    found = result()
    dom, drawn, complaints = opened(found, tmp_path)
    assert complaints == ""
    assert not re.search(r"<title>(error|refused): ", dom)
    assert "<img" not in dom
    assert "<b>bold" not in dom
    heading = re.search(r'<h1 id="trace">(.*?)</h1>', dom, re.DOTALL)
    assert heading is not None
    assert html.unescape(heading[1]) == NASTY

    first = json.loads(found.encode())
    texts: dict[str, Shown] = {
        "hit_ratio": lambda value: f"{100 * value:.1f} %",
        "ttft_ms.p50": lambda value: duration(value / 1e3),
        "itl_ms.p50": lambda value: duration(value / 1e3),
        "tokens_per_second": lambda value: f"{value:,.0f} tokens/s",
        "moved.bytes_up": size,
        "waits.queue_ms.p99": lambda value: duration(value / 1e3),
        "peak.pinned": lambda value: f"{100 * value / first['device_blocks']:.1f} %",
        "preempted.count": lambda value: f"{value:,.0f}",
        "bookkeeping.us_per_step.p50": lambda value: duration(value / 1e6),
    }
    tiles = re.findall(r'class="value" data-key="(.*?)" data-value="(.*?)">(.*?)<', dom)
    assert [key for key, _, _ in tiles] == list(texts)
    for key, value, shown in tiles:
        expected: Any = functools.reduce(lambda inner, name: inner[name], key.split("."), first)
        assert float(value) == expected, key
        assert html.unescape(shown) == texts[key](expected), key

    series = first["runs"][0]["series"]
    in_minutes = 60 if series["seconds"][-1] >= 300 else 1
    columns = (series[key] for key in ("device_hit", "host_hit", "missed"))
    tokens = [sum(column) for column in zip(*columns, strict=True)]
    hits = {trace["name"]: trace["y"] for trace in drawn["hits"]}
    assert list(hits) == ["device", "host", "computed"]
    each = -(-len(tokens) // 72)
    for name, key in (("device", "device_hit"), ("host", "host_hit"), ("computed", "missed")):
        for at, share in enumerate(hits[name]):
            part = slice(at * each, (at + 1) * each)
            admitted = sum(tokens[part])
            if admitted:
                assert share == pytest.approx(100 * sum(series[key][part]) / admitted)
            else:
                assert share is None
    occupied = {trace["name"]: trace for trace in drawn["occupancy"]}
    assert max(occupied["device"]["y"]) == pytest.approx(100 * max(series["device_used"]) / DEVICE)
    assert max(occupied["host"]["y"]) == pytest.approx(100 * max(series["host_used"]) / 2000)
    assert max(occupied["host"]["x"]) * in_minutes <= series["seconds"][-1]
    for run, way in enumerate(drawn["ttft"]):
        assert (
            way["name"]
            == ("recency, on-evict, watermark, park", "recency, second-touch, watermark, park")[run]
        )
        assert way["x"] == first["runs"][run]["ttft_ms"]["quantiles"]
    promised = occupied["device, promised"]["y"]
    assert max(promised) == pytest.approx(100 * max(series["device_promised"]) / DEVICE)
    crowd = {trace["name"]: trace["y"] for trace in drawn["requests"]}
    assert sum(crowd["preempted"]) == sum(series["preempted"]) == first["preempted"]["count"] > 0
    moved = {trace["name"]: trace["x"] for trace in drawn["by-moved"]}
    for name in ("down", "up"):
        expected = [run["moved"][f"bytes_{name}"] / 2**30 for run in first["runs"]]
        assert moved[name] == pytest.approx(expected)
    tiers = {trace["name"]: trace["x"] for trace in drawn["by-tier"]}
    for name in ("device", "host"):
        expected = [100 * run["hit_ratio_by_tier"][name] for run in first["runs"]]
        assert tiers[name] == pytest.approx(expected)
    row = re.search(r">Copied up</th>(.*?)</tr>", dom)
    assert row is not None
    assert re.findall("<td>(.*?)</td>", row[1]) == [
        size(run["moved"]["bytes_up"]) for run in first["runs"]
    ]


def test_without_time_and_with_an_end_cut_short_it_says_so(tmp_path: Path) -> None:
    found = result("sequential", 1)
    cut = msgspec.structs.replace(found.runs[0], complete=False, requests=7, audit="INV-2: <b>no")
    dom, drawn, complaints = opened(msgspec.structs.replace(found, runs=[cut]), tmp_path)
    assert complaints == ""
    assert "interrupted after 7 of 60 requests" in dom
    assert "audit: INV-2: &lt;b&gt;no" in dom
    assert drawn == {}
    assert "repeat --policy, --write-policy, --preempt-mode or --headroom" in dom


def keys_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("replay_keys", ROOT / ".ci" / "replay_keys.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_keys_in_the_documents_are_those_of_the_json() -> None:
    text = (ROOT / "docs" / "replay.md").read_text()
    assert keys_script().page(text) == text, "python .ci/replay_keys.py"
    tables = dict(re.findall(r"^#### (\w+)\n(.*?)(?=^####|^<!--)", text, re.DOTALL | re.MULTILINE))
    keys = re.compile(r"^\| `(\w+)` ", re.MULTILINE)
    listed = {name: set(keys.findall(rows)) for name, rows in tables.items()}
    whole = json.loads(result().encode())
    assert set(whole) == listed["Result"] | listed["Run"] - {"series"}
    run = whole["runs"][0]
    for name, part in (("Run", run), ("Spread", run["ttft_ms"]), ("Waits", run["waits"])):
        assert set(part) == listed[name], name
    parts = ("moved", "preempted", "bookkeeping", "verified", "series")
    for name in parts:
        assert set(run[name]) == listed[name.title()], name
    assert set(run["reservations"]) == listed["PromisedBlocks"]
    assert set(TicketCounts.__struct_fields__) == listed["TicketCounts"]


def test_the_options_in_the_documents_are_those_there_are() -> None:
    help_text = subprocess.check_output(
        [sys.executable, "-m", "blockyard", "replay", "--help"], text=True
    )
    there = set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", help_text, re.MULTILINE)) - {"--help"}
    text = (ROOT / "docs" / "replay.md").read_text()
    rows = re.findall(r"^\| `-.*?\|", text, re.MULTILINE)
    assert {option for row in rows for option in re.findall(r"--[a-z-]+", row)} == there


def test_the_commands_in_the_documents_run_as_they_stand(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "replay.md").read_text()
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    commands = re.findall(r"^\$ blockyard (.*)$", "".join(blocks), re.MULTILINE)
    assert len(commands) == "".join(blocks).count("$")
    for command in commands:
        done = subprocess.run(  # noqa: S602
            f"{sys.executable} -m blockyard {command}",
            shell=True,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"report.html", "result.json", "workload.jsonl"}
