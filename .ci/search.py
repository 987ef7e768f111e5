"""Searches the site as its page does, and fails where a word finds another page first."""

import json
import sys
from pathlib import Path
from typing import Any, Final

from lunr import get_default_builder

FIRST: Final = {
    "troubleshooting": "troubleshooting.html",
    "FAQ": "faq.html",
    "migrate": "from-vllm.html",
    "upgrade": "upgrade.html",
    "uninstall": "upgrade.html",
    "tutorial": "tutorial.html",
    "allocate_slots": "from-vllm.html",
    "get_computed_blocks": "from-vllm.html",
}
"""What is searched, and the page that has it."""


def found(index: dict[str, Any], words: list[str]) -> dict[str, str]:
    """Returns the first page that each word finds; empty text for none."""
    builder = get_default_builder()
    builder.ref("location")
    # Material's search looks for these, and says how much each counts.
    for name, field in index["config"]["fields"].items():
        builder.field(name, boost=field["boost"])
    for entry in index["docs"]:
        tags = " ".join(entry.get("tags", []))
        builder.add({**entry, "tags": tags}, {"boost": entry.get("boost", 1)})
    search = builder.build().search
    first = {word: next(iter(search(word)), {"ref": ""})["ref"] for word in words}
    return {word: place.partition("#")[0] for word, place in first.items()}


def main() -> None:
    """Searches the site in the folder that is named."""
    index = json.loads(Path(sys.argv[1], "search/search_index.json").read_text())
    pages = found(index, list(FIRST))
    wrong = [f"{word}: {pages[word] or 'nothing'}, not {FIRST[word]}" for word in FIRST]
    wrong = [line for line, word in zip(wrong, FIRST, strict=True) if pages[word] != FIRST[word]]
    if wrong:
        sys.exit("the search of the site finds another page first:\n" + "\n".join(wrong))


if __name__ == "__main__":
    main()
