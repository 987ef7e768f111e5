"""Block bookkeeping in Rust; the public names are those of the package `blockyard`."""

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias, final, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer, disjoint_base, override

__all__ = [
    "DEBUG",
    "BlockyardError",
    "Cache",
    "ForeignLease",
    "InUse",
    "Keys",
    "Lease",
    "Marks",
    "Misuse",
    "Need",
    "NoRoom",
    "Parked",
    "Plan",
    "Probe",
    "Room",
    "Soon",
    "SpentLease",
    "Ticket",
    "TooLarge",
    "Unavailable",
    "Unsupported",
    "Violation",
    "__version__",
    "_forked",
    "_panic",
    "consecutive",
    "runs",
    "stats_schema",
    "through",
]

_Ints: TypeAlias = Buffer | NDArray[np.integer[Any]] | Iterable[int]
_Out32: TypeAlias = Buffer | NDArray[np.int32]
_Out64: TypeAlias = Buffer | NDArray[np.int64]
_ReadyKeys: TypeAlias = Buffer | NDArray[np.uint8] | Iterable[bytes | str]
_Batch: TypeAlias = Lease | Sequence[Lease]
_Flights: TypeAlias = Plan | int | Sequence[Plan | int] | NDArray[np.integer[Any]]
_Tier: TypeAlias = Literal["device", "host", "disk"]
_Stop: TypeAlias = Literal["whole", "missing", "filling", "slow", "promised", "contradiction"]
_Holder: TypeAlias = tuple[Literal["lease", "parked", "ticket", "host ticket"], int, int, int, int]
_Media: TypeAlias = Iterable[tuple[int, int, str | bytes]]
_Field: TypeAlias = tuple[str, str, str]
_Addresses: TypeAlias = NDArray[np.uint64]
_Places: TypeAlias = tuple[_Addresses, int]

DEBUG: Final[bool]
"""Whether this is a debug build."""
__version__: Final[str]

class BlockyardError(Exception):
    """Any error of Blockyard."""

class Misuse(BlockyardError):
    """A bug in the caller: a bad argument, or a handle in a wrong state."""

class SpentLease(Misuse):
    """A handle was used after the verb that ended it."""

class ForeignLease(Misuse):
    """A handle or flight of another cache."""

class Unsupported(Misuse):
    """Something that Blockyard does not do yet."""

class NoRoom(BlockyardError):
    """Try again later; nothing is held.

    The numbers are blocks. What does not matter to `TooLarge` and `InUse` is 0 there.
    """

    tier: str
    need: int
    free: int
    evictable: int
    promised: int
    available: int

class TooLarge(NoRoom):
    """It never fits."""

    capacity: int

class InUse(NoRoom):
    """A resize below what is held."""

    want: int
    used: int

class Unavailable(BlockyardError):
    """A tier, device or store is out; there is no memory; or a bug of Blockyard's own has shown.

    A cache that such a bug has left half changed raises it in every call from then on. Make another
    one: other caches are not touched by it.
    """

@final
class Keys:
    """The chained keys of a prompt's full blocks, frozen. `docs/keys.md` has the encoding."""

    @property
    def tokens(self) -> int:
        """Tokens of the prompt, those of its partial last block included."""

    def hex(self) -> list[str]:
        """The keys as 64 hexadecimal digits each."""

    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...

