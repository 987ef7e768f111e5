"""How commands end: files before words, a closed pipe, a full disk, Ctrl-C, a law that broke."""

import contextlib
import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import blockyard as by
from blockyard.tools.cli import cli
from blockyard.tools.endings import STATUSES
from blockyard.tools.outputs import claim
from blockyard.tools.proof import cli as proofs
from blockyard.tools.proof.play import Play
from blockyard.tools.proof.result_table import Row
from blockyard.tools.replay import cli as replays
from mounts import tmpfs

COMMAND = (sys.executable, "-m", "blockyard")
LINE = '{"timestamp": 0, "input_length": 20, "output_length": 3, "hash_ids": [1, 2]}\n'
CHAT = '{"messages": [{"role": "user", "content": "hello"}]}\n'
STORE = f"file://{tempfile.gettempdir()}/blockyard-endings"
VERBS = {
    "replay": "replay --requests 5 --verify memory --json a.json --report a.html "
    "--save-trace t.jsonl",
    "sweep": "sweep --requests 20 --points 2 --jobs 1 --model-requests 0 --json a.json "
    "--report a.html",
    "describe": "trace describe in.jsonl --json a.json --report a.html",
    "from": "trace from openai log.jsonl -o out.jsonl.gz --rate 1",
    "show": "disk show kv --json a.json",
    "verify": "disk verify kv --json a.json",
    "doctor": "doctor --json a.json",
    "check": f"store check {STORE} --blocks 1 --block-bytes 4KiB --json a.json",
    "ls": f"store ls {STORE} --json a.json",
    "bench": "disk bench kv --bytes 16KiB --block-bytes 4KiB --threads 1 --json a.json",
}
"""Commands that write files."""
SAYING = {
    "proof": "proof --conversations 2 --squeeze 1",
    "version": "--version",
    "help": "--help",
    "its help": "replay --help",
    "none": "",
    "stdout": "replay --requests 5 --quiet --json -",
}
"""Commands that only say something."""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for folder in (Path(), Path("in")):
        (folder / "kv").mkdir(parents=True)
        (folder / "in.jsonl").write_text(LINE * 3)
        (folder / "log.jsonl").write_text(CHAT)
    return tmp_path


def ran(words: str, **streams: object) -> subprocess.CompletedProcess[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    return subprocess.run(  # type: ignore[call-overload,no-any-return]  # noqa: S603
        [*COMMAND, *words.split()], text=True, check=False, timeout=100, **pipes
    )


def named(words: str) -> list[str]:
    """The files that a command was told to write."""
    each = words.split()
    return [
        each[i + 1]
        for i, word in enumerate(each[:-1])
        if word in {"--json", "--report", "-o", "--save-trace"} and each[i + 1] != "-"
    ]


def whole(words: str, folder: Path) -> None:
    """All files are there, whole, and nothing beside them."""
    for name in named(words):
        content = (folder / name).read_bytes()
        assert content
        if name.endswith(".json"):
            json.loads(content)
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]


@contextlib.contextmanager
def closed_pipe() -> Iterator[int]:
    """The end of a pipe that nobody reads."""
    reads, writes = os.pipe()
    os.close(reads)
    yield writes
    os.close(writes)


NURSERY = """
import json, os, sys
from blockyard.__main__ import main
import blockyard.tools.replay.cli, blockyard.tools.sweep.cli, blockyard.tools.traces.cli
ended = {}
for name, words in json.loads(sys.argv[1]).items():
    child = os.fork()
    if not child:
        os.chdir(name)
        os.dup2(os.open("stderr", os.O_WRONLY | os.O_CREAT), 2)
        sys.argv[1:] = words.split()
        main()
    ended[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
with open("ended.json", "w") as file:
    json.dump(ended, file)
"""
"""Runs many commands, each in a folder of its name, and imports but once."""


def all_ran(stdout: int | None, *names: str) -> dict[str, tuple[int, str]]:
    """The status and the stderr of each command, whose stdout goes there; None for a closed one."""
    commands = {n: words for n, words in (VERBS | SAYING).items() if not names or n in names}
    for name in commands:
        shutil.copytree(Path("in"), Path(name))
    code = NURSERY if stdout is not None else f"import os\nos.close(1)\n{NURSERY}"
    if stdout is None:
        code = code.replace("main()\n", "sys.stdout = None; main()\n", 1)
    subprocess.run(  # noqa: S603
        [sys.executable, "-c", code, json.dumps(commands)], stdout=stdout, check=True, timeout=100
    )
    ended: dict[str, int] = json.loads(Path("ended.json").read_text())
    said = {name: (status, Path(name, "stderr").read_text()) for name, status in ended.items()}
    for name, words in commands.items():
        whole(words, Path(name))
        assert "Traceback" not in said[name][1], said[name][1]
    return said


