"""`serve`: `/metrics` and `/healthz` on one port, for Prometheus and for who starts processes.

`prometheus_client.start_http_server` has no bound: each silent client keeps a thread.
"""

import ipaddress
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from http import HTTPStatus
from threading import Lock, Thread
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client.exposition import ThreadingWSGIServer

from blockyard._core import Misuse, Unavailable
from blockyard._typing import override
from blockyard.metrics.aliases import Names
from blockyard.metrics.collector import EngineCollector
from blockyard.metrics.engine_view import EngineView
from blockyard.metrics.text import CONTENT_TYPE, text
from blockyard.scheduling.scheduler import Scheduler
from blockyard.shared.log import unclosed
from blockyard.shared.owner import is_foreign
from blockyard.shared.single import Single
from blockyard.shared.validate import integer, one_of
from blockyard.yard.cache import KVCache

__all__ = ["PORT", "MetricsServer", "Reach", "Source", "serve"]

PORT: Final = 9464
"""The port where none is given, which is customary for exporters within a process."""

_CLIENTS: Final = 16
"""Clients at a time: one more, and the oldest is given up."""
_MOST_CLIENTS: Final = 2 * _CLIENTS
"""Clients at a time that are not refused: none of these can be given up while the cache hangs."""
_PAUSE: Final = 0.05
"""Seconds until it is tried again to take a client, where the process has no file left for one."""

Reach: TypeAlias = Literal["loopback", "network"]
"""From where it may be asked."""
Source: TypeAlias = Scheduler | KVCache | EngineView
"""An engine: its scheduler, its cache where that has another scheduler, or what has more to it."""

_Client: TypeAlias = Any
"""A client's socket, or its address."""
_Start: TypeAlias = Callable[[str, list[tuple[str, str]]], object]
_TEXT: Final = "text/plain; charset=utf-8"


