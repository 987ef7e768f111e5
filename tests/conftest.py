"""Marks the modules that take long: `make check` leaves them out, `make test` runs them."""

import gc
import sys
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.append(str(Path(__file__).parent / "python" / "support"))

# `blockyard.connectors.vllm` needs vLLM, and `.sglang` SGLang, which only their users have.
import sglang_stub  # noqa: F401
import vllm_stub  # noqa: F401

# Others keep the processor busy beside a test.
settings.register_profile("untimed", settings.default, deadline=None)
settings.load_profile("untimed")

# Whole runs of an engine, an example, a replay, a browser or a bench, and long random histories.
SLOW = {
    "test_adopt_host",
    "test_bench_gpu",
    "test_bench_peers",
    "test_calibrate",
    "test_cli",
    "test_cuda_copier",
    "test_deploy",
    "test_disk_faults",
    "test_dropped",
    "test_endings",
    "test_engine_example",
    "test_handed_over",
    "test_handed_over_example",
    "test_hybrid_blocks_example",
    "test_interrupted_copiers",
    "test_interrupted_parking",
    "test_interrupts",
    "test_kernels",
    "test_machine",
    "test_mooncake_store",
    "test_nixl",
    "test_orders",
    "test_out",
    "test_own_blocks_example",
    "test_pages",
    "test_prefill_decode_example",
    "test_proof",
    "test_ranks",
    "test_ranks_example",
    "test_reference",
    "test_replay",
    "test_replay_stores",
    "test_report",
    "test_sequential",
    "test_server_example",
    "test_simulated_deaths",
    "test_simulated_groups",
    "test_simulated_handovers",
    "test_simulated_losses",
    "test_simulated_own_blocks",
    "test_simulated_processes",
    "test_simulated_restarts",
    "test_simulated_tickets",
    "test_simulator",
    "test_simulator_notices",
    "test_sweep",
    "test_sweep_cli",
    "test_threads",
    "test_together",
    "test_two_processes",
    "test_workers",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem in SLOW:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Keeps thousands of collected tests out of every `gc.collect` of a test."""
    gc.collect()
    gc.freeze()
