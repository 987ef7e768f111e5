"""Whose KV it is, on vLLM's own configurations: 200 random pairs of options, and 12 that answer.

    python identity_pairs.py                   the pairs; where vLLM runs here, answers as well
    python identity_pairs.py RUN OPTIONS OUT   one engine; its result goes to the file OUT

Options that change KV must change the identity, and others must not. Of the pairs with one identity
12 are run one after the other over one disk: the second finds the blocks of the first, and answers
alike. It needs the kernels of `setup_cpu.py` to run them.
"""

import copy
import dataclasses
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from whole_engine import write_model

PAIRS, RUNS, SEED = 200, 12, 39
ENVIRONMENT = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "CRITICAL",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "2",
    "PYTHONHASHSEED": "0",
}
os.environ.update(ENVIRONMENT)


BASE = dict.fromkeys(
    ("skip_tokenizer_init", "enforce_eager", "disable_hybrid_kv_cache_manager"), True
)
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 2.0,
    "original_max_position_embeddings": 1024,
}


def rope(base: float) -> dict[str, Any]:
    """Another base of the rotary embedding."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": base}}


#: What KV depends on: the first of each is what is there without the option.
KV: dict[str, list[Any]] = {
    "weights": ["a", "b"],
    "hf_overrides": [None, rope(5e3), rope(2e4), {"rope_parameters": YARN}, {"rms_norm_eps": 1e-4}],
    "hf_config_path": [None, "config"],
    "dtype": ["float32", "bfloat16"],
    "max_model_len": [512, 480],
    "block_size": [32, 64],
    "load_format": ["auto", "safetensors"],
    "prefix_caching_hash_algo": ["sha256", "sha256_cbor"],
    "trust_remote_code": [False, True],
    "tensor_parallel_size": [1, 2],
}
#: What it does not depend on.
FREE: dict[str, list[Any]] = {
    "folder": ["one", "another/place"],
    "served_model_name": [None, "a name", "another name"],
    "seed": [0, 1],
    "max_num_seqs": [8, 4, 2],
    "max_num_batched_tokens": [2048, 512],
    "long_prefill_token_threshold": [0, 64],
    "async_scheduling": [False, True],
    "scheduling_policy": ["fcfs", "priority"],
    "num_gpu_blocks_override": [40, 64],
    "gpu_memory_utilization": [0.5, 0.25],
    "max_logprobs": [20, 5],
    "logprobs_mode": ["raw_logprobs", "processed_logits"],
    "generation_config": ["auto", "vllm"],
    "override_generation_config": [{}, {"top_k": 5}],
    "use_tqdm_on_load": [True, False],
    "safetensors_load_strategy": [None, "eager"],
    "disable_custom_all_reduce": [False, True],
    "stream_interval": [1, 4],
    "kv_cache_metrics": [False, True],
}
#: The same of a model that sees pictures, which is not run.
KV_OF_PICTURES: dict[str, list[Any]] = {
    "mm_processor_kwargs": [None, {"max_pixels": 4096}, {"max_pixels": 8192}],
    "media_io_kwargs": [{}, {"video": {"num_frames": 4}}],
    "limit_mm_per_prompt": [{}, {"image": 2}],
    "language_model_only": [False, True],
    "video_pruning_rate": [None, 0.5],
}
FREE_OF_PICTURES: dict[str, list[Any]] = {
    "mm_processor_cache_gb": [4, 1],
    "skip_mm_profiling": [False, True],
    "mm_encoder_tp_mode": ["weights", "data"],
    "allowed_local_media_path": ["", "/media"],
}
PICTURES = {
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "model_type": "qwen2_vl",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "num_hidden_layers": 2,
    "vocab_size": 152_000,
    "max_position_embeddings": 2048,
    "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]},
    "vision_config": {"depth": 1, "embed_dim": 64, "hidden_size": 64, "num_heads": 1},
}
OF_TEXT = ("hf_overrides", "hf_config_path", "tensor_parallel_size")
#: These need more than one process.
NOT_RUN = {"tensor_parallel_size": 2}


class Pair(NamedTuple):
    """Two choices of options, and whether KV is the same with both."""

    first: dict[str, Any]
    second: dict[str, Any]
    alike: bool


def drawn(pick: random.Random, options: dict[str, list[Any]]) -> dict[str, Any]:
    """A choice of options."""
    return {
        name: values[0] if pick.random() < 0.6 else pick.choice(values)
        for name, values in options.items()
    }


def pairs() -> list[Pair]:
    """Pairs that differ in one to four options."""
    pick, found = random.Random(SEED), []
    pictures = {name: values for name, values in KV.items() if name not in OF_TEXT}
    while len(found) < PAIRS:
        # Every fourth is of pictures.
        seen = len(found) % 4 == 3
        kv = pictures | KV_OF_PICTURES if seen else KV
        free = FREE | FREE_OF_PICTURES if seen else FREE
        first = drawn(pick, kv | free)
        second = copy.deepcopy(first)
        among = list(free) if pick.random() < 0.5 else [*kv, *free]
        for name in pick.sample(among, pick.randint(1, 4)):
            others = [one for one in (kv | free)[name] if one != first[name]]
            second[name] = pick.choice(others)
        found.append(Pair(first, second, all(first[name] == second[name] for name in kv)))
    return found


def write_models(root: Path) -> None:
    """Two models of one shape, twice each, all of the same time; and a configuration of its own."""
    import numpy as np
    import torch
    from safetensors.torch import load_file, save_file

    write_model(root / "one" / "a")
    shutil.copytree(root / "one" / "a", root / "one" / "b")
    weights = load_file(root / "one" / "a" / "model.safetensors")
    draw = torch.Generator().manual_seed(8)
    for name, tensor in weights.items():
        if tensor.dim() == 2 and "embed" not in name and "lm_head" not in name:
            changed = torch.randn(tensor.shape, generator=draw) / np.sqrt(tensor.shape[-1])
            weights[name] = changed.to(tensor.dtype)
    save_file(weights, str(root / "one" / "b" / "model.safetensors"), metadata={"format": "pt"})
    for name, value in (("pictures a", 1), ("pictures b", 2)):
        folder = root / "one" / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(PICTURES))
        (folder / "preprocessor_config.json").write_text('{"patch_size": 14}')
        save_file({"one": torch.full((8,), value)}, str(folder / "model.safetensors"))
    shutil.copytree(root / "one", root / "another" / "place")
    config = json.loads((root / "one" / "a" / "config.json").read_text())
    (root / "config").mkdir()
    (root / "config" / "config.json").write_text(json.dumps(config | rope(3e4)))
    for file in root.rglob("*"):
        os.utime(file, (0, 0))


def arguments(chosen: dict[str, Any], root: Path) -> dict[str, Any]:
    """What vLLM is started with."""
    given = {name: value for name, value in chosen.items() if value is not None}
    kind = "pictures " if "skip_mm_profiling" in given else ""
    given["model"] = str(root / given.pop("folder") / f"{kind}{given.pop('weights')}")
    if "hf_config_path" in given:
        given["hf_config_path"] = str(root / given["hf_config_path"])
    return BASE | given


def identity(chosen: dict[str, Any], root: Path) -> tuple[Any, ...]:
    """What the folder on a disk is called by."""
    from vllm import __version__
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import EngineArgs

    from blockyard.connectors.vllm.compatibility import facts
    from blockyard.connectors.vllm.settings import Settings
    from simulated_setup import layers

    extra = {"host": 64, "disk": 64, "disk_path": str(root / "kv")}
    config = EngineArgs(**arguments(chosen, root)).create_engine_config()
    config.kv_transfer_config = KVTransferConfig(kv_connector="Blockyard", kv_role="kv_both")
    kv = layers(40)
    (group,) = kv.kv_cache_groups
    size = config.cache_config.block_size
    group.kv_cache_spec = dataclasses.replace(group.kv_cache_spec, block_size=size)
    known = facts(config, kv, version=__version__)
    said = Settings.read(extra, known)[1][0]
    return tuple(sorted(said.identity.items())), known.layout.fingerprint


def answer(chosen: dict[str, Any], root: Path, disk: str | None) -> dict[str, Any]:
    """Answers four prompts in one engine, over a disk."""
    import numpy as np
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    given = arguments(chosen, root)
    if disk is not None:
        extra = {"host": 64, "disk": 96, "disk_path": disk, "offload": "through"}
        given["kv_transfer_config"] = KVTransferConfig(
            kv_connector="Blockyard",
            kv_role="kv_both",
            kv_connector_extra_config=extra,
        )
    engine = LLM(**given)
    draw = np.random.default_rng(3)
    prompts = [draw.integers(3, 512, size=length).tolist() for length in (140, 150, 160, 170)]
    params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True, detokenize=False)
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    said = engine.generate(asked, params, use_tqdm=False)
    found = 0
    if disk is not None:
        inside: Any = engine.llm_engine.engine_core.engine_core
        front = inside.scheduler.connector.front
        found = front.restored
        for _ in range(400):
            engine.llm_engine.step()
            if not front.cache.stats()["flights"]:
                break
        inside.shutdown()
    return {"tokens": [list(one.outputs[0].token_ids) for one in said], "found": found}


def run(chosen: dict[str, Any], root: Path, disk: Path | None) -> dict[str, Any]:
    """Runs one engine in a process of its own."""
    given, out = root / "options.json", root / "out.json"
    given.write_text(json.dumps([chosen, str(root), None if disk is None else str(disk)]))
    out.unlink(missing_ok=True)
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, "RUN", str(given), str(out)],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    if not out.exists():
        said = [line for line in ran.stderr.splitlines() if line.strip()]
        raise RuntimeError(said[-1] if said else f"status {ran.returncode}")
    return dict(json.loads(out.read_text()))


def told_apart(root: Path) -> tuple[int, list[Pair]]:
    """Asks for the identity of all pairs; returns how many are wrong, and those with one."""
    wrong, one = 0, []
    for pair in pairs():
        same = identity(pair.first, root) == identity(pair.second, root)
        if same:
            one.append(pair)
        if same != pair.alike:
            wrong += 1
            differ = {
                name: (pair.first[name], pair.second[name])
                for name in pair.first
                if pair.first[name] != pair.second[name]
            }
            print(f"BROKEN  {'one identity' if same else 'two identities'} with {differ}")
    print(
        f"{'BROKEN' if wrong else 'ok':8}{PAIRS} random pairs of options: {len(one)} with one "
        f"identity, {PAIRS - len(one)} with two, {wrong} otherwise than KV"
    )
    return wrong, one


def answered(one: list[Pair], root: Path) -> int:
    """Runs pairs with one identity; returns how many are wrong."""
    # Those of the model with pictures have no tensor parallelism, and no whole model.
    can = [
        pair
        for pair in one
        if all(pair.first.get(name, value) != value for name, value in NOT_RUN.items())
    ]
    wrong, blocks = 0, 0
    for pair in can[:RUNS]:
        disk = root / "disk"
        shutil.rmtree(disk, ignore_errors=True)
        before, now = (run(chosen, root, disk) for chosen in (pair.first, pair.second))
        blocks += now["found"]
        if now["tokens"] != before["tokens"] or not now["found"]:
            wrong += 1
            print(f"BROKEN  {now['found']} blocks found, other answers: {pair}")
    wrong += len(can) < RUNS
    print(
        f"{'BROKEN' if wrong else 'ok':8}{RUNS} of the pairs with one identity: {blocks} blocks "
        f"found by the second engine, {wrong} with other answers"
    )
    return wrong


def defects(root: Path) -> int:
    """What was served wrong once: returns how much of it is."""
    plain = {name: values[0] for name, values in (KV | FREE).items()}
    wrong = 0
    for name, change, alike in (
        ("another rope base by --hf-overrides", {"hf_overrides": rope(5e3)}, False),
        ("the same weights in another folder", {"folder": "another/place"}, True),
        ("other weights of one shape, at one path and of one time", None, False),
    ):
        disk = root / "disk"
        shutil.rmtree(disk, ignore_errors=True)
        run(plain, root, disk)
        if change is None:
            for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
                (root / "one" / old).rename(root / "one" / new)
        now, alone = (run(plain | (change or {}), root, one) for one in (disk, None))
        good = now["tokens"] == alone["tokens"] and bool(now["found"]) == alike
        wrong += not good
        equal = sum(a == b for a, b in zip(now["tokens"], alone["tokens"], strict=True))
        print(
            f"{'ok' if good else 'BROKEN':8}{name}: {now['found']} blocks found, {equal} of "
            f"{len(alone['tokens'])} answers as without a disk"
        )
    return wrong


def main() -> int:
    """Runs all, or one engine."""
    if len(sys.argv) == 4:
        chosen, root, disk = json.loads(Path(sys.argv[2]).read_text())
        Path(sys.argv[3]).write_text(json.dumps(answer(chosen, Path(root), disk)))
        return 0
    with tempfile.TemporaryDirectory(prefix="blockyard-identity-") as folder:
        root = Path(folder)
        write_models(root)
        wrong, one = told_apart(root)
        if "--alone" not in sys.argv:
            wrong += answered(one, root)
            # It exchanges weights in place.
            wrong += defects(root)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
