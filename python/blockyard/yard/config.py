"""One frozen configuration for the yard and every crane."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NamedTuple,
    Self,
    TypeAlias,
    TypedDict,
    get_args,
)

from blockyard._core import KEY_ENCODINGS, Misuse
from blockyard.shared.layout import BELOW, TIERS, KVLayout, fingerprint_of
from blockyard.shared.plan import MOST_GROUP, MOST_YARD, WIRE, draw_yard
from blockyard.shared.validate import file, integer, known, nearest, one_of, shown
from blockyard.yard.by_tier import ByTier, by_tier, of_tier, tiers_below
from blockyard.yard.store_urls import store_urls
from blockyard.yard.tier_sizes import in_blocks

if TYPE_CHECKING:
    from blockyard.shared.copy_tuning import CopyTuning
    from blockyard.shared.endpoints import Carrier

__all__ = ["BlockCosts", "Config", "ConfigKeywords", "Eviction", "HostCopies"]


Eviction: TypeAlias = Literal["recency", "learned", "heap"]
"""Which blocks are evicted first."""
_ORDERS: Final = {"lru": "recency"}
"""Other names of the orders."""
HostCopies: TypeAlias = Literal["first", "last"]
"""When host copies of blocks that are on the device too are evicted."""
Write: TypeAlias = Literal["on-evict", "through", "second-touch"]
"""Which blocks are copied down from a tier."""


_SMALL_SPARE: Final = 8
"""So many slots may be kept free on any device."""


class _Default(int):
    """A default that another number may replace."""


class BlockCosts(NamedTuple):
    """Time to load and to compute one block, in nanoseconds.

    They are measured or looked up once and frozen here, so that every rank and every replay
    decides alike.
    """

    load: int
    """The time to copy one block up to the device."""
    compute: int
    """The time to compute the KV of one block at the start of a sequence."""
    attend: int = 0
    """By how much that grows for each block before it."""
    disk: int | None = None
    """The time to copy one block up to the device from the disk; None for `load`."""
    remote: int | None = None
    """The time to copy one block up to the device from a store; None for `disk`."""


class ConfigKeywords(TypedDict, total=False):
    """The fields of `Config` but layout, stores and peers, as keywords."""

    ranks: int
    block_size: int
    device: int | str
    engine: int | str
    host: int | str
    disk: int | str
    remote: int | str
    remote_writes: bool
    carrier: "Carrier"
    null_slots: int
    eviction: Eviction
    host_copies: HostCopies | None
    write: Write | Mapping[str, Write]
    ghosts: int | None
    spare: int | None
    ahead: int | Mapping[str, int] | None
    deadline: int | Mapping[str, int] | None
    block_costs: BlockCosts | tuple[int, ...] | None
    copy_tuning: "CopyTuning | Mapping[str, int] | None"
    recompute: bool
    copy_retries: int
    groups: int
    linked: bool
    group: int
    namespace: Mapping[str, str | os.PathLike[str]] | None
    key_hash: Literal["sha256", "xxh3"]
    keyed: Sequence[str]
    record: str | os.PathLike[str] | None
    yard: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that the yard and the cranes must agree on.

    It is frozen, and any thread may read it.

    Sizes of tiers are blocks, or memory as text where a layout says what a block takes: "64 GiB",
    per rank for the device and per host for the tiers below it, or "64 GiB/rank". The units are
    KiB, MiB, GiB, TiB, MB and GB. `block_size` and `ranks` are the layout's where there is one.

    Args:
        device: Size of the device tier, null slots included.
        engine: In place of `device`, the number of blocks of an engine that allocates them itself.
        host: Size of the host tier; 0 for none.
        disk: Size of the tier below the host; 0 for none. There need be no host above it.
        remote: How many blocks of shared stores the yard knows by name, of some 150 bytes each; 0
            for none. It is keyed.
        stores: The URLs of these stores, in order, without passwords. They may differ between
            ranks.
        remote_writes: Whether blocks are copied down to `remote`: False where there are peers
            alone, to whom nothing is written.
        peers: Where prefill sides listen whose offers are taken over, as `host:port`. They may
            differ between ranks.
        secret_file: A file with the secret that these know, too. It may differ between ranks.
        carrier: What brings the bytes of peers: "tcp", or "nixl", which reads them out of their
            memory.
        layout: The bytes of a block. Without one there is bookkeeping only.
        ranks: Cranes that report the outcome of every flight.
        block_size: Tokens per block.
        null_slots: Leading device slots that pad block tables and are never given out.
        eviction: Which leaf block is evicted next: "recency", the least recently used one;
            "learned", the least likely to be used again soon, learned from uses and hints; "heap",
            the one of the lowest priority.
        host_copies: When host copies of blocks that are on the device too are evicted: "first",
            once the device has used the block again, or "last". None: "first" where eviction is
            "learned".
        write: Blocks to copy down from the device: "on-evict", the next victims ahead of need;
            "through", every block when it is published; "second-touch", victims that were used more
            than once. From the host down it is "on-evict". Or a mapping of both, by the tier that
            blocks are copied from: from the host, "through" means every block that came there.
        ghosts: Keys remembered after their block was dropped; None for four per slot with
            "second-touch", 1.75 with "learned", else none. Without, misses of evicted blocks count
            as unseen.
        spare: Slots of the device that each step keeps free ahead of need, so that a begin evicts
            less; None for a 512th of the device, 512 at most. It evicts no block that a tier below
            could still get a copy of. A 64th is the most, or 8 where that is more; 0 keeps none.
        ahead: While fewer than this many slots of a tier are free, beside `spare`, this many of its
            next victims have a copy below; with "through" the most blocks in flight. It is for each
            tier that has one below it, or a mapping by tier. None for a sixteenth of the tier, at
            most 4,096, and below the device for as many as there, up to a quarter; for a quarter
            where host copies go first; and from the largest begin on for as many as it takes, where
            that is more. What is behind those is copied too then, while nothing else goes down;
            where the tier below is full, up to half of the tier. 0 copies nothing ahead.
        deadline: Ticks after which the end of a flight counts as unknown; None for no deadline. Or
            a mapping by the lower of the tiers that a flight goes between: "device" within the
            device.
        block_costs: A prefix is loaded only where that is faster than computing it. None loads all.
        copy_tuning: How copies between a GPU and its host are best made, as `calibrate` found it;
            None for the defaults.
        recompute: Whether the engine can recompute KV that was lost.
        copy_retries: How often a failed copy down is retried. After that, the keep of a kept block
            is broken, and no copy of another block is made ahead of need any more.
        groups: Groups of layers; only 1 is supported. For a model with several, `GroupConfigs`
            makes one configuration for each.
        linked: Whether each block stands on the one before it, so that a row of blocks is a prefix.
            False for a group of layers that keeps parts of a sequence alone.
        group: The number of the group of layers, 0 for the first of full attention.
        namespace: Names that are part of every key: model, weights, dtype, layout, parallel. A
            path, as of `weights`, stands for the content of the weights there.
        key_hash: "sha256", or "xxh3" where all tenants trust each other.
        keyed: Tiers whose plans carry the keys of their blocks; the device cannot be one.
        disk_reclaim: Whether a disk that has no room removes other identities under its path, as
            `DiskTier` describes. It may differ between ranks.
        record: A file to record requests in, for a replay: 8 bytes of each key, lengths and times,
            and no token. It is appended to. It may differ between ranks.
        yard: The number of the yard in plans and outcomes, drawn by `named`; None to draw it when
            a `KVCache` is made. Another yard has another number: write it in no file. Replicas
            have the same.

    Raises:
        Misuse: A value is out of range, or a name is unknown; the nearest known is offered.
        Unavailable: There are no weights at a path of `namespace`, or they cannot be read.
    """

    device: int | str = _Default()
    engine: int | str = _Default()
    host: int | str = 0
    disk: int | str = 0
    remote: int | str = 0
    stores: Sequence[str] = ()
    remote_writes: bool = True
    peers: Sequence[str] = ()
    secret_file: str | os.PathLike[str] | None = None
    carrier: "Carrier" = "tcp"
    layout: KVLayout | None = None
    ranks: int = _Default(1)
    block_size: int = _Default(16)
    null_slots: int = 1
    eviction: Eviction = "recency"
    host_copies: HostCopies | None = None
    write: ByTier[Write] | Mapping[str, Write] = "on-evict"
    ghosts: int | None = None
    spare: int | None = None
    ahead: ByTier[int] | Mapping[str, int] | None = None
    deadline: ByTier[int] | Mapping[str, int] | None = None
    block_costs: BlockCosts | tuple[int, ...] | None = None
    copy_tuning: "CopyTuning | Mapping[str, int] | None" = None
    recompute: bool = True
    copy_retries: int = 3
    groups: int = 1
    linked: bool = True
    group: int = 0
    namespace: Mapping[str, str] | tuple[tuple[str, str], ...] | None = None
    key_hash: Literal["sha256", "xxh3"] = "sha256"
    keyed: tuple[str, ...] = ()
    disk_reclaim: bool = False
    record: str | os.PathLike[str] | None = None
    yard: int | None = None

    def __post_init__(self) -> None:
        """Turns sizes into blocks, and checks values that the core does not check."""
        settle = object.__setattr__
        layout = self.layout
        if layout is not None and not isinstance(layout, KVLayout):
            raise Misuse(f"layout = {shown(layout)}: give a KVLayout, a mapping, or a preset")
        for name in ("block_size", "ranks"):
            given = getattr(self, name)
            own = given if layout is None else getattr(layout, name)
            if given != own and not isinstance(given, _Default):
                raise Misuse(f"{name} = {shown(given)}, but the layout has {own}: give it there")
            settle(self, name, int(own) if isinstance(own, _Default) else own)
        for tier, blocks in _sizes(self).items():
            settle(self, tier, blocks)
        _check_groups(self.groups)
        none = {field.name for field in fields(self) if field.default is None}
        for name, least in _LEAST.items():
            if getattr(self, name) is not None or name not in none:
                settle(self, name, integer(name, getattr(self, name), least=least))
        _check_spare(self)
        for name, words in _WORDS.items():
            settle(self, name, one_of(name, getattr(self, name), words))
        settle(self, "eviction", known("eviction", self.eviction, get_args(Eviction), _ORDERS))
        for name, form in _FORMS.items():
            if getattr(self, name) is not None or name not in none:
                settle(self, name, form(getattr(self, name)))
        # A place in a store is a name, which follows from the key.
        remote = ["remote"] if self.remote and "remote" not in self.keyed else []
        settle(self, "keyed", (*self.keyed, *remote))

    @classmethod
    def of(cls, mapping: Mapping[str, Any]) -> Self:
        """Makes one from plain values; a layout is a mapping too, or the name of a preset.

        Args:
            mapping: The fields by name, of which only `device` or `engine` must be there.

        Raises:
            Misuse: A name is unknown, both of these are missing, or a value is out of range.
        """
        known = [field.name for field in fields(cls)]
        if not isinstance(mapping, Mapping):
            raise Misuse(f"a configuration is a mapping of names to values, not {shown(mapping)}")
        for name in mapping:
            if name not in known:
                near = nearest(str(name), known)
                raise Misuse(f"there is no {shown(name)} in a Config: did you mean {near!r}?")
        values = dict(mapping)
        if "device" not in values and "engine" not in values:
            raise Misuse("device is missing: give the number of blocks on the device")
        layout = values.get("layout")
        if isinstance(layout, str):
            values["layout"] = KVLayout.preset(layout)
        elif isinstance(layout, Mapping):
            values["layout"] = KVLayout.from_mapping(layout)
        return cls(**values)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a TOML file: its table `blockyard`, or the whole file.

        Args:
            path: The file.

        Raises:
            Misuse: It cannot be read or is no TOML, or as in `of`.
        """
        import tomllib  # noqa: PLC0415 - most configurations are made in Python
        from pathlib import Path  # noqa: PLC0415 - likewise

        try:
            with Path(path).open("rb") as file:
                table = tomllib.load(file)
        except RecursionError as error:
            raise Misuse(f"{path} is no configuration: its values are nested too deep") from error
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise Misuse(f"{path} is no configuration: {error}") from error
        return cls.of(table.get("blockyard", table))

    def to_mapping(self) -> dict[str, Any]:
        """Returns plain values, for `of`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.layout is not None:
            values["layout"] = self.layout.to_mapping()
        if self.namespace is not None:
            values["namespace"] = dict(self.namespace)
        if self.block_costs is not None:
            values["block_costs"] = _counts(self.block_costs)
        for name in _BY_TIER:
            if isinstance(values[name], tuple):
                values[name] = dict(values[name])
        if self.copying is not None:
            values["copy_tuning"] = asdict(self.copying)
        values["keyed"], values["stores"] = list(self.keyed) or None, list(self.stores) or None
        values["device" if self.engine else "engine"] = None
        # Of one group of layers nothing says so, nor that there are no stores: its folders and
        # fingerprints are those of before.
        values |= {"linked": None if self.linked else False, "group": self.group or None}
        values |= {"remote": self.remote or None, "peers": list(self.peers) or None}
        values["remote_writes"] = None if self.remote_writes else False
        values["carrier"] = None if self.carrier == "tcp" else self.carrier
        return {name: value for name, value in values.items() if value is not None}

    def named(self) -> Self:
        """Returns it with a random number as `yard`, for a scheduler that starts."""
        return replace(self, yard=draw_yard())

    @property
    def identity(self) -> dict[str, str]:
        """The identity of KV on a disk, beside the layout: namespace, keys, group of layers.

        It is for `DiskTier`.
        """
        keys = f"{self._encoding}, blocks of {self.block_size} tokens"
        group = {"group of layers": str(self.group)} if self.group else {}
        return {**dict(self.namespace or ()), "keys": keys, **group}

    @property
    def _encoding(self) -> str:
        """The key hash, with the version of its encoding where there was an older one."""
        version = KEY_ENCODINGS[self.key_hash]
        return self.key_hash if version == 1 else f"{self.key_hash}, encoding {version}"

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of all but what may differ between ranks, `yard` and tiers' sizes.

        `agree` settles those. Versions whose plans, outcomes or keys differ have others.
        """
        values = self.to_mapping() | {"wire": WIRE, "key_hash": self._encoding}
        for name in (*_OWN, "disk_reclaim", *TIERS):
            values.pop(name, None)
        if self.engine:
            values["engine"] = True
        return fingerprint_of(values)

    @property
    def device_blocks(self) -> int:
        """Blocks of the device, also if the engine allocates them."""
        return int(self.engine or self.device)

    @property
    def remote_blocks(self) -> int:
        """Names of blocks in shared stores."""
        return int(self.remote)

    @property
    def host_blocks(self) -> int:
        """Blocks of the host."""
        return int(self.host)

    @property
    def disk_blocks(self) -> int:
        """Blocks of the tier below the host."""
        return int(self.disk)

    def blocks_of(self, tier: str) -> int:
        """Blocks of a tier, by its name."""
        return self.device_blocks if tier == TIERS[0] else int(getattr(self, tier))

    @property
    def known_tiers(self) -> tuple[str, ...]:
        """Tiers that there are, and that know whose blocks they have: what `keyed` names."""
        return tuple(filter(self.blocks_of, self.keyed))

    def ahead_of(self, tier: str) -> int:
        """`ahead` of a tier, or its initial default; 0 if no tier below has slots."""
        below = TIERS[TIERS.index(tier) + 1 : None if self.remote_writes else -1]
        if not any(map(self.blocks_of, below)):
            return 0
        # Where copies go first, a victim that has none in time is lost, though it had one before.
        default = min(self.blocks_of(tier) // (4 if self.copies_first else 16), 4096)
        if tier != TIERS[0]:
            # Blocks come down from above as fast, so as many victims are needed here.
            above = self.ahead_of(TIERS[TIERS.index(tier) - 1])
            default = max(default, min(above, self.blocks_of(tier) // 4))
        return default if self.ahead is None else of_tier(self.ahead, tier, default)

    @property
    def spare_blocks(self) -> int:
        """`spare`, or its default; 0 if the engine allocates the device's blocks."""
        if self.engine:
            return 0
        return min(self.device_blocks // 512, 512) if self.spare is None else self.spare

    def gives_ahead(self, tier: str) -> bool:
        """Whether `ahead` of a tier was given: it grows with the largest begin where it was not."""
        return self.ahead is not None and of_tier(self.ahead, tier, None) is not None

    @property
    def copies_first(self) -> bool:
        """Whether host copies of blocks that the device has used again are evicted first."""
        return (self.host_copies or ("first" if self.eviction == "learned" else "last")) == "first"

    @property
    def ahead_blocks(self) -> int:
        """`ahead` of the device, or its initial default; 0 if no tier below has slots."""
        return self.ahead_of("device")

    def write_of(self, tier: str) -> Write:
        """`write` of the tier that blocks are copied from."""
        if isinstance(self.write, str):
            return self.write if tier == "device" else "on-evict"
        return of_tier(self.write, tier, "on-evict")

    def deadline_of(self, tier: str) -> int | None:
        """`deadline` of flights whose lower tier is this one."""
        return of_tier(self.deadline, tier, None)

    @property
    def copying(self) -> "CopyTuning | None":
        """`copy_tuning`, as cranes take it."""
        return None if self.copy_tuning is None else _copy_tuning(self.copy_tuning)

    def core(self) -> dict[str, Any]:
        """Returns the arguments of the core."""
        others = {"layout", "ranks", "ahead", "deadline", "copy_tuning", "disk_reclaim"}
        others |= {*_OWN}
        values = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in others
        }
        if self.namespace is not None:
            values["namespace"] = dict(self.namespace)
        if self.block_costs is not None:
            values["block_costs"] = _counts(self.block_costs)
        del values["device" if self.engine else "engine"]
        values["write"], *values["writes_below"] = map(self.write_of, TIERS[:-1])
        return values


