"""Subjects of commits: `area: imperative`, and the check says what is wrong with others."""

import subprocess
import sys
from pathlib import Path

import pytest
import subjects
from subjects import complaints

GOOD = [
    "docs: say how to install",
    "crane, tests: close what is in flight",
    "make test: build the wheel beside the lints",
    ".ci/laws.py: name the file",
    "yard: process each outcome once",
    "scheduling: feed `Ack`s in order",
    "core: KVCache.begin takes a ticket",
    "a: " + "b" * 69,
]
WRONG = {
    "Docs: say how": "form",
    "docs say how to install": "form",
    "docs:say how": "form",
    "docs: ": "form",
    ": say how": "form",
    "Merge branch 'x'": "form",
    "fixup! docs: say how": "form",
    "docs: added a page": "'added' is not imperative",
    "docs: adding a page": "'adding' is not imperative",
    "docs: adds a page": "'adds' is not imperative",
    "docs: say how.": "full stop",
    "a: " + "b" * 70: "73 characters",
}


def check(*words: str, cwd: Path) -> tuple[int, str]:
    command = [sys.executable, subjects.__file__, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)  # noqa: S603
    return done.returncode, done.stderr


def git(folder: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)  # noqa: S603
    return done.stdout


@pytest.mark.parametrize("subject", GOOD)
def test_a_good_subject_passes(subject: str) -> None:
    assert list(complaints(subject)) == []


@pytest.mark.parametrize("subject", WRONG)
def test_a_wrong_subject_is_told_why(subject: str) -> None:
    (why,) = complaints(subject)
    assert WRONG[subject] in why


@pytest.mark.parametrize(
    ("message", "wrong"),
    [
        ("docs: say how\n\nAs nobody knew. It was\nnot written.\n", 0),
        ("# a comment of git's\n\ndocs: say how\n# ------------------------ >8 ---\ndiff", 0),
        ("Merge branch 'docs'\n", 0),
        ("fixup! squash! docs: say how\n", 0),
        ("fixup! Say how\n", 1),
        ("# only comments\n", 0),
        ("Say how\n", 1),
    ],
)
def test_the_hook_checks_the_line_that_git_keeps(message: str, wrong: int, tmp_path: Path) -> None:
    (tmp_path / "message").write_text(message)
    status, said = check("message", cwd=tmp_path)
    assert (status, said.count("not of the form")) == (wrong, wrong)


def test_the_commits_of_a_branch_are_checked_and_its_merges_are_not(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "An old one")
    git(tmp_path, "switch", "-q", "-c", "branch")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", GOOD[0])
    git(tmp_path, "switch", "-q", "main")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", GOOD[1])
    git(tmp_path, "merge", "-q", "branch")
    assert check("--range", "HEAD~1..HEAD", cwd=tmp_path) == (0, "")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "Said how.")
    status, said = check("--range", "HEAD~2..HEAD", cwd=tmp_path)
    assert (status, said.count("\n")) == (1, 1)
    assert git(tmp_path, "log", "-1", "--format=%h").strip() in said
    assert "Said how." in said


def test_a_range_that_git_does_not_know_is_no_success(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    status, said = check("--range", "here..there", cwd=tmp_path)
    assert status == 1
    assert "here..there" in said
