"""vLLM's flags: every refusal of the connector, before vLLM starts and without the weights."""

import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from blockyard._core import BlockyardError
from blockyard.connectors.vllm.elsewhere import here
from blockyard.connectors.vllm.engine import INTERFACE
from blockyard.connectors.vllm.engine_facts import Facts, facts, refusals
from blockyard.connectors.vllm.settings import Settings, with_file
from blockyard.connectors.vllm.stopping import LEAST
from blockyard.shared.extras import install
from blockyard.shared.layout import KVLayout, Plane
from blockyard.shared.sizes import parse_size
from blockyard.shared.validate import shown
from blockyard.tools.doctor import config as of_config
from blockyard.tools.doctor.finding import Asked, Check, Finding, Site, unknown
from blockyard.tools.doctor.flags import Fault, Flags
from blockyard.tools.doctor.model import Model, engine, look
from blockyard.tools.units import size
from blockyard.yard.config import Config

__all__ = ["Serve", "checks"]

_FIELDS: Final = (
    *(
        "kv_connector",
        "engine_id",
        "kv_buffer_device",
        "kv_role",
        "kv_port",
        "kv_connector_extra_config",
    ),
    *("kv_connector_module_path", "enable_permute_local_kv", "kv_load_failure_policy"),
)
"""Of vLLM's KVTransferConfig, which takes no others."""
_MODULES: Final = ("blockyard.connectors.vllm", "blockyard.engines.vllm")
_POLICIES: Final = ("recompute", "fail")
_FLAG: Final = "--kv-transfer-config"
_EXTRA: Final = "kv_connector_extra_config"
_DO: Final = re.compile(
    r"(.*?)[;:,] ((?:write|give|leave|start|did you mean|use|change|must|remove|make|set)\b.*)"
)
"""A refusal: what is wrong, and what to do."""
_NOT_STARTED: Final = "vLLM does not start"
_REFUSED: Final = "the connector refuses it when it is made, after the weights"


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


