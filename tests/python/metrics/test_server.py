"""One port with `/metrics` and `/healthz`."""

import contextlib
import errno
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import blockyard as by
from blockyard import _core
from blockyard.metrics.engine_view import EngineView
from blockyard.metrics.server import MetricsServer, serve
from loop import Loop
from yard import begin, text


def ask(server: MetricsServer, path: str, method: str = "GET") -> tuple[int, str]:
    connection = HTTPConnection(*server.address, timeout=20)
    connection.request(method, path)
    answer = connection.getresponse()
    said = answer.status, answer.read().decode()
    connection.close()
    return said


def test_both_pages_are_served_by_one_call_on_loopback() -> None:
    with serve(by.Scheduler(by.KVCache(device=33)), port=0) as server:
        assert server.address[0] == "127.0.0.1"
        assert server.url == f"http://127.0.0.1:{server.address[1]}"
        assert ask(server, "/healthz") == (200, "ok\n")
        status, words = ask(server, "/metrics")
        names = {family.name for family in text_string_to_metric_families(words)}
        assert status == 200
        assert {"blockyard_slots", "blockyard_waiting_requests", "blockyard_healthy"} <= names
        assert ask(server, "/metrics", "HEAD") == (200, "")
        assert ask(server, "/")[0] == 404
        assert ask(server, "/metrics", "POST")[0] == 405
    with pytest.raises(ConnectionRefusedError):
        ask(server, "/healthz")


def test_a_dead_engine_is_unwell_until_it_is_reset() -> None:
    scheduler = by.Scheduler(by.KVCache(device=33))
    with serve(scheduler, port=0) as server:
        scheduler.fail("worker 3 is gone")
        assert ask(server, "/healthz") == (503, "engine 0: The engine failed: worker 3 is gone.\n")
        assert '\nblockyard_healthy{engine="0"} 0.0\n' in ask(server, "/metrics")[1]
        scheduler.reset()
        assert ask(server, "/healthz")[0] == 200


@pytest.mark.law("O6")
def test_a_cache_that_is_closed_or_broken_is_unwell() -> None:
    layout = by.KVLayout.llama(layers=1, kv_heads=1, head_dim=8)
    closed = by.local(layout, device=9)
    broken = by.KVCache(device=9)
    with serve({"a": closed, "b": broken}, port=0) as server:
        assert ask(server, "/healthz")[0] == 200
        closed.close()
        with pytest.raises(by.Unavailable):
            _core._panic(broken, "verb")
        status, words = ask(server, "/healthz")
        assert status == 503
        assert "engine a: The cache is closed: make another one." in words
        assert "engine b: The cache is broken: " in words
        assert ask(server, "/metrics")[0] == 200


@pytest.mark.law("O6")
def test_a_loop_that_stands_still_is_unwell_and_the_rule_is_told() -> None:
    loop = Loop(device=33)
    held = begin(loop.cache, text(9, 80))
    loop.add("large", text(1, 60), 2)
    rule = 'blockyard_stalled{engine="0",rule="no_room"}'
    with serve(loop.scheduler, port=0) as server:
        for _ in range(3):
            assert ask(server, "/healthz")[0] == 200
            assert f"\n{rule} 0.0\n" in ask(server, "/metrics")[1]
            for _ in range(30):
                loop.now += 1.0
                loop.turn()
        status, words = ask(server, "/healthz")
        assert status == 503
        assert "Request 'large' finds no room" in words
        assert f"\n{rule} 1.0\n" in ask(server, "/metrics")[1]
        loop.cache.finish(held)
        assert ask(server, "/healthz")[0] == 200


def test_a_loop_of_your_own_says_what_stands_still() -> None:
    said: list[str] = []
    with serve(EngineView(by.KVCache(device=33), stalled=lambda: said), port=0) as server:
        assert ask(server, "/healthz")[0] == 200
        said.append("One plan waits to be dispatched.")
        status, words = ask(server, "/healthz")
    assert (status, words) == (503, "engine 0: One plan waits to be dispatched.\n")


