"""vLLM's flags: every refusal of the connector, before vLLM starts and without the weights."""

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from blockyard._core import BlockyardError
from blockyard.connectors.vllm.compatibility import Facts, refusals
from blockyard.connectors.vllm.elsewhere import here
from blockyard.connectors.vllm.hybrid_manager import states_left_out, switched_off
from blockyard.connectors.vllm.stopping import LEAST
from blockyard.shared.validate import shown
from blockyard.tools.doctor import config as of_config
from blockyard.tools.doctor.engine import told
from blockyard.tools.doctor.finding import Check, Finding, Problem, Site, judged, unknown
from blockyard.tools.doctor.model import Model
from blockyard.tools.doctor.spread import wrong_replicas
from blockyard.tools.doctor.stand_ins import (
    BLOCK,
    CHUNKED,
)
from blockyard.tools.doctor.vllm_serve import (
    EXTRA,
    FLAG,
    MODULES,
    POLICIES,
    TRANSFER,
    Serve,
    flag_line,
    is_registered,
)
from blockyard.tools.units import size

__all__ = ["Serve", "checks"]

_FIELDS: Final[Mapping[str, type | tuple[type, ...]]] = {
    "kv_connector": (str, type(None)),
    "engine_id": (str, type(None)),
    "kv_buffer_device": str,
    "kv_role": (str, type(None)),
    "kv_port": int,
    "kv_connector_extra_config": Mapping,
    "kv_connector_module_path": (str, type(None)),
    "enable_permute_local_kv": bool,
    "kv_load_failure_policy": str,
}
"""Of vLLM's KVTransferConfig, which takes no others, and what they may be."""
_INTEGERS: Final = "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"
_NOT_STARTED: Final = "vLLM does not start"
_HYBRID: Final = "--disable-hybrid-kv-cache-manager"


def transfer(serve: Serve, _: Site) -> Finding:
    """The flag that starts the connector."""
    if TRANSFER in serve.flags.values:
        return Finding(FLAG, "ok", "it is there")
    if serve.is_refused(FLAG, "--config") or any(
        difflib.get_close_matches(flag, [FLAG]) for flag in serve.flags.unknown
    ):
        return unknown(FLAG, "it is not understood")
    return Finding(FLAG, "fail", "it is missing", "vLLM keeps no KV", flag_line())


def _wrong_fields(serve: Serve) -> Iterator[tuple[str, str]]:
    for name, value in serve.transfer.items():
        if name not in _FIELDS:
            near = difflib.get_close_matches(str(name), _FIELDS, n=1, cutoff=0.7)
            do = f'write "{near[0]}"' if near else f"leave it out, or put it into {EXTRA}"
            yield f"vLLM has no field {name!r} in it", do
        elif not isinstance(value, _FIELDS[name]) and not _as_pydantic(name, value):
            example = {EXTRA: '{"host": "64 GiB"}', "kv_connector": '"Blockyard"'}.get(name)
            what = "no mapping" if name == EXTRA else "of another type"
            do = f'write "{name}": {example}' if example else "leave it out"
            yield f"{name} = {shown(value)} is {what}", do
    policy = serve.transfer.get("kv_load_failure_policy", POLICIES[0])
    if policy not in POLICIES:
        do = f'write "kv_load_failure_policy": "{POLICIES[0]}"'
        yield f"kv_load_failure_policy = {shown(policy)}", do


def _as_pydantic(name: str, value: object) -> bool:
    """Whether vLLM takes text, or a number, in place of a value of another type."""
    if _FIELDS[name] is int:
        return (
            isinstance(value, str | float) and re.fullmatch(r"\d+(\.0+)?", str(value)) is not None
        )
    words = {"true", "false", "yes", "no", "on", "off", "t", "f", "y", "n", "0", "1", "1.0", "0.0"}
    return _FIELDS[name] is bool and str(value).casefold() in words


def fields(serve: Serve, _: Site) -> Finding:
    """The names in `--kv-transfer-config`, and the values that vLLM itself refuses."""
    return told("fields", _wrong_fields(serve), _NOT_STARTED, "they are vLLM's")


def connector(serve: Serve, _: Site) -> Finding:
    """Which connector it starts, and whether vLLM finds it."""
    name = serve.transfer.get("kv_connector")
    if "kv_offloading_size" in serve.flags.values:
        backend = serve.flags.text("kv_offloading_backend", "native")
        lost = "vLLM replaces this connector by its own, without a message"
        own = here("kv_offloading_size", serve.flags.values["kv_offloading_size"])
        do = f"leave --kv-offloading-size out; for the same {own}"
        return Finding("kv_connector", "fail", f"--kv-offloading-size ({backend})", lost, do)
    if name == "Blockyard":
        return _found(serve)
    if serve.is_inside:
        own, kv, around = serve.engine
        error = refusals(own, kv, around=around)["beside"]
        return _found(serve) if error is None else serve.refusal("kv_connector", error)
    fact = "it is missing" if name is None else f"{shown(name)}"
    near = "blockyard" in str(name).casefold()
    means = _NOT_STARTED if near or name is None else "another connector is started"
    return Finding("kv_connector", "fail", fact, means, 'write "kv_connector": "Blockyard"')


