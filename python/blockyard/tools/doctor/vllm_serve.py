"""The command line of `vllm serve`, and what the connector reads of it."""

import json
from collections.abc import Mapping
from dataclasses import fields as fields_of
from dataclasses import replace
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Final

from blockyard._core import BlockyardError, Misuse
from blockyard._typing import override
from blockyard.connectors.vllm.compatibility import Facts, facts, refusals
from blockyard.connectors.vllm.elsewhere import here
from blockyard.connectors.vllm.replicas import ALONE, here_of
from blockyard.connectors.vllm.settings import Settings, with_file
from blockyard.connectors.vllm.vllm_api import INTERFACE
from blockyard.shared.layout import KVLayout, Plane
from blockyard.shared.sizes import counted, parse_size
from blockyard.tools.doctor import config as of_config
from blockyard.tools.doctor.engine import Engine
from blockyard.tools.doctor.finding import Demand
from blockyard.tools.doctor.model import Layers, Model, Wanted
from blockyard.tools.doctor.stand_ins import (
    configuration,
    groups_of,
    kv_cache,
)
from blockyard.yard.config import Config
from blockyard.yard.group_configs import memory_of_all
from blockyard.yard.tier_sizes import in_blocks

__all__ = [
    "EXTRA",
    "FLAG",
    "MODULES",
    "POLICIES",
    "TRANSFER",
    "Serve",
    "flag_line",
    "is_registered",
]

MODULES: Final = ("blockyard.connectors.vllm", "blockyard.engines.vllm")
POLICIES: Final = ("recompute", "fail")
FLAG: Final = "--kv-transfer-config"
TRANSFER: Final = "kv_transfer_config"
EXTRA: Final = "kv_connector_extra_config"
_SOME: Final = 4096
"""Bytes of a block, where the model is not known."""
_NEAR: Final = "127.0.0.1:7000"
"""An address for a key that wants one beside it."""
_MANY: Final = 1 << 31
_IN_BYTES: Final = {"host": "cpu_bytes_to_use", "disk": "disk_capacity_bytes"}


def is_registered() -> bool:
    """Whether vLLM finds the connector by its name alone."""
    return any(
        point.value.startswith("blockyard.")
        for point in metadata.entry_points(group="vllm.general_plugins")
    )


def flag_line(**changes: object) -> str:
    """The flag to write."""
    said: dict[str, object] = {"kv_connector": "Blockyard"}
    if not is_registered():
        said["kv_connector_module_path"] = MODULES[0]
    said |= {"kv_role": "kv_both"}
    if not is_registered():
        said["kv_load_failure_policy"] = POLICIES[0]
    return f"{FLAG} '{json.dumps(said | {EXTRA: {'host': '64 GiB'}} | changes)}'"


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
        return flag_line()

    @property
    @override
    def sound(self) -> str:
        """The fact for accepted settings."""
        if self.sized is not None and isinstance(self.read, tuple):
            own, configs = self.read
            return own.said(configs, self.sized.groups).partition(", below")[0]
        if isinstance(self.known, BlockyardError):
            return "the keys go together; the model is refused"
        whose = "bytes of the model's states" if self.has_states else "model's sizes"
        return f"the keys go together; the {whose} are not known here, nor whether host is enough"

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
        return self.flags.mapping(TRANSFER)

    @cached_property
    @override
    def extra(self) -> dict[str, Any]:
        """The connector's keys."""
        given = self.own.get(EXTRA)
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
        extra = self.transfer.get(EXTRA)
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
        if named.get("kv_load_failure_policy") not in POLICIES:
            # vLLM's default; what is no word of it is named elsewhere.
            named["kv_load_failure_policy"] = POLICIES["kv_load_failure_policy" not in named]
        said = replace(self.flags, values={**self.flags.values, TRANSFER: named})
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
            for tier in _IN_BYTES:
                if isinstance(extra.get(tier), list):
                    extra[tier] = _one_of(tier, extra[tier])
        try:
            self._check_of_states()
            role, other = str(self.own.get("kv_role", "kv_both")), "another connector"
            known = known._replace(blocks=2, role=role, beside=other if self.is_inside else None)
            read = Settings.read(extra, known)
            of_config.tried(read[1][0])
        except BlockyardError as error:
            return error
        return read

    def _check_of_states(self) -> None:
        """Refuses sizes of states and attention that fit no groups; how many there are is unknown.

        Raises:
            Misuse: A size is a number of blocks, or a list has one size.
        """
        if not self.has_states or not isinstance(self.known, Facts):
            return
        for tier in _IN_BYTES:
            given = self.told.get(tier)
            if isinstance(given, list) and len(given) == 1:
                raise Misuse(
                    f"{tier} = {given!r}: one size for several groups; give a size for each; or "
                    'the memory of all, like "64 GiB"'
                )
            if given and isinstance(given, int | str):
                memory_of_all(tier, given)

    @override
    def alone(self, name: str) -> BlockyardError | None:
        """Returns why one key is refused, where the others are sound."""
        beside: dict[str, Any] = {"host": 1, "preempt": "recompute"}
        if name in {"disk", "disk_path", "disk_reclaim"}:
            beside |= {"disk": 1, "disk_path": "/"}
        if name in {"remote_names", "password_file"}:
            beside |= {"remote": "redis://host"}
        if name in {"advertise", "lease", "unread", "carrier", "secret_file"}:
            beside |= {"listen": _NEAR}
        if name == "patience":
            beside |= {"peers": [_NEAR]}
        with_it = {"listen": ("advertise", "secret_file"), "peers": ("secret_file",)}.get(name, ())
        beside |= {other: self.extra[other] for other in with_it if other in self.extra}
        said = {EXTRA: beside | {name: self.extra[name]}}
        read = replace(self, flags=replace(self.flags, values={TRANSFER: said})).read
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
            return f'put it into {EXTRA}, as "{name}": {json.dumps(value)}'
        meant = here(name, value)
        said = meant is None or meant.startswith("leave")
        return meant if said else f"leave it out, and {meant} in {EXTRA}"

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
            asked = replace(every[0], **sums, piece=max(one.piece for one in every))
        else:
            # Without the model a number of blocks is no number of bytes.
            host, disk = (
                sum(_nbytes(one, self.workers, self.replicas) for one in _listed(self.told, tier))
                for tier in _IN_BYTES
            )
            pinned = host // self.workers
            piece = 0 if self.has_states else pinned
            asked = Demand(host=host, pinned=pinned, piece=piece, disk=disk)
        many = self.replicas
        asked = replace(
            asked,
            host=asked.host * many,
            shared=asked.shared * many,
            disk=asked.disk * many,
            device=0,
            ranks=0,
        )
        settings = self.read[0]
        stores = tuple((one, settings.password_file) for one in settings.urls)
        return replace(asked.joined(whole), stores=stores)


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
