"""The whole of vLLM with a tiny Llama on a CPU: squeezed, it answers as with ample memory.

    python whole_engine.py             all runs, each in a process of its own
    python whole_engine.py RUN OUT     one of them; its result goes to the file OUT

It runs in the environment that `setup_cpu.py` makes. Every run answers six requests twice: the
second time after a reset of vLLM's prefix cache, so that what is not computed came from the host.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HIDDEN, LAYERS, HEADS, HEAD, VOCABULARY, INNER = 128, 2, 2, 64, 512, 256
LENGTHS, MOST, BLOCK = (60, 67, 74, 81, 88, 95), 120, 32
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
}
RUNS: dict[str, dict[str, Any]] = {
    "ample": {"blocks": 60},
    "alone": {"blocks": 20},
    "parked": {"blocks": 20, "host": 64},
    "parked, asynchronous": {"blocks": 20, "host": 64, "async_scheduling": True},
    "parked, two workers": {"blocks": 20, "host": 64, "tensor_parallel_size": 2},
    "parked, told": {"blocks": 20, "host": 64, "told": True},
    "parked, n-grams": {"blocks": 20, "host": 64, "speculative_config": NGRAM},
    "ample, from the host": {"blocks": 60, "host": 64},
    "parked, over a store": {"blocks": 20, "host": 64, "store": "store"},
    "another over that store": {"blocks": 60, "host": 64, "store": "store"},
}


def write_model(folder: Path) -> None:
    """Writes a Llama whose weights are random, the same for everyone."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    source = torch.Generator().manual_seed(7)

    def weight(*shape: int, scale: float = 1.0) -> Any:
        return torch.randn(*shape, generator=source) * scale / shape[-1] ** 0.5

    tensors = {
        "model.embed_tokens.weight": torch.randn(VOCABULARY, HIDDEN, generator=source),
        "model.norm.weight": torch.ones(HIDDEN),
        # Logits that lie apart: another order of sums must not choose another token.
        "lm_head.weight": weight(VOCABULARY, HIDDEN, scale=4),
    }
    for layer in range(LAYERS):
        names = {
            "self_attn.q_proj": (HEADS * HEAD, HIDDEN),
            "self_attn.k_proj": (HEADS * HEAD, HIDDEN),
            "self_attn.v_proj": (HEADS * HEAD, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
            "mlp.gate_proj": (INNER, HIDDEN),
            "mlp.up_proj": (INNER, HIDDEN),
            "mlp.down_proj": (HIDDEN, INNER),
        }
        for name, shape in names.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = weight(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = torch.ones(HIDDEN)
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})


class Subscriber:
    """Hears vLLM's own publisher, and knows which blocks are on which medium."""

    def __init__(self, endpoint: str) -> None:
        import zmq

        self.socket: Any = zmq.Context.instance().socket(zmq.SUB)
        self.socket.subscribe(b"")
        self.socket.connect(endpoint)
        self.media: dict[str, set[int]] = {}
        #: What was ever stored there.
        self.ever: dict[str, set[int]] = {}
        #: Events without all of their tokens.
        self.unknown = 0

    def hear(self) -> None:
        """Takes what comes until nothing does for a second."""
        import msgspec
        from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVEventBatch

        while self.socket.poll(1000):
            *_, payload = self.socket.recv_multipart()
            for event in msgspec.msgpack.decode(payload, type=KVEventBatch).events:
                if isinstance(event, BlockStored):
                    here = self.media.setdefault(str(event.medium), set())
                    here.update(event.block_hashes)
                    self.ever.setdefault(str(event.medium), set()).update(event.block_hashes)
                    whole = len(event.token_ids) == len(event.block_hashes) * event.block_size
                    self.unknown += not whole
                elif isinstance(event, BlockRemoved):
                    self.media.setdefault(str(event.medium), set()).difference_update(
                        event.block_hashes
                    )
                else:
                    self.media.clear()


