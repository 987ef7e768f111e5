"""Stores inside vLLM: what one engine puts another finds, and a failing one holds up nothing."""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from blockyard import Misuse, Unavailable
from blockyard._typing import override
from blockyard.connectors.vllm.settings import Settings
from vllm_disk import WEIGHTS, Engine
from vllm_front import SIZE, no_torch, read

__all__ = ["no_torch"]

PROMPT = list(range(4 * SIZE))
IDS = [3, 4, 5, 6]


class Sharing(Engine):
    """Both halves, over a store."""

    def __init__(self, url: Any, **extra: Any) -> None:
        given = {"disk": None, "disk_path": None, "remote": url, "namespace": WEIGHTS}
        super().__init__(None, **{**given, **extra})
        # A second takes long, so that the answer is never late on a busy machine.
        self.scheduler.front.clock = lambda: time.monotonic() / 1000

    def matched(self, request: Any) -> int:
        """Tokens that a request finds, when the store has answered."""
        until = time.monotonic() + 20
        while (found := self.scheduler.get_num_new_matched_tokens(request, 0)[0]) is None:
            assert time.monotonic() < until
            time.sleep(1e-3)
        return int(found)

    @override
    def begin(self, request: Any, ids: Any, local: int = 0) -> int | None:
        """Admits a request, when the store has answered."""
        self.matched(request)
        return super().begin(request, ids, local)

    @property
    def numbers(self) -> dict[str, int]:
        """What the worker's stores have counted."""
        return self.worker.back._rank_stats()


class Hung:
    """A store that never answers before it is let go."""

    url = "hung://store"

    def __init__(self) -> None:
        self.go, self.asked, self.calls = threading.Event(), threading.Event(), 0

    def connect(self) -> Any:
        self.calls += 1
        self.asked.set()
        self.go.wait()
        raise Unavailable("it was let go")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return (tmp_path / "store").as_uri()


@pytest.fixture
def engines() -> Iterator[list[Sharing]]:
    made: list[Sharing] = []
    yield made
    for one in made:
        one.close()
        one.scheduler.shutdown()


def values(tmp_path: Path) -> list[Path]:
    """The values of blocks, sorted by their keys."""
    return sorted(
        path
        for path in (tmp_path / "store").rglob("*")
        if path.is_file() and path.name != "identity"
    )


# -- what another engine finds -------------------------------------------------------------


def test_an_engine_finds_what_another_has_put(url: str, engines: list[Sharing]) -> None:
    engines += [Sharing(url), Sharing(url)]
    first, second = engines
    first.offload("one", [*PROMPT, 1], [*IDS, 7], 100)
    assert first.numbers["remote_put_blocks"] == 4
    second.load("two", [*PROMPT, 1], [8, 9, 10, 11], IDS, 100)
    assert second.numbers["remote_got_blocks"] == 4
    assert second.scheduler.front.connector.stats()["cached_remote"] == 4 * SIZE


def test_an_engine_with_other_weights_finds_nothing(url: str, engines: list[Sharing]) -> None:
    engines += [Sharing(url), Sharing(url, namespace={"weights": "v2"})]
    engines[0].offload("one", [*PROMPT, 1], [*IDS, 7], 100)
    assert engines[1].matched(engines[1].request("two", [*PROMPT, 1])) == 0


def test_several_stores_and_a_disk_are_all_used(tmp_path: Path, engines: list[Sharing]) -> None:
    urls = [(tmp_path / name).as_uri() for name in ("one", "two")]
    disk = {"disk": 64, "disk_path": str(tmp_path / "disk")}
    engines += [Sharing(urls, **disk), Sharing(urls[0])]
    first, second = engines
    first.offload("one", [*PROMPT, 1], [*IDS, 7], 100)
    # From the host to the disk, and from there to the store.
    assert first.numbers["disk_written_bytes"] > 0
    assert first.numbers["remote_put_blocks"] == 4
    second.load("two", [*PROMPT, 1], [8, 9, 10, 11], IDS, 100)


@pytest.mark.parametrize("change", ["flip", "cut", "lose"])
def test_what_is_wrong_or_gone_is_computed_again(
    url: str, tmp_path: Path, engines: list[Sharing], change: str
) -> None:
    engines += [Sharing(url), Sharing(url)]
    first, second = engines
    first.offload("one", [*PROMPT, 1], [*IDS, 7], 100)
    request = second.request("two", [*PROMPT, 1])
    assert second.matched(request) == 4 * SIZE
    keys = bytes(second.scheduler.front._rows.of(request).keys)
    (third,) = [one for one in values(tmp_path) if one.name == keys[64:96].hex()]
    if change == "lose":
        third.unlink()
    else:
        raw = bytearray(third.read_bytes())
        raw[-1] ^= 1
        third.write_bytes(raw if change == "flip" else raw[:-1])
    ids = [8, 9, 10, 11]
    assert second.begin(request, ids) == 4 * SIZE
    until, said = time.monotonic() + 20, second.step()
    while "two" not in said.finished_recving:
        assert time.monotonic() < until
        time.sleep(1e-3)
        said = second.step()
    assert said.invalid_block_ids == {10, 11}
    for tensor in second.kv.values():
        assert (tensor[8] == 100 + IDS[0]).all()
        assert (tensor[9] == 100 + IDS[1]).all()
    assert second.scheduler.front.connector.stats()["cached_remote"] == 2 * SIZE
    found = second.numbers
    assert found["remote_missing" if change == "lose" else "remote_corrupt"] >= 1


# -- a store that fails --------------------------------------------------------------------


