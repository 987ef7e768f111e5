"""One request at a time: the figures that were simulated, reproduced through the real cache."""

from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import blockyard as by
from blockyard.tools.replay.hints import Hints
from blockyard.tools.replay.sequential import sequential
from blockyard.tools.replay.spec import Policy, WritePolicy
from blockyard.tools.traces.adversaries import flood
from blockyard.tools.traces.trace import Trace, read
from blockyard.tools.traces.workload import Workload, generate
from traces import CONVERSATION, made, real
from yard import profile


@pytest.fixture(scope="module")
def conversation() -> Trace:
    return read(real(CONVERSATION))


# Hits in % of tokens.
@pytest.mark.parametrize(
    ("device", "host", "policy", "write", "hits"),
    [
        (1_000, 0, "recency", "on-evict", 4.6),
        (2_000, 0, "recency", "on-evict", 5.6),
        (5_000, 0, "recency", "on-evict", 12.1),
        (10_000, 0, "recency", "on-evict", 21.9),
        (20_000, 0, "recency", "on-evict", 29.9),
        (5_000, 0, "heap", "on-evict", 12.1),
        (1_000, 0, "optimum", "on-evict", 18.3),
        (2_000, 0, "optimum", "on-evict", 25.4),
        (5_000, 0, "optimum", "on-evict", 34.6),
        (10_000, 0, "optimum", "on-evict", 37.3),
        (2_000, 8_000, "recency", "on-evict", 21.6),
        (2_000, 8_000, "recency", "through", 18.9),
        (2_000, 8_000, "recency", "second-touch", 20.6),
    ],
)
def test_the_conversation_trace_gives_the_figures_that_were_simulated(
    conversation: Trace, device: int, host: int, policy: Policy, write: WritePolicy, hits: float
) -> None:
    result = sequential(
        conversation, device_blocks=device, host_blocks=host, policy=policy, write=write
    )
    assert 100 * result.hit_ratio == pytest.approx(hits, abs=0.1)
    assert result.audit == ("none" if policy == "optimum" else "ok")
    assert result.requests == result.requests_in_trace == 12_031
    assert result.tokens == 144_793_823
    # 100 times as fast as it happened would be 36.
    assert result.seconds < 10


def test_tiers_and_moves_add_up() -> None:
    trace = generate(1, requests=300)
    result = sequential(trace, device_blocks=1_500, host_blocks=6_000)
    ratios = result.hit_ratio_by_tier
    assert ratios["device"] + ratios["host"] == pytest.approx(result.hit_ratio)
    assert result.hits[:, 1].sum() == result.blocks_up > 0
    assert result.blocks_down > 0
    assert result.hit_ratio > sequential(trace, device_blocks=1_500).hit_ratio


# Trees of ids: a request is a path of small numbers, and equal paths have equal ids.
PATHS = st.lists(st.lists(st.integers(0, 2), min_size=0, max_size=6), min_size=1, max_size=40)


def tree(paths: list[list[int]]) -> Trace:
    names: dict[tuple[int, ...], int] = {}
    prompts = []
    for path in paths:
        prefixes = [tuple(path[: depth + 1]) for depth in range(len(path))]
        prompts.append((4 * len(path) + 2, [names.setdefault(p, len(names)) for p in prefixes]))
    return made(prompts, 4)


Path: TypeAlias = tuple[int, ...]


def lru(paths: list[list[int]], device: int) -> int:
    """Blocks hit, by a list: the least recently used leaf goes first, the deeper the older."""
    order: list[tuple[int, ...]] = []
    hits = 0
    for path in paths:
        own = [tuple(path[: depth + 1]) for depth in range(min(len(path), device))]
        found = [block for block in own if block in order]
        hits += len(found)
        others = [block for block in order if block not in own]
        keep = device - len(own)
        order = others[len(others) - keep :] if keep < len(others) else others
        order += reversed(own)
    return hits


@given(PATHS, st.integers(1, 12), st.sampled_from(["recency", "heap"]))
@profile(60)
def test_the_cache_finds_what_a_list_finds(
    paths: list[list[int]], device: int, policy: Policy
) -> None:
    result = sequential(tree(paths), device_blocks=device, policy=policy)
    assert result.hits.sum() == lru(paths, device)
    assert result.audit == "ok"


@given(PATHS, st.integers(6, 12))
@profile(60)
def test_nothing_finds_more_than_the_optimum_or_an_endless_cache(
    paths: list[list[int]], device: int
) -> None:
    trace = tree(paths)
    best = sequential(trace, device_blocks=device, policy="optimum").hits.sum()
    assert sequential(trace, device_blocks=device).hits.sum() <= best
    endless = sequential(trace, device_blocks=1_000).hits.sum()
    assert best <= endless == sequential(trace, device_blocks=1_000, policy="optimum").hits.sum()
    # What leaves the device goes down first, so that an endless host loses nothing.
    two = sequential(trace, device_blocks=device, host_blocks=1_000).hits.sum()
    assert two == endless


