"""gitlint's rule of ours: the subject of a commit is `area: imperative`.

lemminflect has the words of English with their base forms: "add" is the base form of a verb;
"adds", "added", "adding", "the", "what" and "memory" are not. A verb that is a noun, too, such as
"name", passes.
"""

import re
from typing import Final

from gitlint.rules import (  # type: ignore[import-untyped]
    CommitMessageTitle,
    LineRule,
    RuleViolation,
)
from lemminflect import getAllLemmas  # type: ignore[import-untyped]

__all__ = ["ImperativeSubject", "is_imperative"]

_AREA: Final = re.compile(r"[a-z0-9_.][\w./ -]*(, [\w./ -]+)*: (?P<first>\S+)")
_PREFIX: Final = re.compile(r"(re|un|de|pre|dis|over)-?(?=[a-z]{3})")
"""With it a verb is one still, whether or not a dictionary has it: "prefill", "re-announce"."""
_OURS: Final = {"benchmark", "dedup", "inline", "sync", "vendor"}
"""Verbs of programmers that the dictionary lacks."""
_RELEASE: Final = re.compile(r"release: \d+\.\d+\.\d+\S*$")
"""As `make release` writes it."""


def is_imperative(word: str) -> bool:
    """Whether a word may be the imperative of a verb."""
    plain = word.casefold().rstrip(",;:")
    return any(
        base in _OURS or base in getAllLemmas(base, upos="VERB").get("VERB", ())
        for base in (plain, _PREFIX.sub("", plain, count=1))
    )


class ImperativeSubject(LineRule):  # type: ignore[misc]
    """Finds subjects without an area, and those whose first word behind it is no imperative."""

    name = "subject-imperative"
    id = "UL1"
    target = CommitMessageTitle

    def validate(self, line: str, _commit: object) -> list[RuleViolation]:
        """Returns what is wrong with a subject."""
        found = _AREA.match(line)
        if found is None:
            why = "Subject must be `area: imperative`, such as `docs: say how to install`"
        elif is_imperative(found["first"]) or _RELEASE.match(line):
            return []
        else:
            why = (
                f"Subject must begin with an imperative behind its area: {found['first']!r} is none"
            )
        return [RuleViolation(self.id, why, line)]
