"""What `blockyard trace describe` says of a trace."""

import functools
import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from blockyard.tools.cli import cli
from blockyard.tools.replay.sequential import sequential
from blockyard.tools.traces.describe import describe
from blockyard.tools.traces.description import Description
from blockyard.tools.traces.render import page
from blockyard.tools.traces.trace import Trace, read
from needs import without
from traces import AGENTIC, CLAUDE_CODE, CONVERSATION, made, real
from yard import there

DOCS = Path(__file__).parents[3] / "docs" / "traces.md"
NASTY = "</script><b>bold \\u2028 \"quoted\" & 'more'"


def small(**more: Any) -> Trace:
    """Three requests of two blocks and a bit, the first two of one session."""
    trace = made([(20, [0, 1, 2]), (20, [0, 1, 3]), (24, [0, 4, 5])], 8)
    names: dict[str, Any] = {"session": np.array([0, 0, -1]), "sessions": ("a",)}
    fields = {name: getattr(trace, name) for name in trace.__slots__}
    return Trace(**{**fields, **names, **more})


def test_a_small_trace_is_told_in_full() -> None:
    found = describe(small())
    assert (found.requests, found.seconds, found.input_tokens, found.output_tokens) == (3, 2, 64, 3)
    assert found.rate.mean == 1.5
    assert found.rate.busiest == 1.5
    assert found.rate.variation == 0
    assert sum(found.rate.arrivals) * 2 / len(found.rate.arrivals) == pytest.approx(3)
    assert (found.prompts.p50, found.prompts.max) == (20, 24)
    assert len(found.prompts.quantiles) == 101
    assert found.blocks is not None
    # Blocks 0 and 1, and 4 and 5 of the third; 2 and 3 are not full.
    assert (found.blocks.uses, found.blocks.distinct) == (7, 4)
    assert found.blocks.once == 0.5
    assert found.blocks.infinite_hit_ratio == 24 / 64
    assert found.reuse is not None
    assert found.reuse.blocks.quantiles[0] == 1
    assert found.reuse.blocks.max == 2
    assert found.reuse.seconds.max == 1
    assert found.reuse.curve.blocks[0] == 1
    assert found.reuse.curve.blocks[-1] == 4
    assert found.reuse.curve.hit_ratio[-1] == found.blocks.infinite_hit_ratio
    # The second request uses the first one's last full block.
    assert there(found.continued).share == pytest.approx(1 / 3, abs=1e-6)
    assert there(found.continued).pause.max == 1
    assert found.sessions is not None
    assert (found.sessions.count, found.sessions.requests, found.sessions.turns.max) == (1, 2, 2)
    assert there(found.sessions.pause).p50 == 1
    assert found.answer[0] == "A cache without a limit would find 37.5% of the prompts' tokens."


@pytest.mark.parametrize(
    ("name", "block", "hits", "once"),
    [
        (CONVERSATION, 512, 0.373, 0.742),
        (CLAUDE_CODE, 512, 0.955, 0.045),
        (AGENTIC, 16, 0.897, 0.255),
    ],
)
def test_real_traces_have_the_hits_of_an_infinite_cache_that_are_known(
    name: str, block: int, hits: float, once: float
) -> None:
    found = describe(read(real(name), trace_block=block))
    assert found.blocks is not None
    assert found.blocks.infinite_hit_ratio == pytest.approx(hits, abs=6e-4)
    assert found.blocks.once == pytest.approx(once, abs=6e-4)
    assert found.reuse is not None
    assert found.reuse.curve.hit_ratio[-1] == found.blocks.infinite_hit_ratio
    assert found.reuse.curve.hit_ratio == sorted(found.reuse.curve.hit_ratio)
    assert (found.sessions is None) == (name == CONVERSATION)
    if name == CONVERSATION:
        assert found.reuse.seconds.p50 == pytest.approx(114, abs=0.5)
        assert found.rate.mean == pytest.approx(3.4, abs=0.01)


def test_the_curve_is_what_a_replay_of_each_size_finds() -> None:
    trace = read(real(CONVERSATION), requests=800)
    found = describe(trace)
    curve = there(found.reuse).curve
    for size, hits in list(zip(curve.blocks, curve.hit_ratio, strict=True))[8::6]:
        assert sequential(trace, device_blocks=size).hit_ratio == pytest.approx(hits, abs=5e-6)


