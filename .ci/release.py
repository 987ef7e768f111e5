"""Makes a release here: version, changelog, commit and annotated tag. It pushes nothing.

Usage, in the checkout:
  release.py VERSION       what `make release` does; VERSION is three numbers, such as 0.2.0
  release.py --notes TAG   prints what the changelog says of the version, and refuses a TAG that is
                           not of the version in Cargo.toml
"""

import datetime as dt
import re
import subprocess
import sys
from pathlib import Path

__all__ = ["main"]

VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
CARGO, LOCK, LOG = Path("Cargo.toml"), Path("Cargo.lock"), Path("CHANGELOG.md")
OURS = re.compile(r'(\[workspace\.package\]\n(?:[^\[].*\n)*?version = ")([^"]*)(")')
PACKAGE = re.compile(r"\[\[package\]\]\n(?:.+\n)+")
UNRELEASED = "## [Unreleased]\n"


class Refused(Exception):
    """What is in the way, and what to do."""


def git(*words: str) -> str:
    """What it prints."""
    done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Refused(f"git {words[0]} failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout.strip()


def numbers(version: str) -> tuple[int, ...]:
    """A version as what it is compared by."""
    if VERSION.fullmatch(version) is None:
        raise Refused(
            f"{version!r} is not a version: give three numbers, 'make release VERSION=0.2.0'"
        )
    return tuple(map(int, version.split(".")))


def current(cargo: str) -> str:
    """The version in Cargo.toml."""
    found = OURS.search(cargo)
    if found is None:
        raise Refused(f"{CARGO} has no version in [workspace.package]: it is the one source of it")
    return found[2]


def locked(lock: str, old: str, new: str) -> str:
    """Cargo.lock with the new version for the crates of the workspace, which have no source."""

    def renewed(package: re.Match[str]) -> str:
        text = package[0]
        if "\nsource = " in text:
            return text
        return text.replace(f'\nversion = "{old}"\n', f'\nversion = "{new}"\n')

    return PACKAGE.sub(renewed, lock)


def section(log: str, heading: str) -> str:
    """What the changelog says below a heading, up to the next one."""
    _, _, after = log.partition(heading)
    return re.split(r"^## ", after, maxsplit=1, flags=re.MULTILINE)[0].strip()


def notes(tag: str) -> str:
    """The changelog of the version that was tagged."""
    version = current(CARGO.read_text())
    if tag != f"v{version}":
        raise Refused(f"the tag {tag!r} is not of {CARGO}, which has {version}: tag v{version}")
    dated = re.search(rf"^## \[{re.escape(version)}\].*\n", LOG.read_text(), re.MULTILINE)
    if dated is None:
        raise Refused(f"{LOG} has no section for {version}: 'make release' makes it")
    return section(LOG.read_text(), dated[0])


def check(version: str) -> None:
    """Refuses what cannot be released."""
    old = current(CARGO.read_text())
    # The first release may have the version that has stood there from the start.
    if numbers(version) < numbers(old):
        raise Refused(f"{version} is below {old}, the version of {CARGO}: choose a later one")
    if git("tag", "--list", f"v{version}"):
        raise Refused(f"the tag v{version} is there already: choose a version after {old}")
    if changed := git("status", "--porcelain"):
        raise Refused(f"the tree is not clean: commit, or remove, what changed:\n{changed}")
    if not git("branch", "--show-current"):
        raise Refused("no branch is checked out: 'git switch main' first")
    if UNRELEASED not in LOG.read_text():
        raise Refused(f"{LOG} has no line {UNRELEASED.strip()!r}: write what is new below it")
    if not section(LOG.read_text(), UNRELEASED):
        raise Refused(f"{LOG} says nothing below {UNRELEASED.strip()!r}: write what is new there")


def release(version: str) -> str:
    """Writes, commits and tags; what to do next."""
    numbers(version)
    check(version)
    branch = git("branch", "--show-current")
    cargo, old = CARGO.read_text(), current(CARGO.read_text())
    day = dt.datetime.now(dt.UTC).date().isoformat()
    CARGO.write_text(OURS.sub(rf"\g<1>{version}\g<3>", cargo, count=1))
    LOCK.write_text(locked(LOCK.read_text(), old, version))
    heading = f"{UNRELEASED}\n## [{version}] - {day}\n"
    LOG.write_text(LOG.read_text().replace(UNRELEASED, heading, 1))
    files = [str(CARGO), str(LOCK), str(LOG)]
    try:
        git("commit", "--quiet", "--message", f"release: {version}", "--", *files)
    except Refused:
        git("restore", "--staged", "--worktree", "--", *files)
        raise
    try:
        git("tag", "--annotate", f"v{version}", "--message", f"Blockyard {version}")
    except Refused:
        git("reset", "--quiet", "--hard", "HEAD~1")
        raise
    return f"""release: {version} is committed on {branch} and tagged v{version}, here alone. Next:
  make test                              # all of it, with the new version
  git push --atomic origin {branch} v{version}
The tag lets the workflows make a draft of the release, with the wheels, and put up the site.
To take it back before it is pushed: git tag --delete v{version} && git reset --hard HEAD~1"""


def main(words: list[str]) -> int:
    """The exit status."""
    try:
        match words:
            case ["--notes", tag]:
                print(notes(tag))
            case [version]:
                print(release(version))
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except Refused as why:
        print(f"release: {why}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
