"""vLLM's scheduler, and the manager of its CPU offload."""

from __future__ import annotations

import json
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peers import work as sizes
from peers.driver import Operation, Row, override
from peers.vllm_requests import POLICY, config, request
from peers.work import BLOCK, Work

if TYPE_CHECKING:
    from collections.abc import Sequence

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
}


def scheduler(blocks: int, length: int, budget: dict[str, int], **more: Any) -> Any:
    """Returns its scheduler over so many blocks, for requests of up to so many tokens."""
    config_of: Any = import_module("vllm.config")
    folder = Path(sys.argv[1]).parent / "model"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(MODEL))
    settings = config_of.VllmConfig(
        model_config=config_of.ModelConfig(
            model=str(folder), skip_tokenizer_init=True, max_model_len=length, dtype="float32"
        ),
        scheduler_config=config_of.SchedulerConfig(
            max_num_seqs=sizes.SEATS, max_model_len=length, is_encoder_decoder=False, **budget
        ),
        cache_config=config_of.CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
        device_config=config_of.DeviceConfig(device="cpu"),
        **more,
    )
    settings.cache_config.num_gpu_blocks = blocks
    structured = import_module("vllm.v1.structured_output").StructuredOutputManager(settings)
    return import_module("vllm.v1.core.sched.scheduler").Scheduler(
        settings, config(blocks), structured, block_size=BLOCK
    )


def output(scheduler: Any, step: Any) -> Any:
    """Returns what the model says of a step: a token of each request that decodes."""
    ids, known = list(step.num_scheduled_tokens), scheduler.requests
    sampled = [
        [7] if known[one].num_computed_tokens >= known[one].num_prompt_tokens else [] for one in ids
    ]
    made: Any = import_module("vllm.v1.outputs").ModelRunnerOutput
    return made(ids, {one: at for at, one in enumerate(ids)}, sampled)


class Schedule(Row):
    """`schedule` and `update_from_output`, with every request decoding."""

    def __init__(self, work: Work) -> None:
        self.scheduler = scheduler(90_000, 131_072, {})
        for row in range(sizes.SEATS):
            self.scheduler.add_request(request(work.fresh(18, 12 + row % BLOCK)))
        while not self.begin():
            pass

    def begin(self) -> bool:
        """Runs a step of the prefill; returns whether every request decodes."""
        step = self.scheduler.schedule()
        self.said = output(self.scheduler, step)
        self.scheduler.update_from_output(step, self.said)
        counts = step.num_scheduled_tokens.values()
        return set(counts) == {1} and len(counts) == sizes.SEATS

    def step(self) -> None:
        self.scheduler.update_from_output(self.scheduler.schedule(), self.said)

    @override
    def prepare(self) -> Sequence[Operation]:
        return [self.step] * sizes.STEPS


class Offload(Row):
    """The calls of its offloading connector for a request: a load, a store, and the end."""

    unit = 2 * sizes.OFFLOAD / 7

    def __init__(self, work: Work) -> None:
        self.work = work
        base: Any = import_module("vllm.v1.kv_offload.base")
        self.context, self.key = base.ReqContext, base.make_offload_key
        self.manager: Any = import_module("vllm.v1.kv_offload.cpu.manager").CPUOffloadingManager(
            sizes.HOST, cache_policy=POLICY
        )
        self.hit: Any = base.LookupResult.HIT
        self.last: list[list[bytes]] = []

    def keys(self) -> list[bytes]:
        return [self.key(one, 0) for one in request(self.work.fresh(sizes.OFFLOAD)).block_hashes]

    def look(self, keys: list[bytes], context: Any) -> None:
        if any(self.manager.lookup(key, context) != self.hit for key in keys):
            raise RuntimeError("a key is gone")

    def store(self, keys: list[bytes], context: Any) -> None:
        said = self.manager.prepare_store(keys, context)
        if said is None or len(said.keys_to_store) != len(keys):
            raise RuntimeError("not stored")

    @override
    def prepare(self) -> Sequence[Operation]:
        manager, calls = self.manager, list[Operation]()
        chains = [self.keys() for _ in range(sizes.CHAINS)]
        for at, new in enumerate(chains):
            old = self.last[at] if self.last else []
            context = self.context(f"{id(chains)} {at}")
            for position, key in enumerate(old + new):
                context.set_offload_key_position(key, (position + 1) * BLOCK)
            calls += [
                partial(manager.on_new_request, context),
                partial(self.look, old, context),
                partial(manager.prepare_load, old, context),
                partial(manager.complete_load, old, context),
                partial(self.store, new, context),
                partial(manager.complete_store, new, context),
                partial(manager.on_request_finished, context),
            ]
        self.last = chains
        return calls
