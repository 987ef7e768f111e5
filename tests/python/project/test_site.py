"""The pages of the site: what the hooks make of them, and that no link or page is forgotten."""

import posixpath
import re
from pathlib import Path

import pytest
from site_hooks import fetched, linked, outside, with_links, with_references

ROOT = Path(__file__).parents[3]
PAGES = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))
PROSE = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("docs/engine.md", "[a](cranes.md#failures)", "[a](cranes.md#failures)"),
        ("docs/engine.md", "[a](../README.md#numbers)", "[a](project/overview.md#numbers)"),
        ("docs/guides/operator.md", "[a](../stats.md)", "[a](../stats.md)"),
        ("docs/guides/operator.md", "[a](../../SECURITY.md)", "[a](../project/security.md)"),
        ("docs/engine.md", "[`a`](../examples/a.py)", "[`a`](source/examples/a.py.md)"),
        ("README.md", "[a](docs/gpu.md) [b](#b)", "[a](../gpu.md) [b](#b)"),
        ("README.md", "[a](CONTRIBUTING.md)", "[a](contributing.md)"),
        ("README.md", "[a](examples/a.py)", "[a](../source/examples/a.py.md)"),
        ("docs/engine.md", "[a](https://a.example/b)", "[a](https://a.example/b)"),
        ("docs/engine.md", "`x[a](../b)`", "`x[a](../b)`"),
        ("docs/engine.md", "<!-- [a](../b) -->", "<!-- [a](../b) -->"),
        ("docs/engine.md", "```py\nx[a](../b)\n```", "```py\nx[a](../b)\n```"),
        ("docs/engine.md", "```py\nx\n```\n[a](../b)", "```py\nx\n```\n[a](source/b.md)"),
    ],
)
def test_links_lead_to_the_same_on_the_site(path: str, before: str, after: str) -> None:
    assert with_links(before, path) == after


def test_a_comment_becomes_the_reference_of_a_name() -> None:
    page = "## a\n\n### B\n\n| |\n|-|\n| b |\n\n<!-- ::: a.B -->\n<!-- ::: a.f -->\n"
    made = with_references(page)
    assert [line for line in made.split("\n") if line] == [
        *("## a", "### B", "| |", "|-|", "| b |"),
        *("[](){ #a.B }", "::: a.B", "    options:", "      heading_level: 4"),
        *("      show_root_heading: false", "      show_root_toc_entry: false"),
        *("::: a.f", "    options:", "      heading_level: 4"),
    ]


def test_what_a_shown_base_has_is_not_said_again() -> None:
    text = (
        "### B\n\nIt has what [A](#a) has, and:\n\n<!-- ::: a.B -->\n\n### C\n\n<!-- ::: a.C -->\n"
    )
    first, _, second = with_references(text).partition("### C")
    assert "inherited_members: false" in first
    assert "inherited_members" not in second


def test_comments_in_code_stay_and_others_end_a_table() -> None:
    assert with_references("```\n<!-- ::: a.B -->\n```") == "```\n<!-- ::: a.B -->\n```"
    assert with_references("<!-- begin -->\n| |") == "\n<!-- begin -->\n\n| |"


def test_linked_files_outside_docs_have_pages() -> None:
    found = outside({"docs/engine.md": "[a](../examples/engine.py) [b](../nowhere.py)"})
    assert set(found) >= {"project/overview.md", "project/security.md"}
    assert found["source/examples/engine.py.md"].startswith("# examples/engine.py\n\n```python\n")
    assert "source/nowhere.py.md" not in found


def test_a_listing_stays_whole_where_the_file_has_fences() -> None:
    here = "tests/python/project/test_site.py"
    page = outside({"docs/a.md": f"[a](../{here})"})[f"source/{here}.md"]
    longest = max(re.findall("`{3,}", (ROOT / here).read_text()), key=len)
    assert f"\n\n`{longest}python\n" in page
    assert page.endswith(f"\n`{longest}\n")


@pytest.mark.parametrize("path", [*PAGES, *PROSE])
def test_every_link_leads_to_a_file_that_is_there(path: str) -> None:
    files = [posixpath.normpath(file) for file in linked((ROOT / path).read_text(), path)]
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_every_page_has_its_place_in_the_navigation() -> None:
    config = (ROOT / "mkdocs.yml").read_text()
    listed = re.findall(r"^ *- [^#\n]*?: (\S+\.md)$", config, re.MULTILINE)
    assert len(listed) == len(set(listed))
    own = {f"docs/{page}" for page in listed if not page.startswith("project/")}
    assert own == set(PAGES)


@pytest.mark.parametrize(
    ("html", "count"),
    [
        ('<a href="https://a.example/">', 0),
        ('<script src="assets/a.js"></script><link href="a.css">', 0),
        ('<link rel="canonical" href="https://a.example/">', 0),
        ('<link rel="next" href="http://a.example/">', 0),
        ('<script src="https://a.example/a.js"></script>', 1),
        ('<link rel="stylesheet" href="//a.example/a.css">', 1),
        ("<img alt='a' src='http://a.example/a.png'>", 1),
    ],
)
def test_what_is_fetched_from_elsewhere_is_noticed(html: str, count: int) -> None:
    assert len(fetched(html)) == count
