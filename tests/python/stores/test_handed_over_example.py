"""The example of requests that outlive their engine: it runs, and no token differs."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from needs import need

PATH = Path(__file__).parents[3] / "examples/handed_over.py"


def shown(**environment: str) -> str:
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-W", "error", str(PATH)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("undisturbed: 0\n")
    return done.stdout


def check(said: str) -> None:
    found = re.search(r"with (\d+) requests, and loaded (\d+) of (\d+) full blocks", said)
    assert found is not None, said
    requests, loaded, blocks = map(int, found.groups())
    assert requests > 0
    assert 0 < loaded <= blocks
    found = re.search(r"moved (\d+) requests\.\nA third computed at most (\d+) tokens", said)
    assert found is not None, said
    moved, again = map(int, found.groups())
    assert moved > 0
    assert again < 8


def test_it_shows_it_over_a_redis_of_its_own() -> None:
    need("redis-server")
    said = shown()
    assert "The store: redis://127.0.0.1:" in said
    check(said)


def test_without_its_client_a_folder_is_the_store(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    need("redis-server")
    monkeypatch.setitem(sys.modules, "hiredis", None)
    with runpy.run_path(str(PATH))["store"]() as url:
        assert url.startswith("file:///")
    assert "no client of Redis (the extra [redis]) here: a folder is the store" in (
        capsys.readouterr().out
    )


def test_without_one_it_says_that_a_folder_is_the_store() -> None:
    said = shown(PATH="")
    assert said.startswith("There is no redis-server here: a folder is the store.\n")
    check(said)
