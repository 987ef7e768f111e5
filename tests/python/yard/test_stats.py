"""One schema for every number of `stats()`, and the page made from it."""

import logging
import re
from pathlib import Path

import pytest

import blockyard as by
from blockyard.local import LocalCache
from blockyard.shared.log import Limited
from blockyard.tools.replay.result import Run

LAYOUT = by.KVLayout.llama(layers=1, kv_heads=1, head_dim=8)


def test_the_schema_names_every_number_once() -> None:
    cache = by.KVCache(device=8, host=8)
    names = [stat.name for stat in cache.schema()]
    assert sorted(names) == sorted(cache.stats())
    assert len(set(names)) == len(names)
    with by.local(LAYOUT, device=8, host=8) as wired:
        names = [stat.name for stat in wired.schema()]
        assert sorted(names) == sorted(wired.stats())
    for stat in wired.schema():
        assert stat.unit
        assert stat.help
        assert not stat.help.endswith(".")


def test_a_message_is_logged_once_a_second_and_says_what_was_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seconds = [0.0]
    log = Limited("blockyard.test", clock=lambda: seconds[0])
    with caplog.at_level(logging.WARNING, "blockyard"):
        for at in range(5):
            log.warning("flight %d failed", at)
        log.warning("another")
        log.debug("not wanted")
        seconds[0] = 1.5
        log.warning("flight %d failed", 9)
    assert caplog.messages == ["flight 0 failed", "another", "flight 9 failed (and 4 more like it)"]


def test_every_number_that_the_page_on_sizing_sends_the_reader_to_is_there() -> None:
    page = (Path(__file__).parents[3] / "docs/sizing.md").read_text(encoding="utf-8")
    table = page.partition("\n## What each mistake looks like\n")[2]
    rows = [line.rpartition(" | ")[2] for line in table.splitlines() if line.startswith("| ")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    known = {stat.name for stat in (*LocalCache.schema(), *by.Scheduler.SCHEMA)}
    of_a_replay = re.findall(r"`(\w+)` of a replay", page)
    assert len(rows) > 8
    assert len(named) > 15
    assert set(named) - known == set(of_a_replay)
    assert set(of_a_replay) <= set(Run.__struct_fields__)
