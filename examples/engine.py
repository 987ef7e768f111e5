"""An engine and its loop: requests come and go, memory runs out, and no work is lost.

`docs/engine.md` explains it line by line.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

import blockyard as by
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.reference.model import Model, ModelInput
from blockyard.reference.weights import ModelConfig
from blockyard.scheduling.engine import Ack, Output, Step
from blockyard.scheduling.headroom import NoHeadroom
from blockyard.scheduling.request import Result

END = 401  # the token that ends a sequence


class Engine:
    """One step runs while the next is scheduled; the model and the KV memory are its own."""

    stops: Literal["in-order", "acked"] = "acked"

    def __init__(self, cache: by.KVCache, model: Model, device: MemoryTier) -> None:
        self._cache, self._model = cache, model
        self._kv = model.view(device)
        self._seats: dict[int, list[int]] = {}  # all tokens of each seat's request
        self._flight: deque[tuple[Step, NDArray[np.int32], NDArray[np.int64]]] = deque()

    def __len__(self) -> int:
        return len(self._flight)

    def submit(self, step: Step) -> None:
        """Begins a step, and never waits for it."""
        # Read now: by the time that the step runs, leases may have grown or ended.
        tables = self._cache.block_tables(step.leases)
        slots = self._cache.slot_mapping(step.leases, step.positions, step.counts)
        self._flight.append((step, tables, slots))

    def poll(self) -> tuple[list[Output], list[Ack]]:
        """Returns the outputs of all steps but the newest, which stays in flight, and acks."""
        outputs, acks = [], []
        while len(self._flight) > 1:
            step, tables, slots = self._flight.popleft()
            outputs.append(self._run(step, tables, slots))
            # Neither this step nor a later one has a row of that seat: no token follows.
            acks += [Ack(*stop) for stop in step.stops]
        return outputs, acks

    def _run(self, step: Step, tables: NDArray[np.int32], slots: NDArray[np.int64]) -> Output:
        for stop in step.stops:
            self._seats.pop(stop.seat, None)
        for start in step.starts:
            self._seats[start.seat] = start.tokens.tolist()
        if not len(step):  # it needs an output too
            return Output.nothing(step.number)
        # In the order of the leases: decodes first, then the chunks of prompts.
        rows = [self._seats[seat] for seat in step.seats.tolist()]
        firsts, lasts = step.positions.tolist(), (step.positions + step.counts).tolist()
        spans = list(zip(rows, firsts, lasts, strict=True))
        # Read only now: the newest tokens are those that the step before has sampled.
        tokens = np.concatenate([row[first:last] for row, first, last in spans])
        positions = np.concatenate([np.arange(first, last) for _, first, last in spans])
        # A decode always samples; of a prompt, only the last chunk does.
        wanted = np.cumsum(step.counts)[step.samples] - 1
        batch = ModelInput(tokens, positions, slots, tables, step.counts)
        sampled = self._model.forward(batch, self._kv, wanted).argmax(axis=1).astype(np.uint32)
        for seat, token in zip(step.sampling.tolist(), sampled.tolist(), strict=True):
            self._seats[seat].append(token)
        return Output(step.number, step.sampling, sampled, ended=sampled == END)


class Ask(NamedTuple):
    """A request, and the step before which it arrives."""

    step: int
    name: str
    prompt: list[int]
    max_tokens: int


def serve(
    asks: Sequence[Ask], aborts: Mapping[int, str], *, device: int, host: int
) -> tuple[list[Result], dict[str, int]]:
    """Serves all requests in so many blocks of memory; some are aborted before a step."""
    model = Model(ModelConfig())
    layout = model.config.layout(block_size=16)
    memory = MemoryTier(layout, device, name="device"), MemoryTier(layout, host)
    # Copies without threads make every run the same. Leave the copier out in your own engine.
    with by.local(layout, memory=memory, copier=ThreadCopier(workers=0)) as cache:
        engine = Engine(cache, model, memory[0])
        # So small a memory is used to the last block. Leave the headroom out in your own engine.
        scheduler = by.Scheduler(
            cache,
            by.SchedulerOptions(
                max_num_seqs=8,
                max_num_batched_tokens=64,
                headroom=NoHeadroom(),
                preempt_mode="park",
                stops=engine.stops,
            ),
        )
        coming, results, number = deque(asks), [], 0
        while coming or not scheduler.idle:
            while coming and coming[0].step <= number:
                ask = coming.popleft()
                scheduler.add(by.NewRequest(ask.name, ask.prompt, max_tokens=ask.max_tokens))
            if number in aborts:
                scheduler.abort(aborts[number])
            if len(engine) <= 1:  # one step that runs, and one that waits for it
                step = scheduler.schedule()
                engine.submit(step)
                number = step.number
            cache.step()  # outcomes of copies come in, new copies go out
            outputs, acks = engine.poll()
            for output in outputs:
                scheduler.on_output(output)
            scheduler.on_acks(acks)
            results += scheduler.results()
        assert cache.audit() is None  # noqa: S101 - what it is here for
        return results, scheduler.stats()


SYSTEM = [token * 37 % 500 + 10 for token in range(40)]  # all prompts begin with it
ASKS = [
    Ask(4 * at, name, SYSTEM + [(at * 61 + token * 13) % 500 + 10 for token in range(20)], 60)
    for at, name in enumerate(("Anna", "Ben", "Clara", "David", "Emma", "Felix"))
]
ABORTS = {30: "David"}  # the client hangs up

if __name__ == "__main__":
    results, stats = serve(ASKS, ABORTS, device=18, host=48)
    for result in results:
        print(f"{result.request}: {result.state} ({result.reason}), {len(result.tokens)} tokens")
    print(f"{stats['steps']} steps, {stats['preempted']} preempted, {stats['parkings']} parked")
