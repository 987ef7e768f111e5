"""Block bookkeeping in Rust; the public names are those of the package `blockyard`."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self, TypeAlias, final, overload, type_check_only

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer, disjoint_base, override

__all__ = [
    "DEBUG",
    "BlockyardError",
    "Cache",
    "DiskFloor",
    "DiskLane",
    "DiskSurvey",
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
    "Recorder",
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
    "checksums",
    "consecutive",
    "runs",
    "stats_schema",
    "through",
]

@type_check_only
class _Tensor(Protocol):
    """An array that speaks DLPack, such as a tensor of PyTorch."""

    def __dlpack__(self, *, stream: None = None) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

_Ints: TypeAlias = Buffer | NDArray[np.integer[Any]] | Iterable[int]
_Out32: TypeAlias = Buffer | NDArray[np.int32] | _Tensor
_Out64: TypeAlias = Buffer | NDArray[np.int64] | _Tensor
_ReadyKeys: TypeAlias = Buffer | NDArray[np.uint8] | Iterable[bytes | str]
_Batch: TypeAlias = Lease | Sequence[Lease]
_Flights: TypeAlias = Plan | int | Sequence[Plan | int] | NDArray[np.integer[Any]]
_Tier: TypeAlias = Literal["device", "host", "disk"]
_Stop: TypeAlias = Literal[
    "whole", "missing", "filling", "scattered", "slow", "promised", "contradiction"
]
_HolderKind: TypeAlias = Literal["lease", "parked", "ticket", "host ticket", "disk ticket"]
_Holder: TypeAlias = tuple[_HolderKind, int, int, int, int, tuple[int, int]]
_Eviction: TypeAlias = Literal["recency", "learned", "heap"]
_HostCopies: TypeAlias = Literal["first", "last"]
_Retention: TypeAlias = Literal["ordinary", "session-ended", "retain"]
_Write: TypeAlias = Literal["on-evict", "through", "second-touch"]
_Media: TypeAlias = Iterable[tuple[int, int, str | bytes]]
_Field: TypeAlias = tuple[str, str, str, str, str]
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
    """There is no room now: try again later; nothing is held.

    `TooLarge` and `InUse` set the numbers to 0 that do not matter to them.

    Attributes:
        tier: The tier that has no room: "device" or "host".
        need: Blocks that are needed.
        free: Blocks that hold nothing.
        evictable: Idle blocks that may be evicted now.
        promised: Blocks of both that are promised to others.
        available: `free + evictable - promised`: the blocks to be had.
    """

    tier: str
    need: int
    free: int
    evictable: int
    promised: int
    available: int

class TooLarge(NoRoom):
    """The request never fits.

    Attributes:
        capacity: Blocks that the tier may hold.
    """

    capacity: int

class InUse(NoRoom):
    """A resize or a withdraw that leaves fewer slots than are in use.

    Blocks that promises would lack count as used: what a copy reads cannot be evicted for them yet.

    Attributes:
        want: Blocks that the tier was to hold.
        used: Blocks that are in use.
    """

    want: int
    used: int

class Unavailable(BlockyardError):
    """A tier, device or store is out, there is no memory, or Blockyard has a bug.

    A cache that such a bug has left half changed raises this error in every later call. Make
    another cache: the bug does not touch the others.
    """

@final
class Keys:
    """The chained keys of a prompt's full blocks, frozen. `docs/keys.md` has the encoding.

    `len` counts them, and `bytes` joins them, 32 bytes each. Any thread may read them. They are
    equal where they are alike and go on alike. Pickled they are for a process of the same version,
    and as secret as the prompt and its salt.

    Args:
        data: What pickle has of them.

    Raises:
        Misuse: The bytes are not whole keys of this version.
    """

    def __new__(cls, data: bytes) -> Self: ...
    @override
    def __eq__(self, other: object, /) -> bool: ...
    @override
    def __ne__(self, other: object, /) -> bool: ...
    @override
    def __hash__(self) -> int: ...
    @override
    def __reduce__(self) -> tuple[Any, tuple[bytes]]: ...
    def __copy__(self) -> Self:
        """Returns itself: it is frozen."""

    def __deepcopy__(self, _memo: object, /) -> Self:
        """Returns itself: it is frozen."""

    @property
    def tokens(self) -> int:
        """Tokens of the prompt, including those of its partial last block."""

    def hex(self) -> list[str]:
        """Returns the keys as 64 hexadecimal digits each."""

    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...

@final
class Plan:
    """Copies to make between two tiers, or within the device: frozen, equal by value.

    As bytes it takes 24, and 8 per block; pickled it takes at most 72, and 8 per block. Where it
    carries keys it takes 16 more, and 32 more for each key. `len` counts its blocks. Any thread
    may read it.

    Args:
        data: What `to_bytes` gave.

    Raises:
        Misuse: The bytes are not one whole plan of this version.
    """

    def __new__(cls, data: bytes) -> Self: ...
    @property
    def flight(self) -> int:
        """The flight to report outcomes of."""

    @property
    def yard(self) -> int:
        """The number of the yard that made it: flights of two yards may have one number."""

    @property
    def group(self) -> int:
        """Group of layers that is copied; always 0."""

    @property
    def source_tier(self) -> _Tier:
        """Tier of the sources: "device", "host" or "disk"."""

    @property
    def destination_tier(self) -> _Tier:
        """Tier of the destinations: "device", "host" or "disk"."""

    @property
    def rank(self) -> int:
        """The rank that it is for; always 0."""

    @property
    def sources(self) -> NDArray[np.uint32]:
        """Source slots, shape (blocks,), read-only."""

    @property
    def destinations(self) -> NDArray[np.uint32]:
        """Destination slots, shape (blocks,), read-only."""

    @property
    def keys(self) -> NDArray[np.uint8] | None:
        """Keys of the blocks, shape (blocks, 32), read-only; None where neither tier is keyed.

        A block that was parked before it had a key has 24 zero bytes and a number that is not 0,
        its own as long as it is parked. Of keyed tiers, no published block has such a key.
        """

    @property
    def parents(self) -> NDArray[np.uint8] | None:
        """Keys of their parents, likewise; None where the tier of the destinations is not keyed.

        The first block of a sequence has 32 zero bytes, one whose parent was dropped 32 bytes 0xFF.
        """

    def runs(self) -> NDArray[np.uint32]:
        """Returns runs of consecutive slots: first source, first destination, blocks.

        The shape is (runs, 3).
        """

    def to_bytes(self) -> bytes:
        """Returns the plan as bytes, which are the same on every machine."""

    @staticmethod
    def from_bytes(data: bytes) -> Plan:
        """Makes a plan from what `to_bytes` gave.

        Args:
            data: The bytes of one plan.

        Raises:
            Misuse: The bytes are not one whole plan of this version.
        """

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
    """How much of a prefix is where. Each block counts on the highest tier that has it.

    It is frozen, and any thread may read it.
    """

    def __new__(
        cls,
        device: int,
        host: int,
        disk: int,
        stop: str,
        flight: int | None,
        evicted: bool | None,
    ) -> Self: ...
    @override
    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]: ...
    def __copy__(self) -> Self:
        """Returns itself: it is frozen."""

    def __deepcopy__(self, _memo: object, /) -> Self:
        """Returns itself: it is frozen."""

    @property
    def device(self) -> int:
        """Blocks on the device."""

    @property
    def host(self) -> int:
        """Blocks that follow them on the host; those on disk may stand between them."""

    @property
    def disk(self) -> int:
        """Blocks that follow them on disk, likewise."""

    @property
    def stop(self) -> _Stop:
        """Why the prefix ended.

        "whole": all of it was found.

        "missing": the next block is nowhere.

        "filling": the next block is in flight.

        "scattered": the prefix lies on lower tiers in more runs than one begin loads, which are 8.

        "slow": a begin left the rest below, as its `load` or the cache's `speeds` say.

        "promised": the next block backs a promise to another request.

        "contradiction": the next key is known with another parent, so that the keys were made in
        another way.
        """

    @property
    def flight(self) -> int | None:
        """The flight that fills the next block, if `stop` is "filling"."""

    @property
    def evicted(self) -> bool | None:
        """Whether the first missing block was there before and was dropped.

        The cache remembers a limited number of dropped blocks, and only under
        `write="second-touch"`. Without them, and where `stop` is not "missing", this is None.
        """

    @override
    def __eq__(self, other: object, /) -> bool: ...
    @override
    def __ne__(self, other: object, /) -> bool: ...

@final
class Room:
    """Room on one tier, in blocks, read at one moment.

    It is frozen, and any thread may read it.
    """

    def __new__(
        cls,
        free: int,
        evictable: int,
        promised: int,
        available: int,
        headroom: int,
        evicted: int,
    ) -> Self: ...
    @override
    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]: ...
    def __copy__(self) -> Self:
        """Returns itself: it is frozen."""

    def __deepcopy__(self, _memo: object, /) -> Self:
        """Returns itself: it is frozen."""

    @property
    def free(self) -> int:
        """Slots that hold nothing."""

    @property
    def evictable(self) -> int:
        """Idle blocks that may be evicted now."""

    @property
    def promised(self) -> int:
        """Blocks of both that are promised: to growth, headroom, tickets or keeps."""

    @property
    def available(self) -> int:
        """Blocks to be had: free and evictable ones, less those that are promised."""

    @property
    def headroom(self) -> int:
        """The promised blocks that `Cache.set_headroom` keeps; 0 below the device."""

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
    """What a begin would answer now, in blocks. It runs the begin's own arithmetic.

    It is frozen, and any thread may read it.
    """

    def __new__(
        cls,
        need: int,
        free: int,
        evictable: int,
        promised: int,
        available: int,
        fits: bool,
        ever: bool,
        waits: int | None,
        device: int,
        loads: int,
        slow: int,
        stop: str,
    ) -> Self: ...
    @override
    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]: ...
    def __copy__(self) -> Self:
        """Returns itself: it is frozen."""

    def __deepcopy__(self, _memo: object, /) -> Self:
        """Returns itself: it is frozen."""

    @property
    def need(self) -> int:
        """Device slots that the begin would take or have promised."""

    @property
    def free(self) -> int:
        """Slots that hold nothing."""

    @property
    def evictable(self) -> int:
        """Idle blocks that may be evicted for it, without those that it would hold itself."""

    @property
    def promised(self) -> int:
        """Blocks of both that are promised to others."""

    @property
    def available(self) -> int:
        """Blocks to be had for it: free and evictable ones, less those that are promised.

        It is below 0 where others were promised blocks that this begin would hold itself.
        """

    @property
    def fits(self) -> bool:
        """Whether the begin would be served."""

    @property
    def ever(self) -> bool:
        """Whether the device could ever hold it."""

    @property
    def waits(self) -> int | None:
        """The flight that the begin would have to wait for; None if there is none."""

    @property
    def device(self) -> int:
        """Blocks that the begin would find on the device."""

    @property
    def loads(self) -> int:
        """Blocks that the begin would load, as far as promises allow."""

    @property
    def slow(self) -> int:
        """Blocks that it would find below the device and not load."""

    @property
    def stop(self) -> _Stop:
        """Why the prefix that the begin would use ends: a word as in `Probe.stop`."""

    @override
    def __eq__(self, other: object, /) -> bool: ...
    @override
    def __ne__(self, other: object, /) -> bool: ...

@final
class Soon:
    """Part of the prefix is in flight. Ask again when the flight has landed; nothing is held.

    It is frozen, and any thread may read it.
    """

    def __new__(cls, flight: int) -> Self: ...
    @override
    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]: ...
    def __copy__(self) -> Self:
        """Returns itself: it is frozen."""

    def __deepcopy__(self, _memo: object, /) -> Self:
        """Returns itself: it is frozen."""

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
    """The first law that the audit found broken. Only a bug of Blockyard can break one.

    It is frozen, and any thread may read it.
    """

    def __new__(
        cls,
        law: str,
        detail: str,
        tier: str | None,
        slot: int | None,
        block: str | None,
    ) -> Self: ...
    @override
    def __eq__(self, other: object, /) -> bool: ...
    @override
    def __ne__(self, other: object, /) -> bool: ...
    @override
    def __hash__(self) -> int: ...
    @override
    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]: ...
    def __copy__(self) -> Self:
        """Returns itself: it is frozen."""

    def __deepcopy__(self, _memo: object, /) -> Self:
        """Returns itself: it is frozen."""

    @property
    def law(self) -> str:
        """The name of the law, such as "INV-1"."""

    @property
    def detail(self) -> str:
        """What was found and what should have been."""

    @property
    def tier(self) -> _Tier | None:
        """The tier where it was found; None if it is on no tier."""

    @property
    def slot(self) -> int | None:
        """The slot where it was found; None if it is in no slot."""

    @property
    def block(self) -> str | None:
        """Key of the block, in hex; None for an anonymous or private block."""

@final
class Lease:
    """A running sequence: its block table, with every block pinned.

    End it with `Cache.finish` or `with`. If it is dropped instead, the next verb gives its blocks
    back, and `stats()["leaked"]` counts it.

    Any thread may use it. Once a verb has ended it, its properties raise `SpentLease`, except `id`,
    `plans`, `hits`, `stop`, `appended` and `state`.
    """

    @property
    def id(self) -> int:
        """Its number, which no other one ever gets."""

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Copies to make before the sequence may run; until they have landed it is "loading"."""

    @property
    def hits(self) -> tuple[int, int, int]:
        """Blocks found at the start on device, host and disk."""

    @property
    def stop(self) -> _Stop:
        """Why the prefix that was found ended there: a word as in `Probe.stop`."""

    @property
    def appended(self) -> int:
        """Tokens appended so far, the prompt included."""

    @property
    def cached(self) -> int:
        """Leading tokens whose KV is there or, while `state` is "loading", on its way.

        The model computes the tokens from here on, once the lease has loaded. Read it then: it is
        less where a load has failed. A prompt that is found whole has all its tokens but the last,
        and loads a private copy of its last block, without any host too.
        """

    @property
    def tokens(self) -> int:
        """Token positions that it has slots for, or has asked slots for."""

    @property
    def blocks(self) -> int:
        """Blocks in its table."""

    @property
    def sealed(self) -> int:
        """Leading blocks that are published, or duplicate a published block."""

    @property
    def promised(self) -> int:
        """Blocks of growth that are still promised to it."""

    @property
    def resumed(self) -> bool:
        """Whether it still stands for a parked sequence.

        This is so until all its loads have landed. If some fail, `park` brings the sequence back to
        where it was; `grow` or `seal` goes on from `cached`, and this becomes False.
        """

    @property
    def state(self) -> Literal["ready", "loading", "short", "detached", "spent"]:
        """Whether it may run.

        "ready": it may run.

        "loading": it waits until its plans have landed. What is in its slots is not its KV yet, and
        `block_tables` and `slot_mapping` refuse it.

        "short": it lacks blocks. If `resumed` is True, loads of the resume failed: `seal` or `grow`
        goes on from `cached`, and `park` goes back. Otherwise its table ends before `tokens`, as a
        copy into it has an unknown outcome: `grow` by 0 gives it slots, and it goes on from
        `cached`.

        "detached": it may run, but `clear` was called, so that it publishes nothing.

        "spent": a verb has ended it.
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
    """A sequence that was taken off the device without losing its work.

    End it with `Cache.begin` or `Cache.abandon`. If it is dropped instead, the next verb gives up
    what it keeps, and `stats()["leaked"]` counts it.

    Any thread may use it. Once a verb has ended it, its properties raise `SpentLease`, except `id`,
    `appended` and `state`.
    """

    @property
    def id(self) -> int:
        """Its number, which no other one ever gets."""

    @property
    def appended(self) -> int:
        """Tokens appended so far."""

    @property
    def computed(self) -> int:
        """Tokens whose KV is kept. The number is fixed by `park`."""

    @property
    def blocks(self) -> int:
        """Blocks kept."""

    @property
    def on_device(self) -> int:
        """Leading blocks whose device slots the sequence still pins."""

    @property
    def plans(self) -> list[Plan]:
        """The copies that `keep` made, one plan or none; none where `park` has made it."""

    @property
    def below(self) -> tuple[int, int]:
        """Blocks that are kept below, on the host and on the disk.

        The other ones of `blocks` are on the device, and are promised slots below.
        """

    @property
    def moving(self) -> int:
        """Blocks of `on_device` whose copy down is in flight.

        Other sequences may pin them too. This and `alone` take time in proportion to `on_device`.
        """

    @property
    def alone(self) -> int:
        """The other blocks of `on_device` that only this sequence pins, and no other copy reads.

        Each becomes free or evictable when it and the blocks that follow it have copies below, or
        when `abandon` has ended the keeps, and its own copies in flight have landed.
        """

    @property
    def state(self) -> Literal["kept", "broken", "spent"]:
        """Whether it will come back as it was.

        "kept": it will.

        "short": a copy that `keep` made has failed, so that only the `computed` tokens before it
        are kept.

        "broken": some of what was kept is lost, so that the sequence will be computed again.

        "spent": a verb has ended it.
        """

@final
class Ticket:
    """Blocks promised to a request that does not have them yet; no slot moves for them.

    `Cache.begin` spends a ticket for the device, and `Cache.park` one for a tier below it.
    `Cache.release` gives it back. If it is dropped instead, the next verb gives its promise back,
    and `stats()["leaked"]` counts it. Any thread may use it.
    """

    @property
    def id(self) -> int:
        """Its number, which no other one ever gets."""

    @property
    def blocks(self) -> int:
        """Blocks that were promised to it."""

    @property
    def tier(self) -> _Tier:
        """The tier whose blocks it keeps: "device", "host" or "disk"."""

    @property
    def cache(self) -> Cache:
        """The cache that made it."""

    @property
    def state(self) -> Literal["open", "spent"]:
        """Whether it still keeps its blocks: "open", or "spent" by a verb that ended it."""

@disjoint_base
class Cache:
    """The bookkeeping of one KV cache.

    Any thread may call every verb, except those that say otherwise: they are for the thread that
    drives the steps. One verb happens before or after another, never during it.

    Besides what each verb names, all raise `Misuse` for an argument of a wrong value, and in a
    process that was forked after the cache was made; `Unavailable` once a bug of Blockyard has
    broken the cache; and those that begin something or go on with it, `Misuse` once it is closed. A
    verb that raises has changed nothing, unless it says so.

    Args:
        block_size: Tokens per block.
        device: Slots of the device, null slots included.
        engine: In place of `device`, the blocks of an engine that gives them out itself.
        host: Slots of the host; 0 for none.
        disk: Slots of the tier below the host; 0 for none.
        null_slots: Leading device slots that pad block tables and are never given out.
        eviction: What is evicted first, of the blocks that are no other's prefix there. "recency":
            what was used least recently. "learned": what is least likely to be used again soon, as
            learned from how blocks of such requests were used again so far; hints of `finish` are
            learned alike. "heap": what has the lowest priority, then as recency.
        host_copies: When copies on the host of what the device has too are evicted: "first", once
            the device has used the block again, or "last". None: "first" where eviction is
            "learned".
        write: What `demote(blocks)` copies down from the device. "on-evict": the next victims.
            "through": first the published blocks in the order of their publication, then the next
            victims. "second-touch": those of the next victims that were used more than once, which
            is to say published again, found by a begin, or computed again after they were dropped.
            A copy of a block that the device has too stays, unless a block that will be evicted
            sooner has no copy.
        ghosts: Keys of dropped blocks to remember, rounded up to a multiple of 16. With
            "second-touch" each takes 4 bytes, and None remembers four per slot of all tiers;
            with "learned" each takes 2 bytes, and None remembers 1.75 per slot. Elsewhere each
            takes 2 bytes, and None remembers none. 0 remembers none. Where none are remembered
            `missed_evicted` is 0: such misses count as unseen.
        writes_below: The same for each tier below the device, from the host down; "on-evict" where
            it says nothing. "through" copies what has landed there.
        speeds: Three times in nanoseconds: to load one block; to compute one block at the start of
            a sequence; and to compute it for each block before it, in addition. A fourth is to load
            one from the disk, where that is not what it takes from the host. A begin then loads
            what it found below only if that takes less time than computing it, queued behind the
            loads in flight from the same tier. None loads everything.
        recompute: Whether the engine can recompute KV that was lost.
        copy_retries: How often a failed copy down is tried again. After that, the keep of a kept
            block is broken, and no copy of another block is made ahead of need any more.
        groups: Groups of layers; only 1 is supported.
        namespace: What tells this cache's keys from others': model, weights, dtype, layout,
            parallel.
        key_hash: "sha256", or "xxh3" where all tenants trust each other.
        keyed: Names of tiers whose plans carry the keys of their blocks; None for none. The device
            cannot be one. Where there is one, `seal` refuses a key of the engine's own that begins
            with 24 zero bytes or has all bits set: in a plan that stands for something else.
        yard: What plans name the yard; None for 0. It decides nothing.
        memory: Bytes that its bookkeeping may take; None for what the system grants. All of it is
            allocated at once: 110 to 200 bytes for each slot, and those of the ghosts.
        recorder: What is told of requests, for blocks of as many tokens; None for nothing.

    Raises:
        Misuse: A value is out of range. The message names it.
        Unsupported: `groups` is not 1.
        Unavailable: There is no memory for the bookkeeping. The message gives the bytes.
    """

    def __new__(
        cls,
        *,
        block_size: int = 16,
        device: int | None = None,
        engine: int | None = None,
        host: int = 0,
        disk: int = 0,
        null_slots: int = 1,
        eviction: _Eviction = "recency",
        host_copies: _HostCopies | None = None,
        write: _Write = "on-evict",
        writes_below: Sequence[_Write] | None = None,
        ghosts: int | None = None,
        speeds: tuple[int, int, int] | tuple[int, int, int, int] | None = None,
        recompute: bool = True,
        copy_retries: int = 3,
        groups: int = 1,
        namespace: Mapping[str, str] | None = None,
        key_hash: Literal["sha256", "xxh3"] = "sha256",
        keyed: Iterable[str] | None = None,
        yard: int | None = None,
        memory: int | None = None,
        recorder: Recorder | None = None,
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
        after: Keys | None = None,
    ) -> Keys:
        """Makes the keys of a prompt's full blocks.

        Args:
            tokens: Token ids, shape (tokens,), from 0 to 2**32 - 1.
            lora: Name of the adapter.
            salt: The tenant's salt: only prompts with the same salt find these blocks.
            media: Items (start, end, id) at token positions [start, end), in ascending order. None
                may end beyond the tokens.
            after: Keys that these go on from: `tokens` are those behind its full blocks, and lora,
                salt and media are in it already. Keys that the engine has made go on, too, as soon
                as there is one.

        Raises:
            Misuse: A value is out of range, or there are more than 2**25 tokens. One call takes at
                most that many values of any sequence or array.
            Unavailable: There is no memory for the keys.
        """

    def ready_keys(self, keys: _ReadyKeys, tokens: int) -> Keys:
        """Takes keys that the engine has made: 32 bytes per full block of `tokens` tokens.

        Args:
            keys: A buffer of 32 bytes per key, or a list of bytes or of hexadecimal strings.
            tokens: Tokens of the prompt.

        Raises:
            Misuse: There is not exactly one key for each full block, or one is not of 32 bytes.
        """

    def probe(self, prefix: Keys | _Ints | None = None, /) -> Probe:
        """Tells how much of a prefix is where. It changes nothing, not even recency.

        Args:
            prefix: Keys, or tokens without an adapter, a salt and media; None asks about no block.

        Raises:
            Misuse: The keys are of blocks of another size, or a token is out of range.
        """

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
        read_prefix: bool = True,
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
        read_prefix: bool = True,
    ) -> Lease | Soon: ...
    @overload
    def begin(
        self, prompt: Parked, /, *, reserve: int = 0, ticket: Ticket | None = None
    ) -> Lease | Soon:
        """Admits a sequence, or brings a parked one back: all or nothing.

        It matches the longest prefix over all tiers and pins it, claims the missing slots, promises
        the growth, and evicts exactly as many blocks as lack. When all tokens hit, the last one is
        computed again to obtain logits, in a private copy of the last block. A parked sequence
        resumes at the token at which it was parked.

        A lease with `plans` is "loading" until they have landed: wait for that before the model
        runs. `block_tables` and `slot_mapping` refuse it until then.

        Args:
            prompt: Keys, tokens, or what `park` gave.
            reserve: Tokens of growth to promise. A `grow` within them never fails.
            load: The most blocks to load from below the device; None for all, as far as the cache's
                `speeds` allow. If blocks were left out, the lease's `stop` is "slow".
            filling: What happens at a block in flight. "stop" ends the prefix there; "soon" answers
                `Soon`. Where the engine cannot recompute, "stop" answers `Soon` too.
            lora: As in `keys`.
            salt: As in `keys`.
            media: As in `keys`.
            ticket: A ticket of `promise`: the begin may use the device blocks that it keeps. On
                success the ticket is spent, including blocks that were not needed. After `Soon` or
                an error it stays open.
            read_prefix: False to find nothing, so that every token is computed, as log
                probabilities of a prompt need it. Its blocks are published all the same.

        Returns:
            The lease; or `Soon`, while part of the prefix is in flight.

        Raises:
            NoRoom: There is no room now; nothing is held. `promised` does not count the blocks of
                `ticket`.
            TooLarge: It never fits. If the length of the prompt shows that, the prompt is not read.
            Misuse: The prompt is empty, a value is out of range, `lora`, `salt` or `media` came
                beside ready keys, or the ticket is not for the device.
            SpentLease: The parked sequence or the ticket has ended.
            ForeignLease: One of them is another cache's.
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
        read_prefix: bool = True,
    ) -> Need:
        """Tells what `begin` would answer now, without a ticket. It changes nothing.

        Args:
            prompt: Keys or tokens.
            reserve: As in `begin`.
            load: As in `begin`.
            filling: As in `begin`.
            lora: As in `keys`.
            salt: As in `keys`.
            media: As in `keys`.
            read_prefix: As in `begin`.

        Raises:
            Misuse: As in `begin`.
        """

    def promise(self, blocks: int, *, tier: _Tier = "device") -> Ticket:
        """Keeps blocks obtainable for a request that is not running yet or will be parked.

        On the device, the growth of running sequences and other begins do not take them; on the
        lower tiers, other parks and copies ahead of need do not.

        Args:
            blocks: How many, >= 1.
            tier: "device" for a `begin`, "host" or "disk" for a `park`.

        Returns:
            The ticket, which keeps them until a verb spends it.

        Raises:
            NoRoom: Fewer blocks are available.
            TooLarge: The tier never holds that many.
            Misuse: `blocks` is 0, or there is no such tier.
        """

    def release(self, ticket: Ticket) -> None:
        """Gives a ticket back: its blocks are no longer promised.

        Args:
            ticket: What `promise` gave.

        Raises:
            SpentLease: The ticket has ended before.
            ForeignLease: It is another cache's.
        """

    def set_headroom(self, blocks: int) -> int:
        """Keeps device blocks promised for the growth of the running sequences as a whole.

        No begin, ticket, load or copy ahead of need takes them. A `grow` beyond its row's own
        promise takes them when nothing else is left. Each call replaces the number that was kept
        before. It falls as blocks are used or as a `resize` needs them, and to 0 as soon as the
        last running sequence has ended or is parked; only another call raises it.

        Args:
            blocks: How many are wanted, >= 0.

        Returns:
            How many are kept: fewer if fewer are available, and 0 while nothing runs.

        Raises:
            Misuse: `blocks` is out of range.
        """

    def append(self, batch: _Batch, tokens: _Ints, counts: _Ints | int | None = None) -> None:
        """Extends each row's keys by sampled or accepted tokens.

        Args:
            batch: Leases.
            tokens: Token ids, row after row, shape (tokens,), from 0 to 2**32 - 1.
            counts: Tokens of each row; by default all for a single lease, 1 for each of several.

        Raises:
            Misuse: The counts do not add up to the tokens, a token is out of range, or the engine
                makes the keys of a row; nothing is appended.
            SpentLease: A row has ended before; nothing is appended.
            ForeignLease: A row is another cache's; nothing is appended.
            Unavailable: There is no memory for the keys; nothing is appended.
        """

    def append_ready(self, lease: Lease, tokens: int, keys: _ReadyKeys) -> None:
        """Extends a sequence whose keys the engine makes, one that began with `ready_keys`.

        Args:
            lease: The lease.
            tokens: How many tokens follow.
            keys: A key for each block that they complete: a buffer of 32 bytes per key, or a list
                of bytes or of hexadecimal strings.

        Raises:
            Misuse: There is not exactly one key for each block that becomes full, or the sequence
                began with tokens; nothing is appended.
            SpentLease: The lease has ended before.
            ForeignLease: It is another cache's.
        """

    def grow(self, batch: _Batch, counts: _Ints | int | None = None) -> NDArray[np.int32]:
        """Adds 1 token position to each row, or `counts`, in order; each row whole or not at all.

        Args:
            batch: Leases.
            counts: Token positions to add to each row; 1 by default.

        Returns:
            The rows that found no room, shape (rows,). A row within its promise is never one.

        Raises:
            Misuse: A value is out of range, or a resume came back short where the engine cannot
                recompute; no row grows.
            SpentLease: A row has ended before; no row grows.
            ForeignLease: A row is another cache's; no row grows.
        """

    def trim(self, batch: _Batch, lengths: _Ints | int) -> None:
        """Cuts each row to a number of token positions. The blocks beyond are given back.

        Args:
            batch: Leases, each once.
            lengths: Token positions that each row keeps, >= 1.

        Raises:
            Misuse: A length is beyond the row's end, or cuts what is sealed or was found at the
                start; or a row is loading. No row is cut.
            SpentLease: A row has ended before; no row is cut.
            ForeignLease: A row is another cache's; no row is cut.
        """

    def dedup(self, batch: _Batch) -> int:
        """Gives up duplicates in place: blocks of the leases that another sequence published first.

        The cell of the block table then shows the published block, and the lease's own copy becomes
        free at once, so that no step in flight may read these tables. `block_tables` with
        cells="changed" then writes all cells from the first such one.

        Args:
            batch: Leases.

        Returns:
            How many cells of the tables now show another slot.

        Raises:
            SpentLease: A row has ended before; nothing is changed.
            ForeignLease: A row is another cache's; nothing is changed.
        """

    @overload
    def block_tables(
        self, batch: _Batch, out: None = None, *, loading: Literal["refuse", "joined"] = "refuse"
    ) -> NDArray[np.int32]: ...
    @overload
    def block_tables(
        self,
        batch: _Batch,
        out: _Out32,
        *,
        cells: Literal["all", "changed"] = "all",
        loading: Literal["refuse", "joined"] = "refuse",
    ) -> int:
        """Writes each lease's device slots, in order.

        Args:
            batch: Leases.
            out: An int32 array, C-contiguous, shape (rows or more, columns): a buffer, or a tensor
                that speaks DLPack and is of the CPU or pinned. Without it a new array is made, of
                shape (rows, blocks of the longest).
            cells: "all" writes all cells, padded with the null slot 0. "changed" writes those that
                have changed since the last call for the lease: the row must still hold what that
                call wrote.
            loading: What happens where a row is loading. "refuse" raises: what is read there is not
                its KV yet, and the copies overwrite what is written. "joined" writes the cells all
                the same, for an engine whose stream waits for the copies: after `step` has
                submitted them and `Crane.join` has returned True.

        Returns:
            The new array, or how many cells were written.

        Raises:
            Misuse: A row is loading, or `out` is too small or another kind of array; nothing is
                written.
            SpentLease: A row has ended before; nothing is written.
            ForeignLease: A row is another cache's; nothing is written.
        """

    @overload
    def slot_mapping(
        self,
        batch: _Batch,
        first: _Ints | int,
        counts: _Ints | int | None = None,
        out: None = None,
        *,
        loading: Literal["refuse", "joined"] = "refuse",
    ) -> NDArray[np.int64]: ...
    @overload
    def slot_mapping(
        self,
        batch: _Batch,
        first: _Ints | int,
        counts: _Ints | int | None,
        out: _Out64,
        *,
        loading: Literal["refuse", "joined"] = "refuse",
    ) -> int:
        """Writes where the KV of tokens goes: slot * block size + offset, row after row.

        Args:
            batch: Leases.
            first: First token position of each row.
            counts: Tokens of each row; 1 by default.
            out: An int64 array, C-contiguous, shape (tokens or more,), of the kinds that
                `block_tables` takes. The rest is padded with 0, which is in the null slot. Without
                it a new array is made, shape (tokens,).
            loading: As in `block_tables`.

        Returns:
            The new array, or how many places were written.

        Raises:
            Misuse: A row is loading, or has no slots for these positions; or `out` is too small or
                another kind of array. Nothing is written.
            SpentLease: A row has ended before; nothing is written.
            ForeignLease: A row is another cache's; nothing is written.
        """

    def seal(self, batch: _Batch, computed: _Ints | int) -> int:
        """Publishes the full blocks whose tokens are all computed and acknowledged.

        Args:
            batch: Leases.
            computed: Tokens of each row whose KV the engine has acknowledged.

        Returns:
            Blocks newly sealed. A block that a flight is loading meanwhile waits for a later seal.

        Raises:
            Misuse: More is computed than was appended or has slots, or a row is loading.
            SpentLease: A row has ended before; nothing is sealed.
            ForeignLease: A row is another cache's; nothing is sealed.
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

        Full, computed blocks are sealed first. Nothing is copied yet: the nearest lower tier that
        has room promises slots for what has no copy below, and `demote(of=parked)` copies the last
        blocks first, as many as are needed.

        Args:
            lease: The sequence.
            computed: Tokens whose KV it has. The number is fixed from now on.
            after: A step in flight that may still write: slots are held back until `commit(done=)`.
            ticket: A ticket of `promise(tier="host")` or `"disk"`: the park may use the blocks that
                it keeps, and never lacks room for that many. On success the ticket is spent,
                including blocks that were not needed. After an error it stays open.

        Returns:
            What is kept: `begin` brings it back, and `abandon` gives it up.

        Raises:
            NoRoom: No tier below can promise the slots; the numbers are the nearest one's. Nothing
                is given up, and full blocks are sealed all the same. `promised` does not count the
                blocks of `ticket`.
            TooLarge: No tier below can ever hold it, or there is none.
            Misuse: `computed` is out of range, the lease is loading or detached, or the ticket is
                for the device.
            SpentLease: The lease or the ticket has ended before.
            ForeignLease: One of them is another cache's.
        """

    def abandon(self, parked: Parked) -> None:
        """Gives a parked sequence up, with its work.

        Args:
            parked: What `park` gave.

        Raises:
            SpentLease: It has ended before.
            ForeignLease: It is another cache's.
        """

    def fork(self, lease: Lease, computed: int, *, reserve: int = 0) -> Lease:
        """Makes one more sequence with the same tokens.

        It shares the full blocks, and copies the partial one: it loads until that has landed.

        Where the engine cannot recompute, a fork whose copy fails is undone, and its lease is
        "spent".

        Args:
            lease: The parent.
            computed: Tokens whose KV the parent has.
            reserve: Tokens of growth to promise.

        Returns:
            The new lease. Its `plans` has the copy of the partial block.

        Raises:
            NoRoom: There is no room now; nothing is held.
            TooLarge: It never fits.
            Misuse: `computed` is out of range, or the parent is loading or came back short.
            SpentLease: The parent has ended before.
            ForeignLease: It is another cache's.
        """

    def finish(
        self,
        batch: _Batch,
        *,
        retention: _Retention = "ordinary",
        next_use: float | None = None,
        priority: int | None = None,
        ttl: int | None = None,
        after: int | None = None,
    ) -> None:
        """Ends sequences. Their last blocks are given back first.

        Args:
            batch: Leases.
            retention: With "session-ended", blocks that no other sequence shares are evicted first;
                with "retain", last. A "learned" order learns how true that is, and obeys no hint.
            next_use: Seconds until the blocks will be used again, as far as you know; for the
                "learned" order. None: nothing is known.
            priority: From 0 to 100, the last to be evicted, for "heap": 35 unless said.
                Where neither this nor `ttl` is said, what was said of a block before
                stays; one of them replaces both.
            ttl: After so many ticks the blocks go first, for "heap". A tick is a block
                that a request has used, and comes when that is ended.
            after: A step in flight that may still write: slots are held back until `commit(done=)`.

        Raises:
            Misuse: A hint is out of range. The message names it; nothing is ended.
            SpentLease: A row was ended before, or is in the batch twice. Such rows are rejected,
                counted and named; the others are ended.
            ForeignLease: A row is a lease of another cache. The same happens.
        """

    def demote(
        self,
        blocks: int,
        *,
        of: Parked | Lease | None = None,
        tier: _Tier = "device",
        to: _Tier | None = None,
    ) -> Plan | None:
        """Copies blocks of a tier down to the next lower one that has slots.

        Args:
            blocks: The most blocks to copy. Without `of` it looks at that many of the tier's next
                victims, and at no other: those that have no copy below get one, so that it may
                copy fewer, or none, though blocks behind them have no copy either. If the cache's
                `write` says so they are other blocks than victims. Blocks that an earlier call
                looked at are passed over, so that it may be called at every step.
            of: A parked sequence, whose last blocks go first, from the device to the tier that has
                promised them slots; or a lease, whose first sealed blocks go first.
            tier: Where they are, without `of`.
            to: For a parked sequence, a lower tier that shall keep what a higher one keeps or has
                promised. Each block is kept there once its copy has landed. Call it again until it
                returns None: one plan has one source.

        Returns:
            The plan, which `dispatch` hands out too; None if there is nothing to copy.

        Raises:
            Misuse: A value is out of range, `of` is something else, or there is no such tier.
            SpentLease: The sequence has ended before.
            ForeignLease: It is another cache's.
        """

    def dispatch(self) -> list[Plan]:
        """Returns the plans that no earlier call returned, in the order in which they were made.

        Plans that begins, forks, demotes and promotes have returned are among them: carry each out
        only once. Flights that have ended meanwhile are left out. It is for the thread that drives
        the steps.
        """

    def find(self, keys: Keys, after: int = 0) -> Probe:
        """Tells how much of a prefix lies below the engine's blocks, and pays to load.

        It changes nothing. The blocks before `after` are the engine's; nothing is asked of them. A
        block that is on its way down, or up for another request, is "filling".

        Args:
            keys: The keys of the prefix.
            after: Leading blocks that the engine has.

        Raises:
            Misuse: The cache owns its device, the keys are of blocks of another size, or `after` is
                out of range.
        """

    def fetch(self, what: Keys | Parked, ids: _Ints, first: int = 0) -> list[Plan] | Soon:
        """Copies blocks up to the engine's ids.

        Their copies below stay until the outcome has come. What is kept of a request stays kept:
        give it up with `abandon` when the engine has what it needs.

        Args:
            what: The keys of a prefix; or what `keep` gave, with its partial block.
            ids: The engine's ids of blocks `first` and following, shape (blocks,), each once.
            first: The block that the first id is for.

        Returns:
            Plans, one for each run of blocks of one tier, which `dispatch` hands out too: they fill
            as many of the leading ids as are below. `Soon` where the first block, or one of the
            ids, is in the air.

        Raises:
            Misuse: The cache owns its device; an id is out of range or comes twice; or there are
                more ids than blocks from `first` on.
            SpentLease: What was kept has been given up.
            ForeignLease: It is another cache's.
        """

    @overload
    def stow(self, keys: Keys, ids: _Ints, first: int = 0) -> Plan | None: ...
    @overload
    def stow(
        self, keys: Sequence[Keys], ids: Sequence[_Ints], first: _Ints | None = None
    ) -> list[Plan | None]:
        """Copies blocks down from the engine's ids, for all requests that have the same prefix.

        What is below, or on its way there, is not copied again. The others go to the nearest tier
        that has slots, the root first, as far as there is room.

        Args:
            keys: The keys of a prefix; or a list of them, a row each.
            ids: The engine's ids of blocks `first` and following, shape (blocks,), each once; or a
                list of such.
            first: The block that the first id is for; or a list.

        Returns:
            The plan, which `dispatch` hands out too; None if there is nothing to copy. For rows a
            list.

        Raises:
            Misuse: As in `fetch`; or the lists differ in length. Nothing is copied then.
        """

    def keep(self, keys: Keys, ids: _Ints, tokens: int) -> Parked:
        """Copies all of a request down and keeps it, with its partial block, until it is given up.

        What is below already is only kept. If a copy fails, or its end is unknown, the request is
        kept up to the block before it: its `state` is "short", or "broken" where nothing is left.

        Args:
            keys: The keys of its full blocks.
            ids: The engine's ids of all its blocks, shape (blocks,), each once.
            tokens: Tokens whose KV the blocks have.

        Returns:
            What is kept: `fetch` brings it up, and `abandon` gives it up. Its `plans` are the
            copies, which `dispatch` hands out too.

        Raises:
            NoRoom: No tier below has room for it now; nothing is kept.
            TooLarge: No tier below can ever hold it.
            Misuse: As in `fetch`; the ids are not as many as the blocks, the keys fewer than the
                full blocks, or an id is being filled.
        """

    def must_finish(self, ids: _Ints) -> int | None:
        """Returns the newest flight that reads or writes one of the engine's ids, or None.

        Nobody may write them before it has ended, and all flights that were launched before it. One
        that has missed its deadline has not ended.

        Args:
            ids: Ids, shape (ids,).

        Raises:
            Misuse: The cache owns its device, or an id is out of range.
        """

    def used(
        self,
        rows: Iterable[Keys],
        *,
        ended: bool = False,
        retention: _Retention = "ordinary",
        next_use: float | None = None,
        priority: int | None = None,
        ttl: int | None = None,
    ) -> None:
        """Says that the engine uses these paths, whatever of them lies below.

        Hits on the engine's own blocks are not seen here, so that what is below would grow old.
        Say it of each request once when it has `ended`, so that the order learns from it, and as
        often as you like before.

        Args:
            rows: The keys of each path, a list.
            ended: Whether their requests have ended. The others are asked for then alone.
            retention: What is known of their future, as in `finish`; so are the others.
            next_use: Seconds until they will be used again.
            priority: From 0 to 100, the last to be evicted.
            ttl: After so many ticks they go first.

        Raises:
            Misuse: The cache owns its device, the keys are of blocks of another size, or a hint is
                out of range.
        """

    def promote(self, keys: Keys, blocks: int | None = None, *, to: _Tier = "device") -> list[Plan]:
        """Copies the part of a prefix that lies below a tier up to it, ahead of a request.

        Args:
            keys: The keys of the prefix.
            blocks: The most blocks to copy; None for all.
            to: The tier. To the device all of them go or none; to a lower one, the first that find
                room there.

        Returns:
            A plan for each run of blocks that lie on one tier, which `dispatch` hands out too; none
            if there is nothing to copy.

        Raises:
            NoRoom: The device has no room for them now.
            TooLarge: The device never holds the prefix.
            Misuse: The keys are of blocks of another size, `blocks` is out of range, or the tier
                has no slots.
        """

    def commit(
        self,
        flights: _Flights,
        good: _Ints | int | None = None,
        *,
        corrupt: NDArray[np.bool_] | Iterable[bool] | bool | None = None,
        done: int | None = None,
    ) -> int:
        """Reports the outcomes of flights whose copies have ended.

        It is for the thread that drives the steps.

        Args:
            flights: Plans, or numbers of flights.
            good: Leading intact blocks of each, the minimum over ranks. The default for plans is
                all.
            corrupt: True where the first bad block failed its checksum: its source is dropped.
            done: A step that the engine has done: slots that were held back for it are given back.

        Returns:
            Flights that ended. Outcomes that come twice or too late are counted and change nothing.

        Raises:
            Misuse: More blocks are good than the plan has, or `good` is missing for a number;
                nothing is committed.
            ForeignLease: A flight or plan is not of this cache; nothing is committed.
        """

    def abort(self, flights: _Flights) -> int:
        """Reports that the copies of these flights have ended, and that none is good.

        It is for the thread that drives the steps.

        Args:
            flights: Plans, or numbers of flights.

        Returns:
            Flights that ended. Those that had ended before are counted and change nothing.

        Raises:
            ForeignLease: A flight or plan is not of this cache; nothing is changed.
        """

    def mark_unknown(self, flights: _Flights) -> int:
        """Reports that these flights have missed their deadline, and their outcome is unknown.

        Their destinations are quarantined until `commit` or `abort` reports that the copies have
        ended, and nothing that they bring is believed. What they read is held no more, except for
        copies to a keyed tier. It is for the thread that drives the steps.

        Args:
            flights: Plans, or numbers of flights.

        Returns:
            Flights that are unknown now and were not before.

        Raises:
            ForeignLease: A flight or plan is not of this cache; nothing is changed.
        """

    def clear(self, *, memory: Literal["lost", "disk kept"] = "lost") -> None:
        """Forgets all published blocks, as after a change of weights. It never waits.

        Running sequences go on, and publish nothing from now on. What is kept of parked ones is
        lost.

        Args:
            memory: "disk kept" forgets all but what the tiers have that are keyed, as where an
                engine was restarted. That is found on, and sequences that they have whole stay
                parked.

        Raises:
            Misuse: It is neither word, or no tier is keyed.
        """

    def draining(self) -> bool:
        """Tells whether anything from before a clear is still held or in flight."""

    def withdraw(self, tier: Literal["host", "disk"], slots: _Ints) -> int:
        """Gives slots of a tier out no more, as their memory is gone: of several disks one is dead.

        What was in them is dropped. All else stays: what follows a dropped block in a sequence is
        found again when that block is there again. Parked sequences that kept one there are
        computed again. What a copy still brings there is not published. Slots that a copy still
        reads or writes leave when it has ended.

        Args:
            tier: "host" or "disk".
            slots: Slots of the tier, shape (slots,). Those that were withdrawn before are left.

        Returns:
            How many blocks were dropped there.

        Raises:
            InUse: Tickets would lose what they were promised. Nothing is changed.
            Misuse: It is the device, a tier that is not there, or a slot that it does not have.
        """

    def restore(
        self,
        tier: _Tier,
        slots: _Ints,
        keys: Buffer | NDArray[np.uint8],
        parents: Buffer | NDArray[np.uint8],
    ) -> None:
        """Publishes what a tier has kept from before, as its records say.

        It comes once, before the first begin. Blocks that come back are held by no sequence.

        Args:
            tier: "host" or "disk".
            slots: Slots of the tier, shape (rows,), each once. The oldest row is first, and is the
                first to be evicted, but never before the blocks that follow it in a sequence.
            keys: The keys of their blocks, bytes of shape (rows, 32), each once.
            parents: The keys of the blocks before them in their sequences, likewise; zeros for the
                first block of a sequence. One that is not among `keys` may come back later.

        Raises:
            Misuse: Something began or was restored before, a slot or key comes twice or is out of
                range, or `parents` lead in a circle. Nothing is changed.
        """

    def eviction_order(self, tier: _Tier) -> NDArray[np.uint32]:
        """Returns the slots of a tier whose blocks nobody holds, the next to be evicted first.

        It is what a tier that outlives the cache should remember, as the order for `restore`. It
        takes time in proportion to the tier.

        Args:
            tier: "device", "host" or "disk".

        Returns:
            Slots, shape (blocks,).

        Raises:
            Misuse: There is no such tier.
        """

    def resize(self, tier: _Tier, slots: int, *, memory: int | None = None) -> None:
        """Gives a tier `slots` slots. Slots beyond that retire when they become free.

        A copy that has missed its deadline may read retired slots still, until its end is reported.

        Args:
            tier: The tier.
            slots: How many, null slots included.
            memory: Bytes that the bookkeeping of new slots may take; None for what the system
                grants.

        Raises:
            InUse: The pinned, claimed, promised and quarantined slots do not fit.
            Unavailable: There is no memory for the bookkeeping; nothing is changed.
            Misuse: The cache was made without that tier, or `slots` is out of range.
        """

    def room(self, tier: _Tier = "device") -> Room:
        """Returns the room on a tier, read at one moment.

        Args:
            tier: The tier.

        Raises:
            Misuse: The cache has no such tier.
        """

    def limit(self, tier: _Tier = "device") -> int:
        """Returns the blocks that a tier may hold: its size, less null and withdrawn slots.

        Args:
            tier: The tier.

        Raises:
            Misuse: The cache has no such tier.
        """

    @property
    def done(self) -> int:
        """The last step that `commit` was told is done; 0 before the first."""

    def listen(
        self,
        *,
        ring: int = 131_072,
        salts: Literal["hide", "tell"] = "hide",
        clears: Literal["all", "own"] = "all",
    ) -> None:
        """Keeps a list of what happens to blocks from here on, for a router to be told.

        Call it once, when the cache is made: of sequences that are there already the tokens are not
        known, and blocks without tokens are told when a prompt brings them again. A
        `Publisher` does all of this.

        Args:
            ring: Events that are kept until `take_events`: beyond that they are dropped and
                counted, and all blocks are told again.
            salts: "hide" tells nothing of blocks with a salt; "tell" tells them with their salt, to
                everybody who listens.
            clears: "all" tells a clear as one event, of all blocks of the rank; "own" as the
                removal of each block that was told, where somebody else tells of other blocks of
                this rank.

        Raises:
            Misuse: Somebody listens already, or a value is out of range.
            Unavailable: There is no memory for the list.
        """

    def take_events(
        self, *, now: float = 0.0, rank: int | None = None
    ) -> tuple[bytes | None, bool]:
        """Returns what has happened since the last call, in the form that vLLM publishes.

        It locks the cache for one swap. Tokens are added, and all is encoded, outside of that and
        detached from Python, so that a thread of its own may call it.

        Args:
            now: The time to put on it, in seconds since 1970. Nothing depends on it.
            rank: The data parallel rank to put on it; None for none.

        Returns:
            A batch in msgpack, or None where nothing has happened; and whether more is to come at
            once, as all is told again in slices.

        Raises:
            Misuse: Nobody listens.
        """

    def snapshot_events(self, *, now: float = 0.0, rank: int | None = None) -> bytes:
        """Returns all that was told and is true still, as a batch that begins with a clear.

        It is for whoever comes late or has lost a batch. With `clears="own"` it has no clear, as
        others tell of blocks of this rank, too. What `take_events` has not returned yet is
        not in it. On each tier parents come before their children.

        Args:
            now: As in `take_events`.
            rank: As in `take_events`.

        Raises:
            Misuse: Nobody listens.
        """

    def events_told(self) -> dict[str, int]:
        """Returns how much was told, and how much not.

        Returns:
            Counters: "stored" and "removed", blocks that were told so, on each tier anew; "lost",
            events that were dropped because nobody took them, and "retold", how often all was told
            again for that; "untold", blocks that came to a tier while their tokens were not known,
            and "hidden", those that have a salt; "lacking", blocks whose tokens are not known now;
            "snapshots", how many were made.

        Raises:
            Misuse: Nobody listens.
        """

    def describe(
        self,
        keys: Keys,
        tokens: _Ints,
        *,
        first: int = 0,
        numbers: _Ints | None = None,
        lora: str | bytes | None = None,
        salt: str | bytes | None = None,
        media: _Media | None = None,
    ) -> None:
        """Gives the tokens of blocks whose keys the engine has made, so that they are told.

        They may come before the blocks or after them. The last twice as many as the cache has slots
        are remembered.

        Args:
            keys: The keys of the sequence.
            tokens: The tokens of blocks `first` and following, whole blocks, shape (tokens,).
            first: The block that the first tokens are of.
            numbers: What these blocks are told by, shape (blocks,), where that is not the last 8
                bytes of their keys; where `first` is above 0, the number of the block before them
                comes first.
            lora: As in `keys`.
            salt: As in `keys`.
            media: As in `keys`, by positions in the sequence.

        Raises:
            Misuse: Nobody listens, or there are not as many tokens or numbers as the blocks.
        """

    def holders(self) -> list[_Holder]:
        """Returns which sequence or ticket holds how much, the largest first.

        This is a diagnostic: it takes time in proportion to all that is held.

        Returns:
            A row for each running or parked sequence, also for those that have ended or come back
            and wait for their loads: its kind; its number; the device blocks in its table or pinned
            by its keeps; the blocks promised to it, which are growth on the device or, of a parked
            one, slots below; the device blocks that only it holds, so that its end makes at least
            that many free or evictable at once; and the blocks that its keeps pin on the host and
            on the disk. A "ticket" holds nothing, and is promised blocks of the device; a "host
            ticket" or "disk ticket" is promised blocks there.
        """

    def digest(self) -> int:
        """Returns a fingerprint, of 64 bits, of blocks, slots, leases, promises and flights.

        `KVCache.digest` says what it covers, and adds what the ranks have reported.
        """

    def exclusive_blocks(self, lease: Lease) -> int:
        """Returns how many device blocks the end of a lease makes free or evictable at once.

        No other sequence holds them, and no copy reads them or fills blocks that follow them. More
        may become evictable.

        Args:
            lease: The lease.

        Raises:
            SpentLease: It has ended before.
            ForeignLease: It is another cache's.
        """

    def blocks_in_flight(self, tier: _Tier | None = None) -> tuple[int, int]:
        """Returns the blocks in flight, down and up, without flights whose outcome is unknown.

        Args:
            tier: Counts the blocks that go down from this tier, and those that come up from below
                it; None counts all.

        Raises:
            Misuse: The cache has no such tier.
        """

    def idle_in_flight(self) -> dict[str, tuple[int, list[int]]]:
        """Returns the idle blocks that nobody can have while copies need them, by tier.

        This is a diagnostic: it takes time in proportion to the cache.

        Returns:
            For each tier with such blocks how many they are, and the flights, the oldest first.
        """

    def dispatched(self) -> list[int]:
        """Returns the flights whose plans `dispatch` has returned, and whose outcome has not come.

        Those that count as unknown are among them.
        """

    def undispatched(self) -> tuple[int, int] | None:
        """Returns how many plans no `dispatch` has returned yet, and the flight of the oldest.

        None where there are none: flights that have ended meanwhile do not count.
        """

    def worth_loading(self, blocks: int, after: int = 0, *, tier: _Tier = "host") -> bool:
        """Tells whether loading takes less time than computing, behind the tier's loads in flight.

        Args:
            blocks: Blocks to load.
            after: Blocks of the sequence before them.
            tier: Where they are.

        Returns:
            The answer by the cache's `speeds`; True for a cache that was made without.

        Raises:
            Misuse: A value is out of range, or the tier is not below the device.
        """

    def stats(self) -> dict[str, int]:
        """Returns counters and sizes, read at one moment; `stats_schema` has units and meanings."""

    def audit(self) -> Violation | None:
        """Returns the first law found broken, or None. It takes time in proportion to the cache."""

    @property
    def closed(self) -> bool:
        """Whether its memory is gone: nothing begins any more, and leases can only end."""

    def _close(self) -> None:
        """Closes it: from now on, verbs that begin something or go on with it raise `Misuse`."""

