"""Wrong settings of vLLM, each named before vLLM starts, with the line to write."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from blockyard.connectors.command_line import Fault, Flags, read, split
from blockyard.tools.doctor import vllm, vllm_serve
from blockyard.tools.doctor.finding import Finding, Site
from blockyard.tools.doctor.vllm import Serve, checks
from wrong_flags import GOOD, LLAMA, TAKEN, WRONG_FLAGS, files

TRANSFER = {
    "kv_connector": "Blockyard",
    "kv_connector_module_path": "blockyard.connectors.vllm",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}


def parsed(line: str) -> tuple[Flags, bool]:
    words, bare = split(line)
    return read("vllm", words), bare


def serve(line: str, environ: dict[str, str] | None = None) -> dict[str, Finding]:
    flags, bare = parsed(line)
    site = Site(environ=environ or {})
    made = [check(site) for check in checks(Serve(flags, {**site.environ, **flags.environ}, bare))]
    return {one.name: one for one in made if one.level != "fail"} | {
        one.name: one for one in made if one.level == "fail"
    }


def failed(found: dict[str, Finding]) -> list[Finding]:
    return [one for one in found.values() if one.level == "fail"]


def line(
    extra: dict[str, Any] | None = None,
    more: str = "",
    model: str = "meta-llama/Llama-3.1-8B",
    **transfer: Any,
) -> str:
    said: dict[str, Any] = TRANSFER | {
        "kv_connector_extra_config": {"host": "64 GiB"} if extra is None else extra
    }
    said |= transfer
    said = {name: value for name, value in said.items() if value is not ...}
    return f"vllm serve {model} --kv-transfer-config {shlex.quote(json.dumps(said))} {more}"


def host(**more: Any) -> str:
    return line({"host": "64 GiB"} | more)


OWN = TRANSFER | {"kv_connector_extra_config": {"host": 9}}


def multi(*others: dict[str, Any], own: bool = True, **changes: Any) -> str:
    """A command line of MultiConnector, with Blockyard behind the others."""
    keys = {"host": 9} | {name: changes.pop(name) for name in ("host", "hosts") if name in changes}
    keys = {name: value for name, value in keys.items() if value is not ...}
    last = [OWN | {"kv_connector_extra_config": keys}] if own else []
    inside = {"connectors": [*others, *last]}
    said: dict[str, Any] = {"kv_connector_module_path": ...} | changes
    return line(kv_connector="MultiConnector", kv_connector_extra_config=inside, **said)


def test_behind_one_that_sends_nothing_is_wrong() -> None:
    found = serve(multi({"kv_connector": "NixlConnector", "kv_role": "kv_producer"}))
    assert not failed(found)
    assert found["kv_connector"].fact == "Blockyard"


WRONG: dict[str, tuple[str, str, str]] = {
    # What is wrong: the command line, what is named, and what to write.
    "no flag": ("vllm serve m", "missing", '"kv_connector": "Blockyard"'),
    "open quote": ("vllm serve m --kv-transfer-config '{", "no closing quotation", "single quotes"),
    "quotes lost": ("vllm serve m --kv-transfer-config '{kv_role: x}'", "no JSON", "single quotes"),
    "single quotes in JSON": (
        """vllm serve m --kv-transfer-config "{'kv_role': 'kv_both'}" """,
        "no JSON",
        "double quotes in it",
    ),
    "a list": ("vllm serve m --kv-transfer-config '[1]'", "no mapping", "--kv-transfer-config '{"),
    "misspelt flag": (
        "vllm serve m --kv-transfer-cofig '{}'",
        "no such flag",
        "--kv-transfer-config",
    ),
    "no value": ("vllm serve m --kv-transfer-config", "no value", "--kv-transfer-config"),
    "no number": (line(more="-tp two"), "'two' is no number", "--tensor-parallel-size"),
    "field of older vLLM": (line(kv_rank=0), "no field 'kv_rank'", "leave it out"),
    "misspelt field": (line(kv_conector="x"), "no field 'kv_conector'", '"kv_connector"'),
    "our key outside": (line(host="64 GiB"), "no field 'host'", "kv_connector_extra_config"),
    "no connector": (line(kv_connector=...), "missing", '"kv_connector": "Blockyard"'),
    "small letters": (line(kv_connector="blockyard"), "blockyard", '"kv_connector": "Blockyard"'),
    "LMCache": (line(kv_connector="LMCacheConnectorV1"), "LMCache", '"kv_connector": "Blockyard"'),
    "OffloadingConnector": (line(kv_connector="OffloadingConnector"), "Offloading", "Blockyard"),
    "inside, and alone": (multi(), "Blockyard is alone in it", '"kv_connector": "Blockyard" alone'),
    "inside, and first": (
        multi(OWN, {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}, own=False),
        "its peer would wait",
        "write NixlConnector first",
    ),
    "beside another store": (
        multi({"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}),
        "OffloadingConnector stores KV",
        "leave one of them out",
    ),
    "inside, with vLLM's policy": (
        multi({"kv_connector": "NixlConnector", "kv_role": "kv_both"}, kv_load_failure_policy=...),
        "kv_load_failure_policy = 'fail' around",
        '"kv_load_failure_policy": "recompute" beside "kv_connector": "MultiConnector"',
    ),
    "inside, with a wrong key": (
        multi({"kv_connector": "NixlConnector", "kv_role": "kv_both"}, host=..., hosts="9 GiB"),
        "no 'hosts'",
        '"host": "9 GiB"',
    ),
    "another module": (
        line(kv_connector_module_path="blockyard.vllm"),
        "'blockyard.vllm'",
        '"kv_connector_module_path": "blockyard.connectors.vllm"',
    ),
    "no role": (line(kv_role=...), "kv_role = None", '"kv_role": "kv_both"'),
    "producer": (line(kv_role="kv_producer"), "without listen", '"listen": "10.0.0.7:7000"'),
    "consumer": (line(kv_role="kv_consumer"), "without peers", '"peers": ["10.0.0.7:7000"]'),
    "no policy of that name": (
        line(kv_load_failure_policy="retry"),
        "'retry'",
        '"kv_load_failure_policy": "recompute"',
    ),
    "no mapping": (line(kv_connector_extra_config="64 GiB"), "no mapping", '{"host": "64 GiB"}'),
    "another's connector beside": (
        line(more="--kv-offloading-size 32"),
        "--kv-offloading-size (native)",
        '"host": "32 GiB"',
    ),
    "another's connector beside, of no size": (
        line(more="--kv-offloading-size nan"),
        "--kv-offloading-size (native)",
        '"host": "64 GiB"',
    ),
    "swap space in text": (line(more="--swap-space 16GB"), "no such", '"host": "4 GiB/rank"'),
    "ranks": (host(ranks=2), "ranks = 2", "leave it out"),
    "yard": (host(yard=2), "yard = 2", "leave it out"),
    "swap space": (line(more="--swap-space 16"), "no such flag", '"host": "16 GiB/rank"'),
    "no host": (line({}), "host is missing", '"host": "64 GiB"'),
    "a host of nothing": (line({"host": "0 GiB"}), "no block would be kept", '"host": "64 GiB"'),
    "a host of no blocks": (host(host=0, preempt="recompute"), "no block", '"host": "64 GiB"'),
    "hosts": (line({"hosts": "9 GiB"}), "no 'hosts'", '"host": "9 GiB"'),
    "host_blocks": (line({"host_blocks": 900}), "no 'host_blocks'", '"host": 900'),
    "cpu_bytes_to_use": (
        line({"cpu_bytes_to_use": 64 << 30}),
        "no 'cpu_bytes_to_use'",
        '"host": "64 GiB"',
    ),
    "num_cpu_blocks": (line({"num_cpu_blocks": 5000}), "no 'num_cpu_blocks'", '"host": 5000'),
    "max_local_cpu_size": (
        line({"max_local_cpu_size": 20}),
        "no 'max_local_cpu_size'",
        '"host": "20 GiB/rank"',
    ),
    "with LMCache's prefix": (
        line({"lmcache.max_local_cpu_size": 2.5}),
        "no 'lmcache.max_local_cpu_size'",
        '"host": "2.5 GiB/rank"',
    ),
    "local_disk": (
        host(local_disk="file:///mnt/kv"),
        "no 'local_disk'",
        '"disk_path": "/mnt/kv", with "disk": "1 TiB"',
    ),
    "max_local_disk_size": (host(max_local_disk_size=500), "no 'max", '"disk": "500 GiB"'),
    "chunk_size": (host(chunk_size=256), "no 'chunk_size'", "leave it out: the unit"),
    "save_decode_cache": (host(save_decode_cache=True), "no 'save", '"decode": true'),
    "eviction_policy": (host(eviction_policy="lru"), "no 'evict", '"eviction": "recency"'),
    "remote_url": (host(remote_url="redis://a"), "no 'remote_url'", 'write "remote": "redis://a"'),
    "another of LMCache's": (
        host(**{"lmcache.mp.port": 5}),
        "no 'lmcache.mp.port'",
        "leave it out",
    ),
    "misspelt key": (line({"hst": 9}), "no 'hst'", "'host'"),
    "no unit": (line({"host": "64"}), "host = '64'", "'64 GiB'"),
    "bits": (line({"host": "64 Gb"}), "host = '64 Gb'", "'64 GiB'"),
    "below zero": (line({"host": -1}), "host = -1", "must be"),
    "offload": (host(offload="always"), "offload = 'always'", "'finish'"),
    "preempt": (host(preempt="drop"), "preempt = 'drop'", "'park'"),
    "decode": (host(decode="yes"), "decode = 'yes'", "True"),
    "keep_on_reset": (host(keep_on_reset="no"), "keep_on_reset = 'no'", "True"),
    "flush": (host(flush="20s"), "flush = '20s'", "must be seconds"),
    "eviction": (host(eviction="lru"), "eviction = 'lru'", "'recency'"),
    "host_copies": (host(host_copies="never"), "host_copies = 'never'", "'first'"),
    "write": (host(write={"host": "always"}), "always", "through"),
    "block_costs": (host(block_costs=5), "block_costs = 5", "load, compute, attend"),
    "deadline": (host(deadline=-1), "deadline = -1", "must be"),
    "vLLM's own": (host(block_size=32), "block_size = 32", "leave it out"),
    "no file": (host(config="/no/such.toml"), "'/no/such.toml'", "give"),
    "a namespace of text": (host(namespace="mine"), "namespace = 'mine'", "give a mapping"),
    "disk without a path": (host(disk="1 TiB"), "without disk_path", '"disk_path": "/mnt/kv"'),
    "path without a disk": (host(disk_path="/kv"), "without a size", '"disk": "200 GiB"'),
    "disk without a host": (
        line({"disk": "1 TiB", "disk_path": "/kv"}),
        "without a host",
        '"host": "16 GiB"',
    ),
    "two names of one disk": (host(disk="1 TiB", disk_path=[]), "disk_path = []", "give a path"),
    "one disk twice": (host(disk="1 TiB", disk_path=["/kv", "/kv"]), "disk_path", "give each disk"),
    "a file that cannot be": (
        host(record="/no/such/folder/x"),
        "cannot be written",
        "give another",
    ),
    "xxhash": (line(more="--prefix-caching-hash-algo xxhash"), "'xxhash'", "algo sha256"),
    "context parallel": (line(more="-dcp 2"), "decode_context_parallel_size = 2", "leave"),
    "several machines": (line(more="--nnodes=2"), "nnodes = 2", "leave --nnodes out"),
    "HiSparse": (
        line(more="""--attention-config '{"hisparse_config": {}}'"""),
        "HiSparse",
        "start without it",
    ),
    "allocator": (
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True " + line(),
        "expandable_segments:True",
        "unset PYTORCH_CUDA_ALLOC_CONF",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_setting_is_named_with_what_to_write(name: str) -> None:
    command, says, do = WRONG[name]
    try:
        found = failed(serve(command))
    except Fault as fault:
        found = [Finding("flags", "fail", fault.fact, "", fault.do)]
    assert [one for one in found if says in one.fact and do in one.do], found
    assert len(found) == 1, found
    assert all(one.do for one in found)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the files are that those command lines name."""
    for name, text in files().items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "M"


