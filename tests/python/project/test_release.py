"""`make release`, in a repository to throw away: one commit and one tag, or nothing at all."""

import datetime as dt
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import release

CARGO = """\
[workspace]
members = ["core"]

[workspace.package]
edition = "2024"
version = "0.1.0"
rust-version = "1.88"

[workspace.dependencies]
other = { version = "0.1.0" }
"""
LOCK = """\
version = 4

[[package]]
name = "core"
version = "0.1.0"
dependencies = [
 "other",
]

[[package]]
name = "other"
version = "0.1.0"
source = "registry+somewhere"
checksum = "00"

[[package]]
name = "py"
version = "0.1.0"
"""
LOG = """\
# Changelog

## [Unreleased]

### Added

- What is new.

## [0.0.1] - 2026-01-01

- What was new.
"""


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clean checkout of a project at 0.1.0."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.chdir(tmp_path)
    for name, text in {"Cargo.toml": CARGO, "Cargo.lock": LOCK, "CHANGELOG.md": LOG}.items():
        (tmp_path / name).write_text(text)
    git("init", "-q", "-b", "main")
    git("config", "user.name", "A")
    git("config", "user.email", "a@example.org")
    git("add", ".")
    git("commit", "-q", "-m", "all: begin")
    return tmp_path


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], capture_output=True, text=True, check=True)  # noqa: S603, S607
    return done.stdout.strip()


def make(*words: str) -> tuple[int, str]:
    command = [sys.executable, release.__file__, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return done.returncode, done.stdout + done.stderr


def test_it_commits_the_version_and_the_changelog_and_tags_them(repo: Path) -> None:
    status, said = make("0.2.0")
    assert status == 0, said
    assert "git push --atomic origin main v0.2.0" in said
    assert git("log", "-1", "--format=%s") == "release: 0.2.0"
    assert git("rev-list", "--count", "HEAD") == "2"
    assert git("status", "--porcelain") == ""
    # Annotated: it is an object of its own, and names the commit.
    assert git("cat-file", "-t", "v0.2.0") == "tag"
    assert git("rev-parse", "v0.2.0^{commit}") == git("rev-parse", "HEAD")
    cargo = tomllib.loads((repo / "Cargo.toml").read_text())["workspace"]
    assert cargo["package"] == {"edition": "2024", "version": "0.2.0", "rust-version": "1.88"}
    assert cargo["dependencies"]["other"]["version"] == "0.1.0"
    packages = tomllib.loads((repo / "Cargo.lock").read_text())["package"]
    versions = {package["name"]: package["version"] for package in packages}
    assert versions == {"core": "0.2.0", "other": "0.1.0", "py": "0.2.0"}
    today = dt.datetime.now(dt.UTC).date()
    log = (repo / "CHANGELOG.md").read_text()
    assert f"## [Unreleased]\n\n## [0.2.0] - {today}\n\n### Added\n\n- What is new.\n" in log
    assert log.endswith(LOG[LOG.index("## [0.0.1]") :])


def test_the_notes_are_those_of_the_tagged_version(repo: Path) -> None:
    assert make("0.2.0")[0] == 0
    assert make("--notes", "v0.2.0") == (0, "### Added\n\n- What is new.\n")
    status, said = make("--notes", "v0.3.0")
    assert (status, "tag v0.2.0" in said) == (1, True)
    (repo / "CHANGELOG.md").write_text(LOG)
    status, said = make("--notes", "v0.2.0")
    assert (status, "no section for 0.2.0" in said) == (1, True)


def test_the_first_release_may_have_the_version_that_stands_there(repo: Path) -> None:
    assert repo.exists()
    assert make("0.1.0")[0] == 0
    assert git("log", "-1", "--format=%s") == "release: 0.1.0"
    status, said = make("0.1.0")
    assert (status, "the tag v0.1.0 is there already" in said) == (1, True)


@pytest.mark.parametrize("version", ["", "1", "1.2", "v1.2.3", "1.2.3.4", "01.2.3", "1.2.3-rc1"])
def test_it_refuses_what_is_no_version(version: str, repo: Path) -> None:
    refused(repo, version, f"{version!r} is not a version: give three numbers")


def dirty() -> None:
    Path("new").touch()


def detached() -> None:
    git("switch", "-q", "--detach")


def said_nothing() -> None:
    Path("CHANGELOG.md").write_text(re.sub(r"### Added\n\n- What is new.\n", "", LOG))
    git("commit", "-q", "-a", "-m", "changelog: say nothing")


def no_heading() -> None:
    Path("CHANGELOG.md").write_text(LOG.replace("[Unreleased]", "Soon"))
    git("commit", "-q", "-a", "-m", "changelog: say soon")


def hook_says_no() -> None:
    hook = Path(".git/hooks/commit-msg")
    hook.write_text("#!/bin/sh\necho the hook says no >&2\nexit 1\n")
    hook.chmod(0o755)


@pytest.mark.parametrize(
    ("version", "first", "why"),
    [
        ("0.0.9", None, "0.0.9 is below 0.1.0"),
        ("0.2.0", dirty, "the tree is not clean: commit, or remove, what changed:\n?? new"),
        ("0.2.0", detached, "'git switch main' first"),
        ("0.2.0", said_nothing, "says nothing below '## [Unreleased]'"),
        ("0.2.0", no_heading, "has no line '## [Unreleased]'"),
        ("0.2.0", hook_says_no, "the hook says no"),
    ],
    ids=["below", "dirty", "detached", "nothing new", "no heading", "hook"],
)
def test_it_refuses_and_says_what_to_do(
    version: str, first: Callable[[], None] | None, why: str, repo: Path
) -> None:
    if first:
        first()
    refused(repo, version, why)


def refused(repo: Path, version: str, why: str) -> None:
    """Nothing may have changed."""
    before = git("rev-parse", "HEAD"), git("status", "--porcelain"), files(repo)
    status, said = make(version)
    assert (status, why in said) == (1, True), said
    assert before == (git("rev-parse", "HEAD"), git("status", "--porcelain"), files(repo))
    assert git("tag", "--list") == ""


def files(repo: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in repo.iterdir() if path.is_file()}
