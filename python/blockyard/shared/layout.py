"""What a block is in bytes: known to the yard and to every crane."""

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, MISSING, asdict, dataclass, fields
from types import MappingProxyType
from typing import (
    Any,
    Final,
    Literal,
    NamedTuple,
    NoReturn,
    Self,
    TypeAlias,
    TypedDict,
    Unpack,
    get_args,
)

from blockyard._core import Misuse
from blockyard.shared.models import HYBRIDS, MODELS, Heads
from blockyard.shared.validate import integer, nearest, one_of, shown

__all__ = [
    "BELOW",
    "TIERS",
    "WIDTHS",
    "Hello",
    "KVLayout",
    "LowerTier",
    "Order",
    "Overrides",
    "Plane",
    "TierName",
]

WIDTHS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "float32": 4,
        "bfloat16": 2,
        "float16": 2,
        "float8_e4m3": 1,
        "float8_e5m2": 1,
        "int8": 1,
        "uint8": 1,
    }
)
"""Bytes per value. Types are names here: NumPy lacks half of them, and only bytes are moved."""

LowerTier: TypeAlias = Literal["host", "disk", "remote"]
"""The name of a tier below the device."""

TierName: TypeAlias = Literal["device", "host", "disk", "remote"]
"""The name of a tier."""

BELOW: Final[tuple[LowerTier, ...]] = ("host", "disk", "remote")
"""The names of the tiers below the device, from the top."""

TIERS: Final[tuple[TierName, ...]] = ("device", *BELOW)
"""The names of all tiers, from the device down: configurations, plans and cranes use them."""

Order = Literal["page-first", "layer-first"]
"""Whether a block lies on the device in one piece, or in one piece per layer, and per K and V."""


class Hello(NamedTuple):
    """What a crane reports at the handshake."""

    rank: int
    fingerprint: str
    """Fingerprint of the configuration that it was started with."""
    device: int
    """Blocks of its device tier."""
    host: int
    """Blocks of its host tier; 0 for none."""
    layout: str = ""
    """Fingerprint of its layout."""
    disk: int = 0
    """Blocks of its tier below the host; 0 for none."""
    yard: int = 0
    """The number of the yard that it shook hands with; 0 where it was not told."""
    group: int = 0
    """The group of layers whose plans it takes."""
    remote: int = 0
    """Names of blocks in shared stores that it serves; 0 for no store."""


class Overrides(TypedDict, total=False):
    """What of a preset can be overridden: the arguments of `llama` or of `mla`."""

    layers: int
    kv_heads: int
    head_dim: int
    latent: int
    rope: int
    dtype: str
    block_size: int
    ranks: int
    order: Order
    scale_dtype: str | None


