"""Makes the files of this folder with the code of vLLM and SGLang, without their dependencies.

By hand: `python make.py FOLDER`, where FOLDER has the unpacked wheels vllm-0.33.0 and
sglang-0.5.23, and Python has msgspec, pydantic, pyzmq, python-json-logger and numpy. Only the
modules in `REAL` are the peers' own; all that they import beside is a stand-in that does nothing.
"""

import dataclasses
import importlib.abc
import importlib.metadata
import logging
import os
import sys
import time
import types
from datetime import UTC, datetime
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import msgspec
from typing_extensions import override

HERE = Path(__file__).parent
REAL = {
    "vllm.logger",
    "vllm.envs",
    "vllm.logging_utils",
    "vllm.logging_utils.formatter",
    "vllm.logging_utils.access_log_filter",
    "vllm.logging_utils.dump_input",
    "vllm.logging_utils.lazy",
    "vllm.logging_utils.log_time",
    "vllm.sampling_params",
    "vllm.distributed.kv_events",
    "vllm.entrypoints.serve.utils.request_logger",
    "vllm.v1.core.block_pool",
    "vllm.v1.core.kv_cache_utils",
    "vllm.lora.request",
    "vllm.utils.math_utils",
    "sglang.srt.utils.request_logger",
    "sglang.srt.utils.log_utils",
    "sglang.srt.disaggregation.kv_events",
    "sglang.srt.mem_cache.events",
}
THIRD = {"msgspec", "zmq", "pydantic", "pydantic_core", "annotated_types", "typing_extensions"}
THIRD |= {"typing_inspection", "numpy", "pythonjsonlogger"}

SYSTEM = (
    'You are a careful helper. Answer in one sentence, and say "I don\'t know" where you do not.'
)
PROMPTS = [
    ("chatcmpl-1a", SYSTEM + "\nWhat is a block?", list(range(40)), None),
    ("chatcmpl-2b", SYSTEM + "\nprompt_token_ids: [1]?", [*range(32), 90, 91, 92], None),
    ("chatcmpl-3c", SYSTEM + "\nWhat is a block?", list(range(40)), "sql"),
    ("cmpl-4d-0", "It's one\nof two lines", list(range(200, 217)), None),
]


class Double(types.ModuleType):
    """A module with whatever is asked of it."""

    @override
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        setattr(self, name, "0" if name == "__version__" else MagicMock(name=name))
        return self.__dict__[name]


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @override
    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        top = name.partition(".")[0]
        if name in REAL or top in THIRD or top in sys.stdlib_module_names:
            return None
        return ModuleSpec(name, self, is_package=True)

    @override
    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        module = Double(spec.name)
        inside = any(name.startswith(spec.name + ".") for name in REAL)
        module.__path__ = [str(self.folder / spec.name.replace(".", "/"))] if inside else []
        return module

    @override
    def exec_module(self, module: types.ModuleType) -> None:
        pass


class Clock:
    """Seconds since 1970, as the files have them."""

    now = 1_796_083_198.25  # 2026-11-30 23:59:58 UTC

    def __call__(self) -> float:
        return self.now


def module_of(name: str) -> Any:
    return import_module(name)


def vllm_logs() -> None:
    module_of("vllm.v1.serial_utils").PydanticMsgspecMixin = type("Mixin", (), {})
    params = module_of("vllm.sampling_params").SamplingParams
    adapter = module_of("vllm.lora.request").LoRARequest
    for form, name in (("text", "vllm-0.33.log"), ("json", "vllm-0.33.json.log")):
        logger = module_of("vllm.entrypoints.serve.utils.request_logger")
        root = module_of("vllm.logger")
        with (HERE / name).open("w") as stream:
            logs = logging.getLogger("vllm")
            logs.handlers.clear()
            handler = logging.StreamHandler(stream)
            if form == "json":
                kind = module_of("pythonjsonlogger.jsonlogger").JsonFormatter
                handler.setFormatter(kind(root._JSON_FORMAT))
            else:
                settings = root.DEFAULT_LOGGING_CONFIG["formatters"]["vllm"]
                kind = module_of("vllm.logging_utils").NewLineFormatter
                # The process's name, which vLLM's own record factory adds.
                text = settings["format"].replace("%(vllm_process_name)s", "APIServer")
                text = text.replace("%(process)d", "7")
                handler.setFormatter(kind(text, settings["datefmt"], log_level="DEBUG"))
            logs.addHandler(handler)
            logs.setLevel(logging.DEBUG)
            logs.propagate = False
            write = logger.RequestLogger(max_log_len=None)
            for request, (rid, prompt, ids, lora) in enumerate(PROMPTS):
                CLOCK.now += 1.5
                write.log_inputs(
                    rid, prompt, ids, None, params(temperature=0.7, max_tokens=64, stop=["]"]),
                    adapter(lora, 1, "/adapters/sql") if lora else None,
                )  # fmt: skip
                if request != 1:  # the answer that streams has no ids, only deltas do
                    write.log_outputs(rid.removesuffix("-0"), "a, b", [5, 6, 7, 8, 9], "stop")
                else:
                    for delta in ([5, 6], [7]):
                        write.log_outputs(rid, "a", delta, None, is_streaming=True, delta=True)
                    write.log_outputs(rid, "a", None, "streaming_complete", is_streaming=True)
            handler.flush()


