"""Makes docs/api.md, the table of all public names; with --check, says whether that was done.

Every text on it is the first sentence of a docstring. A heading is followed by a comment for each
object below it, `<!-- ::: path -->`, where a site puts the whole docstrings.
"""

import ast
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import BuiltinFunctionType, FunctionType

import blockyard
from blockyard import _core

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
HEAD = """# Public names

`make docs` makes this page from the docstrings: every public name, with the first sentence of its
docstring. In a program `help(by.KVCache.begin)` shows the whole, with the arguments and the errors;
[threads.md](threads.md) says which thread may call what. A heading with a dot is a module to import
from. What the package `blockyard` itself has is not named again in its modules.
"""
# What users import besides the package itself. The other modules are parts of these.
MODULES = """
local
yard.cache yard.config yard.explain yard.flights yard.offload yard.parking
scheduling.scheduler scheduling.options scheduling.engine scheduling.request scheduling.headroom
scheduling.victims scheduling.reservations scheduling.async_engine scheduling.stream
scheduling.monitor
crane.crane crane.devices crane.tiers crane.tiers.memory crane.tiers.device crane.tiers.pinned
crane.copiers crane.copiers.threads crane.copiers.cuda crane.copiers.calibrate
publishing.publisher publishing.options
shared.layout shared.models shared.plan shared.stats shared.timings shared.thresholds
engines.reference engines.model engines.parallel engines.rank engines.sampling engines.weights
engines.exact
metrics.server metrics.exported metrics.collector
testing testing.gpu
"""
ANSWERS = "Need Recorder Room Ticket"
"""What verbs of the package answer with, and programs need not name."""
TABLE = "| | |\n|---|---|\n"
WIDTH = 72
"""The most characters of a signature; a longer one loses its defaults, and then its end."""


