"""A publisher, and subscribers that come late, lose batches or ask for nonsense (O3)."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

import blockyard as by
from blockyard.publishing.options import PublisherOptions
from blockyard.publishing.publisher import Publisher
from kv_events import Router

SIZE = 4
ANY = "tcp://127.0.0.1:*"
END = (-1).to_bytes(8, "big", signed=True)


class Subscriber:
    """What a router has: a socket for batches, and one to ask for what it has missed."""

    def __init__(self, publisher: Publisher, *, most: int = 1000) -> None:
        self.context = zmq.Context()
        self.sub = self.context.socket(zmq.SUB)
        self.sub.setsockopt(zmq.RCVHWM, most)
        self.sub.setsockopt(zmq.SUBSCRIBE, b"")
        self.sub.connect(publisher.endpoint)
        self.asks = self.context.socket(zmq.DEALER)
        if publisher.replay:
            self.asks.connect(publisher.replay)
        self.router = Router()
        self.numbers: list[int] = []

    def hear(self, *, wait: int = 0) -> None:
        while self.sub.poll(wait):
            _, number, payload = self.sub.recv_multipart()
            self.numbers.append(int.from_bytes(number, "big"))
            self.router.hear(payload)

    def ask(self, start: int) -> list[tuple[int, bytes]]:
        """As vLLM's subscribers ask; returns the batches of the answer."""
        self.asks.send_multipart((b"", start.to_bytes(8, "big")))
        batches: list[tuple[int, bytes]] = []
        while True:
            assert self.asks.poll(10_000), "an answer ends"
            empty, topic, number, payload = self.asks.recv_multipart()
            assert (empty, topic) == (b"", b"")
            if number == END:
                return batches
            batches.append((int.from_bytes(number, "big"), payload))


@contextlib.contextmanager
def subscribed(publisher: Publisher) -> Iterator[Subscriber]:
    own = Subscriber(publisher)
    try:
        yield own
    finally:
        own.context.destroy(linger=0)


@pytest.fixture
def cache() -> by.KVCache:
    return by.KVCache(block_size=SIZE, device=129, host=64)


def play(cache: by.KVCache, name: int, blocks: int = 5) -> list[int]:
    tokens = [name] * SIZE * blocks
    lease = cache.begin(tokens)
    assert isinstance(lease, by.Lease)
    cache.commit(cache.dispatch())
    cache.seal(lease, len(tokens))
    cache.finish(lease)
    return tokens


def test_a_subscriber_hears_numbers_that_rise_by_one_and_knows_what_the_cache_has(
    cache: by.KVCache,
) -> None:
    with Publisher(cache, ANY, replay=ANY) as publisher, subscribed(publisher) as router:
        prompts = []
        # A subscription takes a while to arrive: what came before is asked for.
        for name in range(200):
            prompts.append(play(cache, name % 20))
            assert publisher.flush()
            router.hear(wait=5)
            if len(router.numbers) > 3:
                break
        assert router.numbers == list(range(router.numbers[0], router.numbers[0] + 4))
        whole = Router()
        for _, payload in router.ask(router.numbers[0] - 1_000_000):
            whole.hear(payload)
        assert all(whole.found(prompt, "GPU", SIZE) == 5 for prompt in prompts)


def test_whoever_has_lost_a_batch_gets_it_again_and_whoever_comes_late_gets_all_in_one(
    cache: by.KVCache,
) -> None:
    with (
        Publisher(cache, ANY, replay=ANY, options=PublisherOptions(keep=3)) as publisher,
        subscribed(publisher) as router,
    ):
        prompts = []
        for name in range(6):
            prompts.append(play(cache, name))
            assert publisher.flush()
        newest = publisher.stats()["next"] - 1
        again = router.ask(newest - 1)
        assert [number for number, _ in again] == [newest - 1, newest]
        assert router.ask(newest + 1) == [], "nothing was missed"
        for start in (0, newest - 3, newest + 2, 1 << 63):
            ((number, payload),) = router.ask(start)
            assert number == newest
            late = Router()
            late.hear(payload)
            assert all(late.found(prompt, "GPU", SIZE) == 5 for prompt in prompts)
        stats = publisher.stats()
        assert (stats["replays"], stats["snapshots"], stats["rejected"]) == (2, 4, 0)


