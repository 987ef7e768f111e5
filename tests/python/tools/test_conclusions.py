"""What a replay concludes: the overload first, and only differences that matter."""

from typing import Any

import msgspec
import numpy as np
import pytest

from blockyard.tools.replay.findings import conclusions
from blockyard.tools.replay.labels import labels
from blockyard.tools.replay.result import Load, Moved, Preempted, Replica, Run
from blockyard.tools.replay.timeline import spread


def load_of(offered: float, served: float, *, overloaded: bool = False) -> Load:
    return Load(
        offered_requests_per_second=offered,
        served_requests_per_second=served,
        offered_tokens_per_second=offered * 100,
        served_tokens_per_second=served * 100,
        backlog_seconds=100 * (offered / served - 1),
        overloaded=overloaded,
    )


def run_of(**changes: Any) -> Run:
    run = Run(
        model="virtual",
        policy="recency",
        write_policy="on-evict",
        host_copies=None,
        hints=None,
        owner="cache",
        role="mixed",
        headroom="adaptive",
        victims="newest",
        preempt_mode="park",
        device_blocks=1000,
        host_blocks=4000,
        requests=500,
        refused=0,
        complete=True,
        input_tokens=10_000,
        output_tokens=1_000,
        hit_ratio=0.37,
        hit_ratio_by_tier={"device": 0.3, "host": 0.07},
        skipped_slow=0,
        engine_seconds=100.0,
        wall_seconds=1.0,
        tokens_per_second=10.0,
        load=load_of(3.3, 3.3),
        replicas=[],
        ttft_ms=spread(np.linspace(100.0, 300.0, 101)),
        itl_ms=spread(np.full(9, 10.0)),
        waits=None,
        preempted=None,
        reservations=None,
        moved=Moved(
            blocks_down=0,
            blocks_up=0,
            blocks_across=0,
            bytes_down=0,
            bytes_up=0,
            failed_blocks=0,
        ),
        pinned=710.0,
        peak={"device": 1000, "host": 4000, "pinned": 980},
        disk_blocks=0,
        block_bytes=2**21,
        disk=None,
        bookkeeping=None,
        verified=None,
        audit="ok",
        series=None,
    )
    return msgspec.structs.replace(run, **changes)


def timed(run: Run, factor: float) -> Run:
    return msgspec.structs.replace(run, ttft_ms=spread(np.linspace(100, 300, 101) * factor))


OVER = load_of(12.3, 4.1, overloaded=True)


def test_a_run_that_keeps_up_says_so_and_what_each_tier_finds() -> None:
    rest = "99 % within 298 ms."
    left = "so 29% is left for the prefix cache."
    assert conclusions([run_of()]) == [
        f"Keeps up with 3.3 requests/s: half of the first tokens come within 200 ms, {rest}",
        "37.0% of the prompt tokens are found: 30.0% on the device, 7.0% on the host.",
        f"Running requests hold 71% of the device, 98% at most, {left}",
        "Compare --policy recency --policy learned: an order costs nothing to change.",
    ]


def test_an_overload_is_said_first_with_what_to_give() -> None:
    first = conclusions([run_of(load=OVER)])[0]
    assert first == (
        "Overloaded: 12.3 requests/s are offered, 4.1 are served; times to first token are those "
        "of a queue that grows, and say nothing. Give --replicas 4, or --speed 0.3."
    )
    # With what was given already, they are from there.
    assert "or --speed 0.6." in conclusions([run_of(load=OVER)], speed=2.0)[0]
    engine = Replica(
        requests=1,
        input_tokens=1,
        output_tokens=1,
        hit_ratio=0.0,
        engine_seconds=1.0,
        overloaded=True,
    )
    idle = msgspec.structs.replace(engine, overloaded=False)
    first = conclusions([run_of(load=OVER, replicas=[engine, engine, idle])])[0]
    assert first.startswith("Overloaded (2 of 3 replicas): ")
    assert "--replicas 10," in first


def test_times_of_answers_without_a_length_are_not_told() -> None:
    silent = run_of(output_tokens=0, ttft_ms=spread(np.zeros(0)))
    said = conclusions([silent, msgspec.structs.replace(silent, policy="learned")])
    assert said[0] == (
        "Keeps up with 3.3 requests/s: no answer has a length, so there are no times to first "
        "token."
    )
    assert "do not differ" in said[2]


def test_runs_that_were_interrupted_are_not_compared() -> None:
    whole, cut = run_of(), run_of(policy="learned", complete=False, hit_ratio=0.6, requests=9)
    said = " ".join(conclusions([whole, cut]))
    assert "finds the most" not in said
    assert "Interrupted: the runs got to different requests, so they are not compared." in said
    # An overload is said first, and then that it was cut short; without times too.
    over = conclusions([run_of(load=OVER, complete=False)])
    assert over[0].startswith("Overloaded")
    assert over[1].startswith("Interrupted")
    timeless = run_of(model="sequential", load=None, ttft_ms=None, complete=False)
    assert conclusions([timeless])[0].startswith("Interrupted")


