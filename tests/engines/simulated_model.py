"""vLLM's real scheduler, with a model that checks every position that it attends to.

The KV of a position is a sum over all tokens up to it, of the salt, the adapter and the weights.
Each step does what vLLM's model runners do to a connector, in the order of the first or the second
of them, on one rank or several: tensor parallel ranks, stages of a pipeline, or ranks that have the
same latent KV and share their host memory.
"""

import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from vllm.config import set_current_vllm_config
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import (
    MultiConnector,
    MultiKVConnectorMetadata,
    MultiKVConnectorWorkerMetadata,
)
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from blockyard.connectors.vllm import Blockyard
from blockyard.crane.copiers import Copier
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.testing.simulated_engine import chained, sampled
from simulated_setup import DRAFTS, FULL, SIZE, Kind, layers, settings

init_none_hash(sha256)
HASHER = get_request_block_hasher(SIZE, sha256)


class Wrong(AssertionError):
    """A promise was broken."""


Mail: TypeAlias = Callable[[Any, Any], Any]
"""What becomes of a rank's reports on their way, which it gets with the step's orders."""


class Rank:
    """A worker: its tensors, its half of the connector, and the block tables that it was told."""

    def __init__(
        self,
        config: Any,
        kv: Any,
        number: int,
        copier: Copier | None,
        *,
        latent: bool = False,
        mail: Mail | None = None,
        kinds: Sequence[Kind] = (FULL,),
    ) -> None:
        # Ranks of latent KV have the same words.
        self.number = 0 if latent else number
        self.mail, self.kinds = mail, kinds
        # Keys and values of a token are two words, what is latent is one.
        shape = (SIZE, 2) if latent else (2, SIZE, 1, 2)
        # As in vLLM, the groups share their tensors: a block is of the group that has it.
        tensors = [
            torch.zeros((kv.num_blocks, *shape), dtype=torch.float32)
            for _ in kv.kv_cache_groups[0].layer_names
        ]
        self.kv = {
            name: tensor
            for group in kv.kv_cache_groups
            for name, tensor in zip(group.layer_names, tensors, strict=True)
        }
        self.words = [
            one.view(torch.int64).numpy().reshape(kv.num_blocks, -1, SIZE) for one in tensors
        ]
        self.connector: Any = None
        self.own: Any = None
        """Blockyard's part of it."""
        self.other: Any = None
        """That of the one beside it."""
        self.sums: Callable[[str, list[int]], np.ndarray] = lambda _name, _tokens: np.array([])
        self.weights = 0
        self.excused: set[int] = set()
        """Blocks that have not come in this step, which is said of them."""
        if config.kv_transfer_config is not None:
            with set_current_vllm_config(config):
                self.connector = KVConnectorFactory.create_connector(
                    config, KVConnectorRole.WORKER, kv
                )
            self.other, self.own = parts(self.connector)
            self.own.back.copier = copier
            if self.other is not None:
                self.other.rank = self
            self.connector.register_kv_caches(self.kv)
        self.tables: dict[str, list[list[int]]] = {}

    def zero(self, ids: list[int]) -> None:
        """Zeroes blocks."""
        for words in self.words:
            words[ids] = 0

    def update(self, output: Any) -> None:
        """Takes what is new of the block tables."""
        for new in output.scheduled_new_reqs:
            self.tables[new.req_id] = list(map(list, new.block_ids))
        cached = output.scheduled_cached_reqs
        for name, more in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if name in cached.resumed_req_ids:
                self.tables[name] = list(map(list, more))
            elif more is not None:
                both = zip(self.tables[name], more, strict=True)
                self.tables[name] = [table + ids for table, ids in both]

    def compute(self, name: str, sums: np.ndarray, first: int, count: int) -> bool:
        """Reads the KV before `first`, and writes that of the next positions.

        Returns:
            Whether it has read nothing of a block that did not come. If not, what it writes is
            wrong, and what it samples.
        """
        tables, last = self.tables[name], first + count
        read = set(tables[0][: -(-first // SIZE)]) & self.excused
        if read:
            self.excused.update(tables[0][first // SIZE : -(-last // SIZE)])
            self.put(tables, ~sums, first, last)
            return False
        self.read(name, tables, sums, first)
        self.put(tables, sums, first, last)
        return True

    def read(self, name: str, tables: list[list[int]], sums: np.ndarray, last: int) -> None:
        """Checks in each group what the position `last` attends to of those before it."""
        for group, (kind, table) in enumerate(zip(self.kinds, tables, strict=True)):
            at = np.arange(kind.first(last), last)
            value = sums[at]
            if kind.name == "state":
                at, value = self.state(sums, last)
            for words, half, blocks, offsets, told in self.places(group, table, at):
                there = words[blocks, half, offsets]
                bad = np.flatnonzero(there != value ^ told)
                if len(bad):
                    raise Wrong(
                        f"{name} attends to token {at[bad[0]]} of {last} in block "
                        f"{blocks[bad[0]]} of group {group} ({kind.name}) of rank {self.number}, "
                        f"which holds something else"
                    )

    def put(
        self,
        tables: list[list[int]],
        sums: np.ndarray,
        first: int,
        last: int,
        *,
        whole: bool = True,
    ) -> None:
        """Writes positions, in each group; if not the whole, what no block is for is left out."""
        for group, (kind, table) in enumerate(zip(self.kinds, tables, strict=True)):
            at = np.arange(first, last)
            if not whole:
                at = at[np.array(table)[at // SIZE] > 0]
            value = sums[at]
            if kind.name == "state":
                at, value = self.state(sums, last)
            for words, half, blocks, offsets, told in self.places(group, table, at):
                if not blocks.all():
                    raise Wrong("something is written to the null block")
                words[blocks, half, offsets] = value ^ told

    @staticmethod
    def state(sums: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the places of a state, all those of its block, and its words."""
        first = max(length - 1, 0) // SIZE * SIZE
        at = np.arange(first, first + SIZE if length else first)
        return at, np.repeat(sums[length - 1 : length], len(at))

    def places(self, group: int, table: list[int], at: np.ndarray) -> Iterator[tuple[Any, ...]]:
        """Yields where the KV of positions lies, and what tells it from that of others."""
        blocks, offsets = np.array(table, np.int64)[at // SIZE], at % SIZE
        rank = (self.weights << 40) + (group << 32) + 1000 * self.number
        for layer, words in enumerate(self.words):
            for half in range(words.shape[1]):
                yield words, half, blocks, offsets, np.int64(rank + 10 * layer + half)

    def bring(self, name: str, tables: list[list[int]], tokens: list[int], first: int) -> None:
        """Writes what a prefiller has."""
        self.put(tables, self.sums(name, tokens), first, len(tokens), whole=False)

    def check(self, name: str, tables: list[list[int]], tokens: list[int]) -> None:
        """Reads what a decoder reads."""
        self.read(name, tables, self.sums(name, tokens), len(tokens))

    def spoil(self, ids: list[int]) -> None:
        """Writes other bytes, as a transfer does that is on its way."""
        for words in self.words:
            words[ids] = -1


class Engine:
    """The loop: schedule, run, update.

    Args:
        blocks: vLLM's blocks.
        host: Blocks below them, of each group or of all alike; None for no connector.
        seats: Requests that run at once.
        budget: Tokens of a step.
        ranks: Workers.
        parallel: What the workers are: "tensor", "stages" or "latent".
        copier: Makes the copier of a rank.
        mail: Makes what happens to the reports of a rank.
        asynchronous: Whether a step is scheduled before the output of the last one is there.
        policy: vLLM's.
        workers: Whether there are any.
        zeroes: The runner that zeroes new blocks: 1 after the connector's fence, 2 before it.
        drafts: Draws the tokens that are drafted; None for no speculation.
        kinds: How the layers of each group keep their KV.
        role: Whether it hands KV over, and which way.
        extra: The operator's words.
    """

    def __init__(  # noqa: PLR0915 - what an operator sets, and what is counted
        self,
        *,
        blocks: int,
        host: int | list[int] | None,
        seats: int = 8,
        budget: int = 128,
        ranks: int = 1,
        parallel: str = "tensor",
        copier: Any = None,
        mail: Callable[[int], Mail] | None = None,
        asynchronous: bool = False,
        policy: str = "fcfs",
        workers: bool = True,
        zeroes: int | None = None,
        drafts: random.Random | None = None,
        beside: bool = False,
        kinds: Sequence[Kind] = (FULL,),
        role: str = "kv_both",
        **extra: Any,
    ) -> None:
        room = [host] * len(kinds) if len(kinds) > 1 and isinstance(host, int) else host
        asked = None if host is None else {"host": room, **extra}
        self.extra = extra
        more = {"policy": policy, "async_scheduling": asynchronous}
        stages = ranks if parallel == "stages" else 1
        self.config = settings(
            *(asked, blocks, seats, budget),
            stages=stages,
            drafts=drafts is not None,
            beside=beside,
            role=role,
            kinds=kinds,
            **more,
        )
        latent, zeroed = parallel == "latent", zeroes is not None
        if ranks > 1:
            self.config.parallel_config.tensor_parallel_size = ranks // stages
            self.config.parallel_config.pipeline_parallel_size = stages
        kind = AsyncScheduler if asynchronous else Scheduler
        self.scheduler = kind(
            self.config,
            layers(blocks, latent=latent, zeroed=zeroed, kinds=kinds),
            StructuredOutputManager(self.config),
            block_size=SIZE,
            log_stats=True,
        )
        self.ranks = []
        self.audited = host is not None
        for number in range(ranks if workers else 0):
            self.config.parallel_config.rank = number
            # Without threads every run is the same.
            own = copier(number) if copier else ThreadCopier(workers=0)
            stage = number if stages > 1 else 0
            kv = layers(blocks, latent=latent, stage=stage, zeroed=zeroed, kinds=kinds)
            sent = None if mail is None else mail(number)
            rank = Rank(self.config, kv, number, own, latent=latent, mail=sent, kinds=kinds)
            self.ranks.append(rank)
        for one in self.ranks:
            one.sums = self.sums
        if parts(self.scheduler.connector)[1] is not None:
            self.front.is_early = zeroes != 1
            # A step is a millisecond, so that deadlines are the same in every run.
            self.front.clock = lambda: self.steps / 1000
            said = [one.connector.get_handshake_metadata() for one in self.ranks]
            ready = {(0, rank): one for rank, one in enumerate(said) if one is not None}
            if ready:
                self.scheduler.connector.set_xfer_handshake_metadata_pp_aware(ready)
        self.together = KVOutputAggregator(ranks)
        self.asynchronous = asynchronous
        self.flying: list[tuple[Any, ModelRunnerOutput]] = []
        self.requests: dict[str, Request] = {}
        self.known: dict[str, list[int]] = {}
        """What the model runners know of each: its prompt, and all that they have sampled."""
        self.starts: dict[str, int] = {}
        """What comes before the tokens of each."""
        self.parallel, self.zeroes, self.drafts = parallel, zeroes, drafts
        self.void: set[int] = set()
        """Blocks that did not come beside a computation, and those that were computed from them."""
        self.unsound: set[str] = set()
        """Rows that have read a block in this step that did not come."""
        self.weights = 0
        """Counts the weights that it has had."""
        self.computed: Counter[str] = Counter()
        """Positions that were computed of each."""
        self.reached: dict[str, int] = {}
        """Tokens that each had when it was scheduled last."""
        self.lost: list[tuple[str, int]] = []
        """What each preempted request computes again when it resumes, in tokens."""
        self.reported: dict[str, tuple[int, int]] = {}
        """Cached tokens of each prompt that vLLM has reported: its own, and those that came up."""
        self.handed: dict[str, dict[str, Any]] = {}
        """What was said with the answer of each, for another engine."""
        self.left: set[str] = set()
        """Requests that were preempted, and have not resumed."""
        self.preempted = 0
        self.steps = 0
        self.pause = 0.0
        """Seconds of a step in which nothing is computed: a disk has threads of its own."""

    @property
    def front(self) -> Any:
        """The scheduler's half."""
        return parts(self.scheduler.connector)[1].front

    @property
    def caches(self) -> Sequence[Any]:
        """The bookkeeping of each group."""
        connector = self.front.connector
        return getattr(connector, "caches", None) or [connector.cache]

    def add(
        self, name: str, prompt: list[int], most: int, *, asks: Any = None, **more: Any
    ) -> None:
        """Adds a request; `asks` is its `kv_transfer_params`."""
        extra = None if asks is None else {"kv_transfer_params": asks}
        params = SamplingParams(max_tokens=most, ignore_eos=True, extra_args=extra)
        request = Request(name, list(prompt), params, None, block_hasher=HASHER, **more)
        self.requests[name] = request
        self.known[name] = list(prompt)
        adapter = more.get("lora_request")
        version = getattr(adapter, "lora_path", None)
        self.starts[name] = start_of(more.get("cache_salt"), version)
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
        if not output.total_num_scheduled_tokens:
            time.sleep(self.pause)
        keep = 1 if self.asynchronous and output.total_num_scheduled_tokens else 0
        while len(self.flying) > keep:
            self.take()
        if self.audited:
            for cache in self.caches:
                found = cache.audit()
                if found is not None:
                    raise Wrong(f"step {self.steps}: the audit: {found}")

    def take(self) -> None:
        """Takes the output of the oldest step."""
        output, ran = self.flying.pop(0)
        for told in self.scheduler.update_from_output(output, ran).values():
            for one in told.outputs:
                if one.kv_transfer_params is not None:
                    self.handed[one.request_id] = one.kv_transfer_params
                if one.prefill_stats is not None:
                    self.hear(one.request_id, one.prefill_stats)
        if self.void:
            # vLLM would find them itself, of a request that leaves before it has computed them.
            self.scheduler.kv_cache_manager.evict_blocks(self.void)
            self.void = set()
        if self.drafts is not None:
            names = [name for name in output.num_scheduled_tokens if name in self.known]
            drafts = [self.draft(name, self.drafts) for name in names]
            self.scheduler.update_draft_token_ids(DraftTokenIds(names, drafts))

    def hear(self, name: str, stats: Any) -> None:
        """Hears how many prompt tokens of a request vLLM says were cached, at its first token."""
        self.reported[name] = stats.num_local_cached_tokens, stats.num_external_cached_tokens
        request = self.requests[name]
        if self.asynchronous or request.num_preemptions or "afar" in (asks_of(request)):
            return
        left = request.num_prompt_tokens - sum(self.reported[name])
        # Where it drafts, vLLM computes as many positions of each row as it has drafts, and one.
        padded = DRAFTS if self.drafts is not None and left == 1 else 0
        if self.computed[name] not in {left, left + padded}:
            raise Wrong(
                f"{name}: vLLM reports {self.reported[name]} of {request.num_prompt_tokens} tokens "
                f"as cached, and {self.computed[name]} were computed"
            )

    def draft(self, name: str, chance: random.Random) -> list[int]:
        """Drafts what a request samples next, right or wrong."""
        right = undisturbed(self.known[name], DRAFTS, self.starts[name])
        return [one if chance.random() < 0.7 else chance.randrange(1000) for one in right]

    def run(self, output: Any) -> ModelRunnerOutput:
        """Does what the model runners of all ranks do."""
        self.preempted += len(output.preempted_req_ids or ())
        self.left |= set(output.preempted_req_ids or ())
        work = self.work(output)
        spec = output.scheduled_spec_decode_tokens
        tokens = [self.sample(*one, spec.get(one[0], ())) for one in work]
        made = [self.run_on(rank, output, work, tokens) for rank in self.ranks]
        for name, found in zip(output.num_scheduled_tokens, tokens, strict=True):
            if name in self.unsound and found:
                # vLLM drops what was sampled of blocks that did not come.
                del self.known[name][-len(found) :]
        self.unsound.clear()
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
        resumed = {one for one in output.num_scheduled_tokens if one in self.left}
        self.left -= resumed
        work = []
        for name, count in output.num_scheduled_tokens.items():
            drafts = output.scheduled_spec_decode_tokens.get(name, ())
            start, tokens = starts[name], [*self.known[name], *drafts]
            if start + count > len(tokens):
                raise Wrong(f"{name} has {len(tokens)} tokens, and {start + count} are scheduled")
            self.computed[name] += count
            if name in resumed:
                had = min(self.reached[name], len(self.known[name]) - 1)
                self.lost.append((name, max(had - start, 0)))
            self.reached[name] = start + count - len(drafts)
            work.append((name, start, count, self.sums(name, tokens[: start + count])))
        return work

    def sums(self, name: str, tokens: Sequence[int]) -> np.ndarray:
        """The words of these tokens of a request, shape (tokens,)."""
        sums = [self.starts[name]]
        for token in tokens:
            sums.append(chained(sums[-1], token))
        return np.array(sums[1:], np.uint64).view(np.int64)

    def sample(
        self, name: str, start: int, count: int, words: np.ndarray, drafts: Sequence[int]
    ) -> list[int]:
        """Returns the tokens that a row samples, if all that is known of it is computed."""
        known = self.known[name]
        first = len(known)
        if start + count < first:
            return []
        for draft in [*drafts, None]:
            known.append(token_after(int(words.view(np.uint64)[len(known) - 1])))
            if known[-1] != draft:
                break
        return known[first:]

    def run_on(
        self, rank: Rank, output: Any, work: list[Any], tokens: list[list[int]]
    ) -> ModelRunnerOutput:
        """Does what one model runner does."""
        meta = output.kv_connector_metadata
        zeroed = output.new_block_ids_to_zero or []
        if self.zeroes == 2:
            rank.zero(zeroed)
        if rank.connector is not None:
            rank.connector.handle_preemptions(meta)
            rank.connector.bind_connector_metadata(meta)
        rank.update(output)
        if self.zeroes == 1:
            rank.zero(zeroed)
        rank.weights = self.weights
        if output.has_sync_kv_loads:
            rank.connector.start_load_kv(None)
        for name, start, count, words in work:
            if not rank.compute(name, words, start, count):
                self.unsound.add(name)
        self.void |= rank.excused
        rank.excused.clear()
        said = None if rank.connector is None else self.report(rank, output)
        if said is not None and not work and said.is_empty() and len(self.ranks) == 1:
            # As vLLM's runners where nothing is computed and there is one worker alone.
            said = None
        index = {one[0]: at for at, one in enumerate(work)}
        return ModelRunnerOutput(list(index), index, list(tokens), kv_connector_output=said)

    @staticmethod
    def report(rank: Rank, output: Any) -> KVConnectorOutput:
        """Does what a model runner does behind its step, and returns what it reports."""
        meta, said = output.kv_connector_metadata, KVConnectorOutput()
        if not output.has_sync_kv_loads:
            rank.connector.start_load_kv(None)
        rank.connector.wait_for_save()
        results = rank.connector.get_transfer_results(output.finished_req_ids)
        said.finished_sending = results.finished_sending
        said.finished_recving = results.finished_recving
        said.failed_recving = results.failed_recving
        said.invalid_block_ids = rank.connector.get_block_ids_with_load_errors()
        reports = rank.connector.build_connector_worker_meta()
        if rank.mail is not None:
            reports = mailed(rank.mail, meta, reports)
        said.kv_connector_worker_meta = reports
        rank.connector.clear_connector_metadata()
        return said

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


def parts(connector: Any) -> tuple[Any, Any]:
    """Returns the connector that stands beside Blockyard, and Blockyard; None for none."""
    if isinstance(connector, MultiConnector):
        other, own = connector.sub_connectors
        return other, own
    return None, connector if isinstance(connector, Blockyard) else None


def mailed(mail: Mail, meta: Any, reports: Any) -> Any:
    """Returns what arrives of a rank's reports, of Blockyard's part alone."""
    if not isinstance(meta, MultiKVConnectorMetadata):
        return mail(meta.orders, reports)
    said = (None, None) if reports is None else reports.metadata
    arrived = mail(meta.metadata[1].orders, said[1])
    return None if arrived is None else MultiKVConnectorWorkerMetadata((None, arrived))


def asks_of(request: Any) -> dict[str, Any]:
    """What a request asks of connectors."""
    return request.kv_transfer_params or {}


def token_after(sum_: int) -> int:
    """The next token, which vLLM's vocabulary has."""
    return sampled(sum_) % 128_000


def undisturbed(prompt: list[int], most: int, start: int = 0) -> list[int]:
    """What a request samples when nothing happens to it."""
    sum_ = start
    for token in prompt:
        sum_ = chained(sum_, token)
    answer: list[int] = []
    while len(answer) < most:
        answer.append(token_after(sum_))
        sum_ = chained(sum_, answer[-1])
    return answer


def start_of(salt: str | None = None, adapter: str | None = None) -> int:
    """A number for a salt and an adapter, 0 for neither."""
    parts = [("salt", salt), ("adapter", adapter)]
    said = [part for part in parts if part[1] is not None]
    return int.from_bytes(sha256(str(said))[:4], "little") if said else 0


def adapter_path(name: str) -> str:
    """A folder that looks like that of an adapter; its name is in every run the same."""
    folder = Path(tempfile.gettempdir()) / "blockyard-adapters" / name
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / "adapter_model.safetensors"
    if not weights.exists():
        weights.write_text(name)
    return str(folder)
