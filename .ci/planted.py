"""Sees that a check notices: in a small tree that keeps its rules, each is broken once."""

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["Fault", "noticed"]


class Fault(NamedTuple):
    """What is wrong in a tree: another text in a file."""

    path: str
    old: str
    """What goes; the whole file, or none, where it is empty."""
    new: str


def noticed(
    check: str,
    complaints: Callable[[Path], Iterator[str]],
    good: Mapping[str, str],
    faults: Mapping[str, Fault],
) -> None:
    """Ends the process unless each fault is complained of, and the good tree is not.

    Args:
        check: Its name, for what is printed.
        complaints: What the check finds in the tree under a folder.
        good: The texts of a tree that keeps all rules, by path.
        faults: What is to be noticed, by name.
    """
    for name, fault in {"nothing": None, **faults}.items():
        files = dict(good)
        if fault is not None:
            text = files.get(fault.path, "")
            if fault.old not in text:
                sys.exit(f"{check}: the self-test has nothing to break for {name!r}")
            files[fault.path] = text.replace(fault.old, fault.new) if fault.old else fault.new
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                file = Path(root, path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            found = list(complaints(Path(root)))
        if bool(found) != (fault is not None):
            sys.exit(f"{check}: the self-test broke {name!r}, and this was found: {found}")
    print(f"{check}: {len(faults)} faults noticed")
