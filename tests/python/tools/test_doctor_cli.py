"""`blockyard doctor`: how it is called, what it prints and writes, and how it ends."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from test_doctor_vllm import WRONG, host, line

from blockyard.tools.cli import cli
from blockyard.tools.doctor import cli as doctor_cli
from blockyard.tools.doctor import disk, gpu
from blockyard.tools.doctor.finding import Finding, Site
from wrong_flags import LLAMA

SAID = "hicache-storage-backend-extra-config"
GOOD = line({"host": 64, "namespace": {"weights": "v1"}})
REMOTE = 'device = 9\nremote = 1000000\nstores = ["redis://one"]'
TOML = """[blockyard]
device = "8 GiB"
host = "1 GiB"
deadline = 60000
layout = "llama-3-8b"
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No GPU is asked, and no disk is measured."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpu, "_cuda", lambda: None)
    monkeypatch.setattr(disk, "_EACH", (disk.folder, disk.room))


def typed(*words: str) -> Result:
    return CliRunner().invoke(cli, ["doctor", *words])


def test_it_looks_at_the_machine_alone() -> None:
    done = typed()
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0] == "installation"
    assert done.stdout.splitlines()[-1].startswith("0 will fail, ")


@pytest.mark.parametrize(
    "words", [["--vllm", GOOD], ["--", *GOOD.replace("'", "").split(" ", 3)[:3]]]
)
def test_the_flags_may_be_one_word_or_a_command(words: list[str]) -> None:
    done = typed(*words)
    assert "vLLM" in done.stdout.splitlines()[0]
    assert ("FAIL" in done.stdout) == (words[0] == "--")
    assert done.exit_code == (words[0] == "--")


@pytest.mark.parametrize(
    ("words", "engine"),
    [
        (["--", "vllm", "serve", "lmsys/sglang-model"], "vLLM"),
        (["--", "m", "-tp", "2"], "vLLM"),
        (["--", "A=1", "python", "-m", "sglang.launch_server", "--model-path", "m"], "SGLang"),
        (["--", "/opt/venv/bin/sglang", "serve", "--model-path", "vllm/m"], "SGLang"),
        (
            ["--", "docker", "run", "--gpus=all", "lmsysorg/sglang:v1", "python3", "-m", "x"],
            "SGLang",
        ),
        (["--sglang", "--model-path m"], "SGLang"),
        (["--vllm", "m"], "vLLM"),
    ],
)
def test_a_command_names_its_engine(words: list[str], engine: str) -> None:
    done = typed(*words)
    assert done.stdout.splitlines()[0] == engine
    assert done.exit_code == 1


def test_ranks_are_compared_with_the_gpus_that_the_command_shows() -> None:
    done = typed("--vllm", f"CUDA_VISIBLE_DEVICES=0,1 {GOOD} -tp 4")
    assert "GPUs: CUDA_VISIBLE_DEVICES=0,1 shows 2, and 4 processes compute" in done.stdout
    assert "-> CUDA_VISIBLE_DEVICES=0,1,2,3, or fewer ranks" in done.stdout
    assert done.exit_code == 1
    assert typed("--vllm", f"CUDA_VISIBLE_DEVICES=0,1 {GOOD} -tp 2").exit_code == 0


def test_a_failure_ends_with_1_and_strictness_with_1_for_a_warning() -> None:
    assert typed("--vllm", line({"hosts": 1})).exit_code == 1
    warned = "LMCACHE_CONFIG_FILE=x " + GOOD
    assert typed("--vllm", warned).exit_code == 0
    assert typed("--vllm", warned, "--strict").exit_code == 1


def test_json_goes_to_stdout_or_to_a_file() -> None:
    done = typed("--vllm", line({"hosts": 1}), "--json")
    found = json.loads(done.stdout)
    assert "FAIL" in done.stderr
    named = {one["name"]: one for group in found["groups"].values() for one in group}
    assert named['"hosts"']["do"] == 'write "host": 1'
    assert set(named['"hosts"']) == {"name", "level", "fact", "means", "do"}
    done = typed("--json", "found.json")
    assert json.loads(Path("found.json").read_text())["groups"].keys() == {
        "installation",
        "machine",
        "GPU",
    }
    assert "0 will fail" in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--vllm", "x", "--", "vllm", "serve"], "give one of them"),
        (["--vllm", "x", "--sglang", "y"], "give one of them"),
        (["--sglang", "x", "--", "sglang", "serve"], "give one of them"),
        (["--config", "no.toml"], "there is no such file"),
        (["--json", "no/such/file"], "there is no directory"),
        (["--frobnicate"], "No such option"),
    ],
)
def test_misuse_ends_with_2_before_anything_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, words: list[str], says: str
) -> None:
    monkeypatch.setattr(doctor_cli, "examined", lambda **_: pytest.fail("something was looked at"))
    done = typed(*words)
    assert done.exit_code == 2
    assert says in done.stderr


