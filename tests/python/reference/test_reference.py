"""The reference engine: bits that no company changes, and tokens that no squeeze changes."""

import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

import blockyard as by
import simulated_cupy as simulated
from blockyard.crane.copiers import Copier
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.devices import NUMPY, Device, fetched
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.reference.model import Gather, Model, ModelInput
from blockyard.reference.parallel import Ranks, exchanged
from blockyard.reference.rank import Rank
from blockyard.reference.reference import ReferenceEngine, alone
from blockyard.reference.sampling import Sampling, key_of
from blockyard.reference.weights import Floats, ModelConfig, rotations, weights
from blockyard.scheduling.engine import Chunk, Engine, Output, Start, Step, Stop
from blockyard.scheduling.headroom import NoHeadroom
from blockyard.scheduling.options import SchedulerOptions
from blockyard.scheduling.request import RequestState
from blockyard.scheduling.scheduler import Scheduler
from blockyard.shared.layout import Order
from cranes import plan
from gpus import gpu

CONFIG = ModelConfig()
MODEL = Model(CONFIG)
# Of two shards the sum is the same in either order.
FOUR = ModelConfig(kv_heads=4, shards=4)
Prompts = dict[Hashable, tuple[list[int], int]]
Tokens = dict[Hashable, list[int]]


def prompt(seed: int, tokens: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, CONFIG.vocabulary, tokens)


def same(one: Floats, other: Floats) -> bool:
    """Byte for byte: 0.0 and -0.0 differ."""
    return one.shape == other.shape and one.tobytes() == other.tobytes()


# -- the decoder -------------------------------------------------------------------------------


