"""A restart with several groups of layers: what the disks of all ranks have is found again."""

import logging
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
import hybrid_desk
from blockyard.shared.restored import Restored
from hybrid_desk import ON_DISK, PROMPT, Desk, drawn

WHOLE = {0: 2, 1: 4, 2: 1}


def opened(path: Path, ranks: int = 2) -> Desk:
    return Desk(ranks=ranks, disk_path=path, **ON_DISK)


def written(path: Path) -> by.Keys:
    """Has an engine of two ranks before this one, which has offloaded a prompt."""
    desk = opened(path)
    assert desk.restore().blocks == {0: 0, 1: 0, 2: 0}
    keys = desk.caches[0].keys(range(PROMPT))
    desk.offload(keys, seed=1)
    desk.settle()
    desk.close()
    return keys


def same(some: list[Any], others: list[Any]) -> bool:
    return all((one == other).all() for one, other in zip(some, others, strict=True))


@pytest.mark.law("G4", "G10", "INV-29")
def test_after_a_kill_each_group_of_each_rank_has_its_blocks_byte_for_byte(tmp_path: Path) -> None:
    arguments = [sys.executable, hybrid_desk.__file__, str(tmp_path)]
    with subprocess.Popen(  # noqa: S603 - this test's own file
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"settled\n"
        child.kill()
        assert child.wait() == -signal.SIGKILL
    for _ in range(2):
        desk = opened(tmp_path)
        assert desk.restore().blocks == WHOLE
        keys = desk.caches[0].keys(range(PROMPT))
        assert desk.load(keys) == 16
        assert same(desk.read(), drawn(1, ranks=2))
        desk.close()


@pytest.mark.law("G4", "INV-29")
def test_what_one_rank_lacks_is_found_on_none_and_the_rest_is(tmp_path: Path) -> None:
    keys = written(tmp_path)
    desk = opened(tmp_path)
    desk.restore()
    other = desk.caches[0].keys(range(500, 500 + PROMPT))
    desk.offload(other, seed=2)
    first = desk.worker
    while True:
        orders = desk.ask.step()
        if any(plan.destination_tier == "disk" for plan in orders.down):
            break
        for worker in desk.workers:
            worker.begin(orders)
            desk.ask.commit(worker.outcomes())
    first.begin(orders)  # rank 1 is dead already, and never gets them
    while any(crane.in_flight for crane in first.cranes.values()):
        first.outcomes()
    desk.close()
    lone = opened(tmp_path)
    has = [sum(map(len, worker.restored().values())) for worker in lone.workers]
    assert has[0] > has[1] == 7
    lone.close()
    again = opened(tmp_path)
    assert again.restore().blocks == WHOLE
    assert again.load(other) == 0
    assert again.load(keys) == 16
    assert same(again.read(), drawn(1, ranks=2))
    again.offload(other, seed=2)
    again.settle()
    again.close()
    last = opened(tmp_path)
    assert last.restore().blocks == {group: 2 * count for group, count in WHOLE.items()}
    assert last.load(other) == 16
    assert same(last.read(), drawn(2, ranks=2))
    last.close()


@pytest.mark.law("G4")
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_group_of_which_a_rank_has_lost_its_folder_costs_hits_and_is_said(
    lost: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = written(tmp_path)
    desk = opened(tmp_path)
    number = desk.configs.groups.numbers.index(lost)
    (folder,) = desk.workers[1].cranes[number].persistent.folders
    desk.close()
    shutil.rmtree(folder)
    caplog.set_level(logging.INFO, "blockyard")
    desk = opened(tmp_path)
    found = desk.restore()
    assert found.blocks == WHOLE | {lost: 0}
    (warned,) = [one for one in caplog.messages if "nothing is found again" in one]
    assert desk.configs.groups.name(number) in warned
    assert desk.load(keys) == 0
    desk.offload(keys, seed=3)
    desk.settle()
    assert desk.load(keys) == 16
    desk.close()
    again = opened(tmp_path)
    assert again.restore().blocks == WHOLE
    assert again.load(keys) == 16
    again.close()


def test_what_is_chosen_of_a_group_is_restored_and_nothing_else(tmp_path: Path) -> None:
    keys = written(tmp_path)
    desk = opened(tmp_path)
    found = desk.ask.restore(
        [worker.restored() for worker in desk.workers],
        settle=lambda group, found: found if group else found.take(found.stamps < 0),
    )
    assert found.blocks == WHOLE | {1: 0}
    assert desk.load(keys) == 0
    desk.close()


@pytest.mark.law("G12")
def test_what_is_no_answer_of_all_ranks_is_refused_and_nothing_is_restored(tmp_path: Path) -> None:
    keys = written(tmp_path)
    desk = opened(tmp_path)
    one, other = (worker.restored() for worker in desk.workers)
    refused: list[tuple[Any, str]] = [
        ([one], "ranks = 1 values, of 2 ranks"),
        (one, r"ranks = \{.*give \[worker.restored\(\)\]"),
        (None, "ranks = None: give"),
        ([one, None], r"ranks\[1\] = None: must be what"),
        ([one, {0: one[0], 1: one[1]}], r"ranks\[1\] has groups \[0, 1\].* group 2 \(Recurrent"),
        ([one, {**one, 7: one[0]}], "group 7 must be in both"),
        ([one, {**one, 2: []}], r"ranks\[1\] of group 2 \(RecurrentState\) = \[\]: must be"),
    ]
    for ranks, what in refused:
        with pytest.raises(by.Misuse, match=what):
            desk.ask.restore(ranks)
    assert isinstance(other[0], Restored)
    assert desk.ask.restore([one, other]).blocks == WHOLE
    with pytest.raises(by.Misuse, match=r"group 1 \(Full\): .*restore once"):
        desk.ask.restore([one, other])
    assert desk.load(keys) == 16
    desk.close()


@pytest.mark.law("G12")
@pytest.mark.parametrize("wrong", [None, [1]])
def test_what_settle_returns_is_checked_before_anything_is_restored(
    wrong: Any, tmp_path: Path
) -> None:
    keys = written(tmp_path)
    desk = opened(tmp_path)
    with pytest.raises(by.Misuse, match=r"settle .* of group 2 \(RecurrentState\): .*Restored"):
        desk.ask.restore(
            [worker.restored() for worker in desk.workers],
            settle=lambda group, found: wrong if group == 2 else found,
        )
    assert desk.restore().blocks == WHOLE
    assert desk.load(keys) == 16
    desk.close()


def test_groups_without_a_disk_have_nothing_to_restore(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "blockyard")
    desk = Desk()
    assert desk.restore() == (0, {})
    assert [one for one in caplog.messages if "again" in one] == []
    (line,) = [one for one in caplog.messages if "group 2 (RecurrentState): 16 blocks" in one]
    assert line == desk.configs.line
    desk.close()


@pytest.mark.law("G13")
@pytest.mark.parametrize("whole", [True, False])
def test_records_that_no_cache_knows_are_forgotten_by_their_keys_alone(
    whole: bool, tmp_path: Path
) -> None:
    keys = written(tmp_path)
    desk = opened(tmp_path)
    desk.ask.restore(
        [worker.restored() for worker in desk.workers],
        settle=lambda group, found: found.take(found.stamps < 0) if group else found,
    )
    desk.ask.forget(keys if whole else desk.caches[0].keys(range(4)))
    desk.settle()
    desk.close()
    again = opened(tmp_path)
    riders = {0: 0, 2: 0} if whole else {0: 2, 2: 1}
    assert again.restore().blocks == {1: 0} | riders
    assert again.load(keys) == 0
    again.close()


@pytest.mark.law("G13")
def test_what_is_cleared_in_every_rank_is_found_again_on_none(tmp_path: Path) -> None:
    keys = written(tmp_path)
    desk = opened(tmp_path)
    desk.restore()
    desk.ask.clear()
    assert all(worker.clear() for worker in desk.workers)
    other = desk.caches[0].keys(range(500, 500 + PROMPT))
    desk.offload(other, seed=2)
    desk.settle()
    desk.close()
    again = opened(tmp_path)
    assert again.restore().blocks == WHOLE
    assert again.load(keys) == 0
    assert again.load(other) == 16
    assert same(again.read(), drawn(2, ranks=2))
    again.close()
