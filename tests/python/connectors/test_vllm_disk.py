"""The disk inside vLLM: what a restarted engine finds, and what it must not."""

import functools
import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard._core import DiskLane
from blockyard.connectors.vllm import Blockyard, restart_notes
from blockyard.crane.tiers import disk as disk_tier
from blockyard.crane.tiers.disk_folders import identities, wipe
from disks import dies
from vllm_disk import WEIGHTS, Engine
from vllm_front import (
    BLOCKS,
    LAYERS,
    PAGE,
    SIZE,
    Drafts,
    Front,
    Tensor,
    kv_config,
    no_torch,
    read,
    vllm_config,
)

__all__ = ["no_torch"]

PROMPT = list(range(4 * SIZE))
IDS = [3, 4, 5, 6]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = Engine(tmp_path)
    yield made
    made.close()


def test_after_a_restart_of_the_engine_a_prefix_is_found(tmp_path: Path) -> None:
    first = Engine(tmp_path)
    assert first.restored == 0
    first.offload("one", [*PROMPT, 1], [*IDS, 7], 100)
    first.close()
    second = Engine(tmp_path)
    assert second.restored == 4
    second.load("two", [*PROMPT, 1], [8, 9, 10, 11], IDS, 100)
    second.close()
    # vLLM's hashes stay what they are if `KVCache.keys` makes other ones: so does the folder.
    (one,) = identities(tmp_path)
    assert one.fields["keys"] == f"sha256, blocks of {SIZE} tokens"


@pytest.mark.law("INV-28")
@pytest.mark.parametrize(
    "change",
    [
        {"namespace": {"weights": "v2"}},
        {"changes": {"revision": "another"}},
        {"changes": {"dtype": "float16"}},
        {"changes": {"prefix_caching_hash_algo": "sha256_cbor"}},
        {"changes": {"quantization": "fp8"}},
    ],
)
def test_an_engine_of_another_identity_finds_nothing(tmp_path: Path, change: Any) -> None:
    first = Engine(tmp_path)
    first.offload("one", [*PROMPT, 1], [*IDS, 7], 100)
    first.close()
    other = Engine(tmp_path, **change)
    assert other.restored == 0
    assert other.find("two", [*PROMPT, 1]) == 0
    other.close()
    again = Engine(tmp_path)
    assert again.find("two", [*PROMPT, 1]) == len(PROMPT)
    again.close()


def test_weights_are_told_by_content_and_a_folder_is_none_of_it(tmp_path: Path) -> None:
    def engine(folder: str, content: bytes) -> Engine:
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        (place / "model.safetensors").write_bytes(content)
        os.utime(place / "model.safetensors", (0, 0))
        changes = {"model": str(place)}
        return Engine(tmp_path / "kv", changes=changes, namespace=None)

    first = engine("a", b"one")
    first.offload("one", [*PROMPT, 1], [*IDS, 7], 100)
    first.close()
    for folder, content, found in (("a", b"two", 0), ("b", b"one", len(PROMPT))):
        again = engine(folder, content)
        assert again.find("two", [*PROMPT, 1]) == found
        again.close()


def test_weights_that_cannot_be_read_are_refused_by_name_unless_the_operator_names_them(
    tmp_path: Path,
) -> None:
    (tmp_path / "model.safetensors").symlink_to("/nowhere")
    changes = {"model": str(tmp_path)}
    with pytest.raises(by.Misuse, match=r"model\.safetensors cannot be read.*\"weights\": \"v1\""):
        Engine(tmp_path / "kv", changes=changes, namespace=None)
    with pytest.raises(by.Misuse, match="load_format = 'tensorizer'"):
        Engine(tmp_path / "kv", changes=changes | {"load_format": "tensorizer"}, namespace=None)
    with pytest.raises(by.Misuse, match="they come from s3://bucket"):
        Engine(tmp_path / "kv", changes=changes | {"model_weights": "s3://bucket"}, namespace=None)
    with pytest.raises(by.Unavailable, match="there are no files of weights"):
        Engine(tmp_path / "kv", changes=changes, namespace={"weights": str(tmp_path / "none")})
    Engine(tmp_path / "kv", changes=changes).close()
    # Without a disk nothing outlives the engine that has loaded them.
    Front(changes=changes).worker.shutdown()


