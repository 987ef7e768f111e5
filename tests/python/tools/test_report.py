"""The report: one page that needs no network, with the figures of the JSON."""

import functools
import html
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from blockyard.tools.replay.findings import conclusions
from blockyard.tools.replay.hardware import preset
from blockyard.tools.replay.labels import labels
from blockyard.tools.replay.play_trace import play
from blockyard.tools.replay.report import page
from blockyard.tools.replay.result import FORMAT, Replica, Result
from blockyard.tools.replay.spec import Progress, RunSpec
from blockyard.tools.traces.workload import generate
from blockyard.tools.units import duration, size
from browser import Reader, Seen, look
from yard import there

Shown = Callable[[float], str]

ROOT = Path(__file__).parents[3]
DEVICE = 700
"""Blocks: so few that requests are preempted."""
NASTY = "</script><img src=x onerror=alert(1)>\u2028&amp; \"quoted\" 'too' ${x} <b>bold</b>"


def quiet(_: Progress) -> None:
    pass


@functools.cache
def result(model: Literal["virtual", "sequential"] = "virtual", runs: int = 2) -> Result:
    requests = 60 if runs <= 2 else 20
    trace = generate(5, requests=requests)
    roofline = preset("llama-3-8b/h100")
    policies: tuple[Literal["recency", "learned"], ...] = ("recency", "learned")
    writes: tuple[Literal["on-evict", "second-touch"], ...] = ("on-evict", "second-touch")
    specs = [
        RunSpec(
            model=model,
            preset="llama-3-8b/h100",
            roofline=roofline,
            trace_block=16,
            block_size=16,
            device_blocks=DEVICE,
            host_blocks=2000,
            headroom="watermark",
            policy=policy,
            write_policy=write_policy,
            verify="memory" if model == "virtual" and runs == 2 else None,
        )
        for policy in policies
        for write_policy in writes
    ][:runs]
    first = specs[0]
    found = [play(spec, trace, quiet) for spec in specs]
    return Result(
        format=FORMAT,
        blockyard="0",
        trace=NASTY,
        trace_block=16,
        trace_requests=requests,
        answer=[f"Give --replicas 3: {NASTY}", *conclusions(found)],
        speed=1.0,
        router=None,
        block_size=16,
        max_num_batched_tokens=first.max_num_batched_tokens,
        max_num_seqs=first.max_num_seqs,
        prefetch=0,
        gate=True,
        seed=5,
        preset="llama-3-8b/h100",
        figures=roofline.figures(),
        command=f"blockyard replay '{NASTY}'",
        runs=found,
    )


# Buttons are pressed like a reader's.
SECOND = "document.querySelectorAll('#runs button')[1].click();"
TWO, SECOND_OF_TWO, WIDE, NARROW, TWINS, SEQUENTIAL = range(6)


@functools.cache
def twins() -> Result:
    """Two runs of different names with the same latencies, of two engines each."""
    engines = [
        Replica(
            requests=40 - 17 * place,
            input_tokens=1_234_567,
            output_tokens=890,
            hit_ratio=0.25,
            engine_seconds=100.0 + place,
            overloaded=(True, None)[place],
        )
        for place in range(2)
    ]
    first = msgspec.structs.replace(result().runs[0], replicas=engines)
    second = msgspec.structs.replace(first, policy="bonus")
    return msgspec.structs.replace(result(), runs=[first, second], router="prefix", speed=2.5)


@functools.cache
def cut() -> Result:
    found = result("sequential", 1)
    run = msgspec.structs.replace(found.runs[0], complete=False, requests=7, audit="INV-2: <b>no")
    return msgspec.structs.replace(found, runs=[run])


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[Seen]:
    """What readers see, with one start of the browser."""
    two, four = page(result()), page(result(runs=4))
    readers = [
        Reader(page=two, width=1280),
        Reader(page=two, width=480, scheme="dark", then=SECOND),
        Reader(page=four, width=1400),
        Reader(page=four, width=480, scheme="dark"),
        Reader(page=page(twins()), width=700),
        Reader(page=page(cut()), width=480),
    ]
    return look(readers, tmp_path_factory.mktemp("pages"))