@given(PATHS, st.integers(6, 12))
@profile(40)
def test_below_an_endless_disk_tier_nothing_is_lost(paths: list[list[int]], device: int) -> None:
    trace = tree(paths)
    endless = sequential(trace, device_blocks=1_000).hits.sum()
    for host in (0, 13, 20):
        result = sequential(trace, device_blocks=device, host_blocks=host, disk_blocks=1_000)
        assert result.hits.sum() == endless
        assert result.hits[:, 0].sum() == lru(paths, device)
        assert result.audit == "ok"


@given(PATHS, st.integers(6, 12), st.integers(1, 12), st.sampled_from(["on-evict", "through"]))
@profile(40)
def test_without_a_host_the_disk_tier_is_the_host(
    paths: list[list[int]], device: int, below: int, write: WritePolicy
) -> None:
    trace = tree(paths)
    two = sequential(trace, device_blocks=device, host_blocks=below, write=write)
    disk = sequential(trace, device_blocks=device, disk_blocks=below, write=write)
    assert disk.hits[:, [0, 2, 1]].tolist() == two.hits.tolist()
    assert (disk.disk_down, disk.disk_up) == (two.blocks_down, two.blocks_up)


class Lists:
    """Trees over three tiers, each a list with the next to go first; a block is its path.

    A tier below the device has two lists: blocks that the device has too go after all others. In
    each, a block stands behind those that follow on it.
    """

    def __init__(self, device: int, host: int, disk: int) -> None:
        self.device: list[Path] = []
        # The device has a slot for the token behind the last full block.
        self.most = device + 1
        self.sizes = [host, disk]
        self.below: list[tuple[list[Path], list[Path]]] = [([], []), ([], [])]

    def on(self, tier: int, block: Path) -> bool:
        return any(block in rows for rows in self.below[tier])

    def free(self, tier: int) -> int:
        return self.sizes[tier] - sum(map(len, self.below[tier]))

    def above(self, tier: int, blocks: list[Path]) -> set[Path]:
        """What these blocks stand on, as far as it is on the tier."""
        found = set()
        for block in blocks:
            while self.on(tier, block := block[:-1]):
                found.add(block)
        return found

    def drop(self, tier: int, block: Path) -> None:
        for rows in self.below[tier]:
            if block in rows:
                rows.remove(block)

    def rest(self, tier: int, block: Path) -> None:
        """A block comes to rest on a tier."""
        self.drop(tier, block)
        rows = self.below[tier][block in self.device]
        follow = any(other[:-1] == block for rows in self.below[tier] for other in rows)
        if block[:-1] not in rows:
            rows.append(block)
        elif not follow:
            rows.insert(rows.index(block[:-1]), block)
        else:
            rows.append(block)
            while self.on(tier, block := block[:-1]):
                self.drop(tier, block)
                self.below[tier][block in self.device].append(block)

    def copy(self, order: list[Path], count: int, tier: int) -> None:
        """Copies those of the next `count` victims that have none below; they land together."""
        landing: list[Path] = []
        for at, block in enumerate(order[:count]):
            if any(self.on(below, block) for below in range(tier, 2)):
                continue
            stay, goes = self.above(tier, landing), self.above(tier, [block])
            idle = [other for rows in self.below[tier] for other in rows if other not in stay]
            free = self.free(tier) - len(landing)
            if free + len(idle) < 1 + len(goes - stay) or (not free and idle[0] in order[:at]):
                break
            if not free:
                self.drop(tier, idle[0])
            landing.append(block)
        for block in landing:
            self.rest(tier, block)

    def demote(self, count: int) -> None:
        host, disk = self.sizes
        if host and disk and count > self.free(0):
            self.copy(list(self.below[0][0]), count - self.free(0), 1)
        if host or disk:
            self.copy(self.device, count, 0 if host else 1)

    def changed(self, blocks: list[Path]) -> None:
        """The device has these blocks now, or has them no more."""
        for block in blocks:
            for tier in (0, 1):
                if self.on(tier, block):
                    self.rest(tier, block)

    def serve(self, tokens: list[int]) -> list[int]:
        path = [tuple(tokens[: depth + 1]) for depth in range(min(len(tokens), self.most - 1))]
        found = [block for block in path if block in self.device]
        lacks = len(path) + 1 - len(found) - (self.most - len(self.device))
        if path and lacks > 0:
            self.demote(lacks + len(found))
        hits = [len(found), 0, 0]
        for block in path[len(found) :]:
            tier = next((tier for tier in (0, 1) if self.on(tier, block)), None)
            if tier is None:
                break
            hits[1 + tier] += 1
        if path:
            for block in [block for block in self.device if block not in found][: max(lacks, 0)]:
                self.device.remove(block)
                self.changed([block])
        self.device = [block for block in self.device if block not in path] + path[::-1]
        self.changed(path[len(found) :])
        return hits


@given(PATHS, st.integers(1, 9), st.integers(0, 9), st.integers(0, 12))
@profile(150)
def test_three_tiers_find_what_three_lists_find(
    paths: list[list[int]], device: int, host: int, disk: int
) -> None:
    result = sequential(tree(paths), device_blocks=device, host_blocks=host, disk_blocks=disk)
    lists = Lists(device, host, disk)
    assert result.hits.tolist() == [lists.serve(path) for path in paths]
    assert result.audit == "ok"


