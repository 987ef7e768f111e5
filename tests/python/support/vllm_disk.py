"""Both halves of the connector for vLLM, over a disk."""

import time
from typing import Any

import numpy as np

from blockyard.connectors.vllm import Blockyard
from vllm_front import BLOCKS, LAYERS, PAGE, SIZE, Front, Tensor, kv_config, vllm_config

WEIGHTS = {"weights": "v1"}


class Engine(Front):
    """Both halves, with a disk."""

    def __init__(self, path: Any, *, changes: dict[str, Any] | None = None, **extra: Any) -> None:
        given = {"host": 16, "disk": 64, "disk_path": str(path), "namespace": WEIGHTS} | extra
        roles = Blockyard.__init__.__globals__["KVConnectorRole"]
        given = {name: value for name, value in given.items() if value is not None}
        config = vllm_config(kv_connector_extra_config=given, **(changes or {}))
        self.scheduler = Blockyard(config, roles.SCHEDULER, kv_config())
        self.worker = Blockyard(config, roles.WORKER, kv_config())
        self.kv = {f"layer {at}": self.tensor() for at in range(LAYERS)}
        self.worker.register_kv_caches(self.kv)
        ready = {(0, 0): self.worker.get_handshake_metadata()}
        self.scheduler.set_xfer_handshake_metadata_pp_aware(ready)

    @staticmethod
    def tensor() -> Any:
        """Allocates a layer's KV cache."""
        return np.zeros((BLOCKS, PAGE), np.uint8).view(Tensor)

    @property
    def restored(self) -> int:
        return self.scheduler.front.restored

    def settle(self) -> None:
        """Steps until nothing is in the air."""
        until = time.monotonic() + 20
        quiet = 0
        while quiet < 3:
            assert time.monotonic() < until
            self.step()
            quiet = 0 if self.scheduler.front.cache.stats()["flights"] else quiet + 1
            time.sleep(1e-3)

    def stow(self, name: str, tokens: list[int], ids: list[int], value: int) -> None:
        """A request that computes all of it, and ends."""
        request = self.request(name, tokens)
        assert self.begin(request, ids) == 0
        self.step({request: (ids, len(tokens))}, write={one: value + one for one in ids})
        self.scheduler.request_finished(request, ids)
        self.settle()

    def find(self, name: str, tokens: list[int]) -> int:
        """Tokens that lie below."""
        found = self.scheduler.get_num_new_matched_tokens(self.request(name, tokens), 0)[0]
        assert found is not None
        return found

    def load(
        self, name: str, tokens: list[int], ids: list[int], sources: list[int], value: int
    ) -> None:
        """Brings blocks up, and checks each byte."""
        request = self.request(name, tokens)
        assert self.begin(request, ids) == len(sources) * SIZE
        until, said = time.monotonic() + 20, self.step()
        while name not in said.finished_recving:
            assert time.monotonic() < until
            time.sleep(1e-3)
            said = self.step()
        assert not said.invalid_block_ids
        for tensor in self.kv.values():
            for block, source in zip(ids, sources, strict=False):
                assert (tensor[block] == value + source).all()

    def close(self) -> None:
        self.worker.shutdown()
