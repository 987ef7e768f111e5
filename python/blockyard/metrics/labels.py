"""The labels of a series, with what the text of a scrape says of them."""

from typing import Final

__all__ = ["Labels"]


class Labels(dict[str, str]):
    """Labels that stay as they are: how they are written is known once for all scrapes.

    Example:
        >>> Labels({"tier": "host", "set": "idle"}).words
        '{tier="host",set="idle"}'
    """

    __slots__ = ("words",)

    def __init__(self, labels: dict[str, str]) -> None:
        super().__init__(labels)
        inside = ",".join(f"{name}={_quoted(value)}" for name, value in labels.items())
        self.words: Final = f"{{{inside}}}" if labels else ""
        """As they are written; nothing where there are none."""


def _quoted(value: str) -> str:
    escaped = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return f'"{escaped}"'