@final
class Recorder:
    """Writes what requests were into a file: 8 bytes of each key, lengths and times, and no token.

    A cache with `record` in its configuration has one, and its `begin`, `finish` and `abandon` tell
    it of requests. A scheduler that knows more, as when a request has come and which begin is the
    same request again, tells it by `arrived` and `ended` instead.

    It never waits: what finds no room in its queue, or on the disk, is dropped whole and counted.
    Any thread may use it.

    Args:
        path: The file. One that is there already must be a recording of blocks as large: it is
            appended to, and never overwritten.
        block_size: Tokens per block.

    Raises:
        Misuse: The path cannot be written, holds something else, or is written by another recorder.
    """

    def __new__(cls, path: str | Path, block_size: int) -> Self: ...
    def arrived(self) -> int:
        """Returns the time, in nanoseconds, for `ended` to be told of a request that arrives now.

        From the first call on, the cache's verbs tell nothing any more.
        """

    def ended(self, arrived: int, keys: Keys | None, prompt: int, answer: int, /) -> None:
        """Records a request that ends now. For 300 blocks it takes half a microsecond.

        Args:
            arrived: What `arrived` gave.
            keys: The keys of its prompt; more are left out. None where its blocks have none.
            prompt: Tokens of its prompt.
            answer: Tokens of its answer.
        """

    def counts(self) -> tuple[int, int]:
        """Returns the requests that the system has taken, and those that were dropped."""

    def trouble(self) -> str | None:
        """Returns what the system said when it first refused to write; None where it never has."""

    def close(self, seconds: float = 1.0, /) -> bool:
        """Takes no more requests, and waits until those that are there are written.

        Args:
            seconds: How long it waits at most.

        Returns:
            Whether they are.

        Raises:
            Misuse: `seconds` is out of range.
        """

