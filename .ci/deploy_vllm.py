"""Writes deploy/vllm: the rules and the dashboard that hold inside vLLM, of those beside it.

    python .ci/deploy_vllm.py

A rule is one of them if it has an annotation `vllm`, what an operator of vLLM does, which is its
`do` then; a recording rule, a panel or a query of one, if the connector tells all that it asks for.
"""

import json
import re
from pathlib import Path
from typing import Any, Final

from blockyard.connectors.vllm.metrics import rank_stats, scheduler_stats
from blockyard.shared.layout import TIERS
from blockyard.shared.stats import PREFIX

DEPLOY: Final = Path(__file__).parents[1] / "deploy"
_HEAD: Final = """\
# Alerts for vLLM, generated from ../prometheus/rules.yml by `make deploy-vllm`. Do not edit.
# Alerts with `severity: page` cannot wait for working hours: see docs/monitoring.md.
"""
_METRIC: Final = re.compile(rf"{PREFIX}\w+")
_RECORDED: Final = re.compile(r"blockyard:\w+:\w+")


def names() -> set[str]:
    """The names of all series that the connector tells."""
    stats = (*scheduler_stats(TIERS, events=True), *rank_stats(0))
    told = {f"{PREFIX}{stat.family}{'_total' if stat.kind == 'counter' else ''}" for stat in stats}
    return told | {f"{PREFIX}engine_info"}


def rules(text: str) -> str:
    """Returns the rules that hold, each with what to do inside vLLM."""
    told, made = names(), [f"{_HEAD}groups:\n"]
    for group in re.split(r"^(?=  - name: )", text, flags=re.MULTILINE)[1:]:
        head, body = group.split("    rules:\n")
        kept = [held for rule in body.rstrip().split("\n\n") if (held := _held(rule, told))]
        made.append(f"{head}    rules:\n" + "\n\n".join(kept))
    return made[0] + "\n\n".join(made[1:]) + "\n"


def _held(rule: str, told: set[str]) -> str:
    """Returns a rule, with the comment above it, as it is inside vLLM; "" if it does not hold."""
    if "- record:" in rule:
        return rule if set(_METRIC.findall(rule.partition("expr:")[2])) <= told else ""
    own = re.sub(r"\n          do: .*\n          vllm: ", "\n          do: ", rule)
    return "" if own == rule else own


def board(text: str) -> str:
    """Returns the dashboard with the panels that have data, each with the queries that have."""
    told, whole = names(), json.loads(text)
    panels: list[dict[str, Any]] = []
    for panel in whole["panels"]:
        targets = [one for one in panel["targets"] if set(_METRIC.findall(one["expr"])) <= told]
        if targets:
            at = len(panels)
            place = panel["gridPos"] | {"x": at % 2 * 12, "y": at // 2 * 8}
            panels.append(panel | {"id": at + 1, "gridPos": place, "targets": targets})
    head = {key: value for key, value in whole.items() if key != "panels"}
    head |= {"title": "Blockyard inside vLLM", "uid": "blockyard-vllm"}
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    shown = ",\n".join(f"    {json.dumps(panel)}" for panel in panels)
    return "\n".join(["{", *lines, '  "panels": [', shown, "  ]", "}"]) + "\n"


def made() -> dict[Path, str]:
    """Returns the text of each file."""
    return {
        DEPLOY / "vllm" / "rules.yml": rules((DEPLOY / "prometheus" / "rules.yml").read_text()),
        DEPLOY / "vllm" / "blockyard.json": board(
            (DEPLOY / "grafana" / "blockyard.json").read_text()
        ),
    }


if __name__ == "__main__":
    for path, text in made().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