def of(line: str) -> str:
    return line if line.startswith("vllm") else f"{GOOD} {line}"


@pytest.mark.parametrize("line", WRONG_FLAGS)
@pytest.mark.usefixtures("model")
def test_what_vllm_refuses_is_named_with_what_to_write(line: str) -> None:
    says, do = WRONG_FLAGS[line]
    found = failed(serve(of(line)))
    assert [one for one in found if says in one.fact and do in one.do], found


@pytest.mark.parametrize("line", ["", *TAKEN])
@pytest.mark.usefixtures("model")
def test_what_vllm_takes_is_passed(line: str) -> None:
    assert failed(serve(of(line))) == []


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        # What a shell leaves of JSON without quotes around it.
        (["{kv_connector:", "Blockyard,", "kv_role:", "kv_both}"], {}),
        (["{kv_connector: Blockyard, kv_role: kv_both}"], {}),
        (["kv_connector:Blockyard", "kv_role:kv_both"], {}),
        (["{“kv_connector”: “Blockyard”, “kv_role”: “kv_both”}"], {}),
        (
            ["{kv_connector: Blockyard, kv_role: kv_both, x: {host: 9 GiB}}"],
            {"x": {"host": "9 GiB"}},
        ),
    ],
)
def test_json_that_a_shell_has_broken_is_written_as_it_was_meant(
    words: list[str], meant: dict[str, Any]
) -> None:
    flags = read("vllm", ["serve", "m", "--kv-transfer-config", *words, "-tp", "2"])
    said = {"kv_connector": "Blockyard", "kv_role": "kv_both", **meant}
    assert [one.flag for one in flags.faults] == ["--kv-transfer-config"]
    assert f"--kv-transfer-config '{json.dumps(said)}'" in flags.faults[0].do
    assert flags.values["tensor_parallel_size"] == 2


