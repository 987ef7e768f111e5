"""The configurations of a hybrid model: one for each group of layers, with its share of memory."""

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from math import ceil
from numbers import Real
from typing import Any, Final, NamedTuple

from blockyard._core import BlockyardError, Misuse, TooLarge
from blockyard.shared.groups import ChunkedAttention, Full, Group, Groups
from blockyard.shared.layout import BELOW, LowerTier
from blockyard.shared.sizes import Size, counted, parse_size, size_text
from blockyard.shared.validate import integer, shown
from blockyard.yard.config import Config

__all__ = ["GroupConfigs", "memory_of_all", "rooms_of"]

_OWN: Final = {
    "device": "several groups need engine=, the blocks of an engine that allocates them itself; "
    "on a device of Blockyard's own there is one group so far",
    "layout": "each group has its own: Full(layout)",
    "block_size": "give it in the layout of each group",
    "ranks": "give it in the layout of each group",
    "linked": "it follows from the groups",
    "group": "it follows from the groups",
}
"""Keywords of a configuration that no caller gives here, and what to give."""
_CHECKPOINTS: Final = 2
"""Checkpoints of a sequence for which a group has room at least."""
_MOST: Final = 1e100
_UNLIKE: Final = 1_000_000
"""How many times one share of a split may be another."""


class _Share(NamedTuple):
    """What a group takes of a tier."""

    block_bytes: int
    """Bytes of a block, over all ranks."""
    weight: Fraction
    """Its share of the memory."""
    least: int
    """The fewest blocks that are of use."""
    why: str
    """What these are for."""
    refusal: type[BlockyardError] = Misuse
    """The error where there are fewer."""


