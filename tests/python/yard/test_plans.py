"""Plans: small frozen values that go to other processes and come back the same."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

import blockyard as by
from yard import begin, publish, publish_below, text


def some_plan(blocks: int = 5) -> by.Plan:
    cache = by.KVCache(block_size=4, device=blocks + 8, host=blocks + 8)
    publish(cache, text(1, 4 * blocks))
    plan = cache.demote(blocks)
    assert plan is not None
    return plan


def test_a_plan_says_what_is_copied_from_where_to_where() -> None:
    cache = by.KVCache(block_size=4, device=16, host=16)
    lease = begin(cache, text(1, 12))
    cache.seal(lease, 12)
    plan = cache.demote(9, of=lease)
    assert plan is not None
    assert (plan.source_tier, plan.destination_tier, plan.group) == ("device", "host", 0)
    assert plan.sources.tolist() == cache.block_tables(lease)[0].tolist()
    assert len(plan) == len(plan.destinations) == 3
    assert cache.commit(plan.flight, 3) == 1


def test_its_slots_are_read_only_arrays_of_uint32() -> None:
    plan = some_plan()
    for slots in (plan.sources, plan.destinations):
        assert slots.dtype == np.uint32
        assert slots.shape == (5,)
        with pytest.raises(ValueError, match="read-only"):
            slots[0] = 9
        with pytest.raises(ValueError, match="WRITEABLE"):
            slots.flags.writeable = True
    assert plan.sources.tolist() == plan.sources.tolist()


def test_it_is_frozen() -> None:
    plan = some_plan()
    for name in ("flight", "sources", "group", "other"):
        with pytest.raises(AttributeError):
            setattr(plan, name, 1)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_it_pickles_and_copies_and_comes_back_equal(protocol: int) -> None:
    plan = some_plan()
    for back in (pickle.loads(pickle.dumps(plan, protocol)), copy.copy(plan), copy.deepcopy(plan)):
        assert back == plan
        assert hash(back) == hash(plan)
        assert back.sources.tolist() == plan.sources.tolist()
        assert back.destinations.tolist() == plan.destinations.tolist()


@pytest.mark.parametrize("blocks", [1, 2, 100, 1000])
def test_its_bytes_are_at_most_64_and_8_per_block(blocks: int) -> None:
    plan = some_plan(blocks)
    assert len(plan) == blocks
    assert len(plan.to_bytes()) == 16 + 8 * blocks
    assert len(pickle.dumps(plan)) <= 64 + 8 * blocks


def test_another_process_reads_the_same_plan() -> None:
    plan = some_plan()
    script = (
        "import pickle, sys; plan = pickle.load(sys.stdin.buffer);"
        "print(plan.flight, plan.sources.tolist(), plan.destinations.tolist(), hash(plan))"
    )
    command = [sys.executable, "-c", script]
    answer = subprocess.run(command, input=pickle.dumps(plan), capture_output=True, check=True)  # noqa: S603
    said = f"{plan.flight} {plan.sources.tolist()} {plan.destinations.tolist()} {hash(plan)}\n"
    assert answer.stdout.decode() == said


def test_an_outcome_can_be_reported_with_the_plan_that_came_back() -> None:
    cache = by.KVCache(block_size=4, device=16, host=16)
    publish(cache, text(1, 12))
    plan = cache.demote(3)
    assert plan is not None
    assert cache.commit(by.Plan.from_bytes(plan.to_bytes())) == 1
    assert cache.commit(plan) == 0, "a duplicate"


def test_plans_are_equal_by_value_and_differ_by_any_field() -> None:
    plan, same = some_plan(), some_plan()
    assert plan == same
    assert plan is not same
    assert len({plan, same}) == 1
    assert plan != plan.to_bytes()
    data = plan.to_bytes()
    for at in (8, 16, 16 + 4 * 5):
        other = by.Plan.from_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert other != plan


def test_bytes_that_were_cut_padded_or_changed_are_refused() -> None:
    data = some_plan().to_bytes()
    for end in range(len(data)):
        with pytest.raises(by.Misuse, match=f"{end} bytes"):
            by.Plan.from_bytes(data[:end])
    for bad in (
        data + b"\0",
        data + bytes(8),
        b"XY" + data[2:],
        b"Y2" + data[2:],
        data[:3] + b"\x70" + data[4:],
        data[:3] + b"\x03" + data[4:],
        data[:8] + bytes(8) + data[16:],
        data[:4] + b"\xff\xff\xff\xff" + data[8:],
    ):
        with pytest.raises(by.Misuse, match="plan = "):
            by.Plan.from_bytes(bad)
    with pytest.raises(TypeError):
        by.Plan.from_bytes("BYPL")  # type: ignore[arg-type]


def test_runs_are_the_same_copies_joined_where_both_sides_are_consecutive() -> None:
    cache = by.KVCache(block_size=4, device=12, host=12)
    publish_below(cache, text(1, 12))
    lease = begin(cache, text(1, 13))
    (plan,) = lease.plans
    runs = plan.runs()
    assert runs.dtype == np.uint32
    assert runs.shape[1] == 3
    spread = [
        (source + at, destination + at)
        for source, destination, blocks in runs.tolist()
        for at in range(blocks)
    ]
    pairs = zip(plan.sources.tolist(), plan.destinations.tolist(), strict=True)
    assert spread == list(pairs)
    for first, second in zip(runs[:-1].tolist(), runs[1:].tolist(), strict=True):
        joined = first[0] + first[2] == second[0] and first[1] + first[2] == second[1]
        assert not joined


def test_it_says_what_it_is() -> None:
    assert repr(some_plan()) == f"Plan(flight={some_plan().flight}, 5 blocks, device to host)"