def test_a_drafters_weights_are_told_as_the_models_own(tmp_path: Path) -> None:
    """Its layers lie in the same blocks."""
    drafter = tmp_path / "drafter"
    drafter.mkdir()
    weights = drafter / "model.safetensors"
    model = SimpleNamespace(model=str(drafter), revision=None, hf_config=None)
    drafts = Drafts()
    drafts.model, drafts.draft_model_config = str(drafter), model
    changes = {"speculative_config": drafts, "revision": "0123456789" * 4}
    weights.write_bytes(b"one")
    first = Engine(tmp_path / "kv", changes=changes, namespace=None)
    first.offload("one", [*PROMPT, 1], [*IDS, 7], 100)
    first.close()
    for content, found in ((b"two", 0), (b"one", len(PROMPT))):
        weights.write_bytes(content)
        again = Engine(tmp_path / "kv", changes=changes, namespace=None)
        assert again.find("two", [*PROMPT, 1]) == found
        again.close()
    weights.unlink()
    weights.symlink_to("/nowhere")
    says = rf"of the drafter '{drafter}'.*cannot be read.*\"weights\": \"v1\""
    with pytest.raises(by.Misuse, match=says):
        Engine(tmp_path / "kv", changes=changes, namespace=None)
    Engine(tmp_path / "kv", changes=changes).close()


def test_a_commit_of_a_hub_stands_for_weights_and_a_branch_does_not(tmp_path: Path) -> None:
    for revision in ("main", None):
        with pytest.raises(by.Misuse, match="nor in the cache of a hub"):
            Engine(tmp_path, changes={"revision": revision}, namespace=None)
    Engine(tmp_path, changes={"revision": "0123456789" * 4}, namespace=None).close()


def test_another_seed_of_vllms_hashes_finds_nothing_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    first = Engine(tmp_path)
    first.offload("one", [*PROMPT, 1], [*IDS, 7], 100)
    first.close()
    for seed, found in (("2", 0), ("1", len(PROMPT))):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        again = Engine(tmp_path)
        assert again.find("two", [*PROMPT, 1]) == found
        again.close()


@pytest.mark.law("INV-31")
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("noted", [False, True])
def test_inv_31_a_reset_below_ends_what_is_on_the_disk_for_every_engine_to_come(
    tmp_path: Path, *, later: bool, noted: bool
) -> None:
    first = Engine(tmp_path)
    first.offload("one", [*PROMPT, 1], [*IDS, 7], 100)
    # As RL does: other weights in place, and then a reset.
    assert first.scheduler.reset_cache()
    first.step()
    assert first.find("two", [*PROMPT, 1]) == 0
    if later:
        first.offload("three", [*PROMPT, 1], [*IDS, 7], 50)
        assert first.find("four", [*PROMPT, 1]) == len(PROMPT), "as long as this engine lives"
    first.close()
    # The workers' folders know it too, where the scheduler's note of it did not come so far.
    (note,) = tmp_path.glob("*/cleared")
    if not noted:
        note.unlink()
    # An engine with the weights that the namespace names.
    again = Engine(tmp_path)
    assert again.restored == 0
    assert again.find("two", [*PROMPT, 1]) == 0
    again.close()


