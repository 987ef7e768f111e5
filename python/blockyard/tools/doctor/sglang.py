"""SGLang's flags: every refusal of the storage, before SGLang starts and without the weights."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Final

from blockyard._core import BlockyardError
from blockyard._typing import override
from blockyard.connectors.command_line import mended
from blockyard.connectors.sglang.disk_identity import adapters_of, weights_of
from blockyard.connectors.sglang.host_pool import check_layout, no_attention
from blockyard.connectors.sglang.sglang_api import INTERFACE
from blockyard.connectors.sglang.storage_settings import START, StorageSettings, check_config
from blockyard.shared.sizes import counted, parse_size
from blockyard.shared.validate import shown
from blockyard.tools.doctor.engine import Engine, told
from blockyard.tools.doctor.finding import Check, Demand, Finding, Site, judged, unknown
from blockyard.tools.doctor.model import Model, Wanted

__all__ = ["Launch", "checks"]

_FLAG: Final = "--hicache-storage-backend-extra-config"
_NOT_STARTED: Final = "SGLang does not start"
_KEEPS_NOTHING: Final = "SGLang starts, and keeps nothing on the disk"
_LOADED: Final = {
    "backend_name": ("blockyard",),
    "module_path": ("blockyard.engines.sglang", "blockyard.connectors.sglang"),
    "class_name": ("Storage",),
}
"""Keys by which SGLang finds the storage, and their values."""
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "prefetch_threshold": (int,),
    "prefetch_timeout_base": (int, float),
    "prefetch_timeout_per_ki_token": (int, float),
    "hicache_storage_pass_prefix_keys": (bool,),
}
"""Keys that SGLang reads itself, and what they must be."""
_ALONE: Final = (
    *("--disable-radix-cache", "--enable-kv-cache-sharding", "--enable-lmcache"),
    "--enable-unified-cache-external-linker",
)
"""What SGLang refuses beside a hierarchical cache with a storage."""
_SOUND: Final = {"interface_v1": 1, "disk": 1, "disk_path": "/"}
_STRETCHED: Final = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
_GB: Final = 10**9


class Launch(Engine):
    """What `sglang.launch_server` is to do, and what follows from it."""

    package: ClassVar = "sglang"
    interface: ClassVar = INTERFACE
    means: ClassVar = "the storage refuses it when it is made, after the weights"
    line: ClassVar = f"write {START}"

    @property
    @override
    def wanted(self) -> Wanted:
        """The model's options from its flags."""
        flags = self.flags
        return Wanted(
            name=flags.text("model_path"),
            revision=flags.values.get("revision"),
            folder=flags.values.get("download_dir"),
            overrides=flags.values.get("json_model_override_args"),
            dtype=flags.text("dtype", "auto"),
            kv_dtype=flags.text("kv_cache_dtype", "auto"),
            tensor=self.tensor,
            stages=flags.number("pp_size"),
            longest=flags.values.get("context_length"),
            stretched=self.environ.get(_STRETCHED, "").lower() in {"1", "true", "yes"},
        )

    @property
    def tensor(self) -> int:
        """Tensor parallel ranks of an attention group, which share a prompt's pages."""
        ranks, groups = self.flags.number("tp_size"), self.flags.number("attn_dp_size")
        if self.flags.values.get("enable_dp_attention"):
            groups = self.flags.number("dp_size")
        return max(ranks // max(groups, 1) // max(self.flags.number("attn_cp_size"), 1), 1)

    @property
    @override
    def workers(self) -> int:
        """Processes of one replica that compute."""
        return max(self.flags.number("tp_size"), 1) * max(self.flags.number("pp_size"), 1)

    @property
    @override
    def replicas(self) -> int:
        """Replicas on this machine."""
        inside = self.flags.values.get("enable_dp_attention")
        return 1 if inside else max(self.flags.number("dp_size"), 1)

    @cached_property
    @override
    def extra(self) -> dict[str, Any]:
        """The storage's keys."""
        return self.given if isinstance(self.given, dict) else {}

    @cached_property
    def given(self) -> dict[str, Any] | str:
        """The storage's keys, or the error in them."""
        given = self.flags.values.get("hicache_storage_backend_extra_config")
        if given is None:
            return "it is missing"
        try:
            said = _table(given[1:]) if given.startswith("@") else json.loads(given)
        except (OSError, ValueError, RecursionError, ImportError) as error:
            return f"{shown(given)} is no JSON, and no file of settings: {error}"
        return dict(said) if isinstance(said, Mapping) else f"{shown(given)} is no mapping"

    @override
    def alone(self, name: str) -> BlockyardError | None:
        """Returns why one key is refused, where the others are sound."""
        value = self.extra[name]
        try:
            beside = {"remote": "redis://host"} if name == "password_file" else {}
            StorageSettings.of_extra(_SOUND | beside | {name: value})
        except BlockyardError as error:
            return error
        return None

    @cached_property
    @override
    def read(self) -> StorageSettings | BlockyardError:
        """What the storage makes of what is said to it."""
        try:
            return StorageSettings.of_extra(self.extra)
        except BlockyardError as error:
            return error

    @override
    def instead(self, flag: str, value: str | None) -> str | None:
        """Returns what to write in place of a flag that is none."""
        name = flag.lstrip("-").replace("-", "_")
        if name in {*StorageSettings.__dataclass_fields__, *_LOADED}:
            return f'put it into {_FLAG}, as "{name}": {json.dumps(value)}'
        return None

    @override
    def asked(self) -> Demand:
        """Returns what the machine is to have."""
        pinned = max(self.flags.number("hicache_size", 0), 0) * _GB
        machines = max(self.flags.number("nnodes"), 1)
        ranks = max(self.workers * self.replicas // machines, 1)
        asked = Demand(host=pinned * ranks, pinned=pinned, piece=pinned, ranks=ranks)
        if not isinstance(self.read, StorageSettings):
            return asked
        nbytes = 0
        if isinstance(counted(self.read.disk), str):
            # Each stage, each replica and each attention group has as much, in a folder of its own.
            amount = parse_size("disk", str(self.read.disk))
            nbytes = amount.nbytes if amount.per == "rank" else amount.nbytes // self.tensor
        paths = () if self.read.disk_path is None else (self.read.disk_path,)
        stores = tuple((url, self.read.password_file) for url in self.read.urls)
        return asked.joined(Demand(disk=nbytes * ranks, paths=paths, stores=stores))


def _table(path: str) -> object:
    """Reads a file as SGLang does, by its ending."""
    text = Path(path).read_text("utf-8")
    if path.endswith(".toml"):
        return tomllib.loads(text)
    if path.endswith((".yaml", ".yml")):
        import yaml  # noqa: PLC0415 - SGLang brings it; nobody else needs it

        return yaml.safe_load(text)
    if path.endswith(".json"):
        return json.loads(text)
    raise ValueError("SGLang reads .json, .toml and .yaml")


def _wrong_cache(launch: Launch) -> Iterator[tuple[str, str]]:
    """What SGLang needs for a storage, and does not do without a word."""
    values = launch.flags.values
    if not values.get("enable_hierarchical_cache"):
        yield "--enable-hierarchical-cache is missing", "add --enable-hierarchical-cache"
    backend = values.get("hicache_storage_backend")
    if backend != "dynamic" and not launch.is_refused("--hicache-storage-backend"):
        fact = "it is missing" if backend is None else f"it is {shown(backend)}"
        yield f"--hicache-storage-backend: {fact}", "write --hicache-storage-backend dynamic"


def cache(launch: Launch, _: Site) -> Finding:
    """Whether SGLang has a cache below its GPU, and a storage below that."""
    fine = "there is one, and a storage"
    return told("hierarchical cache", _wrong_cache(launch), _KEEPS_NOTHING, fine)


def _conflicts(launch: Launch) -> Iterator[tuple[str, str]]:
    values = launch.flags.values
    for flag in _ALONE:
        if values.get(flag[2:].replace("-", "_")):
            yield f"{flag} with a hierarchical cache and a storage", f"leave {flag} out"
    ranks, groups = launch.flags.number("tp_size"), launch.flags.number("attn_dp_size")
    if values.get("enable_dp_attention"):
        groups = launch.flags.number("dp_size")
    elif groups > 1 and launch.flags.number("dp_size") > 1:
        yield "--dp-size with --attn-dp-size", "leave --dp-size out"
    for name in (
        "tp_size",
        "pp_size",
        "dp_size",
        "attn_dp_size",
        "attn_cp_size",
        "dcp_size",
        "page_size",
    ):
        if launch.flags.number(name) < 1:
            flag = f"--{name.replace('_', '-')}"
            yield f"{flag} {launch.flags.number(name)}", f"write {flag} 1"
    if groups > 1 and ranks % groups:
        yield (
            f"{ranks} tensor parallel ranks are not divided into {groups} attention groups",
            f"write --tp-size {groups * max(ranks // groups, 1)}",
        )
    for flag in ("--hicache-host-memory-fraction", "--swa-full-tokens-ratio"):
        yield from _wrong_fraction(flag, values.get(flag[2:].replace("-", "_")))
    if isinstance(launch.model, Model):
        yield from launch.wanted.wrong(launch.model, "--context-length")


def _wrong_fraction(flag: str, given: object) -> Iterator[tuple[str, str]]:
    if isinstance(given, float) and not 0 < given <= 1:
        yield f"{flag} {given:g}", "write a fraction of 1, as 0.8"


def conflicts(launch: Launch, _: Site) -> Finding:
    """Flags that SGLang refuses beside each other, or for this model."""
    return told("flags together", _conflicts(launch), _NOT_STARTED, "they go together")


def extra(launch: Launch, _: Site) -> Finding:
    """The flags of the storage's kind and size."""
    said = launch.given
    if isinstance(said, dict):
        return Finding(_FLAG, "ok", "it is there")
    if launch.is_refused(_FLAG, "--config"):
        return unknown(_FLAG, "it is not understood")
    given = launch.flags.text("hicache_storage_backend_extra_config")
    do = launch.line
    if given and not given.startswith("@"):
        do = mended(_FLAG, [given], START)
    return Finding(_FLAG, "fail", said, _NOT_STARTED, do)


def _wrong_keys(launch: Launch) -> Iterator[tuple[str, str]]:
    said = launch.extra
    for name, fine in _LOADED.items():
        if name not in said:
            yield f"{name} is missing", f'write "{name}": "{fine[0]}"'
        elif name != "backend_name" and said[name] not in fine:
            yield f"{name} = {shown(said[name])}", f'write "{name}": "{fine[0]}"'
    for name, kinds in _TYPES.items():
        value = said.get(name)
        if name in said and (not isinstance(value, kinds) or type(value) is bool not in kinds):
            what = "true or false" if bool in kinds else "a number"
            yield f"{name} = {shown(value)} is not {what}", f'write "{name}": …, as {what}'
    lcm = said.get("tp_lcm_size")
    if lcm and (not isinstance(lcm, int) or lcm % launch.tensor):
        yield f"tp_lcm_size = {shown(lcm)}", "leave tp_lcm_size out"


def keys(launch: Launch, _: Site) -> Finding:
    """The keys that SGLang reads itself: how it finds the storage, and when it asks it."""
    return told("keys of SGLang", _wrong_keys(launch), _NOT_STARTED, "they are SGLang's")


def prefixes(launch: Launch, _: Site) -> Finding:
    """Whether SGLang passes prefix keys."""
    name = "hicache_storage_pass_prefix_keys"
    if launch.extra.get(name):
        return Finding(name, "ok", "true")
    lost = "the last pages of a sequence may outlive its first, and are of no use then"
    return Finding(name, "warn", "it is not true", lost, f'write "{name}": true')


def layout(launch: Launch, _: Site) -> Finding:
    """How SGLang's host pool lies in memory."""
    said = launch.flags.text("hicache_mem_layout", "page_first")
    if said == "page_first" and launch.flags.values.get("hicache_io_backend") == "direct":
        # As SGLang has it.
        said = "page_first_direct"
    if launch.is_refused("--hicache-mem-layout"):
        return unknown("layout", "it is not understood")
    try:
        check_layout(said, moves=bool(launch.flags.values.get("enable_unified_memory")))
    except BlockyardError as error:
        return launch.refusal("layout", error)
    return Finding("layout", "ok", said)


def ranks(launch: Launch, _: Site) -> Finding:
    """How ranks share a page."""
    said = launch.extra
    latent = isinstance(launch.model, Model) and "MLAAttentionSpec" in launch.model.kinds
    lcm = said.get("tp_lcm_size")
    heads = launch.flags.values.get("hicache_mem_layout") == "page_head"
    config = SimpleNamespace(
        is_mla_model=latent,
        tp_size=launch.tensor,
        attn_cp_size=launch.flags.number("attn_cp_size"),
        dcp_size=launch.flags.number("dcp_size"),
        should_split_heads=isinstance(lcm, int) and lcm > launch.tensor and heads and not latent,
    )
    try:
        check_config(config)
    except BlockyardError as error:
        return launch.refusal("ranks", error)
    return Finding("ranks", "ok", f"{launch.tensor} for each prompt")


def model(launch: Launch, _: Site) -> Finding:
    """The model's kinds of KV: windows and states need layers beside them that keep every token."""
    if isinstance(launch.model, str):
        return unknown("model", launch.model)
    if launch.model.kinds == ("MambaSpec",):
        return launch.refusal("model", no_attention())
    beside = ", and states beside it" if "MambaSpec" in launch.model.kinds else ""
    return Finding("model", "ok", f"{launch.model.layers} layers a rank, of KV{beside}")


def weights(launch: Launch, _: Site) -> Finding:
    """Whether something tells the weights from others, which a disk must know."""
    if not isinstance(launch.read, StorageSettings):
        return unknown("weights", "the settings are not understood")
    values = {"load_format": "auto", **launch.flags.values}
    try:
        weights_of(values, launch.read.namespace)
    except BlockyardError as error:
        if isinstance(launch.model, str) and launch.wanted.name:
            late = "SGLang downloads them, and the disk is refused if they are not to be seen then"
            do = 'run it again then, or give "namespace": {"weights": "v1"}'
            return Finding("weights", "warn", "they are not here", late, do)
        return launch.refusal("weights", error)
    return Finding("weights", "ok", "they can be identified")


def adapters(launch: Launch, _: Site) -> Finding:
    """Whether the adapters' files can be read, which a disk needs."""
    given = launch.flags.values.get("lora_paths") or ()
    try:
        adapters_of({"enable_lora": True, "lora_paths": [_adapter(one) for one in given]})
    except BlockyardError as error:
        return launch.refusal("adapters", error)
    return Finding("adapters", "ok", f"{len(given)} of the start" if given else "none")


def _adapter(said: str) -> SimpleNamespace:
    """Reads an adapter as SGLang does: a path, NAME=PATH, or JSON."""
    with suppress(ValueError, KeyError, TypeError):
        named = json.loads(said)
        return SimpleNamespace(lora_name=named["lora_name"], lora_path=named["lora_path"])
    name, equals, path = said.partition("=")
    return SimpleNamespace(lora_name=name, lora_path=path if equals else said)


def drafter(launch: Launch, _: Site) -> Finding:
    """A drafter: it may keep KV in a pool of its own, which is seen when it is loaded."""
    named = launch.flags.text("speculative_algorithm")
    own = bool(named) and named.upper() not in {"NGRAM", "NONE"}
    means = "where it keeps a pool of its own the storage is refused, after the weights"
    do = (
        "if it is, start without --speculative-algorithm, or attach the storage after the start, "
        "by PUT /hicache/storage-backend"
    )
    return judged("drafter", named or "none", (own, "warn", means, do))


def checks(launch: Launch) -> tuple[Check, ...]:
    """Returns the checks of a command line."""
    every: list[Check] = [
        *launch.checks(stops=_NOT_STARTED),
        partial(cache, launch),
        partial(extra, launch),
    ]
    if isinstance(launch.given, dict):
        every += [
            partial(keys, launch),
            partial(prefixes, launch),
            *launch.keys(),
            launch.settings,
            partial(weights, launch),
        ]
    others = (conflicts, layout, ranks, model, adapters, drafter)
    return tuple(every + [partial(check, launch) for check in others])
