"""What the pages and the messages say to install is there, and is this package and no other's."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from blockyard.shared.extras import install, require

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Who installs: and then the name of the package, alone or with an extra, where a file should be.
INSTALLS = re.compile(
    r"\b(?:pip3?|pipx|uv|uvx|poetry|pdm|conda|mamba)\b[^\n]*"
    r"\b(?:install|add|run|download|tool)\b[^\n]*?"
    r"(?<![\w./@-])blockyard(?:\[[\w, {}-]*\])?(?:[=<>~!]=?[\w.]*)?(?![\w./-])(?! @ )"
)
PUBLISHES = """
from blockyard import KVCache
from blockyard.publishing.publisher import Publisher
Publisher(KVCache(device=8), "tcp://127.0.0.1:*")
"""
EXTRA = re.compile(r"(?<![\w./-])blockyard\[\w[\w, -]*\]")


def by_name(text: str) -> list[str]:
    """Places where a text has the package installed by its name."""
    return [found[0] for form in (INSTALLS, EXTRA) for found in form.finditer(text)]


def written() -> list[Path]:
    """All that a user reads: pages, docstrings, messages, examples, and what sets up machines."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*")]
    code = [
        path
        for folder in ("python", "rust", "examples", "benches", "tests", ".ci", ".github")
        for path in ROOT.joinpath(folder).rglob("*")
        if path.suffix in {".py", ".pyi", ".rs", ".html", ".js", ".yml", ".toml", ".sh", ".txt"}
    ]
    each = [*pages, *code, ROOT / "pyproject.toml", ROOT / "Makefile"]
    return [path for path in each if path.is_file() and path != Path(__file__)]


def test_nothing_is_installed_by_a_name_that_an_index_gives_to_whoever_takes_it() -> None:
    assert len(written()) > 300
    found = {
        str(path.relative_to(ROOT)): named
        for path in written()
        if (named := by_name(path.read_text(errors="replace")))
    }
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "pip install blockyard",
        "pip install 'blockyard[replay]'",
        'python3 -m pip install --upgrade "blockyard[metrics]"',
        "pip install numpy blockyard==0.1.0",
        "pip install blockyard        # beside SGLang",
        "uv pip install blockyard",
        "uv add blockyard",
        "uv tool install blockyard",
        "pipx run blockyard proof",
        "it needs blockyard[events]",
        'engine = ["blockyard[cuda12]", "x"]',
    ],
)
def test_the_check_finds_what_it_is_for(text: str) -> None:
    assert by_name(f"a line\n{text}\nanother\n")


@pytest.mark.parametrize(
    "text",
    [
        "pip install target/wheels/blockyard-0.1.0-cp311.whl",
        "pip install './blockyard-….whl[cuda13]'        # the wheel's file",
        "~/blockyard/bin/pip install target/wheels/*.whl",
        "pip install 'blockyard @ git+https://example.org/blockyard'",
        "pip install tokenizers",
    ],
)
def test_the_check_leaves_files_alone(text: str) -> None:
    assert not by_name(text)


def test_a_hint_names_the_file_that_this_was_installed_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Installed:
        version = "7.8"
        noted: str | None = None

        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return self.noted

    installed = Installed()
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _name: installed)
    there = tmp_path / "with spaces" / "blockyard-7.8-x.whl"
    there.parent.mkdir()
    there.touch()
    unknown = "pip install 'blockyard-7.8-….whl[replay]'"
    for noted, said in (
        (json.dumps({"url": there.as_uri()}), f"pip install '{there}[replay]'"),
        (json.dumps({"url": "file:///nowhere/blockyard-7.8-x.whl"}), unknown),
        (json.dumps({"url": "https://example.org/blockyard-7.8-x.whl"}), unknown),
        ("[]", unknown),
        (None, unknown),
    ):
        installed.noted = noted
        assert install("replay") == said
    assert install("cuda12", "cuda13").endswith("[cuda12]', or [cuda13]")
    for broken in ("{", '{"url": "file://["}'):
        installed.noted = broken
        assert "'blockyard-….whl[replay]'" in install("replay")


