"""What a test needs and a machine may lack: then it is skipped with a reason, or fails."""

import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from blockyard.crane.tiers.nixl_process import wheel


def without(what: str, reason: str) -> NoReturn:
    """Skips the test, or fails it where BLOCKYARD_REQUIRE names what is missing."""
    if what in os.environ.get("BLOCKYARD_REQUIRE", "").split():
        pytest.fail(f"required here: {reason}")
    pytest.skip(reason)


def _header() -> str:
    """Folder of cuda.h, which comes with the wheel of CUDA's run time."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        for path in Path(folder).glob("*/include/cuda.h"):
            return str(path.parent)
    return ""


_WAYS: dict[str, tuple[Callable[[], object], str, str]] = {
    "gcc": (lambda: shutil.which("gcc"), "g++", "no gcc to compile with"),
    "promtool": (
        lambda: shutil.which("promtool"),
        "prometheus",
        "no promtool: Debian's package prometheus has it",
    ),
    "prometheus": (
        lambda: shutil.which("prometheus"),
        "prometheus",
        "no Prometheus: Debian's package prometheus has it",
    ),
    "redis-server": (
        lambda: shutil.which("redis-server"),
        "redis",
        "no redis-server: Debian's package redis-server has it",
    ),
    "nixl": (wheel, "nixl", "no NIXL: pip install --no-deps nixl-cu12"),
    "cupy": (lambda: importlib.util.find_spec("cupy"), "nvrtc", "no CuPy"),
    "cuda.h": (_header, "nvrtc", "no cuda.h: it comes with nvidia-cuda-runtime-cu12"),
}


def need(what: str) -> str:
    """Where it is."""
    find, word, reason = _WAYS[what]
    found = find()
    if not found:
        without(word, reason)
    return str(found)