@final
class Plan:
    """Copies to make between two tiers, or within the device: frozen, equal by value.

    It pickles, in at most 64 bytes and 8 per block, and has bytes: 16 and 8 per block.
    """

    def __new__(cls, data: bytes) -> Self: ...
    @property
    def flight(self) -> int:
        """The flight to report outcomes of."""

    @property
    def group(self) -> int:
        """Whose layers are copied; 0."""

    @property
    def source_tier(self) -> _Tier:
        """Tier of the sources."""

    @property
    def destination_tier(self) -> _Tier:
        """Tier of the destinations."""

    @property
    def sources(self) -> NDArray[np.uint32]:
        """Source slots, shape (blocks,), read-only."""

    @property
    def destinations(self) -> NDArray[np.uint32]:
        """Destination slots, shape (blocks,), read-only."""

    def runs(self) -> NDArray[np.uint32]:
        """Runs of consecutive slots, shape (runs, 3): first source, first destination, blocks."""

    def to_bytes(self) -> bytes:
        """The plan as bytes, the same on every machine."""

    @staticmethod
    def from_bytes(data: bytes) -> Plan:
        """Back from `to_bytes`; `Misuse` when they are not a plan of this version, whole."""

    def __len__(self) -> int: ...
    @override
    def __eq__(self, other: object, /) -> bool: ...
    @override
    def __ne__(self, other: object, /) -> bool: ...
    @override
    def __hash__(self) -> int: ...
    @override
    def __reduce__(self) -> tuple[Any, tuple[bytes]]: ...

@final
class Probe:
    """How much of a prefix is where, in blocks; each is counted on its highest tier."""

    @property
    def device(self) -> int:
        """Blocks on the device."""

    @property
    def host(self) -> int:
        """Blocks behind them on the host."""

    @property
    def disk(self) -> int:
        """Blocks behind them on disk."""

    @property
    def stop(self) -> _Stop:
        """Why the prefix ended."""

    @property
    def flight(self) -> int | None:
        """What is in flight where it ended, if `stop` is "filling"."""

    @property
    def evicted(self) -> bool | None:
        """Whether the first missing block was there once and was dropped, as far as remembered.

        None where no ghosts are kept (only `write="second-touch"` keeps them), and where `stop` is
        not "missing".
        """

    @override
    def __eq__(self, other: object, /) -> bool: ...
    @override
    def __ne__(self, other: object, /) -> bool: ...

@final
class Room:
    """Room on one tier, in blocks, in one reading."""

    @property
    def free(self) -> int:
        """Slots nobody has."""

    @property
    def evictable(self) -> int:
        """Idle blocks that may be evicted now."""

    @property
    def promised(self) -> int:
        """Of both together, what is promised: growth, headroom and tickets; on the host, keeps."""

    @property
    def available(self) -> int:
        """Blocks to be had: free and evictable ones, less those that are promised."""

    @property
    def headroom(self) -> int:
        """Of what is promised, the part that `Cache.set_headroom` keeps; 0 on the host."""

    @property
    def evicted(self) -> int:
        """Blocks evicted so far."""

    @override
    def __eq__(self, other: object, /) -> bool: ...
    @override
    def __ne__(self, other: object, /) -> bool: ...
    @override
    def __hash__(self) -> int: ...

@final
class Need:
    """What a begin would answer now, by its own arithmetic; in blocks."""

    @property
    def need(self) -> int:
        """Device slots to take or to promise."""

    @property
    def free(self) -> int:
        """Slots nobody has."""

    @property
    def evictable(self) -> int:
        """Idle blocks that may be evicted for it: not those that it would hold itself."""

    @property
    def promised(self) -> int:
        """Of both together, what is promised to others."""

    @property
    def available(self) -> int:
        """Blocks to be had for it: free and evictable ones, less those that are promised.

        Below 0 where others were promised blocks that it would hold itself.
        """

    @property
    def fits(self) -> bool:
        """Whether it would be served."""

    @property
    def ever(self) -> bool:
        """Whether the device could ever hold it."""

    @property
    def waits(self) -> int | None:
        """The flight that it would be told to wait for."""

    @property
    def device(self) -> int:
        """Blocks of the device that it would find."""

    @property
    def loads(self) -> int:
        """Blocks that it would load, as far as promises allow."""

    @property
    def slow(self) -> int:
        """Blocks that were found below and would not be loaded."""

    @property
    def stop(self) -> _Stop:
        """Why the prefix that it would use ends."""

    @override
    def __eq__(self, other: object, /) -> bool: ...
    @override
    def __ne__(self, other: object, /) -> bool: ...

