"""The kinds of groups of layers that a hybrid model has, and which blocks each kind needs."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from itertools import islice
from math import lcm
from operator import itemgetter
from typing import Any, ClassVar, Self

from blockyard._core import Misuse
from blockyard._typing import override
from blockyard.shared.layout import KVLayout, Order
from blockyard.shared.models import HYBRIDS, Chunk, Heads, Latent, State, Window
from blockyard.shared.validate import integer, known, shown

__all__ = ["ChunkedAttention", "Full", "Group", "Groups", "RecurrentState", "SlidingWindow"]


@dataclass(frozen=True, slots=True)
class Group(ABC):
    """A group of layers that keep their KV or state in the same way."""

    layout: KVLayout

    def __post_init__(self) -> None:
        """Checks the layout."""
        if not isinstance(self.layout, KVLayout):
            raise Misuse(f"layout of {type(self).__name__} = {shown(self.layout)}: give a KVLayout")

    def resumes_at(self, length: int, block_size: int) -> bool:
        """Returns whether a sequence can be resumed at a length, if its blocks are there.

        Args:
            length: Tokens of the sequence so far.
            block_size: Tokens per block.

        Raises:
            Misuse: `length` is no length.
        """
        return _length(length) >= 0 < block_size

    @abstractmethod
    def needs(self, length: int, block_size: int) -> range:
        """Returns the indices of the blocks that a sequence reads to continue at a length.

        Args:
            length: Tokens of the sequence so far; at 0, no block is needed.
            block_size: Tokens per block.

        Raises:
            Misuse: No sequence can be resumed at this length, or it is no length.
        """

    @abstractmethod
    def most_needed(self, length: int, block_size: int) -> int:
        """Returns the most blocks that any sequence of at most `length` tokens needs.

        Args:
            length: Tokens of the longest sequence.
            block_size: Tokens per block.

        Raises:
            Misuse: `length` is no length.
        """

    @override
    def __str__(self) -> str:
        """Returns the kind, for messages."""
        return type(self).__name__


@dataclass(frozen=True, slots=True)
class Full(Group):
    """A group of layers whose attention reads every token of a sequence.

    It is frozen, and any thread may read it.

    Args:
        layout: The bytes of a block of these layers.

    Raises:
        Misuse: `layout` is no `KVLayout`.
    """

    @override
    def needs(self, length: int, block_size: int) -> range:
        """Returns the indices of all blocks.

        Args:
            length: Tokens of the sequence so far.
            block_size: Tokens per block.
        """
        return range(-(-_length(length) // block_size))

    @override
    def most_needed(self, length: int, block_size: int) -> int:
        """Returns the number of all blocks.

        Args:
            length: Tokens of the sequence so far.
            block_size: Tokens per block.
        """
        return -(-_length(length) // block_size)


@dataclass(frozen=True, slots=True)
class _Span(Group):
    """A group whose attention reads a limited number of tokens."""

    _: KW_ONLY
    tokens: int
    _field: ClassVar[str]

    @override
    def __post_init__(self) -> None:
        """Checks the layout and the tokens."""
        Group.__post_init__(self)
        name = type(self).__name__
        try:
            object.__setattr__(self, "tokens", integer(f"tokens of {name}", self.tokens))
        except Misuse as error:
            raise Misuse(f"{error}; give {self._field!r} of the model's config.json") from None

    @override
    def most_needed(self, length: int, block_size: int) -> int:
        """Returns the most blocks that the tokens read lie in.

        Args:
            length: Tokens of the sequence so far.
            block_size: Tokens per block.
        """
        read = min(_length(length), self.tokens - 1)
        most = (read + block_size - 2) // block_size + 1 if read else 0
        return min(most, -(-length // block_size))

    @override
    def __str__(self) -> str:
        """Returns the kind and its tokens, for messages."""
        return f"{type(self).__name__} of {self.tokens:,} tokens"


@dataclass(frozen=True, slots=True)
class SlidingWindow(_Span):
    """A group of layers whose attention reads the last tokens of a sequence.

    It is frozen, and any thread may read it.

    Args:
        layout: The bytes of a block of these layers.
        tokens: Tokens of the window, the one that is computed included: `sliding_window` in the
            `config.json` of a model.

    Raises:
        Misuse: `tokens` is less than 1, or `layout` is no `KVLayout`.
    """

    _field: ClassVar[str] = "sliding_window"

    @override
    def needs(self, length: int, block_size: int) -> range:
        """Returns the blocks of the tokens [length - tokens + 1, length), rounded outwards.

        Args:
            length: Tokens of the sequence so far.
            block_size: Tokens per block.
        """
        return _outwards(max(0, _length(length) - self.tokens + 1), length, block_size)


@dataclass(frozen=True, slots=True)
class ChunkedAttention(_Span):
    """A group of layers whose attention reads the tokens of the current chunk, as in Llama 4.

    It is frozen, and any thread may read it.

    Args:
        layout: The bytes of a block of these layers.
        tokens: Tokens of a chunk: `attention_chunk_size` in the `config.json` of a model.

    Raises:
        Misuse: `tokens` is less than 1, or `layout` is no `KVLayout`.
    """

    _field: ClassVar[str] = "attention_chunk_size"

    @override
    def needs(self, length: int, block_size: int) -> range:
        """Returns the blocks from the chunk's beginning to the length; none if both are equal.

        Args:
            length: Tokens of the sequence so far.
            block_size: Tokens per block.
        """
        return _outwards(_length(length) // self.tokens * self.tokens, length, block_size)

    @override
    def most_needed(self, length: int, block_size: int) -> int:
        """Returns the most blocks that the tokens read lie in.

        Args:
            length: Tokens of the sequence so far.
            block_size: Tokens per block.
        """
        if self.tokens % block_size == 0:  # every chunk begins at a block
            return -(-min(_length(length), self.tokens - 1) // block_size)
        return _Span.most_needed(self, length, block_size)


@dataclass(frozen=True, slots=True)
class RecurrentState(Group):
    """A group of layers with a recurrent state: Mamba, linear attention, short convolutions.

    A block of the group is the state after the last token of that block. It is frozen, and any
    thread may read it.

    Args:
        layout: The bytes of a state. Its `block_size` is that of the other groups.
        every: States exist at multiples of this number of tokens. None: at every block.

    Raises:
        Misuse: `every` is less than 1, or `layout` is no `KVLayout`.
    """

    _: KW_ONLY
    every: int | None = None

    @override
    def __post_init__(self) -> None:
        """Checks the layout and the grid."""
        Group.__post_init__(self)
        if self.every is not None:
            object.__setattr__(self, "every", integer("every of RecurrentState", self.every))

    @override
    def resumes_at(self, length: int, block_size: int) -> bool:
        """Returns whether there is a state of exactly this length.

        Args:
            length: Tokens of the sequence so far.
            block_size: Tokens per block.
        """
        return _length(length) % (self.every or block_size) == 0 == length % block_size

    @override
    def needs(self, length: int, block_size: int) -> range:
        """Returns the one block that ends at exactly this length.

        Args:
            length: Tokens of the sequence so far.
            block_size: Tokens per block.
        """
        if not self.resumes_at(length, block_size):
            step = lcm(self.every or 1, block_size)
            raise Misuse(
                f"length = {length:,} in group {self}: it has states at multiples of {step:,} "
                f"tokens alone; resume at {length // step * step:,}"
            )
        last = length // block_size
        return range(max(0, last - 1), last)

    @override
    def most_needed(self, length: int, block_size: int) -> int:
        """Returns 1, or 0 if the length is below the first state's.

        Args:
            length: Tokens of the sequence so far.
            block_size: Tokens per block.
        """
        return int(_length(length) >= lcm(self.every or 1, block_size))

    @override
    def __str__(self) -> str:
        """Returns the kind and its grid, for messages."""
        return "RecurrentState" + (f" every {self.every:,} tokens" if self.every else "")


class Groups:
    """The groups of layers of a model, checked against each other.

    The first group of full attention is the *spine*: it keeps every token, and its blocks bound
    what is found in all other groups, the *riders*. Iterating gives the spine first and then the
    riders, in the order of the engine. It is never changed, and any thread may read it.

    Args:
        groups: The groups, in the order of the engine.

    Raises:
        Misuse: A value is no group; no group has full attention; block sizes or ranks differ; or
            a grid of states is no multiple of the block size. The message names the group and what
            to do.
    """

    MOST: ClassVar[int] = 256
    """The most groups of one model."""
    __slots__ = ("block_size", "boundary", "members", "numbers", "ranks")

    members: tuple[Group, ...]
    """The groups, spine first."""
    numbers: tuple[int, ...]
    """The number that the engine gives to each of `members`."""
    block_size: int
    """Tokens per block of every group: the unit."""
    ranks: int
    """Tensor-parallel ranks of every group."""
    boundary: int
    """Tokens between boundaries, the lengths at which all groups can be resumed."""

    def __init__(self, groups: Iterable[Group]) -> None:
        listed: object = groups.in_engine_order() if isinstance(groups, Groups) else groups
        if not isinstance(listed, Iterable) or isinstance(listed, str | bytes):
            raise Misuse(f"groups = {shown(groups)}: give a list like [Full(…), SlidingWindow(…)]")
        given = tuple(islice(listed, self.MOST + 1))
        for number, group in enumerate(given):
            if not isinstance(group, Group):
                raise Misuse(
                    f"group {number} = {shown(group)}: give Full, SlidingWindow, ChunkedAttention "
                    "or RecurrentState"
                )
        if len(given) > self.MOST:
            raise Misuse(
                f"more than {self.MOST} groups: give at most {self.MOST}; layers of one kind "
                "are planes of one group"
            )
        spine = next((n for n, group in enumerate(given) if isinstance(group, Full)), None)
        if spine is None:
            kinds = ", ".join(f"group {n} is {group}" for n, group in enumerate(given[:8]))
            raise Misuse(
                f"no group of full attention ({kinds or 'no group was given'}): add "
                "Full(layout) for the layers that read every token; models without such layers "
                "are not supported"
            )
        self.numbers = (spine, *(n for n in range(len(given)) if n != spine))
        self.members = tuple(given[n] for n in self.numbers)
        first = self.members[0].layout
        self.block_size, self.ranks = first.block_size, first.ranks
        for number, group in zip(self.numbers, self.members, strict=True):
            self._check(number, group, spine)
        grids = (g.every or 1 for g in self.members if isinstance(g, RecurrentState))
        self.boundary = lcm(self.block_size, *grids)

    @property
    def has_states(self) -> bool:
        """Whether a group has recurrent states."""
        return any(isinstance(group, RecurrentState) for group in self.members)

    @classmethod
    def preset(  # noqa: PLR0913 - keywords
        cls,
        name: str,
        *,
        dtype: str = "bfloat16",
        state_dtype: str | None = None,
        block_size: int = 16,
        ranks: int = 1,
        order: Order = "page-first",
    ) -> Self:
        """Makes the groups of a well-known hybrid model; `shared.models` has figures and sources.

        Args:
            name: For example "gpt-oss-120b".
            dtype: Type of the KV, and of a state whose model names no other.
            state_dtype: Type of recurrent states; None for the model's.
            block_size: Tokens per block.
            ranks: Tensor-parallel ranks.
            order: As in `KVLayout.llama`.

        Raises:
            Misuse: There is no such model (the nearest is named), or a value is out of range.
        """
        known("name", name, HYBRIDS)
        how: dict[str, Any] = {"block_size": block_size, "ranks": ranks, "order": order}

        def attention(model: Heads | Latent) -> KVLayout:
            made = KVLayout.llama if isinstance(model, Heads) else KVLayout.mla
            return made(*model, dtype=dtype, name=name, **how)

        def group(model: Heads | Latent | Window | Chunk | State) -> Group:
            if isinstance(model, Window):
                return SlidingWindow(attention(model.heads), tokens=model.tokens)
            if isinstance(model, Chunk):
                return ChunkedAttention(attention(model.heads), tokens=model.tokens)
            if isinstance(model, State):
                ssm = state_dtype or model.ssm_dtype
                layout = KVLayout.state(*model[:3], dtype=dtype, ssm_dtype=ssm, name=name, **how)
                return RecurrentState(layout)
            return Full(attention(model))

        return cls(map(group, HYBRIDS[name]))

    def in_engine_order(self) -> list[Group]:
        """Returns the groups in the order of the engine."""
        return [
            group
            for _, group in sorted(zip(self.numbers, self.members, strict=True), key=itemgetter(0))
        ]

    def _check(self, number: int, group: Group, spine: int) -> None:
        layout = group.layout
        if layout.block_size != self.block_size:
            common = lcm(layout.block_size, self.block_size)
            raise Misuse(
                f"block_size = {layout.block_size:,} of group {number} ({group}), but "
                f"{self.block_size:,} of group {spine} (Full): unequal block sizes are not "
                f"supported; make both layouts with block_size={common}"
            )
        if layout.ranks != self.ranks:
            raise Misuse(
                f"ranks = {layout.ranks} of group {number} ({group}), but {self.ranks} of group "
                f"{spine} (Full): give both layouts the same ranks"
            )
        if isinstance(group, RecurrentState) and group.every and group.every % self.block_size:
            below = group.every // self.block_size * self.block_size
            near = f"{below:,} or {below + self.block_size:,}" if below else f"{self.block_size:,}"
            raise Misuse(
                f"every = {group.every:,} of group {number} ({group}): must be a multiple of the "
                f"block size of {self.block_size:,} tokens; give {near}"
            )

    def __len__(self) -> int:
        """Returns how many groups there are."""
        return len(self.members)

    def __iter__(self) -> Iterator[Group]:
        """Yields the groups, spine first."""
        return iter(self.members)

    def __getitem__(self, group: int) -> Group:
        """Returns a group by its number here: 0 is the spine."""
        return self.members[group]

    def name(self, group: int) -> str:
        """Returns what messages call a group: its number in the engine, and its kind.

        Args:
            group: Its number here: 0 is the spine.
        """
        return f"group {self.numbers[group]} ({self.members[group]})"

    def boundaries(self, lengths: Iterable[int]) -> list[int]:
        """Returns those lengths above 0, in tokens, that are boundaries."""
        return [length for length in lengths if length and length % self.boundary == 0]

    def last_boundary(self, length: int) -> int:
        """Returns the longest boundary up to a length, in tokens."""
        return _length(length) // self.boundary * self.boundary

    def checkpoint(self, length: object) -> int:
        """Checks a length that a caller gives as a checkpoint.

        Raises:
            Misuse: It is no boundary. The message names the group that has none there.
        """
        tokens = integer("checkpoint", length)
        if tokens % self.boundary == 0:
            return tokens
        group = next(
            (n for n, one in enumerate(self) if not one.resumes_at(tokens, self.block_size)), 0
        )
        below = tokens // self.boundary * self.boundary
        near = f"{below:,} or {below + self.boundary:,}" if below else f"{self.boundary:,}"
        raise Misuse(
            f"checkpoint = {tokens:,}: no boundary of {self.name(group)}; must be a multiple of "
            f"{self.boundary:,} tokens; give {near}"
        )


def _length(length: int) -> int:
    if type(length) is not int or length < 0:
        return integer("length", length, least=0)
    return length


def _outwards(first: int, end: int, block_size: int) -> range:
    """The blocks of the tokens [first, end)."""
    return range(first // block_size, -(-end // block_size)) if first < end else range(0)
