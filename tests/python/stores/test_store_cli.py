"""`blockyard store`: what it finds wrong, what it lists, what it deletes, and what it refuses."""

import json
import secrets
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import blockyard as by
from blockyard._core import Unavailable
from blockyard.stores import Session
from blockyard.stores.address import block_address, identity_address, tail_address
from blockyard.stores.identity import fields_of, number_of, text_of
from blockyard.stores.open import open_store
from blockyard.tools.cli import cli
from blockyard.tools.store import check as checking
from blockyard.tools.store.check import check
from lying_redis import lying_redis
from store_servers import free_port, redis_server

SECRET = "hunter2"  # noqa: S105 - of this test alone
CONFIG = """
[blockyard]
device = 9
layout = "{layout}"
namespace = {{ model = "m", weights = "{weights}" }}
"""
LAYOUT = "llama-3-8b"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy is no slow store."""
    monkeypatch.setattr(checking, "PATIENCE", 1e6)


def typed(*words: object, given: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["store", *map(str, words)], input=given)


def told(*words: object, status: int = 0) -> str:
    done = typed(*words)
    assert done.exit_code == status, done.output
    assert done.stderr == ""
    return done.stdout


def refused(*words: object, status: int = 2) -> str:
    done = typed(*words)
    assert (done.exit_code, done.stdout) == (status, ""), done.output
    (line,) = done.stderr.splitlines()
    assert line.startswith("blockyard: ")
    return line


@pytest.fixture(params=["folder", "redis"])
def url(request: Any, tmp_path: Path) -> Iterator[str]:
    if request.param == "folder":
        yield f"file://{tmp_path}/kv"
    else:
        with redis_server(tmp_path) as server:
            yield f"{server.url}/0"


@pytest.fixture
def session(url: str) -> Iterator[Session]:
    with closing(open_store(url).connect()) as made:
        yield made


def config(folder: Path, weights: str) -> tuple[Path, int, dict[str, str]]:
    """A configuration; its file, the number of its identity, and its fields."""
    path = folder / f"{weights}.toml"
    path.write_text(CONFIG.format(layout=LAYOUT, weights=weights))
    read = by.Config.read(path)
    assert read.layout is not None
    fields = dict(fields_of(read.identity, read.layout))
    return path, number_of(fields), fields


def fill(session: Session, identity: int, fields: dict[str, str] | None) -> None:
    """Puts 5 blocks of two ranks, and a parked one."""
    if fields is not None:
        session.put(identity_address(identity), memoryview(text_of(fields)))
    for count in range(5):
        address = block_address(identity, count % 2, secrets.token_bytes(32))
        session.put(address, memoryview(bytes(1000)))
    session.put(tail_address(identity, 0, 1, 2), memoryview(bytes(10)), 60.0)


def listed(session: Session) -> set[str]:
    return {address for address, _ in session.list("")}


def test_a_store_that_works_is_said_to_work_and_is_left_empty(url: str, session: Session) -> None:
    said = told("check", url, "--block-bytes", "64 KiB", "--blocks", 4)
    assert said.splitlines()[0] == url
    assert "It works" in said
    for word in ("write", "read", "ask"):
        assert any(line.startswith(word) for line in said.splitlines())
    assert listed(session) == set()
    found = json.loads(told_json("check", url, "--blocks", 2, "--block-bytes", 100))
    assert (found["well"], found["faults"], found["blocks"]) == (True, [], 2)
    assert {name: len(times) for name, times in found["seconds"].items()} == {
        "write": 2,
        "read": 2,
        "ask": 16,
    }
    assert listed(session) == set()


def told_json(*words: object, status: int = 0) -> str:
    done = typed(*words, "--json", "-")
    assert done.exit_code == status, done.output
    return done.stdout


def test_a_store_that_is_down_is_a_fault() -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    said = told("check", url, status=1)
    assert said.splitlines()[1].startswith("fault: nobody listens there")
    assert json.loads(told_json("check", url, status=1))["well"] is False
    assert "nobody listens there" in refused("ls", url, status=1)
    assert "nobody listens there" in refused("wipe", url, "0" * 16, "--yes", status=1)


def test_a_store_that_refuses_is_a_fault(tmp_path: Path) -> None:
    with redis_server(tmp_path, "--requirepass", SECRET) as server:
        assert "it wants a password" in told("check", server.url, status=1)
        wrong = server.url.replace("//", "//:wr0ng@")
        said = told("check", wrong, status=1)
        assert "refuses the password" in said
        assert "wr0ng" not in said
        right = server.url.replace("//", f"//:{SECRET}@")
        for command in (["check", right, "--blocks", 2], ["ls", right]):
            assert SECRET not in told(*command)
        assert SECRET not in told_json("check", right, "--blocks", 2)


@pytest.mark.parametrize(
    ("policy", "fault"), [("allkeys-lru", "it is full, and evicts"), ("noeviction", "it is full")]
)
def test_a_store_that_is_full_is_a_fault(tmp_path: Path, policy: str, fault: str) -> None:
    with redis_server(tmp_path, memory="8mb", policy=policy) as server:
        said = told("check", server.url, status=1)
        assert "fault: it" in said
        assert fault in said
        with closing(open_store(server.url).connect()) as session:
            assert listed(session) == set()


def test_a_replica_is_a_fault(tmp_path: Path) -> None:
    words = ["--replicaof", "127.0.0.1", str(free_port())]
    with redis_server(tmp_path, *words) as server:
        said = told("check", server.url, status=1)
        assert "note: it is a replica" in said
        assert "fault: it is a replica" in said


def test_an_evicting_store_that_has_room_is_noted_only(tmp_path: Path) -> None:
    with redis_server(tmp_path, memory="0") as server:
        said = told("check", server.url, "--blocks", 2)
        assert "note: it has no maxmemory" in said


class Faulty:
    """A folder whose answers are made worse."""

    def __init__(self, root: Path, fault: str) -> None:
        self.inner = open_store(f"file://{root}/kv")
        self.url = self.inner.url
        self.fault = fault

    def connect(self) -> Any:
        session = self.inner.connect()
        get, has, delete = session.get, session.has, session.delete

        def flipped(address: str, into: memoryview) -> Any:
            found = get(address, into)
            if found:
                into[len(found) // 2] ^= 1
            return found

        made: dict[str, Any] = {
            "flips": ("get", flipped),
            "cuts": ("get", lambda address, into: (get(address, into) or b"")[:-1] or None),
            "loses": ("get", lambda *_: None),
            "boasts": ("has", lambda addresses: [True for _ in addresses]),
            "forgets": ("has", lambda addresses: [False for _ in addresses]),
            "keeps": ("delete", len),
            "drops": ("delete", delete),
            "refuses": ("get", self.refuse),
            "owns": ("get", lambda _, into: into),
        }
        assert has([]) == []
        setattr(session, *made[self.fault])
        return session

    def refuse(self, *_: object) -> None:
        raise Unavailable("it went away")


FAULTS = {
    "flips": "it lies: 3 of 3",
    "cuts": "it lies: 3 of 3",
    "loses": "lost 3 of 3",
    "boasts": "blocks which nobody has written",
    "forgets": "it has 0 of 3",
    "keeps": "still has 3",
    "refuses": "went away",
    "owns": "a value for a block which nobody has written",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_store_that_lies_is_found_out(tmp_path: Path, fault: str) -> None:
    seen = check(Faulty(tmp_path, fault), block_bytes=4096, blocks=3, step=lambda: None)
    assert any(FAULTS[fault] in one for one in seen.faults), seen.faults
    seen = check(Faulty(tmp_path, "drops"), block_bytes=4096, blocks=3, step=lambda: None)
    assert seen.faults == []


def test_a_store_whose_lookups_outlast_engines_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "PATIENCE", 0.0)
    said = told("check", f"file://{tmp_path}/kv", "--blocks", 1, status=1)
    assert "fault: it is slow: a lookup of 128 blocks takes" in said


def test_a_server_that_speaks_no_redis_is_a_fault() -> None:
    with lying_redis(lambda one: one.sendall(b"HTTP/1.1 400\r\n")) as url:
        assert "Protocol" in told("check", url, status=1)


def test_ls_shows_whose_blocks_there_are(url: str, session: Session, tmp_path: Path) -> None:
    assert told("ls", url) == f"{url} has no blocks\n"
    _, identity, fields = config(tmp_path, "v1")
    fill(session, identity, fields)
    fill(session, 0xAB, None)
    fill(session, 0xCD, {"model": "\x1b[31mred\nline"})
    session.put(identity_address(0xEF), memoryview(b"{no json"))
    session.put("theirs/1", memoryview(b"x"))
    said = told("ls", url)
    assert f"{identity:016x}\n" in said
    assert '  model = "m"\n' in said
    assert '  weights = "v1"\n' in said
    assert said.count("  rank 0: 3 blocks, and 1 parked without a key, 2.94 KiB\n") == 3
    assert said.count("  rank 1: 2 blocks, 1.95 KiB\n") == 3
    assert said.count("without a text that says whose it is") == 2
    assert "\x1b" not in said
    assert "theirs" not in said
    found = json.loads(told_json("ls", url))["identities"]
    (ours,) = [one for one in found if one["identity"] == f"{identity:016x}"]
    assert ours["fields"] == fields
    assert ours["parts"][0] == {"rank": 0, "group": 0, "blocks": 3, "tails": 1, "nbytes": 3010}


def test_wipe_deletes_one_identity_and_nothing_else(
    url: str, session: Session, tmp_path: Path
) -> None:
    path, ours, fields = config(tmp_path, "v1")
    other, theirs, other_fields = config(tmp_path, "v2")
    for identity, which in ((ours, fields), (theirs, other_fields), (0xAB, {"model": "x"})):
        fill(session, identity, which)
    session.put("theirs/1", memoryview(b"x"))
    before = listed(session)
    asked = typed("wipe", url, path, given="n\n")
    assert asked.exit_code == 130
    assert "Delete all blocks of these?" in asked.stdout
    assert listed(session) == before
    said = told("wipe", url, path, "--yes", "--quiet")
    assert said == f"{ours:016x}: deleted 6 values, 4.89 KiB\n"
    assert listed(session) == {one for one in before if f"{ours:016x}" not in one}
    # By the name that `ls` shows, and twice is once.
    said = told("wipe", url, f"{0xAB:016x}", f"{0xAB:016x}", "--yes", "--quiet")
    assert said == f"{0xAB:016x}: deleted 6 values, 4.89 KiB\n"
    assert listed(session) == {one for one in before if f"{theirs:016x}" in one} | {"theirs/1"}
    assert f"there are {theirs:016x}" in refused("wipe", url, path, "--yes")
    assert "deleted 6 values" in told("wipe", url, other, "--yes")
    assert listed(session) == {"theirs/1"}
    assert told("wipe", url, other, "--yes") == f"{url} has no blocks of these\n"


def test_wipe_refuses_what_names_no_identity(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/kv"
    assert "is no identity and no file" in refused("wipe", url, "everything", "--yes")
    assert "is no configuration" in refused("wipe", url, tmp_path / "no.toml", "--yes")
    bare = tmp_path / "bare.toml"
    bare.write_text("device = 9\n")
    assert "has no layout" in refused("wipe", url, bare, "--yes")
    bare.write_text(f'device = 9\nlayout = "{LAYOUT}"\n')
    assert "names no model" in refused("wipe", url, bare, "--yes")
    assert not (tmp_path / "kv").exists()


@pytest.mark.parametrize("command", [["check"], ["ls"], ["wipe", "0" * 16]])
def test_a_url_that_is_none_is_bad_input(command: list[str]) -> None:
    said = refused(command[0], f"reddis://:{SECRET}@h", *command[1:])
    assert "did you mean 'redis'" in said
    assert SECRET not in said


def test_the_result_goes_to_a_file_that_can_be_written(url: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    told("check", url, "--blocks", 1, "--json", out)
    assert json.loads(out.read_text())["url"] == url
    assert "make it first" in refused("check", url, "--json", tmp_path / "not" / "there")
