"""A real `vllm serve` on a CPU, as docs/vllm.md writes it: its log, a kill when idle, replicas.

    python server.py

It runs in the environment that `setup_cpu.py` makes, from the wheel alone: three keys, no module
path. Servers are killed without a warning, one second after their last answer.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from whole_engine import VOCABULARY, write_model

sys.path.append(str(Path(__file__).parents[1] / "python" / "support"))
from prometheus import DEPLOY, Prometheus, panels_of, queries

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


def free_port() -> int:
    """Returns a port of the loopback that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Server:
    """A server, from its start to its kill."""

    def __init__(self, root: Path, replicas: int = 1) -> None:
        self.port = free_port()
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
        self.start(root, command, binding)
        self.wait()

    def start(self, root: Path, command: list[str], more: dict[str, str]) -> None:
        """Starts its process."""
        self.log = root / f"log-{time.monotonic_ns()}"
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                command,
                env=os.environ | ENVIRONMENT | more,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Waits until it answers."""
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
        return self.metric("vllm:external_prefix_cache_hits_total")

    def metric(self, name: str, **labels: str) -> list[float]:
        """Returns the numbers of a series, of each replica and rank."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        found = {
            (one.labels["engine"], one.labels.get("rank", "")): one.value
            for family in text_string_to_metric_families(text)
            for one in family.samples
            if one.name == name and labels.items() <= one.labels.items()
        }
        return [found[key] for key in sorted(found)]

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
        with contextlib.suppress(ProcessLookupError):
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


def numbers(server: Server, check: Checks, blocks: int) -> None:
    """Checks what vLLM says of an engine that sleeps and has sent so many blocks to its disk."""
    for names, wanted in (
        (("copied_blocks_total", {"from": "device", "to": "host"}), blocks),
        (("copied_blocks_total", {"from": "host", "to": "disk"}), blocks),
        (("slots", {"tier": "disk", "set": "idle"}), blocks),
        (("slots", {"tier": "host", "set": "pinned"}), 0),
        (("flights", {}), 0),
        (("prompt_tokens_total", {}), blocks * 32),
        (("admitted_requests_total", {}), 1),
        (("copies_failed_total", {"cause": "unknown"}), 0),
        (("disks_dead", {"rank": "0"}), 0),
    ):
        name, labels = names
        seen = server.metric(f"blockyard_{name}", **labels)
        check(f"a scrape of an idle engine: {name} {labels}", holds=seen == [wanted], seen=seen)
    written = server.metric("blockyard_disk_written_bytes_total")
    per_block = server.metric("blockyard_block_bytes")
    check("its disk's bytes", holds=written == [blocks * per_block[0]], seen=written)


def panels(server: Server, folder: Path, check: Checks) -> None:
    """Asks a Prometheus that scrapes a server each query of each panel, and what its rules say."""
    binary = shutil.which("prometheus")
    if binary is None:
        check(
            "panels: skipped, as there is no Prometheus: Debian's package prometheus has it",
            holds="prometheus" not in os.environ.get("BLOCKYARD_REQUIRE", "").split(),
        )
        return
    folder.mkdir()
    rules = DEPLOY / "vllm" / "rules.yml"
    prometheus = Prometheus(binary, folder, ("127.0.0.1", server.port), rules)
    try:
        until, seed = time.monotonic() + 60, 10
        while not prometheus.ask("count_over_time(blockyard_flights[1m]) > 9"):
            server.ask(seed := seed + 1)
            if time.monotonic() > until:
                break
        empty, labels = [], []
        shown = panels_of(DEPLOY / "vllm" / "blockyard.json")
        for panel in shown:
            for query, legend in queries(panel):
                rows: list[Any] = prometheus.ask(query)
                # Nobody has asked this server to publish events.
                if not rows and "events_lost" not in query:
                    empty.append(query)
                wanted = re.findall(r"{{(\w+)}}", legend)
                labels += [one for row in rows for one in wanted if one not in row["metric"]]
        asked = sum(len(panel["targets"]) for panel in shown)
        check(
            f"each of {asked} queries of {len(shown)} panels has rows", holds=not empty, seen=empty
        )
        check("with the labels of its legend", holds=not labels, seen=labels)
        alerts = prometheus.ask("ALERTS")
        check("no alert fires for an engine that is well", holds=not alerts, seen=alerts)
        found = prometheus.ask("sum by (tier) (rate(blockyard_cached_tokens_total[1m]))")
        tiers = sorted(row["metric"]["tier"] for row in found)
        check("tokens by tier", holds=tiers == ["device", "disk", "host"], seen=tiers)
    finally:
        prometheus.close()


def alone(root: Path, check: Checks) -> None:
    """One engine."""
    first = Server(root)
    try:
        capacity = first.metric("blockyard_tier_slots", tier="host")
        check("sizes are told before the first request", holds=capacity[0] > 0, seen=capacity)
        policy = r'Blockyard sets kv_load_failure_policy to "recompute" \(it was \'fail\'\)'
        check("three keys are enough, and the policy is set", holds=first.said(policy) == 1)
        check("the line at the start", holds=first.said("Blockyard keeps preempted requests") == 1)
        answer = first.ask(1)
        time.sleep(QUIET)
        numbers(first, check, TOKENS // 32)
    finally:
        first.kill()
    second = Server(root)
    try:
        blocks = TOKENS // 32
        found = second.said(f"Blockyard has found {blocks} blocks on the disk")
        check(f"a kill {QUIET:g} s after the answer: {blocks} blocks are found", holds=found == 1)
        check("the same tokens from the disk", holds=second.ask(1) == answer)
        check("they were loaded", holds=second.hits() == [blocks * 32.0], seen=second.hits())
        time.sleep(QUIET)
        share = second.busy(10)
        check("an idle engine takes at most 1 % of a core", holds=share <= 0.01, seen=share)
        tokens = second.metric("blockyard_cached_tokens_total", tier="disk")
        check("they are counted as the disk's", holds=tokens == [blocks * 32.0], seen=tokens)
        panels(second, root / "prometheus", check)
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
        copied = first.metric("blockyard_copied_blocks_total", **{"from": "device", "to": "host"})
        check("each replica has its own numbers", holds=copied == [6.0, 6.0], seen=copied)
    finally:
        first.kill()
    second = Server(root, 2)
    try:
        found = second.said(f"Blockyard has found {TOKENS // 32} blocks on the disk")
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
