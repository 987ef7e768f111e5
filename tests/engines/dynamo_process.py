"""Dynamo's own indexer, `python -m dynamo.indexer` of ai-dynamo-runtime, and what it answers."""

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

SIZE = 16
"""Tokens of a block."""
MODEL = "default"
TIERS = {"device": "device", "host": "host_pinned", "disk": "disk"}
"""Blockyard's tiers, and what Dynamo calls them; in the order in which it follows them."""
ANY = "tcp://127.0.0.1:*"
Blocks = set[tuple[int, str]]
"""Blocks by the last 8 bytes of their keys, each with a tier where it is."""


class Wrong(Exception):
    """Something is not as it was promised."""


def until(right: Callable[[], bool], seconds: float) -> bool:
    """Asks until it is so, or until it has not become so in time."""
    end = time.monotonic() + seconds
    while not (found := right()) and time.monotonic() < end:
        time.sleep(0.02)
    return found


class Indexer:
    """An indexer on loopback, which can be killed and started again."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.start()

    def start(self) -> None:
        """Starts it; it knows nothing."""
        words = [sys.executable, "-m", "dynamo.indexer", "--port", str(self.port)]
        words += ["--threads", "1", "--block-size", str(SIZE)]
        self.process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        if not until(self.answers, 20):
            self.kill()
            raise RuntimeError("the indexer does not answer")

    def kill(self) -> None:
        """Ends it at once, with SIGKILL."""
        self.process.kill()
        self.process.wait()

    def answers(self) -> bool:
        """Whether it is up."""
        try:
            self.ask("/health")
        except (OSError, ValueError):
            return False
        return True

    def ask(self, path: str, body: dict[str, object] | None = None) -> Any:
        """An answer of it."""
        data = None if body is None else json.dumps(body).encode()
        head = {"content-type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, head)
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - it is on loopback
            text = answer.read().decode()
        return json.loads(text) if text else None

    def register(self, worker: int, endpoint: str, replay: str | None, rank: int = 0) -> None:
        """Tells it of a publisher."""
        said = {"instance_id": worker, "endpoint": endpoint, "model_name": MODEL}
        more = {"block_size": SIZE, "dp_rank": rank}
        self.ask("/register", said | more | ({"replay_endpoint": replay} if replay else {}))

    def unregister(self, worker: int) -> None:
        """Has it forget a worker."""
        self.ask("/unregister", {"instance_id": worker, "model_name": MODEL})

    def known(self, worker: int, tokens: list[int], **more: str) -> tuple[int, int, int]:
        """Leading blocks of a prompt that it knows: on the GPU; there and on the host; in all."""
        answer = self.ask("/query", {"token_ids": tokens, "model_name": MODEL, **more})
        tiers = answer["instances"].get(str(worker), {"gpu": 0, "cpu": 0, "disk": 0})
        return tuple(tiers[one] // SIZE for one in ("gpu", "cpu", "disk"))

    def has(self, blocks: Blocks, worker: int, seconds: float, rank: int = 0) -> bool:
        """Waits until it knows these blocks of a rank and no others; whether it does in time."""
        return until(lambda: self.blocks(worker, rank) == blocks, seconds)

    def blocks(self, worker: int, rank: int = 0) -> Blocks:
        """Every block that it knows of a rank."""
        told = self.ask("/dump").get(f"{MODEL}:default", {"events": []})["events"]
        tiers = {theirs: ours for ours, theirs in TIERS.items()}
        return {
            (block["block_hash"], tiers[one["storage_tier"]])
            for one in told
            if (one["worker_id"], one["event"]["dp_rank"]) == (worker, rank)
            for block in one["event"]["data"]["stored"]["blocks"]
        }