def _found(serve: Serve) -> Finding:
    path = serve.own.get("kv_connector_module_path")
    named = f'write "kv_connector_module_path": "{MODULES[0]}"'
    if path is None:
        plugins = serve.environ.get("VLLM_PLUGINS")
        if is_registered() and plugins is not None and "blockyard" not in plugins.split(","):
            left = f"VLLM_PLUGINS={plugins} leaves Blockyard's name out"
            ends = f"{_NOT_STARTED}: Unsupported connector type: Blockyard"
            names = dict.fromkeys([*map(str.strip, plugins.split(",")), "blockyard"])
            listed = ",".join(filter(None, names))
            do = f"write VLLM_PLUGINS={listed}, or {named.removeprefix('write ')}"
            return Finding("kv_connector", "fail", left, ends, do)
        if not is_registered():
            fact = "kv_connector_module_path is missing"
            return Finding("kv_connector", "fail", fact, _NOT_STARTED, named)
    elif path not in MODULES:
        fact = f"kv_connector_module_path = {shown(path)}"
        return Finding("kv_connector", "fail", fact, _NOT_STARTED, named)
    return Finding("kv_connector", "ok", "Blockyard")


def refusal(which: str, name: str, serve: Serve, _: Site) -> Finding:
    """What the connector refuses of the options."""
    own, kv, around = serve.engine
    error = refusals(own, kv, around=around)[which]
    return Finding(name, "ok", "as it must be") if error is None else serve.refusal(name, error)


def settings(serve: Serve, site: Site) -> Finding:
    """All keys together, with what the model is."""
    if not isinstance(serve.transfer.get(EXTRA, {}), Mapping):
        return unknown("settings", "they are not understood")
    found, known = serve.settings(site), serve.known
    if found.level == "ok" and serve.sized is None:
        return unknown("settings", found.fact)
    if isinstance(known, Facts) and known.unseen and "weights cannot be identified" in found.fact:
        # vLLM may download them, and their files identify them then.
        named = '"namespace": {"weights": "v1"}'
        late = "vLLM downloads them, and refuses the disk if their files cannot be read then"
        do = f"run it again then, or give {named}"
        return Finding("settings", "warn", known.unseen, late, do)
    return found


def record(serve: Serve, _: Site) -> Finding:
    """The file for what requests were."""
    path = Path(str(serve.told["record"]))
    where = path if path.exists() else path.parent
    is_none = path.is_dir() or not os.access(where, os.W_OK)
    fact = f"{path} cannot be written" if is_none else str(path)
    return judged("record", fact, (is_none, "fail", serve.means, "give another path"))


def model(serve: Serve, _: Site) -> Finding:
    """What KV the model has."""
    why = serve.model if isinstance(serve.model, str) else serve.untold
    if why is not None:
        return unknown("model", why)
    if isinstance(serve.known, BlockyardError):
        return serve.refusal("model", serve.known)
    if serve.known is None:
        return unknown("model", "an option is refused before it is looked at")
    layout, groups = serve.known.layout, serve.known.groups
    if serve.has_states:
        kinds = ", ".join(dict.fromkeys(one.kind.removesuffix("Spec") for one in serve.groups))
        fact = f"{kinds}: the bytes of its states are seen in memory alone"
        return Finding("model", "ok", fact)
    if groups is not None:
        by_number = sorted(range(len(groups)), key=groups.numbers.__getitem__)
        listed = "; ".join(map(groups.name, by_number))
        tokens = f"{size(layout.host_block_bytes)} for {layout.block_size} tokens in each group"
        return Finding("model", "ok", f"{listed}; {tokens}")
    tokens = f"{size(layout.host_block_bytes)} for {layout.block_size} tokens of all ranks"
    return Finding("model", "ok", f"{layout.planes[0].pieces} layers a rank, {tokens}")


def _of_states(serve: Serve, *, asked: bool) -> Finding | None:
    """What is wrong for a model with states."""
    if asked:
        fact, do = f"{_HYBRID} beside recurrent states", f"leave {_HYBRID} out"
        return Finding("hybrid manager", "fail", fact, _NOT_STARTED, do)
    if isinstance(serve.known, BlockyardError):
        return unknown("hybrid manager", "the model is refused")
    said = states_left_out(serve.engine[0])
    if said is None:
        return None
    fact, do = said.split("; ", 1)
    return Finding("hybrid manager", "warn", fact, "that costs time at a preemption", do)


