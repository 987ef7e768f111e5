"""URLs of stores: what is refused, what is shown, and that no password ever is."""

import logging
import re
from pathlib import Path

import pytest

from blockyard._core import BlockyardError, Misuse, Unavailable
from blockyard.stores.address import block_address, identity_address, parse, tail_address
from blockyard.stores.open import SCHEMES, open_store

SECRET = "hunter2-Ω"  # noqa: S105 - of this test alone
KEY = bytes(range(32))

REFUSED = {
    "reddis://h": "did you mean 'redis'",
    "s3://bucket": "must be one of|did you mean",
    "redis": "begins with a scheme",
    "/mnt/kv": "begins with a scheme",
    "": "begins with a scheme",
    "redis://": "give a host",
    "redis://h:99999": "port must be a number",
    "redis://h:x": "port must be a number",
    "redis://[::1": "host",
    "redis://h/x": "database must be a number",
    "redis://h/-1": "database must be a number",
    "redis://h/0?db=1": "not both",
    "redis://h#1": "behind a #",
    "redis://h /0": "spaces",
    "redis://h\n/0": "spaces",
    "redis://h?timeout=0": "timeout = '0'",
    "redis://h?timeout=x": "timeout = 'x'",
    "redis://h?timeout=nan": "timeout = 'nan'",
    "redis://h?timeout=1&timeout=2": "given twice",
    "redis://h?timeuot=1": "did you mean 'timeout'",
    "redis://h?timeout": "name=value",
    "redis://h?ca=/x": "rediss:// alone",
    "rediss://h?ca=/no/such/file": "no such file",
    "redis://h?password_file=/no/such/file": "cannot be read",
    "unix://": "path of a socket",
    "unix://host/path": "path of a socket",
    "file://": "path of a folder",
    "file:kv": "from the root on",
    "file:///": "path of a folder",
    "file://host/path": "no host",
    "file:///path?timeout=1": "has none",
    "mooncake://": "give the master",
    "mooncake://h/0": "give the master",
    "mooncake://u@h": "no users",
    "mooncake://h?protocol=udp": "must be tcp or rdma",
    "mooncake://h?client=h": "must be host:port",
    "mooncake://h?client=h:1&memory=1GiB": "own: leave it out",
    "mooncake://h?memory=lots": "memory",
    "x" * 5000: "4,096 characters",
}


@pytest.mark.parametrize("url", REFUSED)
def test_a_url_that_is_none_is_refused_by_its_part(url: str) -> None:
    with pytest.raises(Misuse, match=REFUSED[url]):
        open_store(url)


@pytest.mark.parametrize("given", [None, 3, b"redis://h", ["redis://h"]])
def test_what_is_no_text_is_refused(given: object) -> None:
    with pytest.raises(Misuse, match="must be text"):
        open_store(given)  # type: ignore[arg-type]


def test_an_option_may_be_given_in_either_place_and_not_in_both() -> None:
    assert open_store("redis://h", timeout=0.25).timeout == 0.25  # type: ignore[attr-defined]
    with pytest.raises(Misuse, match="given twice"):
        open_store("redis://h?timeout=1", timeout=0.25)
    with pytest.raises(Misuse, match="did you mean 'timeout'"):
        open_store("redis://h", timout=0.25)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_scheme_has_an_example_that_opens(scheme: str) -> None:
    made = open_store(SCHEMES[scheme])
    assert made.url == SCHEMES[scheme]
    assert SCHEMES[scheme] in repr(made)


