"""The pages of the site: what the hooks make of them, and that no link or page is forgotten."""

import ast
import importlib
import posixpath
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
from site_hooks import fetched, linked, outside, with_links, with_tables

import blockyard as by
from blockyard import _core
from blockyard.shared.stats import core_schema

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


def test_comments_become_tables_of_all_there_is() -> None:
    page = with_tables("a\n<!-- stats -->\n<!-- names -->\nb")
    assert all(f"| `{stat.name}` |" in page for stat in (*core_schema(), *by.Scheduler.SCHEMA))
    assert all(f"| [`{name}`][blockyard." in page for name in set(by.__all__) - {"__version__"})
    assert "<!--" not in page


def uses(text: str) -> Iterator[tuple[str, str]]:
    """Modules and names in them that a page or an example imports."""
    blocks = re.findall(r"^ *from (blockyard\S*) import (?:\(([^)]*)\)|(.+))", text, re.MULTILINE)
    for module, inside, line in blocks:
        for name in re.findall(r"(?:^|,)\s*(\w+)", inside or line.partition("#")[0]):
            yield module, name


def home(module: str, name: str) -> str:
    """The module that has the documentation of a name."""
    thing = getattr(importlib.import_module(module), name)
    if isinstance(thing, ModuleType):
        return thing.__name__
    if hasattr(_core, name):
        return _core.__name__
    return str(getattr(thing, "__module__", module)) if callable(thing) else module


def test_the_reference_has_every_module_that_a_page_or_an_example_imports() -> None:
    reference = "".join(path.read_text() for path in ROOT.glob("docs/reference/*.md"))
    shown = set(re.findall(r"^::: (\S+)$", reference, re.MULTILINE))
    texts = [(ROOT / path).read_text() for path in (*PAGES, *PROSE)]
    texts += [path.read_text() for path in ROOT.glob("examples/*.py")]
    used = {use for text in texts for use in uses(text)}
    used |= {("blockyard", name) for name in by.__all__ if name != "__version__"}
    assert len(used) > 60
    assert {f"{home(*use)} for {use[1]}" for use in used if home(*use) not in shown} == set()
    handles = set(re.findall(r"\w+", re.search(r"members: \[(.*)\]", reference)[1]))  # type: ignore[index]
    assert {name for name in by.__all__ if hasattr(_core, name)} <= handles | {"__version__"}


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


@pytest.mark.parametrize("path", [*PAGES, *PROSE])
def test_every_link_leads_to_a_heading_that_is_there(path: str) -> None:
    links = re.findall(r"\]\((?!http)([^)#\s]*)#([^)\s]+)\)", (ROOT / path).read_text())
    lost = [
        f"{file}#{anchor}"
        for file, anchor in links
        if file.endswith(".md") or not file
        if anchor not in headings((ROOT / path).parent / file if file else ROOT / path)
    ]
    assert lost == []


def headings(path: Path) -> set[str]:
    """The anchors of a page."""
    text = re.sub(r"^ *```.*?^ *```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", one).lower() for one in found]
    return {re.sub(r"[^\w\- ]", "", one).strip().replace(" ", "-") for one in plain}


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


@pytest.mark.parametrize("tool", ["replay", "sweep"])
def test_each_key_of_the_json_has_a_meaning(tool: str) -> None:
    tree = ast.parse((ROOT / f"python/blockyard/tools/{tool}/result.py").read_text())
    kinds = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    pairs = [pair for kind in kinds for pair in pairwise([*kind.body, kind])]
    keys = [(one.target, after) for one, after in pairs if isinstance(one, ast.AnnAssign)]
    assert len(keys) > 20
    assert [ast.unparse(key) for key, after in keys if not isinstance(after, ast.Expr)] == []
