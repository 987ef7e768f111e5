"""Command lines that vLLM itself refuses, as operators write them.

`tests/engines/flags.py` asks vLLM, and `test_doctor_vllm.py` the doctor, which has no vLLM.
"""

import json
from typing import Final

__all__ = ["GOOD", "LLAMA", "TAKEN", "WRONG_FLAGS"]

LLAMA: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
"""The configuration of the model M."""
_SAID: Final = json.dumps(
    {
        "kv_connector": "Blockyard",
        "kv_connector_module_path": "blockyard.connectors.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"host": "64 GiB", "preempt": "recompute"},
    }
)
GOOD: Final = f"vllm serve M --kv-transfer-config '{_SAID}'"
WRONG_FLAGS: Final[dict[str, tuple[str, str]]] = {
    # What is behind a sound command line, or stands in its place: what to write, or a part of it.
    "-tp 0": ("'0' is less", "write --tensor-parallel-size 1"),
    "-tp -2": ("'-2' is less", "write --tensor-parallel-size 1"),
    "-tp 2.0": ("'2.0' is no number", "write --tensor-parallel-size"),
    "--tensor-parallel-size=4k": ("'4k' is no number", "write --tensor-parallel-size"),
    "-tp 3": ("32 heads are not divided by 3", "write --tensor-parallel-size 2"),
    "-tp2": ("-tp2", "write -tp 2"),
    "--tp 2": ("no such flag", "write -tp"),
    "-pp 0": ("'0' is less", "write --pipeline-parallel-size 1"),
    "-dp 0": ("'0' is less", "write --data-parallel-size 1"),
    "-dp 2 -dpl 4": ("4 is more than", "write --data-parallel-size 4"),
    "-dpl 2": ("2 is more than", "write --data-parallel-size 2"),
    "--data-parallel-rank 1": ("1 of 1 replicas", "leave --data-parallel-rank out"),
    "-dp 4 -dpl 2 --data-parallel-start-rank 4": ("4 of 4", "--data-parallel-start-rank out"),
    "--data-parallel-external-lb": ("one replica", "leave --data-parallel-external-lb out"),
    "-dp 2 --data-parallel-external-lb": ("without experts", "start each by itself"),
    "-dp 4 --data-parallel-hybrid-lb": ("alone", "add --data-parallel-size-local"),
    "-dp 2 --data-parallel-backend mpi": ("'mpi'", "write --data-parallel-backend mp"),
    "--data-parallel-address": ("no value", "give one, as --data-parallel-address"),
    "--block-size 0": ("'0' is less", "write --block-size 16"),
    "--block-size sixteen": ("'sixteen' is no number", "write --block-size 16"),
    "--dtype fp16": ("'fp16' is none", "write --dtype float16"),
    "--max-model-len 0": ("'0' is less", "write --max-model-len"),
    "--max-model-len 200000": ("more than the 131072", "write --max-model-len 131072"),
    "--max-model-len 1.5K": ("'1.5K' is no number", "write --max-model-len"),
    "--max-num-seqs 0": ("'0' is less", "write --max-num-seqs 1"),
    "--gpu-memory-utilization 1.5": ("'1.5' is more", "write --gpu-memory-utilization 1"),
    "--gpu-memory-utilization 90%": ("'90%' is no number", "write --gpu-memory-utilization 1"),
    "--shutdown-timeout 1.5": ("'1.5' is no number", "write --shutdown-timeout"),
    "--shutdown-timeout -1": ("'-1' is less", "write --shutdown-timeout 1"),
    "--device cuda": ("2 flags begin so", "write the whole name"),
    "--max-loops 2": ("no such flag", "leave it out"),
    "--host-blocks 100": ("no such flag", '"host"'),
    "--disk-path /kv": ("no such flag", 'as "disk_path": "/kv"'),
    "--enable-prefix-caching true": ("nothing takes 'true'", "a switch takes no value"),
    "--enable-prefix-caching=true": ("it takes no value", "leave out the `=`"),
    "--prefix-caching-hash-algo md5": ("'md5' is none", "sha256"),
    "--served-model-name": ("no value", "give one"),
    "--enable": ("flags begin so", "write the whole name"),
    "--hf-overrides {bad": ("no JSON", "single quotes"),
    "--attention-config '{\"x\": 1}'": ("has 'x'", "without 'x'"),
    "--compilation-config 3": ("no mapping", "write --compilation-config"),
    "-O9": ("'9' is none", "write --optimization-level"),
    "--kv-events-config '{\"topics\": 1}'": ("has 'topics'", 'with "topic"'),
    "--kv-transfer-config.kv_connector_extra_config.host '2 GiB'": (
        "it is missing",
        'write "kv_connector": "Blockyard"',
    ),
    "--config": ("no value", "give one, as --config"),
    "--config none.yaml": ("none.yaml is no mapping", "give the path of a YAML file"),
    "--config good.conf": ("another ending", "give the path of a YAML file"),
    "--config typo.yaml": ("--tensor-paralel-size", "write --tensor-parallel-size"),
    "--config good.yaml --config good.yaml": ("more than one file", "write them into one"),
    "vllm serve --config good.yaml": ("no model", "write vllm serve MODEL --config"),
    "vllm serve M extra": ("nothing takes 'extra'", "quotes"),
    f"""vllm serve M --kv-transfer-config '{_SAID[:-1]},}}'""": (
        "no JSON",
        f"write --kv-transfer-config '{_SAID}'",
    ),
    f"""vllm serve M --kv-transfer-config "{_SAID}" """: (
        "no JSON",
        f"write --kv-transfer-config '{_SAID}'",
    ),
    f"""vllm serve M --kv-transfer-config "{_SAID.replace('"', "'")}" """: (
        "no JSON",
        f"write --kv-transfer-config '{_SAID}'",
    ),
    f"vllm serve M --kv-transfer-config '{_SAID[:-1]}'": ("no JSON", "single quotes"),
    "vllm serve M --kv-transfer-config kv.json": ("no JSON", "single quotes"),
    "vllm serve M --kv-transfer-config '\"Blockyard\"'": ("no mapping", '{"kv_connector"'),
    "vllm serve M --kv-transfer-config.host '1 GiB'": ("no field 'host'", "extra_config"),
    GOOD.replace('"kv_both"', '"both"'): ("kv_role = 'both'", '"kv_role": "kv_both"'),
    GOOD.replace('"kv_both"', '"kv_both", "kv_port": "x"'): ("kv_port = 'x'", "leave it out"),
    GOOD.replace('"Blockyard"', "5"): ("kv_connector = 5", '"kv_connector": "Blockyard"'),
    GOOD.replace('"kv_both"', '"kv_both", "engine_id": 7'): ("engine_id = 7", "leave it out"),
    GOOD.replace('"kv_both"', '"kv_both", "kv_parallel_size": 1'): ("kv_parallel_size", "leave it"),
}
TAKEN: Final = (
    *(
        "-tp 2",
        "-tp=2",
        "--tensor-parallel 2",
        "-pp 4 -tp 2",
        "-dp 4 -dpl 2 --data-parallel-hybrid-lb",
    ),
    *("--block-size 32", "--max-model-len 32k", "--max-model-len=auto", "--kv-cache-dtype fp8"),
    *("-O3", "--no-enable-prefix-caching", "--disable-sliding-window", "--config good.yaml"),
    *("--prefix-caching-hash-algo sha256_cbor", "--enforce-eager", "--shutdown-timeout 60"),
    *("--hf-overrides '{\"rope_theta\": 10000}'", "--attention-config.use_non_causal false"),
)
"""What vLLM takes behind it, and nothing is to be said of."""


def files() -> dict[str, str]:
    """Returns the files that they name."""
    good = "tensor_parallel_size: 2\nenable-prefix-caching: true\n"
    typo = good.replace("parallel", "paralel")
    return {
        "M/config.json": json.dumps(LLAMA),
        "good.yaml": good,
        "good.conf": good,
        "typo.yaml": typo,
    }
