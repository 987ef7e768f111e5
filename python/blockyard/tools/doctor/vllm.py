"""vLLM's flags: every refusal of the connector, before vLLM starts and without the weights."""

import difflib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields as fields_of
from dataclasses import replace
from functools import cached_property, partial
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Final

from blockyard._core import BlockyardError, Misuse
from blockyard._typing import override
from blockyard.connectors.vllm.compatibility import Facts, facts, refusals
from blockyard.connectors.vllm.elsewhere import here
from blockyard.connectors.vllm.hybrid_manager import states_left_out, switched_off
from blockyard.connectors.vllm.replicas import ALONE, here_of
from blockyard.connectors.vllm.settings import Settings, with_file
from blockyard.connectors.vllm.stopping import LEAST
from blockyard.connectors.vllm.vllm_api import INTERFACE
from blockyard.shared.layout import BELOW, KVLayout, Plane
from blockyard.shared.sizes import counted, parse_size
from blockyard.shared.validate import shown
from blockyard.tools.doctor import config as of_config
from blockyard.tools.doctor.engine import Engine, told
from blockyard.tools.doctor.finding import Check, Demand, Finding, Problem, Site, judged, unknown
from blockyard.tools.doctor.model import Layers, Model, Wanted
from blockyard.tools.doctor.spread import wrong_replicas
from blockyard.tools.doctor.stand_ins import (
    BLOCK,
    CHUNKED,
    configuration,
    groups_of,
    kv_cache,
)
from blockyard.tools.units import size
from blockyard.yard.config import Config
from blockyard.yard.tier_sizes import in_blocks

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
_MODULES: Final = ("blockyard.connectors.vllm", "blockyard.engines.vllm")
_POLICIES: Final = ("recompute", "fail")
_FLAG: Final = "--kv-transfer-config"
_TRANSFER: Final = "kv_transfer_config"
_EXTRA: Final = "kv_connector_extra_config"
_SOME: Final = 4096
"""Bytes of a block, where the model is not known."""
_INTEGERS: Final = "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"
_MANY: Final = 1 << 31
_IN_BYTES: Final = {"host": "cpu_bytes_to_use", "disk": "disk_capacity_bytes"}
_NOT_STARTED: Final = "vLLM does not start"
_HYBRID: Final = "--disable-hybrid-kv-cache-manager"


def _registered() -> bool:
    """Whether vLLM finds the connector by its name alone."""
    return any(
        point.value.startswith("blockyard.")
        for point in metadata.entry_points(group="vllm.general_plugins")
    )


def _line(**changes: object) -> str:
    """The flag to write."""
    said: dict[str, object] = {"kv_connector": "Blockyard"}
    if not _registered():
        said["kv_connector_module_path"] = _MODULES[0]
    said |= {"kv_role": "kv_both"}
    if not _registered():
        said["kv_load_failure_policy"] = _POLICIES[0]
    return f"{_FLAG} '{json.dumps(said | {_EXTRA: {'host': '64 GiB'}} | changes)}'"


def _is_set(environ: Mapping[str, str], name: str) -> bool:
    """Whether a variable is on, as vLLM reads it."""
    return environ.get(name, "").strip().lower() in {"1", "true"}


