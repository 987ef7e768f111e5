"""What all pages are made of, in a real browser: charts, tables, and what holds them together."""

import html
import json
import re
from typing import Any

import pytest

from blockyard.tools.pages.document import document
from browser import Reader, Seen, look
from yard import there

BODY = """<main><section id="answer"></section><div id="charts" class="grid two"></div>
<div id="later" hidden></div><div id="tables"></div></main>"""
SIZES = [2.0**power for power in range(10)]
DATA: dict[str, Any] = {
    "sizes": SIZES,
    "share": [min(1.0, 0.1 * place) for place in range(10)],
    "long": [((place * 37) % 1000) / 10 for place in range(5000)],
    "text": "</script><b>bold</b>",
}
SCRIPT = """
const data = elements.data();
elements.answer(elements.at("answer"), ["Give --host 64.GiB", data.text]);
const charts_ = elements.at("charts");
charts.plot(charts_, {
  id: "knee", title: "Hit ratio", note: "by size",
  x: { log: true, ticks: data.sizes, format: (gib) => `${gib} GiB`, label: "all tiers" },
  y: { range: [0, 1], format: words.whole, read: words.percent },
  marks: [
    { x: 64, label: "knee: 64 GiB" }, { x: 70, label: "what there is" },
    { x: 512, label: "everything fits" },
  ],
  series: [
    { name: "recency", x: data.sizes, y: data.share, dots: true },
    { name: "learned", x: data.sizes, y: data.share.map((share) => share / 2) },
    { name: "bonus", full: "bonus, at length", x: data.sizes.slice(2), y: data.share.slice(2) },
    { name: "half", x: data.sizes, y: data.share.map((share, i) => (i < 8 ? share / 2 : share)) },
  ],
});
charts.plot(charts_, { id: "long", title: "Long", y: { label: "tokens" },
  series: [{ name: "some", x: data.long.map((_, i) => i), y: data.long, fill: true }] });
charts.plot(charts_, { id: "stack", series: [
  { name: "below", kind: "stack", edges: [0, 1, 2, 3], y: [1, null, 3], colour: "--device" },
  { name: "above", kind: "stack", edges: [0, 1, 2, 3], y: [2, null, 1], colour: "--host" },
] });
charts.plot(charts_, { id: "nothing", title: "Nothing", series: [{ name: "none", x: [], y: [] }] });
charts.plot(charts_, { id: "one", x: { log: true }, series: [{ name: "one", x: [5], y: [0] }] });
charts.plot(elements.at("later"), { id: "hidden", series: [{ name: "x", x: [0, 1], y: [0, 1] }] });
const columns = Array.from({ length: 40 }, (_, i) => `column ${i}`);
elements.table(elements.at("tables"), {
  head: ["", ...columns], rows: [["Counted"], ["row", ...columns.map(() => null)]],
});
elements.pairs(elements.at("tables"), "Pairs", [["name", "value-without-a-space-".repeat(40)]]);
"""
GAP = "\N{EN DASH}"
HIDDEN, SHOWN = 1, 2
SHOW = 'elements.at("later").hidden = false;'


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[Seen]:
    page = document("<i>Kit</i>", BODY, SCRIPT, json.dumps(DATA).encode())
    readers = [
        Reader(page=page, width=1400, scheme="dark"),
        Reader(page=page, width=480),
        Reader(page=page, width=320, then=SHOW),
    ]
    return look(readers, tmp_path_factory.mktemp("kit"))


def paths(one: Seen, chart: str, kind: str) -> list[list[tuple[float, float]]]:
    """The points of the curves or areas of a chart, in pixels."""
    figure = there(
        re.search(f'<figure class="chart" id="{chart}">.*?</figure>', one.dom, re.DOTALL)
    )
    drawing = figure[0].partition('class="plot"')[2]
    found = []
    for d in re.findall(rf'<path d="([^"]*)"[^>]*class="{kind}"', drawing):
        pairs = re.findall(r"(-?[\d.]+) (-?[\d.]+)", d)
        found.append([(float(x), float(y)) for x, y in pairs])
    return found


def note(one: Seen, chart: str) -> str:
    found = there(re.search(f'id="{chart}">.*?<small>(.*?)</small>', one.dom, re.DOTALL))
    return found[1]


