"""What an operator says in `kv_connector_extra_config`, and the cache that follows from it."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, Self

from blockyard._core import Misuse, TooLarge
from blockyard.connectors.vllm.elsewhere import here
from blockyard.connectors.vllm.identity import namespace_of
from blockyard.connectors.vllm.replicas import ALONE, Replica
from blockyard.shared.hints import NO_HINTS, Hints
from blockyard.shared.layout import KVLayout
from blockyard.shared.sizes import parse_size
from blockyard.shared.validate import folder, one_of, seconds
from blockyard.yard.config import Config
from blockyard.yard.sizes import in_blocks

__all__ = ["DEADLINE", "OWN", "Settings", "with_file"]

OWN: Final = (
    *("layout", "block_size", "device", "engine", "groups", "ranks", "null_slots"),
    *("recompute", "keyed", "key_hash", "yard"),
)
"""Fields of `Config` that are vLLM's to say."""
_BOOLS: Final = (True, False)
DEADLINE: Final = 60_000
"""Milliseconds after which the end of a copy counts as unknown, where nothing else is said."""
_GIB: Final = 1 << 30
_HINTS: Final = Hints._fields
_OF_A_REQUEST: Final = ("stow", "preempt", "decode", "load", *_HINTS)
_PREFIX: Final = "blockyard."
_SHOWN: Final = 80
"""Characters that are shown of what a client has sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the connector does, beside the sizes and policies of its cache.

    Raises:
        Misuse: A value is none of those that are allowed.
    """

    stow: Literal["finish", "through", "none"] = "finish"
    """When full blocks are copied down for others: as a request ends; as they fill; or never."""
    preempt: Literal["park", "recompute"] = "park"
    """Whether a preempted request's KV is kept, its last token too; or dropped."""
    decode: bool = True
    """Whether blocks that hold answers are stowed, and not those of the prompt alone."""
    load: bool = True
    """Whether a request may have what others have stowed."""
    checksums: bool = True
    """Whether what comes up is compared with what went down."""
    keep_on_reset: bool | None = None
    """Whether what is below outlives a reset of vLLM's prefix cache alone; None for only where the
    weights of this engine cannot change."""
    disk_path: str | Sequence[str] | None = None
    """Where the blocks of `disk` outlive the engine, in slot files; several are several disks.
    `disk` needs it; None for no disk."""
    flush: float = 20.0
    """Seconds for which the end of the engine may write what is not on the disk, and no longer than
    vLLM lets it live; 0 for none."""
    untested: bool = False
    """Whether a vLLM goes on whose interface is another one than was tested."""
    hints: Hints = NO_HINTS
    """What a request says of its own future; an operator says it of none."""

    def __post_init__(self) -> None:
        """Checks every value."""
        one_of("stow", self.stow, ("finish", "through", "none"))
        one_of("preempt", self.preempt, ("park", "recompute"))
        one_of("decode", self.decode, _BOOLS)
        one_of("load", self.load, _BOOLS)
        one_of("checksums", self.checksums, _BOOLS)
        one_of("untested", self.untested, _BOOLS)
        one_of("keep_on_reset", self.keep_on_reset, (*_BOOLS, None))
        seconds("flush", self.flush)
        paths: object = [self.disk_path] if isinstance(self.disk_path, str) else self.disk_path
        if paths is not None and not (
            isinstance(paths, Sequence)
            and paths
            and all(isinstance(one, str) and one and "\0" not in one for one in paths)
        ):
            raise Misuse(f"disk_path = {self.disk_path!r}: give a path, or a list of paths")
        if isinstance(paths, Sequence) and len({Path(one) for one in paths}) < len(paths):
            raise Misuse(f"disk_path = {self.disk_path!r}: give each disk once")

    @classmethod
    def read(
        cls,
        extra: Mapping[str, Any],
        *,
        layout: KVLayout,
        blocks: int,
        namespace: Mapping[str, Mapping[str, object]],
        longest: int,
        unseen: str | None = None,
        replica: Replica = ALONE,
    ) -> tuple[Self, Config]:
        """Reads the operator's words, and completes them by what vLLM has.

        Args:
            extra: `kv_connector_extra_config`; `config` in it names a TOML file, whose values it
                overrides.
            layout: Of a block, as vLLM has it.
            blocks: The blocks that vLLM gives out.
            namespace: What its KV depends on; the operator's `namespace` adds to it.
            longest: Tokens of the longest request.
            unseen: Why nothing tells the weights from others; None where something does.
            replica: Which of the data parallel replicas it is. Memory and disks of the machine are
                divided among those there, and each has a file of its own to record in.

        Raises:
            Misuse: A key is unknown or vLLM's own, or a value is out of range.
            Unavailable: `weights` of `namespace` is a path where nothing can be read.
            TooLarge: A request of full length cannot be kept, and shall be.
        """
        settings, given = cls.of_extra(extra)
        more = given.pop("namespace", None) or {}
        if not isinstance(more, Mapping):
            raise Misuse(f"namespace = {more!r}: give a mapping of names to text")
        said = namespace_of(namespace, more)
        if given.get("deadline") is None:
            given["deadline"] = DEADLINE
        if settings.disk_path is not None:
            settings.check_disk(given, namespace, more, unseen)
            given["keyed"] = ("disk",)
            # What reaches the host is on the disk soon after: a kill loses little of it.
            given.setdefault("write", {"host": "through"})
        for tier in ("host", "disk") if replica.here > 1 else ():
            given[tier] = _share(tier, given.get(tier, 0), layout, replica.here)
        if replica.name and isinstance(given.get("record"), str):
            given["record"] = f"{given['record']}.{replica.number}"
        config = Config.of({**given, "layout": layout, "engine": blocks, "namespace": said})
        settings.check_room(config, longest)
        return settings, config

    @classmethod
    def of_extra(cls, extra: Mapping[str, Any]) -> tuple[Self, dict[str, Any]]:
        """Reads what can be read before the engine is known: its own values, and the names.

        Args:
            extra: As in `read`.

        Returns:
            Its values, and what is left for `Config`.

        Raises:
            Misuse: As in `read`.
        """
        given = with_file(extra)
        own = {field.name for field in fields(cls)} - {"hints"}
        known = sorted((own | {field.name for field in fields(Config)}) - set(OWN))
        for name in given:
            if name in OWN:
                raise Misuse(f"{name} = {given[name]!r}: vLLM says that itself, leave it out")
            if name not in known:
                meant = here(name, given[name]) or f"did you mean {_nearest(name, known)!r}?"
                raise Misuse(f"there is no {name!r} in kv_connector_extra_config: {meant}")
        if "host" not in given and "disk" not in given:
            raise Misuse(
                'host is missing in kv_connector_extra_config: give it, as "host": "64 GiB"'
            )
        if given.get("disk") and given.get("disk_path") is None:
            raise Misuse(
                f"disk = {given['disk']!r} was given, and no disk_path: give the folder in which "
                'it outlives the engine, as "disk_path": "/mnt/kv"; or leave disk out, and give '
                "a larger host"
            )
        if given.get("disk_reclaim") and given.get("disk_path") is None:
            raise Misuse(
                "disk_reclaim was given, and no disk_path: give the folder whose room it may take, "
                'as "disk_path": "/mnt/kv"; or leave it out'
            )
        said = {name: given.pop(name) for name in own & given.keys()}
        return cls(**{**said, "disk_path": _at_home(said.get("disk_path"))}), given

    def of_request(self, params: object) -> Self:
        """Returns what holds for one request.

        Args:
            params: Its `kv_transfer_params`, a mapping or None: `blockyard.stow`, `.preempt`,
                `.decode` and `.load` stand for the operator's; `.retention`, `.next_use`,
                `.priority` and `.ttl` are hints, as in `KVCache.finish`. What else is in it is
                another's.

        Raises:
            Misuse: There is no such setting of a request, or it cannot have this value.
        """
        if not isinstance(params, Mapping | None):
            shown = repr(params)[:_SHOWN]
            raise Misuse(f"kv_transfer_params = {shown}: give a mapping of names to values")
        given = {
            name.removeprefix(_PREFIX): value
            for name, value in (params or {}).items()
            if isinstance(name, str) and name.startswith(_PREFIX)
        }
        for name in given:
            if name not in _OF_A_REQUEST:
                near = _nearest(name, _OF_A_REQUEST)
                shown = repr(_PREFIX + name)[:_SHOWN]
                raise Misuse(
                    f"there is no {shown} in kv_transfer_params: did you mean '{_PREFIX}{near}'?"
                )
        if not given:
            return self
        said = {name: given.pop(name) for name in _HINTS if name in given}
        return replace(self, **given, hints=Hints.checked(**said))

    def as_reading_nothing(self) -> Self:
        """Returns what holds for a request that is computed whole, also when it was preempted."""
        return replace(self, preempt="recompute", load=False)

    def as_nothing(self) -> Self:
        """Returns what holds for a request whose KV has no key: it is computed, and forgotten."""
        return replace(self, stow="none", preempt="recompute", load=False)

    def said(self, config: Config) -> str:
        """Says what the connector will do, and with how much memory."""
        layout = config.layout
        assert layout is not None  # noqa: S101 - `read` has given it
        tiers = {"host": config.host_blocks, "disk": config.disk_blocks}
        below = ", ".join(
            f"{blocks * layout.block_bytes / _GIB:.2f} GiB of {name} a rank ({blocks} blocks)"
            for name, blocks in tiers.items()
            if blocks
        )
        if self.disk_path is not None:
            below += f" at {self.disk_path}, where it outlives the engine"
        kept = "preempted requests" if self.preempt == "park" else "no preempted request"
        when = {"finish": "as requests end", "through": "as blocks fill", "none": "not at all"}
        return (
            f"Blockyard keeps {kept}, and stows full blocks {when[self.stow]}, in {below}, below "
            f"vLLM's {config.device_blocks} blocks of {config.block_size} tokens and "
            f"{layout.block_bytes} bytes on each of {layout.ranks} ranks"
        )

    def check_disk(
        self,
        given: Mapping[str, Any],
        namespace: Mapping[str, Mapping[str, object]],
        more: Mapping[str, str],
        unseen: str | None = None,
    ) -> None:
        """Checks that a disk that outlives the engine has a size, a host, and weights by name."""
        if not given.get("disk"):
            raise Misuse('disk_path was given, and no size: give "disk": "200 GiB"')
        if not given.get("host"):
            raise Misuse(
                "disk_path was given, and no host: what ends is kept there first; give "
                '"host": "16 GiB"'
            )
        weights = namespace.get("weights", {})
        known = not unseen and (weights.get("content") or weights.get("pinned"))
        if not (known or more.get("weights")):
            raise Misuse(
                "disk_path was given, and nothing says which weights the model has: "
                f'{unseen or "they are no files here"}; give "namespace": {{"weights": "v1"}}, '
                "another text with each version"
            )

    def check_room(self, config: Config, longest: int) -> None:
        """Checks that something can be kept, and one request of full length."""
        wants = -(-longest // config.block_size)
        room = max(config.host_blocks, config.disk_blocks)
        if not room:
            raise Misuse('host = 0, and no disk: nothing would be kept; give "host": "64 GiB"')
        if self.preempt == "park" and room < wants:
            raise TooLarge(
                f"a request of max_model_len = {longest} tokens has {wants} blocks, and a tier "
                f"below has {room} at most: give a larger host, a smaller --max-model-len, or "
                '"preempt": "recompute"'
            )


def with_file(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the operator's words, with those of the file that `config` names beside them.

    Raises:
        Misuse: The file cannot be read.
    """
    given = dict(extra)
    path = given.pop("config", None)
    return given if path is None else {**_table(path), **given}


def _at_home(paths: Any) -> Any:
    """Returns a path, or a list of them, with the home of a user in place of `~`."""
    if isinstance(paths, list):
        return [_at_home(one) for one in paths]
    if not isinstance(paths, str) or not paths.startswith("~"):
        return paths
    return str(folder("disk_path", paths))


def _share(tier: str, size: Any, layout: KVLayout, replicas: int) -> Any:
    """Returns what each of some replicas has of a machine's memory or disks, in blocks.

    A number of blocks, and what is given for each rank, is for each replica.
    """
    if not isinstance(size, str) or parse_size(tier, size).per == "rank":
        return size
    blocks = int(in_blocks(tier, size, layout)) // replicas
    if not blocks and parse_size(tier, size).nbytes:
        raise Misuse(
            f"{tier} = {size!r} is smaller than a block of {layout.block_bytes} bytes for each of "
            f"{replicas} replicas on this machine"
        )
    return blocks


def _nearest(name: object, known: Iterable[str]) -> str:
    return difflib.get_close_matches(str(name)[:_SHOWN].casefold(), known, n=1, cutoff=0.0)[0]


def _table(path: object) -> dict[str, Any]:
    """Reads a TOML file: its table `blockyard`, or the whole file."""
    import tomllib  # noqa: PLC0415 - most operators name no file

    try:
        table = tomllib.loads(Path(str(path)).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Misuse(
            f"config = {str(path)!r}: it is no configuration: {error}; give the path of a TOML file"
        ) from error
    own = table.get("blockyard", table)
    if not isinstance(own, dict):
        raise Misuse(f"config = {str(path)!r}: blockyard = {own!r} in it, and must be a table")
    return dict(own)