def test_a_port_in_use_is_refused() -> None:
    with serve(by.KVCache(device=9), port=0) as server:
        port = server.address[1]
        with pytest.raises(by.Unavailable, match=f"port {port}: .*give another port"):
            serve(by.KVCache(device=9), port=port)
    # It is free again at once.
    serve(by.KVCache(device=9), port=port).close()


def connected(server: MetricsServer, words: bytes = b"") -> socket.socket:
    client = socket.create_connection(server.address, timeout=20)
    client.sendall(words)
    return client


def at_most(threads: int, before: set[threading.Thread]) -> None:
    """Waits until so few threads are left that were not there before: each ends when it is run."""
    until = time.monotonic() + 30
    while len(left := set(threading.enumerate()) - before) > threads:
        assert time.monotonic() < until, left
        time.sleep(1e-3)


@pytest.mark.law("O6")
def test_clients_that_say_nothing_or_never_end_take_few_threads_and_hold_up_nobody(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody is given up for saying nothing for long, however slow the machine is.
    monkeypatch.setattr("blockyard.metrics.server._Silent.timeout", 600)
    before = set(threading.enumerate())
    with serve(by.Scheduler(by.KVCache(device=33)), port=0) as server:
        # It stays below what waits in the system's queue: all of these are taken.
        slow = []
        for _ in range(60):
            slow.append(connected(server, b"GET /metrics HTTP/1.1\r\nX: "))
            assert ask(server, "/healthz") == (200, "ok\n")
            # One for each client that it answers at a time, and the server's own.
            at_most(16 + 1, before)
        # The first are given up, and the last are not.
        assert slow[0].recv(9) == b""
        slow[-1].sendall(b"y\r\n\r\n")
        assert slow[-1].recv(15) == b"HTTP/1.0 200 OK"
        for client in slow:
            client.close()
        assert ask(server, "/metrics")[0] == 200
    at_most(0, before)
    assert capfd.readouterr().err == ""


def test_clients_are_refused_while_the_cache_hangs() -> None:
    hangs, goes_on = threading.Semaphore(0), threading.Event()

    def stalled() -> list[str]:
        hangs.release()
        goes_on.wait(20)
        return []

    with serve(EngineView(by.KVCache(device=9), stalled=stalled), port=0) as server:
        asked = []
        for _ in range(32):
            asked.append(connected(server, b"GET /healthz HTTP/1.1\r\n\r\n"))
            hangs.acquire(timeout=20)
        one_more = connected(server, b"GET /healthz HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert one_more.recv(9) == b""
        goes_on.set()
        assert asked[-1].recv(15) == b"HTTP/1.0 200 OK"
        for client in (*asked, one_more):
            client.close()


def test_a_process_without_a_file_for_a_client_tries_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries: list[int] = []
    pauses: list[float] = []
    take = socketserver.TCPServer.get_request

    def get_request(server: socketserver.TCPServer) -> Any:
        tries.append(1)
        if len(tries) < 4:
            raise OSError(errno.EMFILE, "too many open files")
        return take(server)

    monkeypatch.setattr(socketserver.TCPServer, "get_request", get_request)
    monkeypatch.setattr("blockyard.metrics.server.time.sleep", pauses.append)
    with serve(by.KVCache(device=9), port=0) as server:
        assert ask(server, "/healthz")[0] == 200
    assert (len(tries), len(pauses)) == (4, 3)


def test_what_a_client_says_wrong_is_answered_and_not_logged(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with serve(by.KVCache(device=9), port=0) as server:
        for words, status in (
            (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b"414"),
            (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", b"431"),
            (b"GET /metrics?debug=1 HTTP/1.1\r\n\r\n", b"200"),
            (b"GET http://elsewhere/metrics HTTP/1.1\r\n\r\n", b"404"),
            (b"DELETE /metrics HTTP/1.1\r\n\r\n", b"405"),
        ):
            client = connected(server)
            with contextlib.suppress(ConnectionError):
                client.sendall(words)
            assert client.recv(12).removeprefix(b"HTTP/1.0 ") == status
            client.close()
        gone = connected(server, b"GET /metrics HTTP/1.1\r\n\r\n")
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.close()
        assert ask(server, "/healthz")[0] == 200
    assert capfd.readouterr().err == ""


def test_a_reason_that_is_no_text_is_shown() -> None:
    scheduler = by.Scheduler(by.KVCache(device=33))
    scheduler.fail("rank \ud800")
    with serve(scheduler, port=0) as server:
        assert ask(server, "/healthz") == (503, "engine 0: The engine failed: rank \\ud800.\n")


@pytest.mark.law("O6")
def test_an_engine_that_cannot_say_what_stands_still_is_unwell_and_the_others_are_told() -> None:
    def stalled() -> list[str]:
        raise KeyError("my_loop")

    broken = EngineView(by.KVCache(device=9), stalled=stalled)
    with serve({"a": broken, "b": by.KVCache(device=9)}, port=0) as server:
        status, words = ask(server, "/healthz")
        assert status == 503
        assert words == (
            "engine a: Stalls are unknown, because `stalled` raised KeyError('my_loop').\n"
        )
        status, words = ask(server, "/metrics")
        assert status == 200
        assert '\nblockyard_healthy{engine="a"} 0.0\n' in words
        assert '\nblockyard_healthy{engine="b"} 1.0\n' in words
    one = EngineView(by.KVCache(device=9), stalled=lambda: "It rests.")
    assert one.health().reasons == ("It rests.",)


def test_the_child_of_a_fork_can_close_it() -> None:
    script = """
import os
import blockyard as by
from blockyard.metrics.server import serve
server = serve(by.KVCache(device=9), port=0)
child = os.fork()
server.close()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    command = [sys.executable, "-W", "ignore", "-c", script]
    subprocess.run(command, check=True, timeout=60)  # noqa: S603 - our own


@pytest.mark.law("O6")
@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"host": "0.0.0.0"}, r"other machines can reach it.*reach=\"network\""),  # noqa: S104
        ({"host": "192.0.2.1"}, "host = '192.0.2.1'"),
        ({"host": "::"}, "host = '::'"),
        ({"host": "example.org"}, "must be an address"),
        ({"host": 5}, "host = 5"),
        ({"reach": "everywhere"}, "reach = 'everywhere'"),
        ({"port": 65_536}, "port = 65536"),
        ({"port": "http"}, "port = 'http'"),
        ({"names": "sglang"}, "names = 'sglang'"),
    ],
)
def test_an_argument_out_of_range_is_named(keywords: Any, said: str) -> None:
    with pytest.raises(by.Misuse, match=said):
        serve(by.KVCache(device=9), **({"port": 0} | keywords))


def test_an_address_of_no_machine_here_is_refused_and_what_is_no_engine() -> None:
    with pytest.raises(by.Unavailable, match=r"cannot listen on 192\.0\.2\.1"):
        serve(by.KVCache(device=9), port=0, host="192.0.2.1", reach="network")
    with pytest.raises(by.Misuse, match="engines = 3"):
        serve(3, port=0)  # type: ignore[arg-type]


def test_other_machines_may_ask_where_that_is_said() -> None:
    with serve(by.KVCache(device=9), port=0, host="0.0.0.0", reach="network") as server:  # noqa: S104
        connection = HTTPConnection("127.0.0.1", server.address[1], timeout=20)
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
        connection.close()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_the_loopback_of_ipv6_is_one() -> None:
    try:
        server = serve(by.KVCache(device=9), port=0, host="::1")
    except by.Unavailable:
        pytest.skip("no IPv6 loopback")
    with server:
        assert server.url.startswith("http://[::1]:")
        assert ask(server, "/healthz")[0] == 200