def test_a_number_with_a_suffix_is_no_memory() -> None:
    for given in (
        "--kv-transfer-config.kv_connector_extra_config.host 64G",
        """--kv-transfer-config '{"kv_connector_extra_config": {"host": 64G}}'""",
    ):
        flags = read("vllm", split(f"serve m {given}")[0])
        assert flags.values["kv_transfer_config"]["kv_connector_extra_config"]["host"] == 64 << 30
    (one,) = failed(serve(line({"host": 64 << 30})))
    assert one.do == 'write "host": "64 GiB"'


@pytest.mark.parametrize(
    "text",
    [
        """#!/bin/sh
# It's the server's.
set -e
export CUDA_VISIBLE_DEVICES=0,1
pip install vllm==0.33.0 && echo installed
exec vllm serve m \\
  -tp 2 2>&1 | tee log
echo "It has ended"
""",
        "CUDA_VISIBLE_DEVICES=0,1 vllm serve m -tp 2 >log 2>&1 &",
        "CUDA_VISIBLE_DEVICES=0,1 vllm serve m\n  --tensor-parallel-size 2\n",
        "CUDA_VISIBLE_DEVICES=0,1 m\n-tp 2\n",
        "docker run -e CUDA_VISIBLE_DEVICES=0,1 vllm/vllm-openai:v0.33.0 --model m -tp 2",
        "env CUDA_VISIBLE_DEVICES=0,1 python3 -u -m vllm.entrypoints.openai.api_server m -tp 2",
    ],
)
def test_a_script_is_read_as_its_shell_reads_it(text: str) -> None:
    flags = read("vllm", split(text)[0])
    assert flags.values == {"model": "m", "tensor_parallel_size": 2}
    assert flags.environ == {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert flags.faults == []


def test_json_without_quotes_is_a_warning() -> None:
    bare = line().replace("'", "")
    assert serve(bare)["quotes"].level == "warn"
    assert "quotes" not in serve(line())


def test_another_version_of_vllm_may_have_a_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Serve, "version", "0.34.0")
    found = serve(line(more="--new-flag 5"))
    assert failed(found) == []
    assert found["flags"].level == "warn"


