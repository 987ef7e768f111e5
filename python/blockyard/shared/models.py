"""Figures of well-known models: what their published configurations say of the KV cache.

Taken from each model's `config.json`: `num_hidden_layers`, `num_key_value_heads` and `head_dim`, or
`kv_lora_rank` and `qk_rope_head_dim` where attention is latent.

The layers of a hybrid model keep KV in several ways. Sources of `HYBRIDS`, each in the repository
huggingface/transformers, under `src/transformers/models/`, where nothing else is named:

| model | source |
|---|---|
| gpt-oss | `gpt_oss/configuration_gpt_oss.py` is of 120b; 20b has 24 layers (its `config.json`) |
| gemma-2 | `gemma2/convert_gemma2_weights_to_hf.py`; `configuration_gemma2.py` for the pattern |
| gemma-3 | `gemma3/convert_gemma3_weights.py`; `configuration_gemma3.py` for the pattern |
| llama-4 | `llama4/configuration_llama4.py`; maverick: `llama4` of pytorch/torchtitan |
| qwen3-next | `qwen3_next/configuration_qwen3_next.py` |
| kimi-linear | its `config.json`, as tests of Megatron-Bridge quote it |
| nemotron-h-8b | its `config.json`, as tests of Megatron-Bridge quote it |
| granite-4.0-h-tiny | its `config.json`, as a benchmark of Mamba kernels for vLLM quotes it |
| jamba-v0.1 | `jamba/configuration_jamba.py` |
| lfm2.5-350m | ggml-org/llama.cpp#22287; `lfm2/configuration_lfm2.py` for the kernel |

What a state takes follows from `vllm/model_executor/layers/mamba/mamba_utils.py` of
vllm-project/vllm: for each layer the last `kernel - 1` inputs of the convolution, and the state.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

__all__ = ["HYBRIDS", "MODELS", "Chunk", "Heads", "Latent", "State", "Window"]


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


class Window(NamedTuple):
    """Layers with a sliding window."""

    heads: Heads
    tokens: int


class Chunk(NamedTuple):
    """Layers whose attention is in chunks."""

    heads: Heads
    tokens: int


class State(NamedTuple):
    """Layers with a recurrent state."""

    layers: int
    conv: int
    """Values of the convolution's inputs, per layer."""
    ssm: int = 0
    """Values of the state, per layer."""
    ssm_dtype: str | None = None
    """Type of the state; None for the type of the KV."""


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

HYBRIDS: Final[Mapping[str, tuple[Heads | Latent | Window | Chunk | State, ...]]] = (
    MappingProxyType(
        {
            "gpt-oss-20b": (Heads(12, 8, 64), Window(Heads(12, 8, 64), 128)),
            "gpt-oss-120b": (Heads(18, 8, 64), Window(Heads(18, 8, 64), 128)),
            "gemma-2-9b": (Heads(21, 8, 256), Window(Heads(21, 8, 256), 4096)),
            "gemma-2-27b": (Heads(23, 16), Window(Heads(23, 16), 4096)),
            "gemma-3-1b": (Heads(4, 1, 256), Window(Heads(22, 1, 256), 512)),
            "gemma-3-4b": (Heads(5, 4, 256), Window(Heads(29, 4, 256), 1024)),
            "gemma-3-12b": (Heads(8, 8, 256), Window(Heads(40, 8, 256), 1024)),
            "gemma-3-27b": (Heads(10, 16), Window(Heads(52, 16), 1024)),
            "llama-4-scout": (Heads(12, 8), Chunk(Heads(36, 8), 8192)),
            "llama-4-maverick": (Heads(12, 8), Chunk(Heads(36, 8), 8192)),
            # 2 * 16 heads of keys and 32 of values, 128 wide, through a kernel of 4.
            "qwen3-next-80b-a3b": (
                Heads(12, 2, 256),
                State(36, 3 * 64 * 128, 32 * 128 * 128, "float32"),
            ),
            "kimi-linear-48b-a3b": (
                Latent(7),
                State(20, 3 * 3 * 32 * 128, 32 * 128 * 128, "float32"),
            ),
            # 128 heads of 64, and 2 * 8 groups of 128, through a kernel of 4.
            "nemotron-h-8b": (
                Heads(4, 8),
                State(24, 3 * (128 * 64 + 2 * 8 * 128), 128 * 64 * 128),
            ),
            "granite-4.0-h-tiny": (
                Heads(4, 4),
                State(36, 3 * (48 * 64 + 2 * 128), 48 * 64 * 128),
            ),
            "jamba-v0.1": (Heads(4, 8), State(28, 3 * 8192, 8192 * 16)),
            "lfm2.5-350m": (Heads(6, 8, 64), State(10, 2 * 1024)),
        }
    )
)
"""The groups of layers of well-known hybrid models, by name; that of full attention is first."""
