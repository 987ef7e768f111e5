"""Connectors in vLLM's scheduler: Blockyard's, or one of vLLM's own two.

    python side_connector.py WORK sha256 blockyard|offloading|simple

Every call of the connector's scheduler half is timed where vLLM makes it; the model computes
nothing, and every copy ends in the step after the one that has ordered it.
"""

from __future__ import annotations

import logging
import sys
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from peers import work as sizes
from peers.driver import Makers, Operation, Row, override, serve
from peers.vllm_requests import hasher, params, request
from peers.vllm_steps import output, scheduler
from peers.work import BLOCK, Work

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = sys.argv[3]
LONG, HITS = 128, 64
"""Blocks of a prompt that the host has, and such prompts."""
FULL = 30_000
"""Blocks of the host."""
CALLS = (
    "on_new_request",
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "update_connector_output",
    "request_finished",
    "request_finished_all_groups",
)
TRANSFERS: dict[str, dict[str, Any]] = {
    "blockyard": {
        "kv_connector": "Blockyard",
        "kv_connector_module_path": "blockyard.engines.vllm",
        "kv_connector_extra_config": {"host": FULL},
    },
    "offloading": {
        "kv_connector": "OffloadingConnector",
        # As many blocks: each begins at a page there.
        "kv_connector_extra_config": {"cpu_bytes_to_use": FULL << 12},
    },
    "simple": {
        "kv_connector": "SimpleCPUOffloadConnector",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 1 << 40, "num_cpu_blocks": 30_000},
    },
}


class Reported:
    """A worker's half that moves nothing: what it says of the orders that it was given."""

    def __init__(self) -> None:
        self.loads = 0
        """Loads that were ordered."""
        self.output: Any = import_module("vllm.v1.outputs").KVConnectorOutput
        if NAME == "blockyard":
            self.outcome: Any = import_module("blockyard").Outcome
            self.reports: Any = import_module("blockyard.connectors.vllm.messages").Reports
        elif NAME == "simple":
            path = "vllm.v1.simple_kv_offload.metadata"
            self.reports = import_module(path).SimpleCPUOffloadWorkerMetadata
        else:
            path = "vllm.distributed.kv_transfer.kv_connector.v1.offloading.common"
            self.reports = import_module(path).OffloadingWorkerMetadata

    def of(self, meta: Any) -> Any:
        """Returns what the workers say of a step."""
        said = self.output()
        if NAME == "blockyard":
            self.loads += len(meta.orders.up)
            plans = [*meta.orders.down, *meta.orders.up]
            ended = [self.outcome(plan.flight, 0, len(plan)) for plan in plans]
            said.kv_connector_worker_meta = self.reports(ended) if ended else None
            said.finished_recving, said.invalid_block_ids = meta.arrived, meta.missing
        elif NAME == "simple":
            if meta.store_event >= 0:
                said.kv_connector_worker_meta = self.reports({meta.store_event: 1})
            said.finished_recving = set(meta.load_event_to_reqs.get(meta.load_event, ()))
            self.loads += len(said.finished_recving)
        else:
            jobs = {**meta.load_jobs, **meta.store_jobs}
            if jobs:
                said.kv_connector_worker_meta = self.reports(dict.fromkeys(jobs, 1))
            self.loads += len(meta.load_jobs)
            # A load that its own step waits for is not told of.
            loads = [job for job in meta.load_jobs.values() if not job.sync]
            said.finished_recving = {job.req_id for job in loads}
        return said


