"""Marks the modules that take long: `make check` leaves them out, `make test` runs them."""

import pytest

# Whole runs of an engine, a replay, a browser or a bench, and long random histories.
SLOW = {
    "test_bench_gpu",
    "test_bench_peers",
    "test_calibrate",
    "test_cli",
    "test_machine",
    "test_proof",
    "test_replay",
    "test_report",
    "test_simulator",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem in SLOW:
            item.add_marker(pytest.mark.slow)
