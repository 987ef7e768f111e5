"""Writes what the connector touches of vLLM into `tests/python/connectors/vllm_0_33.json`.

    python record.py [--check]

It runs in an environment with vLLM. `make test` holds the connector against the file, without vLLM;
`--check` ends with status 1 where the installed vLLM is another one than the file says.
"""

import dataclasses
import importlib
import inspect
import json
import pkgutil
import sys
from pathlib import Path
from typing import Any

import msgspec
import vllm
import vllm.config
import vllm.envs
from vllm.config import (
    CacheConfig,
    KVEventsConfig,
    KVTransferConfig,
    ModelConfig,
    ParallelConfig,
    SpeculativeConfig,
    VllmConfig,
    get_current_vllm_config_or_none,
)
from vllm.distributed import kv_events
from vllm.distributed.kv_transfer.kv_connector.v1 import base, metrics
from vllm.engine.arg_utils import EngineArgs
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.v1 import kv_cache_interface, outputs
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.metrics.stats import PrefillStats
from vllm.v1.request import Request, RequestStatus

FILE = Path(__file__).parents[1] / "python" / "connectors" / "vllm_0_33.json"


def names(kind: Any) -> list[str]:
    """The fields and properties of a class."""
    found = {name for name, one in inspect.getmembers(kind) if isinstance(one, property)}
    if dataclasses.is_dataclass(kind):
        found |= {field.name for field in dataclasses.fields(kind)}
    elif issubclass(kind, msgspec.Struct):
        found |= {field.name for field in msgspec.structs.fields(kind)}
    return sorted(name for name in found if not name.startswith("_"))


def calls(kind: Any) -> dict[str, list[str]]:
    """The methods of a class, with the names of their parameters."""
    methods = inspect.getmembers(kind, inspect.isfunction)
    return {
        name: [one for one in inspect.signature(method).parameters if one != "self"]
        for name, method in methods
        if not name.startswith("_") or name == "__init__"
    }


def only(found: dict[str, list[str]], *wanted: str) -> dict[str, list[str]]:
    """Some of a class's methods."""
    return {name: found[name] for name in wanted}


def options() -> dict[str, str]:
    """Every option by the part of the configuration that has it, and every variable."""
    found: dict[str, list[str]] = {}
    for module in pkgutil.iter_modules(vllm.config.__path__):
        held = importlib.import_module(f"vllm.config.{module.name}")
        for name, kind in inspect.getmembers(held, inspect.isclass):
            if dataclasses.is_dataclass(kind) and kind.__module__ == held.__name__:
                fields = [field.name for field in dataclasses.fields(kind)]
                found[name] = sorted(one for one in fields if not one.startswith("_"))
    settled = {name for names in found.values() for name in names}
    given = [field.name for field in dataclasses.fields(EngineArgs)]
    # What has another name, or none, in the configuration.
    found["EngineArgs"] = sorted(
        name for name in given if name not in settled and not name.startswith("_")
    )
    found["environment"] = sorted(vllm.envs.environment_variables)
    return {part: " ".join(names) for part, names in found.items()}


def recorded() -> dict[str, Any]:
    """What is there."""
    request = Request("one", [1, 2], SamplingParams(max_tokens=1), None)
    kinds = [
        *(VllmConfig, ModelConfig, CacheConfig, ParallelConfig, KVTransferConfig, LoRARequest),
        *(SchedulerOutput, NewRequestData, CachedRequestData),
        *(outputs.KVConnectorOutput, base.KVConnectorTransferResults),
        *(kv_cache_utils.KVCacheBlock, KVEventsConfig),
        *(MultiModalFeatureSpec, PlaceholderRange),
        *(kv_cache_interface.KVCacheConfig, kv_cache_interface.KVCacheGroupSpec),
        *(kv_cache_interface.FullAttentionSpec, kv_cache_interface.MLAAttentionSpec),
    ]
    fields = {kind.__name__: names(kind) for kind in kinds}
    fields["Request"] = sorted({*vars(request), *names(Request)} - {"_"})
    queue = kv_cache_utils.FreeKVCacheBlockQueue([kv_cache_utils.KVCacheBlock(0)])
    fields["FreeKVCacheBlockQueue"] = sorted(vars(queue))
    fields["RequestStatus"] = sorted(one.name for one in RequestStatus)
    fields["KVConnectorRole"] = [one.name for one in base.KVConnectorRole]
    functions = {
        "get_current_vllm_config_or_none": get_current_vllm_config_or_none,
        "group_kernel_blocks": kv_cache_interface.group_kernel_blocks,
    }
    events = kv_events.BlockStored, kv_events.BlockRemoved, kv_events.AllBlocksCleared
    wire = {kind.__name__: list(kind.__struct_fields__) for kind in events}
    wire["KVEventBatch"] = list(kv_events.KVEventBatch.__struct_fields__)
    return {
        "version": vllm.__version__,
        "fields": fields,
        "options": options(),
        "wire": wire,
        "calls": {
            "KVConnectorBase_V1": calls(base.KVConnectorBase_V1),
            "KVConnectorWorkerMetadata": calls(base.KVConnectorWorkerMetadata),
            "KVCacheBlocks": calls(KVCacheBlocks),
            "ModelConfig": only(calls(ModelConfig), "get_total_num_hidden_layers"),
            "PrefillStats": only(calls(PrefillStats), "set"),
            "SpeculativeConfig": only(calls(SpeculativeConfig), "use_eagle_block_drop"),
            "KVConnectorStats": calls(metrics.KVConnectorStats),
            "KVConnectorPromMetrics": calls(metrics.KVConnectorPromMetrics),
            "functions": {
                name: list(inspect.signature(one).parameters) for name, one in functions.items()
            },
        },
    }


def main() -> int:
    """Writes the file, or compares it."""
    text = json.dumps(recorded(), indent=1, sort_keys=True) + "\n"
    if "--check" in sys.argv:
        same = FILE.exists() and FILE.read_text() == text
        if not same:
            print(f"BROKEN  {FILE.name} is not what vLLM {vllm.__version__} has: run record.py")
        else:
            print(f"ok      {FILE.name} is what vLLM {vllm.__version__} has")
        return int(not same)
    FILE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
