"""Plans: small frozen values that go to other processes and come back the same."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
from numpy.typing import NDArray

import blockyard as by
from yard import at_rest, begin, publish, publish_below, text, there


def some_plan(blocks: int = 5, keyed: tuple[str, ...] = ()) -> by.Plan:
    cache = by.KVCache(block_size=4, device=blocks + 8, host=blocks + 8, keyed=keyed, yard=7)
    publish(cache, text(1, 4 * blocks))
    return there(cache.demote(blocks))


def test_a_plan_says_what_is_copied_from_where_to_where() -> None:
    cache = by.KVCache(block_size=4, device=16, host=16)
    lease = begin(cache, text(1, 12))
    cache.seal(lease, 12)
    plan = there(cache.demote(9, of=lease))
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


@pytest.mark.law("R1-4")
@pytest.mark.parametrize("blocks", [1, 2, 100, 1000])
def test_its_bytes_are_at_most_72_and_8_per_block(blocks: int) -> None:
    plan = some_plan(blocks)
    assert len(plan) == blocks
    assert len(plan.to_bytes()) == 24 + 8 * blocks
    assert len(pickle.dumps(plan)) <= 72 + 8 * blocks


def rows(keys: NDArray[np.uint8] | None) -> list[bytes]:
    assert keys is not None
    return [bytes(key) for key in keys]


def hashed(cache: by.KVCache, tokens: list[int]) -> list[bytes]:
    """The keys of a prompt's full blocks."""
    whole = bytes(cache.keys(tokens))
    return [whole[at : at + 32] for at in range(0, len(whole), 32)]


def test_a_plan_of_tiers_that_know_no_keys_has_none() -> None:
    plan = some_plan()
    assert (plan.keys, plan.parents, plan.rank) == (None, None, 0)
    assert plan.to_bytes()[:2] == b"Y3"


def test_to_a_keyed_tier_it_has_keys_and_parents_and_from_there_keys() -> None:
    cache = by.KVCache(block_size=4, device=8, host=8, keyed=("host",))
    prompt = text(1, 12)
    one, two, three = hashed(cache, prompt)
    publish(cache, prompt)
    down = there(cache.demote(3))
    assert rows(down.keys) == [three, two, one]
    assert rows(down.parents) == [two, one, bytes(32)]
    assert len(down.to_bytes()) == 32 + 72 * 3
    cache.commit(down)
    cache.finish(begin(cache, text(9, 28)))
    lease = begin(cache, [*prompt, 0])
    (up,) = lease.plans
    assert (rows(up.keys), up.parents) == ([one, two, three], None)
    assert len(up.to_bytes()) == 32 + 40 * 3
    cache.commit(lease.plans)
    cache.finish(lease)
    at_rest(cache)


def test_what_was_parked_without_a_key_has_its_own_until_it_resumes() -> None:
    cache = by.KVCache(block_size=4, device=12, host=12, keyed=("host",))
    prompt = text(1, 6)
    (root,) = hashed(cache, prompt)
    parked = cache.park(begin(cache, prompt), 6)
    down = there(cache.demote(2, of=parked))
    tail, first = rows(down.keys)
    assert (first, tail[:24], rows(down.parents)) == (root, bytes(24), [root, bytes(32)])
    assert any(tail)
    cache.commit(down)
    cache.finish(begin(cache, text(9, 44)))
    lease = begin(cache, parked)
    (up,) = lease.plans
    assert rows(up.keys) == [root, tail]
    cache.commit(lease.plans)
    cache.finish(lease)
    at_rest(cache)


def test_its_keys_are_read_only_arrays_of_bytes() -> None:
    plan = some_plan(keyed=("host",))
    for keys in (plan.keys, plan.parents):
        assert keys is not None
        assert keys.dtype == np.uint8
        assert keys.shape == (5, 32)
        with pytest.raises(ValueError, match="read-only"):
            keys[0] = 9
        with pytest.raises(ValueError, match="WRITEABLE"):
            keys.flags.writeable = True


@pytest.mark.parametrize("blocks", [1, 2, 100, 1000])
def test_with_keys_it_travels_like_any_other(blocks: int) -> None:
    plan = some_plan(blocks, keyed=("host",))
    data = plan.to_bytes()
    assert len(data) == 32 + 72 * blocks
    assert len(pickle.dumps(plan)) <= 88 + 72 * blocks
    assert by.Plan.from_bytes(data) == pickle.loads(pickle.dumps(plan)) == plan
    assert rows(pickle.loads(pickle.dumps(plan)).keys) == rows(plan.keys)
    plain = some_plan(blocks)
    assert plan != plain
    assert (plan.sources.tolist(), plan.flight) == (plain.sources.tolist(), plain.flight)
    for at in (8, 16, 32, 32 + 8 * blocks, len(data) - 1):
        assert by.Plan.from_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) != plan


def test_an_outcome_is_not_taken_of_a_plan_with_other_keys() -> None:
    cache = by.KVCache(block_size=4, device=16, host=16, keyed=("host",))
    publish(cache, text(1, 12))
    plan = there(cache.demote(3))
    data = plan.to_bytes()
    with pytest.raises(by.ForeignLease):
        cache.commit(by.Plan.from_bytes(data[:-1] + bytes([data[-1] ^ 1])))
    assert cache.commit(by.Plan.from_bytes(data)) == 1


def test_with_keys_bytes_that_were_cut_padded_or_changed_are_refused() -> None:
    data = some_plan(keyed=("host",)).to_bytes()
    for end in range(len(data)):
        with pytest.raises(by.Misuse, match=f"{end} bytes"):
            by.Plan.from_bytes(data[:end])
    for bad, says in (
        (data + b"\0", "cut or padded"),
        (data[:-160], "cut or padded"),
        (b"Y2" + data[2:], "version"),
        (b"Y3" + data[2:], "plan = "),
        (data[:3] + b"\x07" + data[4:], "flags"),
        (data[:3] + b"\x02" + data[4:], "none of the blocks themselves"),
        (data[:25] + b"\x01" + data[26:], "group"),
        (data[:30] + b"\x01" + data[31:], "reserved"),
    ):
        with pytest.raises(by.Misuse, match=says):
            by.Plan.from_bytes(bad)


def test_a_key_of_the_engines_own_that_stands_for_something_else_is_refused() -> None:
    for key, refused in ((bytes(24) + b"hash8byt", True), (b"\xff" * 32, True), (b"k" * 32, False)):
        cache = by.KVCache(block_size=4, device=8, host=8, keyed=("host",))
        lease = begin(cache, cache.ready_keys(key, 4))
        if refused:
            with pytest.raises(by.Misuse, match=f"key = {key.hex()}: where a tier is keyed"):
                cache.seal(lease, 4)
        else:
            assert cache.seal(lease, 4) == 1
        cache.finish(lease)
        at_rest(cache)


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
    plan = there(cache.demote(3))
    assert cache.commit(by.Plan.from_bytes(plan.to_bytes())) == 1
    assert cache.commit(plan) == 0, "a duplicate"


def test_plans_are_equal_by_value_and_differ_by_any_field() -> None:
    plan, same = some_plan(), some_plan()
    assert plan == same
    assert plan is not same
    assert len({plan, same}) == 1
    assert plan != plan.to_bytes()
    data = plan.to_bytes()
    for at in (8, 16, 24, 24 + 4 * 5):
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
        b"Y1" + data[2:],
        b"Y4" + data[2:],
        data[:3] + b"\x70" + data[4:],
        data[:3] + b"\x04" + data[4:],
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