@pytest.mark.law("INV-31")
def test_inv_31_a_reset_outlives_an_engine_that_ends_before_its_next_step(tmp_path: Path) -> None:
    first = Engine(tmp_path)
    first.offload("one", [*PROMPT, 1], [*IDS, 7], 100)
    assert first.scheduler.reset_cache()
    first.close()
    for _ in range(2):
        again = Engine(tmp_path)
        assert again.restored == 0
        again.close()
    last = Engine(tmp_path)
    last.offload("two", [*PROMPT, 1], [*IDS, 7], 100)
    last.close()
    again = Engine(tmp_path)
    assert again.restored == 4
    again.close()
    (note,) = tmp_path.glob("*/cleared")
    assert note.stat().st_mode & 0o777 == 0o600

    def a_link() -> None:
        note.symlink_to(tmp_path / "nowhere")

    says = f"cleared blocks cannot be read.*blockyard disk wipe {tmp_path} {note.parent.name}"
    for make in (lambda: note.write_text("what?"), a_link, note.mkdir, lambda: os.mkfifo(note)):
        (note.rmdir if note.is_dir() else note.unlink)()
        make()
        with pytest.raises(by.Unavailable, match=says):
            restart_notes.RestartNotes(str(note.parent)).cleared()
    with pytest.raises(by.Unavailable, match=says):
        Engine(tmp_path)


@pytest.mark.parametrize("lost", ["a", "b"])
def test_inv_31_a_reset_outlives_the_loss_of_one_of_several_disks(
    tmp_path: Path, lost: str
) -> None:
    paths = [str(tmp_path / name) for name in "ab"]
    first = Engine(tmp_path, disk_path=paths)
    first.offload("one", [*PROMPT, 1], [*IDS, 7], 100)
    assert first.scheduler.reset_cache()
    # Its workers would have heard of it with the next step.
    first.close()
    shutil.rmtree(tmp_path / lost)
    again = Engine(tmp_path, disk_path=paths)
    assert again.restored == 0
    assert again.find("two", [*PROMPT, 1]) == 0
    again.close()


def test_the_eviction_order_outlives_a_clean_end(tmp_path: Path) -> None:
    def order(engine: Engine) -> list[int]:
        return [int(slot) for slot in engine.scheduler.front.cache.eviction_order("disk")]

    texts = [[1000 * talk, *PROMPT] for talk in range(6)]
    first = Engine(tmp_path)
    for at, text in enumerate(texts):
        first.offload(f"one {at}", text, [*IDS, 7], 100)
    # The oldest is used again.
    first.load("again", [*texts[0], 1], [8, 9, 10, 11], IDS, 100)
    kept = order(first)
    first.close()
    first.scheduler.shutdown()
    second = Engine(tmp_path)
    assert order(second) == kept
    second.close()
    # It was not ended: what was written last goes last.
    third = Engine(tmp_path)
    assert sorted(order(third)) == sorted(kept)
    assert order(third) != kept
    third.close()
    third.scheduler.shutdown()
    (note,) = tmp_path.glob("*/order")
    note.write_bytes(note.read_bytes()[:-1])
    last = Engine(tmp_path)
    assert last.restored == len(kept)
    last.close()
    last.scheduler.shutdown()
    (one,) = identities(tmp_path)
    assert wipe(one).left == ()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("more", "there"), [({}, 4), ({"flush": 0}, 0)])
def test_what_ended_last_is_on_the_disk_after_a_clean_end(
    tmp_path: Path, more: dict[str, Any], there: int, caplog: pytest.LogCaptureFixture
) -> None:
    first = Engine(tmp_path, write="on-evict", **more)
    request = first.request("one", [*PROMPT, 1])
    assert first.begin(request, [*IDS, 7]) == 0
    first.step({request: ([*IDS, 7], len(PROMPT) + 1)}, write={one: 100 + one for one in IDS})
    # It ends, and so does the engine: no step comes any more.
    first.scheduler.request_finished(request, [*IDS, 7])
    first.close()
    first.close()
    with caplog.at_level("WARNING", "blockyard"):
        first.scheduler.shutdown()
    assert ("4 blocks are not on the disk" in caplog.text) == (there == 0)
    again = Engine(tmp_path)
    assert again.restored == there
    if there:
        again.load("two", [*PROMPT, 1], [8, 9, 10, 11], IDS, 100)
    again.close()


