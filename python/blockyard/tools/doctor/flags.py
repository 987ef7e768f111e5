"""vLLM's command line, read as vLLM's own parser reads it."""

import difflib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from blockyard._core import Misuse
from blockyard.connectors.effective import names
from blockyard.connectors.vllm import options
from blockyard.shared.owner import is_foreign
from blockyard.shared.validate import shown

__all__ = ["Fault", "Flags", "parsed", "split"]

_JSON: Final = frozenset(
    (
        *("kv_transfer_config", "attention_config", "speculative_config", "hf_overrides"),
        *("weight_transfer_config", "kv_events_config"),
    )
)
_NUMBERS: Final = frozenset(
    (
        *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "nnodes"),
        *("data_parallel_size_local", "decode_context_parallel_size", "shutdown_timeout"),
        *("prefill_context_parallel_size", "max_model_len", "block_size", "kv_offloading_size"),
    )
)
_SWITCHES: Final = frozenset(
    (
        *("enable_prefix_caching", "enforce_eager", "enable_sleep_mode", "enable_lora"),
        *("disable_hybrid_kv_cache_manager", "trust_remote_code", "async_scheduling"),
        *("enable_chunked_prefill", "enable_expert_parallel", "disable_log_stats"),
        "enable_cumem_allocator",
    )
)
_TEXTS: Final = frozenset(
    (
        *("model", "prefix_caching_hash_algo", "kv_cache_dtype", "dtype", "load_format"),
        *("download_dir", "revision", "quantization", "worker_extension_cls", "config"),
        *("hf_config_path", "kv_offloading_backend", "swap_space"),
    )
)
_READ: Final = _JSON | _NUMBERS | _SWITCHES | _TEXTS
_SHORT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "-tp": "tensor_parallel_size",
        "-pp": "pipeline_parallel_size",
        "-dp": "data_parallel_size",
        "-dpl": "data_parallel_size_local",
        "-dcp": "decode_context_parallel_size",
        "-pcp": "prefill_context_parallel_size",
        "-n": "nnodes",
        "-q": "quantization",
        "-ac": "attention_config",
        "-sc": "speculative_config",
    }
)
_OPTIONS: Final = frozenset().union(*names(*options.IN, *options.OUT).values()) | _READ
"""Every option of vLLM by the name that its flag has, and some more."""
_SUFFIXES: Final = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SERVER: Final = "vllm.entrypoints.openai.api_server"
_VARIABLE: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_NEAR: Final = 0.85
"""How alike a flag must be to one that is read here, so that it was meant."""


class Fault(Misuse):
    """A flag that vLLM refuses, or does not understand as it was meant.

    Args:
        flag: Which.
        fact: What is wrong with it.
        do: What to write.
    """

    def __init__(self, flag: str, fact: str, do: str) -> None:
        super().__init__(f"{flag}: {fact}")
        self.flag, self.fact, self.do = flag, fact, do


@dataclass(slots=True)
class Flags:
    """What a command line says."""

    values: dict[str, Any] = field(default_factory=dict)
    """By the names of vLLM's options."""
    environ: dict[str, str] = field(default_factory=dict)
    """Variables that are set before the command."""
    faults: list[Fault] = field(default_factory=list)

    def number(self, name: str, default: int = 1) -> int:
        """Returns a whole number, or the default."""
        value = self.values.get(name)
        return int(value) if isinstance(value, int | float) else default

    def text(self, name: str, default: str) -> str:
        """Returns text, or the default."""
        return str(self.values.get(name) or default)


def split(text: str) -> list[str]:
    """Splits a command line into words, as a shell does.

    JSON may stand without quotes around it, as it does in the quotes of this command's own option.

    Raises:
        Fault: A quote is not closed.
    """
    text = text.replace("\\\r\n", " ").replace("\\\n", " ")
    words: list[str] = []
    while text := text.lstrip():
        word, text = _first(text)
        words += word
    return words


def _first(text: str) -> tuple[list[str], str]:
    """The words up to the next JSON, with it; and what is left."""
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
        return words, text[end:]
    return _shell(text), ""


