"""Tiny models of several groups of layers, of vLLM's own classes, with random weights.

Each is written as a checkpoint of transformers, the same for everyone who has its version. Their
layers are those of models that people serve: see `MODELS`.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["MODELS", "VOCABULARY", "Model", "write"]

VOCABULARY = 512
COMMON: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


class Model(NamedTuple):
    """A kind of hybrid.

    Attributes:
        shape: The architecture's name for transformers and vLLM.
        config: Its class of transformers.
        more: What its configuration says beyond `COMMON`.
        squeezed: Blocks in which not all of six requests run at once.
        states: Has it states, which go on at a boundary of blocks alone?
        dtype: Of its weights.
        options: What vLLM is told beside it.
        longer: Tokens by which its prompts are longer, so that they pass a boundary.
        split: Is it run with two workers, too? Where two are slow, one of a kind of layers will do.
    """

    shape: str
    config: str
    more: dict[str, Any]
    squeezed: int
    states: bool = False
    dtype: str = "float32"
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed
    longer: int = 0
    split: bool = True


MODELS = {
    # Five windows and one full layer, twice.
    "gemma": Model(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {
            "num_hidden_layers": 12,
            "sliding_window": 64,
            "query_pre_attn_scalar": 64,
            "layer_types": ([*["sliding_attention"] * 5, "full_attention"]) * 2,
        },
        squeezed=75,
        split=False,
    ),
    # A window, then a full layer, with sinks and experts.
    "gpt-oss": Model(
        "GptOssForCausalLM",
        "GptOssConfig",
        {
            "num_hidden_layers": 4,
            "sliding_window": 40,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
        squeezed=30,
    ),
    # Three layers of chunks, then a full one.
    "llama4": Model(
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        {
            "num_hidden_layers": 4,
            "intermediate_size_mlp": 256,
            "attention_chunk_size": 64,
            "moe_layers": [],
            "interleave_moe_layer_step": 0,
            "layer_types": [*["chunked_attention"] * 3, "full_attention"],
            "no_rope_layers": [1, 1, 1, 0],
        },
        squeezed=55,
        split=False,
    ),
    # Two short convolutions to one full layer.
    "lfm2": Model(
        "Lfm2ForCausalLM",
        "Lfm2Config",
        {
            "num_hidden_layers": 6,
            "layer_types": ["conv", "conv", "full_attention"] * 2,
            "block_auto_adjust_ff_dim": False,
            "conv_dim": 128,
            "block_dim": 128,
            "block_ff_dim": 256,
        },
        squeezed=30,
        states=True,
        # The CPU's rotary kernel takes queries of two axes alone, and this model has three.
        options={"compilation_config": {"custom_ops": ["all", "-rotary_embedding"]}},
    ),
    # Three gated delta nets to one full layer.
    "qwen3-next": Model(
        "Qwen3_5ForCausalLM",
        "Qwen3_5TextConfig",
        {
            "num_hidden_layers": 4,
            "layer_types": [*["linear_attention"] * 3, "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
        },
        squeezed=30,
        states=True,
        # The only one that vLLM's kernels of gated delta nets take on a CPU.
        dtype="bfloat16",
        # Logits of 8 bits would be equal now and then.
        options={
            "hf_overrides": {"head_dtype": "float32"},
            "worker_extension_cls": "delta_recurrence.Exact",
        },
        # A state has the bytes of three blocks of 32 tokens, so vLLM's blocks have 96.
        longer=64,
    ),
}


def write(name: str, folder: Path) -> None:
    """Writes a model's configuration and weights into a folder, unless they are there."""
    import torch
    import transformers

    if (folder / "written").exists():
        return
    model = MODELS[name]
    config = getattr(transformers, model.config)(**COMMON | model.more)
    made = getattr(transformers, model.shape)(config)
    source = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for said, weight in made.named_parameters():
            if weight.dim() < 2:
                continue
            drawn = torch.randn(weight.shape, generator=source)
            # Logits that lie apart: another order of sums must not choose another token.
            scale = 4 if "lm_head" in said else 1
            if "embed" in said:
                # Small beside what layers add: a head that is tied to it must not say it again.
                weight.copy_(drawn / 10)
            else:
                weight.copy_(drawn * scale / weight.shape[-1] ** 0.5)
    made.save_pretrained(folder)
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(said | {"architectures": [model.shape]}))
    (folder / "written").touch()
