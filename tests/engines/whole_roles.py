"""Two whole vLLM engines on a CPU in Blockyard's own roles, of which each is killed and stopped.

    python whole_roles.py                all runs
    python whole_roles.py ROLE PORT CARRIER    an engine, which is told what to do on stdin

A router passes what the prefill engine says to the decode engine, as vLLM's proxies do. Without a
fault the decode engine computes no full block of a prompt; with one it computes what it lacks. The
tokens are those of one engine with ample memory, whatever happens.

It runs in the environment that `setup_cpu.py` makes.
"""

import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import whole_engine
from prefill_decode import AMPLE, FROM_PREFILLER, HOST, Peer, Serving, prompts
from whole_engine import BLOCK, LENGTHS, MOST

OFFERED = sum(length // BLOCK for length in LENGTHS)
"""Full blocks of all prompts."""
LEAST = sum(length % BLOCK for length in LENGTHS) + len(LENGTHS) * (MOST - 1)
"""Tokens that the decode engine computes where all of these have come."""
MOST_COMPUTED = sum(LENGTHS) + len(LENGTHS) * (MOST - 1)
LEASE = 2.0


def transfer(role: str, port: int, carrier: str) -> dict[str, Any]:
    """What an operator writes in `--kv-transfer-config`, as docs/vllm-handover.md has it."""
    at = f"127.0.0.1:{port}"
    own: dict[str, Any] = {"listen": at, "lease": LEASE, "unread": 2 * LEASE}
    if role == "kv_consumer":
        own = {"peers": [at]}
    return {
        "kv_connector": "Blockyard",
        "kv_role": role,
        "kv_connector_extra_config": {"host": HOST, "carrier": carrier, **own},
    }


class InRole(Serving):
    """An engine in a role."""

    def handed(self) -> dict[str, Any]:
        """What it holds for others, and what it has taken."""
        handing = self.scheduler.connector.front.handing
        sides = (handing.prefill, handing.decode)
        cache = self.scheduler.connector.front.cache.stats()
        return {"held": cache["held_blocks"]} | {
            name: count
            for side in sides
            if side is not None
            for name, count in side.stats().items()
        }


def start(role: str, port: int, carrier: str) -> Peer:
    """Starts an engine; returns when it is up."""
    engine = Peer(role, port, carrier, script=__file__)
    engine.hear()
    return engine


class Pair:
    """A prefill engine, a decode engine, and the router between them."""

    def __init__(self, carrier: str) -> None:
        self.carrier = carrier
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.start_prefill()
        self.start_decode()

    def start_prefill(self) -> None:
        """Starts a prefill engine, where there is none."""
        self.prefill = start("kv_producer", self.port, self.carrier)

    def start_decode(self) -> None:
        """The same of the decode engine."""
        self.decode = start("kv_consumer", self.port, self.carrier)

    def prefilled(self) -> list[Any]:
        """Has all prompts computed; returns what a router passes on."""
        # So that neither engine has anything of them.
        self.salt = f"salt {time.monotonic_ns()}"
        asks = [dict(FROM_PREFILLER) for _ in LENGTHS]
        return list(self.prefill.ask("generate", prompts(), 1, asks, self.salt)["params"])

    def decoded(self, params: list[Any]) -> dict[str, Any]:
        """Has them decoded."""
        self.begin_decoding(params)
        return dict(self.decode.hear())

    def begin_decoding(self, params: list[Any]) -> None:
        """The same, without waiting for it."""
        self.decode.tell("generate", prompts(), MOST, params, self.salt)

    def close(self) -> None:
        """Ends both."""
        self.prefill.close()
        self.decode.close()


def no_fault(pair: Pair) -> dict[str, Any]:
    """Nothing happens."""
    return pair.decoded(pair.prefilled())


def no_offer(pair: Pair) -> dict[str, Any]:
    """The router loses all offers."""
    pair.prefilled()
    return pair.decoded([None for _ in LENGTHS])


def prefill_stopped(pair: Pair) -> dict[str, Any]:
    """The prefill engine stands still before it is asked, and continues later."""
    params = pair.prefilled()
    pair.prefill.process.send_signal(signal.SIGSTOP)
    try:
        return pair.decoded(params)
    finally:
        pair.prefill.process.send_signal(signal.SIGCONT)


def prefill_killed_as_it_is_read(pair: Pair) -> dict[str, Any]:
    """The prefill engine is killed before, while or after the decode engine reads; a new one comes.

    What was sent before a kill arrives: `tests/python/handover` cuts reads at a byte.
    """
    params = pair.prefilled()
    pair.begin_decoding(params)
    time.sleep(0.02)
    pair.prefill.process.kill()
    said = dict(pair.decode.hear())
    pair.start_prefill()
    return said


def old_offers(pair: Pair) -> dict[str, Any]:
    """Offers of a prefill engine that was killed come when another one is at its address."""
    params = pair.prefilled()
    pair.prefill.process.kill()
    pair.start_prefill()
    return pair.decoded(params)


def decode_stopped(pair: Pair) -> dict[str, Any]:
    """The decode engine stands still while it reads, longer than its lease, and continues."""
    params = pair.prefilled()
    pair.begin_decoding(params)
    time.sleep(0.02)
    pair.decode.process.send_signal(signal.SIGSTOP)
    time.sleep(LEASE + 1)
    pair.decode.process.send_signal(signal.SIGCONT)
    return dict(pair.decode.hear())


def decode_killed(pair: Pair) -> dict[str, Any]:
    """The decode engine is killed while it answers; another gets the requests again."""
    params = pair.prefilled()
    pair.begin_decoding(params)
    time.sleep(0.3)
    pair.decode.process.kill()
    pair.start_decode()
    return pair.decoded(params)


Run: TypeAlias = tuple[Callable[[Pair], dict[str, Any]], bool | None]
RUNS: list[Run] = [
    (no_fault, True),
    (no_offer, False),
    (prefill_stopped, False),
    (no_fault, True),
    (prefill_killed_as_it_is_read, None),
    (no_fault, True),
    (old_offers, False),
    (decode_stopped, None),
    (no_fault, True),
    (decode_killed, None),
    (no_fault, True),
]
"""What happens, and whether all full blocks come, or none; None for as many as chance has it."""
BY_NIXL = [RUNS[0], RUNS[4], RUNS[0], RUNS[2], RUNS[0]]
"""Where another carrier brings the bytes."""


def at_rest(pair: Pair) -> list[str]:
    """What is wrong with engines that rest."""
    wrong = []
    for called, engine in (("prefill", pair.prefill), ("decode", pair.decode)):
        until = time.monotonic() + 30
        while (left := left_behind(engine)) and time.monotonic() < until:
            time.sleep(0.1)
        if left:
            wrong.append(f"the {called} engine has left behind {left}")
    return wrong


def left_behind(engine: Peer) -> dict[str, Any]:
    """What an engine has that is to be gone when nothing runs."""
    handed, rest = engine.ask("handed"), engine.ask("rest")
    below = rest.pop("below")
    found = {**rest, **below, "offered": handed["held"], "open": handed.get("handover_open", 0)}
    found["audit"] = None if found["audit"] == "None" else found["audit"]
    return {name: count for name, count in found.items() if count and name != "hits"}


def judge(pair: Pair, said: dict[str, Any], wanted: Any, comes: bool | None) -> list[str]:
    """What is wrong with a run."""
    wrong = at_rest(pair)
    if said["tokens"] != wanted:
        wrong.append("other tokens")
    least = MOST_COMPUTED if comes is False else LEAST
    most = LEAST if comes else MOST_COMPUTED
    if not least <= said["computed"] <= most:
        wrong.append(f"{said['computed']} computed, not {least} to {most}")
    sent = pair.prefill.ask("handed")["offers_sent_blocks"]
    if comes and bool(sent) != (pair.carrier == "tcp"):
        wrong.append(f"{sent} blocks were sent over the connection")
    return wrong


def play(carrier: str, runs: list[Run], wanted: Any) -> int:
    """Plays runs one after the other; returns how many are broken."""
    broken, pair = 0, Pair(carrier)
    try:
        for happens, comes in runs:
            said = happens(pair)
            wrong = judge(pair, said, wanted, comes)
            broken += bool(wrong)
            blocks = (MOST_COMPUTED - said["computed"]) / BLOCK
            name = f"{carrier}: {happens.__name__.replace('_', ' ')}"
            print(
                f"{name:32} {blocks:g} of {OFFERED} full blocks taken over, {said['computed']:,} "
                f"tokens computed: {'; '.join(wrong) or 'the same tokens'}",
                flush=True,
            )
    finally:
        pair.close()
    return broken


def main() -> int:
    """Runs all."""
    if len(sys.argv) == 4:
        InRole(transfer(sys.argv[1], int(sys.argv[2]), sys.argv[3]), AMPLE, 1).serve()
    with tempfile.TemporaryDirectory() as folder:
        ample = whole_engine.run("ample", Path(folder))
    if ample is None:
        return 1
    wanted = ample["rounds"][0]["tokens"]
    return int(play("tcp", RUNS, wanted) + play("nixl", BY_NIXL, wanted) > 0)


if __name__ == "__main__":
    sys.exit(main())
