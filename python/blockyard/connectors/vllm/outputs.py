"""What is read of a step of vLLM's, and written into its requests."""

from typing import Any

__all__ = ["count_cached", "overwritten_blocks"]


def count_cached(request: Any, local: int, tokens: int) -> None:
    """Has vLLM report of a request what a load has brought, and not what was matched.

    vLLM counts what it was told before the load. Of a prompt that is there whole it computes the
    last token again.

    Args:
        request: vLLM's, which has not run since it came.
        local: Tokens that vLLM had itself.
        tokens: What it has, from its start.
    """
    stats, prompt = request.prefill_stats, int(request.num_prompt_tokens)
    if stats is None or request.num_preemptions:
        return
    stats.set(
        num_prompt_tokens=prompt,
        num_local_cached_tokens=local,
        num_external_cached_tokens=max(min(tokens, prompt - 1) - local, 0),
    )


def overwritten_blocks(output: Any) -> list[int]:
    """Returns the blocks that vLLM's V2 runner writes before it calls the connector."""
    zeroed, copies = output.new_block_ids_to_zero, output.kv_cache_block_copies
    return [*(zeroed or ()), *(int(copy[1]) for copy in copies or ())]
