"""The formats that a trace can be made from."""

from typing import Final

from blockyard.tools.traces.formats import azure, kv_events, openai, sglang, text, tokens, vllm
from blockyard.tools.traces.formats.format import Format

__all__ = ["FORMATS"]

FORMATS: Final[dict[str, Format]] = {
    module.FORMAT.name: module.FORMAT
    for module in (tokens, text, openai, vllm, sglang, kv_events, azure)
}