def vllm_events() -> None:
    """Two requests that share two blocks, a third that reuses all, and one that evicts."""
    pool_module = module_of("vllm.v1.core.block_pool")
    utils = module_of("vllm.v1.core.kv_cache_utils")
    events = module_of("vllm.distributed.kv_events")
    utils.init_none_hash(lambda value: msgspec.msgpack.encode(str(value))[:32])
    pool_module.generate_block_hash_extra_keys = lambda *_: (None, 0)
    pool_module.resolve_block_hashes = lambda hashes, *_: hashes
    pool = pool_module.BlockPool(
        8, enable_caching=True, hash_block_size=16, enable_kv_cache_events=True
    )
    packed = (HERE / "vllm-0.33.events.msgpack").open("wb")
    lines = (HERE / "vllm-0.33.events.jsonl").open("wb")
    held: dict[str, Any] = {}

    def publish() -> None:
        CLOCK.now += 0.5
        batch = events.KVEventBatch(ts=CLOCK.now, events=pool.take_events(), data_parallel_rank=0)
        payload = msgspec.msgpack.Encoder().encode(batch)
        packed.write(payload)
        lines.write(msgspec.json.encode(msgspec.msgpack.decode(payload)) + b"\n")

    def serve(name: str, tokens: list[int], shared: int = 0, of: str = "") -> None:
        count = len(tokens) // 16
        hashes = [bytes([*b"hash", *(tokens[at * 16 : at * 16 + 2]), at]) for at in range(count)]
        request = types.SimpleNamespace(
            request_id=name, all_token_ids=tokens, block_hashes=hashes, lora_request=None,
            session_id=None, mm_features=[], cache_salt=None,
        )  # fmt: skip
        first = held[of][:shared] if shared else []
        pool.touch(first)
        blocks = first + pool.get_new_blocks(count - shared)
        held[name] = blocks
        pool.cache_full_blocks(request, blocks, shared, count, 16, 0)
        publish()
        pool.free_blocks(reversed(blocks))

    serve("a", list(range(64)))
    serve("b", [*range(32), *range(100, 132)], shared=2, of="a")
    serve("c", [*range(150, 150 + 80)])
    serve("a", list(range(64)), shared=0)
    packed.close()
    lines.close()


@dataclasses.dataclass
class GenerateReqInput:
    """The fields of SGLang's class that matter, in its order."""

    rid: Any = None
    session_id: Any = None
    text: Any = None
    input_ids: Any = None
    image_data: Any = None
    sampling_params: Any = dataclasses.field(default_factory=lambda: {"stop": ["]"], "n": 1})
    stream: bool = False
    lora_path: Any = None
    extra_key: Any = None


def sglang_logs() -> None:
    envs = module_of("sglang.srt.environ").envs
    envs.SGLANG_LOG_REQUEST_HEADERS.get.return_value = []
    envs.SGLANG_LOG_REQUEST_EXCEEDED_MS.get.return_value = -1
    core = module_of("sglang.srt.sampling.watermarking.core")
    vars(core).update(WATERMARK_CONTAINER_FIELD_NAMES=(), WATERMARK_SECRET_FIELD_NAMES=())
    vars(core).update(redact_watermark_secrets=lambda data, **_: data)
    module = module_of("sglang.srt.utils.request_logger")
    logs = module_of("sglang.srt.utils.log_utils")
    logs.datetime = types.SimpleNamespace(
        now=lambda: datetime.fromtimestamp(CLOCK.now, UTC).replace(tzinfo=None)
    )
    for level, form in ((3, "text"), (3, "json"), (2, "text"), (1, "json")):
        name = f"sglang-0.5.23.level{level}.{form}.log"
        with (HERE / name).open("w") as stream:
            target = logs._create_logger_with_handler(name, logging.StreamHandler(stream))
            module.create_log_targets = lambda target=target, **_: [target]
            write = module.RequestLogger(
                log_requests=True, log_requests_level=level,
                log_requests_format=form, log_requests_target=None,
            )  # fmt: skip
            write.log_received_request(GenerateReqInput("HEALTH_CHECK_1", None, None, [0]))
            for rid, prompt, ids, lora in PROMPTS:
                CLOCK.now += 1.5
                text = prompt if level == 3 else prompt + " and more" * 300
                asked = GenerateReqInput(
                    rid, "s1" if "chat" in rid else None,
                    None if "chat" in rid and level == 3 else text,
                    ids if "chat" in rid else None, lora_path=lora,
                )  # fmt: skip
                write.log_received_request(asked)
                meta = {"id": rid, "prompt_tokens": len(ids), "completion_tokens": 5}
                out = {"text": "'completion_tokens': 9", "output_ids": [5, 6], "meta_info": meta}
                write.log_finished_request(asked, out)


def sglang_events() -> None:
    events = module_of("sglang.srt.disaggregation.kv_events")
    recorder = module_of("sglang.srt.mem_cache.events").KVCacheEventRecorder(
        enabled=True, page_size=16
    )
    with (HERE / "sglang-0.5.23.events.msgpack").open("wb") as file:
        for parent, hashes in ((None, [11, 12]), (12, [13]), (12, [-14]), (-14, [15])):
            CLOCK.now += 0.5
            for above, block in zip([parent, *hashes], hashes, strict=False):
                recorder.enqueue(
                    events.BlockStored([block], above, list(range(16)), 16, None, medium="GPU")
                )
            batch = events.EventBatch(ts=CLOCK.now, events=list(recorder._queue))
            recorder._queue.clear()
            file.write(msgspec.msgpack.Encoder().encode(batch))


CLOCK = Clock()

if __name__ == "__main__":
    os.environ["TZ"] = "UTC"
    time.tzset()
    time.time = CLOCK
    sys.meta_path.insert(0, Finder(Path(sys.argv[1])))
    found = importlib.metadata.version
    importlib.metadata.version = lambda distribution_name: (
        found(distribution_name) if distribution_name in THIRD else "0"
    )
    vllm_logs()
    vllm_events()
    sglang_logs()
    sglang_events()