class GroupConfigs:
    """The configuration of each group of layers of a hybrid model.

    The first is of the first group of full attention; then come the others, in the engine's order.
    Each is for a `KVCache` and a crane of its own. The memory of a tier is divided so that all
    groups have room for as many sequences: for each one the blocks of `typical` tokens, and of
    further groups what two of its checkpoints need. It is never changed, and any thread may read
    it.

    Args:
        groups: The groups, in the engine's order.
        engine: The number of blocks of the engine.
        host: The memory of all groups, as in `Config`, such as "64 GiB"; or the size for each
            group, in the order of `groups`: blocks or memory.
        disk: Likewise.
        remote: Names of blocks in shared stores that each group remembers; or a number for each
            group, in the order of `groups`.
        typical: Tokens of a typical sequence.
        split: The share of the memory of each group, in the order of `groups`, in place of the
            shares that follow from `typical`; they need not add up to 1.
        max_model_len: The longest sequence, for which each group must have room; None for any.
        more: Further fields of every `Config`. Only the first records requests.

    Raises:
        Misuse: As in `Groups` and `Config`; a size is no memory; `split` does not fit; or a group
            has no room for two checkpoints. The message names the group, and the least size.
        TooLarge: A group has no room for a sequence of `max_model_len` tokens.

    Example:
        >>> import blockyard as by
        >>> half = by.KVLayout.llama(layers=18, kv_heads=8, head_dim=64)
        >>> groups = [by.SlidingWindow(half, tokens=128), by.Full(half)]
        >>> configs = by.GroupConfigs(groups, engine=4096, host="8 GiB")
        >>> [config.host for config in configs]
        [14122, 441]
    """

    groups: Groups
    """The groups, the first of full attention first."""
    configs: tuple[Config, ...]
    """The configuration of each of these."""
    __slots__ = ("configs", "groups")

    def __init__(  # noqa: PLR0913 - keywords
        self,
        groups: Iterable[Group],
        *,
        engine: int | str,
        host: int | str | Sequence[int | str] = 0,
        disk: int | str | Sequence[int | str] = 0,
        remote: int | Sequence[int] = 0,
        typical: int = 8192,
        split: Sequence[float] | None = None,
        max_model_len: int | None = None,
        **more: object,
    ) -> None:
        for name, help_ in _OWN.items():
            if name in more:
                raise Misuse(f"{name} = {shown(more[name])}: {help_}")
        self.groups = groups = Groups(groups)
        blocks = counted(engine) if isinstance(engine, str) else engine
        blocks = integer("engine", blocks)
        typical = integer("typical", typical)
        longest = None if max_model_len is None else integer("max_model_len", max_model_len)
        shares = _shares(groups, typical, split, longest)
        sizes: dict[LowerTier, Any] = {"host": host, "disk": disk}
        tiers = {tier: _of_tier(groups, tier, size, shares) for tier, size in sizes.items()}
        # Names take no memory that groups could share.
        names = [remote] * len(groups) if isinstance(remote, int) else remote
        tiers["remote"] = _of_tier(groups, "remote", names, shares)
        made = []
        for number, group in enumerate(groups):
            fields: dict[str, Any] = {**more, "layout": group.layout, "engine": blocks}
            if number:
                fields |= {"linked": False, "group": number, "record": None}
            fields |= {tier: tiers[tier][number] for tier in BELOW}
            made.append(Config(**fields))
        self.configs = tuple(made)
        if len(groups) > 1:
            self._check(shares, sizes, given=split is not None)

    def _check(self, shares: Sequence[_Share], sizes: dict[LowerTier, Any], *, given: bool) -> None:
        """Raises where a group has too little room in both tiers."""
        for number, (config, share) in enumerate(zip(self.configs, shares, strict=True)):
            room = max(config.host_blocks, config.disk_blocks)
            if not room and not any(sizes.values()):
                continue
            if room >= share.least:
                continue
            tier: LowerTier = "host" if config.host_blocks >= config.disk_blocks else "disk"
            if isinstance(sizes[tier], str):
                help_ = f"give {tier}={_least(shares)!r} or more"
                help_ += ", or another split" if given else ""
            else:
                help_ = f"give it {share.least:,} blocks or more"
            raise share.refusal(
                f"{tier} = {shown(sizes[tier])}: {self.groups.name(number)} has {room:,} blocks of "
                f"{size_text(share.block_bytes)} of it, and {share.why} takes {share.least:,}: "
                f"{help_}"
            )

    @property
    def line(self) -> str:
        """The kind, slots and bytes of each group, in one line for the log."""
        return "; ".join(rooms_of(self.groups, self.configs))

    def __len__(self) -> int:
        """Returns how many groups there are."""
        return len(self.configs)

    def __iter__(self) -> Iterator[Config]:
        """Yields the configuration of each group."""
        return iter(self.configs)

    def __getitem__(self, group: int) -> Config:
        """Returns the configuration of a group by its number here: 0 is the first."""
        return self.configs[group]


def rooms_of(groups: Groups, configs: Sequence[Config]) -> list[str]:
    """Returns for each group what messages call it, with its slots and bytes.

    Args:
        groups: The groups.
        configs: The configuration of each.
    """
    said = []
    for number, (config, group) in enumerate(zip(configs, groups, strict=True)):
        nbytes = group.layout.host_block_bytes
        rooms = [
            f"{blocks:,} blocks of {size_text(nbytes)}, {size_text(blocks * nbytes)} of {tier}"
            for tier in BELOW
            if (blocks := config.blocks_of(tier))
        ]
        rooms = rooms or ["nothing below the engine"]
        said.append(f"{groups.name(number)}: {' and '.join(rooms)}")
    return said


