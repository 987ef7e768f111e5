"""Each group of layers has its own bytes of vLLM's blocks, on the host, the disk and in metrics."""

import logging
import re
import shutil
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from blockyard.connectors.hybrid_connector import HybridConnector
from blockyard.connectors.vllm.compatibility import facts
from blockyard.connectors.vllm.metrics import Reporter, rank_stats
from blockyard.connectors.vllm.settings import Settings
from vllm_front import no_torch, vllm_config
from vllm_group_halves import WIDTHS, Halves
from vllm_groups import full, kv_of, window
from vllm_prom import Prom

__all__ = ["no_torch"]

WINDOW, STATE, FULL = 0, 1, 2
"""vLLM's numbers."""
DOWN = [[0, 4, 5], [0, 0, 6], [1, 2, 3]]
STATES = [(STATE, 6, 12)]
UP = [[0, 14, 15], [0, 0, 16], [11, 12, 13]]


def check(halves: Halves, written: dict[int, list[Any]]) -> None:
    """Each byte of each group has come, and none besides."""
    for group, width in enumerate(WIDTHS):
        for source, block in zip(DOWN[group], UP[group], strict=True):
            for pages, was in zip(halves.pages, written.get(source, ()), strict=False):
                assert (pages[block][:width] == was[:width]).all(), (group, block)
                assert not pages[block][width:].any(), "what a group has not is not touched"


def test_each_group_has_its_own_bytes_of_the_one_pool() -> None:
    halves = Halves()
    written = halves.offload(DOWN, STATES)
    assert halves.found() == 12
    assert halves.load(UP) == 12
    check(halves, written)
    assert not halves.pages[0][17:].any()
    halves.close()


def test_a_layer_of_any_group_that_vllm_has_not_registered_is_named() -> None:
    halves = Halves()
    halves.back.close()
    del halves.kv["layer 1 of 1"]
    with pytest.raises(by.Misuse, match=r"no KV cache of layers \['layer 1 of 1'\]"):
        halves.back.register(halves.kv)


def test_a_restart_finds_each_group_in_a_folder_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Halves(tmp_path)
    written = first.offload(DOWN, STATES)
    first.close()
    assert len(first.back.ready().folders) == 0, "its worker has ended"
    with caplog.at_level(logging.INFO):
        second = Halves(tmp_path)
    said = [re.findall(r"(group \d) [^;]*: (\d) blocks", one) for one in caplog.messages]
    assert [("group 2", "3"), ("group 0", "2"), ("group 1", "1")] in said
    assert second.restart.restored == 6
    assert second.found() == 12
    assert second.load(UP) == 12
    check(second, written)
    second.close()


def test_another_engine_finds_each_group_in_a_store_at_addresses_of_its_own(
    tmp_path: Path,
) -> None:
    shared = {"remote": (tmp_path / "store").as_uri(), "namespace": {"weights": "v1"}}
    first = Halves(**shared)
    written = first.offload(DOWN, STATES)
    first.close()
    second = Halves(**shared)
    assert len(set(second.back.ready().places)) == 3
    until = time.monotonic() + 20
    while (found := second.found()) is None:
        assert time.monotonic() < until
        time.sleep(1e-3)
    assert found == 12
    # The spine has three blocks there, the window two and the state one.
    assert [cache.stats()["remote_idle"] for cache in second.caches] == [3, 2, 1]
    assert second.load(UP) == 12
    check(second, written)
    second.close()


def test_another_division_of_the_disk_names_what_must_be_as_before(tmp_path: Path) -> None:
    first = Halves(tmp_path)
    first.offload(DOWN, STATES)
    first.close()
    with pytest.raises(by.Unavailable, match=r"before, 16 blocks.* typical and --max-model-len"):
        Halves(tmp_path, disk=[16, 12, 16])
    Halves(tmp_path).close()


def folder_of(halves: Halves, group: int) -> Path:
    return Path(halves.back.ready().folders[group][0])


def test_a_group_of_which_nothing_is_found_costs_hits_and_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Halves(tmp_path)
    first.offload(DOWN, STATES)
    states = folder_of(first, 2)
    first.close()
    shutil.rmtree(states)
    with caplog.at_level(logging.INFO):
        second = Halves(tmp_path)
    assert "nothing is found again of group 1 (RecurrentState)" in caplog.text
    assert second.found() == 0
    written = second.offload(DOWN, STATES)
    assert second.found() == 12
    assert second.load(UP) == 12
    check(second, written)
    second.close()


def test_inv_31_a_clear_is_noted_in_every_groups_folder(tmp_path: Path) -> None:
    first = Halves(tmp_path)
    first.offload(DOWN, STATES)
    first.ask.clear()
    assert first.restart.clear()
    folders = [folder_of(first, group) for group in range(3)]
    # The workers never hear of it.
    first.back.close()
    assert [(folder / "cleared").exists() for folder in folders] == [True] * 3
    second = Halves(tmp_path)
    assert (second.restart.restored, second.found()) == (0, 0)
    second.close()


@pytest.mark.parametrize("noted", [0, 1, 2])
def test_a_clear_that_one_group_has_noted_holds_for_all(tmp_path: Path, noted: int) -> None:
    """Its process was killed between two groups; what is new has the keys of what is old."""
    first = Halves(tmp_path)
    first.offload(DOWN, STATES)
    first.ask.clear()
    assert first.restart.clear()
    for group in {0, 1, 2} - {noted}:
        (folder_of(first, group) / "cleared").unlink()
    first.back.close()
    second = Halves(tmp_path)
    assert (second.restart.restored, second.found()) == (0, 0)
    second.close()


