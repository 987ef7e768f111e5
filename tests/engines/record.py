"""Records what the connectors touch of the engine that is installed, and every option that it has.

    python record.py [--check]

It runs in an environment with vLLM, or with SGLang. `interface.json` beside the connector lists
what it touches, by hand; from the engine come the parameters of what is called, and its version.
`flags.json` beside it has every flag of the engine's server, by what its value is.
The options go to `tests/python/connectors`, where `make test` holds the connector against them.
`--check` writes nothing, and ends with status 1 where the installed engine has others.
"""

import argparse
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import json
import pkgutil
import sys
import typing
from pathlib import Path
from typing import Any

from blockyard.connectors.interface import Interface, parameters_of

ROOT = Path(__file__).parents[2]
ENGINES = {"vllm": ("vLLM", "vllm_0_33.json"), "sglang": ("SGLang", "sglang_0_5_23.json")}


def options_of_vllm() -> dict[str, str]:
    """Every option by the part of the configuration that has it, and every variable."""
    import vllm.config
    import vllm.envs
    from vllm.engine.arg_utils import EngineArgs

    found: dict[str, list[str]] = {}
    for module in pkgutil.iter_modules(vllm.config.__path__):
        held = importlib.import_module(f"vllm.config.{module.name}")
        for name, kind in inspect.getmembers(held, inspect.isclass):
            if dataclasses.is_dataclass(kind) and kind.__module__ == held.__name__:
                fields = [field.name for field in dataclasses.fields(kind)]
                found[name] = sorted(one for one in fields if not one.startswith("_"))
    settled = {name for names in found.values() for name in names}
    given = [field.name for field in dataclasses.fields(EngineArgs)]
    # What has another name, or none, in the configuration.
    found["EngineArgs"] = sorted(
        name for name in given if name not in settled and not name.startswith("_")
    )
    found["environment"] = sorted(vllm.envs.environment_variables)
    return {part: " ".join(names) for part, names in found.items()}


def wire_of_vllm() -> dict[str, list[str]]:
    """The fields of its events, in their order."""
    from vllm.distributed import kv_events

    kinds = ("BlockStored", "BlockRemoved", "AllBlocksCleared", "KVEventBatch")
    return {name: list(getattr(kv_events, name).__struct_fields__) for name in kinds}


def options_of_sglang() -> dict[str, str]:
    """Every option of the server."""
    from sglang.srt.arg_groups.arg_utils import namespace_of
    from sglang.srt.server_args import ServerArgs

    return {"ServerArgs": " ".join(sorted(namespace_of(ServerArgs)))}


def parser_of_vllm() -> argparse.ArgumentParser:
    """The parser of `vllm serve`; what a flag may be depends on no device but for one."""
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()
    from vllm.entrypoints.common.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))


def limits_of_vllm() -> dict[str, dict[str, float]]:
    """The least and the most of its numbers, where its configuration has them, by their options."""
    import annotated_types
    import vllm.config

    found: dict[str, dict[str, float]] = {"least": {}, "most": {}}
    for module in pkgutil.iter_modules(vllm.config.__path__):
        held = importlib.import_module(f"vllm.config.{module.name}")
        for _, kind in inspect.getmembers(held, dataclasses.is_dataclass):
            for name, one in getattr(kind, "__pydantic_fields__", {}).items():
                for bound in one.metadata:
                    if isinstance(bound, annotated_types.Ge):
                        found["least"][name] = bound.ge
                    elif isinstance(bound, annotated_types.Gt):
                        whole = isinstance(bound.gt, int)
                        found["least"][name] = bound.gt + (1 if whole else 1e-9)
                    elif isinstance(bound, annotated_types.Le):
                        found["most"][name] = bound.le
    # What no attention backend takes less of.
    found["least"]["block_size"] = 16
    return found


def open_of_vllm() -> dict[str, list[str]]:
    """Values of text that vLLM takes, and that a plugin may add to, by their flags."""
    from vllm.config.cache import CacheDType
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
    from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER

    return {
        "--distributed-executor-backend": ["mp", "ray", "uni", "external_launcher", "None"],
        "--kv-cache-dtype": list(typing.get_args(CacheDType)),
        "--load-format": list(_LOAD_FORMAT_TO_MODEL_LOADER),
        "--quantization": [*QUANTIZATION_METHODS, "None"],
    }


def parser_of_sglang() -> argparse.ArgumentParser:
    """The parser of its server."""
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return parser


