"""What a cache's begins and finishes leave in a file, and that nothing depends on it."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import blockyard as by
from blockyard.tools.traces.recording import Recorded, block_size, recorded


def ends(path: Path) -> list[tuple[int, int, int]]:
    """Prompt, answer and full blocks of each request in a recording."""
    return [(one.prompt, one.answer, len(one.keys) // 8) for one in recorded(path)]


def until(is_so: Callable[[], bool]) -> None:
    limit = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < limit
        time.sleep(0.001)


def land(cache: by.KVCache) -> None:
    for plan in cache.dispatch():
        cache.commit(plan)


def served(cache: by.KVCache, prompt: range, answer: int = 0) -> by.Lease:
    lease = cache.begin(prompt, reserve=answer)
    if answer:
        cache.grow([lease], answer)
        cache.append([lease], list(range(answer)), answer)
    cache.seal(lease, len(prompt))
    return lease


def test_a_request_is_recorded_when_it_ends_with_its_lengths_and_the_keys_of_its_prompt(
    tmp_path: Path,
) -> None:
    path = tmp_path / "traffic.rec"
    cache = by.KVCache(device=64, record=path)
    before = time.time()
    first = served(cache, range(40), 30)
    cache.finish(served(cache, range(32, 39)))
    cache.finish([first, served(cache, range(40))])
    cache.stop_recording()
    assert ends(path) == [(7, 0, 0), (40, 30, 2), (40, 0, 2)]
    assert block_size(path) == cache.block_size
    long = [one for one in recorded(path) if one.keys]
    assert long[0].keys == long[1].keys
    assert long[0].keys[:8] != long[0].keys[8:]
    assert all(before - 2 < one.nanoseconds / 1e9 < time.time() + 2 for one in recorded(path))
    assert {name: cache.stats()[name] for name in ("recorded", "record_dropped")} == {
        "recorded": 3,
        "record_dropped": 0,
    }
    assert path.stat().st_mode & 0o777 == 0o600
    cache.finish(served(cache, range(40)))
    assert cache.stats()["record_dropped"] == 0, "no more was to be recorded"


def test_a_file_that_was_there_is_its_owners_alone_from_then_on(tmp_path: Path) -> None:
    path = tmp_path / "traffic.rec"
    path.touch(mode=0o644)
    by.KVCache(device=64, record=path).stop_recording()
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_comes_back_is_the_request_that_it_was_and_what_is_refused_is_none(
    tmp_path: Path,
) -> None:
    path = tmp_path / "traffic.rec"
    cache = by.KVCache(device=9, host=16, record=path)
    lease = served(cache, range(64))
    with pytest.raises(by.NoRoom):
        cache.begin(range(100, 200))
    parked = cache.park(lease, 64)
    back = cache.begin(parked)
    assert isinstance(back, by.Lease)
    fork = cache.fork(back, 64)
    cache.finish([fork, back])
    cache.abandon(cache.park(served(cache, range(200, 240)), 40))
    with cache.begin(range(300, 303)):
        pass
    cache.begin(range(400, 410))  # dropped, and not ended
    cache.stop_recording()
    assert ends(path) == [(64, 0, 4), (40, 0, 2), (3, 0, 0)]


@pytest.mark.law("INV-38")
def test_no_token_and_no_salt_is_in_the_file_and_other_salts_have_other_keys(
    tmp_path: Path,
) -> None:
    path = tmp_path / "traffic.rec"
    cache = by.KVCache(device=64, record=path)
    tokens = [0x41424344 + at for at in range(32)]
    for salt in ("a tenant's salt", "another"):
        cache.finish(cache.begin(tokens, salt=salt))
    cache.stop_recording()
    raw = path.read_bytes()
    assert not any(
        token.to_bytes(4, order) in raw for token in tokens for order in ("big", "little")
    )
    assert b"tenant" not in raw
    one, other = recorded(path)
    assert not {one.keys[:8], one.keys[8:]} & {other.keys[:8], other.keys[8:]}


@pytest.mark.law("INV-38")
def test_with_a_recording_all_is_decided_as_without(tmp_path: Path) -> None:
    """INV-38."""
    found = []
    for record in (None, tmp_path / "traffic.rec", Path("/dev/full")):
        cache = by.KVCache(device=40, host=20, record=record)
        for at in range(60):
            prompt = range(at % 7 * 50, at % 7 * 50 + 70 + at)
            lease = cache.begin(prompt)
            land(cache)
            cache.seal(lease, len(prompt))
            if at % 5 == 0:
                back = cache.begin(cache.park(lease, len(prompt)))
                assert isinstance(back, by.Lease)
                lease = back
                land(cache)
            cache.finish(lease)
            land(cache)
        digest = cache.digest()
        cache.stop_recording()
        stats = cache.stats()
        assert stats.pop("recorded") + stats.pop("record_dropped") == (0 if record is None else 60)
        found.append((digest, stats))
    assert found[0] == found[1] == found[2]


@pytest.mark.law("INV-38")
def test_a_full_disk_is_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """INV-38."""
    cache = by.KVCache(device=64, record="/dev/full")
    for at in range(3):
        cache.finish(served(cache, range(at, at + 40)))
        until(lambda at=at: cache.stats()["record_dropped"] == at + 1)  # type: ignore[misc]
        assert cache.dispatch() == []
    assert cache.stats()["recorded"] == 0
    (said,) = caplog.messages
    assert re.search("record = '/dev/full': not all requests are written: No space left", said)


@pytest.mark.law("INV-38")
def test_a_disk_that_hangs_holds_up_no_verb_and_no_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """INV-38."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    cache = by.KVCache(device=4200, record=path)
    keys = cache.keys(range(16 * 4096))
    # A pipe takes 64 KiB, that is a request or two, and then no more; the queue 16 MiB.
    for _ in range(600):
        cache.finish(cache.begin(keys))
    assert cache.stats()["record_dropped"] > 0
    assert cache.stats()["recorded"] * 8 * 4096 <= 65536
    why = "they came faster than they could be written"
    assert caplog.messages == [f"record = {str(path)!r}: not all requests are written: {why}"]
    assert cache.recorder is not None
    assert not cache.recorder.close(0.001), "it waits no longer"
    cache.finish(cache.begin(keys))
    assert cache.audit() is None
    # It wakes up, and is left behind.
    with path.open("rb") as pipe:
        while not cache.recorder.close(0):
            pipe.read(1 << 16)