@final
class Soon:
    """Part of the prefix is in flight: ask again when the flight has landed. Nothing is held."""

    @property
    def flight(self) -> int:
        """The flight to wait for."""

    @override
    def __eq__(self, other: object, /) -> bool: ...
    @override
    def __ne__(self, other: object, /) -> bool: ...
    @override
    def __hash__(self) -> int: ...

@final
class Violation:
    """The first law that the audit found broken. There is none unless Blockyard has a bug."""

    @property
    def law(self) -> str:
        """Its name, "INV-1" say."""

    @property
    def detail(self) -> str:
        """What was found and what should have been."""

    @property
    def tier(self) -> _Tier | None:
        """Where."""

    @property
    def slot(self) -> int | None:
        """Where."""

    @property
    def block(self) -> str | None:
        """Key of the block, in hex; None for an anonymous or private one."""

@final
class Lease:
    """A running sequence: its block table, with every block pinned.

    End it with `Cache.finish` or `with`. One that is dropped instead gives its blocks back late,
    and is counted in `stats()["leaked"]`.
    """

    @property
    def id(self) -> int:
        """Its number, never given out twice."""

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Copies to make before it may run."""

    @property
    def hits(self) -> tuple[int, int, int]:
        """Blocks found at the start on device, host and disk."""

    @property
    def stop(self) -> _Stop:
        """Why the prefix that was found ended there."""

    @property
    def appended(self) -> int:
        """Tokens appended so far, the prompt included."""

    @property
    def cached(self) -> int:
        """Leading tokens whose KV is there, or will be when `plans` have landed."""

    @property
    def tokens(self) -> int:
        """Token positions it has, or asked, slots for."""

    @property
    def blocks(self) -> int:
        """Blocks in its table."""

    @property
    def sealed(self) -> int:
        """Leading blocks that are published, or stand beside a published twin."""

    @property
    def promised(self) -> int:
        """Blocks of growth still promised to it."""

    @property
    def resumed(self) -> bool:
        """Whether it stands for a parked sequence still: its loads are in flight, or came short.

        Short, `park` takes it back to where it was. False once all has landed, or `grow` or `seal`
        goes on from `cached`.
        """

    @property
    def state(self) -> Literal["ready", "loading", "short", "detached", "spent"]:
        """Whether it may run.

        "loading" until its plans have landed. "short" when the loads of a resume did not come
        whole (`resumed` is True): seal or grow goes on from `cached`, park goes back. "short" too
        while its table ends before `tokens`, because the end of a copy into it is unknown: `grow`
        by 0 gives it slots, and it goes on from `cached`. "detached" after `clear`.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
        /,
    ) -> None: ...

@final
class Parked:
    """A sequence taken off the device without losing its work."""

    @property
    def id(self) -> int:
        """Its number, never given out twice."""

    @property
    def appended(self) -> int:
        """Tokens appended so far."""

    @property
    def computed(self) -> int:
        """Tokens whose KV is kept; frozen when it was parked."""

    @property
    def blocks(self) -> int:
        """Blocks kept."""

    @property
    def on_device(self) -> int:
        """Leading blocks whose device slots it still pins."""

    @property
    def moving(self) -> int:
        """Of these, blocks whose copy down is in flight, whoever else pins them.

        Told in time in proportion to `on_device`, as `alone` is.
        """

    @property
    def alone(self) -> int:
        """Of the others on the device those that only it pins, and no other copy reads.

        Each comes free or can be evicted once it and those below it have their copies, or `abandon`
        has ended the keeps, and what of it is in flight has landed.
        """

    @property
    def state(self) -> Literal["kept", "broken", "spent"]:
        """Whether it will come back as it was; "broken": it will be computed again."""

@final
class Ticket:
    """Blocks promised to somebody who does not have them yet; no slot moves for them.

    `Cache.begin` spends one for the device and `Cache.park` one for the host; `Cache.release` gives
    it back. One that is dropped instead gives its promise back late, and is counted in
    `stats()["leaked"]`.
    """

    @property
    def id(self) -> int:
        """Its number, never given out twice."""

    @property
    def blocks(self) -> int:
        """Blocks that it was made for."""

    @property
    def tier(self) -> Literal["device", "host"]:
        """Whose blocks they are."""

    @property
    def cache(self) -> Cache:
        """The cache that made it, and takes it back."""

    @property
    def state(self) -> Literal["open", "spent"]:
        """Whether it keeps its blocks still."""