@given(PATHS, st.integers(6, 12))
@profile(60)
def test_an_engine_finds_on_its_device_what_a_list_finds_and_all_else_below(
    paths: list[list[int]], device: int
) -> None:
    trace = tree(paths)
    endless = sequential(trace, device_blocks=1_000).hits.sum()
    for host, disk in ((1_000, 0), (0, 1_000)):
        result = sequential(
            trace, device_blocks=device, host_blocks=host, disk_blocks=disk, owner="engine"
        )
        assert result.hits[:, 0].sum() == lru(paths, device)
        assert result.hits.sum() == endless
        assert result.audit == "ok"
    small = sequential(
        trace, device_blocks=device, host_blocks=5, disk_blocks=1_000, owner="engine"
    )
    assert small.hits[:, 0].sum() == lru(paths, device)
    assert small.audit == "ok"


@pytest.mark.parametrize("policy", ["recency", "learned", "heap"])
def test_below_an_engine_the_host_adds_hits_under_every_order(policy: Policy) -> None:
    trace = generate(3, requests=300)
    result = sequential(
        trace, device_blocks=1_500, host_blocks=6_000, policy=policy, owner="engine"
    )
    alone = sequential(trace, device_blocks=1_500)
    assert result.hits[:, 0].tolist() == alone.hits[:, 0].tolist()
    assert result.hits[:, 1].sum() == result.blocks_up > 0
    assert result.blocks_down > 0
    assert (result.owner, result.audit) == ("engine", "ok")


def test_hints_reach_the_cache() -> None:
    trace = flood(1, requests=1_000)
    plain, told, again, lied = (
        sequential(trace, device_blocks=2_500, hints=hints, seed=4)
        for hints in (None, Hints(end=1), Hints(end=1), Hints(lies=True))
    )
    assert told.hit_ratio > plain.hit_ratio + 0.02
    assert told.hits.tolist() == again.hits.tolist()
    assert told.audit == lied.audit == "ok"


def test_a_prompt_larger_than_the_device_keeps_what_fits() -> None:
    trace = made([(40, range(10)), (40, range(10))], 4)
    for policy in ("recency", "heap", "optimum"):
        result = sequential(trace, device_blocks=3, policy=policy)
        assert result.hits[:, 0].tolist() == [0, 3]


def test_a_partial_block_is_never_hit_and_still_counts_as_tokens() -> None:
    trace = made([(3, [0]), (3, [0]), (7, [1, 2]), (7, [1, 2])], 4)
    result = sequential(trace, device_blocks=8)
    assert result.hits[:, 0].tolist() == [0, 0, 0, 1]
    assert result.tokens == 20
    assert result.hit_ratio == 4 / 20


def test_progress_is_told_and_an_interrupt_leaves_what_is_known() -> None:
    trace = generate(2, requests=450, workload=Workload(agents=0.0))
    told: list[int] = []
    whole = sequential(trace, device_blocks=500, progress=told.append)
    assert told == [100, 200, 300, 400]
    assert not whole.interrupted

    def interrupt(served: int) -> None:
        if served == 300:
            raise KeyboardInterrupt

    part = sequential(trace, device_blocks=500, progress=interrupt)
    assert part.interrupted
    assert part.requests == 300
    assert part.requests_in_trace == 450
    assert part.tokens == trace.input_length[:300].sum()
    assert np.array_equal(part.hits, whole.hits[:300])
    assert part.audit == "ok"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"device_blocks": 0}, "device_blocks = 0: must be an integer >= 1"),
        ({"host_blocks": -1}, "host_blocks = -1: must be an integer >= 0"),
        (
            {"policy": "lru"},
            "policy = 'lru': must be one of 'recency', 'learned', 'heap'",
        ),
        ({"host_copies": "never"}, "host_copies = 'never': must be one of 'first', 'last', None"),
        ({"owner": "me"}, "owner = 'me': must be one of 'cache', 'engine'"),
        ({"owner": "engine"}, "host_blocks = 0: an engine that owns its device needs a host"),
        ({"policy": "optimum", "hints": Hints(end=1)}, "no hints, no engine"),
        (
            {"write": "never"},
            "write = 'never': must be one of 'on-evict', 'through', 'second-touch'",
        ),
        (
            {"policy": "optimum", "host_blocks": 4},
            "host_blocks = 4: must be 0, as the optimum knows one tier",
        ),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(by.Misuse, match=says):
        sequential(made([(8, [0])], 4), **({"device_blocks": 8} | wrong))


@pytest.mark.parametrize("host", [0, 3])
def test_blocks_of_one_token_are_served(host: int) -> None:
    trace = made([(4, [0, 1, 2, 3]), (4, [0, 1, 2, 4]), (4, [0, 1, 2, 3])], 1)
    result = sequential(trace, device_blocks=8, host_blocks=host)
    assert (int(result.hits.sum()), result.hit_ratio, result.audit) == (7, 7 / 12, "ok")