def test_of_long_batches_fewer_are_kept(cache: by.KVCache) -> None:
    options = PublisherOptions(keep_bytes=1)
    with (
        Publisher(cache, ANY, replay=ANY, options=options) as publisher,
        subscribed(publisher) as router,
    ):
        for name in range(3):
            play(cache, name)
            assert publisher.flush()
        newest = publisher.stats()["next"] - 1
        (last,) = router.ask(newest)
        (all_of_it,) = router.ask(newest - 1)
        assert last[0] == all_of_it[0] == newest
        assert len(last[1]) < len(all_of_it[1])
        assert publisher.stats()["snapshots"] == 1


def test_a_restart_begins_above_every_number_of_before() -> None:
    seconds = 1_700_000_000.0
    ends = []
    for start in (seconds, seconds + 0.001):
        cache = by.KVCache(block_size=SIZE, device=33)
        with Publisher(cache, ANY, clock=lambda start=start: start) as publisher:  # type: ignore[misc]
            first = publisher.stats()["next"] - publisher.stats()["batches"]
            for name in range(3):
                play(cache, name)
                assert publisher.flush()
            ends.append((first, publisher.stats()["next"]))
    assert ends[0][0] >> 20 == int(seconds)
    assert ends[1][0] > ends[0][1], "a gap forward, within a second too"


def test_a_request_that_is_none_is_counted_and_the_next_one_is_answered(
    cache: by.KVCache,
) -> None:
    with Publisher(cache, ANY, replay=ANY) as publisher, subscribed(publisher) as router:
        assert publisher.flush()
        for frames in ((b"",), (b"", b"five"), (b"", b"", bytes(8), b"")):
            router.asks.send_multipart(frames)
        assert len(router.ask(0)) == 1
        assert publisher.stats()["rejected"] == 3
        assert publisher.alive


def test_a_subscriber_that_never_reads_holds_up_nobody(cache: by.KVCache) -> None:
    with (
        Publisher(
            cache, ANY, replay=ANY, options=PublisherOptions(backlog=2, keep=500)
        ) as publisher,
        subscribed(publisher) as idle,
        subscribed(publisher) as router,
    ):
        for name in range(100):
            play(cache, name % 9)
            assert publisher.flush()
        assert idle.numbers == []
        ((_, payload),) = router.ask(0)
        late = Router()
        late.hear(payload)
        assert late.found([3] * SIZE * 5, "GPU", SIZE) == 5


def test_whoever_asks_and_does_not_read_has_few_answers_and_the_others_get_theirs() -> None:
    long = by.KVCache(block_size=16, device=12_001)
    with Publisher(long, ANY, replay=ANY, options=PublisherOptions(keep_bytes=1)) as publisher:
        lease = long.begin(range(16 * 12_000))
        long.seal(lease, 16 * 12_000)
        assert publisher.flush()
        with subscribed(publisher) as idle, subscribed(publisher) as router:
            asks = idle.context.socket(zmq.DEALER)
            # So that little fits between the two.
            asks.setsockopt(zmq.RCVHWM, 1)
            asks.setsockopt(zmq.RCVBUF, 1 << 16)
            assert publisher.replay
            asks.connect(publisher.replay)
            for _ in range(100):
                asks.send_multipart((b"", bytes(8)))
            stats = publisher.stats()
            for _ in range(1000):
                if stats["snapshots"] + stats["rejected"] == 100:
                    break
                assert publisher.flush()
                stats = publisher.stats()
            assert stats["snapshots"] + stats["rejected"] == 100
            # Those that are on their way, and two behind them.
            assert 2 <= stats["snapshots"] <= 50
            assert len(router.ask(0)) == 1, "nobody else waits for it"
            ends = 0
            while asks.poll(500):
                ends += asks.recv_multipart()[2] == END
            assert ends == stats["snapshots"], "what was begun was ended"
            asks.send_multipart((b"", bytes(8)))
            assert asks.poll(10_000), "whoever reads is answered again"


