"""What vLLM has, read from its configuration; what cannot be served is refused before it loads."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from blockyard._core import BlockyardError, Unsupported
from blockyard.connectors.vllm.beside import beside
from blockyard.connectors.vllm.configuration import depends
from blockyard.connectors.vllm.groups import layered
from blockyard.connectors.vllm.replicas import Replica, replica_of
from blockyard.shared.groups import Groups
from blockyard.shared.layout import KVLayout
from blockyard.shared.log import Limited

__all__ = ["Facts", "facts", "recompute_on_failure", "refusals"]

_ROLES: Final = ("kv_producer", "kv_consumer", "kv_both")
_SHA: Final = ("sha256", "sha256_cbor")
_log = Limited(__name__, 0)


class Facts(NamedTuple):
    """Facts of vLLM's configuration that the connector needs."""

    layout: KVLayout
    """The KV of one block: of the first group of full attention, where there are several."""
    blocks: int
    """Blocks that vLLM gives out, its null block included."""
    rank: int
    longest: int
    """Tokens of the longest request."""
    namespace: dict[str, dict[str, object]]
    groups: Groups | None
    """The groups of layers, where there are several; None for one of full attention."""
    layers: tuple[tuple[str, ...], ...]
    """Names of the layers of each group, as `groups` has them, in the order of their pieces."""
    weights_change: bool
    """Whether other weights may come while it runs."""
    engine: str
    """vLLM's name for this engine, the same in all its processes."""
    unseen: str | None
    """Why the weights cannot be identified, which a disk needs; None if they can."""
    replica: Replica
    """Which of the data parallel replicas it is."""
    beside: str | None
    """The other connector in a `MultiConnector`; None if unknown."""
    again: int
    """Blocks at the end of a prefix that are computed again, for a drafter that looks ahead."""
    role: str = "kv_both"
    """vLLM's `kv_role`."""


def facts(vllm: Any, kv: Any, *, version: str, around: Any = None) -> Facts:
    """Reads the facts from vLLM's configuration.

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
    model, ranks = vllm.model_config, vllm.parallel_config
    stages, ahead = ranks.pipeline_parallel_size, _looks_ahead(vllm)
    found = layered(kv, ranks=ranks.tensor_parallel_size * stages, stages=stages, ahead=ahead)
    layout, other = found.layouts[0], beside(vllm, around)
    if found.groups is not None and found.groups.has_states and other is not None:
        raise Unsupported(
            f"recurrent states beside {other} in a MultiConnector: which states it brings is not "
            f"known; leave {other} out"
        )
    replicated = any(plane.replicated for plane in layout.planes)
    _check_stages(stages, len(found.layers[0]), model, replicated=replicated)
    known = depends(vllm, kv, found, version)
    return Facts(
        layout=layout,
        blocks=kv.num_blocks,
        rank=ranks.rank % (ranks.tensor_parallel_size * stages),
        longest=model.max_model_len,
        namespace=known.namespace,
        unseen=known.unseen,
        groups=found.groups,
        layers=found.layers,
        weights_change=_weights_change(vllm),
        engine=str(vllm.kv_transfer_config.engine_id),
        replica=replica_of(ranks, str(vllm.kv_transfer_config.engine_id)),
        beside=other,
        again=int(ahead),
        role=vllm.kv_transfer_config.kv_role,
    )


def refusals(vllm: Any, kv: Any, *, around: Any = None) -> dict[str, BlockyardError | None]:
    """Returns the refusals of the options alone, by check; None for passed ones.

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
    """Checks that need no KV cache, by name."""
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
            'Blockyard sets kv_load_failure_policy to "recompute" (it was %r): blocks that a load '
            "fails to bring are computed again, and the request continues",
            before,
        )


def _check_transfer(transfer: Any) -> None:
    if transfer.kv_role not in _ROLES:
        raise Unsupported(
            f"kv_role = {transfer.kv_role!r}: there are {', '.join(_ROLES)}; write "
            '"kv_role": "kv_both" for an engine that hands no KV over'
        )


def _check_attention(vllm: Any) -> None:
    attention = getattr(vllm, "attention_config", None)
    if getattr(attention, "hisparse_config", None) is not None:
        raise Unsupported("HiSparse keeps its own KV on the host: start without it")


def _looks_ahead(vllm: Any) -> bool:
    """Whether a block's KV depends on the token behind it, as with some drafters."""
    drafts = getattr(vllm, "speculative_config", None)
    return drafts is not None and bool(drafts.use_eagle_block_drop())


def _check_hashes(algorithm: str) -> None:
    if algorithm not in _SHA:
        raise Unsupported(
            f"prefix_caching_hash_algo = {algorithm!r}: a hash must identify its tokens; start "
            "with --prefix-caching-hash-algo sha256"
        )


def _check_ranks(parallel: Any, kv: Any) -> None:
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size", "nnodes"):
        count = getattr(parallel, name, 1)
        if count != 1:
            raise Unsupported(
                f"{name} = {count}: all tokens of a block must be on one machine and one rank; "
                f"leave --{name.replace('_', '-')} out"
            )
    replicas = getattr(kv, "kv_tp_replicas", 1)
    if replicas not in {1, parallel.tensor_parallel_size}:
        raise Unsupported(f"kv_tp_replicas = {replicas}: must be 1, or tensor_parallel_size")


def _check_stages(stages: int, layers: int, model: Any, *, replicated: bool) -> None:
    """Checks that all stages of a pipeline have planes that are equal."""
    if stages == 1:
        return
    found = model.get_total_num_hidden_layers()
    if layers * stages != found:
        raise Unsupported(
            f"pipeline_parallel_size = {stages}: this stage has {layers} of the model's {found} "
            "layers of KV; all stages must have equally many: change VLLM_PP_LAYER_PARTITION, or "
            "the number of stages"
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
