"""Pages of an engine on a disk: a call that is interrupted anywhere leaves no copy under way."""

from pathlib import Path

import numpy as np

from interrupted import Places
from sglang_pages import disk_of, keys, opened, put, take
from sglang_stub import Pool


def test_a_call_that_is_interrupted_anywhere_leaves_no_copy_and_no_page_behind(
    tmp_path: Path,
) -> None:
    pool = Pool(24)
    store = opened(tmp_path, pool)
    places, named, tried = Places("connectors/sglang/disk_pages.py"), keys("x", 4), 0

    def play() -> None:
        put(store, named, 0, 1, 2, 3)
        take(store, named, 4, 5, 6, 7)

    places.during(play, None)
    for place in places.each():
        tried += 1
        named = keys(f"x{tried}", 4)
        pool.kv_buffer[:] = tried % 200
        places.during(play, place)
        before = 201
        pool.kv_buffer[:] = before
        stats = disk_of(store).stats()
        assert (stats["flights"], stats["disk_pinned"]) == (0, 0), place
        assert (np.asarray(pool.kv_buffer) == before).all(), "written after the call"
        assert disk_of(store)._numbers == disk_of(store)._copies == {}
        assert put(store, named, 0, 1, 2, 3) == [True] * 4, place
        assert take(store, named, 4, 5, 6, 7) == [True] * 4, place
    assert tried > 40
    store.close()
