"""A real `vllm serve` on a CPU, as docs/vllm.md writes it: its log, a kill when idle, replicas.

    python server.py

It runs in the environment that `setup_cpu.py` makes, from the wheel alone: three keys, no module
path. Servers are killed without a warning, one second after their last answer.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from whole_engine import VOCABULARY, write_model

ENVIRONMENT = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
START, TOKENS, QUIET = 300, 200, 1.0
LINE = r"^\(EngineCore(?:_DP\d)? pid=\d+\) (?:INFO|WARNING) [\d\- :]+ \[\w+\.py:\d+\] "
"""As vLLM's own lines begin."""


class Server:
    """A server, from its start to its kill."""

    def __init__(self, root: Path, replicas: int = 1) -> None:
        self.log = root / f"log-{time.monotonic_ns()}"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        extra = {"host": "64 MiB", "disk": "64 MiB", "disk_path": str(root / "kv")}
        transfer = {
            "kv_connector": "Blockyard",
            "kv_role": "kv_both",
            "kv_connector_extra_config": extra,
        }
        binding = (
            {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
            if replicas == 1
            else {"VLLM_CPU_OMP_THREADS_BIND": "auto", "VLLM_CPU_SIM_MULTI_NUMA": "1"}
        )
        command = [
            *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(root / "llama")),
            *("--port", str(self.port), "--skip-tokenizer-init", "--dtype", "float32"),
            *("--block-size", "32", "--num-gpu-blocks-override", "60", "--max-model-len", "512"),
            *("--max-num-seqs", "8", "--enforce-eager", "--served-model-name", "llama"),
            *("--kv-transfer-config", json.dumps(transfer)),
            *(("--data-parallel-size", str(replicas)) if replicas > 1 else ()),
        ]
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                command,
                env=os.environ | ENVIRONMENT | binding,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        until = time.monotonic() + START
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise SystemExit(f"BROKEN  no server:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.5)

    def answers(self) -> bool:
        """Whether it is up."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def ask(self, seed: int, replica: int | None = None) -> list[int]:
        """Returns the tokens that answer a prompt."""
        prompt = [3 + (seed * 7919 + at * at * 31) % (VOCABULARY - 3) for at in range(TOKENS)]
        body = {"model": "llama", "prompt": prompt, "max_tokens": 16, "temperature": 0}
        body |= {"ignore_eos": True, "return_token_ids": True}
        headers = {"content-type": "application/json"}
        if replica is not None:
            headers["X-data-parallel-rank"] = str(replica)
        asked = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions", json.dumps(body).encode(), headers
        )
        with urllib.request.urlopen(asked, timeout=120) as answer:  # noqa: S310 - it is our own
            tokens: list[int] = json.load(answer)["choices"][0]["token_ids"]
            return tokens

    def hits(self) -> list[float]:
        """Returns the tokens that came from below, of each replica."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        name = r'^vllm:external_prefix_cache_hits_total\{engine="(\d)".*\} (\S+)$'
        return [float(hits) for _, hits in sorted(re.findall(name, text, re.MULTILINE))]

    def said(self, text: str) -> int:
        """How many lines of the log have this text, behind what vLLM begins its own with."""
        return len(re.findall(LINE + text, self.log.read_text(), re.MULTILINE))

    def busy(self, seconds: float) -> float:
        """Returns which share of a core the engine's processes take, the most of one of them."""

        def ticks() -> dict[str, int]:
            found = {}
            for stat in Path("/proc").glob("[0-9]*/stat"):
                try:
                    named, _, rest = stat.read_text().rpartition(") ")
                except OSError:
                    continue
                fields = rest.split()
                if int(fields[2]) == self.process.pid and "EngineCor" in named:
                    found[named] = int(fields[11]) + int(fields[12])
            return found

        before = ticks()
        time.sleep(seconds)
        took = [after - before[name] for name, after in ticks().items()]
        return max(took) / os.sysconf("SC_CLK_TCK") / seconds

    def kill(self) -> None:
        """Ends all of its processes at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        time.sleep(0.5)


class Checks:
    """Prints a line for each, and counts what is broken."""

    def __init__(self) -> None:
        self.broken = 0

    def __call__(self, what: str, *, holds: bool, seen: object = "") -> None:
        self.broken += not holds
        print(f"{'ok     ' if holds else 'BROKEN '} {what}{f': {seen}' if seen != '' else ''}")


def alone(root: Path, check: Checks) -> None:
    """One engine."""
    first = Server(root)
    try:
        policy = r'Blockyard sets kv_load_failure_policy to "recompute", which was \'fail\''
        check("three keys are enough, and the policy is set", holds=first.said(policy) == 1)
        check("the line at the start", holds=first.said("Blockyard keeps preempted requests") == 1)
        answer = first.ask(1)
        time.sleep(QUIET)
    finally:
        first.kill()
    second = Server(root)
    try:
        blocks = TOKENS // 32
        found = second.said(f"Blockyard has found {blocks} blocks on the disk again")
        check(f"a kill {QUIET:g} s after the answer: {blocks} blocks are found", holds=found == 1)
        check("the same tokens from the disk", holds=second.ask(1) == answer)
        check("they were loaded", holds=second.hits() == [blocks * 32.0], seen=second.hits())
        time.sleep(QUIET)
        share = second.busy(10)
        check("an idle engine takes at most 1 % of a core", holds=share <= 0.01, seen=share)
    finally:
        second.kill()


def replicas(root: Path, check: Checks) -> None:
    """Two data parallel replicas, as many again, and then one."""
    first = Server(root, 2)
    try:
        shares = [first.said(rf".*512 blocks.*it is replica {at} of 2: .*divided") for at in (0, 1)]
        check("two replicas have half of the machine each", holds=shares == [1, 1], seen=shares)
        answers = [first.ask(at, at) for at in (0, 1)]
        time.sleep(QUIET)
    finally:
        first.kill()
    second = Server(root, 2)
    try:
        found = second.said(f"Blockyard has found {TOKENS // 32} blocks on the disk again")
        check("both find theirs after a kill", holds=found == 2, seen=found)
        again = [second.ask(at, at) for at in (0, 1)]
        check("the same tokens", holds=again == answers)
        hits = second.hits()
        check("both have loaded them", holds=len(hits) == 2 and min(hits) > 0, seen=hits)
    finally:
        second.kill()
    third = Server(root)
    try:
        left = third.said(r".*has the blocks of 2 data parallel replicas, which 1 do not find")
        check("one engine says what two have left", holds=left == 1)
    finally:
        third.kill()


def main() -> int:
    """Runs both."""
    check = Checks()
    for play in (alone, replicas):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            write_model(root / "llama")
            play(root, check)
    return int(check.broken > 0)


if __name__ == "__main__":
    sys.exit(main())