class Memory:
    """Device memory full of what is no number, and block tables drawn by seed."""

    def __init__(
        self,
        *,
        model: Model = MODEL,
        size: int = 16,
        order: Order = "page-first",
        seed: int = 0,
        on: Device = NUMPY,
    ) -> None:
        layout = model.config.layout(block_size=size, ranks=model.ranks, order=order)
        tier, *_ = on.tiers(layout, 200, 0)
        for plane in tier.planes:
            plane[...] = 0xFF
        self.model = model
        self.size = size
        self.kv = model.view(tier)
        assert np.isnan(fetched(self.kv)).all()
        self.free = np.random.default_rng(seed).permutation(np.arange(1, 200))

    def table(self, tokens: int) -> NDArray[np.int32]:
        """Blocks for so many tokens."""
        blocks = -(-tokens // self.size)
        table, self.free = self.free[:blocks], self.free[blocks:]
        return table.astype(np.int32)

    def compute(
        self,
        spans: Sequence[tuple[NDArray[np.int64], NDArray[np.int32], int, int]],
        gather: Gather | None = None,
    ) -> list[Floats]:
        """Logits of positions [first, last) of each (prompt, table, first, last), in one batch."""
        positions = [np.arange(first, last) for _, _, first, last in spans]
        tables = np.zeros((len(spans), max(len(table) for _, table, _, _ in spans)), np.int32)
        for row, (_, table, _, _) in zip(tables, spans, strict=True):
            row[: len(table)] = table
        slots = [
            table[at // self.size].astype(np.int64) * self.size + at % self.size
            for (_, table, _, _), at in zip(spans, positions, strict=True)
        ]
        counts = np.array([last - first for _, _, first, last in spans])
        tokens = [text[first:last] for text, _, first, last in spans]
        batch = ModelInput(
            np.concatenate(tokens), np.concatenate(positions), np.concatenate(slots), tables, counts
        )
        logits = fetched(self.model.forward(batch, self.kv, gather=gather))
        return np.split(logits, np.cumsum(counts)[:-1])

    def whole(self, text: NDArray[np.int64], chunk: int) -> Floats:
        """Logits of all of a prompt, computed by chunks."""
        table = self.table(len(text))
        parts = [
            self.compute([(text, table, first, min(first + chunk, len(text)))])[0]
            for first in range(0, len(text), chunk)
        ]
        return np.concatenate(parts)


TEXT = prompt(1, 130)
PLAIN = Memory().whole(TEXT, 64)


def dense(text: NDArray[np.int64]) -> NDArray[np.float64]:
    """The decoder as in the books: float64, the whole text at once, no blocks and no tiles."""
    drawn = {name: one.astype(np.float64) for name, one in weights(CONFIG, 0).items()}
    heads, kv_heads, size = CONFIG.heads, CONFIG.kv_heads, CONFIG.head_dim
    length = len(text)

    def normed(values: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        scale = np.sqrt((values**2).mean(axis=-1, keepdims=True) + CONFIG.eps)
        scaled: NDArray[np.float64] = values / scale * drawn[name]
        return scaled

    frequencies = CONFIG.theta ** (-2 * np.arange(size // 2) / size)
    turns = np.exp(1j * np.arange(length)[:, None] * frequencies)[:, None]

    def turned(values: NDArray[np.float64]) -> NDArray[np.float64]:
        pairs = (values[..., : size // 2] + 1j * values[..., size // 2 :]) * turns
        return np.concatenate((pairs.real, pairs.imag), axis=-1)

    stream = drawn["embedding"][text]
    ahead = np.triu(np.full((length, length), -np.inf), 1)
    for layer in range(CONFIG.layers):
        at = f"layers.{layer}."
        inner = normed(stream, at + "attention_norm")
        q = turned((inner @ drawn[at + "query"]).reshape(length, heads, size))
        k = turned((inner @ drawn[at + "key"]).reshape(length, kv_heads, size))
        v = (inner @ drawn[at + "value"]).reshape(length, kv_heads, size)
        k, v = (np.repeat(one, heads // kv_heads, axis=1) for one in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(size) + ahead
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", shares, v).reshape(length, -1)
        stream = stream + mixed @ drawn[at + "attended"]
        inner = normed(stream, at + "mlp_norm")
        gate = inner @ drawn[at + "gate"]
        stream = (
            stream + (gate / (1 + np.exp(-gate)) * (inner @ drawn[at + "up"])) @ drawn[at + "down"]
        )
    logits: NDArray[np.float64] = normed(stream, "norm") @ drawn["output"]
    return logits


def test_it_is_the_decoder_of_the_books() -> None:
    expected = dense(TEXT)
    assert expected.std() > 0.5
    np.testing.assert_allclose(PLAIN, expected, atol=1e-4)


def test_what_it_says_depends_on_every_token_before() -> None:
    """Else a block with wrong bytes would go unnoticed."""
    for at in (0, 50, 100):
        other = TEXT.copy()
        other[at] ^= 1
        logits = Memory().whole(other, 64)
        assert same(logits[:at], PLAIN[:at])
        assert (logits[at:] != PLAIN[at:]).any(axis=1).all()
        assert (logits[at:].argmax(axis=1) != PLAIN[at:].argmax(axis=1)).mean() > 0.1


@pytest.mark.parametrize("order", ["page-first", "layer-first"])
@pytest.mark.parametrize("chunk", [1, 3, 7, 64, 130])
def test_bits_depend_neither_on_chunks_nor_on_slots_nor_on_the_layout(
    chunk: int, order: Order
) -> None:
    assert same(Memory(order=order, seed=chunk).whole(TEXT, chunk), PLAIN)


@pytest.mark.parametrize("size", [1, 5, 16, 128])
def test_bits_do_not_depend_on_the_block_size(size: int) -> None:
    assert same(Memory(size=size).whole(TEXT, 40), PLAIN)


def among_others(memory: Memory, place: int) -> Floats:
    """One of 8, each with chunks of its own, and one of them much longer than all others."""
    texts = [prompt(100 + at, (20, 300, 41, 130, 64, 7, 90, 33)[at]) for at in range(8)]
    texts[place] = TEXT
    chunks = [1 + (at * 5 + place) % 17 for at in range(8)]
    tables = [memory.table(len(text)) for text in texts]
    firsts, said = [0] * 8, list[Floats]()
    while firsts[place] < len(TEXT):
        spans = [
            (text, table, first, min(first + chunk, len(text)))
            for text, table, first, chunk in zip(texts, tables, firsts, chunks, strict=True)
            if first < len(text)
        ]
        here = next(at for at, (text, *_) in enumerate(spans) if text is TEXT)
        said.append(memory.compute(spans)[here])
        firsts = [
            min(first + chunk, len(text))
            for text, first, chunk in zip(texts, firsts, chunks, strict=True)
        ]
    return np.concatenate(said)


@pytest.mark.parametrize("place", range(8))
def test_bits_do_not_depend_on_the_neighbours(place: int) -> None:
    assert same(among_others(Memory(seed=place), place), PLAIN)


def decoded(memory: Memory, batch: int) -> Floats:
    """The second half of the text, token by token, beside others."""
    texts = [TEXT, *(prompt(200 + at, 20 + 17 * at) for at in range(batch - 1))]
    tables = [memory.table(len(text)) for text in texts]
    for text, table in zip(texts, tables, strict=True):
        memory.compute([(text, table, 0, len(text) // 2)])
    said = []
    for step in range(65):
        spans = [
            (text, table, at, at + 1)
            for text, table in zip(texts, tables, strict=True)
            if (at := len(text) // 2 + step) < len(text)
        ]
        said.append(memory.compute(spans)[0])
    return np.concatenate(said)


@pytest.mark.parametrize("batch", [1, 8])
def test_bits_of_a_row_that_decodes_are_those_of_its_prompt(batch: int) -> None:
    assert same(decoded(Memory(), batch), PLAIN[65:])


def test_rows_whose_attention_is_cut_for_size_have_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("blockyard.reference.model._MOST", 1000)
    assert same(Memory().whole(TEXT, 64), PLAIN)


@pytest.mark.parametrize(("config", "ranks"), [(CONFIG, 2), (FOUR, 2), (FOUR, 4)])
def test_the_partial_sums_of_ranks_are_those_of_one(config: ModelConfig, ranks: int) -> None:
    memories = [
        Memory(model=Model(config, rank=rank, ranks=ranks), seed=5) for rank in range(ranks)
    ]
    meeting = threading.Barrier(ranks)
    parts = [np.zeros(0, np.float32)] * ranks

    def compute(rank: int) -> Floats:
        def gather(own: Floats) -> Floats:
            parts[rank] = own
            meeting.wait(20)
            all_ = np.concatenate(parts)
            meeting.wait(20)
            return all_

        memory = memories[rank]
        (logits,) = memory.compute([(TEXT, memory.table(len(TEXT)), 0, len(TEXT))], gather)
        return logits

    whole = Memory(model=Model(config)).whole(TEXT, 64)
    with ThreadPoolExecutor(ranks) as pool:
        assert all(same(logits, whole) for logits in pool.map(compute, range(ranks)))


def test_weights_are_the_same_in_every_process_and_differ_by_seed() -> None:
    one, other = weights(CONFIG, 0), weights(CONFIG, 1)
    assert one.keys() == other.keys()
    assert all(weight.dtype == np.float32 for weight in one.values())
    assert not any(np.array_equal(one[name], other[name]) for name in one)
    # Known ones: they must be the same with every NumPy, too.
    known = [0.2372245192527771, -0.398741215467453, -0.7950572371482849]
    assert one["embedding"][0, :3].tolist() == known


def test_rotations_come_by_pages_that_are_always_whole() -> None:
    model = Model(CONFIG)
    far = model._rotated(np.array([5000]))
    near = Model(CONFIG)
    for position in (3, 1023, 1024, 5000):
        near._rotated(np.array([position]))
    assert np.array_equal(near._rotated(np.array([5000])), far)
    assert np.array_equal(far[0][0], rotations(CONFIG, 4)[0, 5000 - 4096])


# -- sampling ----------------------------------------------------------------------------------


def test_the_likeliest_token_is_the_first_of_equals() -> None:
    logits = np.array([[0, 3, 1, 3], [2, 2, 2, 2]], np.float32)
    tokens = Sampling().draw(logits, np.zeros(2, np.uint64), np.zeros(2, np.int64))
    assert tokens.tolist() == [1, 0]
    assert tokens.dtype == np.uint32


def test_a_drawn_token_depends_on_seed_request_and_position_alone() -> None:
    logits = np.tile(np.random.default_rng(0).standard_normal(512, np.float32), (64, 1))
    keys = np.array([key_of(f"request {at % 8}") for at in range(64)], np.uint64)
    positions = np.arange(64) // 8
    tokens = Sampling(1.0, seed=3).draw(logits, keys, positions)
    assert tokens.max() < 512
    assert len(set(tokens.tolist())) > 30
    for at in (0, 17, 63):
        alone_ = Sampling(1.0, seed=3).draw(
            logits[at : at + 1], keys[at : at + 1], positions[at : at + 1]
        )
        assert alone_.tolist() == [tokens[at]]
    assert (Sampling(1.0, seed=4).draw(logits, keys, positions) != tokens).mean() > 0.5


def test_tokens_are_drawn_as_softmax_has_it() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    keys = np.full(20_000, key_of("one"), np.uint64)
    tokens = Sampling(1.0).draw(np.tile(logits, (20_000, 1)), keys, np.arange(20_000))
    shares = np.bincount(tokens, minlength=4) / 20_000
    np.testing.assert_allclose(shares, [0.5, 0.3, 0.15, 0.05], atol=0.015)
    cold = Sampling(0.01).draw(np.tile(logits, (100, 1)), keys[:100], np.arange(100))
    assert not cold.any()


def test_the_key_of_a_request_is_the_same_in_every_process() -> None:
    requests = ["one", 7, ("a", 1)]
    assert len({key_of(request) for request in requests}) == 3
    program = "from blockyard.reference.sampling import key_of as key; print([*map(key, {})])"
    said = subprocess.run(  # noqa: S603 - our own
        [sys.executable, "-c", program.format(requests)],
        capture_output=True,
        check=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "5"},
    )
    assert said.stdout.strip() == str([key_of(request) for request in requests])


# -- through the scheduler ---------------------------------------------------------------------


class Ran(NamedTuple):
    """What became of requests, and how."""

    tokens: Tokens
    stats: dict[str, int]
    most: int
    """Most steps in flight."""


def requests(count: int, most: int = 24) -> Prompts:
    """Every other one begins like others do."""
    common = prompt(7, 40).tolist()
    return {
        f"request {at}": (
            (common[: 40 * (at % 2)] + prompt(300 + at, 5 + 11 * at % 37).tolist()),
            most - at % 5,
        )
        for at in range(count)
    }


def play(
    cache: by.KVCache,
    engine: ReferenceEngine,
    wanted: Prompts,
    *,
    move: Callable[[], object],
    flight: int = 0,
    each: Callable[[int, Scheduler], None] | None = None,
    **keywords: Any,
) -> Ran:
    """Runs requests to their end, with at most `flight` steps in flight beside the newest."""
    chosen: dict[str, Any] = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "preempt_cooldown": 1,
        "stops": engine.stops,
    }
    scheduler = Scheduler(cache, SchedulerOptions(headroom=NoHeadroom(), **chosen | keywords))
    for request, (text, most) in wanted.items():
        scheduler.add(by.NewRequest(request, text, max_tokens=most))
    asked: Engine = engine
    tokens: Tokens = {}
    highest, ticks, news = 0, 0, True
    stuck = time.monotonic() + 40
    while not scheduler.idle:
        ticks += 1
        assert time.monotonic() < stuck, scheduler.stats()
        sizes = scheduler.stats()
        if len(engine) <= flight and (sizes["waiting"] or sizes["seats"]):
            if each is not None:
                each(ticks, scheduler)
            asked.submit(scheduler.schedule())
        elif not news:
            time.sleep(100e-6)  # of other processes
        highest = max(highest, len(engine))
        move()
        outputs, acks = asked.poll()
        news = bool(outputs)
        for output in outputs:
            scheduler.on_output(output)
        scheduler.on_acks(acks)
        for result in scheduler.results():
            assert result.state is RequestState.FINISHED, result
            tokens[result.request] = result.tokens.tolist()
        assert cache.audit() is None
    return Ran(tokens, scheduler.stats() | cache.stats(), highest)


def ran(
    device: int,
    *,
    wanted: Prompts | None = None,
    host: int = 0,
    lag: int = 0,
    late: int = 0,
    stops: Literal["in-order", "acked"] = "acked",
    sampling: Sampling | None = None,
    order: Order = "page-first",
    size: int = 4,
    model: Model = MODEL,
    copier: Copier | None = None,
    on: Device = NUMPY,
    **keywords: Any,
) -> Ran:
    """Requests through an engine of their own, in this process."""
    layout = model.config.layout(block_size=size, order=order)
    config = by.Config(layout=layout, device=device, host=host)
    cache, engine = alone(
        model, config, sampling=sampling, stops=stops, lag=lag, late=late, copier=copier, on=on
    )
    # What was never written would show in every token.
    engine._ranks._kv[...] = np.nan  # type: ignore[union-attr]
    with cache:
        wanted = requests(10) if wanted is None else wanted
        return play(cache, engine, wanted, move=cache.step, flight=lag, **keywords)


@pytest.fixture(scope="module")
def ample() -> Tokens:
    """What the requests say with all the memory they want."""
    calm = ran(400)
    assert calm.stats["preempted"] == 0
    assert {len(tokens) for tokens in calm.tokens.values()} == {20, 21, 22, 23, 24}
    assert all(len(set(tokens)) > 5 for tokens in calm.tokens.values())
    return calm.tokens


def test_tokens_are_those_of_a_decoder_without_blocks(ample: Tokens) -> None:
    for request in ("request 0", "request 3"):
        text, most = requests(10)[request]
        tokens = list(text)
        while len(tokens) < len(text) + most:
            tokens.append(int(dense(np.array(tokens))[-1].argmax()))
        assert tokens[len(text) :] == ample[request]


@pytest.mark.parametrize("stops", ["in-order", "acked"])
@pytest.mark.parametrize("lag", [0, 1, 2, 3])
def test_a_squeeze_changes_no_token_with_steps_in_flight(
    lag: int, stops: Literal["in-order", "acked"], ample: Tokens
) -> None:
    squeezed = ran(37, lag=lag, stops=stops)
    assert squeezed.stats["preempted"] > 0
    assert squeezed.most == lag + 1
    assert squeezed.tokens == ample


@pytest.mark.parametrize("late", [1, 5])
def test_late_acks_change_no_token(late: int, ample: Tokens) -> None:
    squeezed = ran(37, lag=1, late=late)
    assert squeezed.stats["preempted"] > 0
    assert squeezed.tokens == ample


@pytest.mark.parametrize("order", ["page-first", "layer-first"])
@pytest.mark.parametrize("workers", [0, 2])
def test_blocks_that_come_back_from_the_host_are_the_same_blocks(
    workers: int, order: Order, ample: Tokens
) -> None:
    squeezed = ran(37, host=60, order=order, lag=1, copier=ThreadCopier(workers=workers))
    assert squeezed.stats["preempted"] > 0
    # How many have left the device in time is up to the threads.
    assert workers or squeezed.stats["host_out"] > 0
    assert squeezed.tokens == ample


@pytest.mark.parametrize(("budget", "seats", "size"), [(9, 3, 4), (17, 8, 16), (512, 1, 1)])
def test_budget_seats_and_block_size_change_no_token(
    budget: int, seats: int, size: int, ample: Tokens
) -> None:
    assert ran(800, max_num_batched_tokens=budget, max_num_seqs=seats, size=size).tokens == ample


@pytest.mark.parametrize("lag", [0, 2])
def test_tokens_that_are_drawn_by_seed_survive_a_squeeze_too(lag: int, ample: Tokens) -> None:
    sampling = Sampling(0.8, seed=5)
    calm = ran(400, sampling=sampling)
    squeezed = ran(37, sampling=sampling, lag=lag)
    assert squeezed.stats["preempted"] > 0
    assert squeezed.tokens == calm.tokens
    assert sum(calm.tokens[name] != ample[name] for name in ample) >= 9
    assert max(token for tokens in calm.tokens.values() for token in tokens) < CONFIG.vocabulary


@pytest.mark.parametrize("stops", ["in-order", "acked"])
@pytest.mark.parametrize("lag", [0, 1, 3])
def test_an_end_token_ends_a_sequence_wherever_it_is_sampled(
    lag: int, stops: Literal["in-order", "acked"], ample: Tokens
) -> None:
    end = ample["request 1"][9]
    expected = {
        name: tokens[: tokens.index(end) + 1] if end in tokens else tokens
        for name, tokens in ample.items()
    }
    squeezed = ran(37, lag=lag, stops=stops, sampling=Sampling(end=end))
    assert squeezed.stats["preempted"] > 0
    assert squeezed.tokens == expected


def test_a_reset_forgets_its_seats_and_no_token_changes(ample: Tokens) -> None:
    config = by.Config(layout=CONFIG.layout(block_size=4), device=60)
    cache, engine = alone(MODEL, config, lag=2)

    def each(tick: int, scheduler: Scheduler) -> None:
        if tick in {7, 30}:
            engine.reset()
            scheduler.reset()
            assert len(engine) == 0

    with cache:
        found = play(cache, engine, requests(10), move=cache.step, flight=2, each=each)
    assert found.tokens == ample


@pytest.mark.parametrize("lag", [0, 2])
def test_tokens_after_other_weights_are_those_of_the_other_weights(lag: int) -> None:
    """A running request keeps its tokens, and the following ones use the new weights."""
    config = by.Config(layout=CONFIG.layout(block_size=4), device=200)
    wanted = requests(4)
    cache, engine = alone(MODEL, config, lag=lag)

    def each(tick: int, scheduler: Scheduler) -> None:
        if tick == 12:
            engine.update_weights(1)
            scheduler.update_weights()

    with cache:
        found = play(cache, engine, wanted, move=cache.step, flight=lag, each=each).tokens
    other, old = Model(CONFIG, 1), ran(200, wanted=wanted).tokens
    for name, tokens in found.items():
        text, _ = wanted[name]
        logits = Memory(model=other).whole(np.array([*text, *tokens[:-1]]), 64)
        new = logits[len(text) - 1 :].argmax(axis=1).tolist()
        kept = next(at for at, (a, b) in enumerate(zip(tokens, old[name], strict=True)) if a != b)
        # It may say the same by chance, but not for long.
        assert kept > 0
        assert tokens[kept:] == new[kept:]


def test_stops_are_acked_where_every_row_was_stopped() -> None:
    config = by.Config(layout=CONFIG.layout(block_size=4), device=60)
    cache, engine = alone(MODEL, config, lag=1)
    scheduler = Scheduler(cache, SchedulerOptions(stops="acked"))
    with cache:
        for name in ("one", "two"):
            scheduler.add(by.NewRequest(name, prompt(ord(name[0]), 9), max_tokens=9))
        engine.submit(scheduler.schedule())
        engine.submit(scheduler.schedule())
        for name in ("one", "two"):
            scheduler.abort(name)
        step = scheduler.schedule()
        assert (len(step.stops), len(step)) == (2, 0)
        engine.submit(step)
        assert engine.poll() == ([], [])
        outputs, acks = engine.poll()
        assert [output.step for output in outputs] == [1, 2, 3]
        assert [tuple(ack) for ack in acks] == [tuple(stop) for stop in step.stops]
        assert engine.poll() == ([], [])


# -- in the memory of a GPU --------------------------------------------------------------------


@pytest.mark.parametrize("order", ["page-first", "layer-first"])
def test_a_simulated_gpu_computes_the_same_bits(order: Order) -> None:
    model = Model(CONFIG, xp=simulated)
    memory = Memory(model=model, on=simulated.elsewhere(), order=order)
    assert same(memory.whole(TEXT, 7), PLAIN)
    assert same(among_others(memory, 2), PLAIN)
    assert same(decoded(Memory(model=model, on=simulated.elsewhere()), 3), PLAIN[65:])


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_simulated_gpu_says_the_same_under_a_squeeze(temperature: float) -> None:
    model, sampling = Model(CONFIG, xp=simulated), Sampling(temperature, seed=5)
    wanted = requests(6)
    squeezed = ran(
        30,
        wanted=wanted,
        host=60,
        lag=1,
        model=model,
        sampling=sampling,
        on=simulated.elsewhere(3),
    )
    assert squeezed.stats["preempted"] > 0
    assert squeezed.stats["host_out"] > 0
    assert squeezed.tokens == ran(400, wanted=wanted, sampling=sampling).tokens


def test_a_step_waits_for_the_gpu_once_and_without_a_token_never() -> None:
    model = Model(CONFIG, xp=simulated)
    layout = CONFIG.layout(block_size=4)
    cache, engine = alone(model, by.Config(layout=layout, device=60), on=simulated.elsewhere())
    scheduler = Scheduler(cache, SchedulerOptions(max_num_batched_tokens=16, stops=engine.stops))
    simulated.waits.clear()
    expected = 0
    with cache:
        for seed in range(3):
            scheduler.add(by.NewRequest(seed, prompt(seed, 20), max_tokens=5))
        while not scheduler.idle:
            engine.submit(scheduler.schedule())
            cache.step()
            outputs, acks = engine.poll()
            for output in outputs:
                expected += len(output.seats) > 0
                assert simulated.waits.total() == expected
                scheduler.on_output(output)
            scheduler.on_acks(acks)
    assert simulated.waits == {"get": expected}


def test_other_weights_are_in_the_memory_of_the_first() -> None:
    rank = Rank(Model(CONFIG, xp=simulated), simulated.elsewhere().tiers(CONFIG.layout(), 2, 0)[0])
    rank.update(1)
    rank.finish()
    assert rank._model.xp is simulated
    assert isinstance(rank._model._embedding, simulated.ndarray)


@pytest.mark.gpu
def test_on_a_gpu_bits_depend_on_no_company_and_are_nearly_those_of_the_books() -> None:
    on = gpu()
    model = Model(CONFIG, xp=on.xp)
    whole = Memory(model=model, on=on).whole(TEXT, 64)
    np.testing.assert_allclose(whole, dense(TEXT), atol=1e-4)
    orders: tuple[Order, ...] = ("page-first", "layer-first")
    for order in orders:
        for chunk in (1, 7, 130):
            assert same(Memory(model=model, on=on, order=order).whole(TEXT, chunk), whole)
    for size in (1, 5, 128):
        assert same(Memory(model=model, on=on, size=size).whole(TEXT, 40), whole)
    for place in range(8):
        assert same(among_others(Memory(model=model, on=on), place), whole)
    for batch in (1, 8):
        assert same(decoded(Memory(model=model, on=on), batch), whole[65:])


@pytest.mark.gpu
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_on_a_gpu_a_squeeze_changes_no_token(temperature: float) -> None:
    on = gpu()
    model, sampling = Model(CONFIG, xp=on.xp), Sampling(temperature, seed=5)
    calm = ran(400, model=model, sampling=sampling, on=on)
    squeezed = ran(37, host=60, lag=1, model=model, sampling=sampling, on=on)
    assert squeezed.stats["preempted"] > 0
    assert squeezed.tokens == calm.tokens


# -- two processes -----------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 20_000])
def test_partial_sums_arrive_in_the_order_of_the_ranks_on_all_of_them(rows: int) -> None:
    """More of them than a pipe holds, too."""
    peers: list[dict[int, Any]] = [{}, {}, {}]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        peers[one][other], peers[other][one] = multiprocessing.Pipe()
    parts = [np.full((2, rows, 16), rank, np.float32) for rank in range(3)]
    with ThreadPoolExecutor(3) as pool:
        all_ = list(pool.map(exchanged, parts, range(3), peers))
    assert all(same(one, np.concatenate(parts)) for one in all_)
    for pipes in peers:
        for pipe in pipes.values():
            pipe.close()


@contextmanager
def processes(
    *, device: int, host: int = 0
) -> Iterator[tuple[by.KVCache, Ranks, Callable[[], None]]]:
    """A crane and a shard in each of two processes, and their yard here."""
    layout = FOUR.layout(block_size=4, ranks=2, order="layer-first")
    config = by.Config(layout=layout, device=device, host=host)
    with Ranks(config, FOUR) as ranks:
        cache = by.KVCache(by.agree(config, ranks.hello()))
        now = 0

        def move() -> None:
            nonlocal now
            now += 1
            cache.commit(ranks.poll(), now=now)
            ranks.submit(cache.dispatch())

        yield cache, ranks, move


def test_two_processes_say_what_one_says_and_a_squeeze_changes_nothing() -> None:
    calm = ran(400, model=Model(FOUR))
    with processes(device=37, host=60) as (cache, ranks, move):
        for lag in (0, 2):
            engine = ReferenceEngine(cache, ranks, lag=lag)
            squeezed = play(cache, engine, requests(10), move=move, flight=lag)
            assert squeezed.stats["preempted"] > 0
            assert squeezed.stats["outcomes"] > 0
            assert squeezed.stats["kept_blocks"] > squeezed.stats["relieved"] > 0
            assert squeezed.tokens == calm.tokens
            engine.reset()
            cache.clear()


def test_a_process_that_is_gone_is_said() -> None:
    with processes(device=20) as (cache, ranks, _move):
        engine = ReferenceEngine(cache, ranks)
        scheduler = Scheduler(cache)
        scheduler.add(by.NewRequest("one", [1, 2, 3], max_tokens=3))
        ranks._ranks[1][0].kill()
        ranks._ranks[1][0].join()
        with pytest.raises(by.Unavailable, match="gone"):
            engine.submit(scheduler.schedule())
        with pytest.raises(by.Unavailable, match=r"processes of ranks \[.*1\] are gone"):
            ranks.poll()
    with pytest.raises(by.Misuse, match="closed"):
        ranks.hello()


def test_what_goes_wrong_in_a_process_is_raised_here() -> None:
    with processes(device=20, host=20) as (_cache, ranks, _move):
        ranks.submit([plan(1, "down", (1, 20), (2, 3))])
        for rank in range(2):
            assert ranks._ranks[rank][1].poll(20)
        with pytest.raises(by.Misuse, match="device slot 20"):
            ranks.poll()


# -- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"heads": 3}, "heads = 3: must be a multiple of 2"),
        ({"kv_heads": 3, "heads": 6}, "kv_heads = 3: must be a multiple of 2"),
        ({"head_dim": 5}, "head_dim = 5: must be a multiple of 2"),
        ({"layers": 0}, "layers = 0"),
        ({"theta": 0.0}, "theta = 0.0: must be a number > 0"),
        ({"eps": float("nan")}, "eps = nan"),
    ],
)
def test_figures_that_do_not_divide_are_refused(figures: dict[str, Any], said: str) -> None:
    with pytest.raises(by.Misuse, match=said):
        ModelConfig(**figures)


def test_shards_that_do_not_divide_over_the_ranks_are_refused() -> None:
    with pytest.raises(by.Misuse, match="must divide the model's 2 shards"):
        CONFIG.layout(ranks=4)
    for rank, ranks in ((0, 4), (2, 2)):
        with pytest.raises(by.Misuse, match=f"rank {rank} of {ranks}"):
            Model(CONFIG, rank=rank, ranks=ranks)
    half = Memory(model=Model(CONFIG, ranks=2))
    with pytest.raises(by.Misuse, match="give a gather function"):
        half.whole(TEXT, 64)


@pytest.mark.parametrize(
    "layout",
    [
        by.KVLayout.llama(3, 2, 16, dtype="float32"),
        by.KVLayout.llama(4, 2, 16, dtype="bfloat16"),
        by.KVLayout.llama(4, 2, 32, dtype="float16"),
        by.KVLayout.llama(4, 2, 16, dtype="float32", ranks=2),
        by.KVLayout.llama(4, 2, 16, dtype="float32", scale_dtype="float32"),
    ],
)
def test_memory_of_another_layout_is_refused(layout: by.KVLayout) -> None:
    with pytest.raises(by.Misuse, match=r"make it with ModelConfig\.layout"):
        Rank(MODEL, MemoryTier(layout, 2, name="device"))


def test_a_cache_of_another_layout_is_refused() -> None:
    rank = Rank(MODEL, MemoryTier(CONFIG.layout(), 2, name="device"))
    with pytest.raises(by.Misuse, match="another layout"):
        ReferenceEngine(by.KVCache(CONFIG.layout(block_size=8), device=2), rank)
    with pytest.raises(by.Misuse, match="layout = None: the engine needs bytes"):
        alone(MODEL, by.Config(device=2))
    with pytest.raises(by.Misuse, match="layout = None: the engine needs bytes"):
        Ranks(by.Config(device=2), CONFIG)


def test_words_and_numbers_out_of_range_are_refused() -> None:
    config = by.Config(layout=CONFIG.layout(), device=4)
    bad: list[dict[str, Any]] = [{"lag": -1}, {"late": 0.5}, {"stops": "never"}]
    for keywords in bad:
        with pytest.raises(by.Misuse, match=next(iter(keywords))):
            alone(MODEL, config, **keywords)
    bad = [{"temperature": -1.0}, {"temperature": float("inf")}, {"seed": -1}, {"end": -1}]
    for keywords in bad:
        with pytest.raises(by.Misuse, match=next(iter(keywords))):
            Sampling(**keywords)
    with pytest.raises(by.Misuse, match="end = 512: the vocabulary has 512 tokens"):
        alone(MODEL, config, sampling=Sampling(end=512))


class Told:
    """An engine that is told its steps by hand."""

    def __init__(self) -> None:
        config = by.Config(layout=CONFIG.layout(), device=20)
        self.cache, self.engine = alone(MODEL, config)
        self.lease = self.cache.begin(range(5), reserve=20)
        self.number = 0

    def step(
        self,
        *,
        starts: tuple[Start, ...] = (),
        chunks: tuple[Chunk, ...] = (),
        decode: tuple[int, int] | None = None,
        count: int = 1,
        stops: tuple[Stop, ...] = (),
    ) -> Output:
        """Rows of one lease; `decode` is a seat and its position."""
        self.number += 1
        rows = ([] if decode is None else [(decode[1], count)]) + [
            (chunk.first, chunk.tokens) for chunk in chunks
        ]
        step = Step(
            self.number,
            stops,
            starts,
            chunks,
            np.array([] if decode is None else [decode[0]], np.int32),
            [self.lease] * len(rows),
            np.array([first for first, _ in rows], np.int64),
            np.array([tokens for _, tokens in rows], np.int64),
        )
        self.engine.submit(step)
        ((output,), _acks) = self.engine.poll()
        return output


def start(seat: int, tokens: Sequence[int] = range(5), cached: int = 0, epoch: int = 1) -> Start:
    return Start("one", seat, epoch, np.array(tokens, np.uint32), cached)


def test_a_step_that_contradicts_the_ones_before_is_refused_and_changes_nothing() -> None:
    told = Told()
    with pytest.raises(by.Misuse, match="step 1 runs seat 3, which is not bound"):
        told.step(chunks=(Chunk(3, 0, 5),))
    told.number = 0
    bad: list[tuple[str, dict[str, Any]]] = [
        ("leave at least one", {"starts": (start(0, cached=5),)}),
        ("token 512", {"starts": (start(0, [1, 512]),)}),
        ("from position 1, and it stands at 0", {"chunks": (Chunk(0, 1, 2),)}),
        ("seat 0 is bound", {"starts": (start(0), start(0))}),
    ]
    for said, what in bad:
        with pytest.raises(by.Misuse, match=said):
            told.step(**{"starts": (start(0),)} | what)
        told.number = 0
    assert told.step(starts=(start(0),), chunks=(Chunk(0, 0, 3),)).seats.tolist() == []
    assert told.step(chunks=(Chunk(0, 3, 2),)).seats.tolist() == [0]
    told.cache.grow(told.lease)
    with pytest.raises(by.Unsupported, match="seat 0 has drafts in step 3"):
        told.step(decode=(0, 5), count=2)
    told.number = 1
    with pytest.raises(by.Misuse, match="step 2: the last one was 2"):
        told.step(decode=(0, 5))
    assert told.step(decode=(0, 5)).seats.tolist() == [0]
    told.engine.update_weights(1)
    with pytest.raises(by.Misuse, match="seat 0, which is not bound"):
        told.step(decode=(0, 6))
    told.cache.close()


def test_a_stop_of_an_old_epoch_changes_nothing_for_a_later_one() -> None:
    told = Told()
    told.step(starts=(start(0, epoch=4),), chunks=(Chunk(0, 0, 5),))
    told.step(stops=(Stop("one", 0, 3),))
    told.cache.grow(told.lease)
    assert told.step(decode=(0, 5)).seats.tolist() == [0]
    told.step(stops=(Stop("one", 0, 5),))
    with pytest.raises(by.Misuse, match="not bound"):
        told.step(decode=(0, 6))
    told.cache.close()