def test_variables_that_change_what_is_found_and_told() -> None:
    events = """--kv-events-config '{"enable_kv_cache_events": true}'"""
    told = serve(line(more=events), {"VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "0"})["variables"]
    assert told.do == "unset VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"
    disk = host(disk="1 TiB", disk_path="/kv")
    assert "PYTHONHASHSEED=7" in serve(disk, {"PYTHONHASHSEED": "7"})["variables"].fact


@pytest.mark.parametrize("page", ["vllm.md", "vllm-disk.md"])
def test_what_a_page_says_to_type_is_passed(page: str) -> None:
    text = (Path(__file__).parents[3] / "docs" / page).read_text()
    told = re.findall(r"^(?:.*-- )?(vllm serve (?:'[^']*'|[^'\n])*)", text, re.MULTILINE)
    written = [one for one in told if "kv_connector" in one]
    assert written
    assert [failed(serve(one)) for one in written] == [[]] * len(written)


def test_a_disk_for_weights_that_are_not_here_yet_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    extra = {"host": "64 GiB", "disk": "1 TiB", "disk_path": "/kv"}
    found = serve(line(extra, model=str(tmp_path)))
    assert failed(found) == []
    assert found["settings"].level == "warn"
    assert '"namespace": {"weights": "v1"}' in found["settings"].do
    assert found["end"].do == "add --shutdown-timeout 60"
    found = serve(line(extra, "--shutdown-timeout 9", model=str(tmp_path)))
    assert found["end"].level == "ok"


def test_what_a_file_of_keys_says_is_looked_at_too(tmp_path: Path) -> None:
    path = tmp_path / "kv.toml"
    path.write_text('host = "8 GiB"\ndisk = "1 TiB"\ndisk_path = "/kv"\nrecord = "/no/such/x"\n')
    command = line({"config": str(path)})
    found = serve(command)
    assert [one.name for one in failed(found)] == ["record"]
    assert found["end"].level == "warn"
    asked = Serve(parsed(command)[0], {}).asked()
    assert (asked.host, asked.disk, asked.paths) == (8 << 30, 1 << 40, (Path("/kv"),))


@pytest.mark.parametrize("more", ["--enable-sleep-mode", "--enable-cumem-allocator"])
def test_an_allocator_of_vllm_itself_goes_with_segments_that_expand(more: str) -> None:
    found = serve(line(more=more), {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    assert failed(found) == []


@pytest.mark.parametrize(
    ("role", "keys"),
    [
        ("kv_producer", {"listen": "0.0.0.0:7000", "advertise": "10.0.0.7:7000"}),
        ("kv_producer", {"listen": "10.0.0.7:7000", "lease": 5, "unread": 30}),
        ("kv_consumer", {"peers": ["10.0.0.7:7000"], "patience": 5, "carrier": "tcp"}),
    ],
)
def test_the_options_of_a_hand_over_are_sound_beside_each_other(
    role: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef")
    assert not failed(serve(line({"host": 9, "secret_file": str(secret)} | keys, kv_role=role)))
    found = failed(serve(line({"host": 9} | keys, kv_role=role)))
    assert '"secret_file"' in f"{found[0].fact} {found[0].do}", "no address of a network without"


def test_an_option_of_a_hand_over_without_its_side_is_wrong() -> None:
    for keys, said in (({"lease": 5}, "without listen"), ({"patience": 5}, "without peers")):
        (found,) = failed(serve(line({"host": 9} | keys)))
        assert said in found.fact


def test_a_second_is_no_time_for_the_end() -> None:
    extra = {"host": "8 GiB", "disk": "1 TiB", "disk_path": "/kv"}
    levels = [serve(line(extra, f"--shutdown-timeout {at}"))["end"].level for at in (0, 1, 2)]
    assert levels == ["warn", "warn", "ok"]


def test_variables_of_another_connector_and_of_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    found = serve(line(), {"LMCACHE_CONFIG_FILE": "x", "LMCACHE_LOCAL_CPU": "1"})
    assert found["variables"].level == "warn"
    assert "unset LMCACHE_CONFIG_FILE LMCACHE_LOCAL_CPU" in found["variables"].do
    bare = line(kv_connector_module_path=...)
    for module in (vllm, vllm_serve):
        monkeypatch.setattr(module, "is_registered", lambda: False)
    (one,) = failed(serve(bare))
    assert one.do == 'write "kv_connector_module_path": "blockyard.connectors.vllm"'
    for module in (vllm, vllm_serve):
        monkeypatch.setattr(module, "is_registered", lambda: True)
    assert failed(serve(bare)) == []
    (one,) = failed(serve("VLLM_PLUGINS=other " + bare))
    assert one.do.startswith("write VLLM_PLUGINS=other,blockyard, or ")
    assert one.means.endswith("Unsupported connector type: Blockyard")
    # vLLM takes no blanks away.
    (one,) = failed(serve("VLLM_PLUGINS='other, blockyard' " + bare))
    assert one.do.startswith("write VLLM_PLUGINS=other,blockyard, or ")
    (two,) = failed(serve("VLLM_PLUGINS= " + bare))
    assert two.do.startswith("write VLLM_PLUGINS=blockyard, or ")
    assert failed(serve("VLLM_PLUGINS=other,blockyard " + bare)) == []


@pytest.mark.parametrize(
    ("command", "values"),
    [
        ("vllm serve m -tp 2", {"model": "m", "tensor_parallel_size": 2}),
        ("serve --tensor_parallel_size=2 m", {"model": "m", "tensor_parallel_size": 2}),
        ("python -m vllm.entrypoints.openai.api_server --model m", {"model": "m"}),
        ("A=1 vllm serve m \\\n  --max-model-len 1K", {"model": "m", "max_model_len": 1024}),
        ("m --max-model-len 25.6k", {"model": "m", "max_model_len": 25600}),
        ("m --max-model-len -1", {"model": "m", "max_model_len": -1}),
        ("m --no-enable-prefix-caching", {"model": "m", "enable_prefix_caching": False}),
        ("m --enforce-eager --port 8000", {"model": "m", "enforce_eager": True, "port": 8000}),
        (
            'm --hf-overrides {"a": {"b": 1}} -pp 2',
            {"model": "m", "hf_overrides": {"a": {"b": 1}}, "pipeline_parallel_size": 2},
        ),
        ('m --hf-overrides={"a": 1}', {"model": "m", "hf_overrides": {"a": 1}}),
        (
            "m --kv-transfer-config.kv_role kv_both --kv_transfer_config.kv_port=5",
            {"model": "m", "kv_transfer_config": {"kv_role": "kv_both", "kv_port": 5}},
        ),
        (
            "m --kv-transfer-config.kv_connector_extra_config.host '9 GiB'",
            {"model": "m", "kv_transfer_config": {"kv_connector_extra_config": {"host": "9 GiB"}}},
        ),
        ("--enable-auto-tool-choice m", {"model": "m", "enable_auto_tool_choice": True}),
        ("m --enable-prefix-cach", {"model": "m", "enable_prefix_caching": True}),
        ("m --tensor-parallel 4", {"model": "m", "tensor_parallel_size": 4}),
    ],
)
def test_flags_are_read_as_vllm_reads_them(command: str, values: dict[str, Any]) -> None:
    flags = parsed(command)[0]
    assert flags.values == values
    assert flags.faults == []


def test_a_file_of_flags_gives_what_the_command_line_does_not(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    path = tmp_path / "serve.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "model": "m",
                "tensor-parallel-size": 2,
                "enable-prefix-caching": False,
                "kv-transfer-config": TRANSFER,
            }
        )
    )
    flags = parsed(f"vllm serve --config {path} -tp 4")[0]
    assert flags.values["tensor_parallel_size"] == 4
    assert flags.values["enable_prefix_caching"] is False
    assert flags.values["kv_transfer_config"] == TRANSFER
    path.write_text("- [")
    assert "is no mapping" in parsed(f"serve --config {path}")[0].faults[0].fact


def test_a_configuration_that_says_nothing_of_its_kv_is_no_failure(tmp_path: Path) -> None:
    for text in (
        "{",
        "[]",
        "{}",
        '{"num_hidden_layers": "many"}',
        json.dumps(LLAMA | {"head_dim": {"a": 1}}),
    ):
        (tmp_path / "config.json").write_text(text)
        found = serve(line(model=str(tmp_path)))
        assert failed(found) == [], text
        assert found["model"].level == "unknown", text
    assert serve(line(model="/no/such/model"))["model"].level == "unknown"