@pytest.mark.parametrize(
    ("text", "says", "status"),
    [
        (TOML, "fingerprint", 0),
        (TOML.replace("deadline = 60000", ""), "write deadline = 60000", 0),
        (TOML.replace("deadline", "dedline"), "did you mean 'deadline'", 1),
        (TOML.replace("llama-3-8b", "llama"), "did you mean", 1),
        (TOML.replace('"1 GiB"', '"1 MiB"'), "smaller than one block", 1),
        (TOML + 'host_copies = "never"', "never", 1),
        (TOML.replace("device", "offload = 'finish'\ndevice"), "has keys of vLLM's connector", 1),
        ('host = "64 GiB"\noffload = "through"', '"kv_connector_extra_config": {"config": ', 1),
        (TOML.replace('"1 GiB"', '"900 TiB"'), "slots take", 1),
        ("host = [", "is no configuration", 1),
        ("host = " + "[" * 5000, "is no configuration", 1),
        (f'{REMOTE}\nnamespace = {{ model = "m", weights = "w" }}', "fingerprint", 0),
        (REMOTE, "namespace names no model and no weights", 1),
        ('device = 9\nstores = ["redis://:x@one"]', "stores[0] has a password in it", 1),
    ],
)
def test_a_configuration_is_tried(text: str, says: str, status: int) -> None:
    Path("cache.toml").write_text(text)
    done = typed("--config", "cache.toml")
    assert says in done.stdout
    assert done.exit_code == status, done.stdout


def test_the_host_of_a_configuration_is_compared_with_the_machine(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "proc").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemAvailable: 1000000 kB\n")
    file = tmp_path / "cache.toml"
    file.write_text(TOML)
    found = doctor_cli.examined(file=file, site=Site(root=root, environ={}))
    (memory,) = (one for one in found["machine"] if one.name == "memory")
    assert memory.level == "fail"
    assert "the host tier asks for 1.00 GiB" in memory.fact


def test_the_folders_of_the_flags_are_looked_at(tmp_path: Path) -> None:
    named = {"disk": "1 TiB", "disk_path": ["/no/such/a", str(tmp_path)]}
    done = typed("--disk", "/no/such/b", "--vllm", host(**named, namespace={"weights": "v1"}))
    for path in ("/no/such/a", "/no/such/b"):
        assert f"FAIL  folder {path}: there is no /no/such" in done.stdout
    assert f"room {tmp_path}" in done.stdout


def test_a_check_that_meets_the_unforeseen_says_so_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_: Site) -> Finding:
        raise ZeroDivisionError("nobody has thought of it")

    monkeypatch.setattr(gpu, "CHECKS", (broken, gpu.link))
    done = typed()
    assert "broken: it cannot be looked at: ZeroDivisionError: nobody has" in done.stdout
    assert "link: " in done.stdout
    assert done.exit_code == 0


def test_no_command_line_is_too_strange(tmp_path: Path) -> None:
    """Whatever it says, each check has an answer of its own."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    chance = random.Random(1)
    values: list[Any] = [
        None,
        True,
        -1,
        0,
        1 << 70,
        1e400,
        "",
        "x",
        "9 GiB",
        [],
        [[]],
        {},
        {"a": {}},
    ]
    names = [
        "host",
        "disk",
        "disk_path",
        "config",
        "record",
        "namespace",
        "block_costs",
        "write",
        "x",
        "",
    ]
    fields = ["kv_connector", "kv_role", "kv_connector_extra_config", "kv_load_failure_policy"]
    strange = [
        "",
        "-",
        "--",
        "serve",
        "'",
        "{",
        "\\",
        "--kv-transfer-config {",
        "--kv-transfer-config.",
        "--kv-transfer-config.a.b.c 1 --kv-transfer-config.a 2 --kv-transfer-config.a.b 3",
        "-tp 0 -pp -3 -dp 99999999999999999999",
        "-tp " + "9" * 5000,
        "--max-model-len 1e999k",
        "--kv-offloading-size nan",
        "--attention-config [] --hf-overrides 5 --config /",
        "--kv-transfer-config " + "[" * 5000,
    ]
    for _ in range(100):
        extra = {chance.choice(names): chance.choice(values) for _ in range(3)}
        said = {chance.choice(fields): chance.choice(values) for _ in range(2)}
        strange.append(line(extra, chance.choice(strange[6:15]), str(tmp_path), **said))
    lines = [("vllm", text) for text in [*strange, *(command for command, *_ in WRONG.values())]]
    lines += [("sglang", text.replace("kv-transfer-config", SAID)) for text in strange[::3]]
    for engine, text in lines:
        found = doctor_cli.examined(lines={engine: text}, site=Site(root=tmp_path, environ={}))
        odd = [
            one for group in found.values() for one in group if "cannot be looked at:" in one.fact
        ]
        assert [one.fact for one in odd if "No such file" not in one.fact] == [], text


def test_nothing_is_left_and_no_connector_is_imported() -> None:
    code = (
        "import sys; from blockyard.tools.doctor.cli import examined;"
        "examined(lines={'vllm': 'serve m', 'sglang': '--model-path m'});"
        "sys.exit(any(name.partition('.')[0] in ('vllm', 'torch', 'cupy', 'rich', 'msgspec') "
        "for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, env={**os.environ})  # noqa: S603
    assert done.returncode == 0
    assert list(Path().iterdir()) == []
