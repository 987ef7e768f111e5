"""Figures of well-known models: what their published configurations say of the KV cache.

Taken from each model's `config.json`: `num_hidden_layers`, `num_key_value_heads` and `head_dim`, or
`kv_lora_rank` and `qk_rope_head_dim` where attention is latent. Models whose layers keep KV in
different ways (sliding windows beside full attention) are not here: they need several groups.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

__all__ = ["MODELS", "Heads", "Latent"]


class Heads(NamedTuple):
    """Keys and values per head, as in Llama."""

    layers: int
    kv_heads: int
    head_dim: int = 128


class Latent(NamedTuple):
    """One compressed vector per token and layer, as in DeepSeek's multi-head latent attention."""

    layers: int
    latent: int = 512
    rope: int = 64


MODELS: Final[Mapping[str, Heads | Latent]] = MappingProxyType(
    {
        "llama-2-7b": Heads(32, 32),
        "llama-2-13b": Heads(40, 40),
        "llama-2-70b": Heads(80, 8),
        "llama-3-8b": Heads(32, 8),
        "llama-3-70b": Heads(80, 8),
        "llama-3.1-8b": Heads(32, 8),
        "llama-3.1-70b": Heads(80, 8),
        "llama-3.1-405b": Heads(126, 8),
        "llama-3.2-1b": Heads(16, 8, 64),
        "llama-3.2-3b": Heads(28, 8),
        "llama-3.3-70b": Heads(80, 8),
        "mistral-7b": Heads(32, 8),
        "mixtral-8x7b": Heads(32, 8),
        "mixtral-8x22b": Heads(56, 8),
        "qwen2.5-0.5b": Heads(24, 2, 64),
        "qwen2.5-1.5b": Heads(28, 2),
        "qwen2.5-3b": Heads(36, 2),
        "qwen2.5-7b": Heads(28, 4),
        "qwen2.5-14b": Heads(48, 8),
        "qwen2.5-32b": Heads(64, 8),
        "qwen2.5-72b": Heads(80, 8),
        "qwen3-0.6b": Heads(28, 8),
        "qwen3-1.7b": Heads(28, 8),
        "qwen3-4b": Heads(36, 8),
        "qwen3-8b": Heads(36, 8),
        "qwen3-14b": Heads(40, 8),
        "qwen3-32b": Heads(64, 8),
        "qwen3-30b-a3b": Heads(48, 4),
        "qwen3-235b-a22b": Heads(94, 4),
        "deepseek-v2-lite": Latent(27),
        "deepseek-v2": Latent(60),
        "deepseek-v3": Latent(61),
        "deepseek-r1": Latent(61),
        "kimi-k2": Latent(61),
    }
)
"""The well-known models, by name."""