def test_a_store_that_is_down_at_the_start_costs_misses_alone(
    engines: list[Sharing], caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("redis")
    with caplog.at_level(logging.WARNING):
        engines.append(Sharing("redis://127.0.0.1:1"))
        engines[0].offload("one", [*PROMPT, 1], [*IDS, 7], 100)
    said = [one for one in caplog.messages if "redis://127.0.0.1:1" in one]
    assert any("start the server" in one for one in said)
    assert engines[0].numbers["remote_put_blocks"] == 0
    # What its own memory has is found as without a store.
    assert engines[0].matched(engines[0].request("two", [*PROMPT, 1])) == 4 * SIZE


def test_a_store_that_never_answers_holds_up_no_step(
    monkeypatch: pytest.MonkeyPatch, engines: list[Sharing]
) -> None:
    hung = Hung()
    stores: Sequence[Any] = [hung]
    monkeypatch.setattr(Settings, "stores", lambda _: stores)
    engine = Sharing("file:///nowhere")
    engines.append(engine)
    now = 100.0
    engine.scheduler.front.clock = lambda: now
    ask = engine.scheduler.get_num_new_matched_tokens
    one = engine.request("one", [*PROMPT, 1])
    assert ask(one, 0) == (None, False)
    hung.asked.wait(20)
    now += 0.019
    assert ask(one, 0) == (None, False), "within its patience"
    now += 0.002
    assert ask(one, 0) == (0, False), "its patience is over"
    # It has not answered another one, so nobody waits any more; and nobody asks twice.
    assert ask(engine.request("two", [7, *PROMPT]), 0) == (0, False)
    assert ask(one, 0) == (0, False)
    assert hung.calls == 1
    hung.go.set()


def test_a_request_that_ends_while_the_store_is_asked_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, engines: list[Sharing]
) -> None:
    hung = Hung()
    monkeypatch.setattr(Settings, "stores", lambda _: [hung])
    engine = Sharing("file:///nowhere")
    engines.append(engine)
    request = engine.request("one", [*PROMPT, 1])
    engine.scheduler.on_new_request(request)
    asker = engine.scheduler.front._asker
    assert asker is not None
    assert list(asker._open) == ["one"], "it is asked before it is admitted"
    engine.scheduler.request_finished(request, [])
    assert not asker._open
    hung.go.set()


def test_after_a_reset_stores_are_left_alone(url: str, engines: list[Sharing]) -> None:
    engines += [Sharing(url), Sharing(url)]
    first, second = engines
    first.offload("one", [*PROMPT, 1], [*IDS, 7], 100)
    assert second.matched(second.request("two", [*PROMPT, 1])) == 4 * SIZE
    second.scheduler.reset_cache()
    # Its weights may be others now, under the name of those before.
    assert second.matched(second.request("three", [*PROMPT, 1])) == 0
    second.step()
    put = second.numbers["remote_put_blocks"]
    second.offload("four", [9, *PROMPT[1:], 1], [*IDS, 7], 50)
    assert second.numbers["remote_put_blocks"] == put == 0
    # The other engine has not changed.
    assert first.matched(first.request("five", [*PROMPT, 1])) == 4 * SIZE


def test_ranks_with_other_identities_are_refused(url: str, engines: list[Sharing]) -> None:
    engines.append(Sharing(url))
    front, ready = engines[0].scheduler.front, engines[0].worker.get_handshake_metadata()
    other = type(ready)(**{**vars(ready), "places": (1,)})
    with pytest.raises(Misuse, match="different identities"):
        front._ask_stores([ready, other])


# -- options -------------------------------------------------------------------------------

STORE = {"host": "64 MiB", "namespace": WEIGHTS, "remote": "file:///kv"}


def test_names_and_writes_follow_from_the_option() -> None:
    _, config = read(STORE)
    assert (config.remote_blocks, config.keyed) == (1_000_000, ("remote",))
    assert config.write_of("host") == "through"
    _, config = read({**STORE, "remote_names": 500, "write": "through"})
    assert (config.remote_blocks, config.write_of("device")) == (500, "through")
    both = {"disk": "64 MiB", "disk_path": "/disk"}
    _, config = read({**STORE, **both})
    assert (config.keyed, config.write_of("disk")) == (("disk", "remote"), "through")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"remote": "rediss://user:hidden@host"}, "password in it, and vLLM logs .*password_file"),
        ({"remote": "ftp://host"}, "the scheme of a store's URL = 'ftp'"),
        ({"remote": []}, "give the URL of a store"),
        ({"remote": 500}, "give the URL of a store"),
        ({"remote": ["file:///kv", "file:///kv"]}, "each store once"),
        ({"host": 0, "disk": 0}, "without a host, through which blocks reach a store"),
        ({"namespace": {}}, "weights cannot be identified"),
        ({"remote_names": 0}, "remote_names = 0"),
        ({"remote": None, "remote_names": 5}, "remote_names was given without remote"),
        ({"remote": None, "password_file": "/p"}, "password_file was given without remote"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(Misuse, match=why) as refused:
        read({**STORE, **given})
    assert "hidden" not in str(refused.value)


def test_a_password_comes_from_a_file_for_those_that_have_one(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hidden\n")
    settings = Settings(remote=["file:///kv"], password_file=str(secret))
    with pytest.raises(Misuse, match=r"none of .* has a password"):
        settings.stores()
    pytest.importorskip("redis")
    settings = Settings(remote=["redis://host", "file:///kv"], password_file=str(secret))
    assert [one.url for one in settings.stores()] == ["redis://host", "file:///kv"]
    gone = Settings(remote="redis://host", password_file=str(tmp_path / "none"))
    with pytest.raises(Misuse, match="password_file cannot be read"):
        gone.stores()
