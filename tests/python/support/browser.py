"""Opens pages in a real browser, several at a time, and tells what it shows of them."""

import functools
import html
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from needs import without

# Whatever goes wrong in a page changes its title.
_SPY = """<script>
window.addEventListener("error", (event) => { document.title = "error: " + event.message; });
document.addEventListener("securitypolicyviolation", (event) => {
  document.title = "refused: " + event.blockedURI;
});
</script>"""
_COLLECT = """<script>
const tell = () => {
  const all = [...document.querySelectorAll("iframe")].map((frame) => frame.contentWindow.look());
  const told = Object.assign(document.createElement("pre"), { id: "told" });
  told.textContent = JSON.stringify(all);
  told.title = [...document.querySelectorAll("iframe")].some(waits) ? "waits" : "drawn";
  document.body.replaceChildren(told);
};
// A chart whose box had no width is drawn in a frame after it has. Here time is virtual, and
// frames are not: on a busy machine there may be none before the time is over.
const waits = (frame) => [...frame.contentDocument.querySelectorAll(".plot > svg")]
  .some((chart) => chart.clientWidth && !chart.childElementCount);
const settle = (times) => setTimeout(() => {
  if (times && [...document.querySelectorAll("iframe")].some(waits)) settle(times - 1);
  else tell();
}, 50);
window.addEventListener("load", () => settle(80));
</script>"""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Who opens which page, and what is done there first."""

    page: bytes
    width: int = 1400
    """Pixels of the window."""
    scheme: str = "light"
    """What the reader prefers: light or dark."""
    then: str = ""
    """A script that runs when the page is drawn, before it is looked at."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader sees; `probe.js` finds it."""

    title: str
    dom: str
    ground: list[float]
    """The colour behind everything: red, green, blue."""
    width: int
    labels: int
    """Texts in figures."""
    contrasts: list[tuple[str, str, float]]
    """Of each text and each drawing: what it is, its name, and its contrast with what is behind."""
    overflow: list[str]
    """What is wider than the window."""
    overprints: list[str]
    """Texts of a figure that stand on each other, or leave it."""
    drawn: dict[str, list[dict[str, Any]]]
    """The series of each figure."""
    looks: dict[str, list[str]]
    """How the legend of each figure draws its series: colours, dashes and marks."""
    legends: dict[str, list[tuple[str, str]]]
    """What the legend of each figure says, and what it says at length."""
    readouts: dict[str, list[str]]
    """What each chart says of its second point, asked by the keyboard."""
    colours: dict[str, list[float]]
    """Some variables of the style, as red, green and blue."""


@functools.cache
def chromium() -> str:
    """Where the browser is; without one the test is skipped."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        without("chromium", "no chromium to open the report with")
    return path


def look(readers: Sequence[Reader], folder: Path) -> list[Seen]:
    """What each reader sees. They share one start of the browser, each in a frame of its own.

    A frame prefers the colour scheme of its element, and is as narrow as it is told to be, which
    a window is not.
    """
    probe = Path(__file__).with_name("probe.js").read_text()
    frames = []
    for reader in readers:
        text = reader.page.decode()
        assert text.count("<body>") == text.count("</body>") == 1
        text = text.replace("<body>", f"<body>{_SPY}")
        text = text.replace(
            "</body>", f"<script>{reader.then}</script><script>{probe}</script></body>"
        )
        style = f"color-scheme: {reader.scheme}; width: {reader.width}px; height: 900px; border: 0"
        frames.append(f'<iframe style="{style}" srcdoc="{html.escape(text)}"></iframe>')
    path = folder / "frames.html"
    head = '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>frames</title>'
    path.write_text(f"{head}<body>{''.join(frames)}{_COLLECT}</body></html>")
    command = [chromium(), "--headless=new", "--disable-gpu", "--enable-logging=stderr"]
    # In a container there is often no sandbox to be had.
    command += [
        "--no-sandbox",
        "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}",
        "--dump-dom",
    ]
    command += ["--window-size=1500,1000", "--virtual-time-budget=5000", path.as_uri()]
    told = _told(command)
    for _ in range(4):
        if told[1] == "drawn":
            break
        told = _told(command)
    found = msgspec.json.decode(html.unescape(told[2]), type=list[Seen])
    assert [seen.width for seen in found] == [reader.width for reader in readers]
    return found


def _told(command: Sequence[str]) -> re.Match[str]:
    """Whether all was drawn when the frames were asked, and what they said."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=50)  # noqa: S603
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert complaints == [], "\n".join(complaints)
    told = re.search(r'<pre id="told" title="(\w+)">(.*?)</pre>', done.stdout, re.DOTALL)
    assert told is not None, done.stderr
    return told


def whole(seen: Seen) -> Any:
    """The JSON in the page."""
    embedded = re.search(r'id="result">\n(.*?)\n</script>', seen.dom, re.DOTALL)
    assert embedded is not None
    return json.loads(embedded[1])
