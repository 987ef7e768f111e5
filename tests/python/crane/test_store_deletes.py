"""Deletes of values in shared stores: each ends when every store has answered."""

import time
from typing import Any

import pytest

import blockyard as by
from blockyard.crane.copiers import Landed
from blockyard.crane.tiers.remote import RemoteTier
from blockyard.shared.plan import Cause
from cranes import SMALL, landed, until
from disks import OURS, keys
from memory_stores import MemoryStore, Turned
from store_rig import Rig

pytestmark = pytest.mark.law("INV-35a", "INV-35b")


@pytest.mark.law("INV-42")
def test_inv_42_a_delete_is_done_when_each_store_has_answered() -> None:
    clock = Turned()
    first, second = MemoryStore("memory://first"), MemoryStore("memory://second")
    rig = Rig(first, second, clock=clock)
    assert landed(rig.down(0, 1)) == Landed(2)
    second.values |= first.values
    second.down = "it is down"
    receipt = rig.forget(0)
    until(lambda: len(first.blocks()) == 1 and rig.stats()["failed"] > 0)
    clock.now += 1000
    for _ in range(20):
        assert receipt.poll() is None
    assert any("second has not deleted 1 values" in line for line in rig.tier.troubles())
    second.down = ""

    def over() -> bool:
        clock.now += 0.7
        return receipt.poll() is not None

    until(over)
    assert receipt.poll() == Landed(1)
    assert len(second.blocks()) == 1
    assert landed(rig.up(1, to=(8,))) == Landed(1)
    assert landed(rig.up(0, to=(9,))) == Landed(0, Cause.CORRUPT)
    rig.close()


@pytest.mark.law("INV-42")
def test_inv_42_a_put_that_was_given_up_brings_back_nothing_that_was_deleted() -> None:
    clock = Turned()
    rig = Rig(clock=clock, patience=5.0)
    rig.store.hangs = {"put"}
    receipt = rig.down(0)
    assert rig.store.reached.acquire(timeout=30)
    clock.now += 5.1
    assert receipt.poll() == Landed(0, Cause.FAILED)
    gone = rig.forget(0)
    time.sleep(0.01)
    assert gone.poll() is None
    assert "delete" not in rig.store.calls
    rig.store.go.set()
    assert landed(gone) == Landed(1)
    assert rig.store.blocks() == {}
    rig.close()


def test_a_tier_voids_through_its_copier_and_at_last_by_its_close(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Its close ends with the delete, however long a busy machine takes.
    rig = Rig(ending=60.0)
    assert landed(rig.down(0, 1, 2)) == Landed(3)
    none = keys()
    assert rig.tier.next_stamp() == 0
    receipt: Any = rig.tier.void(keys(1), none, 0)
    assert landed(receipt) == Landed(1)
    rig.copier.close()
    rig.tier.void_last(keys(2), none, 0)
    rig.tier.close()
    assert len(rig.store.blocks()) == 1
    assert not caplog.records
    alone = RemoteTier(SMALL, 10, [MemoryStore()], identity=OURS)
    with pytest.raises(by.Misuse, match="no StoreCopier"):
        alone.void(keys(1), none, 0)
    alone.close()


@pytest.mark.law("INV-42")
def test_inv_42_a_full_store_takes_no_text_and_deletes_nevertheless() -> None:
    rig = Rig()
    assert landed(rig.down(0, 1)) == Landed(2)
    rig.close()
    full = Rig(rig.store)
    rig.store.full = True
    assert landed(full.forget(0)) == Landed(1)
    assert len(rig.store.blocks()) == 1
    full.close()


def test_a_close_says_what_it_could_not_delete(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.store.down = "it is down"
    rig.forget(0, 1)
    rig.copier.close()
    rig.tier.close()
    (line,) = caplog.records
    assert "2 values were not deleted" in line.getMessage()


@pytest.mark.law("INV-32")
def test_a_reset_ends_copies_and_a_delete_goes_on() -> None:
    rig = Rig()
    rig.store.hangs = {"put", "delete"}
    copies = [rig.down(0), rig.down(1), rig.down(2)]
    deletes = rig.forget(5)
    assert rig.store.reached.acquire(timeout=30)
    rig.copier.reset()
    assert {one.poll().cause for one in [*copies, deletes]} == {Cause.FAILED}
    rig.store.hangs.clear()
    rig.store.go.set()
    until(lambda: rig.stats()["deleted"] == 1)
    assert landed(rig.down(0)) == Landed(1)
    rig.close()