@dataclass(frozen=True)
class Serve:
    """What `vllm serve` is to do, and what follows from it."""

    flags: Flags
    environ: Mapping[str, str]

    @cached_property
    def version(self) -> str | None:
        """vLLM's, where it is installed."""
        try:
            return metadata.version("vllm")
        except metadata.PackageNotFoundError:
            return None

    @cached_property
    def model(self) -> Model | str:
        """What the model's configuration says, or why it says nothing."""
        return look(self.flags)

    @cached_property
    def transfer(self) -> dict[str, Any]:
        """What `--kv-transfer-config` says."""
        given = self.flags.values.get("kv_transfer_config")
        return dict(given) if isinstance(given, Mapping) else {}

    @cached_property
    def extra(self) -> dict[str, Any]:
        """What is said to the connector."""
        given = self.own.get(_EXTRA)
        return dict(given) if isinstance(given, Mapping) else {}

    @cached_property
    def told(self) -> dict[str, Any]:
        """What is said to the connector, with what stands in the file that `config` names."""
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
        """What stands for vLLM's configurations: the connector's, the KV's, and the process's."""
        model = self.model if isinstance(self.model, Model) else None
        named = dict(self.own)
        if named.get("kv_load_failure_policy") not in _POLICIES:
            # vLLM's default; what is no word of it is named elsewhere.
            named["kv_load_failure_policy"] = _POLICIES["kv_load_failure_policy" not in named]
        values = {**self.flags.values, "kv_transfer_config": named}
        own, kv = engine(replace(self.flags, values=values), model)
        return own, kv, engine(self.flags, model)[0]

    @cached_property
    def known(self) -> Facts | BlockyardError | None:
        """What the connector will read; None where the model is not known."""
        own, kv, around = self.engine
        if not isinstance(self.model, Model):
            return None
        try:
            return facts(own, kv, version=self.version or INTERFACE.tested[-1], around=around)
        except BlockyardError as error:
            return error

    @cached_property
    def read(self) -> tuple[Settings, Config] | BlockyardError:
        """What the connector will make of all that is said to it."""
        layout = KVLayout((Plane("kv", 1, 1),), dtype="uint8", ranks=self.workers)
        known = self.known if isinstance(self.known, Facts) else None
        more: dict[str, Any] = {"namespace": {"weights": {"content": "unknown"}}, "longest": 1}
        if known is not None:
            more = {
                "namespace": known.namespace,
                "longest": known.longest,
                "unseen": known.unseen,
                "replica": known.replica,
            }
        try:
            read = Settings.read(
                self.extra, layout=layout if known is None else known.layout, blocks=2, **more
            )
            of_config.tried(read[1])
        except BlockyardError as error:
            return error
        return read

    def alone(self, name: str) -> tuple[Settings, Config] | BlockyardError:
        """Returns what the connector would make of one key, where the others are sound."""
        beside: dict[str, Any] = {"host": 1, "preempt": "recompute"}
        if name in {"disk", "disk_path"}:
            beside |= {"disk": 1, "disk_path": "/"}
        said = {_EXTRA: beside | {name: self.extra[name]}}
        return replace(self, flags=Flags({"kv_transfer_config": said})).read

    @property
    def workers(self) -> int:
        """Workers of one engine."""
        sizes = (self.flags.number(f"{one}_parallel_size") for one in ("tensor", "pipeline"))
        first, second = (max(one, 1) for one in sizes)
        return first * second

    @property
    def replicas(self) -> int:
        """Engines on this machine."""
        every = self.flags.number("data_parallel_size")
        return max(self.flags.number("data_parallel_size_local", every), 1)

    def asked(self) -> Asked:
        """What the machine is to have."""
        paths = self.told.get("disk_path")
        named = [paths] if isinstance(paths, str) else paths
        folders = (
            tuple(_expanded(one) for one in named if isinstance(one, str))
            if isinstance(named, list)
            else ()
        )
        whole = Asked(paths=folders, ranks=self.workers * self.replicas)
        if isinstance(self.read, BlockyardError):
            return whole
        if isinstance(self.known, Facts):
            asked = of_config.asked_of(self.read[1])
        else:
            # Without the model a number of blocks is no number of bytes.
            given = (self.told.get(tier) for tier in ("host", "disk"))
            host, disk = (_nbytes(one, self.workers, self.replicas) for one in given)
            asked = Asked(host=host, pinned=host // self.workers, disk=disk)
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


def _nbytes(given: object, ranks: int, replicas: int) -> int:
    """What one replica has of it."""
    if not isinstance(given, str):
        return 0
    amount = parse_size("host", given)
    return amount.nbytes * ranks if amount.per == "rank" else amount.nbytes // replicas


def _of(name: str, error: BlockyardError, means: str = _REFUSED) -> Finding:
    """Returns a refusal as a finding: what to do comes last in its message."""
    text = " ".join(str(error).split())
    parts = _DO.fullmatch(text)
    if parts is None:
        return Finding(name, "fail", text, means, _line())
    return Finding(name, "fail", parts[1], means, parts[2])


def installed(serve: Serve, _: Site) -> Finding:
    """vLLM, and whether the connector was tested with it."""
    tested = ", ".join(INTERFACE.tested)
    if serve.version is None:
        return unknown("vllm", f"vLLM is not installed here: it is taken for {tested}")
    if serve.version in INTERFACE.tested:
        return Finding("vllm", "ok", serve.version)
    # To compare what it has would take its imports: the connector does it at the start.
    fact = f"{serve.version}, and tested was {tested}"
    late = "it starts if what the connector touches is the same, and names what differs"
    return Finding("vllm", "warn", fact, late, install("vllm"))


def flag(fault: Fault, _: Site) -> Finding:
    """A flag that vLLM does not understand."""
    return Finding("flags", "fail", str(fault), _NOT_STARTED, fault.do)


def transfer(serve: Serve, _: Site) -> Finding:
    """The flag that starts the connector."""
    given = serve.flags.values.get("kv_transfer_config")
    if isinstance(given, Mapping):
        return Finding(_FLAG, "ok", "it is there")
    if given is not None:
        return Finding(_FLAG, "fail", f"{shown(given)} is no mapping", _NOT_STARTED, _line())
    if any(_FLAG in f"{fault.flag} {fault.do}" for fault in serve.flags.faults):
        return unknown(_FLAG, "it is not understood")
    return Finding(_FLAG, "fail", "it is missing", "vLLM keeps no KV", _line())


def fields(serve: Serve, _: Site) -> Finding:
    """The names in `--kv-transfer-config`, and the values that vLLM itself refuses."""
    fact = do = ""
    strange = [name for name in serve.transfer if name not in _FIELDS]
    policy = serve.transfer.get("kv_load_failure_policy", _POLICIES[0])
    extra = serve.transfer.get(_EXTRA, {})
    if strange:
        near = difflib.get_close_matches(str(strange[0]), _FIELDS, n=1, cutoff=0.7)
        fact = f"vLLM has no field {strange[0]!r} in it"
        do = f'write "{near[0]}"' if near else f"leave it out, or put it into {_EXTRA}"
    elif policy not in _POLICIES:
        fact = f"kv_load_failure_policy = {shown(policy)}"
        do = f'write "kv_load_failure_policy": "{_POLICIES[0]}"'
    elif not isinstance(extra, Mapping):
        fact = f"{_EXTRA} = {shown(extra)} is no mapping"
        do = f'write "{_EXTRA}": {{"host": "64 GiB"}}'
    if not fact:
        return Finding("fields", "ok", "they are vLLM's")
    return Finding("fields", "fail", fact, _NOT_STARTED, do)


def connector(serve: Serve, _: Site) -> Finding:
    """Which connector it starts, and whether vLLM finds it."""
    name = serve.transfer.get("kv_connector")
    if "kv_offloading_size" in serve.flags.values:
        backend = serve.flags.text("kv_offloading_backend", "native")
        lost = "vLLM puts its own connector in the place of this one, and says nothing"
        own = here("kv_offloading_size", serve.flags.values["kv_offloading_size"])
        do = f"leave --kv-offloading-size out; for the same {own}"
        return Finding("kv_connector", "fail", f"--kv-offloading-size ({backend})", lost, do)
    if name == "Blockyard":
        return _found(serve)
    if serve.is_inside:
        own, kv, around = serve.engine
        error = refusals(own, kv, around=around)["beside"]
        return _found(serve) if error is None else _of("kv_connector", error)
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
            return Finding("kv_connector", "fail", left, _NOT_STARTED, f"add blockyard, or {named}")
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
    return Finding(name, "ok", "as it must be") if error is None else _of(name, error)


def setting(name: str, serve: Serve, _: Site) -> Finding:
    """One key of what is said to the connector, by itself."""
    read = serve.alone(name)
    if not isinstance(read, BlockyardError):
        return Finding(f'"{name}"', "ok", shown(serve.extra[name]))
    return _of(f'"{name}"', read)


def settings(serve: Serve, _: Site) -> Finding:
    """All keys together, with what the model is."""
    read = serve.read
    if not isinstance(read, BlockyardError):
        if isinstance(serve.known, Facts):
            return Finding("settings", "ok", read[0].said(read[1]).partition(", below")[0])
        return Finding("settings", "ok", "they go together; the model's sizes are not known here")
    known = serve.known
    if not isinstance(serve.transfer.get(_EXTRA, {}), Mapping):
        return unknown("settings", "they are not understood")
    if any(isinstance(serve.alone(name), BlockyardError) for name in serve.extra):
        return unknown("settings", "one of the keys above is wrong")
    if isinstance(known, Facts) and known.unseen and "which weights the model has" in str(read):
        # vLLM may bring them: their files tell it then.
        named = '"namespace": {"weights": "v1"}'
        late = "vLLM downloads them, and the disk is refused if they are not to be seen then"
        return Finding(
            "settings", "warn", known.unseen, late, f"run it again then, or give {named}"
        )
    return _of("settings", read)


def record(serve: Serve, _: Site) -> Finding:
    """The file for what requests were."""
    path = Path(str(serve.told["record"]))
    where = path if path.exists() else path.parent
    if path.is_dir() or not os.access(where, os.W_OK):
        return Finding("record", "fail", f"{path} cannot be written", _REFUSED, "give another path")
    return Finding("record", "ok", str(path))


def model(serve: Serve, _: Site) -> Finding:
    """What KV the model has."""
    if isinstance(serve.model, str):
        return unknown("model", serve.model)
    if isinstance(serve.known, BlockyardError):
        return _of("model", serve.known)
    assert serve.known is not None  # noqa: S101 - the model is known
    layout = serve.known.layout
    tokens = f"{size(layout.host_block_bytes)} for {layout.block_size} tokens of all ranks"
    return Finding("model", "ok", f"{layout.planes[0].pieces} layers a rank, {tokens}")


def hybrid(serve: Serve, _: Site) -> Finding:
    """The manager of several KV cache groups, which vLLM switches off beside the connector."""
    if serve.flags.values.get("disable_hybrid_kv_cache_manager") is not False:
        return Finding("hybrid manager", "ok", "off, as it must be")
    do = "leave --no-disable-hybrid-kv-cache-manager out"
    return Finding("hybrid manager", "fail", "it was asked for", _NOT_STARTED, do)


def allocator(serve: Serve, _: Site) -> Finding:
    """PyTorch's allocator: vLLM refuses one of its modes beside any connector."""
    name = "PYTORCH_CUDA_ALLOC_CONF"
    if "expandable_segments:True" not in serve.environ.get(name, ""):
        return Finding("allocator", "ok", "as it must be")
    if any(serve.flags.values.get(f"enable_{one}") for one in ("sleep_mode", "cumem_allocator")):
        return Finding("allocator", "ok", "vLLM takes one of its own")
    fact = f"{name}={serve.environ[name]}"
    return Finding("allocator", "fail", fact, _NOT_STARTED, f"unset {name}")


def variables(serve: Serve, _: Site) -> Finding:
    """Variables that are for another connector."""
    names = sorted(name for name in serve.environ if name.startswith("LMCACHE_"))
    if not names:
        return Finding("variables", "ok", "none of another connector")
    do = f'unset {" ".join(names)}; sizes stand in {_EXTRA}, as "host": "64 GiB"'
    return Finding("variables", "warn", ", ".join(names), "nobody reads them here", do)


def swap(serve: Serve, _: Site) -> Finding:
    """A flag of older versions of vLLM, which had a host tier for preempted requests."""
    given = serve.flags.values.get("swap_space")
    if given is None:
        return Finding("--swap-space", "ok", "it is not there")
    do = f"leave it out; to keep preempted requests {here('swap_space', given)}"
    return Finding("--swap-space", "fail", "vLLM has no such flag any more", _NOT_STARTED, do)


def end(serve: Serve, _: Site) -> Finding:
    """Whether the end of vLLM leaves time to write what is not on the disk."""
    if not serve.told.get("disk_path"):
        return Finding("end", "ok", "nothing outlives it")
    given = serve.flags.number("shutdown_timeout", 0)
    fact = f"--shutdown-timeout {given}"
    if given > LEAST:
        return Finding("end", "ok", fact)
    lost = "vLLM ends its engine at once: what is not on the disk yet is computed again"
    return Finding("end", "warn", fact, lost, "add --shutdown-timeout 60")


def replicas(serve: Serve, _: Site) -> Finding:
    """What data parallel engines take on one machine."""
    many = serve.replicas
    if many == 1:
        return Finding("replicas", "ok", "one engine")
    host = serve.asked().host
    each = f"{many} engines, {size(host)} of host for all of them" if host else f"{many} engines"
    return Finding("replicas", "ok", each)


def checks(serve: Serve) -> tuple[Check, ...]:
    """Returns the checks of a command line."""
    every: list[Check] = [partial(flag, fault) for fault in serve.flags.faults]
    every += [partial(check, serve) for check in (installed, transfer)]
    if isinstance(serve.flags.values.get("kv_transfer_config"), Mapping):
        every += [
            partial(fields, serve),
            partial(connector, serve),
            partial(refusal, "transfer", "transfer", serve),
            *(partial(setting, name, serve) for name in serve.extra),
            partial(settings, serve),
            *([partial(record, serve)] if "record" in serve.told else []),
        ]
    every += [
        partial(refusal, "attention", "attention", serve),
        partial(refusal, "hashes", "hashes", serve),
        partial(refusal, "ranks", "parallel", serve),
    ]
    others = (model, hybrid, allocator, variables, swap, end, replicas)
    return tuple(every + [partial(check, serve) for check in others])
