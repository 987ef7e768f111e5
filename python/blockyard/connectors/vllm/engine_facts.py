"""What vLLM has, read from its configuration; what cannot be served is refused before it loads."""

from typing import Any, Final, NamedTuple

from blockyard._core import Unsupported
from blockyard.connectors.vllm.configuration import depends
from blockyard.connectors.vllm.replicas import Replica, replica_of
from blockyard.shared.layout import WIDTHS, KVLayout, Plane
from blockyard.shared.log import Limited

__all__ = ["Facts", "facts", "recompute_on_failure"]

_LATENT: Final = "MLAAttentionSpec"
_SHA: Final = ("sha256", "sha256_cbor")
_log = Limited(__name__, 0)


class Facts(NamedTuple):
    """What of vLLM the connector needs to know."""

    layout: KVLayout
    blocks: int
    """Blocks that vLLM gives out, its null block included."""
    rank: int
    longest: int
    """Tokens of the longest request."""
    namespace: dict[str, dict[str, object]]
    layers: tuple[str, ...]
    """Names of the layers, in the order of their pieces."""
    weights_change: bool
    """Whether other weights may come while it runs."""
    engine: str
    """vLLM's name for this engine, which all its processes know."""
    unseen: str | None
    """Why nothing tells the weights from others, as a disk must know; None where something does."""
    replica: Replica
    """Which of the data parallel replicas it is."""
    again: int
    """Blocks at the end of a prefix that are computed again, for a drafter that looks ahead."""


def facts(vllm: Any, kv: Any, *, version: str, around: Any = None) -> Facts:
    """Reads what is needed from vLLM's configuration.

    Args:
        vllm: A `VllmConfig`.
        kv: A `KVCacheConfig`.
        version: vLLM's version.
        around: The `VllmConfig` of the process, where that is known: of a connector in a
            `MultiConnector` it is another one.

    Raises:
        Misuse: An option must be another one; the message has the line to write.
        Unsupported: What vLLM shall do cannot be served.
    """
    _check_transfer(vllm.kv_transfer_config)
    _check_alone(vllm, around)
    _check_hashes(vllm.cache_config.prefix_caching_hash_algo)
    _check_ranks(vllm.parallel_config, kv)
    group, kind = _only_group(kv)
    spec, model, ranks = group.kv_cache_spec, vllm.model_config, vllm.parallel_config
    replicated = kind == _LATENT or getattr(kv, "kv_tp_replicas", 1) > 1
    stages = ranks.pipeline_parallel_size
    _check_stages(stages, len(group.layer_names), model, replicated=replicated)
    plane = Plane("kv", len(group.layer_names), spec.page_size_bytes, replicated=replicated)
    dtype = str(spec.dtype).removeprefix("torch.")
    layout = KVLayout(
        (plane,),
        block_size=spec.block_size,
        ranks=ranks.tensor_parallel_size * stages,
        dtype=dtype if dtype in WIDTHS else "uint8",
        # Not the model's: that may be a path, and what lies there counts by its content.
        name="vLLM",
    )
    known = depends(vllm, kv, kind, plane, version)
    return Facts(
        layout=layout,
        blocks=kv.num_blocks,
        rank=ranks.rank % (ranks.tensor_parallel_size * stages),
        longest=model.max_model_len,
        namespace=known.namespace,
        unseen=known.unseen,
        layers=tuple(group.layer_names),
        weights_change=_weights_change(vllm),
        engine=str(vllm.kv_transfer_config.engine_id),
        replica=replica_of(ranks, str(vllm.kv_transfer_config.engine_id)),
        again=int(_looks_ahead(vllm)),
    )


def recompute_on_failure(transfer: Any) -> None:
    """Has vLLM compute again what a load does not bring: its default ends the request.

    vLLM reads it when the connector is made.

    Args:
        transfer: A `KVTransferConfig`.
    """
    before = transfer.kv_load_failure_policy
    if before != "recompute":
        transfer.kv_load_failure_policy = "recompute"
        _log.info(
            'Blockyard sets kv_load_failure_policy to "recompute", which was %r: what a load does '
            "not bring is computed again, and ends no request",
            before,
        )