@dataclass(frozen=True, slots=True)
class Plane:
    """A part of every block that lies in memory of its own.

    Args:
        name: Unique in its layout.
        pieces: Contiguous pieces of a block. With 1 the device memory is (blocks, piece_bytes),
            else (pieces, blocks, piece_bytes). On the host the pieces always follow one another.
        piece_bytes: Bytes of one piece.
        replicated: Whether every rank has the same bytes: a host keeps them once.
    """

    name: str
    pieces: int
    piece_bytes: int
    replicated: bool = False

    def __post_init__(self) -> None:
        """Checks every field."""
        if not self.name or not isinstance(self.name, str):
            raise Misuse(f"plane name = {shown(self.name)}: must be a non-empty string")
        for name in ("pieces", "piece_bytes"):
            checked = integer(f"{name} of plane {self.name!r}", getattr(self, name))
            object.__setattr__(self, name, checked)
        one_of(f"replicated of plane {self.name!r}", self.replicated, (True, False))

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of this plane, on one rank."""
        return self.pieces * self.piece_bytes


@dataclass(frozen=True, slots=True)
class KVLayout:
    """What a block of KV is in bytes, on each of `ranks` tensor-parallel ranks of one host.

    It is frozen, and any thread may read it.

    Args:
        planes: The parts of a block, as one rank has them.
        block_size: Tokens per block.
        ranks: Ranks that share each block.
        dtype: Name of the values' type, one of `WIDTHS`.
        name: Name of the model, or of the layout.

    Raises:
        Misuse: A value is out of range; it is named.

    Example:
        >>> import blockyard as by
        >>> by.KVLayout.preset("llama-3-8b").block_bytes
        2097152
    """

    planes: tuple[Plane, ...]
    _: KW_ONLY
    block_size: int = 16
    ranks: int = 1
    dtype: str
    name: str = "custom"

    def __post_init__(self) -> None:
        """Checks every field."""
        names = [plane.name for plane in self.planes]
        if not names or len(set(names)) < len(names):
            raise Misuse(f"planes = {names}: give one or more, each with a name of its own")
        for word in ("block_size", "ranks"):
            object.__setattr__(self, word, integer(word, getattr(self, word)))
        _width("dtype", self.dtype)
        if not self.name or not isinstance(self.name, str):
            raise Misuse(f"name = {shown(self.name)}: must be a non-empty string")

    @classmethod
    def llama(  # noqa: PLR0913 - they are the figures of a model
        cls,
        layers: int,
        kv_heads: int,
        head_dim: int,
        *,
        dtype: str = "bfloat16",
        block_size: int = 16,
        ranks: int = 1,
        order: Order = "page-first",
        scale_dtype: str | None = None,
        name: str | None = None,
    ) -> Self:
        """Makes a layout of keys and values per head, the same in every layer.

        Args:
            layers: Layers of the model.
            kv_heads: KV heads of the model. They are divided over the ranks; where there are more
                ranks than heads, each rank holds one, and several hold the same.
            head_dim: Values per head.
            dtype: Type of the values.
            block_size: Tokens per block.
            ranks: Tensor-parallel ranks.
            order: "page-first": one piece. "layer-first": 2 * layers pieces.
            scale_dtype: For quantized values: a second plane holds one scale of this type per K
                and per V, per head and token.
            name: Name of the layout.

        Raises:
            Misuse: A value is out of range, or heads and ranks do not divide.
        """
        layers, kv_heads = integer("layers", layers), integer("kv_heads", kv_heads)
        head_dim, block_size = integer("head_dim", head_dim), integer("block_size", block_size)
        ranks = integer("ranks", ranks)
        if kv_heads % ranks and ranks % kv_heads:
            raise Misuse(
                f"kv_heads = {kv_heads} on ranks = {ranks}: one must be a multiple of the other"
            )
        rows = block_size * max(kv_heads // ranks, 1)
        piece = rows * head_dim * _width("dtype", dtype)
        planes = [_plane("kv", order, 2 * layers, piece)]
        if scale_dtype is not None:
            piece = rows * _width("scale_dtype", scale_dtype)
            planes.append(_plane("scales", order, 2 * layers, piece))
        return cls(
            tuple(planes),
            block_size=block_size,
            ranks=ranks,
            dtype=dtype,
            name=name or f"llama-{layers}x{kv_heads}x{head_dim}",
        )

    @classmethod
    def mla(  # noqa: PLR0913 - they are the figures of a model
        cls,
        layers: int,
        latent: int = 512,
        rope: int = 64,
        *,
        dtype: str = "bfloat16",
        block_size: int = 16,
        ranks: int = 1,
        order: Order = "page-first",
        name: str | None = None,
    ) -> Self:
        """Makes a layout of multi-head latent attention: one plane, the same on every rank.

        Args:
            layers: Layers of the model.
            latent: Values of the compressed KV per token and layer.
            rope: Values of the shared rotary key behind it.
            dtype: Type of the values.
            block_size: Tokens per block.
            ranks: Tensor-parallel ranks; each holds all of it on its device.
            order: "page-first": one piece. "layer-first": one piece per layer.
            name: Name of the layout.

        Raises:
            Misuse: A value is out of range.
        """
        layers, latent = integer("layers", layers), integer("latent", latent)
        rope, block_size = integer("rope", rope, least=0), integer("block_size", block_size)
        piece = block_size * (latent + rope) * _width("dtype", dtype)
        return cls(
            (_plane("latent", order, layers, piece, replicated=True),),
            block_size=block_size,
            ranks=ranks,
            dtype=dtype,
            name=name or f"mla-{layers}x{latent}+{rope}",
        )

    @classmethod
    def state(  # noqa: PLR0913 - they are the figures of a model
        cls,
        layers: int,
        conv: int,
        ssm: int = 0,
        *,
        dtype: str = "bfloat16",
        ssm_dtype: str | None = None,
        block_size: int = 16,
        ranks: int = 1,
        order: Order = "page-first",
        name: str | None = None,
    ) -> Self:
        """Makes a layout of recurrent states: a block is the state of all layers after its tokens.

        Args:
            layers: Layers with a state.
            conv: Values that the convolution of a layer keeps, of all ranks: (kernel - 1) inputs.
            ssm: Values of the recurrent state of a layer, of all ranks; 0 for a convolution alone.
            dtype: Type of the convolution's values.
            ssm_dtype: Type of the recurrent state's; None for `dtype`.
            block_size: Tokens per block, as that of the model's other layers.
            ranks: Tensor-parallel ranks, over which the values are divided.
            order: "page-first": one piece per plane. "layer-first": one piece per layer.
            name: Name of the layout.

        Raises:
            Misuse: A value is out of range, or values and ranks do not divide.
        """
        layers, ranks = integer("layers", layers), integer("ranks", ranks)
        parts = {"conv": (integer("conv", conv), dtype)}
        if integer("ssm", ssm, least=0):
            parts["ssm"] = (integer("ssm", ssm), dtype if ssm_dtype is None else ssm_dtype)
        for word, (values, _) in parts.items():
            if values % ranks:
                raise Misuse(f"{word} = {values} on ranks = {ranks}: it must be a multiple of them")
        planes = [
            _plane(word, order, layers, values // ranks * _width(f"dtype of {word}", type_))
            for word, (values, type_) in parts.items()
        ]
        return cls(
            tuple(planes),
            block_size=block_size,
            ranks=ranks,
            dtype=dtype,
            name=name or f"state-{layers}x{conv}+{ssm}",
        )

    @classmethod
    def preset(cls, name: str, **overrides: Unpack[Overrides]) -> Self:
        """Makes the layout of a well-known model; `shared.models` has the figures and sources.

        Args:
            name: For example "llama-3-8b".
            overrides: What differs from the preset: dtype, ranks, order, or any figure.

        Raises:
            Misuse: A name is unknown; the nearest is offered.
        """
        given: object = name
        model = MODELS.get(given) if isinstance(given, str) else None
        if isinstance(given, str) and given in HYBRIDS:
            raise Misuse(
                f"preset {name!r}: its layers keep KV in {len(HYBRIDS[name])} ways; give "
                f"Groups.preset({name!r}), or the layout of one of these groups"
            )
        if model is None:
            _unknown(f"preset {shown(name)}", name, MODELS)
        heads = isinstance(model, Heads)
        known = [*model._fields, "dtype", "block_size", "ranks", "order"]
        for word in overrides:
            if word not in known + ["scale_dtype"] * heads:
                _unknown(f"{word!r} in preset {name!r}", word, known)
        figures: dict[str, Any] = {**model._asdict(), **overrides, "name": name}
        return cls.llama(**figures) if heads else cls.mla(**figures)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Makes a layout from what `to_mapping` gave, or from {"preset": name} and overrides.

        Args:
            mapping: The fields by name, or a preset's name and the arguments of its maker.

        Raises:
            Misuse: A field is unknown, missing or out of range; it is named.
        """
        if "preset" in mapping:
            given = dict(mapping)
            return cls.preset(given.pop("preset"), **given)
        planes = mapping.get("planes")
        if not isinstance(planes, Iterable) or not all(isinstance(one, Mapping) for one in planes):
            raise Misuse(f"planes = {shown(planes)} in a layout: give a list of mappings")
        parts = tuple(Plane(**_given(Plane, "a plane", plane)) for plane in planes)
        return cls(**_given(cls, "a layout", mapping) | {"planes": parts})

    def to_mapping(self) -> dict[str, Any]:
        """Returns plain values, for TOML, JSON and `from_mapping`."""
        return asdict(self) | {"planes": [asdict(plane) for plane in self.planes]}

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the whole layout, in hex."""
        return fingerprint_of(self.to_mapping())

    @property
    def block_bytes(self) -> int:
        """Bytes of one block on one rank."""
        return sum(plane.block_bytes for plane in self.planes)

    @property
    def host_block_bytes(self) -> int:
        """Bytes of one block on the host of all ranks; replicated planes count once."""
        return sum(
            plane.block_bytes * (1 if plane.replicated else self.ranks) for plane in self.planes
        )

    def device_blocks(self, gib: float) -> int:
        """Returns how many blocks fit into `gib` GiB of one rank's device."""
        return int(gib * 2**30) // self.block_bytes

    def host_blocks(self, gib: float, *, per: Literal["host", "rank"] = "host") -> int:
        """Returns how many blocks fit into the host's memory.

        Args:
            gib: Memory in GiB.
            per: Whether it is that of the whole "host", or of each "rank".
        """
        return int(gib * 2**30) * (self.ranks if per == "rank" else 1) // self.host_block_bytes