def test_a_closed_pipe_ends_every_command_quietly_behind_its_files() -> None:
    with closed_pipe() as end:
        for name, (status, errors) in all_ran(end).items():
            assert (name, status) == (name, 141), errors
            assert "pipe" not in errors.lower()


@pytest.mark.parametrize(
    ("path", "why"), [("/dev/full", "No space left on device"), (None, "Bad file descriptor")]
)
def test_a_stdout_that_takes_nothing_is_one_line_behind_the_files(
    path: str | None, why: str
) -> None:
    if path is not None and not Path(path).exists():
        pytest.skip(f"no {path} here")
    with Path(path or os.devnull).open("w") as full:
        names = ("replay", "from", "show", "version", "stdout")
        for name, (status, errors) in all_ran(full.fileno() if path else None, *names).items():
            assert (name, status) == (name, 2), errors
            assert errors.splitlines()[-1] == f"blockyard: stdout cannot be written: {why}"


@pytest.mark.parametrize("name", ["replay", "sweep"])
def test_progress_that_nobody_reads_ends_nothing(name: str) -> None:
    words = (VERBS | SAYING)[name]
    with closed_pipe() as end:
        assert ran(words, stdout=end, stderr=end).returncode == 141
    whole(words, Path())


def test_a_command_whose_stdout_and_stderr_are_closed_writes_its_files() -> None:
    """What it starts and opens does not take their numbers."""
    words = VERBS["sweep"].replace("--jobs 1 --model-requests 0", "--jobs 2 --model-requests 5")
    command = shlex.join([sys.executable, "-m", "blockyard", *words.split()])
    closed = ["sh", "-c", f"exec {command} >&- 2>&-"]
    done = subprocess.run(closed, check=False, timeout=100)  # noqa: S603
    assert done.returncode == 2
    whole(words, Path())