class Connected(Row):
    """vLLM's scheduler with a connector."""

    def __init__(self, budget: int) -> None:
        transfer: Any = import_module("vllm.config").KVTransferConfig
        self.scheduler = scheduler(
            20_000,
            8_192,
            {"max_num_batched_tokens": budget},
            kv_transfer_config=transfer(kv_role="kv_both", **TRANSFERS[NAME]),
        )
        self.reported = Reported()
        self.spent: dict[str, list[int]] = {name: [] for name in CALLS}
        for name in CALLS:
            if hasattr(self.scheduler.connector, name):
                self.time(name)

    def time(self, name: str) -> None:
        """Times a call."""
        connector, spent = self.scheduler.connector, self.spent[name]
        inner = getattr(connector, name)

        def call(*what: Any, **named: Any) -> Any:
            begun = time.thread_time_ns()
            try:
                return inner(*what, **named)
            finally:
                spent.append(time.thread_time_ns() - begun)

        setattr(connector, name, call)

    def step(self) -> Any:
        """Schedules, samples a token for all that decode, and returns that."""
        step = self.scheduler.schedule()
        said = output(self.scheduler, step)
        said.kv_connector_output = self.reported.of(step.kv_connector_metadata)
        self.scheduler.update_from_output(step, said)
        return said

    def run(self, prompts: Sequence[list[int]]) -> None:
        """Runs prompts to their end, and until all that was ordered has ended."""
        short = params.clone()
        short.max_tokens = 2
        for prompt in prompts:
            one = request(prompt, hasher)
            one.sampling_params, one.max_tokens = short, 2
            self.scheduler.add_request(one)
        while self.scheduler.has_requests():
            self.step()
        for _ in range(8):
            self.step()


class Decode(Connected):
    """Steps in which all rows decode, over a device and a host that are full of what has ended."""

    def __init__(self, work: Work) -> None:
        super().__init__(8_192)
        self.work = work
        self.run([work.fresh(LONG, 5).tolist() for _ in range(FULL // LONG + 1)])
        self.rows: list[str] = []
        self.begin()

    def begin(self) -> None:
        """Begins all rows again, and runs them until all decode."""
        if self.rows:
            aborted: Any = import_module("vllm.v1.request").RequestStatus.FINISHED_ABORTED
            self.scheduler.finish_requests(self.rows, aborted)
        rows = [request(self.work.fresh(18, 12 + row % BLOCK)) for row in range(sizes.SEATS)]
        for row in rows:
            self.scheduler.add_request(row)
        self.rows, self.left = [row.request_id for row in rows], sizes.MOST
        while sum(map(len, self.step().sampled_token_ids)) != sizes.SEATS:
            pass

    def told(self) -> int:
        """Returns the nanoseconds of all calls of a step."""
        for spent in self.spent.values():
            spent.clear()
        self.step()
        return sum(map(sum, self.spent.values()))

    @override
    def prepare(self) -> Sequence[Operation]:
        self.left -= sizes.STEPS
        if self.left < 0:
            self.begin()
        return [self.told] * sizes.STEPS


class Hits(Connected):
    """Prompts that the GPU has evicted and the host has, all at once."""

    def __init__(self, work: Work, what: str) -> None:
        super().__init__(65_536)
        self.what = what
        self.prompts = [work.fresh(LONG, 5).tolist() for _ in range(HITS)]
        self.run(self.prompts)

    def told(self) -> int:
        """Returns the nanoseconds of a lookup, or of the longest call of all."""
        for spent in self.spent.values():
            spent.clear()
        self.reported.loads = 0
        self.run(self.prompts)
        if self.reported.loads != HITS:
            raise RuntimeError(f"{self.reported.loads} of {HITS} prompts came from the host")
        if self.what == "worst":
            return max(map(max, filter(None, self.spent.values())))
        # Each is asked again when its load has ended, which is no lookup.
        looked = sorted(self.spent["get_num_new_matched_tokens"])
        return looked[len(looked) // 2]

    @override
    def prepare(self) -> Sequence[Operation]:
        if not self.scheduler.reset_prefix_cache():
            raise RuntimeError("vLLM's prefix cache was not reset")
        return [self.told]


ROWS: Makers = {
    "connector-decode": lambda work, _: Decode(work),
    "connector-hits": lambda work, asked: Hits(work, asked["what"]),
}


if __name__ == "__main__":
    for quiet in ("vllm", "blockyard"):
        logging.getLogger(quiet).setLevel(logging.ERROR)
    about = {"vllm": version("vllm")}
    if NAME == "blockyard":
        about["blockyard in vLLM"] = version("blockyard")
    serve(ROWS, about)