def _check_transfer(transfer: Any) -> None:
    if transfer.kv_role != "kv_both":
        raise Unsupported(
            f'kv_role = {transfer.kv_role!r}: a cache takes and gives; write "kv_role": "kv_both"'
        )


def _check_alone(vllm: Any, around: Any) -> None:
    """Checks that nobody else moves this engine's KV."""
    outer = getattr(around, "kv_transfer_config", None)
    if outer is not None and outer.kv_connector != vllm.kv_transfer_config.kv_connector:
        raise Unsupported(
            f"kv_connector = {outer.kv_connector!r} with Blockyard in it: what another connector "
            'loads or saves is not known here; write "kv_connector": "Blockyard" alone'
        )
    attention = getattr(vllm, "attention_config", None)
    if getattr(attention, "hisparse_config", None) is not None:
        raise Unsupported("HiSparse keeps KV on the host itself: start without it")


def _looks_ahead(vllm: Any) -> bool:
    """Whether a block's KV depends on the token behind it, as vLLM says of its drafter."""
    drafts = getattr(vllm, "speculative_config", None)
    return drafts is not None and bool(drafts.use_eagle_block_drop())


def _check_hashes(algorithm: str) -> None:
    if algorithm not in _SHA:
        raise Unsupported(
            f"prefix_caching_hash_algo = {algorithm!r}: a key must stand for its tokens; start "
            "with --prefix-caching-hash-algo sha256"
        )


def _check_ranks(parallel: Any, kv: Any) -> None:
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size", "nnodes"):
        count = getattr(parallel, name, 1)
        if count != 1:
            raise Unsupported(f"{name} = {count}: a block's tokens must lie on one machine")
    replicas = getattr(kv, "kv_tp_replicas", 1)
    if replicas not in {1, parallel.tensor_parallel_size}:
        raise Unsupported(f"kv_tp_replicas = {replicas}: all ranks must be alike, or none")


def _check_stages(stages: int, layers: int, model: Any, *, replicated: bool) -> None:
    """Checks that all stages of a pipeline have planes that are equal."""
    if stages == 1:
        return
    found = model.get_total_num_hidden_layers()
    if layers * stages != found:
        raise Unsupported(
            f"pipeline_parallel_size = {stages}: this stage has {layers} layers of KV, of {found} "
            "in the model; all must have as many: change VLLM_PP_LAYER_PARTITION or the stages"
        )
    if replicated:
        raise Unsupported(
            f"pipeline_parallel_size = {stages} with KV that is the same on all ranks of a stage: "
            "use tensor parallel ranks alone"
        )


def _weights_change(vllm: Any) -> bool:
    return bool(
        getattr(vllm, "weight_transfer_config", None)
        or getattr(vllm.model_config, "enable_sleep_mode", False)
        or getattr(vllm.parallel_config, "worker_extension_cls", "")
    )


def _only_group(kv: Any) -> tuple[Any, str]:
    """Returns the one group of layers, and what kind of KV it has."""
    if len(kv.kv_cache_groups) != 1:
        raise Unsupported(
            f"{len(kv.kv_cache_groups)} KV cache groups: only one of full attention works so far; "
            "start with --disable-hybrid-kv-cache-manager, or without this connector"
        )
    (group,) = kv.kv_cache_groups
    kind = type(group.kv_cache_spec).__name__
    if kind not in {"FullAttentionSpec", _LATENT}:
        raise Unsupported(f"a KV cache of {kind}: only full attention works so far")
    hashed = getattr(kv, "hash_block_size", None)
    if hashed not in {None, group.kv_cache_spec.block_size}:
        raise Unsupported(
            f"blocks of {group.kv_cache_spec.block_size} tokens are hashed by {hashed}: leave "
            "hashing as it is"
        )
    return group, kind
