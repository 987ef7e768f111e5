"""Mooncake as a store where its master or its memory is down, stopped, full or small."""

import gc
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from blockyard._core import Unavailable
from blockyard.stores import Session, Store, mooncake_store
from blockyard.stores.open import open_store
from store_servers import Mooncake, free_port, mooncake, mooncake_node

pytestmark = pytest.mark.law("INV-35a", "INV-35b")

MIB = 1 << 20
VALUE = secrets.token_bytes(2 * MIB + 128)
SPOKEN = """
import sys
from blockyard.stores.open import open_store
session = open_store(sys.argv[1]).connect()
session.put("spoken", memoryview(b"value"))
assert bytes(session.get("spoken", memoryview(bytearray(5)))) == b"value"
session.get("missing", memoryview(bytearray(5)))
session.close()
"""


@pytest.fixture(scope="module")
def pool() -> Iterator[Mooncake]:
    with mooncake(64 * MIB) as made:
        yield made


@pytest.fixture(scope="module")
def store(pool: Mooncake) -> Iterator[Store]:
    """One whose client stays: to start and to end it takes seconds."""
    made = open_store(pool.url)
    with closing(made.connect()):
        yield made


def named() -> str:
    return f"by1/00000000000000ab/0/{secrets.token_hex(32)}"


def got(session: Session, address: str, room: int = len(VALUE)) -> bytes | None:
    found = session.get(address, memoryview(bytearray(room)))
    return None if found is None else bytes(found)


def test_a_master_that_is_down_is_found_so_at_once(pool: Mooncake) -> None:
    """Mooncake's own setup would hold the interpreter's lock for more than four seconds."""
    assert pool.url
    begun = time.monotonic()
    with pytest.raises(Unavailable, match="the master cannot be reached"):
        open_store(f"mooncake://127.0.0.1:{free_port()}").connect()
    client = free_port()
    with pytest.raises(Unavailable, match="client process cannot be reached"):
        open_store(f"mooncake://{pool.master.url}?client=127.0.0.1:{client}").connect()
    assert time.monotonic() - begun < 4


def test_its_client_writes_nothing_to_stdout(pool: Mooncake) -> None:
    done = subprocess.run(  # noqa: S603 - the words are ours
        [sys.executable, "-c", SPOKEN, pool.url], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""


def test_the_client_stays_until_its_store_is_dropped(pool: Mooncake) -> None:
    store, address = open_store(pool.url), named()
    with closing(store.connect()) as session:
        session.put(address, memoryview(VALUE))
        client = session._client  # type: ignore[attr-defined]
    with pytest.raises(Unavailable, match="session is closed"):
        session.has([address])
    session = store.connect()
    assert session._client is client  # type: ignore[attr-defined]
    del store
    gc.collect()
    # Nothing that is in use is closed, as its calls would end the process.
    assert got(session, address) == VALUE
    session.close()
    with pytest.raises(Unavailable, match="client is closed"), client.calling():
        pass


def test_memory_is_used_again(store: Store) -> None:
    with closing(store.connect()) as session:
        address = named()
        for nbytes in (100, 5000, 70_000, 100, 70_000):
            session.put(f"{address}{nbytes}", memoryview(VALUE[:nbytes]))
            assert got(session, f"{address}{nbytes}", nbytes) == VALUE[:nbytes]
        assert isinstance(session, mooncake_store.MooncakeSession)
        client = session._client
        assert client is not None
        held = [one.view.nbytes for one in client._free]
        assert held == [4096, 8192]
        session.close()
        assert [one.view.nbytes for one in client._free] == [4096, 8192, 73_728]
        with pytest.raises(Unavailable, match="closed"):
            session.put(address, memoryview(b"x"))


def test_a_child_of_a_fork_is_refused_and_not_hung(store: Store) -> None:
    with closing(store.connect()) as session:
        client = session._client  # type: ignore[attr-defined]
        # As in a child, where a call would hang; a real fork beside its threads is none for a test.
        client._pid += 1
        with pytest.raises(Unavailable, match="fork"):
            session.has(["x"])
        client._pid = os.getpid()
        assert session.has(["x"]) == [False]


def test_a_full_pool_says_so_and_serves_what_it_has(store: Store) -> None:
    with closing(store.connect()) as session:
        addresses = [named() for _ in range(60)]
        refused = []
        for address in addresses:
            try:
                session.put(address, memoryview(VALUE))
            except Unavailable as error:
                refused.append(str(error))
        assert refused
        assert all("it is full" in one for one in refused)
        there = [
            address for address, yes in zip(addresses, session.has(addresses), strict=True) if yes
        ]
        assert there
        for address in there:
            assert got(session, address) == VALUE
        assert session.delete(addresses) == len(there)
        with pytest.raises(Unavailable, match="it is full"):
            session.put(named(), memoryview(bytes(100 * MIB)))


def test_memory_that_died_is_told_and_its_buffer_not_used_again() -> None:
    with mooncake(64 * MIB) as pool, closing(open_store(pool.url).connect()) as session:
        address = named()
        session.put(address, memoryview(VALUE))
        assert got(session, address) == VALUE
        before, left = session._memory, len(mooncake_store._left)  # type: ignore[attr-defined]
        pool.owner.kill()
        with pytest.raises(Unavailable, match="transfer failed"):
            got(session, address)
        # Nobody has said that the transfer is over.
        assert mooncake_store._left[left:] == [before]
        assert session._memory is None  # type: ignore[attr-defined]
        until = time.monotonic() + 60
        while session.has([address]) != [False]:
            assert time.monotonic() < until
            time.sleep(0.1)
        # A miss begins no transfer.
        assert got(session, address) is None
        assert len(mooncake_store._left) == left + 1
        with pytest.raises(Unavailable, match="it is full"):
            session.put(named(), memoryview(VALUE))
        assert len(mooncake_store._left) == left + 1


class Inner:
    """A client whose calls return a code."""

    def __init__(self) -> None:
        self.code = -800
        self.closed = 0

    def register_buffer(self, address: int, nbytes: int) -> int:
        return 0 if address and nbytes else -600

    def get_into(self, address: str, at: int, nbytes: int) -> int:
        return self.code if address and at and nbytes else -600

    def get_size(self, address: str) -> int:
        return len(address)

    def close(self) -> None:
        self.closed += 1


def test_a_client_is_closed_when_its_last_call_has_ended() -> None:
    """A call beside or after the close would end the process."""
    inner = Inner()
    client = mooncake_store._Client(inner, "mooncake://h", shared=False)
    assert client.join()
    with client.calling():
        client.leave()
        client.leave()
        assert inner.closed == 0
        assert not client.join()
    assert inner.closed == 1


def test_memory_that_is_left_to_transfers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mooncake_store, "_left", [])
    monkeypatch.setattr(mooncake_store, "_HELD", 3 * 4096)
    inner = Inner()
    client = mooncake_store._Client(inner, "mooncake://h", shared=False)
    session = mooncake_store.MooncakeSession("mooncake://h", client, ("h", 1))
    for _ in range(3):
        with pytest.raises(Unavailable, match="transfer failed"):
            got(session, "a", 100)
    with pytest.raises(Unavailable, match=r"12,288 bytes .*restart the engine"):
        got(session, "a", 100)
    # What its codes mean, of those that leave nothing behind.
    mooncake_store._left.clear()
    for code, said in ((-900, "no answer"), (-901, "in time"), (-707, "kept"), (-600, "length")):
        inner.code = code
        with pytest.raises(Unavailable, match=rf"{said}.*\({code}\)"):
            got(session, "a", 100)
    assert mooncake_store._left == []
    inner.code = -12345
    with pytest.raises(Unavailable, match=r"an error \(-12345\)"):
        got(session, "a", 100)
    assert len(mooncake_store._left) == 1