def _shares(
    groups: Groups, typical: int, split: Sequence[float] | None, longest: int | None
) -> list[_Share]:
    """Returns what each group takes, the spine first."""
    size = groups.block_size
    last = max(groups.last_boundary(typical), groups.boundary)
    weights = None if split is None else _weights(groups, split)
    shares = []
    for number, group in enumerate(groups):
        whole = isinstance(group, Full)
        point = len(group.needs(last, size))
        # Where a chunk ends it needs nothing, and a block before that all of it.
        weighed = group.most_needed(last, size) if isinstance(group, ChunkedAttention) else point
        takes = -(-typical // size) if whole else max(_CHECKPOINTS * weighed, 1)
        needed: tuple[int, str, type[BlockyardError]] = 1, "a block", Misuse
        if not whole:
            needed = _CHECKPOINTS * point, "two checkpoints", Misuse
        if longest is not None and (most := group.most_needed(longest, size)) > needed[0]:
            needed = most, f"a sequence of max_model_len = {longest:,} tokens", TooLarge
        block = group.layout.host_block_bytes
        weight = Fraction(takes * block) if weights is None else weights[number]
        shares.append(_Share(block, weight, *needed))
    whole_weight = sum(share.weight for share in shares)
    return [share._replace(weight=share.weight / whole_weight) for share in shares]


def _weights(groups: Groups, split: object) -> list[Fraction]:
    """Returns the weights that were given, the spine's first."""
    many = len(groups)
    given = split if isinstance(split, Sequence) and not isinstance(split, str) else None
    if given is None or len(given) != many:
        wrong = "it is no list"
        wrong = wrong if given is None else f"{_some(given, 'share')} for {many} groups"
        raise Misuse(
            f"split = {shown(split)}: {wrong}; give a share for each of the {many} groups, in the "
            f"order of the engine's numbers, like {[*[1] * (many - 1), 4]}"
        )
    for number, one in enumerate(given):
        number_ = isinstance(one, Real) and not isinstance(one, bool)
        if not number_ or not 0 < one < _MOST:
            raise Misuse(
                f"split of group {number} = {shown(one)}: must be a number above 0 and below 1e100"
            )
    if max(given) > _UNLIKE * min(given):
        raise Misuse(
            f"split = {shown(given)}: one share is more than a million times another; give shares "
            "that are nearer to each other"
        )
    return [Fraction(float(given[number])) for number in groups.numbers]


def _some(values: Sequence[object], name: str) -> str:
    return f"{len(values)} {name}{'' if len(values) == 1 else 's'}"


def _of_tier(groups: Groups, tier: str, size: object, shares: Sequence[_Share]) -> list[int | str]:
    """Returns the size of a tier of each group, the spine's first."""
    if isinstance(size, Sequence) and not isinstance(size, str):
        if len(size) != len(groups):
            raise Misuse(
                f"{tier} = {shown(size)}: {_some(size, 'size')} for {len(groups)} groups; give a "
                f"size for each of the {len(groups)} groups, in the order of the engine's numbers; "
                'or the memory of all, like "64 GiB"'
            )
        return [size[number] for number in groups.numbers]
    if len(groups) == 1 or (not isinstance(size, str) and size == 0):
        return [size] * len(groups)  # type: ignore[list-item]
    found = memory_of_all(tier, size)
    return list(_divide(found.nbytes * (groups.ranks if found.per == "rank" else 1), shares))


def memory_of_all(tier: str, size: object) -> Size:
    """Returns the memory of all groups.

    Raises:
        Misuse: It is none; a number of blocks does not say how many of them each group has.
    """
    if not isinstance(size, str) or isinstance(counted(size), int):
        raise Misuse(
            f"{tier} = {shown(size)}: a number of blocks does not say which group's blocks; give "
            'the memory of all groups, like "64 GiB"; or a size for each, in the order of the '
            "engine's numbers"
        )
    return parse_size(tier, size)


def _divide(nbytes: int, shares: Sequence[_Share]) -> list[int]:
    """Returns the blocks of each group; the spine has what is left over."""
    blocks = [int(nbytes * share.weight) // share.block_bytes for share in shares]
    riders = zip(blocks[1:], shares[1:], strict=True)
    left = nbytes - sum(count * share.block_bytes for count, share in riders)
    blocks[0] = left // shares[0].block_bytes
    return blocks


def _least(shares: Sequence[_Share]) -> str:
    """Returns the least memory, as text, with which each group has its least."""
    nbytes = max(ceil(share.least * share.block_bytes / share.weight) for share in shares)
    unit, name = (2**30, "GiB") if nbytes >= 2**30 else (2**20, "MiB")
    return f"{ceil(100 * Fraction(nbytes, unit)) / 100:.10g} {name}"