def stats_schema() -> tuple[list[_Field], list[_Field]]:
    """Returns name, unit, kind, metric and meaning of what `stats` gives: for all, then per tier.

    `stats` has blocks in plans from tier to tier behind those. In a metric `*` is the tier's word.
    Any thread may call it.
    """

# What follows is the crane's arithmetic. It keeps the interpreter's lock, which NumPy releases in
# every loop of more than 500 elements.

@final
class DiskLane:
    """Blocks of one rank on a disk: slot files in a folder, and threads that read and write.

    A block is served only where its record and its sum say that it is what was asked for. A copy
    down is reported when it is durable. Any thread may call it.

    Args:
        root: The folder of all identities; it is made where it is missing.
        fields: Names and values of what the bytes depend on. Another value is another folder.
        rank: The rank.
        slots: Slots of the tier.
        block_bytes: Bytes of a block on this rank.
        direct: Whether the page cache is passed by, where the system can.
        threads: Threads that read, and as many that write.
        owned: Whether this process writes the folder. One of another process is read, as soon as
            it is there.
        rest: Seconds for which copies of one way fail at once after three failures in a row; twice
            as long after each try that fails.

    Raises:
        Misuse: A number is out of range.
        Unavailable: There is no room, another process owns the folder, or the system refuses.
    """

    def __new__(
        cls,
        root: Path,
        fields: Sequence[tuple[str, str]],
        *,
        rank: int,
        slots: int,
        block_bytes: int,
        direct: bool = True,
        threads: int = 4,
        owned: bool = True,
        rest: float = 0.5,
    ) -> DiskLane: ...
    @property
    def path(self) -> Path:
        """The folder."""

    @property
    def direct(self) -> bool:
        """Whether the page cache is passed by."""

    @property
    def run(self) -> int:
        """The number of this owner, the upper half of its stamps: higher than that of any before.

        Raises:
            Misuse: This process does not own the folder.
        """

    @property
    def floor(self) -> int:
        """The floor: what has a smaller stamp was cleared.

        Raises:
            Misuse: This process does not own the folder.
        """

    def count_as(self, run: int) -> None:
        """Counts as this owner, where that is a later one, before the first block is written.

        Args:
            run: The highest number of all ranks.

        Raises:
            Misuse: This process does not own the folder.
            Unavailable: The system refuses.
        """

    def submit_down(
        self,
        slots: _Ints,
        keys: NDArray[np.uint8],
        parents: NDArray[np.uint8],
        stamps: NDArray[np.uint64],
        planes: Sequence[tuple[NDArray[np.uint64], int, int]],
        sources: _Ints,
        plan: int = 0,
    ) -> int:
        """Takes blocks to write. Their memory stays as it is until the copy has landed.

        Args:
            slots: Slots of the disk, shape (blocks,).
            keys: The keys of the blocks, as `Plan.keys`.
            parents: Those of their parents, as `Plan.parents`.
            stamps: When they were asked for, shape (blocks,): the run in the upper 32 bits, a count
                in the lower ones that rises from block to block.
            planes: For each plane the addresses of the pieces of slot 0, the bytes from a slot to
                the next, and the bytes of a piece.
            sources: Slots of that memory, shape (blocks,).
            plan: A number of their plan, from 1 on, the same on all ranks; 0 for none.

        Returns:
            The number of the copy.

        Raises:
            Misuse: The arguments do not have as many blocks, or this process does not own the
                folder.
        """

    def submit_up(
        self,
        slots: _Ints,
        keys: NDArray[np.uint8],
        planes: Sequence[tuple[NDArray[np.uint64], int, int]],
        destinations: _Ints,
    ) -> int:
        """Takes blocks to read. Their memory is the copy's until it has landed or was given up.

        Args:
            slots: As in `submit_down`.
            keys: The keys that are asked for.
            planes: As in `submit_down`.
            destinations: Slots of that memory, shape (blocks,).

        Returns:
            The number of the copy.

        Raises:
            Misuse: As in `submit_down`.
        """

    def poll(self) -> list[tuple[int, int, str]]:
        """Returns what has ended since the last call: number, good blocks, and "" or why no more.

        The words are "failed", "corrupt" and "given up".
        """

    def wait(self, number: int, seconds: float) -> bool:
        """Waits until a copy has landed, or was given up; `poll` says how.

        Args:
            number: Of the copy, as `submit_down` and `submit_up` gave it.
            seconds: How long it waits at most.

        Returns:
            Whether it has landed.

        Raises:
            Misuse: `seconds` is below 0 or no number, or the process was forked.
        """

    def give_up(self, number: int, *, late: bool = False) -> None:
        """Gives a copy up: when it returns, no byte of its memory is read or written any more.

        A slot that a thread still writes is written for no other copy before that thread has ended.

        Args:
            number: Of the copy, as `submit_down` and `submit_up` gave it.
            late: Whether the disk did not answer in time, which counts as a failure of it.
        """

    def restore(
        self,
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint64]]:
        """Returns what is found again, the next to be evicted first.

        Their order is that of `keep_order`, where the owner before has closed the folder, else
        that of their stamps. A key may be in two slots: of those that all ranks have the later one
        counts, as `Restored.agreed` says. It is asked once.

        Returns:
            Slots, shape (blocks,); keys and parents, bytes of shape (blocks, 32), as
            `KVCache.restore` takes them; stamps, shape (blocks,), by which this rank orders them.

        Raises:
            Misuse: This process does not own the folder.
            Unavailable: The table cannot be read.
        """

    def restored(
        self,
    ) -> tuple[
        tuple[NDArray[np.uint32], NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint64]],
        NDArray[np.uint32],
    ]:
        """Returns what `restore` does, and the number of the plan that has written each block.

        All ranks must have that alike, and the stamps where it is 0. Its shape is (blocks,).

        Raises:
            Misuse: This process does not own the folder.
            Unavailable: The table cannot be read.
        """

    def clear(self, floor: int, *, patience: float = 1.0) -> bool:
        """Clears what has a smaller stamp. Nothing is reported as written before that is durable.

        Args:
            floor: The next stamp.
            patience: Seconds that it waits for that.

        Returns:
            Whether it is durable: no restart brings anything back. Where not, the lane goes on
            trying, and `stats` says so.

        Raises:
            Misuse: This process does not own the folder, or `patience` is no such number.
        """

    def forget(self) -> None:
        """Lets no restart find what is written from here on."""

    def keep_order(self, slots: _Ints) -> None:
        """Notes the eviction order for the next owner; `close` comes next.

        Args:
            slots: The next to be evicted first, as `KVCache.eviction_order`.

        Raises:
            Misuse: This process does not own the folder.
            Unavailable: The system refuses.
        """

    def stats(self) -> dict[str, int]:
        """Returns what it has done, and what it is at now. Any thread may ask."""

    def why(self) -> str:
        """Returns why the disk has refused last; "" where it never has. Any thread may ask."""

    def close(self, *, patience: float = 5.0) -> None:
        """Ends copies and threads, closes all files, and gives the folder to the next owner.

        Args:
            patience: Seconds that it waits for threads. Where one hangs in the system, the files
                are open, and the folder has no other owner, until that has ended.

        Raises:
            Misuse: `patience` is no such number.
        """