def fingerprint_of(values: Mapping[str, Any]) -> str:
    """The SHA-256 of plain values, in hex."""
    import json  # noqa: PLC0415 - only who compares processes needs it
    from hashlib import sha256  # noqa: PLC0415 - likewise; it loads OpenSSL

    return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _width(name: str, dtype: object) -> int:
    if not isinstance(dtype, str) or dtype not in WIDTHS:
        raise Misuse(
            f"{name} = {shown(dtype)}: did you mean {nearest(shown(dtype), WIDTHS)!r}? "
            f"A dtype is one of these names: {', '.join(WIDTHS)}"
        )
    return WIDTHS[dtype]


def _plane(name: str, order: str, pieces: int, size: int, *, replicated: bool = False) -> Plane:
    whole = one_of("order", order, get_args(Order)) == "page-first"
    return Plane(name, 1 if whole else pieces, pieces * size if whole else size, replicated)


def _given(kind: type[Plane | KVLayout], what: str, mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Checks that a mapping has all names that are needed, and returns its values by name."""
    known = [field.name for field in fields(kind) if field.name != "_"]
    for name in mapping:
        if name not in known:
            _unknown(f"{name!r} in {what}", name, known)
    for field in fields(kind):
        if field.name in known and field.default is MISSING and field.name not in mapping:
            raise Misuse(f"{field.name} is missing in {what}")
    return dict(mapping)


def _unknown(what: str, name: object, known: Iterable[str]) -> NoReturn:
    raise Misuse(f"there is no {what}: did you mean {nearest(shown(name), known)!r}?")