def test_a_terminal_without_these_characters_gets_others() -> None:
    done = ran(VERBS["sweep"], env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert "? knee" in done.stdout


def long_log(path: str, requests: int) -> None:
    with Path(path).open("w") as file:
        for number in range(requests):
            content = " ".join(f"{number}-{word}" for word in range(40))
            line = {"timestamp": number, "messages": [{"role": "user", "content": content}]}
            file.write(json.dumps(line) + "\n")


def limited(nbytes: int) -> Callable[[], None]:
    """A limit on files, which is as a full disk to whoever writes them."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))

    return limit


@pytest.mark.parametrize("nbytes", [0, 100, 5_000])
def test_a_full_disk_is_one_line_and_leaves_no_part_of_a_trace(nbytes: int) -> None:
    long_log("long.jsonl", 300)
    before = sorted(Path().iterdir())
    done = ran("trace from openai long.jsonl -o out.jsonl", preexec_fn=limited(nbytes))
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr == "blockyard: out.jsonl cannot be written: File too large\n"
    assert sorted(Path().iterdir()) == before


def test_a_file_system_that_is_full_leaves_the_other_files_and_the_table(tmp_path: Path) -> None:
    words = "replay --requests 5 --quiet --json small/a.json --report a.html"
    with tmpfs(tmp_path / "small", "4k"):
        done = ran(words)
        assert not list(Path("small").iterdir())
    assert done.returncode == 2
    assert done.stderr == "blockyard: small/a.json cannot be written: No space left on device\n"
    assert "5 requests" in done.stdout
    assert Path("a.html").stat().st_size > 20_000


def test_a_file_that_cannot_be_written_takes_neither_the_others_nor_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replace = Path.replace

    def full(self: Path, target: Path) -> Path:
        if str(target).endswith("a.json"):
            raise OSError(28, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", full)
    for name in ("replay", "sweep", "describe"):
        done = CliRunner().invoke(cli, VERBS[name].split())
        assert done.exit_code == 2
        *_, last = done.stderr.splitlines()
        assert last == "blockyard: a.json cannot be written: No space left on device"
        assert len(done.stdout.splitlines()) > 10
        assert not Path("a.json").exists()
        assert Path("a.html").stat().st_size > 20_000
        Path("a.html").unlink()


def test_no_file_is_where_stdout_goes() -> None:
    for path in ("out.txt", "/dev/stdout"):
        with Path("out.txt").open("w") as out:
            done = ran(f"trace describe in.jsonl --json {path}", stdout=out)
        assert done.returncode == 2
        assert done.stderr == f"blockyard: --json {path}: stdout goes there; give another path\n"
        assert Path("out.txt").read_text() == ""


def test_a_pipe_or_a_fifo_in_the_place_of_a_file_is_refused() -> None:
    os.mkfifo("fifo")
    done = ran("trace describe in.jsonl --json /dev/stdout")
    assert done.returncode == 2
    assert done.stderr.startswith("blockyard: --json /dev/stdout: not a regular file")
    for option in ("--json", "--report"):
        with pytest.raises(by.Misuse, match=f"^{option} fifo: not a regular file"):
            claim({option: Path("fifo")})


@pytest.mark.parametrize(
    "words",
    [
        "replay --requests 3 --report -",
        "replay --requests 3 --save-trace -",
        "sweep --requests 3 --report -",
        "trace describe in.jsonl --report -",
        "trace from openai log.jsonl --rate 1 -o -",
    ],
)
def test_only_json_goes_to_stdout(words: str) -> None:
    done = CliRunner().invoke(cli, words.split())
    assert done.exit_code == 2
    assert " -: only --json may be stdout; give a file, or ./- for one named -" in done.stderr
    assert not Path("-").exists()
    claim({"--report": Path("./-").absolute()})


@pytest.mark.parametrize(
    ("module", "script"), [("numpy", True), ("numpy", False), ("click", True), ("rich", False)]
)
def test_ctrl_c_while_modules_are_imported_is_one_line(
    module: str, monkeypatch: pytest.MonkeyPatch, *, script: bool
) -> None:
    # In its place stands one that presses Ctrl-C itself.
    Path("early").mkdir()
    press = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "signal.raise_signal(signal.SIGINT)"
    )
    Path("early", f"{module}.py").write_text(press)
    monkeypatch.setenv("PYTHONPATH", "early")
    command = [str(Path(sys.executable).parent / "blockyard")] if script else COMMAND
    done = subprocess.run(  # noqa: S603
        [*command, "replay", "--requests", "3"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.strip() == "blockyard: interrupted"


def test_a_program_that_uses_the_package_keeps_its_own_interrupts() -> None:
    code = "import sys; before = sys.excepthook; import blockyard; assert sys.excepthook is before"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)  # noqa: S603


def test_every_status_stands_in_the_help_and_in_the_documents() -> None:
    said = CliRunner().invoke(cli, ["--help"]).stdout
    text = Path(__file__).parents[3].joinpath("docs", "replay.md").read_text()
    for status, meaning in STATUSES.items():
        assert meaning.split(";")[0] in " ".join(said.split())
        assert f"| {status} | {meaning} |" in text.replace("\\|", "|")


def test_tokens_that_differ_and_broken_laws_have_a_status_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = proofs._rows

    def spoiled(plays: dict[str, Play], spent: dict[str, float]) -> list[Row]:
        return [row._replace(same=row.same and row.name != "disk") for row in rows(plays, spent)]

    monkeypatch.setattr(proofs, "_rows", spoiled)
    done = CliRunner().invoke(cli, SAYING["proof"].split())
    assert done.exit_code == 3
    assert done.stderr == "blockyard: disk: its tokens differ\n"
    assert "tokens identical" in done.stdout


def test_an_error_of_the_system_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "gone")

    monkeypatch.setattr(replays, "resolve", fail)
    done = CliRunner().invoke(cli, ["replay", "--requests", "3"])
    assert (done.exit_code, done.stderr) == (1, "blockyard: gone: No such file or directory\n")


def test_every_command_is_tried_here() -> None:
    def leaves(command: click.Command, name: str) -> list[str]:
        if not isinstance(command, click.Group):
            return [name]
        context = click.Context(command)
        each = ((n, command.get_command(context, n)) for n in command.list_commands(context))
        return [leaf for n, one in each if one for leaf in leaves(one, f"{name} {n}".strip())]

    tried = [*VERBS.values(), *SAYING.values()]
    wanted = [leaf for leaf in leaves(cli, "") if not leaf.endswith(" wipe")]  # it writes no file
    assert [leaf for leaf in wanted if not any(words.startswith(leaf) for words in tried)] == []