def test_nothing_more_is_written_where_an_error_has_ended_the_engine(tmp_path: Path) -> None:
    first = Engine(tmp_path, write="on-evict", ahead=0)
    first.offload("one", [*PROMPT, 1], [*IDS, 7], 100)

    def dies() -> None:
        try:
            raise ZeroDivisionError
        finally:
            first.close()

    with pytest.raises(ZeroDivisionError):
        dies()
    assert Engine(tmp_path).restored == 0


def test_a_worker_that_cannot_write_is_closed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = Engine(tmp_path, write="on-evict")
    first.offload("one", [*PROMPT, 1], [*IDS, 7], 100)

    def refuses(*_: object) -> None:
        raise by.Unavailable("no more")

    monkeypatch.setattr(first.worker.back, "carry", refuses)
    with caplog.at_level("WARNING", "blockyard"):
        first.close()
    assert "some blocks were not written to the disk: Unavailable: no more" in caplog.text
    assert first.worker.back.worker is None


def test_workers_of_which_some_have_no_disk_are_refused(engine: Engine) -> None:
    ready = engine.worker.get_handshake_metadata()
    front = engine.scheduler.front
    front.ready([ready])
    assert engine.restored == 0
    front._restart.run = 0
    with pytest.raises(by.Misuse, match="others have none"):
        front.ready([ready, replace(ready, rank=1, restored=None)])


def test_e9_what_was_planned_before_a_reset_is_not_copied_after_it(engine: Engine) -> None:
    request, ids = engine.request("one", [*PROMPT, 1]), [*IDS, 7]
    engine.begin(request, ids)
    engine.step({request: (ids, len(PROMPT) + 1)}, write=dict.fromkeys(ids, 9))
    engine.scheduler.request_finished(request, ids)
    connector: Any = engine.scheduler.front.connector
    connector.plan_offloads()
    assert engine.scheduler.front.cache.stats()["flights"] == 1
    assert engine.scheduler.reset_cache()
    assert engine.scheduler.front.cache.stats()["flights"] == 0
    meta = engine.scheduler.build_connector_meta(engine.output({}))
    assert meta.orders.down == ()
    assert meta.cleared == 1


@pytest.mark.law("INV-28")
def test_inv_28_ranks_restore_what_both_have(tmp_path: Path) -> None:
    def halves() -> tuple[Any, list[Any]]:
        roles = Blockyard.__init__.__globals__["KVConnectorRole"]
        extra = {"host": 16, "disk": 64, "disk_path": str(tmp_path), "namespace": WEIGHTS}
        given = {"tensor_parallel_size": 2, "kv_connector_extra_config": extra}
        scheduler = Blockyard(vllm_config(**given), roles.SCHEDULER, kv_config())
        workers = []
        for rank in range(2):
            worker = Blockyard(vllm_config(**given, rank=rank), roles.WORKER, kv_config())
            worker.register_kv_caches(
                {
                    f"layer {at}": np.zeros((BLOCKS, PAGE), np.uint8).view(Tensor)
                    for at in range(LAYERS)
                }
            )
            workers.append(worker)
        ready = {(0, rank): one.get_handshake_metadata() for rank, one in enumerate(workers)}
        scheduler.set_xfer_handshake_metadata_pp_aware(ready)
        return scheduler, workers

    def shut(workers: list[Any]) -> None:
        for one in workers:
            one.shutdown()

    # Rank 1 was opened once alone, so that it counts its owners otherwise.
    _, workers = halves()
    workers[0].shutdown()
    workers[1].shutdown()
    scheduler, workers = halves()
    cache = scheduler.front.cache
    keys = cache.ready_keys(b"".join(bytes([number]) * 32 for number in (1, 2)), 2 * SIZE)
    cache.offload(keys, [3, 4])
    reports: list[Any] = []
    until = time.monotonic() + 30
    while True:
        assert time.monotonic() < until
        scheduler.front.connector.commit([one for report in reports for one in report.outcomes])
        meta = scheduler.build_connector_meta(Front.output({}))
        for worker in workers:
            worker.handle_preemptions(meta)
        reports = [one.build_connector_worker_meta() for one in workers]
        reports = [one for one in reports if one is not None]
        if not reports and not cache.stats()["flights"]:
            break
        time.sleep(1e-3)
    assert cache.stats()["disk_idle"] == 2
    shut(workers)
    scheduler, workers = halves()
    assert scheduler.front.restored == 2
    shut(workers)


