"""An engine's command line, read as the engine's own parser reads it.

`flags.json` beside a connector has every flag of its engine, recorded from that parser. Python's
own parser is built of it here, so that beginnings of names, values behind `=` and values that are
missing are read alike; what it would refuse is collected instead.
"""

import argparse
import ast
import difflib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any, Final, NoReturn

from blockyard._core import Misuse
from blockyard._typing import override
from blockyard.shared.owner import is_foreign
from blockyard.shared.validate import shown

__all__ = ["Fault", "Flags", "known", "mended", "read", "split"]

_STARTS: Final = {
    "vllm": ("vllm.entrypoints.openai.api_server", "vllm/vllm-openai"),
    "sglang": ("sglang.launch_server", "sglang/launch_server.py"),
}
"""Words that a command line starts the engine with, beside `vllm serve` and `sglang serve`."""
_VARIABLE: Final = re.compile(r"([A-Za-z_]\w*)=(?!=)(.*)", re.DOTALL)
_OPERATOR: Final = re.compile(r"[\n|&;]+|\d?[<>]+\S*")
_START: Final = re.compile(r"^serve$|launch_server|api_server|vllm-openai|^lmsysorg/sglang")
_TRANSFER: Final = "--kv-transfer-config"
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_NUMBER: Final = re.compile(r'("(?:[^"\\]|\\.)*")|\b\d+(?:\.\d+)?[kKmMgGtT]\b')
"""A number with a unit, or the text in which it is none."""
_UNITS: Final = {unit: 10 ** (3 * at) for at, unit in enumerate("kmgt", 1)} | {
    unit: 1 << (10 * at) for at, unit in enumerate("KMGT", 1)
}
_NONE: Final = object()
"""Stands for a value that is missing."""
_BARE: Final = re.compile(r'(?<=[{\[,:])\s*([^\s"{}\[\],:][^"{}\[\],:]*?)\s*(?=[,:}\]])')
_JSON: Final = "single quotes stand around the JSON and double quotes in it"
_QUOTES: Final = str.maketrans("\u201c\u201d\u201e\u2018\u2019", '"""\'\'')


class Fault(Misuse):
    """A flag that the engine refuses, or does not understand as it was meant.

    Args:
        flag: Which.
        fact: What is wrong with it.
        do: What to write.
        sure: Whether no plugin of the engine may bring it.
    """

    def __init__(self, flag: str, fact: str, do: str, *, sure: bool = True) -> None:
        super().__init__(f"{flag}: {fact}")
        self.flag, self.fact, self.do, self.sure = flag, fact, do, sure


@dataclass(slots=True)
class Flags:
    """What a command line says."""

    values: dict[str, Any] = field(default_factory=dict)
    """By the names of the engine's options; only what was said."""
    environ: dict[str, str] = field(default_factory=dict)
    """Variables that are set before the command."""
    faults: list[Fault] = field(default_factory=list)
    unknown: dict[str, str | None] = field(default_factory=dict)
    """Flags that the engine has not, and what follows each of them."""

    def number(self, name: str, default: int = 1) -> int:
        """Returns a whole number, or the default."""
        value = self.values.get(name)
        return int(value) if isinstance(value, int | float) else default

    def text(self, name: str, default: str = "") -> str:
        """Returns text, or the default."""
        return str(self.values.get(name) or default)

    def mapping(self, name: str) -> dict[str, Any]:
        """Returns a mapping; an empty one where there is none."""
        value = self.values.get(name)
        return dict(value) if isinstance(value, Mapping) else {}


def split(text: str) -> tuple[list[str], bool]:
    """Splits a command line, or a script with one, into words, as a shell does.

    Returns:
        The words, and whether JSON stood there without quotes around it: so it comes out of the
        quotes of an option, and a shell would take its own away.

    Raises:
        Fault: A quote is not closed.
    """
    text = re.sub(r"(?m)^\s*#.*$", "", text)
    text = text.replace("\\\r\n", " ").replace("\\\n", " ")
    words: list[str] = []
    bare = False
    while text := text.lstrip():
        word, text, is_json = _first(text)
        words += word
        bare |= is_json
    return _command(words), bare