def flags_of(
    parser: argparse.ArgumentParser,
    limits: dict[str, dict[str, float]],
    others: dict[str, list[str]],
) -> dict[str, Any]:
    """Every flag by what its value is, and its other names behind it."""
    found: dict[str, Any] = {"choices": {}, "fields": {}, "least": {}, "most": {}}
    found["open"] = {name: " ".join(sorted(values)) for name, values in others.items()}
    for action in parser._actions:
        # The first long name is what the option is called.
        names = [one for one in action.option_strings if one.startswith("--")]
        names += [one for one in action.option_strings if not one.startswith("--")]
        if not names:
            continue
        kind = kind_of(action)
        if kind == "pair":
            del names[1:]
        found.setdefault(kind, []).append("/".join(names))
        if names[0] in CHOSEN:
            found["choices"][names[0]] = CHOSEN[names[0]]
        elif action.choices and names[0] not in DEVICE:
            found["choices"][names[0]] = " ".join(sorted(map(str, action.choices)))
        if named := fields_of(action.type):
            found["fields"][names[0]] = " ".join(named)
        for side in ("least", "most"):
            if action.dest in limits.get(side, ()) and kind in {"int", "size", "float"}:
                found[side][names[0]] = limits[side][action.dest]
    return {
        kind: " ".join(sorted(named)) if isinstance(named, list) else dict(sorted(named.items()))
        for kind, named in sorted(found.items())
    }


CHOSEN = {"--optimization-level": "0 1 2 3", "--data-parallel-backend": "mp ray"}
"""What vLLM looks at later than its parser."""
DEVICE = ("--mm-processor-device",)
"""What may be chosen depends on the device."""
KINDS = {"x": "text", "1.5": "float", "3": "int"}


def kind_of(action: argparse.Action) -> str:
    """What the value of a flag is: some are tried, as the types of engines have no names."""
    if isinstance(action, argparse.BooleanOptionalAction):
        return "pair"
    if action.nargs == 0:
        return "switch"
    if action.choices:
        return "texts" if action.nargs in {"+", "*"} else "text"
    if getattr(action.type, "__name__", "") == "union_dict_and_str" and action.default == {}:
        return "json"
    takes = functools.partial(taken, action.type)
    kind = next((kind for text, kind in KINDS.items() if takes(text)), "json")
    if takes("3k"):
        kind = "text" if kind == "text" else "size"
    if takes("{}") and kind != "text":
        kind = "json"
    return kind + {"+": "s", "*": "s", "?": "?"}.get(str(action.nargs), "")


def fields_of(kind: Any) -> list[str]:
    """The names that JSON of a flag may have, where that is a dataclass of vLLM's."""
    held = [cell.cell_contents for cell in getattr(kind, "__closure__", None) or ()]
    inner = next((one for one in held if inspect.isfunction(one)), None)
    if inner is not None:
        return fields_of(inner)
    made = next((one for one in held if isinstance(one, type)), None)
    given = made or (getattr(kind, "__defaults__", None) or [None])[0]
    if not isinstance(given, type) or not dataclasses.is_dataclass(given):
        return []
    return sorted(one.name for one in dataclasses.fields(given) if one.init)


def taken(kind: Any, text: str) -> bool:
    """Whether a type takes a text."""
    try:
        (kind or str)(text)
    except Exception:  # noqa: BLE001 - each type has its own
        return False
    return True


def interface_of(recorded: dict[str, Any], version: str) -> dict[str, Any]:
    """What is touched, as the installed engine has it."""
    names: dict[str, Any] = {}
    for full, touched in recorded["names"].items():
        module, _, name = full.rpartition(".")
        one = getattr(importlib.import_module(module), name)
        names[full] = dict(touched)
        if "fields" in touched:
            names[full]["fields"] = " ".join(sorted(touched["fields"].split()))
        if "parameters" in touched:
            names[full]["parameters"] = parameters_of(one)
        if "methods" in touched:
            names[full]["methods"] = {
                method: parameters_of(getattr(one, method)) for method in sorted(touched["methods"])
            }
        if "abstract" in touched:
            names[full]["abstract"] = " ".join(sorted(getattr(one, "__abstractmethods__", ())))
    return {"tested": [version], "names": names}


def main() -> int:
    """Writes the files, or compares them."""
    engine = next(name for name in ENGINES if importlib.util.find_spec(name) is not None)
    called, options = ENGINES[engine]
    version = importlib.import_module(engine).__version__
    if engine == "vllm":
        flags = flags_of(parser_of_vllm(), limits_of_vllm(), open_of_vllm())
        said = {"version": version, "options": options_of_vllm(), "wire": wire_of_vllm()}
    else:
        flags = flags_of(parser_of_sglang(), {}, {})
        said = {"version": version, "options": options_of_sglang()}
    flags = {"version": version} | flags
    touched = ROOT / "python/blockyard/connectors" / engine / "interface.json"
    files = {
        ROOT / "tests/python/connectors" / options: json.dumps(said, indent=1, sort_keys=True),
        touched: json.dumps(interface_of(json.loads(touched.read_text()), version), indent=1),
        touched.with_name("flags.json"): json.dumps(flags, indent=1),
    }
    if "--check" not in sys.argv:
        for path, text in files.items():
            path.write_text(text + "\n")
        return 0
    installed = Interface.beside(f"blockyard.connectors.{engine}", called, option="")
    broken = 0
    for path, text in files.items():
        same = path.exists() and path.read_text() == text + "\n"
        broken += not same
        differs = (
            "ok      {0} is what {1} {2} has" if same else "BROKEN  {0} is not that of {1} {2}"
        )
        print(differs.format(f"{engine}/{path.name}", called, version))
    for difference in installed.differences:
        broken += 1
        print(f"BROKEN  {called} {version}: {difference}")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