@pytest.mark.law("INV-31")
def test_inv_31_resets_that_a_slow_disk_holds_up_do_not_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one must not empty the file that the first is about to put in its place."""
    sync, slow, going, seen = os.fsync, threading.Event(), threading.Event(), []

    def synced(number: int) -> None:
        if not going.is_set():
            going.set()
            assert slow.wait(20)
        seen.append((tmp_path / "cleared.new").exists() and (tmp_path / "cleared.new").read_text())
        sync(number)

    monkeypatch.setattr(restart_notes, "_PATIENCE", 0.05)
    monkeypatch.setattr(os, "fsync", synced)
    noted = restart_notes.RestartNotes(str(tmp_path))
    assert not noted.clear(5)
    assert going.is_set()
    assert not noted.clear(5), "it waits behind the first"
    monkeypatch.setattr(restart_notes, "_PATIENCE", 20.0)
    slow.set()
    assert noted.clear(5)
    assert "" not in seen
    assert noted.cleared() == 5


@pytest.mark.law("INV-32")
def test_inv_32_one_of_several_disks_that_dies_takes_its_slots_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty = functools.partial(DiskLane, rest=5e-4)
    monkeypatch.setattr(disk_tier, "DiskLane", hasty)
    paths = [str(tmp_path / name) for name in "ab"]
    engine = Engine(tmp_path, host=6, disk_path=paths)
    cache = engine.scheduler.front.cache
    engine.offload("one", [*PROMPT, 1], [*IDS, 7], 100)
    dies(tmp_path / "b")
    until, talk = time.monotonic() + 30, 0
    while cache.stats()["disk_capacity"] > 32:
        assert time.monotonic() < until
        talk += 1
        engine.offload(f"talk {talk}", [1000 + talk, *PROMPT], [*IDS, 7], 100)
    talk += 1
    prompt = [1000 + talk, *PROMPT]
    engine.offload("last", prompt, [*IDS, 7], 120)
    engine.load("again", [*prompt, 1], [8, 9, 10, 11], IDS, 120)
    assert cache.audit() is None
    engine.close()


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"disk_path": "kv", "host": 8}, 'give "disk": "200 GiB"'),
        ({"disk_path": "kv", "disk": 8}, 'give "host": "16 GiB"'),
        ({"disk_path": "kv", "disk": 8, "host": 8}, '"namespace": {"weights"'),
        ({"disk_path": [], "disk": 8, "host": 8}, "give a path, or a list of paths"),
        ({"disk_path": 3, "disk": 8, "host": 8}, "disk_path = 3"),
    ],
)
def test_a_disk_that_cannot_be_is_refused_with_the_line_to_write(
    extra: dict[str, Any], says: str
) -> None:
    with pytest.raises(by.Misuse, match=says.replace("[", "\\[")):
        read(extra)


def test_the_line_at_the_start_names_the_disk() -> None:
    settings, config = read(
        {"host": 64, "disk": 64, "disk_path": "/kv", "namespace": {"weights": "v1"}}
    )
    assert "of disk a rank (64 blocks) at /kv, where it outlives the engine" in settings.said(
        (config,)
    )
    assert config.keyed == ("disk",)
    assert config.write_of("host") == "through"
