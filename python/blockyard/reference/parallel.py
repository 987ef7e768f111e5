"""Tensor parallelism: a process per rank, with its own memory, crane and shards."""

import multiprocessing
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple, Self

import numpy as np

from blockyard._core import Misuse, Unavailable
from blockyard.crane.crane import Crane
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.reference.model import Model
from blockyard.reference.rank import Rank, RankStep, SampledTokens
from blockyard.reference.sampling import Sampling
from blockyard.reference.weights import Floats, ModelConfig
from blockyard.shared.layout import Hello
from blockyard.shared.plan import Outcome, Plan
from blockyard.shared.processes import ignore_sigint
from blockyard.shared.single import Single
from blockyard.yard.config import Config

__all__ = ["Ranks", "exchanged"]

_PATIENCE: Final = 60.0
"""Seconds after which a process that does not answer is called stuck."""
_GLANCE: Final = 500e-6
"""Seconds between two polls of copies in flight."""


class Ranks(Single):
    """All ranks of the reference engine, each in its own process.

    An engine uses it like a `Rank`. A yard uses it as all cranes: `submit` takes plans, and `poll`
    returns the outcomes of every rank. The ranks exchange their partial sums, and each samples by
    itself; `finish` checks that they sample the same.

    Args:
        config: Configures yard and cranes; its layout is from `ModelConfig.layout`.
        model: The figures of the model.
        seed: Seed of the weights.
        sampling: How tokens are drawn.

    Raises:
        Misuse: The layout is not the model's.
        Unavailable: A process is gone, or does not answer.
    """

    def __init__(
        self,
        config: Config,
        model: ModelConfig,
        *,
        seed: int = 0,
        sampling: Sampling | None = None,
    ) -> None:
        layout = config.layout
        if layout is None:
            raise Misuse("layout = None: the engine needs bytes; give ModelConfig.layout")
        self.config = model
        self.layout = layout
        self.sampling = Sampling() if sampling is None else sampling
        # This raises errors of the arguments here rather than in a process.
        Rank(
            Model(model, seed, ranks=layout.ranks),
            MemoryTier(layout, 1, name="device"),
            sampling=self.sampling,
        )
        self._said: list[deque[SampledTokens]] = [deque() for _ in range(layout.ranks)]
        self._answers: list[deque[Any]] = [deque() for _ in range(layout.ranks)]
        self._outcomes: list[Outcome] = []
        self._ranks: list[tuple[Any, Connection]] = []
        context = multiprocessing.get_context("spawn")
        peers: list[dict[int, Connection]] = [{} for _ in range(layout.ranks)]
        for one, other in combinations(range(layout.ranks), 2):
            peers[one][other], peers[other][one] = context.Pipe()
        try:
            for rank in range(layout.ranks):
                here, there = context.Pipe()
                own = _Own(config.to_mapping(), model, seed, self.sampling, rank)
                what = (there, peers[rank], own)
                process = context.Process(target=_serve, args=what, daemon=True)
                with ignore_sigint():
                    process.start()
                there.close()
                self._ranks.append((process, here))
        except BaseException:
            self.close()
            raise
        finally:
            # While this process has an end open, a rank cannot notice that its peer is gone.
            for pipes in peers:
                for pipe in pipes.values():
                    pipe.close()

    # -- as all cranes -----------------------------------------------------------------------

    def hello(self) -> list[Hello]:
        """Returns the handshakes of the ranks' cranes."""
        return self._ask("hello")

    def submit(self, plans: Sequence[Plan]) -> None:
        """Sends plans to every rank's crane; never waits."""
        if plans:
            self._tell("submit", list(plans))

    def poll(self) -> list[Outcome]:
        """Returns the outcomes of all ranks since the last call; never waits."""
        self._hear()
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    # -- as one rank -------------------------------------------------------------------------

    def begin(self, work: RankStep) -> None:
        """Sends a step, which the ranks compute at once."""
        self._tell("begin", work)

    def finish(self) -> SampledTokens | None:
        """Returns the tokens of the oldest step; None while a rank computes it; never waits."""
        self._hear()
        if not all(self._said):
            return None
        said = [one.popleft() for one in self._said]
        for rank, one in enumerate(said):
            if not np.array_equal(one.tokens, said[0].tokens):
                raise Unavailable(
                    f"rank {rank} sampled {one.tokens.tolist()} in step {one.number}, and rank 0 "
                    f"{said[0].tokens.tolist()}: run all ranks on processors of one kind"
                )
        return said[0]

    def update(self, seed: int) -> None:
        """Uses other weights for later steps, which begin without seats."""
        self._tell("update", seed)

    def reset(self) -> None:
        """Forgets all seats and steps, and waits until no step is computed."""
        self._ask("reset")
        for said in self._said:
            said.clear()

    def close(self) -> None:
        """Ends the processes."""
        for _process, pipe in self._ranks:
            pipe.close()
        for process, _pipe in self._ranks:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        self._ranks.clear()

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Ends the processes."""
        self.close()

    def _tell(self, verb: str, what: object = None) -> None:
        if not self._ranks:
            raise Misuse("the ranks are closed: make others")
        for rank, (_process, pipe) in enumerate(self._ranks):
            try:
                pipe.send((verb, what))
            except OSError:
                # Its last message may name the error.
                self._hear()
                raise _gone([rank]) from None

    def _ask(self, verb: str) -> list[Any]:
        self._tell(verb)
        stuck = time.monotonic() + _PATIENCE
        while not all(self._answers):
            self._hear()
            if time.monotonic() > stuck:
                raise Unavailable(f"no answer to {verb!r} in {_PATIENCE:.0f} s")
            time.sleep(_GLANCE)
        return [answers.popleft() for answers in self._answers]

    def _hear(self) -> None:
        """Takes all messages of the processes."""
        gone: list[int] = []
        faults: list[Exception] = []
        for rank, (_process, pipe) in enumerate(self._ranks):
            try:
                while pipe.poll():
                    word, what = pipe.recv()
                    if word == "said":
                        self._said[rank].append(what)
                    elif word == "outcomes":
                        self._outcomes += what
                    elif word == "fault":
                        faults.append(what)
                    else:
                        self._answers[rank].append(what)
            except (EOFError, ConnectionError):
                gone.append(rank)
        # When one process fails, the others end as well; its error is the cause.
        if faults:
            raise faults[0]
        if gone:
            raise _gone(gone)


def _gone(ranks: list[int]) -> Unavailable:
    return Unavailable(f"the processes of ranks {ranks} are gone: make all ranks again")


class _Own(NamedTuple):
    """The arguments of a rank's process."""

    config: dict[str, Any]
    model: ModelConfig
    seed: int
    sampling: Sampling
    rank: int