@final
class DiskSurvey:
    """A rank's folder of blocks, seen without owning it: nothing is written, and no owner waits.

    Any thread may call it.

    Args:
        path: The folder of the rank: `ROOT/IDENTITY/rank-N`.

    Raises:
        Unavailable: It is no such folder, of a later format, or the system refuses.
    """

    def __new__(cls, path: Path) -> Self: ...
    @property
    def text(self) -> str:
        """What its bytes depend on, in clear text: a title, and a line for each field."""

    @property
    def rank(self) -> int:
        """Its rank."""

    @property
    def owner(self) -> int | None:
        """The process that owned it when this was made, or None."""

    @property
    def slots(self) -> int:
        """Its slots; 0 where its files have no length yet."""

    @property
    def slot_bytes(self) -> int:
        """Bytes from a slot to the next: a block's, up to a multiple of 4 KiB."""

    @property
    def disk_bytes(self) -> int:
        """Bytes that its files take on the disk."""

    def count(self) -> list[tuple[str, int]]:
        """Counts what its slots have, by the table alone.

        Returns:
            Slots by state: "void", "broken" (no whole record), "another" (a record of another
            place), "cleared", "parked" (of a parked request, which no restart finds), "blocks".
            Those that only `scrub` finds are 0.

        Raises:
            Unavailable: The table cannot be read.
        """

    def scrub(
        self, first: int, slots: int, threads: int
    ) -> tuple[list[tuple[str, int]], list[int], int]:
        """Reads blocks, and says which are what was written.

        Args:
            first: The first slot.
            slots: Slots from there on; fewer where there are not as many.
            threads: Threads that read, 1 to 64.

        Returns:
            Slots by state, as `count`: "blocks" and "parked" are whole, others "torn" (not the
            bytes that were written), "unreadable", or "busy" (written to meanwhile). Then the slots
            that are broken, another's, torn or unreadable, and the bytes that were read.

        Raises:
            Unavailable: The table cannot be read.
        """