def _command(words: Sequence[str]) -> list[str]:
    """Returns the words of the command that starts an engine, behind variables that are set."""
    parts: list[list[str]] = [[]]
    for word in words:
        if not _OPERATOR.fullmatch(word):
            parts[-1].append(word)
        elif word.isspace() and not any(map(_START.search, parts[-1])):
            # Lines of flags alone are one.
            parts += [[]] if any(map(_START.search, words)) else []
        else:
            parts.append([])
    found = next((at for at, part in enumerate(parts) if any(map(_START.search, part))), 0)
    before = [word for part in parts[:found] for word in part if _VARIABLE.fullmatch(word)]
    end = found + 1
    while end < len(parts) and parts[end] and parts[end][0].startswith("--"):
        # A line of flags behind it, as in a file of containers.
        end += 1
    return before + [word for part in parts[found:end] for word in part]


def _first(text: str) -> tuple[list[str], str, bool]:
    """The words up to the next JSON, with it; what is left; and whether there was JSON."""
    at = re.search(r"(?:^|(?<=[\s=]))\{", text)
    while at is not None:
        before = text[: at.start()]
        try:
            _, end = json.JSONDecoder().raw_decode(text, at.start())
            words = _shell(before)
        except (ValueError, RecursionError, Fault):
            # It is in quotes, or it is no JSON.
            at = re.compile(r"(?<=[\s=])\{").search(text, at.end())
            continue
        if before and not before[-1].isspace():
            words[-1] += text[at.start() : end]
        else:
            words.append(text[at.start() : end])
        return words, text[end:], True
    return _shell(text), "", False


def _shell(text: str) -> list[str]:
    """Splits text as a shell does; what divides commands, as a line's end does, is a word."""
    reader = shlex.shlex(text, posix=True, punctuation_chars="\n;|&")
    reader.whitespace, reader.whitespace_split, reader.commenters = " \t\r", True, ""
    try:
        return list(reader)
    except ValueError as error:
        raise Fault(
            "the command line",
            f"{str(error).lower()} in {shown(text[-60:])}",
            "close it; JSON stands in single quotes: '{…}'",
        ) from error


def read(engine: str, words: Sequence[str]) -> Flags:
    """Reads a command line, with or without what starts the engine and variables before it.

    Args:
        engine: "vllm" or "sglang".
        words: Of the command line.
    """
    found = Flags()
    left = _after_command(engine, list(words), found)
    parser = _parser(engine)
    left = _with_file(engine, left, parser, found)
    if engine == "vllm":
        left = list(_flexible(left, found))
    strays: list[str] = []
    said = argparse.Namespace()
    while True:
        try:
            parser.faults, parser.broken = [], {}
            said, strays = parser.parse_known_args(left)
            break
        except _RefusedError as error:
            at = error.place(left)
            found.faults.append(Fault(left[at].partition("=")[0], str(error), error.do))
            alone = "=" in left[at] or at + 1 == len(left) or left[at + 1].startswith("-")
            del left[at : at + 2 - alone]
    found.values |= {name: value for name, value in vars(said).items() if value is not None}
    if model := found.values.pop("model_tag", None):
        found.values["model"] = model
    found.faults += parser.faults
    words_left = _unknown(strays, found)
    for name, (text, why) in parser.broken.items():
        fact = f"{shown(text)} is no JSON: {why}"
        found.faults.append(Fault(name, fact, mended(name, [text, *words_left])))
    if words_left and not parser.broken:
        fact = f"nothing takes {shown(' '.join(words_left))}"
        do = "put what has blanks into quotes"
        if {"true", "false"} & {word.casefold() for word in words_left}:
            do = "leave it out: a switch takes no value, and --no-… turns it off"
        found.faults.append(Fault("the command line", fact, do))
    return found


class _RefusedError(Exception):
    """What Python's parser still refuses: the beginning of several names, and a switch's value."""

    def __init__(self, text: str) -> None:
        self._names = re.findall(r"-[\w-]+", text)
        if "explicit" in text:
            super().__init__("it takes no value")
            self.do = "leave out the `=` and what stands behind it"
        else:
            super().__init__(f"{len(self._names) - 1} flags begin so")
            self.do = f"write the whole name, as {' or '.join(self._names[1:4])}"

    def place(self, words: Sequence[str]) -> int:
        """Returns where in a command line it stands."""
        for at, word in enumerate(words):
            name, equals, _ = word.partition("=")
            begins = (
                equals and name.startswith("-") and any(one.startswith(name) for one in self._names)
            )
            if name in self._names or begins:
                return at
        return 0