def test_the_page_loads_nothing_and_keeps_what_comes_from_outside_inert() -> None:
    text = page(result()).decode()
    assert not re.search(r"<\w[^>]*\s(src|href)=|url\(|@import|https?://", text)
    assert "default-src 'none'" in text
    embedded = there(re.search(r'id="result">\n(.*?)\n</script>', text, re.DOTALL))
    assert not set("<>&\u2028\u2029") & set(embedded[1])
    assert json.loads(embedded[1]) == json.loads(result().encode())
    title = there(re.search(r"<title>(.*?)</title>", text, re.DOTALL))
    assert html.unescape(title[1]) == f"Blockyard replay: {NASTY}"
    assert "<" not in title[1]


def test_it_weighs_little_beside_its_data() -> None:
    for found in (result(), result(runs=4), cut()):
        assert len(page(found)) - len(found.encode()) < 100_000
    assert len(page(result(runs=4))) < 400_000


def test_no_page_has_an_error_or_lets_markup_in(seen: list[Seen]) -> None:
    for one in seen:
        assert not re.match("error|refused", one.title), one.title
        assert "<img" not in one.dom
        assert "<b>bold" not in one.dom


def test_it_opens_with_the_answer(seen: list[Seen]) -> None:
    dom = seen[TWO].dom
    heading = there(re.search(r'<h1 id="trace">(.*?)</h1>', dom, re.DOTALL))
    assert html.unescape(heading[1]) == NASTY
    answer = there(re.search(r'<section id="answer".*?>(.*?)</section>', dom, re.DOTALL))
    assert dom.index("<h1") < answer.start() < dom.index('class="tile"')
    sentences = re.findall("<p>(.*?)</p>", answer[1], re.DOTALL)
    assert [html.unescape(re.sub("</?code>", "", sentence)) for sentence in sentences] == [
        sentence.replace("`", "") for sentence in result().answer
    ]
    assert "<code>--replicas</code>" in sentences[0]


@pytest.mark.parametrize(("which", "run"), [(TWO, 0), (SECOND_OF_TWO, 1)])
def test_the_tiles_are_the_figures_of_the_chosen_run(
    seen: list[Seen], which: int, run: int
) -> None:
    figures = json.loads(result().encode())["runs"][run]
    texts: dict[str, Shown] = {
        "hit_ratio": lambda value: f"{100 * value:.1f} %",
        "ttft_ms.p50": lambda value: duration(value / 1e3),
        "itl_ms.p50": lambda value: duration(value / 1e3),
        "tokens_per_second": lambda value: f"{value:,.0f} tokens/s",
        "load.served_requests_per_second": lambda value: f"{value:.3g} /s",
        "moved.bytes_up": size,
        "waits.queue_ms.p99": lambda value: duration(value / 1e3),
        "peak.pinned": lambda value: f"{100 * value / figures['device_blocks']:.1f} %",
        "preempted.count": lambda value: f"{value:,.0f}",
        "bookkeeping.us_per_step.p50": lambda value: duration(value / 1e6),
    }
    tiles = re.findall(r'class="value" data-key="(.*?)" data-value="(.*?)">(.*?)<', seen[which].dom)
    assert [key for key, _, _ in tiles] == list(texts)
    for key, value, shown in tiles:
        expected: Any = functools.reduce(lambda inner, name: inner[name], key.split("."), figures)
        assert float(value) == expected, key
        assert html.unescape(shown) == texts[key](expected), key