@disjoint_base
class Cache:
    """The bookkeeping of one KV cache.

    Args:
        block_size: Tokens per block.
        device: Slots of the device, null slots included.
        host: Slots of the host; 0 for none.
        null_slots: Leading device slots that pad block tables and are never given out.
        eviction: "recency" (lists, O(1)) or "heap" (an indexed heap of leaves).
        write: What `demote(blocks)` copies down. "on-evict": the next victims. "through": first
            what was published, in that order, then the next victims. "second-touch": of the next
            victims those that were used more than once: published again, begun over, or computed
            again after they had been dropped. What the device has too keeps its copy, unless a
            block that is evicted sooner has none.
        ghosts: Keys of dropped blocks to remember for "second-touch", 8 bytes each, rounded up to
            a power of two, 16 or more; 0 for none, None for four per slot of all tiers.
        speeds: What one block takes in nanoseconds: to load it; to compute it at the start of a
            sequence; and what computing takes more for each block before it. A begin then loads
            what it found below only if that, behind all that is on its way up, takes less time
            than computing it. None loads all.
        recompute: Whether the engine can recompute KV that was lost.
        copy_retries: How often a failed copy down is tried again. After that, the keep of a kept
            block is broken, and no copy of another block is made ahead of need any more.
        groups: Groups of layers; only 1 is supported.
        namespace: What tells this cache's keys from others': model, weights, dtype, layout,
            parallel.
        key_hash: "sha256", or "xxh3" where all tenants trust each other.
        memory: Bytes that its bookkeeping may take; None for what the system grants. It takes 110
            to 200 for each slot, and those of the ghosts, all at once.

    Raises:
        Misuse: A value is out of range; it is named.
        Unsupported: More than one group.
        Unavailable: There is no memory for the bookkeeping; the bytes are named.
    """

    def __new__(
        cls,
        *,
        block_size: int = 16,
        device: int,
        host: int = 0,
        null_slots: int = 1,
        eviction: Literal["recency", "heap"] = "recency",
        write: Literal["on-evict", "through", "second-touch"] = "on-evict",
        ghosts: int | None = None,
        speeds: tuple[int, int, int] | None = None,
        recompute: bool = True,
        copy_retries: int = 3,
        groups: int = 1,
        namespace: Mapping[str, str] | None = None,
        key_hash: Literal["sha256", "xxh3"] = "sha256",
        memory: int | None = None,
    ) -> Self: ...
    @staticmethod
    def _defaults() -> dict[str, object]:
        """The core's own defaults, by keyword. A test compares all others with them."""

    @property
    def block_size(self) -> int:
        """Tokens per block."""

    def keys(
        self,
        tokens: _Ints,
        *,
        lora: str | bytes | None = None,
        salt: str | bytes | None = None,
        media: _Media | None = None,
    ) -> Keys:
        """The keys of a prompt's full blocks.

        Args:
            tokens: Token ids, shape (tokens,), from 0 to 2**32 - 1.
            lora: Name of the adapter.
            salt: The tenant's salt: nobody without it finds these blocks.
            media: Items (start, end, id) at token positions [start, end), ascending, none beyond
                the tokens.

        Raises:
            Misuse: A value is out of range, or there are more than 2**25 tokens: as for every
                sequence or array, one call takes that many values at most.
            Unavailable: There is no memory for the keys.
        """

    def ready_keys(self, keys: _ReadyKeys, tokens: int) -> Keys:
        """Keys that the engine has made: 32 bytes each, one per full block of `tokens` tokens.

        Args:
            keys: A buffer of 32 bytes per key, or a list of bytes or of hexadecimal strings.
            tokens: Tokens of the prompt.
        """

    def probe(self, prefix: Keys | _Ints | None = None, /) -> Probe:
        """How much of a prefix is where. Changes nothing, not even recency."""

    @overload
    def begin(
        self,
        prompt: Keys | _Ints,
        /,
        *,
        reserve: int = 0,
        load: int | None = None,
        filling: Literal["stop"] = "stop",
        lora: str | bytes | None = None,
        salt: str | bytes | None = None,
        media: _Media | None = None,
        ticket: Ticket | None = None,
    ) -> Lease: ...
    @overload
    def begin(
        self,
        prompt: Keys | _Ints,
        /,
        *,
        reserve: int = 0,
        load: int | None = None,
        filling: Literal["stop", "soon"],
        lora: str | bytes | None = None,
        salt: str | bytes | None = None,
        media: _Media | None = None,
        ticket: Ticket | None = None,
    ) -> Lease | Soon: ...
    @overload
    def begin(
        self, prompt: Parked, /, *, reserve: int = 0, ticket: Ticket | None = None
    ) -> Lease | Soon:
        """Admits a sequence, or brings a parked one back: all or nothing.

        Matches the longest prefix over all tiers, pins it, claims what is missing, promises the
        growth, evicts exactly the deficit. A full hit computes its last token again, in a private
        copy of the last block. A parked sequence resumes at the token it was parked at.

        Args:
            prompt: Keys, tokens, or what `park` gave.
            reserve: Tokens of growth to promise: a grow inside it never fails.
            load: Most blocks to load from below the device; None for all, as far as the cache's
                `speeds` allow. What was left is said: the lease's `stop` is "slow".
            filling: At a block in flight: "stop" ends the prefix there, "soon" answers `Soon`;
                so does "stop" where the engine cannot recompute.
            lora: As in `keys`.
            salt: As in `keys`.
            media: As in `keys`.
            ticket: What `promise` gave: the begin may use the room that it keeps on the device.
                Spent when the sequence is admitted, also where it needed less; open still after
                `Soon` and whatever is raised.

        Raises:
            NoRoom: Try again later; nothing is held. What a `ticket` keeps is not among its
                `promised`.
            TooLarge: It never fits. A prompt that says so by its length is not read.
        """

    def dry_run(
        self,
        prompt: Keys | _Ints,
        /,
        *,
        reserve: int = 0,
        load: int | None = None,
        filling: Literal["stop", "soon"] = "stop",
        lora: str | bytes | None = None,
        salt: str | bytes | None = None,
        media: _Media | None = None,
    ) -> Need:
        """What `begin` would answer now, without a ticket. Changes nothing.

        Args:
            prompt: Keys or tokens.
            reserve: As in `begin`.
            load: As in `begin`.
            filling: As in `begin`.
            lora: As in `keys`.
            salt: As in `keys`.
            media: As in `keys`.
        """

    def promise(self, blocks: int, *, tier: Literal["device", "host"] = "device") -> Ticket:
        """Keeps blocks obtainable for somebody who does not run yet, or who is to be parked.

        Growth of running sequences and other begins leave those of the device alone; other parks,
        and copies ahead of need, those of the host.

        Args:
            blocks: How many, 1 or more.
            tier: "device", for a `begin`; or "host", for a `park`.

        Raises:
            NoRoom: That many are not to be had that nobody was promised.
            TooLarge: The tier never holds as many, or the cache was made without a host.
        """

    def release(self, ticket: Ticket) -> None:
        """Gives a ticket back: what it kept is promised no more."""

    def set_headroom(self, blocks: int) -> int:
        """Keeps device blocks promised for the growth of the running sequences as a whole.

        No begin, ticket, load or copy ahead takes them. A `grow` beyond its row's own promise does,
        where nothing else is left. They take the place of those that were kept before, and become
        fewer as they are used or a `resize` needs them; when the last running sequence has ended or
        is parked there are none, at once. They become more only by another call.

        Args:
            blocks: How many are wanted, 0 or more.

        Returns:
            How many are kept: fewer where fewer can be had, 0 while nothing runs.
        """

    def append(self, batch: _Batch, tokens: _Ints, counts: _Ints | int | None = None) -> None:
        """Sampled or accepted tokens extend each row's keys.

        Args:
            batch: Leases.
            tokens: Token ids, row after row.
            counts: Tokens per row; without it one each, or all for a single lease.
        """

    def append_ready(self, lease: Lease, tokens: int, keys: _ReadyKeys) -> None:
        """The same for a lease begun with `ready_keys`: `keys` are of the blocks completed."""

    def grow(self, batch: _Batch, counts: _Ints | int | None = None) -> NDArray[np.int32]:
        """Adds token positions, 1 each or `counts`; rows in order, each whole or not at all.

        Returns:
            The rows that found no room, shape (rows,). A row inside its promise is never there.
        """

    def trim(self, batch: _Batch, lengths: _Ints | int) -> None:
        """Cuts each row to a number of token positions; blocks behind go back."""

    def dedup(self, batch: _Batch) -> int:
        """Gives up in place what the leases hold twice, as another had computed it too.

        A cell of a block table then shows the published block, and the lease's own copy of it is
        free at once: no step in flight may read these tables. `block_tables` with cells="changed"
        writes all from the first such cell on.

        Args:
            batch: Leases.

        Returns:
            How many cells of their tables show another slot now.
        """

    @overload
    def block_tables(self, batch: _Batch, out: None = None) -> NDArray[np.int32]: ...
    @overload
    def block_tables(
        self, batch: _Batch, out: _Out32, *, cells: Literal["all", "changed"] = "all"
    ) -> int:
        """Each lease's device slots, in order.

        Args:
            batch: Leases.
            out: int32, C-contiguous, shape (rows or more, columns); without it a new array.
            cells: "all", padded with the null slot 0; or "changed": those that are new since the
                last call for the lease, whose row must still hold what that call wrote.

        Returns:
            The new array, or how many cells were written.
        """

    @overload
    def slot_mapping(
        self,
        batch: _Batch,
        first: _Ints | int,
        counts: _Ints | int | None = None,
        out: None = None,
    ) -> NDArray[np.int64]: ...
    @overload
    def slot_mapping(
        self, batch: _Batch, first: _Ints | int, counts: _Ints | int | None, out: _Out64
    ) -> int:
        """Where the KV of tokens goes: slot * block size + offset, row after row.

        Args:
            batch: Leases.
            first: First token position of each row.
            counts: Tokens of each row; 1 without it.
            out: int64, C-contiguous, shape (tokens or more,); the rest is padded with 0, which is
                in the null slot. Without it a new array.

        Returns:
            The new array, or how many places were written.
        """

    def seal(self, batch: _Batch, computed: _Ints | int) -> int:
        """Publishes full blocks of which every token is computed and acknowledged.

        Args:
            batch: Leases.
            computed: Tokens of each row whose KV the engine has acknowledged.

        Returns:
            Blocks newly sealed. One whose twin is in flight waits for a later seal.
        """

    def park(
        self,
        lease: Lease,
        computed: _Ints | int,
        *,
        after: int | None = None,
        ticket: Ticket | None = None,
    ) -> Parked:
        """Takes a sequence off the device without losing its work, after the engine's stop ack.

        What is full and computed is sealed first. Nothing is copied yet: `demote(of=parked)` does,
        tail first, as far as the need goes.

        Args:
            lease: The sequence.
            computed: Tokens whose KV it has: frozen from here on.
            after: A step in flight may still write: slots are held back until `commit(done=)`.
            ticket: What `promise(tier="host")` gave: the park may use the room that it keeps, and
                never lacks room for as many blocks. Spent when it parks, also where it needed less;
                open still whatever is raised.

        Raises:
            NoRoom: The host cannot promise the slots: nothing is given up, and what was full is
                sealed all the same. What a `ticket` keeps is not among its `promised`.
            TooLarge: The host can never hold it, or there is none.
        """

    def abandon(self, parked: Parked) -> None:
        """Gives a parked sequence up."""

    def fork(self, lease: Lease, computed: int, *, reserve: int = 0) -> Lease:
        """One more sequence with the same tokens: shares full blocks, copies the partial one.

        Where the engine cannot recompute, a fork whose copy fails is undone: it is "spent".

        Args:
            lease: The parent.
            computed: Tokens whose KV the parent has.
            reserve: Tokens of growth to promise.
        """

    def finish(
        self,
        batch: _Batch,
        *,
        retention: Literal["ordinary", "session-ended", "retain"] = "ordinary",
        after: int | None = None,
    ) -> None:
        """Ends sequences; their blocks go back deepest first.

        Args:
            batch: Leases.
            retention: "session-ended": what nobody else shares goes first; "retain": last.
            after: A step in flight may still write: slots are held back until `commit(done=)`.

        Raises:
            SpentLease: A row was ended before, or is in the batch twice. Such rows are rejected,
                counted and named; the others are ended.
            ForeignLease: The same for a lease of another cache.
        """

    def demote(self, blocks: int, *, of: Parked | Lease | None = None) -> Plan | None:
        """Copies down.

        Args:
            blocks: How many blocks to copy at most. Without `of`, so many of the device's next
                victims should have a copy below, or what else the cache's `write` says; those that
                were looked at before are passed over, so that it may be asked at every step.
            of: A parked sequence, deepest block first; or a lease's sealed blocks, root first.
        """

    def dispatch(self) -> list[Plan]:
        """Plans not given out here before, in the order in which they were made.

        Those that begins, forks, demotes and promotes gave at once are among them: carry each out
        once. What has ended meanwhile is left out.
        """

    def promote(self, keys: Keys, blocks: int | None = None) -> Plan | None:
        """Copies what of a prefix lies below up to the device, ahead of a request."""

    def commit(
        self,
        flights: _Flights,
        good: _Ints | int | None = None,
        *,
        corrupt: NDArray[np.bool_] | Iterable[bool] | bool | None = None,
        done: int | None = None,
    ) -> int:
        """Outcomes of flights: their copies have ended.

        Args:
            flights: Plans, or numbers of flights.
            good: Leading intact blocks of each, the minimum over ranks; all, for plans.
            corrupt: True where the first bad block failed its checksum: its source is dropped.
            done: A step that the engine has done: what was held back for it goes.

        Returns:
            Flights that ended. Duplicate and late outcomes are counted and change nothing.
        """

    def abort(self, flights: _Flights) -> int:
        """The copies of these flights have ended, and none is good."""

    def mark_unknown(self, flights: _Flights) -> int:
        """The deadline of these flights has passed and their end is unknown.

        Their destinations are quarantined until `commit` or `abort` reports the fence.
        """

    def clear(self) -> None:
        """Weights changed: nothing published so far is used again. It never waits."""

    def draining(self) -> bool:
        """Whether anything from before a clear is still held or in flight."""

    def resize(self, tier: _Tier, slots: int, *, memory: int | None = None) -> None:
        """Gives a tier `slots` slots; slots beyond retire as they come free.

        Args:
            tier: Which.
            slots: How many, null slots included.
            memory: Bytes that the bookkeeping of new slots may take; None for what the system
                grants.

        Raises:
            InUse: What is pinned, claimed, promised or quarantined does not fit.
            Unavailable: There is no memory for the bookkeeping; nothing is changed.
        """

    def room(self, tier: _Tier = "device") -> Room:
        """Room on a tier, in one reading."""

    def holders(self) -> list[_Holder]:
        """Who holds what, the largest first: a diagnostic, in time in proportion to what is held.

        Returns:
            Per running or parked sequence: its kind, its number, device blocks in its table or
            pinned by its keeps; blocks promised to it: growth on the device, or slots of the host;
            and what of the device blocks only it holds, so that its end makes as many or more free
            or evictable at once. Those that have ended or come back, and wait for their loads, are
            among them. A "ticket" holds nothing, and is promised its blocks of the device; a "host
            ticket" likewise blocks of the host.
        """

    def digest(self) -> int:
        """A fingerprint, of 64 bits, of all that decides about answers: a diagnostic.

        Replicas that were fed the same calls have the same, and after different ones they differ
        where an answer could. What a refused call counts is not in it, nor are tokens that were
        appended and not sealed. Comparable between processes of one build only. It takes time in
        proportion to the cache.
        """

    def exclusive_blocks(self, lease: Lease) -> int:
        """Device blocks of a lease that its end makes free or evictable at once, or more.

        Nobody else holds them, and no copy reads them or fills what is below.
        """

    def blocks_in_flight(self) -> tuple[int, int]:
        """Blocks on their way down and up; those of flights whose end is unknown do not count."""

    def worth_loading(self, blocks: int, after: int = 0) -> bool:
        """Whether loading takes less time than computing, behind all that is on its way up now.

        Args:
            blocks: Blocks to load.
            after: Blocks of the sequence before them.

        Returns:
            The answer by `speeds`; True for a cache without.
        """

    def stats(self) -> dict[str, int]:
        """Counters and sizes in one reading; `stats_schema` has units and meanings."""

    def audit(self) -> Violation | None:
        """The first law found broken, or None. It takes time in proportion to the cache."""

    @property
    def closed(self) -> bool:
        """Whether its memory is gone: nothing begins any more, and what is held can only end."""

    def _close(self) -> None:
        """From here on what would begin something or go on with it raises `Misuse`."""