@final
class DiskFloor:
    """A file on a disk that is written and read with nothing else: no records, checksums or copies.

    It is what a disk tier is compared with. Any thread may call it; one call at a time measures.

    Args:
        path: The file, which is made with all of its room, and stays.
        slots: Blocks, each written and read once by each call, in an order without order.
        block_bytes: Bytes of a block; as on a disk tier they are filled up to a multiple of 4 KiB.
        threads: Threads that write and read, 1 to 64.

    Raises:
        Misuse: A number is out of range.
        Unavailable: There is no room, or the system refuses.
    """

    def __new__(cls, path: Path, *, slots: int, block_bytes: int, threads: int = 4) -> Self: ...
    @property
    def direct(self) -> bool:
        """Whether the page cache is passed by."""

    def write(self) -> None:
        """Writes each block once, and returns when all of them are durable.

        Raises:
            Unavailable: The system refuses.
        """

    def read(self) -> None:
        """Reads each block once.

        Raises:
            Unavailable: The system refuses.
        """

def checksums(plane: NDArray[np.uint8], slots: _Ints) -> NDArray[np.uint64]:
    """Returns a checksum of each of some slots of a plane: XXH3 of 64 bits over its bytes.

    The interpreter's lock is not held meanwhile. Any thread may call it; nobody may write to these
    slots before it returns.

    Args:
        plane: Bytes, shape (blocks, pieces, piece_bytes), of which a slot's follow one another.
        slots: Slots, shape (slots,).

    Returns:
        Checksums, shape (slots,).

    Raises:
        Misuse: The plane is no such array, or has no such slot.
    """

