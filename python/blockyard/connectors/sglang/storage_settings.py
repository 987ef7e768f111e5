"""The operator's keys of `--hicache-storage-backend-extra-config`, and their checks."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from blockyard._core import Misuse, Unsupported
from blockyard.connectors.shared_stores import StoreOptions, urls_of
from blockyard.shared.sizes import counted, parse_size
from blockyard.shared.validate import folder, integer, one_of, seconds, shown

__all__ = ["START", "StorageSettings", "check_config"]

START: Final = (
    '--hicache-storage-backend-extra-config \'{"backend_name": "blockyard", '
    '"module_path": "blockyard.engines.sglang", "class_name": "Storage", "interface_v1": 1, '
    '"hicache_storage_pass_prefix_keys": true, "disk": "200 GiB", "disk_path": "/data/kv"}\''
)
"""The line that starts it."""
_SGLANG: Final = (
    *("backend_name", "module_path", "class_name", "interface_v1"),
    *("prefetch_threshold", "prefetch_timeout_base", "prefetch_timeout_per_ki_token"),
    *("hicache_storage_pass_prefix_keys", "tp_lcm_size"),
)
"""Keys that SGLang itself reads."""
_OF_HOST: Final = ("host", "hosts", "host_blocks", "cpu_bytes_to_use", "max_local_cpu_size")
_HOST: Final = "the memory of the host is SGLang's: give --hicache-size, in GB"
_OF_GROUPS: Final = ("split", "typical")
"""Keys with which vLLM's connector divides memory among groups of layers."""
_DIVIDES: Final = (
    "leave it out: SGLang's --swa-full-tokens-ratio and --mamba-full-memory-ratio divide disk"
)
_DAY: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings(StoreOptions):
    """What the storage does.

    Raises:
        Misuse: A value is none of those that are allowed.
    """

    ENGINE: ClassVar = "SGLang"

    disk: int | str = 0
    """Pages, or bytes as text: for all tensor parallel ranks, or "25 GiB/rank"; 0 for no disk."""
    disk_path: Path | None = None
    """The folder of all identities; None for no disk."""
    remote: str | Sequence[str] | None = None
    """URLs of the stores that this engine shares with others, in order; None for none."""
    password_file: str | None = None
    """A file with the password of these stores, which SGLang would log in their URLs."""
    namespace: Mapping[str, str]
    """What the operator adds to what the bytes depend on: `weights`, `model` and others."""
    threads: int = 4
    """Threads that read and write, of each rank."""
    patience: float = 30.0
    """Seconds after which a copy that hangs is given up."""
    direct: bool = True
    """Whether the system's page cache is passed by, where it can be."""
    disk_reclaim: bool = False
    """Whether other identities under `disk_path` are removed where there is no room."""
    flush: float = 20.0
    """Seconds for which `close` may wait for pages that are being written; 0 for none."""
    untested: bool = False
    """Whether to start with an SGLang whose interface differs from the tested one."""

    def __post_init__(self) -> None:
        """Checks every value."""
        disk = counted(self.disk)
        if isinstance(disk, str):
            parse_size("disk", disk)
        elif self.disk_path is not None:
            integer("disk", disk)
        if self.remote is not None:
            urls_of("remote", self.remote, self.ENGINE)
        elif self.password_file is not None:
            raise Misuse(
                "password_file was given without remote: give the URL of a store, as "
                '"remote": "redis://host:6379/0"; or leave it out'
            )
        integer("threads", self.threads, most=64)
        one_of("direct", self.direct, (True, False))
        one_of("disk_reclaim", self.disk_reclaim, (True, False))
        one_of("untested", self.untested, (True, False))
        seconds("flush", self.flush)
        patience: object = self.patience
        number = isinstance(patience, int | float) and not isinstance(patience, bool)
        if not number or not 0 < self.patience <= _DAY:
            raise Misuse(f"patience = {patience!r}: must be seconds, more than 0")
        given: object = self.namespace
        pairs = list(given.items()) if isinstance(given, Mapping) else [(None, None)]
        if not all(isinstance(part, str) for pair in pairs for part in pair):
            raise Misuse(f"namespace = {given!r}: give a mapping of names to text")

    @classmethod
    def of_extra(cls, extra: Mapping[str, Any] | None) -> Self:
        """Reads the operator's words.

        Args:
            extra: `HiCacheStorageConfig.extra_config`.

        Raises:
            Misuse: A key is unknown, missing, or has a wrong value.
        """
        words: object = {} if extra is None else extra
        if not isinstance(words, Mapping):
            raise Misuse(f"{words!r:.80} is no mapping of names to values: write {START}")
        given = dict(words)
        own = [field.name for field in fields(cls)]
        for name in given:
            if name not in _SGLANG and name not in own:
                plain = str(name)[:80].casefold()
                near = difflib.get_close_matches(plain, own, n=1)
                meant = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(own)}"
                meant = _HOST if plain in _OF_HOST else meant
                meant = _DIVIDES if plain in _OF_GROUPS else meant
                raise Misuse(
                    f"there is no {name!r} in --hicache-storage-backend-extra-config: {meant}"
                )
        if isinstance(given.get("disk"), list | tuple):
            raise Misuse(
                f"disk = {shown(given['disk'])}: SGLang divides the disk among its groups of "
                'layers; give one size, like "200 GiB"'
            )
        if not given.get("interface_v1"):
            raise Misuse(
                "interface_v1 is missing: without it SGLang copies pages as tensors; write "
                f'"interface_v1": 1, as in {START}'
            )
        values = {name: given[name] for name in own if name in given}
        if given.get("remote") is None or {"disk", "disk_path"} & given.keys():
            values["disk_path"] = _disk_path(given)
        values["namespace"] = given.get("namespace", {})
        return cls(**values)


def _disk_path(given: Mapping[str, Any]) -> Path:
    """Returns the folder of a disk that has a size."""
    for name, example in (("disk", '"200 GiB"'), ("disk_path", '"/data/kv"')):
        if name not in given:
            raise Misuse(f'{name} is missing: give it, as "{name}": {example}')
    path = given["disk_path"]
    if not isinstance(path, str) or not path:
        raise Misuse(f"disk_path = {path!r}: must be the path of a folder")
    return folder("disk_path", path)


def check_config(config: Any) -> None:
    """Refuses what of SGLang's `HiCacheStorageConfig` cannot be served.

    Raises:
        Unsupported: This arrangement of ranks is not supported.
    """
    if config.is_mla_model and config.tp_size > 1:
        raise Unsupported(
            f"tp_size = {config.tp_size} with MLA: SGLang writes KV only from rank 0, and no "
            "other rank would find it; start with --enable-dp-attention, so that each attention "
            "group has one rank"
        )
    for name in ("attn_cp_size", "dcp_size"):
        size = getattr(config, name, 1)
        if size > 1:
            raise Unsupported(
                f"{name} = {size}: a page's tokens must lie on one rank; leave "
                f"--{name.replace('_', '-')} out"
            )
    if config.should_split_heads:
        raise Unsupported("tp_lcm_size: split heads are not supported; leave tp_lcm_size out")