WITH_SECRET = [
    f"redis://:{SECRET}@127.0.0.1:1/0",
    f"redis://user:{SECRET}@127.0.0.1:1/0",
    f"rediss://user:{SECRET}@127.0.0.1:1/0",
    f"valkey://:{SECRET}@127.0.0.1:1",
    f"unix://:{SECRET}@/no/such/socket",
    f"reddis://:{SECRET}@h",
    f"redis://:{SECRET}@h:x",
    f"redis://:{SECRET}@[::1",
    f"redis://:{SECRET}@h/x",
    f"redis://:{SECRET}@h?nonsense=1",
    f"redis://:{SECRET}@h#{SECRET}",
    f"redis://h?password={SECRET}",
    f"redis://h?Password={SECRET}",
    f"redis://h?auth={SECRET}",
    f"redis://:{SECRET}@h?password_file=/x",
    f"redis://:{SECRET} @h",
    f"mooncake://u:{SECRET}@h",
    f"file://u:{SECRET}@/path",
    f":{SECRET}@h",
    f"redis://h?{SECRET}",
    f"redis://:12/{SECRET}@h:6379/0",
    f"redis://user:12/{SECRET}@h",
    f"redis://:12?db={SECRET}@h",
    f"redis:{SECRET}@h",
    f"{SECRET}@h:6379",
]


@pytest.mark.parametrize("url", WITH_SECRET)
def test_no_error_text_or_log_has_a_password(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    said: list[object] = []
    try:
        store = open_store(url)
        said += [store.url, repr(store), str(store)]
        store.connect()
    except BlockyardError as error:
        said += [str(error), repr(error), error.__cause__, error.__context__]
    assert said
    for one in [*said, caplog.text]:
        assert SECRET not in str(one)
        assert "hunter2" not in repr(one)


def test_a_password_of_the_call_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKYARD_REDIS_PASSWORD", SECRET)
    for store in (
        open_store("redis://127.0.0.1:1"),
        open_store("redis://127.0.0.1:1", password=SECRET),
    ):
        assert SECRET not in repr(store) + store.url
        with pytest.raises(Unavailable, match="nobody listens there") as caught:
            store.connect()
        assert SECRET not in str(caught.value)


def test_a_password_file_is_read_again_for_each_connection(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("")
    with pytest.raises(Misuse, match="is empty"):
        open_store(f"redis://127.0.0.1:1?password_file={file}")
    file.write_bytes(b"\xff\n")
    with pytest.raises(Misuse, match="no text"):
        open_store(f"redis://127.0.0.1:1?password_file={file}")
    file.write_text(f"{SECRET}\n")
    store = open_store(f"redis://127.0.0.1:1?password_file={file}")
    assert str(file) in store.url
    file.unlink()
    with pytest.raises(Unavailable, match="cannot be read"):
        store.connect()


def test_a_package_that_is_missing_is_named_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys  # noqa: PLC0415 - of this test alone

    for module in [name for name in sys.modules if re.match(r"(redis|hiredis)\b", name)]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "blockyard.stores.redis_store", raising=False)
    monkeypatch.setitem(sys.modules, "hiredis", None)
    with pytest.raises(Unavailable, match=r"needs .*hiredis.*pip install .*\[redis\]"):
        open_store("redis://h")
    monkeypatch.setitem(sys.modules, "mooncake", None)
    monkeypatch.setitem(sys.modules, "mooncake.store", None)
    # Its client is imported when it first connects, after the master was found to be there.
    store = open_store("mooncake://127.0.0.1:1")
    with pytest.raises(Unavailable, match="the master cannot be reached"):
        store.connect()


def test_addresses_are_read_as_they_are_written() -> None:
    written = block_address(0xAB, 3, KEY)
    assert written == f"by1/00000000000000ab/3/{KEY.hex()}"
    assert parse(written) == (0xAB, 3, 0, KEY)
    grouped = block_address(0xAB, 3, KEY, group=2)
    assert grouped == f"by1/00000000000000ab/3-2/{KEY.hex()}"
    assert parse(grouped) == (0xAB, 3, 2, KEY)
    tail = tail_address(0xAB, 0, 0xCD, 12, group=1)
    assert tail == "by1/00000000000000ab/0-1/tmp/00000000000000cd/12"
    assert parse(tail) == (0xAB, 0, 1, None)
    assert parse(identity_address(0xAB)) == (0xAB, None, 0, None)
    for text in ("", "by1/", "by2/" + written[4:], written + "0", written[:-1], f"{written}\n"):
        assert parse(text) is None
    for text in (written.replace("/3/", "/03/"), written.replace("/3/", "/3-0/"), tail + "x"):
        assert parse(text) is None
