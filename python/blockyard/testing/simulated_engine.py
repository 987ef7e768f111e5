"""An engine that computes sums instead of attention, and checks every byte it attends to."""

from collections import Counter, deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blockyard.crane.tiers import Mapped
from blockyard.scheduling.engine import Ack, Output, Start, Step, Stop

if TYPE_CHECKING:
    from blockyard._core import Lease

__all__ = ["Broken", "SimulatedEngine", "Sums", "continuation"]

Words = NDArray[np.uint64]
Slots = NDArray[np.int64]
_MASK = 2**64 - 1
_FACTOR = 6364136223846793005


class Broken(AssertionError):
    """The simulation has found a broken law."""


def check(kept: object, said: str) -> None:
    """Raises `Broken` where a law was not kept."""
    if not kept:
        raise Broken(said)


def chained(before: int, token: int) -> int:
    """Returns a sum over all tokens up to this one."""
    mixed = ((before ^ token) * _FACTOR + 1442695040888963407) & _MASK
    return mixed ^ mixed >> 29


def sampled(sum_: int) -> int:
    """Returns the next token; 0 and the largest values occur, too."""
    token = sum_ >> 24 & 0x3FF
    return (0, 0xFFFFFFFF, 0xFFFFFFF7)[token] if token < 3 else token  # noqa: PLR2004


def ends(sum_: int) -> bool:
    """Returns whether that token ends the sequence."""
    return sum_ % 23 == 0


def continuation(prompt: Iterable[int], most: int, *, ending: bool) -> list[int]:
    """Returns what a request samples undisturbed."""
    sum_ = 0
    for token in prompt:
        sum_ = chained(sum_, token)
    tokens: list[int] = []
    while len(tokens) < most:
        tokens.append(sampled(sum_))
        if ending and ends(sum_):
            break
        sum_ = chained(sum_, tokens[-1])
    return tokens


class Sums:
    """The device memory of one rank, with a word per token and piece that depends on its sum.

    Args:
        tier: The memory; its pieces have 8 bytes for each token.
        rank: The rank; in planes that are not replicated, its words differ from other ranks'.
    """

    def __init__(self, tier: Mapped, rank: int) -> None:
        self._planes = [plane.view(np.uint64) for plane in tier.planes]
        self._marks = [
            np.arange(plane.pieces, dtype=np.uint64)
            + np.uint64(1000 * at)
            + np.uint64(0 if plane.replicated else 100 * rank)
            for at, plane in enumerate(tier.layout.planes)
        ]

    def write(self, slots: Slots, offsets: Slots, words: Words) -> None:
        """Writes one word for each token into each piece."""
        for plane, marks in zip(self._planes, self._marks, strict=True):
            plane[slots, :, offsets] = words[:, None] ^ marks

    def wrong(self, slots: Slots, offsets: Slots, words: Words) -> int:
        """Returns the first token whose words differ from these, or -1."""
        bad = np.zeros(len(words), np.bool_)
        for plane, marks in zip(self._planes, self._marks, strict=True):
            bad |= (plane[slots, :, offsets] != words[:, None] ^ marks).any(axis=1)
        return int(bad.argmax()) if bad.any() else -1

    def block(self, slot: int) -> bytes:
        """Returns the bytes of a block, plane after plane."""
        return b"".join(plane[slot].tobytes() for plane in self._planes)

    def spoil(self, slot: int) -> None:
        """Overwrites a block."""
        for plane in self._planes:
            plane[slot] = 0xDEAD

    def forget(self) -> None:
        """Overwrites all blocks."""
        for plane in self._planes:
            plane[...] = 0xDEAD


@dataclass(slots=True)
class _BatchRow:
    """A sequence in the running batch."""

    start: Start
    tokens: list[int]
    sums: list[int]
    computed: int


class _StepInFlight(NamedTuple):
    """A step that is not computed yet, with its block tables."""

    step: Step
    tables: NDArray[np.int32]
    version: int
    fates: list[tuple[str, int]]
    """The fates of its stops."""
    heard: bool
    """Whether its stops were acknowledged before it was computed."""
    writes: dict[int, int]
    """The slots that its rows may write, and the number of each slot's lease."""