def test_a_clear_that_one_group_cannot_note_is_not_durable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    halves = Halves(tmp_path)
    (folder_of(halves, 1) / "cleared.new").mkdir()
    assert not halves.restart.clear()
    assert "a reset is not durable" in caplog.text
    halves.close(flush=False)


def test_the_owner_counts_on_in_all_groups(tmp_path: Path) -> None:
    """A folder that is new takes the number of the others, so that each order is believed."""
    runs = []
    for at in range(3):
        halves = Halves(tmp_path)
        halves.offload(DOWN, STATES)
        runs.append(halves.restart.run)
        folder = folder_of(halves, 1)
        halves.close()
        if at == 0:
            shutil.rmtree(folder)
        else:
            assert (folder / "order").exists()
    assert runs == sorted(set(runs))
    last = Halves(tmp_path)
    assert last.restart.restored == 6
    last.close()


def test_workers_with_another_window_are_named() -> None:
    halves = Halves()
    ready = halves.back.ready()
    ready.rank, ready.fingerprints = 3, (*ready.fingerprints[:2], "another")
    with pytest.raises(by.Misuse, match="rank 3 has fingerprint another of group 2, and the sched"):
        halves.restart.ready([halves.back.ready(), ready])
    halves.close()


# -- metrics -------------------------------------------------------------------------------


class _Text:
    layer_types = ("sliding_attention", "full_attention")


def told(halves: Halves) -> Callable[[], list[dict[str, Any]]]:
    reporter = Reporter(halves.caches[0], halves.ask, events=False)
    seconds = count()
    reporter.clock = lambda: float(next(seconds))

    def tell() -> list[dict[str, Any]]:
        reporter.is_time()
        made = reporter.report_if_due()
        assert made is not None
        return [made.data]

    return tell


def test_numbers_of_tiers_are_told_by_group() -> None:
    halves = Halves()
    prom, tell = Prom(hf_text_config=_Text()), told(halves)
    prom.take(tell())
    assert prom.value("blockyard_evicted_blocks_total", tier="host", group="0") == 0
    halves.offload(DOWN, STATES)
    prom.take(tell())
    idle = {
        group: prom.value("blockyard_slots", tier="host", set="idle", group=str(group))
        for group in range(3)
    }
    assert idle == {WINDOW: 2, STATE: 1, FULL: 3}
    assert prom.copied_down() == 6
    # What has no tier is of all groups, or of the first of full attention.
    assert prom.value("blockyard_block_bytes") == 128
    series = [one for metric in prom.registry.collect() for one in metric.samples]
    assert len([one for one in series if not one.name.endswith("_created")]) <= 250
    halves.close()


def test_a_hit_that_a_group_has_ended_is_counted_by_it() -> None:
    halves = Halves()
    prom, tell = Prom(is_hybrid=True), told(halves)
    halves.offload(DOWN, [])
    assert halves.found() == 0
    halves.ask.allocated("Ben")
    prom.take(tell())
    assert prom.value("blockyard_hits_cut_total", group=str(STATE)) == 1
    assert prom.value("blockyard_hits_cut_total", group=str(WINDOW)) == 0
    halves.close()


def test_a_front_end_that_expects_one_group_says_what_it_leaves_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    halves = Halves()
    prom = Prom()
    prom.take(told(halves)())
    assert prom.value("blockyard_block_tokens") == 4
    assert "the numbers of groups of layers are not on /metrics" in caplog.text
    halves.close()


def test_many_groups_are_summed_behind_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    # Another test may have imported the module anew.
    monkeypatch.setitem(Reporter.__init__.__globals__, "_MOST", 40)
    halves = Halves()
    prom, tell = Prom(is_hybrid=True), told(halves)
    halves.offload(DOWN, STATES)
    prom.take(tell())

    def idle(group: str) -> float:
        return prom.value("blockyard_slots", tier="host", set="idle", group=group)

    assert (idle(str(FULL)), idle("others")) == (3, 3)
    halves.close()


@pytest.mark.parametrize(("ranks", "groups"), [(4, 8), (12, 5)])
def test_series_of_ranks_count_to_the_most_of_an_engine(ranks: int, groups: int) -> None:
    given = {"host": "64 MiB", "disk": "64 MiB", "disk_path": "/kv", "namespace": {"weights": "v1"}}
    specs = [*[window()] * (groups - 1), full()]
    parallel = vllm_config(tensor_parallel_size=ranks)
    known = facts(parallel, kv_of(*specs), version="0.33.0")
    assert known.groups is not None
    _, configs = Settings.read(given, known)
    caches = [by.KVCache(config.named()) for config in configs]
    caches[0].listen()
    reporter = Reporter(caches[0], HybridConnector(caches, known.groups), events=True)
    # Beside what an engine was made with.
    assert len(reporter.read()) + ranks * len(rank_stats(0)) + 1 <= 250


def test_the_numbers_of_a_disk_are_of_all_groups(tmp_path: Path) -> None:
    halves = Halves(tmp_path)
    halves.offload(DOWN, STATES)
    numbers = halves.back._rank_stats()
    halves.close()
    assert numbers["disk_written_bytes"] >= 5 * 128 + 80
