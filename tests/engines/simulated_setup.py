"""The configuration of the simulated model, as an operator of vLLM would have it."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

SIZE, LAYERS, LONGEST, DRAFTS = 16, 2, 1024, 3
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
}


class Kind(NamedTuple):
    """How the layers of a group keep their KV."""

    name: str
    """ "full", "window", "chunk" or "state"."""
    tokens: int = 0
    """Of the window, or of a chunk."""

    def first(self, length: int) -> int:
        """The first token that the one behind so many tokens attends to."""
        if self.name == "window":
            return max(0, length - self.tokens + 1)
        return length // self.tokens * self.tokens if self.name == "chunk" else 0

    def spec(self) -> Any:
        """vLLM's word for it."""
        page = {"block_size": SIZE, "num_kv_heads": 1, "head_size": 2, "dtype": torch.float32}
        if self.name == "window":
            return SlidingWindowSpec(**page, sliding_window=self.tokens)
        if self.name == "chunk":
            return ChunkedLocalAttentionSpec(**page, attention_chunk_size=self.tokens)
        if self.name == "state":
            # As many bytes as a block of the others.
            state = {"shapes": ((4 * SIZE,),), "dtypes": (torch.float32,)}
            return MambaSpec(block_size=SIZE, **state, mamba_cache_mode="align")
        return FullAttentionSpec(**page)


FULL = Kind("full")


def settings(
    extra: dict[str, Any] | None,
    blocks: int,
    seats: int,
    budget: int,
    *,
    stages: int = 1,
    drafts: bool = False,
    beside: bool = False,
    role: str = "kv_both",
    kinds: Sequence[Kind] = (FULL,),
    **more: Any,
) -> Any:
    """Returns vLLM's configuration; None for no connector."""
    count = LAYERS * stages * len(kinds)
    folder = Path(tempfile.gettempdir()) / f"blockyard-vllm-model-{count}"
    folder.mkdir(exist_ok=True)
    config = folder / "config.json"
    text = json.dumps(MODEL | {"num_hidden_layers": count})
    # A file that was changed is another model's.
    if not config.exists() or config.read_text() != text:
        config.write_text(text)
    speculative = {"method": "ngram", "num_speculative_tokens": DRAFTS, "prompt_lookup_max": 4}
    transferring = None
    if extra is not None:
        transferring = behind(extra) if beside else transfer(extra, role)
    made = VllmConfig(
        model_config=ModelConfig(
            model=str(folder), skip_tokenizer_init=True, max_model_len=LONGEST, dtype="float32"
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=seats,
            max_num_batched_tokens=budget,
            max_model_len=LONGEST,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            disable_hybrid_kv_cache_manager=True,
            **more,
        ),
        cache_config=CacheConfig(
            block_size=SIZE,
            enable_prefix_caching=True,
            mamba_cache_mode="align" if Kind("state") in kinds else "none",
        ),
        device_config=DeviceConfig(device="cpu"),
        parallel_config=ParallelConfig(),
        kv_transfer_config=transferring,
        speculative_config=SpeculativeConfig(**speculative) if drafts else None,
    )
    made.cache_config.num_gpu_blocks = blocks
    # No platform is known here, of which vLLM would know whether it has one.
    made.scheduler_config.disable_hybrid_kv_cache_manager = len(kinds) == 1
    return made


def transfer(extra: dict[str, Any], role: str) -> KVTransferConfig:
    """Returns what an operator writes in `--kv-transfer-config`."""
    return KVTransferConfig(**(own(extra) | {"kv_role": role}))


def own(extra: dict[str, Any]) -> dict[str, Any]:
    """Blockyard's part of it."""
    return {
        "kv_connector": "Blockyard",
        "kv_connector_module_path": "blockyard.engines.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": extra,
    }


def behind(extra: dict[str, Any]) -> KVTransferConfig:
    """Returns what an operator writes to have another connector before Blockyard."""
    other = {
        "kv_connector": "StandIn",
        "kv_connector_module_path": "stand_in",
        "kv_role": "kv_both",
    }
    return KVTransferConfig(
        kv_connector="MultiConnector",
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={"connectors": [other, own(extra)]},
    )


class Zeroed(KVCacheConfig):
    """One whose new blocks are zeroed, as that of a model of mixed precision."""

    needs_kv_cache_zeroing = True


class Plain(KVCacheConfig):
    """One whose new blocks are as they were, also where there are states."""

    needs_kv_cache_zeroing = False


def layers(
    blocks: int,
    *,
    latent: bool = False,
    stage: int = 0,
    zeroed: bool = False,
    kinds: Sequence[Kind] = (FULL,),
) -> Any:
    """Returns a group of layers of each kind, or one of MLA."""
    specs = [kind.spec() for kind in kinds]
    if latent:
        specs = [MLAAttentionSpec(SIZE, num_kv_heads=1, head_size=2, dtype=torch.float32)]
    groups = []
    for number, spec in enumerate(specs):
        first = (stage * len(specs) + number) * LAYERS
        names = [f"model.layers.{first + at}" for at in range(LAYERS)]
        groups.append(KVCacheGroupSpec(names, spec))
    made = Zeroed if zeroed else Plain
    return made(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups)
