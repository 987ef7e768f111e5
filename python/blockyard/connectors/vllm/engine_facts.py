"""What vLLM has, read from its configuration; what cannot be served is refused before it loads."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from blockyard._core import BlockyardError, Unsupported
from blockyard.connectors.vllm.beside import beside
from blockyard.connectors.vllm.configuration import depends
from blockyard.connectors.vllm.replicas import Replica, replica_of
from blockyard.shared.layout import WIDTHS, KVLayout, Plane
from blockyard.shared.log import Limited

__all__ = ["Facts", "facts", "recompute_on_failure", "refusals"]

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
    beside: str | None
    """The connector that it stands beside in a `MultiConnector`; None where that is not known."""
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
    for check in _checks(vllm, kv, around).values():
        check()
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
        beside=beside(vllm, around),
        again=int(_looks_ahead(vllm)),
    )


def refusals(vllm: Any, kv: Any, *, around: Any = None) -> dict[str, BlockyardError | None]:
    """Returns what `facts` refuses of the options alone, by what is looked at; None for nothing.

    Args:
        vllm: As in `facts`, and so are the others.
        kv: Likewise.
        around: Likewise.
    """
    found: dict[str, BlockyardError | None] = {}
    for name, check in _checks(vllm, kv, around).items():
        try:
            check()
        except BlockyardError as error:
            found[name] = error
        else:
            found[name] = None
    return found


def _checks(vllm: Any, kv: Any, around: Any) -> dict[str, Callable[[], object]]:
    """What is looked at before the KV itself, by name."""
    return {
        "transfer": partial(_check_transfer, vllm.kv_transfer_config),
        "beside": partial(beside, vllm, around),
        "attention": partial(_check_attention, vllm),
        "hashes": partial(_check_hashes, vllm.cache_config.prefix_caching_hash_algo),
        "ranks": partial(_check_ranks, vllm.parallel_config, kv),
    }


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
            'Blockyard sets kv_load_failure_policy of its part to "recompute", which was %r: what '
            "a load does not bring is computed again, and ends no request",
            before,
        )


def _check_transfer(transfer: Any) -> None:
    if transfer.kv_role != "kv_both":
        raise Unsupported(
            f'kv_role = {transfer.kv_role!r}: a cache takes and gives; write "kv_role": "kv_both"'
        )


def _check_attention(vllm: Any) -> None:
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
            raise Unsupported(
                f"{name} = {count}: a block's tokens must lie on one machine, and on one rank; "
                f"leave --{name.replace('_', '-')} out"
            )
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
        raise Unsupported(
            f"a KV cache of {kind}: only full attention works so far; start without this connector"
        )
    hashed = getattr(kv, "hash_block_size", None)
    if hashed not in {None, group.kv_cache_spec.block_size}:
        raise Unsupported(
            f"blocks of {group.kv_cache_spec.block_size} tokens are hashed by {hashed}: leave "
            "hashing as it is"
        )
    return group, kind