def _shell(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise Fault(
            "--vllm",
            f"{str(error).lower()} in {shown(text[-60:])}",
            "close it; JSON stands in single quotes: --kv-transfer-config '{…}'",
        ) from error


def parsed(words: Sequence[str]) -> Flags:
    """Reads a command line, with or without `vllm serve` and variables before it.

    Args:
        words: Of the command line.
    """
    found = _read(words)
    path = found.values.get("config")
    if isinstance(path, str):
        inner = _of_file(path)
        found.values = inner.values | found.values
        found.faults += inner.faults
    return found


def _read(words: Sequence[str]) -> Flags:
    found = Flags()
    left = _after_command(list(words), found)
    nested: dict[str, dict[str, Any]] = {}
    while left:
        word = left.pop(0)
        if not word.startswith("-") or len(word) == 1:
            found.values.setdefault("model", word)
            continue
        head, equals, value = word.partition("=")
        flag, _, inner = head.partition(".")
        name = _SHORT.get(flag, flag.lstrip("-").replace("-", "_"))
        if inner:
            given = value if equals else (left.pop(0) if left else "")
            _put(nested.setdefault(name, {}), inner, given)
        elif switch := _switch(name):
            found.values[switch[0]] = switch[1]
        elif equals or not left or _is_flag(left[0]) or _is_switch(name):
            _take(found, flag, name, value if equals else None)
        else:
            _take(found, flag, name, left.pop(0))
    # As vLLM has it: what was given by parts stands for all of it.
    found.values.update(nested)
    return found


def _after_command(left: list[str], found: Flags) -> list[str]:
    """Takes variables, and the words that start vLLM, from the beginning."""
    while left and (variable := _VARIABLE.fullmatch(left[0])):
        found.environ[variable[1]] = variable[2]
        left.pop(0)
    for last in ("serve", _SERVER):
        if last in left and not any(map(_is_flag, left[: max(left.index(last) - 1, 0)])):
            return left[left.index(last) + 1 :]
    return left


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", word)


def _switch(name: str) -> tuple[str, bool] | None:
    """Which switch a flag sets, and how; None where it is none."""
    for prefix, other in (("", ""), ("no_", ""), ("enable_", "disable_"), ("disable_", "enable_")):
        base = name.removeprefix(prefix)
        if name.startswith(prefix) and other + base in _SWITCHES:
            return other + base, not prefix
    return None


def _is_switch(name: str) -> bool:
    """Whether a flag that is not read here takes no value: vLLM's switches begin so."""
    return name not in _READ and name.startswith(("enable_", "disable_", "no_"))


def _put(into: dict[str, Any], keys: str, text: str) -> None:
    *path, last = keys.rstrip("+").split(".")
    for key in path:
        inner = into.setdefault(key, {})
        into = inner if isinstance(inner, dict) else into.setdefault(key + ".", {})
    try:
        into[last] = text.split(",") if keys.endswith("+") else json.loads(text)
    except (ValueError, RecursionError):
        into[last] = text


def _take(found: Flags, flag: str, name: str, value: str | None) -> None:
    """Takes a flag and its value."""
    if name not in _READ:
        known = [one for one in _READ if one.startswith(name)]
        if name not in _OPTIONS and len(known) == 1 and len(name) > 3:  # noqa: PLR2004
            # As argparse has it: the beginning of a name is enough where it is one's alone.
            name = known[0]
        else:
            near = difflib.get_close_matches(name, _READ, n=1, cutoff=_NEAR)
            if near and name not in _OPTIONS:
                meant = "--" + near[0].replace("_", "-")
                found.faults.append(Fault(flag, "vLLM has no such flag", f"write {meant}"))
            return
    if name in _SWITCHES:
        found.values[name] = True
        return
    if value is None:
        found.faults.append(Fault(flag, "it has no value", f"give one, as {_example(name)}"))
        return
    try:
        found.values[name] = _value(name, value)
    except (ValueError, RecursionError, OverflowError) as error:
        fact = f"{shown(value)} is no {'JSON' if name in _JSON else 'number'}: {error}"
        found.faults.append(Fault(flag, fact, f"write {_example(name)}"))


def _example(name: str) -> str:
    flag = "--" + name.replace("_", "-")
    if name == "kv_transfer_config":
        return (
            f"{flag} with single quotes around the JSON and double quotes in it: "
            """'{"kv_connector": "Blockyard", …}'"""
        )
    return f"{flag} {'{…}' if name in _JSON else '…'}"


def _value(name: str, text: str) -> object:
    if name in _JSON:
        return json.loads(text)
    if name == "kv_offloading_size":
        return float(text)
    if name not in _NUMBERS:
        return text
    text = text.strip()
    if name == "max_model_len" and text.lower() in {"-1", "auto"}:
        return "auto"
    amount, unit = text[:-1], text[-1:]
    if unit in _BINARY:
        return int(amount) * _BINARY[unit]
    return int(float(amount) * _SUFFIXES[unit]) if unit in _SUFFIXES else int(text)


def _of_file(path: str) -> Flags:
    """Reads a file of vLLM's flags."""
    try:
        import yaml  # noqa: PLC0415 - vLLM brings it; nobody else needs it

        table = yaml.safe_load(Path(path).read_text("utf-8")) or {}
    except ImportError:
        fact = f"{path} is not read, as PyYAML is not here"
        return Flags(faults=[Fault("--config", fact, "pip install pyyaml, or give its flags here")])
    except Exception as error:
        if is_foreign(error):
            raise
        table = error
    if not isinstance(table, Mapping):
        fact = f"{path} is no mapping of flags to values: {shown(table)}"
        return Flags(faults=[Fault("--config", fact, "give the path of a YAML file")])
    words: list[str] = []
    for name, value in table.items():
        text = json.dumps(value) if isinstance(value, Mapping | list) else str(value)
        switch = {True: f"--{name}", False: f"--no-{name}"}
        words.append(switch[value] if isinstance(value, bool) else f"--{name}={text}")
    return _read(words)
