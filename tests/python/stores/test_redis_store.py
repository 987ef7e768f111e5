"""Redis as a store where it is down, full, stopped, killed, strict, lying or slow."""

import resource
import secrets
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from blockyard._core import Misuse, Unavailable
from blockyard.stores import Session, Telling
from blockyard.stores.open import open_store
from lying_redis import Answer, lying_redis
from store_servers import Server, free_port, redis_server

pytestmark = pytest.mark.law("INV-35a", "INV-35b")

MIB = 1 << 20
BYTES = secrets.token_bytes(2 * MIB)
VALUE = memoryview(BYTES)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with redis_server(tmp_path_factory.mktemp("redis")) as made:
        yield made


def got(session: Session, address: str, room: int = 2 * MIB) -> bytes | None:
    found = session.get(address, memoryview(bytearray(room)))
    return None if found is None else bytes(found)


def connected(url: str) -> "closing[Session]":
    # A machine that is busy is no slow server.
    store = open_store(url) if "timeout" in url else open_store(url, timeout=30)
    return closing(store.connect())


def test_a_server_that_is_down_is_found_so_at_once_and_used_when_it_is_up(tmp_path: Path) -> None:
    port = free_port()
    store = open_store(f"redis://127.0.0.1:{port}")
    with pytest.raises(Unavailable, match="nobody listens there"):
        store.connect()
    with redis_server(tmp_path, port=port), closing(store.connect()) as session:
        session.put("a", VALUE)
        assert got(session, "a") == BYTES


def test_a_session_goes_on_after_its_server_was_started_again(tmp_path: Path) -> None:
    port = free_port()
    with ExitStack() as stack:
        with redis_server(tmp_path, port=port) as server:
            session = stack.enter_context(connected(server.url))
            session.put("a", VALUE)
            server.kill()
            for _ in range(2):
                with pytest.raises(Unavailable, match=r"closed|nobody listens"):
                    session.put("a", VALUE)
        with redis_server(tmp_path, port=port):
            assert got(session, "a") is None
            session.put("a", VALUE)
            assert got(session, "a") == BYTES


@pytest.mark.parametrize("verb", ["put", "get"])
def test_a_server_killed_during_a_call_fails_that_call(tmp_path: Path, verb: str) -> None:
    with redis_server(tmp_path) as server, connected(server.url) as session:
        session.put("a", VALUE)
        begun, failed = threading.Event(), []

        def work() -> None:
            try:
                while True:
                    if verb == "put":
                        session.put("a", VALUE)
                    else:
                        assert got(session, "a") == BYTES
                    begun.set()
            except Unavailable as error:
                failed.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        begun.wait()
        server.kill()
        thread.join(30)
        assert not thread.is_alive()
        assert len(failed) == 1


def test_a_stopped_server_holds_no_call_beyond_the_timeout(server: Server) -> None:
    with connected(f"{server.url}?timeout=0.5") as session:
        session.put("a", VALUE)
        server.stop()
        try:
            store = open_store(f"{server.url}?timeout=0.5")
            calls: list[Callable[[], object]] = [
                lambda: session.get("a", memoryview(bytearray(2 * MIB))),
                lambda: session.put("a", VALUE),
                lambda: session.has(["a"]),
                store.connect,
            ]
            for call in calls:
                with pytest.raises(Unavailable, match=r"no answer within 0\.5 s"):
                    call()
        finally:
            server.go_on()
        # The answers of then are no answers to what is asked now.
        session.put("b", VALUE[:100])
        assert got(session, "b") == BYTES[:100]
        assert got(session, "a") == BYTES


def test_a_full_server_says_so_and_serves_what_it_has(tmp_path: Path) -> None:
    with (
        redis_server(tmp_path, memory="8mb", policy="noeviction") as server,
        connected(server.url) as session,
    ):
        there = 0
        with pytest.raises(Unavailable, match="it is full"):  # noqa: PT012 - one of these puts
            for there in range(20):
                session.put(f"a/{there}", VALUE)
        assert 0 < there < 8
        assert got(session, "a/0") == BYTES
        assert isinstance(session, Telling)
        (note,) = session.notes()
        assert "puts fail then" in note
        assert session.delete([f"a/{place}" for place in range(there)]) == there


def test_a_server_that_evicts_answers_for_what_is_left(tmp_path: Path) -> None:
    with redis_server(tmp_path, memory="8mb") as server, connected(server.url) as session:
        addresses = [f"a/{place}" for place in range(12)]
        for address in addresses:
            session.put(address, VALUE)
        there = session.has(addresses)
        assert 0 < sum(there) < 5
        for address, is_there in zip(addresses, there, strict=True):
            assert got(session, address) == (BYTES if is_there else None)
        assert isinstance(session, Telling)
        assert ["evicted" in note for note in session.notes()] == [True]