class SimulatedEngine:
    """An `Engine` that computes a step as late as possible: when it is polled.

    It checks that the memory has what a row attends to, made from the same tokens, weights and
    tenant, and that no request is given work, a seat or a slot that it must not have.

    Args:
        memory: The ranks' devices; none where bytes are not checked.
        block_size: Tokens per block.
        stops: As in `Engine`.
        ending: Whether some sequences end by themselves.
        drafts: As in `Scheduler`.
        eager: Whether an idle engine acknowledges a stop before it computes the step with it.
    """

    def __init__(  # noqa: PLR0913 - keywords
        self,
        memory: list[Sums],
        *,
        block_size: int,
        stops: Literal["in-order", "acked"],
        ending: bool,
        eager: bool,
        drafts: int = 0,
    ) -> None:
        self.stops: Literal["in-order", "acked"] = stops
        self._memory = memory
        self._block_size = block_size
        self._ending = ending
        self._eager = eager
        self._drafts = drafts
        self._rows: dict[int, _BatchRow] = {}
        self._air: deque[_StepInFlight] = deque()
        self._tables = np.zeros((0, 0), np.int32)
        self._acks: list[tuple[int, int, Ack]] = []
        self._heard = 0
        self._answered = 0
        self.now = 0
        self.version = 0
        self.done = 0
        """The last step that was computed."""
        self.stalled = 0
        """Ticks in which no step is computed."""
        self.fates: deque[tuple[str, int]] = deque()
        """The fates of the next stops; later ones are acknowledged as usual."""
        self.lost: set[Stop] = set()
        """Stops that it did not hear, or whose ack was lost: only a reconcile ends them."""
        self.emitted: Counter[Hashable] = Counter()
        """How many tokens of each request were sampled and reported."""
        self.seen: Counter[str] = Counter()
        """How often each thing happened."""
        self.tags: dict[Hashable, int] = {}
        """What the KV of a request depends on beside its tokens: salt and LoRA."""
        self._tables_by_seat: dict[int, tuple[Lease, list[int]]] = {}

    def __len__(self) -> int:
        return len(self._air)

    @property
    def active(self) -> list[int]:
        """The bound seats as of the step `done`."""
        return sorted(self._rows)

    @property
    def silent(self) -> bool:
        """Whether no step and no ack is on its way."""
        return not self._air and not self._acks

    @property
    def writing(self) -> dict[int, int]:
        """The slots that steps in flight may write, and the number of each slot's lease."""
        return {slot: lease for air in self._air for slot, lease in air.writes.items()}

    @property
    def holding(self) -> set[int]:
        """The slots of the bound rows, and those that steps in flight may write."""
        slots = set(self.writing)
        for seat in self._rows.keys() & self._tables_by_seat.keys():
            lease, table = self._tables_by_seat[seat]
            # Blocks that were cut off after drafts are no longer its own.
            slots.update(table[: lease.blocks] if lease.state != "spent" else ())
        return slots

    def tables(self, tables: NDArray[np.int32]) -> None:
        """Takes the block tables of the next step, shape (rows, columns)."""
        self._tables = tables

    def replace(self, rank: int, memory: Sums) -> None:
        """Takes the memory that a rank has since its restart."""
        self._memory[rank] = memory

    def submit(self, step: Step) -> None:
        """Begins a step."""
        self.seen["in flight"] = max(self.seen["in flight"], len(self._air) + 1)
        heard = self._eager and not self._air and self.stops == "acked"
        fates = [self.fates.popleft() if self.fates else ("", 0) for _ in step.stops]
        writes = self._fenced(step)
        self._air.append(_StepInFlight(step, self._tables, self.version, fates, heard, writes))
        for stop, (fate, _) in zip(step.stops, fates, strict=True):
            if fate == "foreign" and self.stops == "acked":
                self._answer_for_others(stop)
        if heard:
            self._hear(step, fates)

    def poll(self) -> tuple[list[Output], list[Ack]]:
        """Returns the output of at most one step, and the acks that are due."""
        outputs = []
        if self.stalled:
            self.stalled -= 1
        elif self._air:
            outputs.append(self._compute(self._air.popleft()))
        due = sorted(entry for entry in self._acks if entry[0] <= self.now)
        self._acks = [entry for entry in self._acks if entry[0] > self.now]
        for _, number, ack in due:
            # A stop that is sent again is answered.
            self.lost.discard(Stop(*ack))
            self.seen["acks out of order"] += number < self._answered
            self._answered = max(self._answered, number)
        return outputs, [ack for *_, ack in due]

    def reset(self) -> None:
        """Drops seats and steps, and all KV; acks that are on their way still come."""
        self._rows.clear()
        self._air.clear()
        self._tables_by_seat.clear()
        for memory in self._memory:
            memory.forget()

    # -- a step ------------------------------------------------------------------------------

    def _fenced(self, step: Step) -> dict[int, int]:
        """Returns the slots that a step writes; no other lease may have them (INV-6).

        A block that two leases share is published, so it is computed, and no step in flight
        writes it.
        """
        writing, writes, tables = self.writing, dict[int, int](), list[tuple[int, list[int]]]()
        seats = [*step.decode.tolist(), *(chunk.seat for chunk in step.chunks)]
        for start in step.starts:
            self._tables_by_seat.pop(start.seat, None)
        for at, (seat, lease) in enumerate(zip(seats, step.leases, strict=True)):
            table = self._tables[at][: lease.blocks].tolist()
            self._tables_by_seat[seat] = lease, table
            tables.append((lease.id, table))
            first = int(step.positions[at])
            end = first + int(step.counts[at])
            own = table[first // self._block_size : -(-end // self._block_size)]
            check(not writes.keys() & own, f"INV-6: two rows of step {step.number} write {own}")
            writes |= dict.fromkeys(own, lease.id)
        for lease_id, table in tables:
            for slot in table:
                check(
                    {writing.get(slot, lease_id), writes.get(slot, lease_id)} == {lease_id},
                    f"INV-6: slot {slot} is in a table of step {step.number}, and a step in flight "
                    "writes it for another",
                )
        return writes

    def _hear(self, step: Step, fates: list[tuple[str, int]]) -> None:
        for stop, (fate, ticks) in zip(step.stops, fates, strict=True):
            if self.stops == "in-order":
                self._leave(stop)
                continue
            self.seen[f"ack {fate}".strip()] += 1
            if fate in {"lost", "unheard"}:
                self.lost.add(stop)
            if fate == "unheard":
                continue
            self._leave(stop)
            if fate != "lost":
                self._answer(Ack(*stop), self.now + (ticks if fate in {"late", "foreign"} else 0))
            if fate == "twice":
                self._answer(Ack(*stop), self.now + ticks)

    def _answer_for_others(self, stop: Stop) -> None:
        """Sends acks that resemble the awaited one, before that can come."""
        for other in (
            Ack(stop.request, stop.seat, stop.epoch - 1),
            Ack(stop.request, stop.seat + 1, stop.epoch),
            Ack("another", stop.seat, stop.epoch),
            Ack(stop.request, -1, stop.epoch),
        ):
            self._answer(other, self.now)

    def _answer(self, ack: Ack, due: int) -> None:
        self._heard += 1
        self._acks.append((due, self._heard, ack))

    def _leave(self, stop: Stop) -> None:
        """Frees the seat of a stop; an old stop does not affect a later request."""
        row = self._rows.get(stop.seat)
        if row and row.start.request == stop.request and row.start.epoch < stop.epoch:
            del self._rows[stop.seat]

    def _bind(self, start: Start) -> None:
        check(start.seat not in self._rows, f"INV-10: seat {start.seat} is bound, and is again")
        tokens = start.tokens.tolist()
        check(start.cached < len(tokens), f"{start.request}: nothing is left to compute")
        sums: list[int] = []
        for token in tokens:
            sums.append(chained(sums[-1] if sums else 0, token))
        self._rows[start.seat] = _BatchRow(start, tokens, sums, start.cached)

    def _compute(self, air: _StepInFlight) -> Output:
        step = air.step
        self.done = step.number
        stopped = {stop.seat for stop in step.stops}
        if not air.heard:
            self._hear(step, air.fates)
        for start in step.starts:
            self._bind(start)
        decodes = len(step.decode)
        numbers = [*step.decode.tolist(), *(chunk.seat for chunk in step.chunks)]
        counts = step.counts.tolist()
        chunks = [chunk.tokens for chunk in step.chunks]
        check(counts[decodes:] == chunks, f"counts of step {step.number}")
        check(len(numbers) == len(step) == len(set(numbers)), f"rows of step {step.number}")
        said: list[tuple[int, list[int], bool]] = []
        for at, (seat, count) in enumerate(zip(numbers, counts, strict=True)):
            check(seat not in stopped, f"step {step.number} stops seat {seat}, and runs it")
            row, first = self._rows.get(seat), int(step.positions[at])
            if row is None:
                # The sequence ended by itself while the step was in flight; its row still writes.
                for memory in self._memory:
                    memory.spoil(int(air.tables[at][first // self._block_size]))
                continue
            check(
                row.computed == first and (at < decodes or first + count <= len(row.tokens)),
                f"{row.start.request} has computed {row.computed} of {len(row.tokens)} tokens, and "
                f"step {step.number} wants {count} from {first}",
            )
            table = air.tables[at].astype(np.int64)
            if at < decodes:
                check(first == len(row.tokens) - 1, f"{row.start.request} decodes in its prompt")
                said.append((seat, *self._speculate(row, seat, table, count, air.version)))
                continue
            self._attend(row, table, count, air.version)
            if row.computed == len(row.tokens):
                token, ended = self._sample(row, seat)
                said.append((seat, [token], ended))
        return Output(
            step.number,
            np.array([seat for seat, _, _ in said], np.int32),
            np.array([token for _, tokens, _ in said for token in tokens], np.uint32),
            np.array([len(tokens) for _, tokens, _ in said], np.int64) if self._drafts else None,
            np.array([ended for *_, ended in said], np.bool_) if self._ending else None,
        )

    def _speculate(
        self, row: _BatchRow, seat: int, table: Slots, count: int, version: int
    ) -> tuple[list[int], bool]:
        """Computes the newest token and drafts; the KV of the wrong drafts is junk."""
        first, tokens, ended = row.computed, list[int](), False
        good = (row.sums[-1] >> 40) % count
        while len(tokens) <= good and not ended:
            self._attend(row, table, 1, version)
            token, ended = self._sample(row, seat)
            tokens.append(token)
        places = np.arange(first + len(tokens), first + count)
        slots, offsets = table[places // self._block_size], places % self._block_size
        for memory in self._memory:
            memory.write(slots, offsets, np.full(len(places), 7, np.uint64))
        return tokens, ended

    def _attend(self, row: _BatchRow, table: Slots, count: int, version: int) -> None:
        """Reads the KV of all tokens before, and writes the KV of the next ones."""
        first = row.computed
        tag = version * 0x9E3779B9 ^ self.tags.get(row.start.request, 0)
        words = np.array(row.sums[: first + count], np.uint64) ^ np.uint64(tag)
        places = np.arange(first + count)
        slots = table[places // self._block_size]
        offsets = places % self._block_size
        check(slots.min() > 0, f"{row.start.request} is computed in a null slot")
        for rank, memory in enumerate(self._memory):
            bad = memory.wrong(slots[:first], offsets[:first], words[:first])
            check(
                bad < 0,
                f"{row.start.request} attends to token {bad} of {first} in slot "
                f"{slots[bad]} of rank {rank}, which holds something else",
            )
            memory.write(slots[first:], offsets[first:], words[first:])
        row.computed = first + count

    def _sample(self, row: _BatchRow, seat: int) -> tuple[int, bool]:
        sum_ = row.sums[-1]
        token = sampled(sum_)
        row.tokens.append(token)
        row.sums.append(chained(sum_, token))
        self.emitted[row.start.request] += 1
        ended = self._ending and ends(sum_)
        if ended:
            del self._rows[seat]
        return token, ended
