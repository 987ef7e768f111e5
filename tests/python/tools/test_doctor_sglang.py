"""Wrong settings of SGLang, each named before SGLang starts, with the line to write."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from blockyard.connectors.command_line import read, split
from blockyard.tools.doctor.finding import Finding, Site
from blockyard.tools.doctor.sglang import Launch, checks
from wrong_flags import LLAMA

GIB = 1 << 30
LATENT = LLAMA | {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
SAID: dict[str, Any] = {
    "backend_name": "blockyard",
    "module_path": "blockyard.engines.sglang",
    "class_name": "Storage",
    "interface_v1": 1,
    "hicache_storage_pass_prefix_keys": True,
    "disk": "200 GiB",
    "disk_path": "/data/kv",
    "namespace": {"weights": "v1"},
}
CACHE = "--enable-hierarchical-cache --hicache-mem-layout page_first"
DYNAMIC = f"{CACHE} --hicache-storage-backend dynamic"
FLAG = "--hicache-storage-backend-extra-config"
PREFIXES = "hicache_storage_pass_prefix_keys"
START = "python -m sglang.launch_server --model-path M"


def launch(line: str, environ: dict[str, str] | None = None) -> Launch:
    words, bare = split(line)
    flags = read("sglang", words)
    return Launch(flags, {**(environ or {}), **flags.environ}, bare)


def found_of(line: str, environ: dict[str, str] | None = None) -> list[Finding]:
    return [check(Site(environ={})) for check in checks(launch(line, environ))]


def failed(line: str, environ: dict[str, str] | None = None) -> list[Finding]:
    return [one for one in found_of(line, environ) if one.level == "fail"]


def given(more: str = "", cache: str = DYNAMIC, **said: Any) -> str:
    extra = {name: value for name, value in (SAID | said).items() if value is not ...}
    return f"{START} {cache} {FLAG} {shlex.quote(json.dumps(extra))} {more}"


def words(text: str) -> str:
    return f"{START} {DYNAMIC} {FLAG} {text}"


WRONG: dict[str, tuple[str, str, str]] = {
    # What is wrong: the command line, what is named, and what to write.
    "no cache": (
        given(cache="--hicache-storage-backend dynamic"),
        "--enable-hierarchical-cache is missing",
        "add --enable-hierarchical-cache",
    ),
    "no storage": (given(cache=CACHE), "it is missing", "write --hicache-storage-backend dynamic"),
    "our name": (
        given(cache=f"{CACHE} --hicache-storage-backend blockyard"),
        "'blockyard' is none of its values",
        "dynamic",
    ),
    "another storage": (
        given(cache=f"{CACHE} --hicache-storage-backend mooncake"),
        "it is 'mooncake'",
        "write --hicache-storage-backend dynamic",
    ),
    "another layout": (
        given(cache=DYNAMIC.replace("page_first", "layer_first")),
        "hicache_mem_layout = 'layer_first'",
        "--hicache-mem-layout page_first",
    ),
    "no such layout": (
        given(cache=DYNAMIC.replace("page_first", "pages")),
        "'pages' is none of its values",
        "write --hicache-mem-layout page_first",
    ),
    "unified memory": (given("--enable-unified-memory"), "move in memory", "start without"),
    "no radix cache": (given("--disable-radix-cache"), "--disable-radix-cache", "leave"),
    "LMCache": (given("--enable-lmcache"), "--enable-lmcache", "leave --enable-lmcache out"),
    "sharded": (given("--enable-kv-cache-sharding"), "sharding", "leave --enable-kv-cache-sh"),
    "a linker": (
        given("--enable-unified-cache-external-linker"),
        "external-linker",
        "leave --enable-unified-cache-external-linker out",
    ),
    "no ranks": (given("--tp 0"), "--tp-size 0", "write --tp-size 1"),
    "ranks in text": (given("--tp two"), "'two' is no number", "write --tp-size"),
    "vLLM's short form": (given("-tp 2"), "-tp: SGLang 0.5.23 has no such", "write --tp-size"),
    "no replicas": (given("--dp 0"), "--dp-size 0", "write --dp-size 1"),
    "no page": (given("--page-size 0"), "--page-size 0", "write --page-size 1"),
    "groups": (
        given("--tp 2 --dp 3 --enable-dp-attention"),
        "2 tensor parallel ranks are not divided into 3",
        "write --tp-size 3",
    ),
    "two ways of groups": (
        given("--dp 2 --attn-dp-size 2"),
        "with --attn-dp-size",
        "--dp-size out",
    ),
    "context ranks": (given("--tp 2 --attn-cp-size 2"), "attn_cp_size = 2", "leave --attn-cp-size"),
    "decode ranks": (given("--dcp-size 2"), "dcp_size = 2", "leave --dcp-size out"),
    "hicache in part": (given("--hicache-size 1.5"), "'1.5' is no number", "write --hicache-size"),
    "hicache with a unit": (given("--hicache-size 64GB"), "'64GB' is no number", "--hicache-size"),
    "fraction": (given("--hicache-host-memory-fraction 2"), "fraction 2", "as 0.8"),
    "windows": (given("--swa-full-tokens-ratio 2"), "--swa-full-tokens-ratio 2", "as 0.8"),
    "no windows": (given("--swa-full-tokens-ratio 0"), "--swa-full-tokens-ratio 0", "as 0.8"),
    "write policy": (
        given("--hicache-write-policy through"),
        "'through' is none",
        "write --hicache-write-policy write_through",
    ),
    "type of KV": (given("--kv-cache-dtype fp8"), "'fp8' is none", "--kv-cache-dtype fp8_e4m3"),
    "underscores": (given("--hicache_size 4"), "no such flag", "write --hicache-size"),
    "misspelt flag": (
        given("--enable-hierarchial-cache"),
        "no such flag",
        "write --enable-hierarchical-cache",
    ),
    "our key as a flag": (given("--disk-path /kv"), "no such flag", f"put it into {FLAG}"),
    "no words": (f"{START} {DYNAMIC}", "it is missing", f"write {FLAG} '{{"),
    "no value": (words(""), "no value", f"give one, as {FLAG}"),
    "no JSON": (words("disk=200GiB"), "is no JSON", "single quotes"),
    "single quotes": (
        words("\"{'disk': '1 GiB',}\""),
        "is no JSON",
        f"""write {FLAG} '{{"disk": "1 GiB"}}'""",
    ),
    "quotes lost": (
        words("'{disk: 1 GiB}'"),
        "is no JSON",
        f"""write {FLAG} '{{"disk": "1 GiB"}}'""",
    ),
    "no file": (words("@/no/such.json"), "No such file", f"write {FLAG}"),
    "no file of settings": (words("@/etc/hostname"), "SGLang reads .json", f"write {FLAG}"),
    "a list": (words("'[1]'"), "is no mapping", f"write {FLAG}"),
    "no name": (given(backend_name=...), "backend_name is missing", '"backend_name": "blockyard"'),
    "no module": (given(module_path=...), "module_path is missing", '"blockyard.engines.sglang"'),
    "another module": (given(module_path="blockyard"), "'blockyard'", '"blockyard.engines.sglang"'),
    "no class": (given(class_name=...), "class_name is missing", '"class_name": "Storage"'),
    "another class": (given(class_name="Blockyard"), "'Blockyard'", '"class_name": "Storage"'),
    "no interface": (given(interface_v1=...), "interface_v1 is missing", '"interface_v1": 1'),
    "interface 0": (given(interface_v1=0), "interface_v1 is missing", '"interface_v1": 1'),
    "prefixes in text": (
        given(**{PREFIXES: "yes"}),
        "'yes' is not true or false",
        "true or false",
    ),
    "threshold": (given(prefetch_threshold="x"), "'x' is not a number", "prefetch_threshold"),
    "threshold of a switch": (given(prefetch_threshold=True), "True is not a number", "prefetch"),
    "timeout": (given(prefetch_timeout_base="1s"), "'1s' is not a number", "prefetch_timeout"),
    "heads that are split": (given("--tp 2", tp_lcm_size=3), "tp_lcm_size = 3", "leave tp_lcm"),
    "no disk": (given(disk=...), "disk is missing", '"disk": "200 GiB"'),
    "no path": (given(disk_path=...), "disk_path is missing", '"disk_path": "/data/kv"'),
    "no unit": (given(disk="64"), "disk = '64'", "'64 GiB'"),
    "disk by group": (given(disk=["9 GiB", 1]), "disk = ['9 GiB', 1]", 'one size, like "200 GiB"'),
    "split": (given(split=[1, 4]), "no 'split'", "leave it out: SGLang's --swa-full-tokens-ratio"),
    "typical": (given(typical=100), "no 'typical'", "--mamba-full-memory-ratio divide disk"),
    "disk of nothing": (given(disk=0), "disk = 0", "must be an integer >= 1"),
    "disk in part": (given(disk=1.5), "disk = 1.5", "must be an integer"),
    "no folder": (given(disk_path=""), "disk_path = ''", "must be the path"),
    "two folders": (given(disk_path=["/a", "/b"]), "disk_path = [", "must be the path"),
    "nobody's home": (given(disk_path="~nobody-such/x"), "~nobody-such", "ive the whole path"),
    "host": (given(host="64 GiB"), "no 'host'", "give --hicache-size"),
    "hosts": (given(hosts=1), "no 'hosts'", "give --hicache-size"),
    "LMCache's host": (given(max_local_cpu_size=5), "no 'max_local", "give --hicache-size"),
    "LMCache's chunks": (given(chunk_size=256), "no 'chunk_size'", "disk_path"),
    "misspelt key": (given(dsk=1), "no 'dsk'", "did you mean 'disk'?"),
    "threads": (given(threads=0), "threads = 0", "must be an integer"),
    "patience": (given(patience="30s"), "patience = '30s'", "must be seconds"),
    "flush": (given(flush=-1), "flush = -1", "must be seconds"),
    "direct": (given(direct="yes"), "direct = 'yes'", "must be one of"),
    "untested": (given(untested=1), "untested = 1", "must be one of"),
    "namespace": (given(namespace="v1"), "namespace = 'v1'", "give a mapping"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_setting_is_named_with_what_to_write(name: str) -> None:
    command, says, do = WRONG[name]
    (one,) = failed(command)
    assert says in one.fact
    assert do in one.do


@pytest.mark.parametrize(
    ("config", "more", "says", "do"),
    [
        (LLAMA, "--tp 3", "32 heads are not divided by 3", "write --tensor-parallel-size 2"),
        (LLAMA, "--pp-size 40", "32 layers in 40 stages", "write 32 stages or fewer"),
        (LLAMA, "--context-length 200k", "200000 is more than the", "--context-length 131072"),
        (LATENT, "--tp 2", "with MLA", "start with --enable-dp-attention"),
        (
            LLAMA | {"layer_types": ["linear_attention"] * 32},
            "",
            "no layer keeps every token",
            "start without",
        ),
    ],
)
def test_what_the_model_refuses_is_told_from_its_configuration(
    tmp_path: Path, config: dict[str, Any], more: str, says: str, do: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (one,) = failed(given(more).replace("M ", f"{tmp_path} ", 1))
    assert says in one.fact
    assert do in one.do


def test_what_sglang_takes_is_passed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LATENT))
    for more in ("", "--tp 2 --dp 2 --enable-dp-attention", "--tp 4 --attn-dp-size 4"):
        assert failed(given(more).replace("M ", f"{tmp_path} ", 1)) == [], more
    longer = given("--context-length 200k").replace("M ", f"{tmp_path} ", 1)
    assert failed(longer, {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}) == []
    for line in (
        given("--tp 8 --pp-size 2"),
        given(cache="--enable-hicache --hicache-storage-backend dynamic"),
        given("--hicache-io-backend direct"),
        given(module_path="blockyard.connectors.sglang"),
        given(cache=DYNAMIC.replace("page_first", "page_first_direct")),
        "sglang serve" + given().removeprefix("python -m sglang.launch_server"),
    ):
        assert failed(line) == [], line


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"model_type": "jamba"}, "of KV, and states beside it"),
        ({"model_type": "mistral", "sliding_window": 4096}, "of KV"),
        ({"layer_types": ["sliding_attention", "full_attention"] * 16}, "of KV"),
    ],
)
def test_windows_and_states_beside_the_kv_are_passed(
    tmp_path: Path, more: dict[str, Any], says: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | more))
    found = {one.name: one for one in found_of(given().replace("M ", f"{tmp_path} ", 1))}
    assert (found["model"].level, found["model"].fact) == ("ok", f"32 layers a rank, {says}")


def test_weights_must_be_told_from_others(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    line = given(namespace=...).replace("M ", f"{tmp_path} ", 1)
    (one,) = failed(line)
    assert one.do.startswith('give "namespace": {"weights": "v1"}')
    # Of a model that is not here yet nobody knows it: SGLang may bring it.
    found = {one.name: one for one in found_of(given(namespace=...))}
    assert found["weights"].level == "warn"


def test_adapters_must_be_told_from_others(tmp_path: Path) -> None:
    (tmp_path / "adapter_model.safetensors").write_bytes(b"x")
    for said in (
        str(tmp_path),
        f"a={tmp_path}",
        json.dumps({"lora_name": "a", "lora_path": str(tmp_path)}),
    ):
        assert failed(given(f"--lora-paths {shlex.quote(said)}")) == []
        (one,) = failed(given(f"--lora-paths {shlex.quote(said)} b=some/adapter"))
        assert "adapter 'b' at 'some/adapter'" in one.fact
        assert one.do == "give --lora-paths a folder"


def test_a_drafter_may_have_a_pool_of_its_own() -> None:
    levels = {
        more: {one.name: one for one in found_of(given(more))}["drafter"].level
        for more in ("", "--speculative-algorithm EAGLE", "--speculative-algorithm NGRAM")
    }
    assert list(levels.values()) == ["ok", "warn", "ok"]


def test_pages_that_follow_nobody_are_a_warning() -> None:
    without: dict[str, Any] = {PREFIXES: ...}
    found = {one.name: one for one in found_of(given(**without))}
    (one,) = (one for one in found.values() if one.level == "warn" and one.name == PREFIXES)
    assert one.do == f'write "{PREFIXES}": true'


def test_words_may_stand_in_a_file(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    files = {
        "kv.json": json.dumps(SAID),
        "kv.yaml": json.dumps(SAID),
        "kv.toml": "\n".join(
            f"{name} = {json.dumps(value).replace(': ', ' = ')}" for name, value in SAID.items()
        ),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        assert failed(words(f"@{tmp_path / name}")) == [], name
    (tmp_path / "serve.yaml").write_text(
        json.dumps({"tp-size": 2, "enable-hierarchical-cache": True, "disable-radix-cache": False})
    )
    line = given(cache=f"--hicache-storage-backend dynamic --config {tmp_path / 'serve.yaml'}")
    assert failed(line) == []
    assert launch(line).tensor == 2


@pytest.mark.parametrize(
    ("more", "said", "disk", "ranks"),
    [
        ("", {}, 200 * GIB, 1),
        ("--tp 8", {}, 200 * GIB, 8),
        ("--tp 8", {"disk": "25 GiB/rank"}, 200 * GIB, 8),
        ("--tp 8 --pp-size 2", {}, 400 * GIB, 16),
        ("--tp 8 --dp 2", {}, 400 * GIB, 16),
        ("--tp 8 --dp 8 --enable-dp-attention", {"disk": "25 GiB"}, 200 * GIB, 8),
        ("--tp 8 --attn-dp-size 4", {"disk": "25 GiB/rank"}, 200 * GIB, 8),
        ("--tp 16 --nnodes 2", {}, 100 * GIB, 8),
    ],
)
def test_what_the_machine_must_have_follows_from_the_flags(
    more: str, said: dict[str, Any], disk: int, ranks: int
) -> None:
    asked = launch(given(f"{more} --hicache-size 30", **said)).asked()
    assert (asked.disk, asked.ranks) == (disk, ranks)
    assert (asked.pinned, asked.host) == (30 * 10**9, 30 * 10**9 * ranks)
    assert asked.paths == (Path("/data/kv"),)