def test_a_node_whose_client_process_died_is_used_again() -> None:
    with mooncake(16 * MIB) as pool:
        with mooncake_node(pool.master.url, 64 * MIB) as node:
            store = open_store(node.url)
            session = store.connect()
            session.put("a", memoryview(VALUE))
            assert got(session, "a") == VALUE
            node.kill()
            with pytest.raises(Unavailable, match="no answer"):
                session.put("b", memoryview(VALUE))
        with mooncake_node(pool.master.url, 64 * MIB, port=node.port):
            until = time.monotonic() + 60
            while True:
                try:
                    session.put("c", memoryview(VALUE))
                    break
                except Unavailable:
                    assert time.monotonic() < until
                    time.sleep(0.1)
            assert got(session, "c") == VALUE
            session.close()


def test_a_process_that_is_stopped_holds_a_call_for_its_time_and_no_longer() -> None:
    with mooncake(64 * MIB) as pool, closing(open_store(pool.url).connect()) as session:
        address = named()
        session.put(address, memoryview(VALUE))
        assert got(session, address) == VALUE
        memory, left = session._memory, len(mooncake_store._left)  # type: ignore[attr-defined]
        pool.master.stop()
        for call in (lambda: session.has([address]), lambda: got(session, address)):
            with pytest.raises(Unavailable, match=r"in time \(-901\)"):
                call()
        pool.master.go_on()
        # The master has answered nothing, so nothing is written to this memory.
        assert got(session, address) == VALUE
        assert session._memory is memory  # type: ignore[attr-defined]
        assert len(mooncake_store._left) == left
        pool.owner.stop()
        with pytest.raises(Unavailable, match="transfer failed"):
            got(session, address)
        pool.owner.go_on()
        assert mooncake_store._left[left:] == [memory]


def test_a_list_without_the_masters_port_says_which_option_it_wants(pool: Mooncake) -> None:
    url = f"mooncake://{pool.master.url}?metrics={free_port()}"
    with (
        closing(open_store(url).connect()) as session,
        pytest.raises(Unavailable, match="option metrics"),
    ):
        [*session.list("by1/")]


HALF = """
import sys, threading
from blockyard.stores.open import open_store
session = open_store(sys.argv[1]).connect()
session.put(sys.argv[2] + "-warm", memoryview(b"value"))
print("ready", flush=True)
sys.stdin.readline()
value = memoryview(bytes(2 << 20))
threading.Thread(target=session.put, args=(sys.argv[2], value), daemon=True).start()
sys.stdin.readline()
"""


def test_a_value_whose_writer_was_killed_is_not_there_and_no_failure() -> None:
    """Three failures would let a store rest that is well."""
    address = named()
    with mooncake(64 * MIB) as pool, closing(open_store(pool.url).connect()) as session:
        command = [sys.executable, "-c", HALF, pool.url, address]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, **pipes) as writer:  # type: ignore[call-overload] # noqa: S603
            assert writer.stdout.readline() == b"ready\n"
            pool.owner.stop()
            writer.stdin.write(b"\n")
            writer.stdin.flush()
            time.sleep(0.5)
            writer.kill()
        pool.owner.go_on()
        assert session.has([address]) == [False]
        assert got(session, address) is None
