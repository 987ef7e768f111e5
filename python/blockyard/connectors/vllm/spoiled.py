"""Which blocks vLLM's runner writes by itself."""

from typing import Any

__all__ = ["spoiled"]


def spoiled(output: Any) -> list[int]:
    """Returns the blocks that vLLM's V2 runner writes before it calls the connector."""
    zeroed, copies = output.new_block_ids_to_zero, output.kv_cache_block_copies
    return [*(zeroed or ()), *(int(copy[1]) for copy in copies or ())]
