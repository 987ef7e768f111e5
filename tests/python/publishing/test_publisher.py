"""A publisher, and subscribers that come late, lose batches or ask for nonsense (O3)."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import zmq

import blockyard as by
from blockyard.publishing import publisher as publisher_module
from blockyard.publishing.options import PublisherOptions
from blockyard.publishing.publisher import Publisher
from interrupted import Places
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
        return read(self.asks)


def read(asks: Any) -> list[tuple[int, bytes]]:
    """The batches of one answer."""
    batches: list[tuple[int, bytes]] = []
    while True:
        assert asks.poll(30_000), "an answer ends"
        empty, topic, number, payload = asks.recv_multipart()
        assert (empty, topic) == (b"", b"")
        if number == END:
            return batches
        batches.append((int.from_bytes(number, "big"), payload))


def few_fit(own: Subscriber, publisher: Publisher) -> Any:
    """A socket that asks, where little fits between it and the publisher."""
    asks = own.context.socket(zmq.DEALER)
    asks.setsockopt(zmq.RCVHWM, 1)
    asks.setsockopt(zmq.RCVBUF, 1 << 16)
    assert publisher.replay
    asks.connect(publisher.replay)
    return asks


def until(publisher: Publisher, what: Callable[[dict[str, int]], bool]) -> dict[str, int]:
    """Turns of the publisher until its stats are so."""
    stats = publisher.stats()
    for _ in range(10_000):
        if what(stats):
            return stats
        assert publisher.flush()
        stats = publisher.stats()
    raise AssertionError(stats)


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
        # Several may have come at once.
        first, heard = router.numbers[0], len(router.numbers)
        assert heard > 3
        assert router.numbers == list(range(first, first + heard))
        whole = Router()
        for _, payload in router.ask(router.numbers[0] - 1_000_000):
            whole.hear(payload)
        assert all(whole.found(prompt, "GPU", SIZE) == 5 for prompt in prompts)


@pytest.mark.law("O3")
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


@pytest.mark.law("O3")
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


@pytest.mark.law("O3")
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
            asks = few_fit(idle, publisher)
            for _ in range(100):
                asks.send_multipart((b"", bytes(8)))
            # All but the one that waits.
            stats = until(publisher, lambda now: now["snapshots"] + now["rejected"] >= 99)
            # Those that are on their way, and two behind them.
            assert 2 <= stats["snapshots"] <= 50
            assert len(router.ask(0)) == 1, "nobody else waits for it"
            answers = [len(read(asks)) for _ in range(100)]
            stats = publisher.stats()
            assert (answers.count(1), answers.count(0)) == (
                stats["snapshots"] - 1,
                stats["rejected"],
            )
            assert answers[-1] == 1, "nothing is lost by that"
            asks.send_multipart((b"", bytes(8)))
            assert len(read(asks)) == 1, "whoever reads is answered again"


class Held:
    """The end of an answer as ZeroMQ gives it, for as long as it is told to hold it."""

    holds = True

    def __init__(self, end: Any) -> None:
        self._end = end

    @property
    def done(self) -> bool:
        return not Held.holds and bool(self._end.done)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> type[Held]:
    """A ZeroMQ that lets go of no answer, read or not, until `Held.holds` is False."""
    send = Publisher._reply
    monkeypatch.setattr(Publisher, "_reply", lambda *given, **how: Held(send(*given, **how)))
    monkeypatch.setattr(Held, "holds", True)
    return Held


def test_whoever_has_read_its_answers_gets_the_next_as_soon_as_they_are_let_go(
    cache: by.KVCache, held: type[Held]
) -> None:
    with Publisher(cache, ANY, replay=ANY) as publisher, subscribed(publisher) as router:
        play(cache, 1)
        assert publisher.flush()
        newest = publisher.stats()["next"] - 1
        for _ in range(2):
            assert [number for number, _ in router.ask(newest)] == [newest]
        router.asks.send_multipart((b"", newest.to_bytes(8, "big")))
        until(publisher, lambda _: any(one.waiting for one in publisher._askers.values()))
        assert not router.asks.poll(0)
        held.holds = False
        assert [number for number, _ in read(router.asks)] == [newest]
        until(publisher, lambda _: not publisher._askers)
        stats = publisher.stats()
        assert (stats["replays"], stats["rejected"]) == (3, 0)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ((0, 0), (0, 1, 2)),
        ((2, 1, 3), (1, 2)),
        ((1, 2, 3), (1, 2)),
        ((3, 3), ()),
        ((2, 4), None),
        ((-1, 2), None),
        ((2, 1 << 62, 3), None),
        ((3,) * 2_500 + (2,), (2,)),
    ],
)
def test_of_requests_that_wait_each_has_its_end_and_the_last_has_what_all_of_them_lack(
    cache: by.KVCache, held: type[Held], asked: tuple[int, ...], answer: tuple[int, ...] | None
) -> None:
    options = PublisherOptions(keep=3)
    with (
        Publisher(cache, ANY, replay=ANY, options=options) as publisher,
        subscribed(publisher) as router,
    ):
        for name in range(3):
            play(cache, name)
            assert publisher.flush()
        first = publisher.stats()["next"] - 3
        for _ in range(2):
            assert router.ask(first + 3) == []
        for start in asked:
            router.asks.send_multipart((b"", (first + start).to_bytes(8, "big")))
        until(publisher, lambda now: now["rejected"] == len(asked) - 1)
        until(publisher, lambda _: any(one.waiting for one in publisher._askers.values()))
        assert not router.asks.poll(0), "nothing is sent to one who may not read"
        held.holds = False
        for _ in asked[1:]:
            assert read(router.asks) == []
        told = [number - first for number, _ in read(router.asks)]
        assert told == ([2] if answer is None else list(answer))
        assert publisher.stats()["snapshots"] == (answer is None)
        assert router.ask(first + 3) == [], "and the next request has its own"


def test_an_answer_that_was_begun_is_ended_however_many_batches_it_has() -> None:
    long = by.KVCache(block_size=16, device=36_001)
    options = PublisherOptions(keep=3)
    with Publisher(long, ANY, replay=ANY, options=options) as publisher:
        for name in range(3):
            lease = long.begin(range(name << 20, (name << 20) + 16 * 12_000))
            long.seal(lease, 16 * 12_000)
            assert publisher.flush()
        kept = publisher.stats()["next"] - 3
        with subscribed(publisher) as idle:
            asks = few_fit(idle, publisher)
            for short in range(4):
                asks.send_multipart((b"", (kept + 3).to_bytes(8, "big")))
                assert read(asks) == [], f"nothing was missed, asked the {short}th time"
            for _ in range(50):
                asks.send_multipart((b"", kept.to_bytes(8, "big")))
            until(publisher, lambda now: now["replays"] + now["rejected"] >= 4 + 49)
            answers = [len(read(asks)) for _ in range(50)]
            stats = publisher.stats()
            assert (answers.count(3), answers.count(0)) == (stats["replays"] - 4, stats["rejected"])
            assert answers[-1] == 3


def test_closing_answers_those_who_wait(
    cache: by.KVCache, held: type[Held], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert held.holds
    monkeypatch.setattr(publisher_module, "_LINGER", 60_000)
    publisher = Publisher(cache, ANY, replay=ANY)
    with subscribed(publisher) as router:
        for _ in range(5):
            router.asks.send_multipart((b"", bytes(8)))
        until(publisher, lambda now: now["snapshots"] + now["rejected"] == 4)
        publisher.close()
        assert [len(read(router.asks)) for _ in range(5)] == [1, 1, 0, 0, 1]


@pytest.mark.law("O5")
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


# Of what was being made ZeroMQ says itself that it is not closed.
@pytest.mark.filterwarnings("ignore:Unclosed (socket|context):ResourceWarning")
def test_one_that_was_interrupted_while_it_was_made_is_made_again(cache: by.KVCache) -> None:
    places = Places(publisher_module.__file__, zmq.__path__[0])
    made: list[Publisher] = []

    def make(over: by.KVCache) -> None:
        made.append(Publisher(over, ANY, replay=ANY))

    places.during(partial(make, cache), None)
    assert len(places.found) > 20
    for place in places.each():
        own = by.KVCache(block_size=SIZE, device=129, host=64)
        places.during(partial(make, own), place)
        if not made or made[-1].cache is not own:
            make(own)
        play(own, 1)
        assert made[-1].flush()
        assert made[-1].stats()["batches"] > 0
        made.pop().close()
    made.pop().close()


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


def test_what_was_sent_last_arrives_though_it_is_closed_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A second is short on a busy machine.
    monkeypatch.setattr(publisher_module, "_LINGER", 60_000)
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
    while router.numbers[-1:] != [publisher.stats()["next"] - 1]:
        assert router.sub.poll(30_000), "the last batch arrives"
        router.hear()
    closing.join()
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