_OWN: Final = ("record", "yard", "stores", "peers", "secret_file", "carrier")
"""What may differ between ranks, and the core does not know."""
_LEAST = {
    "block_size": 1,
    "ranks": 1,
    "null_slots": 0,
    "ghosts": 0,
    "spare": 0,
    "copy_retries": 0,
    "groups": 0,
}


def _check_groups(given: object) -> None:
    """Refuses groups of layers themselves, which several configurations are made of."""
    if isinstance(given, Iterable):
        raise Misuse(
            f"groups = {shown(given)}: a Config is of one group of layers; for a model with "
            "several give GroupConfigs(groups, engine=…), over an engine that allocates its "
            "blocks itself"
        )


def _least(least: int) -> Callable[[str, object], int]:
    return lambda name, given: integer(name, given, least=least)


_WORDS: dict[str, tuple[str | bool, ...]] = {
    "key_hash": ("sha256", "xxh3"),
    "recompute": (True, False),
    "linked": (True, False),
    "disk_reclaim": (True, False),
    "remote_writes": (True, False),
}


_COSTS: Final = range(2, len(BlockCosts._fields) + 1)
"""How many numbers `block_costs` may have."""


def _block_costs(given: object) -> BlockCosts:
    """Whole numbers."""
    if not isinstance(given, tuple | list) or len(given) not in _COSTS:
        raise Misuse(f"block_costs = {shown(given)}: give (load, compute, attend), in ns a block")
    named = zip(BlockCosts._fields, given, strict=False)
    return BlockCosts(
        *(
            None
            if value is None and name in BELOW
            else integer(f"block_costs: {name}", value, least=0)
            for name, value in named
        )  # type: ignore[arg-type]
    )


