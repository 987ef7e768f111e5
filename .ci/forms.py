"""Checks what the repository's host reads: workflows, actions, forms, dependabot.

The schemas are those that check-jsonschema brings along, so no network is needed. zizmor then sees
to permissions, to actions that are not pinned to a commit, and to what a workflow lets strangers
do. `--self-test` breaks a rule at a time and sees that it is noticed.
"""

import io
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from check_jsonschema import main as check_jsonschema
from planted import Fault, noticed

SCHEMAS = {
    ".github/workflows/*": ["github-workflows", "custom.github-workflows-require-timeout"],
    ".github/actions/*/*": ["github-actions"],
    ".github/dependabot.yml": ["dependabot"],
    ".github/ISSUE_TEMPLATE/config.yml": ["github-issue-config"],
    ".github/ISSUE_TEMPLATE/*": ["github-issue-forms"],
}


def invalid(schema: str, files: list[Path]) -> str:
    """What the files break of a schema; nothing where they keep it."""
    name = schema if "." in schema else f"vendor.{schema}"
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        try:
            check_jsonschema(["--builtin-schema", name, *map(str, files)])
        except SystemExit as end:
            return said.getvalue().strip() if end.code else ""
    return ""


def complaints(root: Path) -> Iterator[str]:
    """Every broken rule under `root`."""
    seen: set[Path] = set()
    for pattern, schemas in SCHEMAS.items():
        files = sorted(set(root.glob(pattern)) - seen)
        seen.update(files)
        for schema in schemas if files else []:
            if said := invalid(schema, files):
                yield said
    zizmor = str(Path(sys.executable).with_name("zizmor"))
    command = [zizmor, "--quiet", "--offline", "--no-progress", "--color=never", "."]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    if done.returncode != 0:
        yield (done.stdout + done.stderr).strip()


WORKFLOW, ACTION = ".github/workflows/some.yml", ".github/actions/some/action.yml"
PINNED = f"actions/checkout@{'0' * 40} # v1.0.0"
GOOD = {
    WORKFLOW: f"""\
name: Some
on: [pull_request]
permissions:
  contents: read
concurrency:
  group: some
  cancel-in-progress: true
jobs:
  one:
    name: One
    runs-on: some
    timeout-minutes: 5
    steps:
      - uses: {PINNED}
        with:
          persist-credentials: false
""",
    ACTION: f"""\
name: Some
description: Some.
runs:
  using: composite
  steps:
    - uses: {PINNED}
      with:
        persist-credentials: false
""",
    ".github/dependabot.yml": """\
version: 2
updates:
  - package-ecosystem: cargo
    directory: /
    schedule:
      interval: weekly
    cooldown:
      default-days: 7
""",
    ".github/ISSUE_TEMPLATE/config.yml": "blank_issues_enabled: true\n",
    ".github/ISSUE_TEMPLATE/some.yml": """\
name: Some
description: Some.
body:
  - type: input
    id: some
    attributes:
      label: Some
""",
}
FAULTS = {
    "an action by its tag": Fault(WORKFLOW, PINNED, "actions/checkout@v1"),
    "an action by its tag, in an action": Fault(ACTION, PINNED, "actions/checkout@v1"),
    "any permission": Fault(WORKFLOW, "permissions:\n  contents: read\n", ""),
    "a job without a limit": Fault(WORKFLOW, "    timeout-minutes: 5\n", ""),
    "a word that no workflow has": Fault(WORKFLOW, "runs-on", "run-on"),
    "a word that no action has": Fault(ACTION, "using", "use"),
    "what a stranger writes in a command": Fault(
        WORKFLOW,
        "    steps:\n",
        "    steps:\n      - run: echo ${{ github.event.pull_request.title }}\n",
    ),
    "no ecosystem": Fault(".github/dependabot.yml", "cargo", "cargos"),
    "a form without a label": Fault(
        ".github/ISSUE_TEMPLATE/some.yml", "    attributes:\n      label: Some\n", ""
    ),
    "a switch that is none": Fault(".github/ISSUE_TEMPLATE/config.yml", "true", "perhaps"),
}


def main() -> int:
    """Checks the project, or with `--self-test` this script."""
    if sys.argv[1:] == ["--self-test"]:
        noticed("forms", complaints, GOOD, FAULTS)
        return 0
    found = list(complaints(Path(__file__).resolve().parent.parent))
    print("\n".join(found) or "forms: they keep their schemas, and every action is pinned")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