def test_a_path_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine\n")
    with pytest.raises(by.Misuse, match=r"record = '.*notes.txt': .* is no recording, .* another"):
        by.KVCache(device=8, record=path)
    assert path.read_text() == "mine\n"
    with pytest.raises(
        by.Misuse, match=r"record = '.*': it cannot be written: .* give the path of"
    ):
        by.KVCache(device=8, record=tmp_path / "none" / "traffic.rec")
    one = by.KVCache(device=8, record=tmp_path / "traffic.rec")
    with pytest.raises(by.Misuse, match="another cache is recording into it"):
        by.KVCache(device=8, record=tmp_path / "traffic.rec")
    one.stop_recording()
    with pytest.raises(by.Misuse, match="blocks of 16 tokens, and this cache has 32: give another"):
        by.KVCache(device=8, block_size=32, record=tmp_path / "traffic.rec")


def test_a_later_cache_appends(tmp_path: Path) -> None:
    path = tmp_path / "traffic.rec"
    for tokens in (20, 30, 40):
        cache = by.KVCache(device=64, record=path)
        cache.finish(served(cache, range(tokens)))
        del cache
        with path.open("ab") as file:
            file.write(b"torn")
    assert ends(path) == [(20, 0, 1), (30, 0, 1), (40, 0, 2)]


def test_what_a_program_has_recorded_is_there_when_it_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "traffic.rec"
    program = (
        "import blockyard as by\n"
        f"cache = by.KVCache(device=64, record={str(path)!r})\n"
        "for at in range(50): cache.finish(cache.begin(range(at, at + 40)))\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)  # noqa: S603 - itself
    assert len(ends(path)) == 50


def test_a_cache_that_is_closed_has_written_what_it_has_recorded(tmp_path: Path) -> None:
    path = tmp_path / "traffic.rec"
    layout = by.KVLayout.llama(layers=1, kv_heads=1, head_dim=8)
    with by.local(layout, device=64, host=16, record=path) as cache:
        cache.finish(served(cache, range(40)))
    assert ends(path) == [(40, 0, 2)]


def test_arrivals_that_are_told_replace_what_begins_would_say(tmp_path: Path) -> None:
    path = tmp_path / "traffic.rec"
    cache = by.KVCache(device=64, record=path)
    recorder = cache.recorder
    assert recorder is not None
    first = recorder.arrived()
    keys = cache.keys(range(40))
    for _ in range(3):
        cache.finish(cache.begin(keys))
    recorder.ended(first, keys, 40, 9)
    recorder.ended(recorder.arrived(), None, 100, 1)
    # What is sampled is in the keys of a request that was preempted, and no prompt.
    recorder.ended(first, cache.keys(range(80)), 40, 9)
    for bad in (-1, 1.5, None, "8"):
        with pytest.raises(by.Misuse, match="prompt = "):
            recorder.ended(first, keys, bad, 9)  # type: ignore[arg-type]
    cache.stop_recording()
    assert ends(path) == [(40, 9, 2), (100, 1, 0), (40, 9, 2)]


@pytest.mark.law("INV-38")
@pytest.mark.parametrize("bit", [0, 8 * 20, 8 * 60, 8 * 75, 8 * 90 + 3, 8 * 130])
def test_a_flipped_bit_costs_what_it_is_in_and_invents_nothing(tmp_path: Path, bit: int) -> None:
    path = tmp_path / "traffic.rec"
    for start in (0, 1):
        cache = by.KVCache(device=64, record=path)
        for tokens in (16, 20, 33, 40):
            cache.finish(served(cache, range(start, start + tokens)))
        cache.stop_recording()
    whole: list[Recorded] = list(recorded(path))
    raw = bytearray(path.read_bytes())
    raw[bit // 8] ^= 1 << bit % 8
    path.write_bytes(raw)
    torn: list[int] = []
    left = list(recorded(path, torn))
    assert torn
    assert set(left) <= set(whole)
    # A header says from when all behind it counts; a length that is gone leads to the next header.
    assert len(left) >= 4
    assert left[-4:] == whole[4:]