def test_it_binds_to_this_machine_alone_unless_it_is_told_otherwise(cache: by.KVCache) -> None:
    for endpoint in ("tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://192.0.2.1:5557", "tcp://[::]:1"):
        with pytest.raises(by.Misuse, match='interfaces="any"'):
            Publisher(cache, endpoint)
        with pytest.raises(by.Misuse, match="replay = "):
            Publisher(cache, ANY, replay=endpoint)
    wrong: list[Any] = ["127.0.0.1:5557", "tcp://5557", "udp://127.0.0.1:1", "tcp://127.0.0.1:http"]
    wrong += ["tcp://127.0.0.1:65536", "tcp://127.0.0.1:\u0665", "inproc://own", "ipc://", 5557]
    for given in wrong:
        with pytest.raises(by.Misuse, match='give "tcp://host:port"'):
            Publisher(cache, given, interfaces="any")
    with Publisher(cache, "tcp://0.0.0.0:*", interfaces="any") as publisher:
        assert publisher.endpoint.startswith("tcp://0.0.0.0:")


def test_a_port_in_use_is_named_and_leaves_the_cache_without_a_listener(
    cache: by.KVCache,
) -> None:
    with Publisher(by.KVCache(device=9), ANY) as publisher:
        taken = publisher.endpoint
        for more in ({"endpoint": taken}, {"endpoint": ANY, "replay": taken}):
            arguments: dict[str, Any] = dict(more)
            with pytest.raises(by.Unavailable, match=taken):
                Publisher(cache, **arguments)
    with Publisher(cache, ANY) as other:
        assert other.flush()


def test_closing_sends_the_rest_and_leaves_the_cache_as_it_is(cache: by.KVCache) -> None:
    publisher = Publisher(cache, ANY, options=PublisherOptions(every=1))
    play(cache, 1)
    publisher.close()
    assert not publisher.alive
    assert publisher.stats()["stored"] == 5
    assert not publisher.flush(timeout=0.01)
    play(cache, 2)
    with pytest.raises(by.Misuse, match="has a listener"):
        Publisher(cache, ANY)


def test_what_was_sent_last_arrives_though_it_is_closed_before_it_is_read() -> None:
    cache = by.KVCache(block_size=SIZE, device=30_001)
    publisher = Publisher(cache, ANY)
    router = Subscriber(publisher, most=1)
    while not router.sub.poll(5):
        play(cache, 0, blocks=1)
        assert publisher.flush()
        cache.clear()
    # More than the buffers of the system hold, so that the rest waits in the publisher.
    for name in range(10):
        play(cache, 1 << 20 | name, blocks=29_000)
        assert publisher.flush()
    closing = threading.Thread(target=publisher.close)
    closing.start()
    router.hear(wait=1000)
    closing.join()
    assert router.numbers[-1] == publisher.stats()["next"] - 1
    assert cache.audit() is None
    router.context.destroy(linger=0)


def test_what_is_out_of_range_is_named(cache: by.KVCache) -> None:
    for wrong in (
        {"keep": 0},
        {"keep_bytes": 0},
        {"backlog": 0},
        {"every": 0},
        {"keep": 1 << 30},
        {"backlog": 1 << 31},
        {"every": 2},
        {"every": "often"},
        {"salts": "some"},
        {"rank": -1},
        {"rank": "0"},
        {"rank": 1 << 32},
        {"topic": b"kv"},
        {"topic": "\ud800"},
    ):
        arguments: dict[str, Any] = dict(wrong)
        with pytest.raises(by.Misuse, match=next(iter(wrong))):
            PublisherOptions(**arguments)
    with pytest.raises(by.Misuse, match="interfaces"):
        Publisher(cache, ANY, interfaces="lo")  # type: ignore[arg-type]
    for seconds in (-1.0, float("nan"), 1e20):
        with pytest.raises(by.Misuse, match="clock"):
            Publisher(cache, ANY, clock=lambda seconds=seconds: seconds)  # type: ignore[misc]
    with pytest.raises(by.Misuse, match="ring"):
        Publisher(cache, ANY, options=PublisherOptions(ring=1))
