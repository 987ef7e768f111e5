"""What a request of vLLM says for itself."""

import re
from typing import Any

import pytest

import blockyard as by
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.shared.hints import NO_HINTS
from blockyard.testing import Action, Script, ScriptedCopier, deliver, fail
from vllm_front import Front, ended, front, no_torch, read

__all__ = ["front", "no_torch"]


def test_a_request_decides_for_itself() -> None:
    settings = read({"host": 64})[0]
    own = settings.of_request(
        {"blockyard.offload": "none", "blockyard.load": False, "lmcache.skip_save": True}
    )
    assert (own.offload, own.load, own.preempt, own.decode) == ("none", False, "park", True)
    assert settings.of_request(None) is settings
    nothing = settings.as_nothing()
    assert (nothing.offload, nothing.load, nothing.preempt) == ("none", False, "recompute")


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"blockyard.ofload": "none"}, r"no 'blockyard.ofload'.*did you mean 'blockyard.offload'"),
        ({"blockyard.host": 3}, "no 'blockyard.host'"),
        ({"blockyard.keep_on_reset": True}, "no 'blockyard.keep_on_reset'"),
        ({"blockyard.offload": "always"}, "offload = 'always'"),
        ({"blockyard.load": 1.5}, r"load = 1\.5"),
        ({"blockyard.offload": ["none"]}, r"offload = \['none'\]"),
        (
            {"blockyard.offload\n" + 10**6 * "x": 1},
            r"^there is no 'blockyard.offload\\nx{5,80} in kv",
        ),
        (["blockyard.offload"], "give a mapping"),
        ({"blockyard.retain": True}, "did you mean 'blockyard.retention'"),
        ({"blockyard.retention": "ended"}, "retention = 'ended': did you mean 'session-ended'"),
        ({"blockyard.next_use": -2}, "next_use = -2: give seconds"),
        ({"blockyard.next_use": float("nan")}, "next_use = nan: give seconds"),
        ({"blockyard.next_use": float("inf")}, "next_use = inf: give seconds"),
        ({"blockyard.next_use": "9" * 10**6}, "^next_use = '9{5,80}: give seconds"),
        ({"blockyard.priority": 101}, "priority = 101: must be an integer from 0 to 100"),
        ({"blockyard.priority": -1}, "priority = -1: must be an integer from 0 to 100"),
        ({"blockyard.ttl": True}, "ttl = True: must be an integer"),
        ({"blockyard.ttl": 5, "blockyard.offload": "no"}, "offload = 'no'"),
    ],
)
def test_what_a_request_cannot_say_is_named_and_it_runs_as_all_others(
    params: dict[str, Any], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(by.Misuse, match=says):
        read({"host": 64})[0].of_request(params)
    front = Front()
    for name in ("one", "two"):
        one = front.request(name, list(range(11)), kv_transfer_params=params)
        assert front.begin(one, [1, 2, 3]) in {0, 8}
    (record,) = caplog.records
    assert re.search(says, record.message)
    assert len(record.message) < 400
    assert "\n" not in record.message
    front.worker.shutdown()


def test_a_request_says_what_it_will_be_used_for() -> None:
    settings = read({"host": 64})[0]
    said = {"blockyard.retention": "session-ended", "blockyard.next_use": 4, "other.ttl": 3}
    own = settings.of_request(said)
    assert own.hints == ("session-ended", 4.0, None, None)
    assert (own.offload, settings.hints) == ("finish", NO_HINTS)
    own = settings.of_request({"blockyard.priority": 90, "blockyard.ttl": 7})
    assert own.hints == ("ordinary", None, 90, 7)


@pytest.mark.parametrize("name", ["hints", "retention", "next_use", "priority", "ttl"])
def test_an_operator_says_it_of_none(name: str) -> None:
    with pytest.raises(by.Misuse, match=f"there is no '{name}' in kv_connector_extra_config"):
        read({"host": 64, name: 5})


@pytest.mark.parametrize(
    ("params", "told"),
    [
        (None, []),
        ({"blockyard.offload": "none", "blockyard.ttl": 3}, []),
        ({"blockyard.next_use": -1}, []),
        ({"blockyard.next_use": 8}, [("ordinary", 8.0, None, None)]),
        (
            {"blockyard.retention": "session-ended", "blockyard.priority": 2, "blockyard.ttl": 3},
            [("session-ended", None, 2, 3)],
        ),
    ],
)
def test_what_a_request_says_is_told_of_its_blocks_below(
    front: Front, params: dict[str, Any] | None, told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Any] = []

    def used(_cache: by.KVCache, _rows: Any, **hints: Any) -> None:
        said.extend([tuple(hints.values())[1:]] if hints else [])

    monkeypatch.setattr(by.KVCache, "used", used)
    one = front.request("one", list(range(10)), kv_transfer_params=params)
    front.begin(one, [1, 2, 3])
    front.step({one: ([1, 2, 3], 10)})
    one.num_tokens = 11
    front.scheduler.request_finished(one, [1, 2, 3])
    for _ in range(4):
        front.step()
    assert said == told


@pytest.mark.parametrize(
    ("params", "found"),
    [
        ({"blockyard.offload": "none"}, 0),
        ({"blockyard.decode": False}, 8),
        (None, 12),
    ],
)
def test_what_a_request_says_holds_for_what_is_offloaded(
    front: Front, params: dict[str, Any] | None, found: int
) -> None:
    one = front.request("one", list(range(10)), kv_transfer_params=params)
    front.begin(one, [1, 2, 3, 4])
    front.step({one: ([1, 2, 3, 4], 10)})
    one.num_tokens, one.block_hashes = 13, front.request("", list(range(13))).block_hashes
    front.scheduler.request_finished(one, [1, 2, 3, 4])
    front.step()
    front.step()
    assert front.begin(front.request("two", list(range(14))), [7, 8, 9]) == found


def test_a_request_that_loads_nothing_comes_back_with_what_is_its_own(front: Front) -> None:
    ended(front, "one", list(range(11)), [1, 2, 3])
    front.step()
    front.step()
    two = front.request("two", list(range(9)), kv_transfer_params={"blockyard.load": False})
    assert front.begin(two, [4, 5, 6]) == 0
    front.step({two: ([4, 5, 6], 9)})
    two.num_tokens, two.num_preemptions = 10, 1
    front.step(preempted={"two"})
    front.step()
    assert front.begin(two, [4, 5, 6]) == 9


def test_one_whose_prompt_is_computed_whole_is_offered_nothing_and_not_kept(front: Front) -> None:
    ended(front, "one", list(range(11)), [1, 2, 3])
    front.step()
    front.step()
    two = front.request("two", list(range(9)), skip_reading_prefix_cache=True)
    assert front.begin(two, [4, 5, 6]) == 0
    front.step({two: ([4, 5, 6], 9)})
    two.num_tokens, two.num_preemptions = 10, 1
    front.step(preempted={"two"})
    assert front.scheduler.front.cache.stats()["parkings"] == 0


class Counted:
    """`PrefillStats`: what vLLM reports of a request."""

    def __init__(self) -> None:
        self.said: list[tuple[int, int, int]] = []

    def set(
        self,
        num_prompt_tokens: int,
        num_local_cached_tokens: int,
        num_external_cached_tokens: int,
    ) -> None:
        self.said.append((num_prompt_tokens, num_local_cached_tokens, num_external_cached_tokens))


def loaded(tokens: int, local: int, *actions: Action) -> tuple[Front, Counted]:
    """A request of so many tokens of another one's; vLLM has the first, and the others come up."""
    front = Front(ScriptedCopier(ThreadCopier(workers=0), Script(actions)))
    ended(front, "one", list(range(10)), [1, 2, 3])
    front.step()
    front.step()
    stats = Counted()
    two = front.request("two", list(range(tokens)), prefill_stats=stats)
    if front.begin(two, [4, 5, 6], local):
        front.until("two")
    return front, stats


@pytest.mark.parametrize(
    ("tokens", "local", "external"), [(10, 0, 8), (8, 0, 7), (10, 4, 4), (8, 4, 3)]
)
def test_vllm_reports_what_a_load_has_brought(tokens: int, local: int, external: int) -> None:
    """Of a whole prompt the last token is computed again; what was preempted was reported."""
    front, stats = loaded(tokens, local)
    assert stats.said == [(tokens, local, external)]
    three = front.request("three", list(range(10)), prefill_stats=stats, num_preemptions=1)
    assert front.begin(three, [7, 8, 9])
    front.until("three")
    assert len(stats.said) == 1
    front.worker.shutdown()


@pytest.mark.parametrize(("local", "good"), [(0, 1), (0, 0), (4, 0)])
def test_vllm_reports_nothing_that_a_load_has_not_brought(local: int, good: int) -> None:
    """It counted what was matched, before the load had failed at every try."""
    front, stats = loaded(10, local, deliver(), *[fail(good)] * 9)
    assert front.scheduler.front.cut == 1
    assert stats.said == [(10, local, 4 * good)]
    front.worker.shutdown()