def answer(
    blocks: int,
    host: int | None = None,
    *,
    told: bool = False,
    store: Path | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Answers the requests twice in one engine; returns answers and what it computed."""
    import numpy as np
    from vllm import LLM, SamplingParams
    from vllm.config import KVEventsConfig, KVTransferConfig

    endpoint = f"ipc://{tempfile.mkdtemp()}/events"
    if told:
        more["kv_events_config"] = KVEventsConfig(
            enable_kv_cache_events=True, publisher="zmq", endpoint=endpoint
        )
    folder = Path(tempfile.gettempdir()) / "blockyard-llama"
    write_model(folder)
    if host is not None:
        extra: dict[str, Any] = {"host": host}
        if store is not None:
            extra |= {"remote": store.as_uri(), "namespace": {"weights": "random"}}
            extra |= {"write": {"device": "through", "host": "through"}}
        more["kv_transfer_config"] = KVTransferConfig(
            kv_connector="Blockyard",
            kv_role="kv_both",
            kv_connector_extra_config=extra,
        )
    engine = LLM(
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
        **more,
    )
    scheduler = engine.llm_engine.engine_core.engine_core.scheduler
    subscriber = Subscriber(endpoint) if told else None
    seen = {"computed": 0, "preempted": 0}
    inner = scheduler.schedule

    def schedule(*what: Any, **named: Any) -> Any:
        output = inner(*what, **named)
        seen["computed"] += output.total_num_scheduled_tokens
        seen["preempted"] += len(output.preempted_req_ids or ())
        return output

    scheduler.schedule = schedule
    draw = np.random.default_rng(3)
    prompts = [draw.integers(3, VOCABULARY, size=length).tolist() for length in LENGTHS]
    params = SamplingParams(max_tokens=MOST, temperature=0, ignore_eos=True, detokenize=False)
    rounds = []
    for _ in range(2):
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        said = engine.generate(asked, params, use_tqdm=False)
        rounds.append({**seen, "tokens": [list(one.outputs[0].token_ids) for one in said]})
        seen.update(computed=0, preempted=0)
        for _ in range(20):
            engine.llm_engine.step()
        if subscriber is not None:
            subscriber.hear()
            cache = scheduler.connector.front.cache
            rounds[-1]["told"] = {
                "host": len(subscriber.media.get("CPU", ())),
                "there": cache.stats()["host_idle"],
                "of vLLM's": len(subscriber.ever["CPU"] & subscriber.ever["GPU"]),
                "ever": len(subscriber.ever["CPU"]),
                "unknown": subscriber.unknown,
                "audit": str(cache.audit()),
            }
        scheduler.reset_prefix_cache()
    stats = None if host is None else scheduler.connector.front.cache.stats()
    return {"rounds": rounds, "stats": stats}


def run(name: str, folder: Path) -> dict[str, Any] | None:
    """Runs one in a process of its own; None where vLLM does not run it here."""
    out = folder / f"{name}.json"
    given = {
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1" if "two" in name else "2",
    }
    ran = subprocess.run(
        [sys.executable, __file__, name, str(out)],
        env=os.environ | given,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    if ran.returncode != 0:
        said = [line for line in ran.stderr.splitlines() if line.strip()]
        print(f"{name}: does not run here: {said[-1] if said else ran.returncode}")
        return None
    return dict(json.loads(out.read_text()))


def judge(name: str, result: dict[str, Any], ample: dict[str, Any]) -> list[str]:
    """What is wrong with a run."""
    wrong = []
    needed = ample["rounds"][0]["computed"]
    first, second = result["rounds"]
    for number, one in enumerate((first, second)):
        if one["tokens"] != ample["rounds"][0]["tokens"]:
            wrong.append(f"other tokens in round {number + 1}")
    parked = name.startswith("parked")
    if parked and not first["preempted"]:
        wrong.append("nothing was preempted: this shows nothing")
    # Drafts are computed, and rejected, on top.
    if parked and "n-grams" not in name and first["computed"] > needed:
        wrong.append(f"{first['computed'] - needed} tokens are computed again")
    for number, told in enumerate(one["told"] for one in result["rounds"] if "told" in one):
        # vLLM has reset its own cache between the rounds, and told that all is gone.
        if told["host"] != told["there"] or told["of vLLM's"] != told["ever"] or told["unknown"]:
            wrong.append(f"a router was told otherwise in round {number + 1}: {told}")
        if told["audit"] != "None":
            wrong.append(f"the audit: {told['audit']}")
    loads = first["computed"] if name.startswith("another") else second["computed"]
    if "host" in RUNS[name] and loads >= max(needed, first["computed"]):
        wrong.append("nothing came from the host or the store")
    return wrong


def main() -> int:
    """Runs all, and compares."""
    if len(sys.argv) == 3:
        out, given = Path(sys.argv[2]), dict(RUNS[sys.argv[1]])
        if "store" in given:
            given["store"] = out.parent / given["store"]
        out.write_text(json.dumps(answer(**given)))
        return 0
    broken = 0
    with tempfile.TemporaryDirectory() as folder:
        ample = run("ample", Path(folder))
        if ample is None:
            return 1
        for name in RUNS:
            result = ample if name == "ample" else run(name, Path(folder))
            if result is None:
                broken += name in {"alone", "parked"}
                continue
            wrong = judge(name, result, ample)
            broken += bool(wrong)
            rounds = result["rounds"]
            print(
                f"{name:24} computed {rounds[0]['computed']:5,} and {rounds[1]['computed']:5,}, "
                f"preempted {rounds[0]['preempted']}: {'; '.join(wrong) or 'the same tokens'}"
            )
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
