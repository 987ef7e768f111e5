"""vLLM's real scheduler, with a model that checks every position that it attends to.

The KV of a position is a sum over all tokens up to it. Each step does what vLLM's model runner does
to a connector, in its order, on one rank or several.
"""

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from blockyard.crane.copiers import Copier
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.engines.vllm import Blockyard
from blockyard.testing.engine import chained, sampled

SIZE, LAYERS, LONGEST = 16, 2, 1024
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
}
init_none_hash(sha256)
HASHER = get_request_block_hasher(SIZE, sha256)


class Wrong(AssertionError):
    """A promise was broken."""


def settings(
    extra: dict[str, Any] | None, blocks: int, seats: int, budget: int, **more: Any
) -> Any:
    """Returns vLLM's configuration; None for no connector."""
    folder = Path(tempfile.gettempdir()) / "blockyard-vllm-model"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(MODEL))
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
        cache_config=CacheConfig(block_size=SIZE, enable_prefix_caching=True),
        device_config=DeviceConfig(device="cpu"),
        parallel_config=ParallelConfig(),
        kv_transfer_config=None if extra is None else transfer(extra),
    )
    made.cache_config.num_gpu_blocks = blocks
    return made


def transfer(extra: dict[str, Any]) -> KVTransferConfig:
    """Returns what an operator writes in `--kv-transfer-config`."""
    return KVTransferConfig(
        kv_connector="Blockyard",
        kv_connector_module_path="blockyard.engines.vllm",
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config=extra,
    )


def layers(blocks: int) -> KVCacheConfig:
    """Returns one group of full attention."""
    spec = FullAttentionSpec(block_size=SIZE, num_kv_heads=1, head_size=2, dtype=torch.float32)
    names = [f"model.layers.{at}" for at in range(LAYERS)]
    return KVCacheConfig(
        num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(names, spec)]
    )


