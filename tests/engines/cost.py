"""What the connector costs vLLM's scheduler, beside vLLM's own OffloadingConnector in one run.

    python cost.py [--steps 200]

Thread CPU of the connector's calls in the real scheduler, in microseconds. All rows decode over a
device and a host that are full of what has ended. Where a limit stands behind a row, the median (of
"worst", the worst) must keep it.
"""

import argparse
import gc
import logging
import os
import random
import sys
import time
from collections import defaultdict
from typing import Any
from unittest import mock

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

import numpy as np
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

import simulated_setup
from blockyard._typing import override
from simulated_model import SIZE, Engine
from simulated_setup import FULL as FULL_ATTENTION
from simulated_setup import Kind

ROWS, LONG, HITS = 256, 128, 64
FULL, TURN = 30_000, 20
"""Blocks of the host; and steps of one connector behind which the other has its turn."""
CALLS = (
    "on_new_request",
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "update_connector_output",
    "request_finished_all_groups",
)


class Timed(Engine):
    """A scheduler whose connector's calls are timed; its model computes nothing."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.spent: dict[str, list[float]] = defaultdict(list)
        for name in CALLS:
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
                spent.append((time.thread_time_ns() - begun) / 1e3)

        setattr(connector, name, call)

    @override
    def hear(self, name: str, stats: Any) -> None:
        """Checks nothing: this model counts no tokens."""

    @override
    def run(self, output: Any) -> ModelRunnerOutput:
        """Samples a token for all that decode."""
        names, known = list(output.num_scheduled_tokens), self.scheduler.requests
        tokens = [
            [7] if known[name].num_computed_tokens >= known[name].num_prompt_tokens else []
            for name in names
        ]
        said = KVConnectorOutput()
        worker = self.ranks[0].connector if self.ranks else None
        if worker is not None:
            meta = output.kv_connector_metadata
            worker.handle_preemptions(meta)
            worker.bind_connector_metadata(meta)
            worker.start_load_kv(None)
            said.finished_recving = worker.get_transfer_results(set()).finished_recving
            said.invalid_block_ids = worker.get_block_ids_with_load_errors()
            said.kv_connector_worker_meta = worker.build_connector_worker_meta()
        else:
            jobs = output.kv_connector_metadata
            ended = {**jobs.load_jobs, **jobs.store_jobs}
            if ended:
                said.kv_connector_worker_meta = OffloadingWorkerMetadata(dict.fromkeys(ended, 1))
        return ModelRunnerOutput(
            names, {name: at for at, name in enumerate(names)}, tokens, kv_connector_output=said
        )


def begin(engine: Timed) -> Timed:
    """Fills the device and the host with what ends, and has all rows decode."""
    chance = random.Random(1)
    # The audit would take the CPU's caches from what is measured.
    engine.audited = False
    for at in range(FULL // LONG + 1):
        engine.add(f"ended {at}", [chance.randrange(1000) for _ in range(LONG * SIZE + 5)], 2)
    while engine.scheduler.has_requests():
        engine.step()
    for row in range(ROWS):
        engine.add(f"row {row}", [chance.randrange(1000) for _ in range(300 + row % SIZE)], 3000)
    for _ in range(60):
        engine.step()
    return engine


def decoding(engine: Timed) -> list[float]:
    """Microseconds of all calls in each of some steps in which all rows decode."""
    totals = []
    for _ in range(TURN):
        for spent in engine.spent.values():
            spent.clear()
        engine.step()
        assert len(engine.spent["build_connector_meta"]) == 1
        totals.append(sum(map(sum, engine.spent.values())))
    return totals


def hits(engine: Timed) -> dict[str, list[float]]:
    """Microseconds of the calls of requests whose blocks all come from the host."""
    chance = random.Random(2)
    prompts = [[chance.randrange(1000) for _ in range(LONG * SIZE + 5)] for _ in range(HITS)]
    for at, prompt in enumerate(prompts):
        engine.add(f"first {at}", prompt, 2)
    engine.drain()
    while engine.front.cache.stats()["flights"]:
        engine.step()
    engine.scheduler.reset_prefix_cache()
    for spent in engine.spent.values():
        spent.clear()
    # The collector of garbage would stop in some call for all that vLLM has made.
    gc.disable()
    for at, prompt in enumerate(prompts):
        engine.add(f"again {at}", prompt, 2)
    engine.drain()
    gc.enable()
    if engine.front.cache.stats()["host_hits"] < HITS * LONG:
        raise SystemExit("not all blocks came from the host: this has measured nothing")
    return engine.spent


def offloading() -> Timed:
    """Returns an engine with vLLM's own connector, whose host has as many blocks."""

    def its(_extra: Any, role: str) -> Any:
        return KVTransferConfig(
            kv_connector="OffloadingConnector",
            kv_role=role,
            # Each block begins at a page there.
            kv_connector_extra_config={"cpu_bytes_to_use": FULL << 12},
        )

    with mock.patch.object(simulated_setup, "transfer", its):
        return Timed(blocks=20_000, host=1, seats=ROWS, budget=8192, workers=False)


def hybrid() -> Timed:
    """Returns an engine with six groups, as of Gemma: five windows, of which less is kept."""
    kinds = (*[Kind("window", 512)] * 5, FULL_ATTENTION)
    host = [*[FULL // 10] * 5, FULL]
    return Timed(blocks=60_000, host=host, seats=ROWS, budget=8192, kinds=kinds)


def main() -> int:
    """Prints the table; returns 1 where a limit is missed."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--steps", type=int, default=200)
    steps = asked.parse_args().steps
    for name in ("vllm", "blockyard"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    simulated_setup.LONGEST = 4096
    ours = begin(Timed(blocks=20_000, host=FULL, seats=ROWS, budget=8192))
    others = begin(offloading())
    several = begin(hybrid())
    step: list[float] = []
    theirs: list[float] = []
    of_six: list[float] = []
    gc.collect()
    gc.freeze()
    gc.disable()
    for _ in range(steps // TURN):
        step += decoding(ours)
        theirs += decoding(others)
        of_six += decoding(several)
    gc.enable()
    calls = hits(Timed(blocks=20_000, host=FULL, seats=ROWS, budget=65_536))
    ratio = float(np.median(step) / np.median(theirs))
    mean = float(np.mean(step) / np.mean(theirs))
    six = float(np.median(of_six))
    rows = [
        (f"a decode step of {ROWS}, all calls", float(np.median(step)), 100.0),
        ("the same of OffloadingConnector", float(np.median(theirs)), None),
        ("ours / theirs", ratio, 1 / 20),
        ("ours / theirs, means", mean, None),
        ("with six groups of layers", six, None),
        ("six groups / one", six / float(np.median(step)), 1.5),
        ("six groups / one, means", float(np.mean(of_six) / np.mean(step)), None),
        (f"lookup of {LONG} blocks", float(np.median(calls["get_num_new_matched_tokens"])), 20.0),
        (f"worst call of {HITS} loads", max(max(one) for one in calls.values()), 1000.0),
    ]
    missed = 0
    for what, seen, limit in rows:
        missed += limit is not None and seen > limit
        print(f"{what:40} {seen:10.3f}" + ("" if limit is None else f"  ≤ {limit:g}"))
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