def _counts(block_costs: Sequence[int | None]) -> list[int]:
    """As plain numbers, without the last ones where they are missing."""
    load, *own, disk, remote = block_costs
    counts = [load, *own, disk if disk is not None or remote is None else load, remote]
    return [count for count in counts if count is not None]


def _namespace(given: object) -> tuple[tuple[str, str], ...]:
    from blockyard.shared.weights import namespace  # noqa: PLC0415 - many caches have none

    return namespace(given)


def _peers(given: object) -> tuple[str, ...]:
    if given == ():
        return ()
    from blockyard.shared.endpoints import endpoints  # noqa: PLC0415 - many caches have none

    return endpoints(given)


def _carrier(given: object) -> object:
    if given == "tcp":
        return "tcp"
    from blockyard.shared.endpoints import Carrier  # noqa: PLC0415 - most have tcp

    return one_of("carrier", given, get_args(Carrier))


def _copy_tuning(given: object) -> "CopyTuning":
    from blockyard.shared.copy_tuning import CopyTuning  # noqa: PLC0415 - only a GPU needs it

    return CopyTuning.of(given)


def _sizes(config: Config) -> dict[str, int | str]:
    """Blocks of the tiers that were given; a default stays one, so that a copy may have others."""
    sizes = {tier: getattr(config, tier) for tier in ("engine", *TIERS)}
    given = {tier: size for tier, size in sizes.items() if not isinstance(size, _Default)}
    if ("device" in given) is ("engine" in given):
        raise Misuse(
            f"device = {shown(config.device)}, engine = {shown(config.engine)}: give device, the "
            "size of the tier; or engine, the number of blocks that an engine allocates itself"
        )
    blocks = {tier: in_blocks(tier, size, config.layout) for tier, size in given.items()}
    if "engine" in blocks:
        integer("engine", blocks["engine"])
    elif config.linked is False:
        raise Misuse(
            "linked = False, with a device of its own: blocks there stand on each other; give "
            "engine=, the blocks of an engine that allocates them itself, or leave linked out"
        )
    return blocks