class _Parser(argparse.ArgumentParser):
    faults: list[Fault]
    broken: dict[str, tuple[str, Exception]]
    """What is no JSON, and why, by the flag."""

    @override
    def error(self, message: str) -> NoReturn:
        raise _RefusedError(message)


def _recorded(engine: str) -> dict[str, Any]:
    path = resources.files(f"blockyard.connectors.{engine}").joinpath("flags.json")
    return dict(json.loads(path.read_text("utf-8")))


@cache
def _parser(engine: str) -> _Parser:
    """Builds the parser of an engine: nothing in it raises but for a beginning of two names."""
    record = _recorded(engine)
    parser = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    parser.faults = []
    if engine == "vllm":
        parser.add_argument("model_tag", nargs="?")
    for kind in ("switch", "pair", "text", "texts", "int", "ints", "float", "floats", "size"):
        _add(parser, engine, kind, record)
    for kind in ("json", "jsons", "text?"):
        _add(parser, engine, kind, record)
    return parser


def _add(parser: _Parser, engine: str, kind: str, record: Mapping[str, Any]) -> None:
    for names in str(record.get(kind, "")).split():
        flags = names.split("/")
        name = flags[0]
        more: dict[str, Any] = {"dest": name.lstrip("-").replace("-", "_")}
        if kind == "switch":
            parser.add_argument(*flags, action="store_true", **more)
            continue
        if kind == "pair":
            swaps = {"--enable-": "--disable-", "--disable-": "--enable-"}
            off = [f"--no-{name[2:]}"]
            if engine == "vllm":
                off += [to + name[len(of) :] for of, to in swaps.items() if name.startswith(of)]
            parser.add_argument(*flags, action="store_true", **more)
            parser.add_argument(*off, action="store_false", **more)
            continue
        take = partial(_value, parser, record, name, kind.rstrip("s?"))
        nargs = "*" if kind.endswith("s") else "?"
        parser.add_argument(*flags, type=take, nargs=nargs, const=_NONE, action=_Store, **more)


class _Store(argparse.Action):
    """Keeps a value, and names one that is missing."""

    @override
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,  # noqa: ARG002 - as Python's parser calls it
    ) -> None:
        if values is not _NONE and values != []:
            setattr(namespace, self.dest, values)
        elif isinstance(parser, _Parser) and self.option_strings != ["--hf-token"]:
            name = self.option_strings[0]
            fault = Fault(name, "it has no value", f"give one, as {_example(name)}")
            parser.faults.append(fault)


def _value(parser: _Parser, record: Mapping[str, Any], name: str, kind: str, text: str) -> object:
    """Returns a value as the engine has it; one that it refuses is noted, and None."""

    def noted(fact: str, do: str, *, sure: bool = True) -> None:
        parser.faults.append(Fault(name, f"{shown(text)} {fact}", f"write {name} {do}", sure=sure))

    try:
        value = _CONVERTERS[kind](text)
    except (ValueError, RecursionError, OverflowError) as error:
        if kind == "json":
            parser.broken[name] = text, error
        else:
            noted("is no number", _number(record, name))
        return None
    fields = record["fields"].get(name, "").split()
    if fields and isinstance(value, dict):
        strange = [key for key in value if key not in fields]
        if strange and name != _TRANSFER:
            near = difflib.get_close_matches(str(strange[0]), fields, n=1)
            noted(f"has {strange[0]!r}", f'with "{near[0]}"' if near else f"without {strange[0]!r}")
    elif fields and value is not None:
        noted("is no mapping", _example(name).partition(" ")[2])
        return None
    elif isinstance(value, int | float) and not (kind == "size" and value == -1):
        low, high = (record[side].get(name, value) for side in ("least", "most"))
        if value < low or value > high:
            noted(f"is {'less' if value < low else 'more'} than it may be", _number(record, name))
            return None
    elif isinstance(value, str) and (one := _nearest(record, name, value)):
        noted("is none of its values", one, sure=name in record["choices"])
    return value


