"""The subjects of commits: which gitlint takes, by its rule in .ci/subjects.py."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
GITLINT = Path(sys.executable).with_name("gitlint")

subjects = pytest.importorskip("subjects", reason="what it needs comes with `make lint`")


def refused(subject: str) -> bool:
    return bool(subjects.ImperativeSubject().validate(subject, None))


GOOD = """\
docs: say how to install
crane, tests: close what is in flight
crane, py: start a copy only once
vllm: re-announce host blocks after a prefix-cache reset
core: move token staging into events/tokens.rs
.ci: feed gitlint from a file
tests: prefill on one engine
bench: bring PyYAML
docs: set, put and cut are their own past
state: dedup what two have published
names: name one thing by one word
release: 0.2.0
release: 0.2.0-rc1"""
WRONG = """\
docs: adds a page
docs: added a page
docs: adding a page
docs: the page on disks
docs: a page on disks
docs: what a page says
docs: one page for all
docs: memory of the ranks
docs: names of section 6
docs: vLLM's disk is named
docs: no size twice
docs: how to install
docs: fixes
docs: 0.2.0
docs:say how
docs:
Docs: say how
say how to install
feat(docs)!: say how"""


def test_subjects_are_an_area_and_an_imperative() -> None:
    assert [subject for subject in GOOD.splitlines() if refused(subject)] == []
    assert [subject for subject in WRONG.splitlines() if not refused(subject)] == []


@pytest.mark.parametrize(
    ("subject", "rules"),
    [
        ("docs: say how", []),
        ("Merge branch 'main' into tools", []),
        ("docs: the page", ["UL1"]),
        (f"docs: {'say ' * 18}so.", ["T1", "T3"]),
    ],
)
def test_gitlint_asks_the_rule(subject: str, rules: list[str]) -> None:
    done = subprocess.run(  # noqa: S603 - gitlint
        [GITLINT], input=f"{subject}\n", capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert [line.split()[1] for line in done.stderr.splitlines()] == rules


def test_the_check_is_of_what_differs_from_main(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        own = ["-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "commit.gpgsign=false"]
        run = ["git", *own, *words]
        subprocess.run(run, cwd=tmp_path, check=True, capture_output=True)  # noqa: S603 - git

    def checked() -> subprocess.CompletedProcess[str]:
        made = ["make", "-f", str(ROOT / "Makefile"), f"BIN={GITLINT.parent}", "lint-subjects"]
        # What make would do first, installing the tools, is done.
        goal = [*made, "-o", ".venv/lint.group"]
        return subprocess.run(  # noqa: S603 - make
            goal, cwd=tmp_path, check=False, capture_output=True, text=True
        )

    for name in (".gitlint", ".ci"):
        (tmp_path / name).symlink_to(ROOT / name)
    assert checked().returncode == 0
    git("init", "-b", "main")
    git("commit", "--allow-empty", "-m", "The first of old subjects.")
    assert checked().returncode == 0
    git("checkout", "-b", "other")
    git("commit", "--allow-empty", "-m", "docs: say how")
    assert checked().returncode == 0
    git("commit", "--allow-empty", "-m", "docs: how to say it")
    done = checked()
    assert done.returncode
    assert "UL1" in done.stderr
    assert "The first" not in done.stderr
