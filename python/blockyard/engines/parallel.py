"""Tensor parallel: a process per rank, with its own memory, its crane, and its shards."""

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
from blockyard.engines.model import Model
from blockyard.engines.rank import Rank, RankStep, SampledTokens
from blockyard.engines.sampling import Sampling
from blockyard.engines.weights import Floats, ModelConfig
from blockyard.shared.layout import Hello
from blockyard.shared.plan import Outcome, Plan
from blockyard.shared.processes import ignore_sigint
from blockyard.yard.config import Config

__all__ = ["Ranks", "exchanged"]

_PATIENCE: Final = 60.0
"""Seconds in which a process answers, or it is called stuck."""
_GLANCE: Final = 500e-6
"""Seconds between two looks at copies that are in flight."""


class Ranks:
    """All ranks of the reference engine, each in a process of its own.

    To an engine it is what `Rank` is. To a yard it is all cranes: `submit` takes plans, and `poll`
    gives the outcomes of every rank. The ranks exchange their partial sums among themselves, and
    each samples by itself: that they sample the same is checked.

    Args:
        config: Of yard and cranes; its layout is of `ModelConfig.layout`.
        model: Figures of the model.
        seed: Of the weights.
        sampling: How tokens are drawn.

    Raises:
        Misuse: The layout is not the model's.
        Unavailable: A process is gone, or answers with nothing.
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
            raise Misuse("layout is missing: without one there are no bytes")
        self.config = model
        self.layout = layout
        self.sampling = Sampling() if sampling is None else sampling
        # What is wrong with them is said here, and not by a process.
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
            # Else nobody would notice that the other end is gone.
            for pipes in peers:
                for pipe in pipes.values():
                    pipe.close()

    # -- as all cranes -----------------------------------------------------------------------

    def hello(self) -> list[Hello]:
        """What the ranks' cranes say at the handshake."""
        return self._ask("hello")

    def submit(self, plans: Sequence[Plan]) -> None:
        """Plans for every rank's crane. Never waits."""
        if plans:
            self._tell("submit", list(plans))

    def poll(self) -> list[Outcome]:
        """What has ended on any rank since the last call. Never waits."""
        self._hear()
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    # -- as one rank -------------------------------------------------------------------------

    def begin(self, work: RankStep) -> None:
        """Takes a step; the ranks compute it at once."""
        self._tell("begin", work)

    def finish(self) -> SampledTokens | None:
        """What the oldest step has sampled; None while a rank has not computed it. Never waits."""
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
        """Other weights for the steps that are taken from now on, and no seats at first."""
        self._tell("update", seed)

    def reset(self) -> None:
        """Forgets all seats and steps. Waits until nothing is computed any more."""
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
        """Returns itself; it is closed at the end of the block."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Closes it."""
        self.close()

    def _tell(self, verb: str, what: object = None) -> None:
        if not self._ranks:
            raise Misuse("it is closed: make another")
        for rank, (_process, pipe) in enumerate(self._ranks):
            try:
                pipe.send((verb, what))
            except OSError:
                # It may have said why.
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
        """Takes all that the processes have said."""
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
        # Where one fails the others go, too: its fault says why.
        if faults:
            raise faults[0]
        if gone:
            raise _gone(gone)


def _gone(ranks: list[int]) -> Unavailable:
    return Unavailable(f"the processes of these ranks are gone: {ranks}; make all of them anew")


class _Own(NamedTuple):
    """What a rank's process is started with."""

    config: dict[str, Any]
    model: ModelConfig
    seed: int
    sampling: Sampling
    rank: int


def _serve(pipe: Connection, peers: dict[int, Connection], own: _Own) -> None:
    """One rank's process, until a pipe closes."""
    # That is how it is told to end: there is nobody left to tell.
    with suppress(EOFError, OSError):
        try:
            _Process(pipe, peers, own).run()
        except (EOFError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - it is raised again where it is waited for
            pipe.send(("fault", error))


class _Process:
    """What a rank's process does: verbs, and what its crane has to say."""

    def __init__(self, pipe: Connection, peers: dict[int, Connection], own: _Own) -> None:
        config = Config.of(own.config)
        layout = config.layout
        assert layout is not None  # noqa: S101 - `Ranks` has looked
        device = MemoryTier(layout, config.device_blocks, name="device")
        host = MemoryTier(layout, config.host_blocks) if config.host_blocks else None

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
            layout, rank=own.rank, device=device, host=host, fingerprint=config.fingerprint
        )

    def run(self) -> None:
        with self._crane as crane:
            while True:
                # A pipe that is closed is ready too: `recv` says so.
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
    """The partial sums of all ranks, in the order of the ranks.

    Of two ranks the lower speaks first, while the other listens: no pipe is ever full on both ends.

    Args:
        parts: This rank's, shape (shards, rows, hidden).
        rank: Which it is.
        peers: Pipes to the others.

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
