"""A recording as a trace: what was served is served again."""

import zlib
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import blockyard as by
from blockyard.tools.cli import cli
from blockyard.tools.replay.sequential import sequential
from blockyard.tools.replay.tokens import Tokens
from blockyard.tools.traces.trace import Trace, TraceError, read
from blockyard.tools.traces.workload import generate

DEVICE = 60


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Path, int]:
    """Some traffic, the recording of a cache that has served it, and the blocks that it found."""
    path = tmp_path_factory.mktemp("recording") / "traffic.rec"
    trace = generate(5, requests=300)
    tokens = Tokens(trace, 1)
    cache = by.KVCache(block_size=trace.trace_block, device=DEVICE + 1, null_slots=0, record=path)
    hits = 0
    for request in range(len(trace)):
        prompt = tokens.prompt(request)
        full = len(prompt) // trace.trace_block * trace.trace_block
        # As `sequential` does it: at most what fits, and one token more, so that all may be found.
        prompt = np.append(prompt[: min(full, DEVICE * trace.trace_block)], 1)
        lease = cache.begin(prompt)
        hits += lease.hits[0]
        cache.seal(lease, len(prompt))
        cache.finish(lease)
    cache.stop_recording()
    return trace, path, hits


@pytest.mark.law("INV-38")
def test_a_recording_replays_with_the_hits_of_the_cache_that_made_it(
    served: tuple[Trace, Path, int],
) -> None:
    trace, path, hits = served
    found = read(path)
    assert (found.name, found.trace_block, len(found)) == ("traffic.rec", trace.trace_block, 300)
    assert hits > 300
    again = sequential(found, device_blocks=DEVICE)
    assert int(again.hits.sum()) == hits
    assert np.array_equal(again.hits, sequential(trace, device_blocks=DEVICE).hits)


def test_it_has_no_key_and_only_what_the_first_requests_have(
    served: tuple[Trace, Path, int],
) -> None:
    path = served[1]
    found = read(path)
    distinct = len(np.unique(found.ids))
    assert found.ids.max() == distinct - 1
    assert found.arrival[0] == 0
    assert (np.diff(found.arrival) >= 0).all()
    part = read(path, requests=10)
    assert np.array_equal(part.ids, found.ids[: found.offsets[10]])
    assert read(path, trace_block=found.trace_block) == found
    with pytest.raises(by.Misuse, match=r"trace_block = 7: the recording .* has"):
        read(path, trace_block=7)


def test_a_trace_that_is_made_of_it_is_the_same(
    served: tuple[Trace, Path, int], tmp_path: Path
) -> None:
    path, output = served[1], tmp_path / "made.jsonl.gz"
    asked = ["trace", "from", "recording", str(path), "-o", str(output)]
    ran = CliRunner().invoke(cli, asked, catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    assert read(output) == read(path)


def test_requests_stand_in_the_order_of_their_arrival_and_torn_places_are_said(
    tmp_path: Path,
) -> None:
    path = tmp_path / "traffic.rec"
    for first in (0, 100):
        cache = by.KVCache(device=64, record=path)
        long = cache.begin(range(first, first + 40))
        cache.finish(cache.begin(range(first, first + 20)))
        cache.finish(long)
        cache.stop_recording()
        with path.open("ab") as file:
            file.write(bytes(7))
    found = read(path)
    assert found.input_length.tolist() == [40, 20, 40, 20]
    assert [found.ids_of(at).tolist() for at in range(4)] == [[0, 1], [0], [2, 3], [2]]
    asked = ["trace", "from", "recording", str(path), "-o", str(tmp_path / "made.jsonl")]
    ran = CliRunner().invoke(cli, asked, catch_exceptions=False)
    assert "bytes were torn by a crash or a full disk, and were left out: 14" in ran.output


def test_what_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "traffic.rec"
    cache = by.KVCache(device=64, record=path)
    cache.stop_recording()
    with pytest.raises(TraceError, match=r"traffic.rec: no request has ended in it yet"):
        read(path)
    other = tmp_path / "trace.jsonl"
    output = tmp_path / "made.jsonl"
    for text in ("", '{"timestamp": 0}\n'):
        other.write_text(text)
        asked = ["trace", "from", "recording", str(other), "-o", str(output)]
        ran = CliRunner().invoke(cli, asked)
        assert ran.exit_code == 2
        assert "trace.jsonl: it is no recording; give the file of `record`" in ran.output
        assert not output.exists()
    # A format of later.
    raw = bytearray(path.read_bytes())
    raw[24] = 9
    raw[20:24] = zlib.crc32(raw[24:40]).to_bytes(4, "little")
    path.write_bytes(raw)
    with pytest.raises(TraceError, match=r"it is of format 9, and Blockyard .* knows 1"):
        read(path)
