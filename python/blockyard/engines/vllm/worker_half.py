"""The connector beside the model: one rank's copies."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from blockyard._core import Misuse
from blockyard.engines.vllm.engine_facts import Facts
from blockyard.engines.vllm.messages import Reports, StepOrders
from blockyard.engines.worker import Worker
from blockyard.yard.config import Config

if TYPE_CHECKING:
    from blockyard.crane.copiers import Copier

__all__ = ["WorkerHalf"]


class WorkerHalf:
    """Carries the orders of each step out, over the tensors of vLLM.

    Args:
        known: What vLLM has.
        config: Sizes and policies, as the scheduler's half has them.
        shared: A file for the host memory that ranks share; None where each has its own.
    """

    def __init__(self, known: Facts, config: Config, *, shared: str | None = None) -> None:
        self._known = known
        self._config = config
        self._shared = shared
        self.copier: Copier | None = None
        """How it copies, for tests; set before `register`."""
        self.worker: Worker | None = None
        self._last = 0
        self._arrived: set[str] = set()
        self._missing: set[int] = set()

    def register(self, caches: Mapping[str, Any]) -> None:
        """Takes vLLM's tensors, one for each layer.

        Raises:
            Misuse: A layer is missing, or a tensor is not what the scheduler's half was told.
        """
        from vllm.v1.kv_cache_interface import group_kernel_blocks  # noqa: PLC0415 - with the model

        if self.worker is not None:
            raise Misuse("vLLM has registered its KV caches twice: what is below is of the first")
        names = self._known.layers
        absent = [name for name in names if name not in caches]
        if absent:
            raise Misuse(f"vLLM has registered no KV cache of layers {absent}")
        blocks = self._config.device_blocks
        tensors = [_as_bytes(group_kernel_blocks(caches[name], blocks)) for name in names]
        on_gpu = bool(caches[names[0]].is_cuda)
        self.worker = Worker.adopt(
            self._config,
            tensors,
            rank=self._known.rank,
            axis=0,
            gpu="cuda" if on_gpu else None,
            copier=self.copier,
            shared=self._shared,
        )

    def begin(self, step: StepOrders) -> None:
        """Begins a step's copies, before anything is written in it; each step once."""
        if step.number == self._last:
            return
        self._last = step.number
        self._arrived |= step.arrived
        self._missing |= step.missing
        if self.worker is None:
            raise Misuse("vLLM has registered no KV caches: orders cannot be carried out")
        self.worker.begin(step.orders)

    def arrived(self) -> set[str]:
        """Requests whose loads have ended since the last call."""
        arrived, self._arrived = self._arrived, set()
        return arrived

    def missing(self) -> set[int]:
        """Blocks that did not come, of those that were named last."""
        missing, self._missing = self._missing, set()
        return missing

    def reports(self) -> Reports | None:
        """What has ended since the last call."""
        outcomes = [] if self.worker is None else self.worker.outcomes()
        return Reports(outcomes) if outcomes else None

    def close(self) -> None:
        """Ends all copies, and drops vLLM's tensors."""
        worker, self.worker = self.worker, None
        if worker is not None:
            worker.close()


def _as_bytes(tensor: Any) -> Any:
    import torch  # noqa: PLC0415 - with the model

    return tensor.view(torch.uint8)