@pytest.mark.parametrize(("which", "run"), [(TWO, 0), (SECOND_OF_TWO, 1)])
def test_the_plots_over_time_are_those_of_the_chosen_run(
    seen: list[Seen], which: int, run: int
) -> None:
    drawn = seen[which].drawn
    figures = json.loads(result().encode())["runs"][run]
    series = figures["series"]
    in_minutes = 60 if series["seconds"][-1] >= 300 else 1
    columns = (series[key] for key in ("device_hit", "host_hit", "missed"))
    tokens = [sum(column) for column in zip(*columns, strict=True)]
    hits = {curve["name"]: curve["y"] for curve in drawn["hits"]}
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
    occupied = {curve["name"]: curve for curve in drawn["occupancy"]}
    assert max(occupied["device"]["y"]) == pytest.approx(100 * max(series["device_used"]) / DEVICE)
    assert max(occupied["host"]["y"]) == pytest.approx(100 * max(series["host_used"]) / 2000)
    assert max(occupied["host"]["x"]) * in_minutes <= series["seconds"][-1]
    promised = occupied["device, promised"]["y"]
    assert max(promised) == pytest.approx(100 * max(series["device_promised"]) / DEVICE)
    crowd = {curve["name"]: curve["y"] for curve in drawn["requests"]}
    assert sum(crowd["preempted"]) == sum(series["preempted"]) == figures["preempted"]["count"] > 0
    assert max(crowd["running"]) == max(series["running"])
    width = series["seconds"][1] - series["seconds"][0]
    flows = {curve["name"]: curve for curve in drawn["moved"]}
    mebibytes = sum(series["bytes_up"][:each]) / (each * width) / 2**20
    assert flows["host to device"]["y"][0] == pytest.approx(mebibytes)


def test_the_comparison_is_drawn_and_written_as_the_json_has_it(seen: list[Seen]) -> None:
    runs = json.loads(result(runs=4).encode())["runs"]
    names = labels(result(runs=4).runs)
    assert names == [
        "recency, on-evict",
        "recency, second-touch",
        "learned, on-evict",
        "learned, second-touch",
    ]
    for one in (seen[WIDE], seen[NARROW]):
        for key in ("ttft_ms", "itl_ms"):
            curves = one.drawn[key.removesuffix("_ms")]
            assert [curve["name"] for curve in curves] == names
            assert [curve["x"] for curve in curves] == [run[key]["quantiles"] for run in runs]
        buttons = re.findall(r'<button type="button" title="(.*?)".*?>(.*?)<', one.dom)
        assert [name for _, name in buttons] == names
        assert buttons[3][0] == (
            "learned, second-touch, copies by policy, no hints, cache's device,"
            " headroom watermark, park, device 1.37 GiB, host 3.91 GiB, no disk"
        )
        moved = {bars["name"]: bars["x"] for bars in one.drawn["by-moved"]}
        for name in ("down", "up"):
            expected = [run["moved"][f"bytes_{name}"] / 2**30 for run in runs]
            assert moved[name] == pytest.approx(expected)
        tiers = {bars["name"]: bars["x"] for bars in one.drawn["by-tier"]}
        for name in ("device", "host"):
            expected = [100 * run["hit_ratio_by_tier"][name] for run in runs]
            assert tiers[name] == pytest.approx(expected)
        row = there(re.search(r">Copied up</th>(.*?)</tr>", one.dom))
        cells = [size(run["moved"]["bytes_up"]) for run in runs]
        assert re.findall("<td>(.*?)</td>", row[1]) == cells


def test_the_keyboard_reads_a_chart_as_the_pointer_does(seen: list[Seen]) -> None:
    readouts = seen[NARROW].readouts
    runs = result(runs=4).runs
    names = labels(runs)
    spreads = [run.ttft_ms for run in runs]
    assert readouts["ttft"] == [
        "1 % within",
        *(
            f"{name}{duration(spread.quantiles[1] / 1e3)}"
            for name, spread in zip(names, spreads, strict=True)
            if spread is not None
        ),
    ]
    assert readouts["occupancy"][0].startswith("at ")
    assert len(readouts["occupancy"]) == len(seen[NARROW].drawn["occupancy"]) + 1


