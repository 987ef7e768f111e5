"""The sides: each is a process in its own environment, controlled line by line."""

import contextlib
import json
import os
import re
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

from peers.table import (
    ARC,
    DISK,
    DISK_DIRECT,
    DISK_LOCAL,
    DISK_NATIVE,
    DISK_VLLM,
    DYNAMO,
    INSIDE,
    LEGACY,
    OFFLOADING,
    OURS,
    PYTHON,
    RUST,
    SIMPLE,
    VLLM,
    XXHASH,
)

HERE = Path(__file__).parent
TARGET = HERE.parents[1] / "target" / "peers"
#: A side's environment, its program, and the variant.
SIDES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    OURS: ("", "side_blockyard.py", ()),
    VLLM: ("vllm", "side_vllm.py", ("sha256", "lru")),
    XXHASH: ("vllm", "side_vllm.py", ("xxhash", "lru")),
    ARC: ("vllm", "side_vllm.py", ("sha256", "arc")),
    RUST: ("sglang", "side_sglang.py", ("rust",)),
    PYTHON: ("sglang", "side_sglang.py", ("python",)),
    LEGACY: ("sglang", "side_sglang.py", ("legacy",)),
    INSIDE: ("vllm", "side_connector.py", ("sha256", "blockyard")),
    OFFLOADING: ("vllm", "side_connector.py", ("sha256", "offloading")),
    SIMPLE: ("vllm", "side_connector.py", ("sha256", "simple")),
    DYNAMO: ("dynamo", "side_dynamo.py", ()),
    DISK: ("", "side_disk_blockyard.py", ()),
    DISK_VLLM: ("vllm", "side_disk_vllm.py", ()),
    DISK_LOCAL: ("lmcache", "side_disk_lmcache.py", ("cached",)),
    DISK_DIRECT: ("lmcache", "side_disk_lmcache.py", ("direct",)),
    DISK_NATIVE: ("lmcache", "side_disk_lmcache.py", ("native",)),
}
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "LMCACHE_LOG_LEVEL": "ERROR",
    "LMCACHE_TRACK_USAGE": "false",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
PATIENCE = 900.0


class Failed(Exception):
    """A side did not answer, or reported an error."""


class Process:
    """A running side."""

    def __init__(self, side: str, work: Path, *more: str) -> None:
        place, program, variant = SIDES[side]
        python = TARGET / place / "bin" / "python" if place else Path(sys.executable)
        around = {**os.environ, **QUIET}
        if place:
            around.pop("PYTHONPATH", None)
        self.side = side
        self.log = work.parent / f"{re.sub(r'[^a-z]+', '-', side.lower())}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [python, HERE / program, work, *variant, *more],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=around,
            )
        try:
            self.about: dict[str, Any] = self.ask(do="about")
        except Failed:
            self.close()
            raise

    def ask(self, **asked: Any) -> dict[str, Any]:
        """Sends a line, and returns the answer."""
        there, back = self.process.stdin, self.process.stdout
        if there is None or back is None:
            raise Failed("no pipes")
        try:
            print(json.dumps(asked), file=there, flush=True)
        except BrokenPipeError as error:
            raise Failed(f"{self.side} has ended: see {self.log}") from error
        if not select.select([back], [], [], PATIENCE)[0]:
            self.close()
            raise Failed(f"{self.side} is silent")
        line = back.readline()
        if not line:
            raise Failed(f"{self.side} has ended: see {self.log}")
        said: dict[str, Any] = json.loads(line)
        wrong = said.get("error") or said.get("lacks")
        if wrong:
            raise Failed(f"{self.side}: {wrong}")
        return said

    def close(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