def test_without_reuse_and_without_ids_nothing_is_made_up() -> None:
    alone = describe(made([(20, [0, 1, 2]), (20, [3, 4, 5])], 8))
    assert (there(alone.blocks).infinite_hit_ratio, there(alone.blocks).once) == (0, 1)
    assert alone.reuse is None
    assert alone.continued is None
    assert alone.sessions is None
    assert alone.answer[0].startswith("No cache would find anything")
    lengths = describe(small(hits_unknown="only lengths were logged"))
    assert lengths.blocks is None
    assert lengths.reuse is None
    assert lengths.continued is None
    assert lengths.answer[0] == "This trace does not show hits: only lengths were logged."
    assert lengths.prompts.p50 == 20
    one = describe(made([(1, [])], 8))
    assert (one.seconds, one.rate.mean, one.rate.busiest, one.rate.variation) == (0, 1, 1, 0)


def keys(kind: Any) -> set[str]:
    """The names of a struct's fields, and of those in it."""
    found = set()
    for field in msgspec.structs.fields(kind):
        found.add(field.name)
        for inner in (field.type, *getattr(field.type, "__args__", ())):
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                found |= keys(inner)
    return found


def test_every_key_of_the_json_stands_in_the_docs() -> None:
    told = DOCS.read_text()
    assert {key for key in keys(Description) if f"`{key}`" not in told} == set()


def test_the_command_writes_all_three(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    small().write(path)
    json_path, report = tmp_path / "t.json", tmp_path / "t.html"
    words = ["trace", "describe", str(path), "--json", str(json_path), "--report", str(report)]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0
    assert "hits of an infinite cache" in result.output
    whole = json.loads(json_path.read_bytes())
    assert whole["trace"] == "t.jsonl"
    assert whole["blocks"]["infinite_hit_ratio"] == 24 / 64
    assert report.stat().st_size < 200_000
    result = CliRunner().invoke(cli, [*words[:3], "--json", "-", "--requests", "2"])
    assert json.loads(result.stdout)["requests"] == 2
    result = CliRunner().invoke(cli, [*words[:3], "--report", str(path)])
    assert result.exit_code == 2
    assert "names the same file" in result.output


@functools.cache
def chromium() -> str:
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        without("chromium", "no chromium to open the page with")
    return path


TELL = """<script>
const figures = [...document.querySelectorAll("figure")];
const told = figures.map((figure) => [figure.id, figure.drawn.length]);
const wide = document.documentElement.scrollWidth > innerWidth;
const drawn = { id: "drawn", textContent: JSON.stringify({ told, wide }) };
document.body.append(Object.assign(document.createElement("pre"), drawn));
</script>"""


def test_the_page_opens_on_a_narrow_screen_and_keeps_names_inert(tmp_path: Path) -> None:
    found = describe(small(name=NASTY))
    text = page(found).decode()
    assert not re.search(r"<\w[^>]*\s(src|href)=|url\(|@import|https?://", text)
    path = tmp_path / "page.html"
    path.write_text(text.replace("</body>", f"{TELL}</body>"))
    command = [chromium(), "--headless=new", "--disable-gpu", "--enable-logging=stderr"]
    # In a container there is often no sandbox to be had.
    command += ["--no-sandbox", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    done = subprocess.run(  # noqa: S603
        [*command, "--window-size=480,900", "--virtual-time-budget=3000", path.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    drawn = there(re.search(r'<pre id="drawn">(.*?)</pre>', done.stdout, re.DOTALL))
    assert json.loads(html.unescape(drawn[1])) == {
        "told": [["hits", 1], ["arrivals", 1], ["lengths", 2], ["reuse", 1], ["continued", 1],
                 ["turns", 1], ["pauses", 1]],
        "wide": False,
    }  # fmt: skip
    assert "<b>bold" not in done.stdout
    assert html.escape(NASTY, quote=False) in done.stdout
    assert "37.5% of the prompts' tokens" in done.stdout
