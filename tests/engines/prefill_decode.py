"""Two whole vLLM engines on a CPU, one that prefills and one that decodes, Blockyard in both.

    python prefill_decode.py             all runs
    python prefill_decode.py ROLE BLOCKS WORKERS    an engine, which is told what to do on stdin

NIXL carries the KV from the first to the second, on the loopback interface or through shared
memory, inside vLLM's MultiConnector with Blockyard behind it. A router passes what the prefiller
says to the decoder, as a proxy does. The tokens are those of one engine with ample memory.

It runs in the environment that `setup_cpu.py` makes.
"""

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import whole_engine
from whole_engine import BLOCK, LENGTHS, MOST, VOCABULARY

AMPLE, SQUEEZED, HOST = 60, 20, 64
FROM_PREFILLER = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What a proxy asks of a prefiller."""


def transfer(role: str) -> dict[str, Any]:
    """What an operator writes in `--kv-transfer-config`, as docs/vllm.md has it."""
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "connectors": [
                {"kv_connector": "NixlConnector", "kv_role": role, "kv_buffer_device": "cpu"},
                {
                    "kv_connector": "Blockyard",
                    "kv_role": "kv_both",
                    "kv_connector_extra_config": {"host": HOST},
                },
            ]
        },
    }


def prompts() -> list[list[int]]:
    """Those of `whole_engine.py`."""
    import numpy as np

    draw = np.random.default_rng(3)
    return [draw.integers(3, VOCABULARY, size=length).tolist() for length in LENGTHS]


def sampling(most: int, params: dict[str, Any] | None) -> Any:
    """How a request is answered, with its `kv_transfer_params`."""
    from vllm import SamplingParams

    return SamplingParams(
        max_tokens=most,
        temperature=0,
        ignore_eos=True,
        detokenize=False,
        extra_args=None if params is None else {"kv_transfer_params": params},
    )


class Serving:
    """An engine, and what the router asks of it."""

    def __init__(self, transferring: dict[str, Any], blocks: int, workers: int) -> None:
        from vllm import LLM
        from vllm.config import KVTransferConfig

        folder = Path(tempfile.gettempdir()) / "blockyard-llama"
        whole_engine.write_model(folder)
        self.llm = LLM(
            model=str(folder),
            skip_tokenizer_init=True,
            dtype="float32",
            block_size=BLOCK,
            num_gpu_blocks_override=blocks,
            max_model_len=512,
            max_num_seqs=8,
            enforce_eager=True,
            disable_hybrid_kv_cache_manager=True,
            seed=0,
            tensor_parallel_size=workers,
            kv_transfer_config=KVTransferConfig(**transferring),
        )
        self.scheduler: Any = self.llm.llm_engine.engine_core.engine_core.scheduler
        self.seen = {"computed": 0, "preempted": 0}
        inner = self.scheduler.schedule

        def schedule(*what: Any, **named: Any) -> Any:
            output = inner(*what, **named)
            self.seen["computed"] += output.total_num_scheduled_tokens
            self.seen["preempted"] += len(output.preempted_req_ids or ())
            return output

        self.scheduler.schedule = schedule

    def generate(
        self, asked: list[list[int]], most: int, params: list[Any], salt: str | None = None
    ) -> dict[str, Any]:
        """Answers requests beside each other; with another salt nothing of them is found."""
        more = {} if salt is None else {"cache_salt": salt}
        self.seen.update(computed=0, preempted=0)
        said = self.llm.generate(
            [{"prompt_token_ids": prompt, **more} for prompt in asked],
            [sampling(most, one) for one in params],
            use_tqdm=False,
        )
        for _ in range(20):
            self.llm.llm_engine.step()
        return {
            **self.seen,
            "tokens": [list(one.outputs[0].token_ids) for one in said],
            "params": [one.kv_transfer_params for one in said],
        }

    def abort(self, asked: list[list[int]], params: list[Any], steps: int) -> dict[str, Any]:
        """Aborts requests after some steps, whatever they do then."""
        engine = self.llm.llm_engine
        names = [f"aborted {steps} {at}" for at in range(len(asked))]
        for name, prompt, one in zip(names, asked, params, strict=True):
            engine.add_request(name, {"prompt_token_ids": prompt}, sampling(MOST, one))
        for _ in range(steps):
            engine.step()
        engine.abort_request(names)
        for _ in range(200):
            engine.step()
            time.sleep(5e-3)
        return self.rest()

    def reset(self) -> dict[str, Any]:
        """Resets vLLM's own cache, so that what is not computed comes from elsewhere."""
        return {"reset": self.scheduler.reset_prefix_cache()}

    def rest(self) -> dict[str, Any]:
        """What is left when nothing runs."""
        pool = self.scheduler.kv_cache_manager.block_pool
        connector = self.scheduler.connector
        # Alone, or inside vLLM's.
        cache = getattr(connector, "sub_connectors", [connector])[-1].front.cache
        stats = cache.stats()
        return {
            "left": len(self.scheduler.requests),
            "held": pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(),
            "below": {name: stats[name] for name in ("parked", "flights", "host_pinned")},
            "hits": stats["host_hits"],
            "audit": str(cache.audit()),
        }

    def serve(self) -> None:
        """Does what is asked, a line each, and steps meanwhile: a peer may read."""
        answers = os.fdopen(int(os.environ["ANSWERS"]), "w")
        print(json.dumps("up"), file=answers, flush=True)
        while True:
            ready, _, _ = select.select([sys.stdin], [], [], 0.01)
            if not ready:
                self.llm.llm_engine.step()
                continue
            line = sys.stdin.readline()
            if not line:
                break
            verb, *what = json.loads(line)
            print(json.dumps(getattr(self, verb)(*what)), file=answers, flush=True)
        # NIXL's threads may hold up an ordinary end.
        os._exit(0)


