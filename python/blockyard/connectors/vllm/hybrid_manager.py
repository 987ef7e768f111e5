"""Whether vLLM keeps layers in groups: its hybrid KV cache manager, from its configuration."""

from typing import Any

__all__ = ["may_have_groups", "states_left_out", "switched_off"]


def may_have_groups(vllm: Any) -> bool:
    """Returns whether vLLM may keep the layers of a model in several groups.

    The front end of vLLM has no other sign of them.

    Args:
        vllm: A `VllmConfig`.
    """
    model = vllm.model_config
    full, windows = _layers(model)
    is_off = getattr(vllm.scheduler_config, "disable_hybrid_kv_cache_manager", False)
    return not is_off and (bool(model.is_hybrid) or bool(full and windows))


def switched_off(vllm: Any, other: str | None) -> str | None:
    """Returns what the log says where windows keep all tokens, as the hybrid manager is off.

    Args:
        vllm: A `VllmConfig`.
        other: The other connector in a `MultiConnector`; None if there is none.

    Returns:
        None where it is on, or the model has no layers with windows beside others.
    """
    model = vllm.model_config
    full, windows = _layers(model)
    is_off = getattr(vllm.scheduler_config, "disable_hybrid_kv_cache_manager", False)
    if not is_off or not full or not windows:
        return None
    longest, text = int(model.max_model_len), getattr(model, "hf_text_config", None)
    chunk = getattr(text, "attention_chunk_size", None)
    window = chunk or getattr(text, "sliding_window", None)
    much = "more"
    if isinstance(window, int):
        whole = (full + windows) * longest
        kept = full * longest + windows * min(window, longest)
        much = f"{whole / kept:.1f} times as much memory"
    do = "leave --disable-hybrid-kv-cache-manager out"
    if other is not None:
        do += f"; if vLLM has switched it off for {other}, leave that one out"
    elif chunk:
        do = f"set VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE=1, and {do} if you gave it"
    return (
        f"vLLM's hybrid KV cache manager is off: {windows} of {full + windows} layers keep all "
        f"tokens in place of a window, so a request of max_model_len = {longest:,} tokens takes "
        f"{much}, in vLLM and below; {do}"
    )


def states_left_out(vllm: Any, boundary: int | None = None) -> str | None:
    """Returns what the log says where vLLM names fewer states than could be kept.

    By default it names, besides those that others share, the state of the prompt's last boundary.

    Args:
        vllm: A `VllmConfig` of a model with states.
        boundary: Tokens between two boundaries; None where they are not known.

    Returns:
        None where it names all.
    """
    every = vllm.cache_config.prefix_cache_retention_interval
    if every is None or 0 < every <= (boundary or every):
        return None
    named, lost = "only the state at the last boundary of the prompt", "its answer"
    if every:
        named, lost = f"a state for every {every:,} tokens", f"up to {every:,} tokens"
    number = "N, where N is the block size that the connector logs at the start"
    if boundary is not None:
        number = f"{boundary}, its block size"
    return (
        f"prefix_cache_retention_interval = {every}: vLLM names {named}, so a preempted request "
        f"computes {lost} again; start vLLM with --prefix-cache-retention-interval {number}"
    )


def _layers(model: Any) -> tuple[int, int]:
    """Returns how many layers have full attention, and how many a window or chunks.

    Both are 0 where the configuration lists no layers.
    """
    text = getattr(model, "hf_text_config", None)
    named = [str(one) for one in getattr(text, "layer_types", None) or ()]
    windows = sum("sliding" in one or "chunked" in one for one in named)
    return sum(one in {"full_attention", "attention"} for one in named), windows
