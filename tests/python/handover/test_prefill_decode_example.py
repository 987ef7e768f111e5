"""The example of two engines and a router: one is killed, and no token differs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[3] / "examples/prefill_decode.py"


@pytest.mark.law("INV-36f")
@pytest.mark.parametrize("victim", ["prefill", "decode"])
def test_inv_36f_each_engine_may_be_killed(victim: str) -> None:
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-W", "error", str(PATH), victim],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"The {victim} engine was killed after ")
    assert done.stdout.endswith("ample memory: 0\n")
    found = re.search(r"has taken (\d+) blocks over; the prompts have (\d+)", done.stdout)
    assert found is not None, done.stdout
    assert int(found[1]) >= int(found[2]) // 4


def test_another_word_is_refused() -> None:
    done = subprocess.run(  # noqa: S603
        [sys.executable, str(PATH), "decod"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "'decod' is no engine to kill: give prefill or decode\n"


def test_its_router_is_short() -> None:
    source = PATH.read_text()
    router = source[source.index("class Router") : source.index("def ample")]
    assert len(router.strip().splitlines()) <= 60