def stats_schema() -> tuple[list[_Field], list[_Field]]:
    """Name, unit and meaning of what `stats` gives: for all tiers together, then per tier."""

# What follows is the crane's arithmetic. It keeps the interpreter's lock, which NumPy gives away in
# every loop of more than 500 elements.

def consecutive(sources: _Ints, destinations: _Ints) -> int:
    """How many runs of slots are consecutive on both sides."""

def runs(
    sources: _Ints, destinations: _Ints, source: _Places, destination: _Places, piece_bytes: int
) -> tuple[_Addresses, _Addresses, _Addresses]:
    """Bytes to copy from slots to slots, in the order of the slots and of their pieces.

    Slots that are consecutive on both sides are one run where a piece is all of a slot there.

    Args:
        sources: Slots, shape (blocks,).
        destinations: Slots, shape (blocks,).
        source: Address of each piece of slot 0, and bytes from a slot to the next.
        destination: The same of the other side, as many pieces.
        piece_bytes: Bytes of a piece.

    Returns:
        Addresses to copy to, addresses to copy from, and bytes; shape (runs,) each.

    Raises:
        Misuse: The two sides are not alike, or an address does not fit into 64 bits.
    """

def through(
    below: _Ints, places: _Places, ring: int, held: int, block_bytes: int
) -> tuple[tuple[_Addresses, _Addresses, _Addresses], list[int]]:
    """Bytes to copy between slots and a ring of blocks that is filled again and again.

    Blocks that follow one another in the slots are one run, within a filling.

    Args:
        below: Slots of the tier below, shape (blocks,).
        places: Of their pieces, which follow one another in a slot.
        ring: Address of the ring.
        held: Blocks that it holds.
        block_bytes: Bytes of a block.

    Returns:
        Addresses in the slots, addresses in the ring, and bytes, shape (runs,) each; and where the
        runs of each filling begin, with the end of the last behind them.

    Raises:
        Misuse: The ring holds nothing, or an address does not fit into 64 bits.
    """

@final
class Marks:
    """A number for each slot of a tier, 0 at first."""

    def __new__(cls, slots: int) -> Self: ...
    def touch(self, slots: _Ints, number: int) -> None:
        """Marks slots with a number.

        Raises:
            Misuse: There is no such slot, and none is marked.
        """

    def latest(self, slots: _Ints) -> int:
        """The highest number of these slots; 0 for none.

        Raises:
            Misuse: There is no such slot.
        """

def _forked() -> None:
    """Called in the child after a fork: caches made before it refuse to be used there."""

def _panic(
    cache: Cache, place: Literal["verb", "long verb", "keys", "long keys", "binding"]
) -> None:
    """Panics on purpose, so that tests see what contains it."""
