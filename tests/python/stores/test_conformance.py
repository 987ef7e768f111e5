"""What every store keeps: each test runs over all of them, by two sessions as two engines have."""

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from blockyard._core import Misuse, Unavailable
from blockyard.stores import Keeping, Session, Store
from blockyard.stores.address import block_address, identity_address, prefix, tail_address
from blockyard.stores.contents import contents, wipe
from blockyard.stores.identity import text_of
from blockyard.stores.open import open_store
from store_servers import mooncake, mooncake_node, redis_server

MIB = 1 << 20
KINDS = ("folder", "redis", "unix", "mooncake", "node")


@pytest.fixture(scope="module", params=KINDS)
def store(request: Any, tmp_path_factory: Any) -> Iterator[Store]:
    """A store that runs for the whole module."""
    kind, folder = request.param, tmp_path_factory.mktemp("store")
    with ExitStack() as stack:
        if kind == "folder":
            yield open_store(f"file://{folder}/kv")
        elif kind == "redis":
            server = stack.enter_context(redis_server(folder))
            yield open_store(f"{server.url}/3?timeout=30")
        elif kind == "unix":
            words = ["--unixsocket", f"{folder}/socket"]
            stack.enter_context(redis_server(folder, *words))
            yield open_store(f"unix://{folder}/socket?timeout=30")
        elif kind == "mooncake":
            pool = stack.enter_context(mooncake())
            made = open_store(pool.url)
            # The client is shared by all sessions, and takes a second to start.
            stack.enter_context(closing(made.connect()))
            yield made
        else:
            pool = stack.enter_context(mooncake())
            node = stack.enter_context(mooncake_node(pool.master.url))
            made = open_store(f"{node.url}&{pool.url.partition('?')[2]}")
            stack.enter_context(closing(made.connect()))
            yield made


@pytest.fixture
def one(store: Store) -> Iterator[Session]:
    with closing(store.connect()) as session:
        yield session


@pytest.fixture
def other(store: Store) -> Iterator[Session]:
    with closing(store.connect()) as session:
        yield session


@pytest.fixture
def identity() -> int:
    return secrets.randbits(64)


def named(identity: int, rank: int = 0) -> str:
    return block_address(identity, rank, secrets.token_bytes(32))


def got(session: Session, address: str, room: int = MIB) -> bytes | None:
    found = session.get(address, memoryview(bytearray(room)))
    return None if found is None else bytes(found)


@pytest.mark.parametrize("nbytes", [1, 128, 4096, 65_537, 2 * MIB + 128])
def test_one_session_reads_what_another_has_put(
    one: Session, other: Session, identity: int, nbytes: int
) -> None:
    address, value = named(identity), secrets.token_bytes(nbytes)
    one.put(address, memoryview(value))
    assert got(other, address, nbytes) == value
    assert got(other, address, nbytes + 4096) == value
    assert other.has([address]) == [True]


def test_what_nobody_has_put_is_not_there(one: Session, identity: int) -> None:
    assert got(one, named(identity)) is None
    assert one.has([named(identity)]) == [False]
    assert one.has([]) == []
    assert one.delete([]) == 0
    assert one.delete([named(identity)]) == 0
    assert [*one.list(prefix(identity))] == []


def test_each_address_is_answered_for(one: Session, other: Session, identity: int) -> None:
    addresses = [named(identity) for _ in range(300)]
    for address in addresses[::3]:
        one.put(address, memoryview(b"x"))
    assert other.has(addresses) == [place % 3 == 0 for place in range(300)]
    assert other.has(addresses[::3]) == [True] * 100
    assert other.has(addresses[1::3]) == [False] * 100
    assert one.delete(addresses) == 100


def test_a_value_that_is_longer_is_not_read(one: Session, identity: int) -> None:
    address = named(identity)
    one.put(address, memoryview(bytes(MIB)))
    room = bytearray(b"\xee" * 4096)
    found = one.get(address, memoryview(room)[:1024])
    assert found is not None
    assert len(found) != 1024
    assert len(found) <= 4096
    assert room[1024:] == b"\xee" * 3072


def test_memory_that_is_a_part_of_more(one: Session, identity: int) -> None:
    address, whole = named(identity), bytearray(secrets.token_bytes(8192))
    one.put(address, memoryview(whole)[1000:5000])
    room = memoryview(bytearray(8192))
    found = one.get(address, room[2000:6000])
    assert found is not None
    assert bytes(found) == whole[1000:5000]
    assert not any(room[:2000])
    assert not any(room[6000:])


def test_a_value_that_was_put_may_be_written_to_at_once(one: Session, identity: int) -> None:
    address, value = named(identity), bytearray(b"a" * 4096)
    one.put(address, memoryview(value))
    value[:] = b"b" * 4096
    assert got(one, address) == b"a" * 4096


def test_a_put_of_what_is_there_succeeds(one: Session, other: Session, identity: int) -> None:
    address = named(identity)
    for session in (one, other, one):
        session.put(address, memoryview(b"the same"))
    assert got(other, address) == b"the same"