def test_a_replica_and_a_server_without_a_limit_are_told(tmp_path: Path) -> None:
    words = ["--replicaof", "127.0.0.1", str(free_port()), "--replica-serve-stale-data", "yes"]
    with redis_server(tmp_path, *words, memory="0") as server, connected(server.url) as session:
        with pytest.raises(Unavailable, match="give the URL of the primary"):
            session.put("a", VALUE)
        assert isinstance(session, Telling)
        replica, limit = session.notes()
        assert "replica" in replica
        assert "no maxmemory" in limit


def test_a_password_is_wanted_wrong_and_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "p@ss/w:rd"  # noqa: S105 - of this test alone
    file = tmp_path / "password"
    with redis_server(tmp_path, "--requirepass", secret) as server:
        with pytest.raises(Unavailable, match="BLOCKYARD_REDIS_PASSWORD"):
            open_store(server.url).connect()
        with pytest.raises(Unavailable, match="refuses the password") as caught:
            open_store(server.url, password="wr0ng").connect()  # noqa: S106 - likewise
        assert "wr0ng" not in str(caught.value)
        at = server.url.replace("//", "//:p%40ss%2Fw%3Ard@")
        for store in (open_store(server.url, password=secret), open_store(at)):
            with closing(store.connect()) as session:
                assert session.has(["a"]) == [False]
            assert secret not in f"{store.url} {store!r}"
        monkeypatch.setenv("BLOCKYARD_REDIS_PASSWORD", secret)
        with connected(server.url) as session:
            assert session.has(["a"]) == [False]
        monkeypatch.delenv("BLOCKYARD_REDIS_PASSWORD")
        file.write_text("not yet")
        store = open_store(f"{server.url}?password_file={file}")
        with pytest.raises(Unavailable, match="refuses the password"):
            store.connect()
        file.write_text(f"{secret}\n")
        with closing(store.connect()) as session:
            assert session.has(["a"]) == [False]


def test_a_password_that_a_server_repeats_is_in_no_error(tmp_path: Path) -> None:
    secret = "hunter2" * 40
    with redis_server(tmp_path, "--rename-command", "AUTH", "OTHER") as server:
        for at in (server.url, server.url.replace("//", "//user@")):
            with pytest.raises(Unavailable, match="knows no AUTH") as caught:
                open_store(at, password=secret).connect()
            assert "hunter2" not in str(caught.value)


def test_a_user_who_may_not_write_is_told_so(tmp_path: Path) -> None:
    words = ["--user", "reader", "on", ">pw", "~*", "+getrange", "+exists", "+ping", "+select"]
    with redis_server(tmp_path, *words) as server:
        at = server.url.replace("//", "//reader:pw@") + "/0"
        with connected(at) as session:
            with pytest.raises(Unavailable, match="may not do this"):
                session.put("a", VALUE)
            assert got(session, "a") is None
            assert isinstance(session, Telling)
            assert session.notes() == []
        with pytest.raises(Unavailable, match="out of range"):
            open_store(server.url.replace("//", "//reader:pw@") + "/999").connect()


def test_a_server_that_takes_no_more_clients(tmp_path: Path) -> None:
    with redis_server(tmp_path, "--maxclients", "2") as server, ExitStack() as stack:
        store = open_store(server.url)
        with pytest.raises(Unavailable, match="raise maxclients"):  # noqa: PT012 - one of these
            for _ in range(4):
                stack.enter_context(closing(store.connect()))


def test_a_key_of_another_kind_is_no_value(server: Server) -> None:
    with connected(server.url) as session:
        with socket.create_connection(("127.0.0.1", server.port)) as link:
            link.sendall(b'RPUSH kind/list x\r\nSET kind/\xff x\r\nSET kind/e ""\r\n')
            link.recv(100)
        # It is an answer, and not a fault of the server.
        assert got(session, "kind/list") == b""
        assert got(session, "kind/e") is None
        assert dict(session.list("kind/")) == {"kind/e": 0}


def test_a_prefix_is_no_pattern(server: Server) -> None:
    with connected(server.url) as session:
        odd = ["o*d/1", "o[d]/1", "o?d/1", "o\\d/1"]
        for address in [*odd, "odd/1"]:
            session.put(address, VALUE[:1])
        for address in odd:
            assert [*session.list(address[:-1])] == [(address, 1)]


def test_a_value_of_half_a_gigabyte_is_not_read(server: Server) -> None:
    with connected(server.url) as session:
        with socket.create_connection(("127.0.0.1", server.port)) as link:
            # It takes no memory of the server's to speak of: its pages are never written.
            link.sendall(b"SETRANGE huge 50000000 x\r\n")
            assert link.recv(100) == b":50000001\r\n"
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found = got(session, "huge", 4096)
        assert found is not None
        assert len(found) == 4097
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8192
        session.delete(["huge"])


