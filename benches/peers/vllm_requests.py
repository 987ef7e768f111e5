"""vLLM's requests and their keys, imported by name, since this environment has no vLLM."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from peers.work import BLOCK

if TYPE_CHECKING:
    from collections.abc import Sequence

torch: Any = import_module("torch")
utils: Any = import_module("vllm.v1.core.kv_cache_utils")
interface: Any = import_module("vllm.v1.kv_cache_interface")
Request: Any = import_module("vllm.v1.request").Request
SamplingParams: Any = import_module("vllm.sampling_params").SamplingParams

HASH, POLICY = sys.argv[2:4]
function: Any = getattr(import_module("vllm.utils.hashing"), HASH)
utils.init_none_hash(function)
hasher: Any = utils.get_request_block_hasher(BLOCK, function)
params: Any = SamplingParams(max_tokens=100_000, ignore_eos=True)
numbers = iter(range(1 << 60))


def request(tokens: Sequence[int], keys: Any = hasher) -> Any:
    """Returns a request as the engine gets it, with its keys."""
    tokens = tokens if isinstance(tokens, list) else list(tokens)
    return Request(str(next(numbers)), tokens, params, None, block_hasher=keys)


def config(blocks: int) -> Any:
    """Returns a configuration with one group of full attention."""
    spec = interface.FullAttentionSpec(
        block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    groups = [interface.KVCacheGroupSpec(["layer"], spec)]
    page = spec.page_size_bytes
    tensor = interface.KVCacheTensor(blocks * page, ["layer"], blocks * page, page)
    return interface.KVCacheConfig(blocks, [tensor], groups)
