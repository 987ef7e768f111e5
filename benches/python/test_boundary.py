"""One step through the binding, under pytest-benchmark: `make bench`."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from rows import row

NAMES = ["probe", "match64", "begin", "seal", "park", "resume", "finish", "decode", "grow", "keys"]


@pytest.mark.parametrize("name", NAMES)
def test_row(benchmark: BenchmarkFixture, name: str) -> None:
    """A row of `rows.py` on a full pool of 100,000 blocks; a round is one `run`."""
    work = row(name, 100_000)
    pending = False

    def prepare() -> None:
        nonlocal pending
        if pending:
            work.restore()
        work.prepare()
        pending = True

    operations = benchmark.pedantic(work.run, setup=prepare, rounds=10)  # type: ignore[no-untyped-call]
    work.restore()
    assert operations > 0