def first_sentence(doc: str | None) -> str:
    """The first sentence of a docstring, on one line."""
    paragraph = " ".join(inspect.cleandoc(doc or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[.?!])\s+(?=[A-Z`\"])", paragraph)[0]


def signature(name: str, thing: object) -> str:
    """A call of it, in short, without types."""
    try:
        said = inspect.signature(thing)  # type: ignore[arg-type]
    except ValueError:
        return name
    all_ = [one for one in said.parameters.values() if one.name not in {"self", "cls"}]
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in all_]
    bare = [one.replace(default=inspect.Parameter.empty) for one in plain]
    texts = []
    for parameters in (plain, bare):
        texts.append(name + str(inspect.Signature(parameters)))
        if len(texts[-1]) <= WIDTH:
            return texts[-1]
    cut, _, _ = texts[-1][:WIDTH].rpartition(", ")
    return f"{cut}, …)"


@functools.cache
def source(module: str) -> dict[str, ast.ClassDef | ast.Module]:
    """The classes that a module's source has, and under "" the whole."""
    file = inspect.getsourcefile(importlib.import_module(module))
    if file is None or not file.endswith(".py"):
        return {}
    tree = ast.parse(Path(file).read_text())
    return {"": tree} | {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def described(node: ast.ClassDef | ast.Module | None) -> Iterator[tuple[str, str]]:
    """The names that are assigned there, with the docstring below each or nothing."""
    body = [] if node is None else node.body
    for one, after in zip(body, [*body[1:], None], strict=False):
        target = one.targets[0] if isinstance(one, ast.Assign) else getattr(one, "target", None)
        if isinstance(target, ast.Name) and not target.id.startswith("_"):
            text = getattr(getattr(after, "value", None), "value", None)
            yield target.id, text if isinstance(after, ast.Expr) and isinstance(text, str) else ""


def arguments(doc: str | None) -> dict[str, str]:
    """What a docstring says of each argument or attribute."""
    found = re.search(
        r"^(?:Args|Attributes):\n((?:    .*\n|\n)+)",
        inspect.cleandoc(doc or "") + "\n",
        re.MULTILINE,
    )
    parts = re.split(r"^    (\w+): ", found[1], flags=re.MULTILINE)[1:] if found else []
    return dict(zip(parts[::2], parts[1::2], strict=True))


def ours(kind: type) -> list[type]:
    """The classes of this package that it is made of, itself first."""
    return [one for one in kind.__mro__ if one.__module__.partition(".")[0] == "blockyard"]


def fields(kind: type, base: type | None) -> dict[str, str]:
    """Its fields, members and constants, as far as a text says what they are."""
    found: dict[str, str] = {}
    for one in ours(kind):
        if one is base:
            break
        said = arguments(one.__doc__)
        own = dict(described(source(one.__module__).get(one.__name__)))
        if issubclass(one, BaseException):
            own = dict.fromkeys(said, "")
        if issubclass(one, Enum):
            own = {name: own[name] or f'"{member}"' for name, member in one.__members__.items()}
        found |= {name: text or said.get(name, "") for name, text in own.items()}
    return {name: text for name, text in found.items() if text}


def members(kind: type, base: type | None) -> Iterator[tuple[str, str]]:
    """Each public member that a class has and `base` has not: how it is used, and what it is."""
    there = fields(kind, base)
    yield from there.items()
    above = () if base is None else ours(base)
    all_ = [vars(one) for one in ours(kind) if one not in above]
    names = {name for one in all_ for name in one if not name.startswith("_")}
    for name in sorted(names - set(there)):
        thing = getattr(kind, name)
        if callable(thing):
            yield signature(name, thing), inspect.getdoc(thing) or ""
        elif inspect.isdatadescriptor(thing) and not is_field(kind, name):
            yield name, inspect.getdoc(thing) or ""


def is_field(kind: type, name: str) -> bool:
    """Whether it is a field of a tuple or a dataclass, which the signature shows."""
    return name in getattr(kind, "_fields", ()) or name in getattr(kind, "__slots__", ())


def path_of(thing: type | FunctionType | BuiltinFunctionType) -> str:
    """Where it is defined: what the core has says that it is the package's."""
    name = thing.__name__
    module = _core.__name__ if getattr(_core, name, None) is thing else thing.__module__
    return f"{module}.{name}"


def made(kind: type) -> str:
    """The name of a class, and how one is made, if users make any."""
    abstract = issubclass(kind, BaseException | Enum) or getattr(kind, "_is_protocol", False)
    return kind.__name__ if abstract else signature(kind.__name__, kind).removesuffix("()")


def row(name: str, text: str) -> str:
    """A line of a table."""
    if not text:
        raise SystemExit(f"{name} has no docstring")
    return f"| `{name}` | {first_sentence(text)} |"


def of_class(kind: type, shown: set[str]) -> Iterator[str]:
    """The part of the page that a class has. If its base is shown too, it has only what is new."""
    base = next((one for one in ours(kind)[1:] if path_of(one) in shown), None)
    yield f"### {kind.__name__}\n"
    yield f"`{made(kind)}`: {first_sentence(kind.__doc__)}\n"
    rows = [row(*one) for one in members(kind, base)]
    if base is not None:
        more = ", with these names besides:" if rows else "."
        yield f"It is a [{base.__name__}](#{anchor(base.__name__)}){more}\n"
    if rows:
        yield TABLE + "\n".join(rows) + "\n"
    yield f"<!-- ::: {path_of(kind)} -->\n"


def constants(module: str) -> dict[str, str]:
    """What is assigned in a module, or in one that it imports from, with the text below."""
    tree = source(module).get("", ast.Module([], []))
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("blockyard."):
            found |= dict(described(source(str(node.module)).get("")))
    return found | dict(described(tree))


def anchor(name: str) -> str:
    """What a heading is called in a link."""
    return re.sub(r"[^\w -]", "", name).lower().replace(" ", "-")


def of_module(title: str, names: list[str], shown: set[str]) -> Iterator[str]:
    """The part of the page that a module has; names that stand above are left out."""
    module = importlib.import_module(title)
    said = constants(title)
    rows: list[str] = []
    classes: list[type] = []
    functions: list[FunctionType | BuiltinFunctionType] = []
    for name in sorted(names, key=str.lower):
        thing = getattr(module, name)
        if inspect.isclass(thing) and thing.__name__ == name:
            if path_of(thing) not in shown:
                classes.append(thing)
                rows.append(f"| [`{name}`](#{anchor(name)}) | {first_sentence(thing.__doc__)} |")
        elif isinstance(inspect.unwrap(thing), FunctionType | BuiltinFunctionType):
            if path_of(thing) not in shown:
                functions.append(thing)
                rows.append(row(signature(name, thing), thing.__doc__ or ""))
        elif not name.startswith("_"):
            rows.append(row(name, said.get(name, "")))
    if not rows:
        return
    shown |= {path_of(one) for one in [*classes, *functions]}
    yield f"## {title}\n"
    yield f"{first_sentence(module.__doc__)}\n"
    yield TABLE + "\n".join(rows) + "\n"
    for function in functions:
        yield f"<!-- ::: {path_of(function)} -->\n"
    for kind in classes:
        yield from of_class(kind, shown)


def page() -> str:
    """The whole page."""
    parts, shown = [HEAD], set[str]()
    parts.extend(of_module("blockyard", blockyard.__all__, shown))
    parts.extend(of_module("blockyard._core", ANSWERS.split(), shown))
    for title in (f"blockyard.{name}" for name in MODULES.split()):
        parts.extend(of_module(title, importlib.import_module(title).__all__, shown))
    text = "\n".join(parts)
    headings = [anchor(title) for title in re.findall(r"^##+ (.+)$", text, re.MULTILINE)]
    twice = {one for one in headings if headings.count(one) > 1}
    if twice:
        raise SystemExit(f"two headings are called {', '.join(sorted(twice))}")
    return text


def main() -> int:
    """Writes or checks."""
    text = page()
    if "--check" not in sys.argv:
        PAGE.write_text(text)
        return 0
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    print(f"{PAGE.name} is not what the docstrings say: make docs")
    return 1


if __name__ == "__main__":
    sys.exit(main())