def test_what_comes_from_outside_stays_text(seen: list[Seen]) -> None:
    for one in seen:
        assert one.title == "<i>Kit</i>"
        answer = there(re.search(r'<section id="answer".*?</section>', one.dom, re.DOTALL))
        assert html.escape(DATA["text"], quote=False) in answer[0]
        assert "<code>--host</code>" in answer[0]
        assert "<b>bold" not in answer[0]


def test_texts_fit_beside_each_other_and_all_words_of_marks_are_there(seen: list[Seen]) -> None:
    for one in seen:
        assert one.overprints == []
        assert one.overflow == []
        words = re.findall(r'class="mark-label">(.*?)<', one.dom)
        assert words == ["knee: 64 GiB", "what there is", "everything fits"]
        assert all(ratio >= 3 for _, _, ratio in one.contrasts)
    written = [len(re.findall(r">\d+ GiB<", one.dom)) for one in seen]
    assert written[0] > written[-1] > 1


def test_a_curve_is_where_its_numbers_are(seen: list[Seen]) -> None:
    for one in seen:
        upper, lower, *_ = paths(one, "knee", "curve")
        assert len(upper) == len(SIZES)
        (left, bottom), (right, top) = upper[0], upper[-1]
        for place, (x, y) in enumerate(upper):
            # The axis is logarithmic, so that each doubling is as long as the others.
            assert x == pytest.approx(left + (right - left) * place / 9, abs=0.1)
            assert y == pytest.approx(bottom - (bottom - top) * DATA["share"][place] / 0.9, abs=0.1)
        assert lower[-1][1] == pytest.approx((bottom + top) / 2, abs=0.1)


def test_the_legend_says_which_curves_lie_on_each_other(seen: list[Seen]) -> None:
    for one in seen:
        assert one.legends["knee"] == [
            ("recency", ""),
            ("learned", ""),
            ("bonus(mostly as recency)", "bonus, at length"),
            ("half(mostly as learned)", ""),
        ]
        assert len(set(one.looks["knee"])) == 4


def test_marks_on_curves_are_out_of_step(seen: list[Seen]) -> None:
    spot = re.compile(r'translate\((.*?)\)" class="spot" style="fill: var\((--s\d)\)')
    for one in seen:
        figure = one.dom.partition('id="knee">')[2].partition("</figure>")[0]
        places: dict[str, set[str]] = {}
        for place, colour in spot.findall(figure.partition('class="plot"')[2]):
            places.setdefault(colour, set()).add(place)
        assert set(places) == {"--s1", "--s2", "--s3", "--s4"}
        assert len(places["--s1"]) == len(SIZES)
        assert not places["--s2"] & places["--s4"]


def test_of_a_long_series_the_extremes_are_drawn_and_the_note_counts_them(
    seen: list[Seen],
) -> None:
    (points,) = paths(seen[0], "long", "curve")
    assert len(points) == 1000
    assert note(seen[0], "long") == "1,000 of 5,000 points drawn"
    (drawn,) = seen[0].drawn["long"]
    assert (max(drawn["y"]), min(drawn["y"])) == (max(DATA["long"]), min(DATA["long"]))
    assert drawn["x"] == sorted(drawn["x"])


def test_stacked_steps_stand_on_each_other_and_a_gap_stays_one(seen: list[Seen]) -> None:
    areas = paths(seen[0], "stack", "area")
    assert len(areas) == 4
    below, above = areas[0], areas[2]
    # Across the top, and back along what is below.
    assert above[2:] == [below[1], below[0]]
    floor, top = below[-1][1], below[0][1]
    assert floor - above[0][1] == pytest.approx(3 * (floor - top), abs=0.2)
    assert areas[1][0][0] > below[1][0] + 50
    assert seen[0].readouts["stack"] == ["1.5", f"below{GAP}", f"above{GAP}"]


def test_a_chart_of_nothing_or_of_one_point_does_no_harm(seen: list[Seen]) -> None:
    assert paths(seen[0], "nothing", "curve") == []
    assert seen[0].readouts["one"] == ["5", "one0"]
    (((x, y),),) = paths(seen[0], "one", "curve")
    assert x > 0 < y


def test_a_chart_is_drawn_when_its_box_appears(seen: list[Seen]) -> None:
    assert paths(seen[HIDDEN], "hidden", "curve") == []
    assert len(paths(seen[SHOWN], "hidden", "curve")) == 1
