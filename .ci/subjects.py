"""Checks the subjects of commits: `area: imperative`, at most 72 characters, no full stop.

The area is what the commit is about, in small letters: `docs`, `crane, tests`, `make test`. Of the
imperative only what can be seen is checked: "fixed", "fixing" and "fixes" are none.

Usage: subjects.py FILE, the message of one commit, as git's hook `commit-msg` gives it;
subjects.py --range A..B, the commits of B that A lacks, without merges.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["complaints"]

MOST = 72
FORM = re.compile(r"(?P<area>[a-z0-9_.][\w./ -]*(?:, [\w./ -]+)*): (?P<word>\S+)(?P<rest>.*)")
# Verbs whose imperative ends as other forms do.
VERBS = {
    *("embed", "exceed", "feed", "need", "proceed", "seed", "shed", "shred", "speed", "succeed"),
    *("bring", "ping", "ring", "spring", "string", "swing", "wing"),
    *("address", "alias", "bias", "bypass", "compress", "cross", "discuss", "dismiss", "express"),
    *("focus", "guess", "miss", "pass", "press", "process", "stress", "suppress", "toss"),
}
AUTOSQUASH = re.compile(r"(?:(?:fixup|squash|amend)! )+")
SCISSORS = "# ------------------------ >8"


def complaints(subject: str) -> Iterator[str]:
    """What is wrong with a subject, and what to do."""
    if len(subject) > MOST:
        yield f"it has {len(subject)} characters, {MOST} are allowed: say less, or say it below"
    form = FORM.fullmatch(subject)
    if form is None:
        yield "it is not of the form `area: imperative`, such as `docs: say how to install`"
        return
    word = form["word"]
    if re.fullmatch(r"[a-z]+(?:ed|ing|s)", word) and word not in VERBS:
        yield f"{word!r} is not imperative: say what the commit shall do, such as `fix`"
    if subject.endswith("."):
        yield "leave out the full stop"


def subject_of(message: str) -> str:
    """The first line that git will keep; a merge and an empty message have none to check."""
    for line in message.split(SCISSORS, maxsplit=1)[0].splitlines():
        if line.strip() and not line.startswith("#"):
            return "" if line.startswith("Merge ") else line.rstrip()
    return ""


def in_range(commits: str) -> dict[str, str]:
    """Subjects by short hash."""
    command = ["git", "log", "--no-merges", "--reverse", "--format=%h %s", commits, "--"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"subjects: git does not know {commits!r}: {done.stderr.strip()}")
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def main(words: list[str]) -> int:
    """The exit status: 1 where a subject is wrong."""
    match words:
        case ["--range", commits]:
            subjects = in_range(commits)
        case [file] if not file.startswith("-"):
            # A fixup is there to vanish, but its commit must not land: a range refuses it.
            subject = AUTOSQUASH.sub("", subject_of(Path(file).read_text()))
            subjects = {"this commit": subject} if subject else {}
        case _:
            sys.exit(__doc__)
    wrong = {name: list(complaints(subject)) for name, subject in subjects.items()}
    for name, lines in wrong.items():
        for line in lines:
            print(f"subjects: {name}, {subjects[name]!r}: {line}", file=sys.stderr)
    return int(any(wrong.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
