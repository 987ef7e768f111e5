"""A server that speaks enough of Redis to be connected to, and then answers as a test says."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Answer = Callable[[socket.socket], None]


@contextmanager
def lying_redis(answer: Answer) -> Iterator[str]:
    """Answers PING and SELECT, and has all other requests answered.

    Args:
        answer: Writes the answer to a request, to a connection.

    Yields:
        Its URL.
    """
    listening = socket.create_server(("127.0.0.1", 0))
    taken: list[socket.socket] = []

    def serve(one: socket.socket) -> None:
        with suppress(OSError):
            while request := one.recv(1 << 16):
                if b"PING" in request:
                    one.sendall(b"+PONG\r\n")
                elif b"SELECT" in request:
                    one.sendall(b"+OK\r\n")
                else:
                    answer(one)

    def accept() -> None:
        with suppress(OSError):
            while True:
                one, _ = listening.accept()
                taken.append(one)
                thread = threading.Thread(target=serve, args=(one,), daemon=True)
                threads.append(thread)
                thread.start()

    threads = [threading.Thread(target=accept, daemon=True)]
    threads[0].start()
    try:
        yield f"redis://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        threads[0].join()
        for one in taken:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in threads[1:]:
            thread.join()
