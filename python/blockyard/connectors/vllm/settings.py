"""The operator's keys of `kv_connector_extra_config`, and the resulting configuration."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias

from blockyard._core import Misuse, TooLarge
from blockyard.connectors.shared_stores import StoreOptions, urls_of
from blockyard.connectors.vllm.compatibility import Facts
from blockyard.connectors.vllm.elsewhere import here
from blockyard.connectors.vllm.identity import namespace_of
from blockyard.connectors.vllm.roles import HandoverOptions
from blockyard.shared.groups import Groups
from blockyard.shared.hints import NO_HINTS, Hints
from blockyard.shared.layout import BELOW
from blockyard.shared.sizes import counted, parse_size
from blockyard.shared.validate import folder, integer, one_of, seconds
from blockyard.yard.config import Config
from blockyard.yard.group_configs import GroupConfigs, rooms_of
from blockyard.yard.store_urls import NAMES
from blockyard.yard.tier_sizes import in_blocks

__all__ = ["DEADLINE", "OWN", "Settings", "with_file"]

OWN: Final = (
    *("layout", "block_size", "device", "engine", "groups", "ranks", "null_slots"),
    *("recompute", "keyed", "key_hash", "yard"),
)
"""Fields of `Config` that vLLM sets."""
_BOOLS: Final = (True, False)
DEADLINE: Final = 60_000
"""Milliseconds after which the end of a copy counts as unknown, where nothing else is said."""
_GIB: Final = 1 << 30
_HINTS: Final = Hints._fields
_OF_A_REQUEST: Final = ("offload", "preempt", "decode", "load", *_HINTS)
_PREFIX: Final = "blockyard."
_OFFER: Final = "blockyard.offer"
_NOTHING: Final = 'host = 0 without a disk: no block would be kept; give "host": "64 GiB"'
_Named: TypeAlias = tuple[Mapping[str, Mapping[str, object]], Mapping[str, str], str | None]
"""What vLLM and the operator name, and why the weights cannot be identified."""
_SHOWN: Final = 80
"""Characters that are shown of what a client has sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(StoreOptions, HandoverOptions):
    """What the connector does, beside the sizes and policies of its cache.

    Raises:
        Misuse: A value is none of those that are allowed.
    """

    ENGINE: ClassVar = "vLLM"

    offload: Literal["finish", "through", "none"] = "finish"
    """When full blocks are copied down for others: as a request ends; as they fill; or never."""
    preempt: Literal["park", "recompute"] = "park"
    """Whether a preempted request's KV is kept, its last token too; or dropped."""
    decode: bool = True
    """Whether blocks that hold answers are offloaded, and not those of the prompt alone."""
    load: bool = True
    """Whether a request may have what others have offloaded."""
    checksums: bool = True
    """Whether what comes up is compared with what went down."""
    keep_on_reset: bool | None = None
    """Whether what is below outlives a reset of vLLM's prefix cache alone; None for only where the
    weights of this engine cannot change."""
    disk_path: str | Sequence[str] | None = None
    """Where the blocks of `disk` outlive the engine, in slot files; several are several disks.
    `disk` needs it; None for no disk."""
    remote: str | Sequence[str] | None = None
    """URLs of the stores that this engine shares with others, in order; None for none."""
    remote_names: int = NAMES
    """How many of their blocks are known by name."""
    password_file: str | None = None
    """A file with the password of these stores, which vLLM would log in their URLs."""
    flush: float = 20.0
    """Seconds for which the end of the engine may write what is not on the disk, and no longer than
    vLLM lets it live; 0 for none."""
    untested: bool = False
    """Whether to start with a vLLM whose interface differs from the tested one."""
    typical: int = 8192
    """Tokens of a typical request, by which several groups of layers divide host and disk."""
    split: Sequence[float] | None = None
    """The share of each group of layers, in vLLM's order, in place of those by `typical`."""
    hints: Hints = NO_HINTS
    """Hints of a request about its own future; not an operator's options."""

    def __post_init__(self) -> None:
        """Checks every value."""
        one_of("offload", self.offload, ("finish", "through", "none"))
        one_of("preempt", self.preempt, ("park", "recompute"))
        one_of("decode", self.decode, _BOOLS)
        one_of("load", self.load, _BOOLS)
        one_of("checksums", self.checksums, _BOOLS)
        one_of("untested", self.untested, _BOOLS)
        one_of("keep_on_reset", self.keep_on_reset, (*_BOOLS, None))
        seconds("flush", self.flush)
        integer("typical", self.typical)
        integer("remote_names", self.remote_names)
        self.check_handover()
        if self.remote is not None:
            urls_of("remote", self.remote, self.ENGINE)
        shares: object = self.split
        if shares is not None and not (isinstance(shares, list | tuple) and shares):
            raise Misuse(
                f"split = {shares!r}: it is no list of shares; give one for each group of layers, "
                "in the order of vLLM's numbers, like [1, 4]"
            )
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
    def read(cls, extra: Mapping[str, Any], known: Facts) -> tuple[Self, tuple[Config, ...]]:
        """Reads the operator's words, and completes them by what vLLM has.

        Args:
            extra: `kv_connector_extra_config`; `config` in it names a TOML file, whose values it
                overrides.
            known: What vLLM has. The operator's `namespace` adds to its own. Memory and disks of
                the machine are divided among its replicas there, and each has a file of its own to
                record in.

        Returns:
            Its values, and the configuration of each group of layers, as `Facts.groups` has them.

        Raises:
            Misuse: A key is unknown or vLLM's own, or a value is out of range.
            Unavailable: `weights` of `namespace` is a path where nothing can be read.
            TooLarge: A request of full length cannot be kept, and shall be.
        """
        settings, given = cls.of_extra(extra)
        more = given.pop("namespace", None) or {}
        if not isinstance(more, Mapping):
            raise Misuse(f"namespace = {more!r}: give a mapping of names to text")
        replica = known.replica
        said = namespace_of(known.namespace, more)
        if given.get("deadline") is None:
            given["deadline"] = DEADLINE
        settings.check_role(known, settings.offload)
        settings.check_lower(given, known.namespace, more, known.unseen)
        if known.groups is None:
            _check_one_size(given)
        for tier in ("host", "disk") if replica.here > 1 else ():
            given[tier] = _share(tier, given.get(tier, 0), known, replica.here)
        if replica.name and isinstance(given.get("record"), str):
            given["record"] = f"{given['record']}.{replica.number}"
        own = {"engine": known.blocks, "namespace": said}
        if known.groups is not None:
            with _for_one_of(replica.here):
                return settings, settings.divided(known.groups, {**given, **own}, known.longest)
        if settings.split is not None:
            raise Misuse(
                f"split = {settings.split!r}: all layers of this model keep their KV alike, so "
                "there is nothing to divide; leave it out"
            )
        config = Config.of({**given, **own, "layout": known.layout})
        settings.check_room(config, known.longest)
        return settings, (config,)

    def divided(self, groups: Groups, given: dict[str, Any], longest: int) -> tuple[Config, ...]:
        """Returns the configuration of each group of layers, with its share of memory and disk.

        Args:
            groups: The groups of layers.
            given: Fields of `Config`, with the memory of all groups.
            longest: Tokens of the longest request, for which each group must have room where it
                shall be kept.

        Raises:
            Misuse: A value is out of range, or a group has room for less than two checkpoints.
            TooLarge: A request of full length cannot be kept, and shall be.
        """
        if not given.get("host") and not given.get("disk"):
            raise Misuse(_NOTHING)
        most = longest if self.preempt == "park" else None
        more: dict[str, Any] = {"split": self.split, "max_model_len": most}
        more["typical"] = min(self.typical, longest)
        try:
            configs = tuple(GroupConfigs(groups, **given, **more))
        except TooLarge as error:
            do = 'a smaller --max-model-len, or "preempt": "recompute"'
            raise TooLarge(f"{error}; {do}") from None
        for tier in ("host", "disk") if self.disk_path is not None else ():
            for number, config in enumerate(configs):
                if not config.blocks_of(tier):
                    # What one group has not on the disk, no request finds there.
                    raise Misuse(
                        f"{tier} = {given.get(tier)!r}: {groups.name(number)} has no block of it, "
                        "and with disk_path each group needs host and disk; give more, or leave "
                        "disk and disk_path out"
                    )
        return configs

    @classmethod
    def of_extra(cls, extra: Mapping[str, Any]) -> tuple[Self, dict[str, Any]]:
        """Reads what can be read before the engine is known: its own values, and the names.

        Args:
            extra: As in `read`.

        Returns:
            Its values, and the rest for `Config`.

        Raises:
            Misuse: As in `read`.
        """
        given = with_file(extra)
        own = {field.name for field in fields(cls)} - {"hints"}
        known = sorted((own | {field.name for field in fields(Config)}) - set(OWN))
        for name in given:
            if name in OWN:
                raise Misuse(f"{name} = {given[name]!r}: it comes from vLLM; leave it out")
            if name not in known:
                meant = here(name, given[name]) or f"did you mean {_nearest(name, known)!r}?"
                raise Misuse(f"there is no {name!r} in kv_connector_extra_config: {meant}")
        if "remote" in given and given["remote"] is None:
            del given["remote"]
        if "host" not in given and "disk" not in given:
            raise Misuse(
                'host is missing in kv_connector_extra_config: give it, as "host": "64 GiB"'
            )
        if given.get("disk") and given.get("disk_path") is None:
            raise Misuse(
                f"disk = {given['disk']!r} was given without disk_path: give a folder, as "
                '"disk_path": "/mnt/kv"; or leave disk out, and give a larger host'
            )
        cls.check_given(given)
        for name in ("remote_names", "password_file"):
            if (
                name in given
                and given.get("remote") is None
                and not (given.get("peers") and name == "remote_names")
            ):
                raise Misuse(
                    f"{name} was given without remote: give the URL of a store, as "
                    '"remote": "redis://host:6379/0"; or leave it out'
                )
        if given.get("disk_reclaim") and given.get("disk_path") is None:
            raise Misuse(
                "disk_reclaim was given without disk_path: give a folder, as "
                '"disk_path": "/mnt/kv"; or leave it out'
            )
        said = {name: given.pop(name) for name in own & given.keys()}
        return cls(**{**said, "disk_path": _at_home(said.get("disk_path"))}), given

    def of_request(self, params: object) -> Self:
        """Returns what holds for one request.

        Args:
            params: Its `kv_transfer_params`, a mapping or None: `blockyard.offload`, `.preempt`,
                `.decode` and `.load` stand for the operator's; `.retention`, `.next_use`,
                `.priority` and `.ttl` are hints, as in `KVCache.finish`. What else is in it is
                another's, and `.offer` is a router's.

        Raises:
            Misuse: There is no such setting of a request, or it cannot have this value.
        """
        if not isinstance(params, Mapping | None):
            shown = repr(params)[:_SHOWN]
            raise Misuse(f"kv_transfer_params = {shown}: give a mapping of names to values")
        given = {
            name.removeprefix(_PREFIX): value
            for name, value in (params or {}).items()
            if isinstance(name, str) and name.startswith(_PREFIX) and name != _OFFER
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
        return replace(self, offload="none", preempt="recompute", load=False)

    def said(self, configs: Sequence[Config], groups: Groups | None = None) -> str:
        """Returns the first log line: what the connector does, with how much memory.

        Args:
            configs: Of each group of layers.
            groups: These groups; None for one.
        """
        config = configs[0]
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
        if self.remote is not None:
            below += f", and {config.remote_blocks} blocks by name in {', '.join(self.urls)}"
        kept = "preempted requests" if self.preempt == "park" else "no preempted request"
        when = {"finish": "as requests end", "through": "as blocks fill", "none": "not at all"}
        does = f"Blockyard keeps {kept}, and offloads full blocks {when[self.offload]}"
        if groups is not None:
            return f"{does}{self._said_by_group(configs, groups)}"
        return (
            f"{does}, in {below}, "
            f"below vLLM's {config.device_blocks} blocks of {config.block_size} tokens and "
            f"{layout.block_bytes} bytes on each of {layout.ranks} ranks"
        )

    def _said_by_group(self, configs: Sequence[Config], groups: Groups) -> str:
        rooms = "; ".join(
            f"group {number} is vLLM's {room}"
            for number, room in enumerate(rooms_of(groups, configs))
        )
        at = "" if self.disk_path is None else f" and at {self.disk_path}, where it outlives it"
        said = (
            f", below vLLM's {configs[0].device_blocks} blocks of {groups.block_size} tokens on "
            f"each of {groups.ranks} ranks{at}. Folders of a disk count groups of layers from the "
            f"first of full attention on: {rooms}"
        )
        if groups.has_states:
            said += (
                "; states are kept at the ends of blocks that vLLM names: where it names all, a "
                f"request that comes back computes up to {groups.boundary:,} tokens again"
            )
        return said

    def check_lower(
        self,
        given: dict[str, Any],
        namespace: Mapping[str, Mapping[str, object]],
        more: Mapping[str, str],
        unseen: str | None = None,
    ) -> None:
        """Checks what outlives the engine, and completes the fields of `Config` for it.

        Args:
            given: Fields of `Config`.
            namespace: vLLM's.
            more: The operator's.
            unseen: Why the weights cannot be identified; None if they can.
        """
        said = namespace, more, unseen
        if self.disk_path is not None:
            self._check_disk(given, said)
            given["keyed"] = ("disk",)
            # What reaches the host is on the disk soon after: a kill loses little of it.
            given.setdefault("write", {"host": "through"})
        if self.peers:
            _check_outliving("peers", "the GPU", given, said)
            given |= {"remote": self.remote_names, "remote_writes": self.remote is not None}
        if self.listen is not None:
            _check_outliving("listen", "a decode engine", given, said)
        if self.remote is not None:
            _check_outliving("remote", "a store", given, said)
            given["remote"] = self.remote_names
            # What reaches the memory of this engine is for the others soon after.
            given.setdefault("write", {"host": "through"})
            if given.get("disk"):
                given["write"] = {"disk": "through", **_by_tier(given["write"])}

    @staticmethod
    def _check_disk(given: Mapping[str, Any], said: _Named) -> None:
        """Checks that a disk that outlives the engine has a size, a host, and weights by name."""
        if not given.get("disk"):
            raise Misuse('disk_path was given without a size: give "disk": "200 GiB"')
        _check_outliving("disk_path", "the disk", given, said)

    def check_room(self, config: Config, longest: int) -> None:
        """Checks that something can be kept, and one request of full length."""
        wants = -(-longest // config.block_size)
        room = max(config.host_blocks, config.disk_blocks)
        if not room:
            raise Misuse(_NOTHING)
        if self.preempt == "park" and room < wants:
            raise TooLarge(
                f"a request of max_model_len = {longest} tokens has {wants} blocks, and a tier "
                f"below has {room} at most: give a larger host, a smaller --max-model-len, or "
                '"preempt": "recompute"'
            )


def _check_outliving(name: str, what: str, given: Mapping[str, Any], said: _Named) -> None:
    """Checks that what outlives the engine has a host above it, and weights by name."""
    namespace, more, unseen = said
    if not given.get("host"):
        raise Misuse(
            f"{name} was given without a host, through which blocks reach {what}; give "
            '"host": "16 GiB"'
        )
    weights = namespace.get("weights", {})
    known = not unseen and (weights.get("content") or weights.get("pinned"))
    if not (known or more.get("weights")):
        raise Misuse(
            f"{name} was given, and the model's weights cannot be identified: "
            f'{unseen or "they are not files here"}; give "namespace": {{"weights": "v1"}}, '
            "with a new text for each version"
        )


def _by_tier(write: object) -> Mapping[str, Any]:
    return write if isinstance(write, Mapping) else {"device": write}


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


def _check_one_size(given: Mapping[str, Any]) -> None:
    for tier in BELOW:
        if isinstance(given.get(tier), list | tuple):
            raise Misuse(
                f"{tier} = {given[tier]!r}: all layers of this model keep their KV alike; give one "
                'size, like "64 GiB"'
            )


@contextmanager
def _for_one_of(replicas: int) -> Iterator[None]:
    """Says in an error that sizes are for one of a machine's replicas."""
    try:
        yield
    except (Misuse, TooLarge) as error:
        if replicas == 1:
            raise
        many = f"sizes in bytes are for one of {replicas} replicas on this machine"
        raise type(error)(f"{error}; {many}") from None


def _share(tier: str, size: Any, known: Facts, replicas: int) -> Any:
    """Returns what each of some replicas has of a machine's memory or disks.

    A number of blocks, and what is given for each rank, is for each replica.
    """
    if known.groups is not None and isinstance(size, list | tuple):
        return [_share(tier, one, known, replicas) for one in size]
    size = counted(size)
    if not isinstance(size, str) or parse_size(tier, size).per == "rank":
        return size
    nbytes, layout = parse_size(tier, size).nbytes, known.layout
    blocks = int(in_blocks(tier, size, layout)) // replicas
    if not blocks and nbytes:
        raise Misuse(
            f"{tier} = {size!r}: smaller than one block of {layout.block_bytes:,} bytes for each "
            f"of {replicas} replicas on this machine; give more"
        )
    # Of several groups of layers each has another share, which is found from the bytes.
    return blocks if known.groups is None else f"{nbytes // replicas // 1024} KiB"


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