def consecutive(sources: _Ints, destinations: _Ints) -> int:
    """Counts the runs of slots that are consecutive on both sides. Any thread may call it.

    Args:
        sources: Slots, shape (blocks,).
        destinations: Slots, shape (blocks,).

    Raises:
        Misuse: The two sides do not have equally many slots.
    """

def runs(
    sources: _Ints, destinations: _Ints, source: _Places, destination: _Places, piece_bytes: int
) -> tuple[_Addresses, _Addresses, _Addresses]:
    """Returns the bytes to copy from slots to slots, in the order of the slots and their pieces.

    Slots that are consecutive on both sides make one run if, on both, a piece is a whole slot. Any
    thread may call it.

    Args:
        sources: Slots, shape (blocks,).
        destinations: Slots, shape (blocks,).
        source: Address of each piece of slot 0, and bytes from a slot to the next.
        destination: The same of the other side, with as many pieces.
        piece_bytes: Bytes of a piece.

    Returns:
        Addresses to copy to, addresses to copy from, and bytes; shape (runs,) each.

    Raises:
        Misuse: The two sides are not alike, or an address does not fit into 64 bits.
    """

def through(
    below: _Ints, places: _Places, ring: int, held: int, block_bytes: int
) -> tuple[tuple[_Addresses, _Addresses, _Addresses], list[int]]:
    """Returns the bytes to copy between slots and a ring of blocks that is filled repeatedly.

    Within one filling, blocks that follow one another in the slots make one run. Any thread may
    call it.

    Args:
        below: Slots of the tier below, shape (blocks,).
        places: Where their pieces are; in a slot they follow one another.
        ring: Address of the ring.
        held: Blocks that it holds.
        block_bytes: Bytes of a block.

    Returns:
        Addresses in the slots, addresses in the ring, and bytes, shape (runs,) each; and the first
        run of each filling, followed by the number of runs.

    Raises:
        Misuse: The ring holds nothing, or an address does not fit into 64 bits.
    """

@final
class Marks:
    """A number for each slot of a tier, 0 at first.

    Any thread may call its verbs. Each slot is read and written on its own: a reader beside a
    writer may see some slots marked and others not yet.

    Args:
        slots: Slots of the tier.

    Raises:
        Misuse: `slots` is out of range.
        Unavailable: There is no memory for them.
    """

    def __new__(cls, slots: int) -> Self: ...
    def touch(self, slots: _Ints, number: int) -> None:
        """Marks slots with a number.

        Args:
            slots: Slots, shape (slots,).
            number: The number, >= 0.

        Raises:
            Misuse: A slot does not exist; none is marked.
        """

    def latest(self, slots: _Ints) -> int:
        """Returns the highest number of these slots; 0 for no slots.

        Args:
            slots: Slots, shape (slots,).

        Raises:
            Misuse: A slot does not exist.
        """

def _forked() -> None:
    """Marks a fork, in the child: caches that were made before it refuse to be used there."""

def _panic(
    cache: Cache, place: Literal["verb", "long verb", "keys", "long keys", "binding"]
) -> None:
    """Panics on purpose, so that tests see that a panic is contained.

    It panics in a verb of this cache, while keys are made, or outside of both; at the long places
    it panics while detached. R2-8
    """