def hybrid(serve: Serve, _: Site) -> Finding:
    """The manager of several KV cache groups, and what it costs where vLLM has it off."""
    asked = serve.flags.values.get("disable_hybrid_kv_cache_manager")
    if serve.has_states and (found := _of_states(serve, asked=bool(asked))):
        return found
    own = serve.engine[0]
    if not isinstance(serve.model, Model):
        return Finding("hybrid manager", "ok", "as it is by default" if not asked else _HYBRID)
    known = serve.known if isinstance(serve.known, Facts) else None
    said = switched_off(own, None if known is None else known.beside)
    if said is None:
        count = len(serve.groups)
        fact = f"{count} groups of layers" if count > 1 else "one group of layers"
        return Finding("hybrid manager", "ok", fact)
    fact, do = said.split("; ", 1)
    if CHUNKED in do and not asked:
        do = f"set {CHUNKED}=1"
    if asked is False:
        # Asked for by name, and vLLM does not keep chunks so by default.
        return Finding("hybrid manager", "fail", fact, _NOT_STARTED, do)
    lost = "requests take more memory than they need"
    return Finding("hybrid manager", "warn", fact, lost, do)


def allocator(serve: Serve, _: Site) -> Finding:
    """PyTorch's allocator: vLLM refuses one of its modes beside any connector."""
    name = "PYTORCH_CUDA_ALLOC_CONF"
    given = serve.environ.get(name, "")
    # vLLM takes one of its own then.
    own = any(serve.flags.values.get(f"enable_{one}") for one in ("sleep_mode", "cumem_allocator"))
    wrong = "expandable_segments:True" in given and not own
    fact = f"{name}={given}" if wrong else "as it must be"
    return judged("allocator", fact, (wrong, "fail", _NOT_STARTED, f"unset {name}"))


def variables(serve: Serve, _: Site) -> Finding:
    """Environment variables of other connectors, or that change hits and events."""
    others = sorted(name for name in serve.environ if name.startswith("LMCACHE_"))
    events = serve.flags.mapping("kv_events_config").get("enable_kv_cache_events")
    by_bytes = events and serve.environ.get(_INTEGERS) == "0"
    outlives = serve.told.get("disk_path") or serve.told.get("remote")
    seed = serve.environ.get("PYTHONHASHSEED") if outlives else None
    facts = [*others, *([f"{_INTEGERS}=0"] if by_bytes else [])]
    if seed is not None:
        where = "on the disk" if serve.told.get("disk_path") else "in a store"
        facts.append(f"PYTHONHASHSEED={seed}: with another value no block {where} is found")
    told_by = "host and disk events need integer block hashes, so they are not published"
    sizes = f'unset {" ".join(others)}; set sizes in {EXTRA}, as "host": "64 GiB"'
    return judged(
        "variables",
        "; ".join(facts) or "none of another connector",
        (others, "warn", "Blockyard does not read them", sizes),
        (by_bytes, "warn", told_by, f"unset {_INTEGERS}"),
    )


def end(serve: Serve, _: Site) -> Finding:
    """Whether vLLM's shutdown leaves time to write blocks to the disk."""
    if not serve.told.get("disk_path"):
        return Finding("end", "ok", "there is no disk to write to")
    given = serve.flags.number("shutdown_timeout", 0)
    lost = "vLLM ends its engine at once: blocks that are not on the disk yet are lost"
    short: Problem = (given <= LEAST, "warn", lost, "add --shutdown-timeout 60")
    return judged("end", f"--shutdown-timeout {given}", short)


def replicas(serve: Serve, _: Site) -> Finding:
    """What data parallel engines take on one machine."""
    many, host = serve.replicas, serve.asked().host
    each = f"{many} engines" if many > 1 else "one engine"
    each += f", {size(host)} of host for all of them" if many > 1 and host else ""
    return told("replicas", wrong_replicas(serve.flags, serve.model), _NOT_STARTED, each)


def _wrong_sizes(serve: Serve) -> Iterator[tuple[str, str]]:
    """What vLLM refuses of how a model is cut into ranks and blocks."""
    if isinstance(serve.model, Model):
        yield from serve.wanted.wrong(serve.model, "--max-model-len")
    block = serve.flags.number("block_size", 16)
    if block % BLOCK:
        yield f"--block-size {block}: no attention backend takes it", f"write --block-size {BLOCK}"


def sizes(serve: Serve, _: Site) -> Finding:
    """Heads, layers, tokens and blocks, by what the model has and attention takes."""
    return told("sizes", _wrong_sizes(serve), _NOT_STARTED, "they go together")


def checks(serve: Serve) -> tuple[Check, ...]:
    """Returns the checks of a command line."""
    every: list[Check] = [*serve.checks(stops=_NOT_STARTED), partial(transfer, serve)]
    if TRANSFER in serve.flags.values:
        every += [
            partial(fields, serve),
            partial(connector, serve),
            partial(refusal, "transfer", "transfer", serve),
            *serve.keys(),
            partial(settings, serve),
            *([partial(record, serve)] if "record" in serve.told else []),
        ]
        if serve.sized is not None and isinstance(serve.read, tuple):
            every.append(partial(of_config.bookkeeping, serve.read[1][0]))
    every += [
        partial(refusal, "attention", "attention", serve),
        partial(refusal, "hashes", "hashes", serve),
        partial(refusal, "ranks", "parallel", serve),
    ]
    others = (sizes, model, hybrid, allocator, variables, end, replicas)
    return tuple(every + [partial(check, serve) for check in others])