class Rank:
    """A worker: its tensors, its half of the connector, and the block tables that it was told."""

    def __init__(self, config: Any, kv: KVCacheConfig, number: int, copier: Copier | None) -> None:
        self.number = number
        # Keys and values of a token are two words.
        self.kv = {
            name: torch.zeros((kv.num_blocks, 2, SIZE, 1, 2), dtype=torch.float32)
            for name in kv.kv_cache_groups[0].layer_names
        }
        self.words = [one.view(torch.int64).numpy()[..., 0, 0] for one in self.kv.values()]
        self.connector: Any = None
        if config.kv_transfer_config is not None:
            self.connector = Blockyard(config, KVConnectorRole.WORKER, kv)
            self.connector.back.copier = copier
            self.connector.register_kv_caches(self.kv)
        self.tables: dict[str, list[int]] = {}

    def update(self, output: Any) -> None:
        """Takes what is new of the block tables."""
        for new in output.scheduled_new_reqs:
            self.tables[new.req_id] = list(new.block_ids[0])
        cached = output.scheduled_cached_reqs
        for name, more in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if name in cached.resumed_req_ids:
                self.tables[name] = list(more[0])
            elif more is not None:
                self.tables[name] = self.tables[name] + more[0]

    def compute(self, name: str, sums: np.ndarray, first: int, count: int) -> None:
        """Reads the KV before `first`, and writes that of the next positions."""
        places = np.arange(first + count)
        table = np.array(self.tables[name])
        blocks, offsets = table[places // SIZE], places % SIZE
        if not blocks.all():
            raise Wrong(f"{name} is computed in the null block")
        for layer, words in enumerate(self.words):
            for half in (0, 1):
                mine = sums[: first + count] ^ np.int64(1000 * self.number + 10 * layer + half)
                there = words[blocks[:first], half, offsets[:first]]
                bad = np.flatnonzero(there != mine[:first])
                if len(bad):
                    raise Wrong(
                        f"{name} attends to token {bad[0]} of {first} in block {blocks[bad[0]]} of "
                        f"rank {self.number}, which holds something else"
                    )
                words[blocks[first:], half, offsets[first:]] = mine[first:]


class Engine:
    """The loop: schedule, run, update. `steps_in_flight` is 1 under asynchronous scheduling."""

    def __init__(
        self,
        *,
        blocks: int,
        host: int | None,
        seats: int = 8,
        budget: int = 128,
        ranks: int = 1,
        copier: Any = None,
        asynchronous: bool = False,
        policy: str = "fcfs",
        workers: bool = True,
        **extra: Any,
    ) -> None:
        asked = None if host is None else {"host": host, **extra}
        more = {"policy": policy, "async_scheduling": asynchronous}
        self.config = settings(asked, blocks, seats, budget, **more)
        kv = layers(blocks)
        if ranks > 1:
            self.config.parallel_config.tensor_parallel_size = ranks
        kind = AsyncScheduler if asynchronous else Scheduler
        self.scheduler = kind(
            self.config, kv, StructuredOutputManager(self.config), block_size=SIZE, log_stats=True
        )
        self.ranks = []
        self.audited = host is not None
        for number in range(ranks if workers else 0):
            self.config.parallel_config.rank = number
            # Without threads every run is the same.
            own = copier(number) if copier else ThreadCopier(workers=0)
            self.ranks.append(Rank(self.config, kv, number, own))
        self.together = KVOutputAggregator(ranks)
        self.asynchronous = asynchronous
        self.flying: list[tuple[Any, ModelRunnerOutput]] = []
        self.requests: dict[str, Request] = {}
        self.known: dict[str, list[int]] = {}
        """What the model runners know of each: its prompt, and all that they have sampled."""
        self.salts: dict[str, int] = {}
        self.computed: Counter[str] = Counter()
        """Positions that were computed of each."""
        self.preempted = 0
        self.steps = 0

    @property
    def front(self) -> Any:
        """The scheduler's half."""
        return self.scheduler.connector.front

    def add(self, name: str, prompt: list[int], most: int, **more: Any) -> None:
        """Adds a request."""
        params = SamplingParams(max_tokens=most, ignore_eos=True)
        request = Request(name, list(prompt), params, None, block_hasher=HASHER, **more)
        self.requests[name] = request
        self.known[name] = list(prompt)
        salt = more.get("cache_salt")
        self.salts[name] = 0 if salt is None else hash_of(salt)
        self.scheduler.add_request(request)

    def answer(self, name: str) -> list[int]:
        """What a request has sampled, as vLLM knows it."""
        return list(self.requests[name].output_token_ids)

    def abort(self, name: str) -> None:
        """Aborts a request."""
        self.scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)

    def step(self) -> None:
        """Schedules and runs a step; under asynchronous scheduling its output is taken later."""
        self.steps += 1
        output = self.scheduler.schedule()
        self.flying.append((output, self.run(output)))
        keep = 1 if self.asynchronous and output.total_num_scheduled_tokens else 0
        while len(self.flying) > keep:
            self.take()
        if self.audited:
            found = self.front.cache.audit()
            if found is not None:
                raise Wrong(f"step {self.steps}: the audit: {found}")

    def take(self) -> None:
        """Takes the output of the oldest step."""
        output, ran = self.flying.pop(0)
        self.scheduler.update_from_output(output, ran)

    def run(self, output: Any) -> ModelRunnerOutput:
        """Does what the model runners of all ranks do."""
        self.preempted += len(output.preempted_req_ids or ())
        work = self.work(output)
        tokens = [self.sample(*one) for one in work]
        made = [self.run_on(rank, output, work, tokens) for rank in self.ranks]
        if len(made) == 1:
            return made[0]
        answer = self.together.aggregate(made)
        assert answer is not None
        return answer

    def work(self, output: Any) -> list[tuple[str, int, int, np.ndarray]]:
        """Returns, for each row, its name, its first position, how many, and the words of all."""
        cached = output.scheduled_cached_reqs
        starts = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for name, tokens in cached.all_token_ids.items():
            self.known[name] = list(tokens)
        for new in output.scheduled_new_reqs:
            if new.prefill_token_ids is not None:
                self.known[new.req_id] = list(new.prefill_token_ids)
        work = []
        for name, count in output.num_scheduled_tokens.items():
            start, tokens = starts[name], self.known[name]
            if start + count > len(tokens):
                raise Wrong(f"{name} has {len(tokens)} tokens, and {start + count} are scheduled")
            sums = [self.salts[name]]
            for token in tokens[: start + count]:
                sums.append(chained(sums[-1], token))
            self.computed[name] += count
            work.append((name, start, count, np.array(sums[1:], np.uint64).view(np.int64)))
        return work

    def sample(self, name: str, start: int, count: int, words: np.ndarray) -> list[int]:
        """Returns the token that a row samples, if all that is known of it is computed."""
        if start + count < len(self.known[name]):
            return []
        token = token_after(int(words.view(np.uint64)[-1]))
        self.known[name].append(token)
        return [token]

    def run_on(
        self, rank: Rank, output: Any, work: list[Any], tokens: list[list[int]]
    ) -> ModelRunnerOutput:
        """Does what one model runner does."""
        meta = output.kv_connector_metadata
        if rank.connector is not None:
            rank.connector.handle_preemptions(meta)
            rank.connector.bind_connector_metadata(meta)
        rank.update(output)
        for name, start, count, words in work:
            rank.compute(name, words, start, count)
        said = None
        if rank.connector is not None:
            said = KVConnectorOutput()
            rank.connector.start_load_kv(None)
            rank.connector.wait_for_save()
            results = rank.connector.get_transfer_results(output.finished_req_ids)
            said.finished_sending = results.finished_sending
            said.finished_recving = results.finished_recving
            said.failed_recving = results.failed_recving
            said.invalid_block_ids = rank.connector.get_block_ids_with_load_errors()
            said.kv_connector_worker_meta = rank.connector.build_connector_worker_meta()
            rank.connector.clear_connector_metadata()
        index = {one[0]: at for at, one in enumerate(work)}
        return ModelRunnerOutput(list(index), index, list(tokens), kv_connector_output=said)

    def drain(self, most: int = 2_000) -> None:
        """Runs until all requests have ended, and what is in the air, too."""
        for _ in range(most):
            if not (self.scheduler.has_requests() or self.flying):
                return
            self.step()
        left = {
            name: str(one.status) for name, one in self.requests.items() if not one.is_finished()
        }
        raise Wrong(f"after {most} steps there is no end: {left}")

    def close(self) -> None:
        """Ends the copies of all ranks."""
        for rank in self.ranks:
            if rank.connector is not None:
                rank.connector.shutdown()


def token_after(sum_: int) -> int:
    """The next token, which vLLM's vocabulary has."""
    return sampled(sum_) % 128_000


def undisturbed(prompt: list[int], most: int, salt: str | None = None) -> list[int]:
    """What a request samples when nothing happens to it."""
    sum_ = 0 if salt is None else hash_of(salt)
    for token in prompt:
        sum_ = chained(sum_, token)
    answer: list[int] = []
    while len(answer) < most:
        answer.append(token_after(sum_))
        sum_ = chained(sum_, answer[-1])
    return answer


def hash_of(salt: str) -> int:
    """A number for a salt."""
    return int.from_bytes(sha256(salt)[:4], "little")