def test_a_put_replaces_what_is_there_or_the_session_says_that_it_does_not(
    one: Session, other: Session, identity: int
) -> None:
    address = named(identity)
    one.put(address, memoryview(b"a wrong value"))
    other.put(address, memoryview(b"the right one"))
    kept = got(one, address) != b"the right one"
    assert kept == isinstance(other, Keeping)
    if kept:
        other.delete([address])
        other.put(address, memoryview(b"the right one"))
    assert got(one, address) == b"the right one"


def test_deleted_is_gone_for_all(one: Session, other: Session, identity: int) -> None:
    addresses = [named(identity) for _ in range(5)]
    for address in addresses:
        one.put(address, memoryview(b"x"))
    assert got(other, addresses[0]) == b"x"
    assert other.has(addresses) == [True] * 5
    assert one.delete([*addresses[:3], named(identity)]) == 3
    assert other.has(addresses) == [False] * 3 + [True] * 2
    assert [got(other, address) for address in addresses] == [None] * 3 + [b"x"] * 2


def test_a_list_has_each_once_and_none_of_others(one: Session, identity: int) -> None:
    values = {named(identity, rank): 100 + rank for rank in range(40)}
    values[identity_address(identity)] = 7
    values[tail_address(identity, 3, 5, 12, group=1)] = 33
    others = [named(identity ^ 1), f"by1x/{identity:016x}/0"]
    for address, nbytes in [*values.items(), *((address, 1) for address in others)]:
        one.put(address, memoryview(bytes(nbytes)))
    listed = [*one.list(prefix(identity))]
    assert len(listed) == len(values)
    assert dict(listed) == values
    assert {*values, others[0]} <= {address for address, _ in one.list("by1/")}
    assert others[1] not in {address for address, _ in one.list("by1/")}
    assert dict(one.list(f"{prefix(identity)}3-1/tmp/")) == {[*values][-1]: 33}
    one.delete(others)


def test_a_value_with_a_time_to_live_is_there_until_then(
    store: Store, one: Session, other: Session, identity: int
) -> None:
    address = tail_address(identity, 0, 77, 1)
    one.put(address, memoryview(b"tail"), ttl=60.0)
    assert got(other, address) == b"tail"
    assert one.delete([address]) == 1
    if not store.url.startswith("mooncake:"):
        one.put(address, memoryview(b"tail"), ttl=0.05)
        until = time.monotonic() + 30
        while got(other, address) is not None:
            assert time.monotonic() < until
            time.sleep(0.01)
        assert other.has([address]) == [False]
        assert [*other.list(prefix(identity))] == []


def test_sessions_of_many_threads(store: Store, identity: int) -> None:
    wrong: list[object] = []

    def work(number: int) -> None:
        with closing(store.connect()) as session:
            for count in range(10):
                address = block_address(identity, number, bytes([count]) * 32)
                value = bytes([number, count]) * 5000
                session.put(address, memoryview(value))
                if got(session, address) != value:
                    wrong.append(address)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    with closing(store.connect()) as session:
        assert len([*session.list(prefix(identity))]) == 60


def test_contents_and_wipe_are_of_one_identity(one: Session, other: Session, identity: int) -> None:
    fields = {"model": "m\n\x1b[31m", "weights": "w"}
    neighbour = identity ^ (1 << 63)
    for which in (identity, neighbour):
        one.put(identity_address(which), memoryview(text_of(fields)))
        for rank in (0, 1):
            one.put(named(which, rank), memoryview(bytes(50)))
        one.put(tail_address(which, 1, 2, 3, group=4), memoryview(bytes(9)))
    found = {content.number: content for content in contents(other)}
    assert found[identity].fields == fields
    parts = found[identity].parts
    assert {place: (part.blocks, part.tails, part.nbytes) for place, part in parts.items()} == {
        (0, 0): (1, 0, 50),
        (1, 0): (1, 0, 50),
        (1, 4): (0, 1, 9),
    }
    assert wipe(other, identity) == (3, 109)
    left = {content.number: content for content in contents(one)}
    assert identity not in left
    assert left[neighbour].parts == found[neighbour].parts
    assert [*one.list(prefix(identity))] == []
    wipe(one, neighbour)


def test_a_session_may_be_closed_twice(store: Store) -> None:
    session = store.connect()
    session.close()
    session.close()
    with closing(store.connect()) as another:
        assert another.has(["by1/0000000000000000/identity"]) in ([True], [False])


def test_no_url_has_more_than_it_may(store: Store) -> None:
    assert store.url in repr(store)
    with pytest.raises(Misuse, match=r"nonsense"):
        open_store(store.url + ("&" if "?" in store.url else "?") + "nonsense=1")


def test_a_session_that_is_closed_says_so_or_connects_again(store: Store) -> None:
    session = store.connect()
    session.close()
    try:
        assert session.has(["by1/0000000000000000/identity"]) == [False]
    except Unavailable as error:
        assert store.url in str(error)  # noqa: PT017 - both are right
    session.close()