def test_no_more_is_read_than_a_value_may_have() -> None:
    sent = []

    def flood(one: socket.socket) -> None:
        one.sendall(b"$2147483648\r\n")
        with suppress(OSError):
            for _ in range(256):
                one.sendall(bytes(MIB))
                sent.append(MIB)

    with lying_redis(flood) as url, connected(f"{url}?timeout=30") as session:
        with pytest.raises(Unavailable, match="longer than what was asked for"):
            got(session, "a", 4096)
        with pytest.raises(Unavailable, match="longer than what was asked for"):
            session.has(["a"])
    # What the system has taken from the server is not what this process has.
    assert sum(sent) < 128 * MIB


def test_a_server_that_sends_a_byte_at_a_time_holds_no_call() -> None:
    """The client's timeout is for each byte."""
    whole = threading.Event()

    def drip(one: socket.socket) -> None:
        one.sendall(b"$100\r\n")
        with suppress(OSError):
            for _ in range(100):
                one.sendall(b"x")
                time.sleep(0.1)
            whole.set()

    with lying_redis(drip) as url, connected(f"{url}?timeout=0.5") as session:
        with pytest.raises(Unavailable, match=r"no answer within 0\.5 s"):
            got(session, "a", 4096)
        assert not whole.is_set()


def half(one: socket.socket) -> None:
    one.sendall(b"$100\r\nab")
    one.shutdown(socket.SHUT_RDWR)


def nest(one: socket.socket) -> None:
    one.sendall(b"*1\r\n" * 1000)
    one.shutdown(socket.SHUT_RDWR)


LIES: dict[str, Answer] = {
    "2 GiB, none of it sent": lambda one: one.sendall(b"$2147483648\r\n"),
    "no protocol": lambda one: one.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "a length below none": lambda one: one.sendall(b"$-5\r\n"),
    "no length": lambda one: one.sendall(b"$abc\r\n"),
    "a list": lambda one: one.sendall(b"*2\r\n$1\r\na\r\n:5\r\n"),
    "a nest": nest,
    "half an answer": half,
    "nothing": lambda one: one.shutdown(socket.SHUT_RDWR),
    "an error": lambda one: one.sendall(b"-ERR of no known kind\r\n"),
    "a status": lambda one: one.sendall(b"+QUEUED\r\n"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_server_that_lies_is_unavailable_and_takes_no_memory(lie: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with (
        lying_redis(LIES[lie]) as url,
        connected(f"{url}?timeout=0.5") as session,
    ):
        calls: list[Callable[[], object]] = [
            lambda: session.put("a", VALUE[:100]),
            lambda: session.has(["a", "b"]),
            lambda: session.delete(["a"]),
            lambda: [*session.list("a")],
        ]
        for call in calls:
            with pytest.raises(Unavailable):
                call()
        if lie == "a status":
            # It is no error of the protocol: whoever reads the value finds that it is none.
            assert got(session, "a", 4096) == b"QUEUED"
        else:
            with pytest.raises(Unavailable):
                got(session, "a", 4096)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 65_536, grown


def test_an_answer_that_came_late_is_not_taken_for_the_next(server: Server) -> None:
    """An interrupt in a call must not leave its answer on the connection."""
    with connected(server.url) as session:
        session.put("late/1", memoryview(b"one"))
        session.put("late/2", memoryview(b"two"))

        class Interrupt(Exception):
            pass

        link = session._link  # type: ignore[attr-defined]
        read = link.read_response

        def interrupted() -> None:
            raise Interrupt

        link.read_response = interrupted
        with pytest.raises(Interrupt):
            got(session, "late/1")
        link.read_response = read
        assert got(session, "late/2") == b"two"


def test_encryption_passes_through(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words += ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=test"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([openssl, *words], check=True, capture_output=True)  # noqa: S603 - words of this test
    port = free_port()
    more = ["--port", "0", "--tls-port", str(port), "--tls-cert-file", str(certificate)]
    more += ["--tls-key-file", str(key), "--tls-ca-cert-file", str(certificate)]
    more += ["--tls-auth-clients", "no"]
    with redis_server(tmp_path, *more, port=port):
        with connected(f"rediss://127.0.0.1:{port}?ca={certificate}") as session:
            session.put("a", VALUE)
            assert got(session, "a") == BYTES
            assert session.has(["a", "b"]) == [True, False]
        with pytest.raises(Unavailable, match=r"(?i)certificate"):
            open_store(f"rediss://127.0.0.1:{port}").connect()
        with pytest.raises(Unavailable):
            open_store(f"redis://127.0.0.1:{port}?timeout=0.5").connect()


def test_a_ca_of_a_plain_connection_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("")
    with pytest.raises(Misuse, match="rediss:// alone"):
        open_store(f"redis://h?ca={tmp_path}/ca")