class Peer:
    """An engine in a process of its own.

    Args:
        what: What the script is given.
        script: What makes it.
    """

    def __init__(self, *what: object, script: str = __file__) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        given = {
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port),
            "UCX_TLS": "tcp,sm,self",
            "UCX_NET_DEVICES": "lo",
        }
        reads, writes = os.pipe()
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", script, *map(str, what)],
            env=os.environ | given | {"ANSWERS": str(writes)},
            stdin=subprocess.PIPE,
            stdout=self.said,
            stderr=self.said,
            text=True,
            pass_fds=[writes],
        )
        os.close(writes)
        self.answers = os.fdopen(reads)

    def hear(self, seconds: float = 300) -> Any:
        """Returns the next answer."""
        ready, _, _ = select.select([self.answers], [], [], seconds)
        line = self.answers.readline() if ready else ""
        if not line:
            self.said.seek(0)
            raise RuntimeError("".join(self.said.readlines()[-30:]) or "it says nothing")
        return json.loads(line)

    def tell(self, verb: str, *what: Any) -> None:
        """Has it do something; `hear` has the answer."""
        assert self.process.stdin is not None
        print(json.dumps([verb, *what]), file=self.process.stdin, flush=True)

    def ask(self, verb: str, *what: Any) -> Any:
        """Has it do something, and returns its answer."""
        self.tell(verb, *what)
        return self.hear()

    def close(self) -> None:
        """Ends it."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def turn(prefill: Peer, decode: Peer) -> tuple[dict[str, Any], dict[str, Any]]:
    """Answers all prompts, each prefilled by one and decoded by the other."""
    asked = prompts()
    first = prefill.ask("generate", asked, 1, [dict(FROM_PREFILLER) for _ in asked])
    return first, decode.ask("generate", asked, MOST, first["params"])


def answers(prefill: Peer, decode: Peer) -> list[dict[str, Any]]:
    """Has the prompts prefilled and decoded, twice, and then decoded alone; and aborts some.

    Between them vLLM's own caches are reset: what is not computed comes from elsewhere.

    Returns:
        Of each round what the prefiller said, and the decoder.
    """
    said = [*turn(prefill, decode)]
    prefill.ask("reset")
    decode.ask("reset")
    said += turn(prefill, decode)
    decode.ask("reset")
    said.append(decode.ask("generate", prompts(), MOST, [None for _ in LENGTHS]))
    for steps in (0, 1, 2, 5):
        decode.ask("reset")
        first = prefill.ask("generate", prompts(), 1, [dict(FROM_PREFILLER) for _ in LENGTHS])
        decode.ask("abort", prompts(), first["params"], steps)
    return said


def judge(said: list[dict[str, Any]], wanted: list[list[int]], *, squeezed: bool) -> list[str]:
    """What is wrong with the answers."""
    first, decoded, again, decoded_again, alone = said
    prompted, answered = sum(LENGTHS), len(LENGTHS) * MOST
    rules = {
        "other tokens": [one["tokens"] for one in (decoded, decoded_again, alone)] != [wanted] * 3,
        f"{decoded['computed'] - answered} tokens computed again": decoded["computed"] != answered,
        "nothing was preempted": squeezed and not decoded["preempted"],
        "nothing came from the prefiller's host": again["computed"] >= first["computed"],
        "nothing came from the decoder's host": alone["computed"] >= prompted + answered - 6,
    }
    return [rule for rule, broken in rules.items() if broken]


def left(peer: Peer, called: str) -> list[str]:
    """What is wrong with an engine that rests."""
    rest = peer.ask("rest")
    held = rest["left"] or rest["held"] or any(rest["below"].values()) or rest["audit"] != "None"
    return [f"the {called} has left behind {rest}"] if held else []


def check(name: str, blocks: int, workers: int, wanted: list[list[int]]) -> bool:
    """Runs two engines; returns whether something is wrong."""
    prefill, decode = Peer("kv_producer", AMPLE, workers), Peer("kv_consumer", blocks, workers)
    try:
        prefill.hear()
        decode.hear()
        said = answers(prefill, decode)
        wrong = judge(said, wanted, squeezed=blocks == SQUEEZED)
        wrong += left(prefill, "prefiller") + left(decode, "decoder")
    finally:
        prefill.close()
        decode.close()
    first, decoded, again, decoded_again, alone = (one["computed"] for one in said)
    print(
        f"{name:24} prefiller computed {first:,} and {again:,} of {sum(LENGTHS):,}, decoder "
        f"{decoded:,}, {decoded_again:,} and {alone:,}, preempted {said[1]['preempted']}: "
        f"{'; '.join(wrong) or 'the same tokens'}"
    )
    return bool(wrong)


def main() -> int:
    """Runs all."""
    if len(sys.argv) == 4:
        Serving(transfer(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])).serve()
    with tempfile.TemporaryDirectory() as folder:
        ample = whole_engine.run("ample", Path(folder))
    if ample is None:
        return 1
    wanted = ample["rounds"][0]["tokens"]
    runs = {
        "ample memory": (AMPLE, 1),
        "in a squeeze": (SQUEEZED, 1),
        "two workers each": (SQUEEZED, 2),
    }
    return int(sum(check(name, *run, wanted) for name, run in runs.items()) > 0)


if __name__ == "__main__":
    sys.exit(main())