def _check_spare(config: Config) -> None:
    """Refuses more than a 64th of the device, as the core does, or any where it is an engine's."""
    spare, most = config.spare or 0, max(config.device_blocks // 64, _SMALL_SPARE)
    if spare and config.engine:
        raise Misuse(
            f"spare = {spare}: an engine that allocates its blocks itself frees them itself: leave "
            "spare out"
        )
    if spare > most:
        raise Misuse(
            f"spare = {spare}: a slot that is kept free caches no block; give {most} at most, a "
            f"64th of the {config.device_blocks} slots of the device, or {_SMALL_SPARE}"
        )


_BY_TIER: dict[str, tuple[Sequence[str], Callable[[str, object], object]]] = {
    "ahead": (TIERS[:-1], _least(0)),
    "deadline": (TIERS, _least(1)),
    "write": (TIERS[:-1], lambda name, given: one_of(name, given, get_args(Write))),
}
_FORMS: dict[str, Callable[[object], object]] = {
    "host_copies": lambda given: known("host_copies", given, get_args(HostCopies)),
    "keyed": partial(tiers_below, "keyed"),
    "block_costs": _block_costs,
    "copy_tuning": _copy_tuning,
    "namespace": _namespace,
    "record": partial(file, "record"),
    "stores": store_urls,
    "peers": _peers,
    "secret_file": partial(file, "secret_file"),
    "carrier": _carrier,
    "yard": partial(integer, "yard", most=MOST_YARD),
    "group": partial(integer, "group", least=0, most=MOST_GROUP),
    **{name: partial(by_tier, name, tiers, check) for name, (tiers, check) in _BY_TIER.items()},
}
