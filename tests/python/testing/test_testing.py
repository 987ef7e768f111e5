"""The copier that misbehaves by script."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockyard import testing
from blockyard.crane.copiers import Landed, Receipt
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.shared.plan import Cause
from blockyard.testing import (
    Action,
    Script,
    ScriptedCopier,
    corrupt,
    delay,
    deliver,
    die,
    fail,
    hang,
)
from cranes import SMALL, after, held, pair, same, slots
from yard import profile


class Rig:
    """Copies of three blocks each, one after another."""

    def __init__(self, *script: Action, depth: int = 64) -> None:
        self.device, self.host = pair(SMALL)
        self.copier = ScriptedCopier(ThreadCopier(workers=0, depth=depth), script)
        self.before = held(self.host)
        self.to = 0

    def start(self) -> Receipt:
        receipt = self.try_start()
        assert receipt is not None
        return receipt

    def try_start(self) -> Receipt | None:
        slot = self.to
        self.to = (slot + 3) % 9
        to = slots(slot, slot + 1, slot + 2)
        return self.copier.start(self.device, self.host, slots(3, 4, 5), to)

    def copied(self, *blocks: int) -> bool:
        """Whether blocks of the first copy, and nothing else, are there."""
        before = [plane.copy() for plane in self.before]
        sources = [3 + block for block in blocks]
        return same(self.host, after(before, held(self.device), sources, blocks))


def test_delivered_and_after_the_script_everything_lands_as_it_would() -> None:
    rig = Rig(deliver())
    assert rig.start().poll() == Landed(3)
    assert rig.copied(0, 1, 2)
    assert rig.start().poll() == Landed(3)


def test_a_delayed_copy_moves_bytes_only_after_so_many_polls() -> None:
    rig = Rig(delay(2))
    receipt = rig.start()
    assert [receipt.poll(), receipt.poll()] == [None, None]
    assert rig.copied()
    assert [receipt.poll(), receipt.poll()] == [Landed(3)] * 2
    assert rig.copied(0, 1, 2)


def test_delays_reorder() -> None:
    rig = Rig(delay(2), delay(0))
    slow, fast = rig.start(), rig.start()
    assert [slow.poll(), fast.poll()] == [None, Landed(3)]


def test_a_failing_copy_moves_its_good_blocks_alone() -> None:
    rig = Rig(fail(2), fail(0), fail(7))
    assert rig.start().poll() == Landed(2, Cause.FAILED)
    assert rig.copied(0, 1)
    assert rig.start().poll() == Landed(0, Cause.FAILED)
    assert rig.start().poll() == Landed(1, Cause.FAILED), "modulo the blocks there are"


def test_a_corrupt_copy_has_one_bad_block_and_says_so() -> None:
    rig = Rig(corrupt(1))
    receipt = rig.start()
    assert [receipt.poll(), receipt.poll()] == [Landed(1, Cause.CORRUPT)] * 2
    (plane,), (source,) = rig.host.planes, rig.device.planes
    assert (plane[0] == source[3]).all()
    assert not (plane[1] == source[4]).any()
    assert (plane[2] == source[5]).all()


def test_a_hanging_copy_waits_for_its_release() -> None:
    rig = Rig(hang(), deliver())
    hung, other = rig.start(), rig.start()
    assert [hung.poll() for _ in range(1000)] == [None] * 1000
    assert other.poll() == Landed(3)
    rig.copier.release()
    assert hung.poll() == Landed(3)


def test_after_its_death_nothing_is_heard_until_it_is_revived() -> None:
    rig = Rig(deliver(), delay(1), die(), fail(1))
    done, late, dying = (rig.start() for _ in range(3))
    after_ = rig.start()
    for _ in range(5):
        assert [receipt.poll() for receipt in (done, late, dying, after_)] == [None] * 4
    rig.copier.release()
    assert dying.poll() is None, "death is no hang"
    rig.copier.revive()
    said = [receipt.poll() for receipt in (done, late, dying, after_)]
    assert said == [Landed(3), None, Landed(3), Landed(1, Cause.FAILED)]
    assert late.poll() == Landed(3)


@pytest.mark.parametrize("end", ["reset", "close"])
def test_at_the_end_of_all_what_was_not_begun_has_failed(end: str) -> None:
    rig = Rig(delay(1), hang(), die(), deliver())
    receipts = [rig.start() for _ in range(4)]
    getattr(rig.copier, end)()
    assert [receipt.poll() for receipt in receipts] == [Landed(0, Cause.FAILED)] * 4
    rig.copier.release()
    assert [receipt.poll() for receipt in receipts] == [Landed(0, Cause.FAILED)] * 4
    assert rig.copied()
    if end == "reset":
        assert rig.start().poll() == Landed(3)


class FullLength:
    """A copier that takes nothing for a while."""

    def __init__(self, refusals: int) -> None:
        self.inner = ThreadCopier(workers=0)
        self.refusals = refusals

    def start(self, *what: Any) -> Receipt | None:
        self.refusals -= 1
        return None if self.refusals >= 0 else self.inner.start(*what)

    def reset(self) -> None:
        self.inner.reset()

    def close(self) -> None:
        self.inner.close()


def test_a_full_queue_behind_it_uses_up_no_action() -> None:
    rig = Rig()
    rig.copier = ScriptedCopier(FullLength(2), [deliver(), fail(1)])
    assert [rig.try_start(), rig.try_start()] == [None, None]
    assert rig.start().poll() == Landed(3)
    assert rig.start().poll() == Landed(1, Cause.FAILED)
    rig.copier = ScriptedCopier(FullLength(2), [delay(1)])
    receipt = rig.start()
    assert [receipt.poll() for _ in range(4)] == [None, None, None, Landed(3)]


@given(st.integers(), st.integers(0, 50))
@profile(50)
def test_a_script_is_the_same_for_its_seed_and_is_replayed_from_what_it_prints(
    seed: int, copies: int
) -> None:
    script = Script.seeded(seed, copies=copies, hanging=0.1, dying=0.1)
    assert script == Script.seeded(seed, copies=copies, hanging=0.1, dying=0.1)
    assert len(script) == copies
    assert eval(repr(script), vars(testing)) == script  # noqa: S307


def test_scripts_have_about_what_was_asked_for() -> None:
    script = Script.seeded(1, copies=10_000, late=0.4, failing=0.2, corrupting=0.1, hanging=0.05)
    words = [action.word for action in script]
    for word, share in (("delay", 4_000), ("fail", 2_000), ("corrupt", 1_000), ("hang", 500)):
        assert words.count(word) == pytest.approx(share, abs=200)  # type: ignore[arg-type]
    assert "die" not in words
    assert {action.number for action in script if action.word == "delay"} == set(range(1, 9))
    assert Script.seeded(1) != Script.seeded(2)