def test_no_times_of_an_overload_are_compared_or_called_good() -> None:
    runs = [run_of(load=OVER), timed(run_of(load=OVER, policy="learned"), 0.1)]
    said = " ".join(conclusions(runs))
    assert "median time to first token" not in said
    assert "Keeps up" not in said
    faster = run_of(policy="learned", load=load_of(12.3, 5.0, overloaded=True))
    assert "learned serves 22% more requests/s than recency." in conclusions([runs[0], faster])


def test_the_overloaded_runs_of_a_comparison_are_named() -> None:
    first = conclusions([run_of(), run_of(policy="learned", load=OVER)])[0]
    assert first.startswith("Overloaded with learned: 12.3 requests/s are offered")


@pytest.mark.parametrize(
    ("hits", "factor", "said"),
    [
        (0.374, 0.95, "The runs do not differ by as much as half a point in hits, or a tenth"),
        (0.394, 0.95, "learned finds the most, 39.4%: 2.4 points more than recency."),
        (
            0.394,
            0.8,
            "learned finds the most, 39.4%: 2.4 points more than recency; learned has a median tim",
        ),
        (0.37, 1.25, "recency has a median time to first token 20% below learned's."),
    ],
)
def test_only_differences_that_matter_are_named(hits: float, factor: float, said: str) -> None:
    other = timed(run_of(policy="learned", hit_ratio=hits), factor)
    assert any(sentence.startswith(said) for sentence in conclusions([run_of(), other]))


def test_the_optimum_is_a_bound_and_no_choice() -> None:
    none: dict[str, Any] = {"model": "sequential", "load": None, "ttft_ms": None, "pinned": None}
    runs = [
        run_of(**none, host_blocks=0),
        run_of(**none, host_blocks=0, policy="optimum", hit_ratio=0.4),
    ]
    rest = "recency finds 92% of that."
    assert conclusions(runs)[:2] == [
        "37.0% of the prompt tokens are found.",
        f"No order can find more than 40.0% at this size, as the clairvoyant optimum does; {rest}",
    ]


def preempted(share: float, away: float) -> Preempted:
    return Preempted(
        count=36,
        requests=36,
        parked=0,
        kept=0,
        relieved=0,
        lost=0,
        found=0,
        recomputed=100,
        share=share,
        away_ms=spread(np.full(36, away)),
    )


def test_preemptions_are_named_where_they_cost_something() -> None:
    assert not any(
        "preemption" in said for said in conclusions([run_of(preempted=preempted(0, 9))])
    )
    said = conclusions([run_of(preempted=preempted(0.02, 1200.0))])
    assert (
        "36 preemptions had 2.0% of all tokens computed again, and kept a request away for 1.20 s "
        "at the median; --headroom full-length shows how few are possible."
    ) in said
    said = conclusions([run_of(preempted=preempted(0.0, 1200.0))])
    assert any("had next to nothing computed again" in sentence for sentence in said)


def test_a_tier_that_finds_nothing_is_named() -> None:
    tiers = {"device": 0.37, "host": 0.001}
    last = conclusions([run_of(hit_ratio_by_tier=tiers)])[-1]
    assert last == "The host finds 0.1%: compare --host 0, which would save it."
    last = conclusions([run_of(), run_of(policy="learned")])[-1]
    assert last == "The host was full: `blockyard sweep` says what more of it would find."
    assert not any("Compare" in said for said in conclusions([run_of(complete=False)]))


def test_names_say_only_what_varies() -> None:
    assert labels([run_of()]) == ["recency"]
    runs = [run_of(write_policy=write, policy="heap") for write in ("through", "on-evict")]
    assert labels(runs) == ["through", "on-evict"]
    runs = [run_of(host_copies=None), run_of(host_copies="last", policy="learned")]
    assert labels(runs) == ["recency, copies by policy", "learned, copies last"]


def test_a_trace_that_does_not_tell_hits_is_no_ground_for_any() -> None:
    runs = [run_of(), run_of(policy="learned", hit_ratio=0.7)]
    said = " ".join(conclusions(runs, hits_unknown="it has lengths only"))
    assert "Hits cannot be told from this trace: it has lengths only." in said
    assert "are found" not in said
    assert "finds the most" not in said
    assert "hold" in said


def test_a_trace_that_was_cut_short_is_called_so() -> None:
    assert any("is incomplete" in sentence for sentence in conclusions([run_of()], cut=True))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"model": "sequential"}, True),
        ({"model": "sequential", "host_blocks": 0}, False),
        ({"model": "virtual"}, False),
    ],
)
def test_that_copies_take_no_time_is_said_where_there_are_some(
    more: dict[str, Any], says: bool
) -> None:
    assert ("Copies take no time here" in " ".join(conclusions([run_of(**more)]))) is says
