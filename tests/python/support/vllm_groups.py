"""vLLM's configurations of models with several groups of layers."""

from typing import Any

from vllm_front import BLOCKS, SIZE
from vllm_stub import Recorded, spec

PAGE = 64


def full(page: int = PAGE, **more: Any) -> Any:
    return _spec("FullAttentionSpec", page, **more)


def latent(page: int = PAGE, **more: Any) -> Any:
    return _spec("MLAAttentionSpec", page, **more)


def window(tokens: int = 8, page: int = PAGE, **more: Any) -> Any:
    return _spec("SlidingWindowSpec", page, sliding_window=tokens, **more)


def chunk(tokens: int = 8, page: int = PAGE, **more: Any) -> Any:
    return _spec("ChunkedLocalAttentionSpec", page, attention_chunk_size=tokens, **more)


def state(page: int = PAGE, mode: str = "align", **more: Any) -> Any:
    """Its page is padded to that of attention."""
    given = {"block_size": SIZE, "real_page_size_bytes": page - 24, "tp_replicated": False} | more
    return spec("MambaSpec", page_size_bytes=page, mamba_cache_mode=mode, **given)


def _spec(kind: str, page: int, **more: Any) -> Any:
    given = {"block_size": SIZE, "real_page_size_bytes": page, "dtype": "torch.float32"} | more
    return spec(kind, page_size_bytes=page, **given)


def several(*specs: Any) -> Any:
    """Layers with pages of their own in one group, as a worker has them."""
    layers = {f"layer {at}": one for at, one in enumerate(specs)}
    pages = sum(one.page_size_bytes for one in specs)
    given = {"block_size": SIZE, "page_size_bytes": pages}
    return spec("UniformTypeKVCacheSpecs", kv_cache_specs=layers, **given)


def kv_of(*groups: Any, layers: int = 2, **more: Any) -> Any:
    """A `KVCacheConfig` with a group of layers for each spec, in vLLM's order."""
    made = [
        Recorded(
            "KVCacheGroupSpec",
            layer_names=list(getattr(one, "kv_cache_specs", None) or names(number, layers)),
            kv_cache_spec=one,
        )
        for number, one in enumerate(groups)
    ]
    given = {"hash_block_size": SIZE, "kv_tp_replicas": 1, "kv_cache_layout": "LBNHC"} | more
    return Recorded("KVCacheConfig", num_blocks=BLOCKS, kv_cache_groups=made, **given)


def names(group: int, layers: int = 2) -> list[str]:
    return [f"layer {at} of {group}" for at in range(layers)]