class Serve(Engine):
    """What `vllm serve` is to do, and what follows from it."""

    package: ClassVar = "vllm"
    interface: ClassVar = INTERFACE
    means: ClassVar = "the connector refuses it when it is made, after the weights"

    @property
    @override
    def line(self) -> str:
        """The remedy for a refusal without one."""
        return _line()

    @property
    @override
    def sound(self) -> str:
        """The fact for accepted settings."""
        if self.sized is not None and isinstance(self.read, tuple):
            own, configs = self.read
            return own.said(configs, self.sized.groups).partition(", below")[0]
        return "they go together; the model's sizes are not known here"

    @property
    @override
    def wanted(self) -> Wanted:
        """The model's options from its flags."""
        flags = self.flags
        name = flags.text("model")
        return Wanted(
            name=flags.text("hf_config_path", name) if name else "",
            revision=flags.values.get("revision"),
            folder=flags.values.get("download_dir"),
            overrides=flags.values.get("hf_overrides"),
            dtype=flags.text("dtype", "auto"),
            kv_dtype=flags.text("kv_cache_dtype", "auto"),
            tensor=flags.number("tensor_parallel_size"),
            stages=flags.number("pipeline_parallel_size"),
            longest=flags.values.get("max_model_len"),
            stretched=_is_set(self.environ, "VLLM_ALLOW_LONG_MAX_MODEL_LEN"),
        )

    @cached_property
    def transfer(self) -> dict[str, Any]:
        """The parsed `--kv-transfer-config`."""
        return self.flags.mapping(_TRANSFER)

    @cached_property
    @override
    def extra(self) -> dict[str, Any]:
        """The connector's keys."""
        given = self.own.get(_EXTRA)
        return dict(given) if isinstance(given, Mapping) else {}

    @cached_property
    def told(self) -> dict[str, Any]:
        """The connector's keys, with those of the file `config`."""
        try:
            return with_file(self.extra)
        except BlockyardError:
            # It is found where the keys are looked at.
            return self.extra

    @cached_property
    def own(self) -> Mapping[str, Any]:
        """The part of Blockyard, where another connector has it in it."""
        extra = self.transfer.get(_EXTRA)
        inside = extra.get("connectors") if isinstance(extra, Mapping) else None
        for one in inside if isinstance(inside, list) else ():
            if isinstance(one, Mapping) and one.get("kv_connector") == "Blockyard":
                return one
        return self.transfer

    @property
    def is_inside(self) -> bool:
        """Whether another connector has Blockyard in it."""
        return self.own is not self.transfer

    @cached_property
    def engine(self) -> tuple[Any, Any, Any]:
        """Substitutes for vLLM's configurations of the connector, the KV and the process."""
        model = self.model if isinstance(self.model, Model) else None
        named = dict(self.own) or {"kv_connector": "Blockyard", "kv_role": "kv_both"}
        if named.get("kv_load_failure_policy") not in _POLICIES:
            # vLLM's default; what is no word of it is named elsewhere.
            named["kv_load_failure_policy"] = _POLICIES["kv_load_failure_policy" not in named]
        said = replace(self.flags, values={**self.flags.values, _TRANSFER: named})
        groups = self.groups
        has_groups = len(groups) > 1
        own, around = (
            configuration(one, model, has_groups=has_groups) for one in (said, self.flags)
        )
        return own, kv_cache(self.flags, model, groups), around if self.transfer else own

    @cached_property
    def groups(self) -> tuple[Layers, ...]:
        """The groups that vLLM makes of the model's layers; none where it is not known."""
        model = self.model if isinstance(self.model, Model) else None
        return () if model is None else groups_of(self.flags, model, self.environ)

    @property
    def has_states(self) -> bool:
        """Whether layers have recurrent states, whose bytes are seen in memory alone."""
        return any(one.kind == "MambaSpec" for one in self.groups)

    @property
    def sized(self) -> Facts | None:
        """What the connector will read, where all sizes are known."""
        return self.known if isinstance(self.known, Facts) and not self.has_states else None

    @property
    def untold(self) -> str | None:
        """Why the groups are not known: a window or chunk has no length; None if they are."""
        words = {
            "SlidingWindowSpec": "sliding_window",
            "ChunkedLocalAttentionSpec": "attention_chunk_size",
        }
        fields = [words[one.kind] for one in self.groups if one.kind in words and not one.tokens]
        return f"there is no {fields[0]} in its configuration" if fields else None

    @cached_property
    def known(self) -> Facts | BlockyardError | None:
        """What the connector will read; None where the model is not known, or an option refused."""
        own, kv, around = self.engine
        is_told = isinstance(self.model, Model) and self.untold is None
        if not is_told or any(refusals(own, kv, around=around).values()):
            return None
        try:
            return facts(own, kv, version=self.version or INTERFACE.tested[-1], around=around)
        except BlockyardError as error:
            return error

    @cached_property
    @override
    def read(self) -> tuple[Settings, tuple[Config, ...]] | BlockyardError:
        """The connector's resulting settings."""
        known = self.sized or _some(self.workers)
        extra = self.extra
        if self.sized is None:
            # Of several groups of layers, which are not known here.
            extra = {name: value for name, value in extra.items() if name != "split"}
            for tier in BELOW:
                if isinstance(extra.get(tier), list):
                    extra[tier] = _one_of(tier, extra[tier])
        try:
            read = Settings.read(extra, known._replace(blocks=2))
            of_config.tried(read[1][0])
        except BlockyardError as error:
            return error
        return read

    @override
    def alone(self, name: str) -> BlockyardError | None:
        """Returns why one key is refused, where the others are sound."""
        beside: dict[str, Any] = {"host": 1, "preempt": "recompute"}
        if name in {"disk", "disk_path", "disk_reclaim"}:
            beside |= {"disk": 1, "disk_path": "/"}
        said = {_EXTRA: beside | {name: self.extra[name]}}
        read = replace(self, flags=replace(self.flags, values={_TRANSFER: said})).read
        value = self.extra[name]
        if not isinstance(read, BlockyardError):
            return None
        if name in _IN_BYTES and isinstance(value, int) and value > _MANY:
            # Such as 64G, which vLLM reads as a number.
            return Misuse(f"{value:,} blocks; {here(_IN_BYTES[name], value)}")
        return read

    @property
    @override
    def workers(self) -> int:
        """Processes of one replica that compute."""
        sizes = (self.flags.number(f"{one}_parallel_size") for one in ("tensor", "pipeline"))
        first, second = (max(one, 1) for one in sizes)
        return first * second

    @property
    @override
    def replicas(self) -> int:
        """Replicas on this machine."""
        return max(here_of(self.flags, self.flags.number("data_parallel_size")), 1)

    @override
    def instead(self, flag: str, value: str | None) -> str | None:
        """Returns what to write in place of a flag that is none."""
        name = flag.lstrip("-").replace("-", "_")
        if name in {field.name for kind in (Settings, Config) for field in fields_of(kind)}:
            return f'put it into {_EXTRA}, as "{name}": {json.dumps(value)}'
        meant = here(name, value)
        said = meant is None or meant.startswith("leave")
        return meant if said else f"leave it out, and {meant} in {_EXTRA}"

    @override
    def asked(self) -> Demand:
        """Returns what the machine is to have."""
        paths = self.told.get("disk_path")
        named = paths if isinstance(paths, list) else [paths]
        folders = tuple(_expanded(one) for one in named if isinstance(one, str))
        # Ray's may be anywhere.
        far = self.flags.values.get("distributed_executor_backend") == "ray"
        whole = Demand(paths=folders, ranks=0 if far else self.workers * self.replicas)
        if isinstance(self.read, BlockyardError):
            return whole
        if self.sized is not None:
            every = [of_config.asked_of(config) for config in self.read[1]]
            sums = {
                name: sum(getattr(one, name) for one in every)
                for name in ("host", "pinned", "shared", "disk")
            }
            asked = replace(every[0], **sums)
        else:
            # Without the model a number of blocks is no number of bytes.
            host, disk = (
                sum(_nbytes(one, self.workers, self.replicas) for one in _listed(self.told, tier))
                for tier in BELOW
            )
            asked = Demand(host=host, pinned=host // self.workers, disk=disk)
        many = self.replicas
        asked = replace(
            asked,
            host=asked.host * many,
            shared=asked.shared * many,
            disk=asked.disk * many,
            device=0,
            ranks=0,
        )
        return asked.joined(whole)


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _some(ranks: int) -> Facts:
    """What a vLLM may have, where nothing is known of the one that is asked about."""
    return Facts(
        layout=KVLayout((Plane("kv", 1, _SOME),), dtype="uint8", ranks=ranks),
        blocks=2,
        rank=0,
        longest=1,
        namespace={"weights": {"content": "unknown"}},
        groups=None,
        layers=(("",),),
        weights_change=False,
        engine="",
        unseen=None,
        replica=ALONE,
        beside=None,
        again=0,
    )


def _listed(given: Mapping[str, Any], tier: str) -> list[object]:
    """The sizes of a tier: of each group of layers, or the one of all."""
    size = given.get(tier)
    return size if isinstance(size, list) else [size]


def _one_of(tier: str, sizes: list[Any]) -> object:
    """Returns one of the sizes of some groups: one that is none, where there is such."""
    for one in sizes:
        try:
            in_blocks(tier, one, _some(1).layout)
        except BlockyardError:
            return one
    return sizes[0] if sizes else 0


def _nbytes(given: object, ranks: int, replicas: int) -> int:
    """What one replica has of it."""
    if not isinstance(given, str) or isinstance(counted(given), int):
        return 0
    amount = parse_size("host", given)
    return amount.nbytes * ranks if amount.per == "rank" else amount.nbytes // replicas


def transfer(serve: Serve, _: Site) -> Finding:
    """The flag that starts the connector."""
    if _TRANSFER in serve.flags.values:
        return Finding(_FLAG, "ok", "it is there")
    if serve.is_refused(_FLAG, "--config") or any(
        difflib.get_close_matches(flag, [_FLAG]) for flag in serve.flags.unknown
    ):
        return unknown(_FLAG, "it is not understood")
    return Finding(_FLAG, "fail", "it is missing", "vLLM keeps no KV", _line())


def _wrong_fields(serve: Serve) -> Iterator[tuple[str, str]]:
    for name, value in serve.transfer.items():
        if name not in _FIELDS:
            near = difflib.get_close_matches(str(name), _FIELDS, n=1, cutoff=0.7)
            do = f'write "{near[0]}"' if near else f"leave it out, or put it into {_EXTRA}"
            yield f"vLLM has no field {name!r} in it", do
        elif not isinstance(value, _FIELDS[name]) and not _as_pydantic(name, value):
            example = {_EXTRA: '{"host": "64 GiB"}', "kv_connector": '"Blockyard"'}.get(name)
            what = "no mapping" if name == _EXTRA else "of another type"
            do = f'write "{name}": {example}' if example else "leave it out"
            yield f"{name} = {shown(value)} is {what}", do
    policy = serve.transfer.get("kv_load_failure_policy", _POLICIES[0])
    if policy not in _POLICIES:
        do = f'write "kv_load_failure_policy": "{_POLICIES[0]}"'
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
    named = f'write "kv_connector_module_path": "{_MODULES[0]}"'
    if path is None:
        plugins = serve.environ.get("VLLM_PLUGINS")
        if _registered() and plugins is not None and "blockyard" not in plugins.split(","):
            left = f"VLLM_PLUGINS={plugins} leaves Blockyard's name out"
            ends = f"{_NOT_STARTED}: Unsupported connector type: Blockyard"
            names = dict.fromkeys([*map(str.strip, plugins.split(",")), "blockyard"])
            listed = ",".join(filter(None, names))
            do = f"write VLLM_PLUGINS={listed}, or {named.removeprefix('write ')}"
            return Finding("kv_connector", "fail", left, ends, do)
        if not _registered():
            fact = "kv_connector_module_path is missing"
            return Finding("kv_connector", "fail", fact, _NOT_STARTED, named)
    elif path not in _MODULES:
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
    if not isinstance(serve.transfer.get(_EXTRA, {}), Mapping):
        return unknown("settings", "they are not understood")
    found, known = serve.settings(site), serve.known
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
        listed = "; ".join(groups.name(at) for at in range(len(groups)))
        tokens = f"{size(layout.host_block_bytes)} for {layout.block_size} tokens in each group"
        return Finding("model", "ok", f"{listed}; {tokens}")
    tokens = f"{size(layout.host_block_bytes)} for {layout.block_size} tokens of all ranks"
    return Finding("model", "ok", f"{layout.planes[0].pieces} layers a rank, {tokens}")


def hybrid(serve: Serve, _: Site) -> Finding:
    """The manager of several KV cache groups, and what it costs where vLLM has it off."""
    asked = serve.flags.values.get("disable_hybrid_kv_cache_manager")
    if serve.has_states and asked:
        fact, do = f"{_HYBRID} beside recurrent states", f"leave {_HYBRID} out"
        return Finding("hybrid manager", "fail", fact, _NOT_STARTED, do)
    own = serve.engine[0]
    if serve.has_states and (said := states_left_out(own)):
        fact, do = said.split("; ", 1)
        return Finding("hybrid manager", "warn", fact, "that costs time at a preemption", do)
    if not isinstance(serve.model, Model):
        return Finding("hybrid manager", "ok", "as it is by default" if not asked else _HYBRID)
    known = serve.known if isinstance(serve.known, Facts) else None
    said = switched_off(own, None if known is None else known.beside)
    if said is None:
        count = len(serve.groups)
        fact = f"{count} groups of layers" if count > 1 else "one group of layers"
        return Finding("hybrid manager", "ok", fact)
    fact, do = said.split("; ", 1)
    if asked is False:
        # Asked for by name, and vLLM does not keep chunks so by default.
        return Finding("hybrid manager", "fail", fact, _NOT_STARTED, f"set {CHUNKED}=1")
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
    seed = serve.environ.get("PYTHONHASHSEED") if serve.told.get("disk_path") else None
    facts = [*others, *([f"{_INTEGERS}=0"] if by_bytes else [])]
    if seed is not None:
        facts.append(f"PYTHONHASHSEED={seed}: with another value no block on the disk is found")
    told_by = "host and disk events need integer block hashes, so they are not published"
    sizes = f'unset {" ".join(others)}; set sizes in {_EXTRA}, as "host": "64 GiB"'
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
    if _TRANSFER in serve.flags.values:
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