def without(module: str, code: str) -> str:
    """The last line of what a program says where a module cannot be imported."""
    code = f"import sys; sys.modules[{module!r}] = None\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode != 0, done.stdout
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("extra", "module", "code"),
    [
        ("replay", "msgspec", "from blockyard.tools.traces.trace import read"),
        ("replay", "rich", "import blockyard.tools.replay.cli"),
        ("metrics", "prometheus_client", "from blockyard.metrics.server import serve"),
        (
            "events",
            "zmq",
            PUBLISHES,
        ),
        ("cuda12", "cupy", "from blockyard.crane.gpu.cuda import Cuda; Cuda()"),
    ],
)
def test_where_an_extra_is_missing_the_error_says_what_to_install(
    extra: str, module: str, code: str
) -> None:
    assert extra in PROJECT["optional-dependencies"]
    assert install(extra) in without(module, code)


def test_a_module_of_an_extra_is_named_by_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    said = r"^this needs pyzmq \(.*zmq.*\): pip install '.*\[events\]'$"
    with pytest.raises(ModuleNotFoundError, match=said) as error:
        require("this", "events", "json", "zmq")
    assert error.value.name == "zmq"


def test_the_pythons_of_the_metadata_are_among_those_that_the_wheel_is_tried_on() -> None:
    nox = ROOT.joinpath(".ci", "noxfile.py").read_text()
    tried = re.findall(r'"(3\.\d+)"', re.search(r"^PYTHONS = (.*)$", nox, re.MULTILINE)[1])  # type: ignore[index]
    form = "Programming Language :: Python :: 3."
    said = importlib.metadata.metadata("blockyard").get_all("Classifier") or []
    named = [f"3.{one.removeprefix(form)}" for one in said if one.startswith(form)]
    # It has not run on the newest everywhere.
    assert named
    assert named == tried[: len(named)]
    assert "kv-cache" in importlib.metadata.metadata("blockyard")["Keywords"]


@pytest.mark.parametrize(
    ("goal", "groups"),
    [
        ("run", ["run"]),
        ("site", ["run", "site"]),
        ("check-wheel", ["run", "wheel"]),
        ("lint-host", ["lint"]),
        ("install", ["run", "wheel", "test"]),
    ],
)
def test_a_goal_installs_only_the_tools_that_it_needs(
    goal: str, groups: list[str], tmp_path: Path
) -> None:
    command = ["make", "--dry-run", "--always-make", f"VENV={tmp_path}", goal]
    env = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=env)  # noqa: S603
    assert re.findall(r"--requirement \S+/(\w+)\.txt", done.stdout) == groups


def test_who_runs_it_needs_only_the_package_its_command_and_what_builds_it() -> None:
    def names(needs: list[str]) -> set[str]:
        return {re.split(r"[^\w-]", need)[0] for need in needs}

    needed = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["replay"], "maturin"]
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    assert names(groups["run"]) == names(needed)


def test_the_wheel_has_the_licences_of_what_is_linked_into_it() -> None:
    (wheel,) = ROOT.glob("target/wheels/*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if "/licenses/" in name]
        texts = {Path(name).name: archive.read(name).decode() for name in names}
    assert set(texts) == {"LICENSE", "THIRD_PARTY_NOTICES"}
    assert texts["THIRD_PARTY_NOTICES"] == ROOT.joinpath("THIRD_PARTY_NOTICES").read_text()
    for crate in ("pyo3 ", "libc ", "sha2 ", "twox-hash "):
        assert f"\n{crate}" in texts["THIRD_PARTY_NOTICES"]


def test_the_sdist_has_what_tests_it() -> None:
    (sdist,) = ROOT.glob("target/sdist/*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in (
        "Makefile",
        "THIRD_PARTY_NOTICES",
        ".ci/smoke.py",
        "docs/index.md",
        "examples/server.py",
        "tests/conftest.py",
        "tests/python/project/test_package.py",
        "tests/python/support/traces.py",
        "tests/rust/Cargo.toml",
    ):
        assert name in names or not ROOT.joinpath(name).exists(), name
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    assert not [name for name in names if name.startswith((".venv", "target", "shared"))]
