"""Whose KV it is inside SGLang, on the options that SGLang itself has settled and published.

    python sglang_identity.py

It runs in an environment that has SGLang and this project's wheel; `sglang_disk.py` has the rest.
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sglang.srt import runtime_context
from sglang.srt.server_args import ServerArgs

from blockyard.connectors.sglang.identity import identity_of
from blockyard.connectors.sglang.storage import _server

CONFIG = SimpleNamespace(model_name="a name", tp_size=1, pp_rank=0, pp_size=1, dp_rank=0)
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "num_hidden_layers": 2,
    "vocab_size": 128,
    "torch_dtype": "bfloat16",
}
KV: list[dict[str, Any]] = [
    {"json_model_override_args": '{"rope_theta": 5000.0}'},
    {"dtype": "float16"},
    {"kv_cache_dtype": "fp8_e5m2"},
    {"context_length": 1024},
    {"load_format": "safetensors"},
    {"trust_remote_code": True},
    {"page_size": 4},
]
FREE: list[dict[str, Any]] = [
    {"served_model_name": "another name"},
    {"random_seed": 7},
    {"max_running_requests": 3},
    {"schedule_policy": "lpm"},
    {"log_level": "error"},
    {"port": 31_000},
]


def model(folder: Path, weights: bytes, **more: Any) -> Path:
    """Writes a model whose files are of the time 0."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(MODEL | more))
    (folder / "model.safetensors").write_bytes(weights)
    for file in folder.iterdir():
        os.utime(file, (0, 0))
    return folder


def identity(folder: Path, **options: Any) -> str:
    """What the folder on a disk is called by."""
    given = {"random_seed": 1, "disable_cuda_graph": True} | options
    args = ServerArgs(model_path=str(folder), device="cpu", **given)
    runtime_context.publish(args, role="scheduler")
    server = _server()
    assert len(server) > 300, "SGLang's options are not to be seen"
    return json.dumps(identity_of(CONFIG, server, {}, "0.5.23"), sort_keys=True)


def main() -> int:
    """Compares them."""
    broken = 0
    root = Path(tempfile.mkdtemp(prefix="blockyard-sglang-"))
    try:
        plain = identity(model(root / "a", b"one"))
        said = [(str(change), identity(root / "a", **change) != plain, True) for change in KV]
        said += [(str(change), identity(root / "a", **change) != plain, False) for change in FREE]
        elsewhere = identity(model(root / "else" / "where", b"one"))
        said.append(("the same weights in another folder", elsewhere != plain, False))
        other = identity(model(root / "a", b"two"))
        said.append(("other weights of one path, size and time", other != plain, True))
        other = identity(model(root / "a", b"one", rope_theta=5e3))
        said.append(("another base of the rotary embedding", other != plain, True))
    finally:
        shutil.rmtree(root)
    for name, differs, wanted in said:
        if differs != wanted:
            broken += 1
            print(f"BROKEN  {name}: {'another identity' if differs else 'the same identity'}")
    print(f"{'BROKEN' if broken else 'ok':8}{len(said)} changes of SGLang's options and weights")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
