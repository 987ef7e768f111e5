"""Prints THIRD_PARTY_NOTICES: the licences of the crates that are linked into the wheels.

Those are the normal dependencies of the extension, on each CPU architecture that has a wheel; what
only builds or tests it is in no wheel. A text that several crates share stands there once.

The sdist has it, so who builds a wheel from that needs none of this.
"""

import json
import re
import subprocess
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGETS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")
TEXTS = re.compile(r"(LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|UNLICENSE)", re.IGNORECASE)
HEAD = """\
Blockyard's own licence is in LICENSE. Its wheels also contain the Rust standard library (MIT OR
Apache-2.0, https://github.com/rust-lang/rust) and these crates, under these licences.
"""


def cargo(*words: str) -> str:
    """What cargo prints."""
    command = ["cargo", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def linked() -> set[tuple[str, str]]:
    """Names and versions of the crates that a wheel contains, without the project's own."""
    edges = ["--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}"]
    found = set()
    for target in TARGETS:
        said = cargo("tree", "--locked", "--package", "blockyard-py", "--target", target, *edges)
        for line in said.splitlines():
            name, version, *_ = line.split()
            if not name.startswith("blockyard"):
                found.add((name, version.removeprefix("v")))
    return found


def texts(folder: Path) -> list[str]:
    """The licences in a crate's folder, and in those that are for them."""
    each = [path for path in folder.rglob("*") if path.is_file() and TEXTS.match(path.name)]
    near = [path for path in each if folder in (path.parent, path.parent.parent)]
    return ["\n".join(map(str.rstrip, path.read_text().strip().splitlines())) for path in near]


def notices() -> str:
    """The whole file.

    Raises:
        SystemExit: A crate has no licence's text.
    """
    wanted = linked()
    platforms = [word for target in TARGETS for word in ("--filter-platform", target)]
    said = cargo("metadata", "--locked", "--format-version", "1", *platforms)
    known = json.loads(said)["packages"]
    lines, shared = [HEAD], defaultdict(list)
    for package in sorted(known, key=lambda each: (each["name"], each["version"])):
        name = f"{package['name']} {package['version']}"
        if (package["name"], package["version"]) not in wanted:
            continue
        lines.append(f"{name}: {package['license']}, {package['repository']}")
        found = texts(Path(package["manifest_path"]).parent)
        if not found:
            raise SystemExit(
                f"third_party: {name} has no text of its licence, {package['license']}"
            )
        for text in sorted(set(found)):
            shared[text].append(name)
    for text, names in sorted(shared.items(), key=lambda each: (each[1], each[0])):
        lines += ["", "=" * 100, ", ".join(names), "=" * 100, "", text]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(notices(), end="")