class MetricsServer(Single):
    """A port that answers `/metrics` and `/healthz`, in threads of its own. `serve` makes it.

    Closing it, or leaving its `with`, frees the port; so does the end of the process.
    """

    def __init__(self, server: "_Server") -> None:
        self._server = server
        self._thread = Thread(target=_answer, args=(server,), name="blockyard-metrics", daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """The address and the port."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    @property
    def url(self) -> str:
        """Where it is asked, without a path."""
        host, port = self.address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def __del__(self) -> None:
        """Has its thread free the port where it was not closed; it waits for no thread."""
        server: _Server | None = getattr(self, "_server", None)
        if server is not None and not server.closed:
            server.dropped = True
            unclosed(
                f"the MetricsServer at {self.url}", "call close(), or use it in a `with`", self
            )

    def close(self) -> None:
        """Answers nothing more, and frees the port; once is enough."""
        # After a fork there is no thread in the child, and nobody to wait for.
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Closes it."""
        self.close()


def serve(
    engines: Source | Mapping[str, Source],
    *,
    port: int = PORT,
    host: str = "127.0.0.1",
    reach: Reach = "loopback",
    names: Names | None = None,
) -> MetricsServer:
    r"""Answers `/metrics` and `/healthz` on one port, for all ranks of the engines of this process.

    `/healthz` is 200, or 503 with the reasons: an engine is dead, a cache is closed or broken, or a
    loop stands still. Nobody is asked who they are, and neither page has a token, a key, a salt or
    the id of a request but those that a sentence of a stall names.

    Args:
        engines: One engine, which has the label `engine="0"`, or several by that label.
        port: The port; 0 for any that is free.
        host: An address of this machine.
        reach: "network" for an address that other machines reach.
        names: "vllm" to export the same numbers under vLLM's names, too.

    Raises:
        Misuse: An argument is out of range, or the address is not loopback while `reach` is.
        Unavailable: The port is in use, or the address is none of this machine.

    Example:
        >>> import blockyard as by
        >>> from urllib.request import urlopen
        >>> scheduler = by.Scheduler(by.KVCache(device=64), metrics=True)
        >>> with serve(scheduler, port=0) as server:
        ...     urlopen(f"{server.url}/healthz").read()
        b'ok\n'
    """
    port = integer("port", port, least=0, most=65_535)
    _check_reach(host, one_of("reach", reach, ("loopback", "network")))
    if isinstance(engines, Scheduler | KVCache | EngineView):
        engines = {"0": engines}
    if not isinstance(engines, Mapping):
        raise Misuse(f"engines = {engines!r:.60}: give a Scheduler, a KVCache, or several by name")
    every = {
        name: source if isinstance(source, EngineView) else EngineView(source)
        for name, source in engines.items()
    }
    collector = EngineCollector(every, names=names)
    try:
        server = make_server(host, port, _pages(collector), _Server, _Silent)
    except (OSError, OverflowError) as error:
        if is_foreign(error):
            raise  # a timeout of a signal handler is an OSError
        raise Unavailable(
            f"cannot listen on {host}, port {port}: {error}; give another port, or port=0 "
            "for any that is free"
        ) from error
    return MetricsServer(server)


def _answer(server: "_Server") -> None:
    """The thread: it looks ten times a second whether it is to end."""
    try:
        server.serve_forever(0.1)
    except _Dropped:
        server.server_close()


def _check_reach(host: object, reach: Reach) -> None:
    if not isinstance(host, str):
        raise Misuse(f'host = {host!r:.60}: must be an address such as "127.0.0.1"')
    try:
        alone = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError as error:
        raise Misuse(f'host = {host!r:.60}: must be an address such as "127.0.0.1"') from error
    if not alone and reach == "loopback":
        raise Misuse(
            f"host = {host!r}: other machines can reach it without authentication: use "
            'reach="network", behind a firewall'
        )


def _pages(collector: EngineCollector) -> Callable[..., Any]:
    """The two pages."""
    # However many ask, one of their threads at a time competes with the engine's for the GIL.
    turn = Lock()

    def page(asked: dict[str, Any], start: _Start) -> Iterable[bytes]:
        path, method = asked.get("PATH_INFO"), asked.get("REQUEST_METHOD")
        kind = _TEXT
        if method not in {"GET", "HEAD"}:
            status, said = HTTPStatus.METHOD_NOT_ALLOWED, "nothing can be changed here: GET\n"
        elif path == "/metrics":
            with turn:
                status, said, kind = HTTPStatus.OK, text(collector.collect()), CONTENT_TYPE
        elif path == "/healthz":
            status, said = _health(collector)
        else:
            status, said = HTTPStatus.NOT_FOUND, "ask for /metrics or /healthz\n"
        # A reason may have what is no text.
        body = said.encode(errors="backslashreplace")
        length = ("Content-Length", str(len(body)))
        start(f"{status.value} {status.phrase}", [("Content-Type", kind), length])
        return [] if method == "HEAD" else [body]

    return page


def _health(collector: EngineCollector) -> tuple[HTTPStatus, str]:
    lines = [
        f"engine {name}: {reason}\n"
        for name, health in collector.health().items()
        for reason in health.reasons
    ]
    return (HTTPStatus.SERVICE_UNAVAILABLE, "".join(lines)) if lines else (HTTPStatus.OK, "ok\n")


class _Dropped(Exception):
    """The server object was dropped."""


class _Server(ThreadingWSGIServer):
    """A thread for each question, and few at a time; none is waited for when it is closed."""

    dropped = False
    """Whether the server object was dropped."""
    closed = False

    @override
    def service_actions(self) -> None:
        """Ends it if the server object was dropped."""
        if self.dropped:
            raise _Dropped

    @override
    def server_close(self) -> None:
        """Frees the port."""
        self.closed = True
        super().server_close()

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self._clients: dict[_Client, None] = {}
        """Those that are answered, the oldest first."""
        super().__init__(address, handler)

    @override
    def get_request(self) -> tuple[_Client, _Client]:
        """Takes a client; where that fails it is not tried again at once, as it would be."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(_PAUSE)
            raise

    @override
    def process_request(self, request: _Client, client_address: _Client) -> None:
        """Answers a client in a thread. Where there are many, one that is slow makes room."""
        clients = list(self._clients)
        if len(clients) >= _MOST_CLIENTS:
            self.shutdown_request(request)
            return
        if len(clients) >= _CLIENTS:
            with suppress(OSError):
                clients[len(clients) - _CLIENTS].shutdown(socket.SHUT_RDWR)
        self._clients[request] = None
        super().process_request(request, client_address)

    @override
    def shutdown_request(self, request: _Client) -> None:
        """Ends with a client."""
        self._clients.pop(request, None)
        super().shutdown_request(request)

    @override
    def handle_error(self, request: _Client, client_address: _Client) -> None:
        """Says nothing: it is of the client, which went away, or said nothing for too long."""

    @override
    def server_bind(self) -> None:
        """Takes the port; unlike its parent it asks no name server for the machine's name."""
        # Another process that listens is not pushed aside; one that has ended left nothing behind.
        socket.socket.setsockopt(self.socket, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()


class _Silent(WSGIRequestHandler):
    """Logs no question: they come every few seconds."""

    timeout = 10
    """Seconds after which a silent client is dropped."""

    @override
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's
        """Logs nothing."""