def test_nothing_overflows_and_no_two_texts_overprint_at_any_width(seen: list[Seen]) -> None:
    for one in seen:
        assert one.overflow == []
        assert one.overprints == []
    assert min(one.labels for one in seen[:SEQUENTIAL]) > 80


def test_all_is_readable_in_light_and_in_dark(seen: list[Seen]) -> None:
    light, dark = seen[WIDE], seen[NARROW]
    assert min(light.ground) > 200
    assert max(dark.ground) < 50
    for one in seen:
        kinds = {kind for kind, _, _ in one.contrasts}
        assert "text" in kinds
        assert ("drawing" in kinds) == (one is not seen[SEQUENTIAL])
        for kind, name, contrast in one.contrasts:
            assert contrast >= (4.5 if kind == "text" else 3), name


def test_every_series_of_a_chart_looks_different(seen: list[Seen]) -> None:
    for one in seen:
        for name, looks in one.looks.items():
            assert len(set(looks)) == len(looks), name
    # The four runs do not differ by colour alone: not by one, but by the dashes and the marks too.
    for looks in (seen[WIDE].looks["ttft"], seen[NARROW].looks["ttft"]):
        assert len({re.sub(r"rgb\(.*?\)", "", look) for look in looks}) == 4


# Machado, Oliveira and Fernandes, "A physiologically-based model for simulation of color vision
# deficiency", 2009, at severity 1: what is seen without the cones of one kind, in linear RGB.
VISIONS: dict[str, list[list[float]]] = {
    "all cones": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
    "no long": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no medium": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "no short": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
TOGETHER = [
    ("s1", "s2", "s3", "s4"),
    ("device", "host", "computed"),
    ("device", "host", "disk"),
    ("device", "pinned", "promised", "host"),
    ("device", "host", "lost"),
    ("down", "up"),
]


def lab(rgb: list[float], vision: list[list[float]]) -> NDArray[np.float64]:
    """The colour in CIE L*a*b* as it is seen, under D65."""
    share = np.array(rgb) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.array(vision) @ linear, 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(to_xyz) @ linear / [0.9505, 1.0, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_colours_that_stand_together_differ_for_every_kind_of_eye(seen: list[Seen]) -> None:
    for one in (seen[WIDE], seen[NARROW]):
        for vision, matrix in VISIONS.items():
            for group in TOGETHER:
                for first, second in itertools.combinations(group, 2):
                    colours = (lab(one.colours[name], matrix) for name in (first, second))
                    difference = np.linalg.norm(next(colours) - next(colours))
                    # A just noticeable difference is about 2.3.
                    assert difference > 20, (vision, first, second)


def test_a_curve_that_lies_on_another_says_so(seen: list[Seen]) -> None:
    first, second = seen[TWINS].legends["ttft"]
    assert first[0] == "recency"
    assert second[0] == "bonus(same as recency)"
    assert second[1].startswith("bonus, on-evict, ")


def test_several_engines_have_a_table_and_the_speed_is_named(seen: list[Seen]) -> None:
    dom = seen[TWINS].dom
    rows = re.findall(r">(engine \d)</th>(.*?)</tr>", dom)
    assert [(name, re.findall("<td>(.*?)</td>", row)) for name, row in rows] == [
        ("engine 1", ["40", "25.0 %", "1,234,567", "890", "1 min 40 s", "yes"]),
        ("engine 2", ["23", "25.0 %", "1,234,567", "890", "1 min 41 s", "\N{EN DASH}"]),
    ]
    assert "2.5 times as fast" in dom
    assert "2 engines, routed by prefix" in dom
    assert re.search('<section id="engines" hidden', seen[TWO].dom)


def test_without_time_and_with_an_end_cut_short_it_says_so(seen: list[Seen]) -> None:
    dom = seen[SEQUENTIAL].dom
    assert "interrupted after 7 of 60 requests" in dom
    assert "audit: INV-2: &lt;b&gt;no" in dom
    assert seen[SEQUENTIAL].drawn == {}
    assert "repeat --policy, --write-policy, --preempt-mode or --headroom" in dom


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
