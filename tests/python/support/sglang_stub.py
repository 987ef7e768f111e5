"""A stub of what SGLang's storages are made from, and a host pool in NumPy.

`tests/engines/sglang_disk.py` compares it with SGLang itself. Importing this puts the stub where
imports find it, unless SGLang is installed.
"""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from blockyard._typing import override
from engine_stub import TOUCHED, install


@dataclass
class HiCacheStorageConfig:
    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int
    attn_cp_rank: int
    attn_cp_size: int
    is_mla_model: bool
    enable_storage_metrics: bool
    is_page_first_layout: bool
    model_name: str | None
    tp_lcm_size: int | None = None
    should_split_heads: bool = False
    dp_rank: int = 0
    extra_config: dict[str, Any] | None = None
    dcp_size: int = 1
    dcp_rank: int = 0
    logical_page_size: int | None = None


@dataclass
class HiCacheStorageExtraInfo:
    prefix_keys: list[str] | None = None
    extra_info: dict[str, Any] | None = None


class PoolHitPolicy(str, Enum):  # noqa: UP042 - it is SGLang's
    ALL_PAGES = "all_pages"
    TRAILING_PAGES = "trailing_pages"
    BLOCK_GROUPS = "block_groups"


@dataclass
class PoolTransfer:
    name: str
    host_indices: Any = None
    device_indices: Any = None
    keys: list[str] | None = None
    hit_policy: PoolHitPolicy = PoolHitPolicy.ALL_PAGES
    nodes_to_load: list[Any] | None = None
    indices_from_pool: str | None = None
    block_pages: int = 0
    group_pages: int = 0


@dataclass
class PoolTransferResult:
    kv_hit_pages: int
    extra_pool_hit_pages: dict[str, int]
    restorable_prefix_pages: list[int] | None = None


@dataclass
class StorageMetrics:
    prefetch_pgs: list[int] = field(default_factory=list)
    backup_pgs: list[int] = field(default_factory=list)
    prefetch_bandwidth: list[float] = field(default_factory=list)
    backup_bandwidth: list[float] = field(default_factory=list)


class HiCacheStorage(ABC):
    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        self.mem_pool_host = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        raise NotImplementedError

    def on_host_pools_registered(self) -> None:  # noqa: B027 - it is SGLang's
        """Does nothing."""

    def batch_exists_v2(self, keys: Any, pool_transfers: Any = None, extra_info: Any = None) -> Any:
        raise NotImplementedError

    def batch_get_v2(self, transfers: Any, extra_info: Any = None) -> Any:
        raise NotImplementedError

    def batch_set_v2(self, transfers: Any, extra_info: Any = None) -> Any:
        raise NotImplementedError

    def batch_get_v1(self, keys: Any, host_indices: Any, extra_info: Any = None) -> Any:
        raise NotImplementedError

    def batch_set_v1(self, keys: Any, host_indices: Any, extra_info: Any = None) -> Any:
        raise NotImplementedError

    @abstractmethod
    def get(self, key: Any, target_location: Any = None, target_sizes: Any = None) -> Any: ...

    @abstractmethod
    def batch_get(
        self, keys: Any, target_locations: Any = None, target_sizes: Any = None
    ) -> Any: ...

    @abstractmethod
    def set(
        self, key: Any, value: Any = None, target_location: Any = None, target_sizes: Any = None
    ) -> Any: ...

    @abstractmethod
    def batch_set(
        self, keys: Any, values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> Any: ...

    @abstractmethod
    def exists(self, key: Any) -> Any: ...

    def batch_exists(self, keys: Any, extra_info: Any = None) -> Any:
        raise NotImplementedError

    def clear(self) -> None:
        raise NotImplementedError

    def get_stats(self) -> Any:
        return None


class Pool:
    """A host pool of keys and values, as SGLang's `MHATokenToKVPoolHost` lays it out."""

    def __init__(
        self,
        pages: int,
        page_size: int = 4,
        *,
        layers: int = 3,
        heads: int = 2,
        layout: str = "page_first",
    ) -> None:
        self.layout, self.dtype = layout, "torch.bfloat16"
        self.page_num, self.page_size, self.size = pages, page_size, pages * page_size
        self.layer_num, self.head_num, self.head_dim = layers, heads, 16
        self.start_layer, self.end_layer = 0, layers
        self.dcp_size, self.shared_allocation_domain = 1, None
        row = layers * heads * 16 * 2
        self.kv_buffer = np.zeros((2, pages, page_size * row), np.uint8)
        """Bytes of K and V, page by page."""

    def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
        first = self.kv_buffer.__array_interface__["data"][0]
        half, page = self.kv_buffer.strides[:2]
        places = [
            first + part * half + row // self.page_size * page
            for row in indices.tolist()[:: self.page_size]
            for part in (0, 1)
        ]
        return places, [page] * len(places)

    def rows(self, *pages: int) -> Any:
        """The rows of some pages, as SGLang gives them."""
        return (
            np.array(pages, np.int64)[:, None] * self.page_size + np.arange(self.page_size)
        ).ravel()


class States(Pool):
    """A host pool of states, as SGLang's `MambaPoolHost`: a page is a state and a convolution's."""

    def __init__(self, states: int, *, layers: int = 2, layout: str = "page_first") -> None:
        super().__init__(states, 1, layers=layers, layout=layout)
        self.num_mamba_layers = layers
        self.temporal_state_shape, self.conv_state_shapes = (4, 8), [(16, 3)]
        sizes = (layers * 4 * 8 * 4, layers * 16 * 3 * 2)
        self.buffers = [np.zeros((states, size), np.uint8) for size in sizes]

    @override
    def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
        places = [
            (one.__array_interface__["data"][0] + row * one.strides[0], one.strides[0])
            for row in indices.tolist()
            for one in self.buffers
        ]
        return [place for place, _ in places], [size for _, size in places]


def storage_namespace_seed(extra_key: str | None, cache_salt: str | None) -> str | None:
    """Names whose KV it is; what is made of it is SGLang's."""
    if extra_key is None and cache_salt is None:
        return None
    return hashlib.sha256(repr((extra_key, cache_salt)).encode()).hexdigest()


def unpublished() -> SimpleNamespace:
    raise ValueError("config namespace not published")


GETTERS: Final = [
    full.rpartition(".")[2] for full in TOUCHED["sglang"]["names"] if ".runtime_context." in full
]
PARTS: Final = {
    "HiCacheStorage": HiCacheStorage,
    "HiCacheStorageConfig": HiCacheStorageConfig,
    "HiCacheStorageExtraInfo": HiCacheStorageExtraInfo,
    "PoolHitPolicy": PoolHitPolicy,
    "PoolTransfer": PoolTransfer,
    "PoolTransferResult": PoolTransferResult,
    "StorageMetrics": StorageMetrics,
    "storage_namespace_seed": storage_namespace_seed,
    **dict.fromkeys(GETTERS, unpublished),
}
"""What does something."""

install("sglang", PARTS)