def _nearest(record: Mapping[str, Any], name: str, text: str) -> str | None:
    """Returns which of a flag's values to write in place of text that is none; None where it is."""
    choices = record["choices"].get(name, record["open"].get(name, "")).split()
    if not choices or text in choices or text.casefold().replace("-", "_") in choices:
        return None
    if name in record["open"] and "." in text:
        # The name of a class of the operator's.
        return None
    near = [one for one in choices if text and one.startswith(text)]
    near = near or difflib.get_close_matches(text.casefold(), choices, n=1, cutoff=0.5)
    return near[0] if near else f"and one of {', '.join(choices)}"


def _number(record: Mapping[str, Any], name: str) -> str:
    """Returns a number that a flag takes; of sizes that is for its user to say."""
    least = record["least"].get(name)
    return "…" if least is None or name in record["size"].split() else f"{max(least, 1):g}"


def _size(text: str) -> int:
    """Reads a whole number, which may have a unit: of 1000 as k, of 1024 as K."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        return -1 if text.strip().lower() == "auto" else int(text)
    amount, unit = found[1], _UNITS[found[2]]
    return int(amount) * unit if found[2].isupper() else int(float(amount) * unit)


def _json(text: str) -> object:
    """Reads JSON, in which numbers may have a suffix, as vLLM takes them."""
    if text in {"", "None"}:
        return None
    with suppress(ValueError):
        return json.loads(text)
    return json.loads(_NUMBER.sub(lambda one: one[1] or str(_size(one[0])), text))


_CONVERTERS: Final[Mapping[str, Any]] = {
    "text": str,
    "int": int,
    "float": float,
    "size": _size,
    "json": _json,
}


def mended(name: str, pieces: Sequence[str], example: str | None = None) -> str:
    """Returns what to write where some words are no JSON: as it was meant, where that is clear.

    Args:
        name: Of the flag.
        pieces: The words, which a shell may have divided.
        example: What is written where it is not clear.
    """
    for text in (" ".join(pieces), ",".join(pieces), pieces[0]):
        text = text.translate(_QUOTES)  # noqa: PLW2901
        for one in (text, _BARE.sub(_word, text), _BARE.sub(_word, f"{{{text}}}")):
            with suppress(ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
                meant = ast.literal_eval(re.sub(r"\b(true|false|null)\b", _constant, one))
                if isinstance(meant, dict) and meant:
                    return f"{_JSON}: write {name} {shlex.quote(json.dumps(meant))}"
    return f"{_JSON}: write {example or _example(name)}"


def _word(found: "re.Match[str]") -> str:
    text = found[1]
    plain = re.fullmatch(r"-?\d+(\.\d+)?|true|false|null|True|False|None", text)
    return text if plain else json.dumps(text)


def _constant(found: "re.Match[str]") -> str:
    return {"true": "True", "false": "False", "null": "None"}[found[1]]


def _example(name: str) -> str:
    if name == _TRANSFER:
        return f"""{name} '{{"kv_connector": "Blockyard", …}}'"""
    return f"{name} …"


def _after_command(engine: str, left: list[str], found: Flags) -> list[str]:
    """Takes the words that start the engine from the beginning, and variables before them."""
    end = 0
    for at, word in enumerate(left):
        called = word == "serve" and (not at or Path(left[at - 1]).name == engine)
        if called or any(word.startswith(one) or word.endswith(one) for one in _STARTS[engine]):
            end = at + 1
            break
    else:
        while end < len(left) and _VARIABLE.fullmatch(left[end]):
            end += 1
    found.environ |= {one[1]: one[2] for word in left[:end] if (one := _VARIABLE.fullmatch(word))}
    return left[end:]


def _unknown(strays: Sequence[str], found: Flags) -> list[str]:
    """Notes flags that the engine has not; returns the other words that it does not take."""
    others: list[str] = []
    flag = None
    for word in strays:
        if word.startswith("-") and len(word) > 1 and not word[1:2].isdigit():
            flag, equals, value = word.partition("=")
            found.unknown[flag] = value if equals else None
        elif flag is not None and found.unknown[flag] is None:
            found.unknown[flag] = word
        else:
            others.append(word)
    return others


def _with_file(engine: str, left: list[str], parser: _Parser, found: Flags) -> list[str]:
    """Puts the flags of the file that `--config` names before the others, as the engine does."""
    joined = next((word for word in left if re.fullmatch(r"--config=.*", word, re.DOTALL)), None)
    if joined is not None:
        fact = f"the engine reads no file that is given as {shown(joined)}"
        found.faults.append(Fault("--config", fact, f"write --config {joined[9:]}"))
    if left.count("--config") > 1:
        found.faults.append(Fault("--config", "more than one file", "write them into one"))
    if "--config" not in left[:-1]:
        return left
    at = left.index("--config")
    inner = list(_of_file(engine, left[at + 1], parser, found))
    model = at > 0 and engine == "vllm" and not left[0].startswith("-")
    if engine == "vllm" and not model and not {"--model"} & {*inner, *left}:
        fact = "a file of flags, and no model before it or in it"
        found.faults.append(Fault("--config", fact, "write vllm serve MODEL --config …"))
    return left[:model] + inner + left[model:at] + left[at + 2 :]


def _of_file(engine: str, path: str, parser: _Parser, found: Flags) -> Iterator[str]:
    """Reads a file of flags."""
    try:
        import yaml  # noqa: PLC0415 - the engines bring it; nobody else needs it

        table = yaml.safe_load(Path(path).read_text("utf-8")) or {}
    except ImportError:
        fact = f"{path} is not read, as PyYAML is not here"
        found.faults.append(Fault("--config", fact, "pip install pyyaml, or give its flags here"))
        return
    except Exception as error:
        if is_foreign(error):
            raise
        table = error
    if not isinstance(table, Mapping) or not path.lower().endswith((".yaml", ".yml")):
        fact = f"{path} has another ending than .yaml or .yml"
        if not isinstance(table, Mapping):
            fact = f"{path} is no mapping of flags to values: {shown(table)}"
        found.faults.append(Fault("--config", fact, "give the path of a YAML file"))
        return
    for name, value in table.items():
        yield from _as_words(engine, f"--{name}", value, parser)


def _as_words(engine: str, flag: str, value: object, parser: _Parser) -> Sequence[str]:
    """Returns a line of such a file as words."""
    if isinstance(value, bool):
        off = f"--no-{flag[2:]}".replace("_", "-")
        known = parser._option_string_actions  # noqa: SLF001 - as the engines do
        return [flag] if value else [off] if engine == "vllm" and off in known else []
    if isinstance(value, list):
        return [flag, *map(str, value)] if value else []
    return [flag, json.dumps(value) if isinstance(value, Mapping) else str(value)]


def _flexible(left: Sequence[str], found: Flags) -> Iterator[str]:
    """Gives the words as vLLM's parser has them: dashes in names, and JSON that comes in parts."""
    nested: dict[str, dict[str, Any]] = {}
    words = iter(left)
    for word in words:
        head, equals, value = word.partition("=")
        if not head.startswith("-"):
            yield word
            continue
        if head.startswith("--"):
            first, dot, rest = head.partition(".")
            head = first.replace("_", "-") + dot + rest
        elif level := re.fullmatch(r"-O=?(.+)", word, re.DOTALL):
            yield f"--optimization-level={level[1]}"
            continue
        flag, dot, inner = head.partition(".")
        if not dot or word[1:2].isdigit():
            yield head + equals + value
            continue
        text = value if equals else next(words, None)
        if text is None:
            found.faults.append(Fault(head, "it has no value", f"give one, as {head} …"))
        else:
            _put(nested.setdefault(flag, {}), inner, text)
    # What was given by parts stands for all of it.
    for flag, parts in nested.items():
        yield from (flag, json.dumps(parts))


def _put(into: dict[str, Any], keys: str, text: str) -> None:
    """Puts a value into a mapping of mappings, by names with dots between them."""
    *path, last = keys.removesuffix("+").split(".")
    value: Any = text.split(",") if keys.endswith("+") else text
    if isinstance(value, str):
        for convert in (json.loads, _size):
            with suppress(ValueError, RecursionError):
                value = convert(text)
                break
    for key in path:
        if not isinstance(into.get(key), dict):
            into[key] = {}
        into = into[key]
    if isinstance(value, list) and isinstance(into.get(last), list):
        value = into[last] + value
    into[last] = value


def known(engine: str) -> list[str]:
    """Returns every flag of an engine."""
    return list(_parser(engine)._option_string_actions)  # noqa: SLF001 - there is no other way