def _serve(pipe: Connection, peers: dict[int, Connection], own: _Own) -> None:
    """Runs one rank's process until a pipe closes."""
    # A closed pipe ends the process; no other process is left to report to.
    with suppress(EOFError, OSError):
        try:
            _Process(pipe, peers, own).run()
        except (EOFError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - raised again where the answer is awaited
            pipe.send(("fault", error))


class _Process:
    """A rank's process: it obeys verbs, and sends the outcomes of its crane."""

    def __init__(self, pipe: Connection, peers: dict[int, Connection], own: _Own) -> None:
        config = Config.of(own.config)
        layout = config.layout
        assert layout is not None  # noqa: S101 - `Ranks` has checked it
        device = MemoryTier(layout, config.device_blocks, name="device")
        host = MemoryTier(layout, config.host_blocks) if config.host_blocks else None
        disk = MemoryTier(layout, config.disk_blocks, name="disk") if config.disk_blocks else None

        def gather(parts: Floats) -> Floats:
            return exchanged(parts, own.rank, peers)

        self._pipe = pipe
        self._rank = Rank(
            Model(own.model, own.seed, rank=own.rank, ranks=layout.ranks),
            device,
            sampling=own.sampling,
            gather=gather if peers else None,
        )
        self._crane = Crane(
            layout,
            rank=own.rank,
            device=device,
            host=host,
            disk=disk,
            fingerprint=config.fingerprint,
        )

    def run(self) -> None:
        with self._crane as crane:
            while True:
                # A closed pipe is ready, too; then `recv` raises.
                if self._pipe.poll(_GLANCE if crane.in_flight else None):
                    self._obey(*self._pipe.recv())
                outcomes = crane.poll()
                if outcomes:
                    self._pipe.send(("outcomes", outcomes))

    def _obey(self, verb: str, what: Any) -> None:  # noqa: ANN401 - whatever the verb takes
        if verb == "begin":
            self._rank.begin(what)
            self._pipe.send(("said", self._rank.finish()))
        elif verb == "submit":
            self._crane.submit(what)
        elif verb == "update":
            self._rank.update(what)
        elif verb == "reset":
            self._rank.reset()
            self._pipe.send((verb, None))
        else:
            self._pipe.send((verb, self._crane.hello()))


def exchanged(parts: Floats, rank: int, peers: Mapping[int, Connection]) -> Floats:
    """Returns the partial sums of all ranks, in the order of the ranks.

    Of two ranks the lower one sends first while the other receives, so no pipe is ever full on both
    ends.

    Args:
        parts: This rank's sums, shape (shards, rows, hidden).
        rank: The number of this rank.
        peers: Pipes to the other ranks.

    Returns:
        Shape (shards of all ranks, rows, hidden).
    """
    all_ = {rank: parts}
    for other, pipe in sorted(peers.items()):
        if rank < other:
            pipe.send_bytes(parts.data)
        all_[other] = np.frombuffer(pipe.recv_bytes(), np.float32).reshape(parts.shape)
        if other < rank:
            pipe.send_bytes(parts.data)
    return np.concatenate([part for _, part in sorted(all_.items())])
