"""Writes deploy/grafana/blockyard.json from a table of panels, or with --check compares them."""

import json
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

PAGE: Final = Path(__file__).parents[1] / "deploy" / "grafana" / "blockyard.json"
_OWN: Final = 'engine=~"$engine",instance=~"$instance"'
_WIDTH: Final = 12
_HEIGHT: Final = 8
_MEAN: Final = ("sum", "count")


class Query(NamedTuple):
    """What a panel asks, and what it calls the answers."""

    ask: str
    """In PromQL; `@` stands for the labels that the reader has chosen."""
    legend: str


class Panel(NamedTuple):
    """One panel: a question of the operator."""

    title: str
    about: str
    unit: str
    queries: tuple[Query, ...]
    stacked: bool = False


def _rate(name: str, *by: str, more: str = "") -> str:
    return f"{_sum(*by)} (rate(blockyard_{name}_total{{@{more}}}[$__rate_interval]))"


def _sum(*by: str) -> str:
    return f"sum by ({', '.join(by)})" if by else "sum"


def _quantile(part: float, name: str, *by: str) -> str:
    inside = f"rate(blockyard_{name}_bucket{{@}}[$__rate_interval])"
    return f"histogram_quantile({part}, sum by ({', '.join(('le', *by))}) ({inside}))"


def _mean(name: str, *by: str) -> str:
    parts = (f"{_sum(*by)} (rate(blockyard_{name}_{of}{{@}}[$__rate_interval]))" for of in _MEAN)
    return " / ".join(parts)


PANELS: Final = (
    Panel(
        "Is it well?",
        "1 where /healthz says so. A rule that speaks names the call that is missing.",
        "none",
        (
            Query("min by (instance, engine) (blockyard_healthy{@})", "{{instance}} {{engine}}"),
            Query("max by (rule) (blockyard_stalled{@}) == 1", "stalled: {{rule}}"),
        ),
    ),
    Panel(
        "Prompt tokens found",
        "Of the prompt tokens of all begins, those whose KV was found, by the tier that had it.",
        "percentunit",
        (
            Query(
                f"{_rate('cached_tokens', 'tier')} / ignoring (tier) group_left () "
                f"{_rate('prompt_tokens')}",
                "{{tier}}",
            ),
        ),
        stacked=True,
    ),
    Panel(
        "Hits by tier",
        "Full blocks that begins found, by the tier that had them.",
        "blocks/s",
        (Query(_rate("hit_blocks", "tier"), "{{tier}}"),),
        stacked=True,
    ),
    Panel(
        "Misses by reason",
        "evicted: a larger tier would have had them; counted with ghosts alone, else unseen. "
        "slow: the load takes longer than computing. "
        "filling: another request computes or loads them now.",
        "blocks/s",
        (Query(_rate("miss_blocks", "reason"), "{{reason}}"),),
        stacked=True,
    ),
    Panel(
        "Slots by tier and set",
        "What holds the slots; idle ones have blocks that may be evicted.",
        "none",
        (Query("sum by (tier, set) (blockyard_slots{@})", "{{tier}} {{set}}"),),
        stacked=True,
    ),
    Panel(
        "Requests by state",
        "waiting never ran; loading waits for its blocks; stopping, for the engine's ack; parked "
        "has its work kept; recompute computes it again.",
        "none",
        (Query("sum by (state) (blockyard_requests{@})", "{{state}}"),),
        stacked=True,
    ),
    Panel(
        "Why requests wait",
        "Each request without a seat counts once.",
        "none",
        (
            Query("sum by (reason) (blockyard_waiting_requests{@})", "{{reason}}"),
            Query("sum(blockyard_seats{@})", "seats taken"),
        ),
    ),
    Panel(
        "How long requests wait",
        "From their arrival to their begin, by what kept them last; a parked one from its park to "
        "its resume. What is above 10 s is drawn at 10 s, but for the mean.",
        "s",
        (
            Query(_quantile(0.5, "wait_seconds"), "begin, half"),
            Query(_quantile(0.99, "wait_seconds", "reason"), "begin, 99 of 100: {{reason}}"),
            Query(_mean("wait_seconds", "reason"), "begin, mean: {{reason}}"),
            Query(_quantile(0.5, "parked_seconds"), "resume, half"),
        ),
    ),
    Panel(
        "Preemptions",
        "Requests taken off the batch, and what became of their work.",
        "ops",
        (
            Query(_rate("preempted_requests", "engine"), "preempted, engine {{engine}}"),
            Query(_rate("victims", "fate"), "{{fate}}"),
            Query(_rate("parked_lost", "why"), "recomputed after all: {{why}}"),
        ),
    ),
    Panel(
        "Bytes between tiers",
        "Blocks that came whole, of all ranks. above is the device or the host, seen from a disk.",
        "Bps",
        (
            Query(
                "sum by (from, to) (rate(blockyard_copy_bytes_sum{@}[$__rate_interval]))",
                "{{from}} to {{to}}",
            ),
        ),
    ),
    Panel(
        "How long copies take",
        "99 of 100 flights took no longer, from their submission to their report. What is above "
        "0.1 s is drawn at 0.1 s, but for the mean.",
        "s",
        (
            Query(_quantile(0.99, "copy_seconds", "from", "to"), "{{from}} to {{to}}"),
            Query(_mean("copy_seconds", "from", "to"), "{{from}} to {{to}}, mean"),
        ),
    ),
    Panel(
        "Blockyard's part of a step",
        "99 of 100 took no longer. `output` has what its own step commits within. What is above "
        "2 ms is drawn at 2 ms, but for the mean.",
        "s",
        (
            Query(_quantile(0.99, "step_seconds", "part"), "{{part}}"),
            Query(_mean("step_seconds", "part"), "{{part}}, mean"),
        ),
    ),
    Panel(
        "What goes wrong",
        "All of this is 0 on a good day, but for refusals, which say that the device is full.",
        "ops",
        (
            Query(_rate("copies_failed", "cause"), "copies: {{cause}}"),
            Query(_rate("refusals", "what"), "refused: {{what}}"),
            Query(_rate("handles_leaked", "engine"), "handles leaked, engine {{engine}}"),
            Query(_rate("disk_failures", "engine"), "disk, engine {{engine}}"),
            Query(_rate("events_lost", "engine"), "events lost, engine {{engine}}"),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """Returns the dashboard as Grafana imports it."""
    return {
        "title": "Blockyard",
        "uid": "blockyard",
        "tags": ["blockyard", "kv-cache"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source(), *(_choice(name) for name in ("instance", "engine"))]},
        "panels": [_panel(at, panel) for at, panel in enumerate(PANELS)],
    }


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _choice(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": f"label_values(blockyard_healthy, {name})",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(at: int, panel: Panel) -> dict[str, Any]:
    place = {"x": at % 2 * _WIDTH, "y": at // 2 * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
    drawn = {"fillOpacity": 30, "stacking": {"mode": "normal"}} if panel.stacked else {}
    return {
        "id": at + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": drawn}},
        "options": {"legend": {"displayMode": "table", "placement": "right", "calcs": ["last"]}},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "expr": query.ask.replace("@", _OWN),
                "legendFormat": query.legend,
            }
            for number, query in enumerate(panel.queries)
        ],
    }


def main() -> int:
    """Writes or checks."""
    text = json.dumps(dashboard(), indent=2) + "\n"
    if "--check" not in sys.argv:
        PAGE.write_text(text)
        return 0
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    print(f"{PAGE.name} is not what its table says: make docs")
    return 1


if __name__ == "__main__":
    sys.exit(main())
