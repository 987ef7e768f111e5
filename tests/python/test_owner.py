"""One thread at a time: a call that comes meanwhile is refused, and nothing is half done."""

import asyncio
import contextlib
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard._typing import override
from blockyard.connectors.worker import Worker
from blockyard.crane.copiers.bounce import BounceCopier
from blockyard.crane.copiers.checked import checked
from blockyard.crane.copiers.cuda_copier import CudaCopier
from blockyard.crane.copiers.disk_copier import DiskCopier
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.crane import Crane
from blockyard.crane.tiers.device import DeviceTier
from blockyard.crane.tiers.disk import DiskTier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.crane.tiers.pinned import PinnedTier
from blockyard.crane.traffic import Traffic
from blockyard.local_cache import LocalCache
from blockyard.scheduling.engine import Output
from blockyard.scheduling.reservations import Reservations
from blockyard.scheduling.scheduler import Scheduler
from blockyard.shared.owner import owned
from blockyard.shared.plan import Outcome
from blockyard.testing.simulated_gpu import SimulatedGpu
from cranes import gated, held, same
from fronts import Served, play
from yard import begin, text

LAYOUT = by.KVLayout.llama(layers=1, kv_heads=1, head_dim=8, block_size=4)


@pytest.fixture(params=[1e-6, 0.005])
def interval(request: pytest.FixtureRequest) -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(request.param)
    yield
    sys.setswitchinterval(before)


def mark(prompt: tuple[int, ...], block: int) -> int:
    """What the KV of a block is: it depends on all tokens up to its end."""
    return hash(prompt[: 4 * block + 4]) % 251 + 1


class Reader:
    """Begins prompts, waits for what comes up, reads every cached byte and writes the others."""

    def __init__(self, cache: LocalCache, device: MemoryTier, seed: int) -> None:
        self.cache, self.chance = cache, random.Random(seed)
        self.raw = device.planes[0].reshape(device.blocks, -1)
        self.found = self.wrong = 0
        self.prompts = [
            tuple(self.chance.randrange(1000) for _ in range(self.chance.choice((36, 40, 61))))
            for _ in range(24)
        ]

    def serve(self) -> None:
        prompt = self.chance.choice(self.prompts)
        try:
            lease = self.cache.begin(prompt)
        except by.NoRoom:
            return
        assert isinstance(lease, by.Lease)
        while lease.state == "loading":
            time.sleep(1e-4)
        table = self.cache.block_tables(lease)[0]
        for block in range(len(prompt) // 4):
            if block < lease.cached // 4:
                self.found += 1
                self.wrong += bool((self.raw[table[block]] != mark(prompt, block)).any())
            else:
                self.raw[table[block]] = mark(prompt, block)
        self.cache.seal(lease, len(prompt))
        self.cache.finish(lease)


@pytest.mark.usefixtures("interval")
def test_two_threads_that_step_serve_no_wrong_byte_and_fail_by_misuse_alone() -> None:
    found = 0
    for seed in range(10):
        device, host = MemoryTier(LAYOUT, 40, name="device"), MemoryTier(LAYOUT, 400)
        cache = by.local(LAYOUT, memory=(device, host), ahead=16)
        stop, failures, refused = threading.Event(), list[BaseException](), list[str]()

        def drive(
            cache: LocalCache = cache,
            stop: threading.Event = stop,
            failures: list[BaseException] = failures,
            refused: list[str] = refused,
        ) -> None:
            while not stop.is_set():
                try:
                    cache.step()
                except by.Misuse as error:
                    refused.append(str(error))
                except BaseException as error:  # noqa: BLE001
                    failures.append(error)

        drivers = [threading.Thread(target=drive, name=f"driver {at}") for at in range(2)]
        for driver in drivers:
            driver.start()
        reader = Reader(cache, device, seed)
        try:
            for _ in range(40):
                reader.serve()
        finally:
            stop.set()
            for driver in drivers:
                driver.join(30)
        assert not failures
        assert all("thread 'driver" in one for one in refused)
        found += reader.found
        assert reader.wrong == 0
        assert cache.audit() is None
        while cache.crane.in_flight or any(cache.blocks_in_flight()):
            cache.step()
        assert cache.stats()["flights_failed"] == 0
        cache.close()
    assert found > 100


@owned
def stay(_self: Any, inside: threading.Event, go: threading.Event) -> None:
    """A call that lasts."""
    inside.set()
    assert go.wait(30)


@contextlib.contextmanager
def another(act: Callable[[threading.Event, threading.Event], object]) -> Iterator[None]:
    """Has another thread in the middle of a call, which then ends as if nothing had been."""
    inside, go, failures = threading.Event(), threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            act(inside, go)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    thread = threading.Thread(target=run, name="the other")
    thread.start()
    assert inside.wait(30), failures
    try:
        yield
    finally:
        go.set()
        thread.join(30)
    assert not failures


def refused(act: Callable[[], object]) -> None:
    with pytest.raises(by.Misuse, match=r"was called while thread 'the other' \(\d+\) is in"):
        act()


ONE = np.zeros(1, np.uint32)
KEYS = np.zeros((1, 32), np.uint8)
OF_A_CRANE: dict[str, tuple[Any, ...]] = {
    "submit": ([],),
    "poll": (),
    "join": (),
    "fence": (),
    "reset": (),
    "close": (),
}
OF_THE_LASTING: dict[str, tuple[Any, ...]] = {
    "restored": (),
    "count_as": (1,),
    "clear": (),
    "keep_order": (ONE,),
}
OF_A_YARD: dict[str, tuple[Any, ...]] = {
    "dispatch": (),
    "commit": ([Outcome(1, 0, 1)],),
    "abort": (1,),
    "mark_unknown": (1,),
    "reset": (0,),
}
OF_A_COPIER: dict[str, tuple[Any, ...]] = {"reset": (), "close": ()}
OF_A_SCHEDULER: dict[str, tuple[Any, ...]] = {
    "add": ("one", [1]),
    "abort": ("one",),
    "hint": ("one",),
    "pause_decoding": ("one",),
    "resume_decoding": ("one",),
    "results": (),
    "schedule": (),
    "on_output": (Output.nothing(1),),
    "on_acks": ([],),
    "reconcile": ([], 0),
    "fail": (),
    "reset": (),
    "update_weights": (),
    "explain": ("one",),
    "release_thread": (),
}
NAMES = {"model": "m", "weights": "w"}


def made(path: Path) -> Iterator[tuple[Any, dict[str, tuple[Any, ...]]]]:
    """One of each that is for one thread at a time, and what it is asked."""
    cache = by.local(
        LAYOUT, device=9, host=9, disk=9, disk_path=path / "one", namespace=NAMES
    )  # fmt: skip
    more = {"step": (), "close": (), "clear": (), "update_weights": ()}
    yield cache, OF_A_YARD | more
    yield cache.crane, OF_A_CRANE
    yield cache.crane.persistent, OF_THE_LASTING
    yield by.KVCache(device=9, host=9), OF_A_YARD
    yield by.KVCache(engine=9, host=9), {"ended": ()}
    disk = DiskTier(LAYOUT, path / "two", blocks=9, identity=NAMES)
    memory = MemoryTier(LAYOUT, 9, name="device"), MemoryTier(LAYOUT, 9)
    yield disk, OF_THE_LASTING | {"stamps": (1,), "forget": (), "close": ()}
    down = (memory[0], disk, ONE, ONE)
    on_disk = DiskCopier(disk)
    yield on_disk, OF_A_COPIER | {"start_keyed": down, "collect": ()}
    yield ThreadCopier(), OF_A_COPIER | {"start": (*memory, ONE, ONE)}
    gpu = SimulatedGpu(0)
    tiers = DeviceTier(LAYOUT, 9, gpu=gpu), PinnedTier(LAYOUT, 9, gpu=gpu)
    bounce = BounceCopier(tiers[0], disk, on_disk)
    cuda = CudaCopier(*tiers)
    receipt = cuda.start(*tiers, ONE, ONE)
    assert receipt is not None
    of_gpu = OF_A_COPIER | {"start": (*tiers, ONE, ONE), "join": (), "fence": ()}
    yield cuda, of_gpu
    with another(lambda *events: stay(cuda, *events)):
        refused(receipt.poll)
    yield checked({("device", "host"): cuda})["device", "host"], of_gpu | {"go_on": ()}
    yield bounce, OF_A_COPIER | {"start_keyed": down, "go_on": ()}
    yard = by.KVCache(device=9)
    yield Scheduler(yard), OF_A_SCHEDULER
    of_reservations = {"commit": (1,), "release": (1,), "expire": (1,), "died": ("peer",)}
    yield Reservations(yard), of_reservations | {"open": ("one", 1)}
    worker = Worker(Crane(LAYOUT, device=memory[0], host=memory[1]))
    of_a_worker = dict.fromkeys(["outcomes", "suspend", "resume", "reset", "close"], ())
    yield worker, of_a_worker | {"begin": (None,)}


MORE: dict[str, dict[str, Any]] = {
    "start_keyed": {"keys": KEYS, "parents": KEYS},
    "add": {"max_tokens": 1},
    "open": {"deadline": 1},
}


def test_each_verb_that_is_for_one_thread_is_refused_while_another_is_in_one(
    tmp_path: Path,
) -> None:
    kinds = 0
    for one, verbs in made(tmp_path):
        kinds += 1
        with another(lambda *events, one=one: stay(one, *events)):
            for verb, what in verbs.items():
                refused(lambda: getattr(one, verb)(*what, **MORE.get(verb, {})))  # noqa: B023
    assert kinds == 14


def test_what_is_for_any_thread_goes_on_beside_a_step() -> None:
    with by.local(LAYOUT, device=20, host=9) as cache:
        lease = begin(cache, text(1, 33))
        with another(lambda *events: stay(cache, *events)):
            cache.commit([], done=1)
            cache.commit(lease.plans)
            cache.append(lease, [1])
            cache.seal(lease, 33)
            cache.clear()
            cache.finish(lease)
            assert cache.stats()["crane_in_flight"] == cache.crane.in_flight == 0
            assert cache.pending_copies().unpolled[0] == 0
            assert cache.audit() is None


class Calling(ThreadCopier):
    """Calls something when it is to start a copy."""

    act: Callable[[], object] = staticmethod(lambda: None)

    @override
    def start(self, *what: Any) -> Any:
        receipt = super().start(*what)
        self.act()
        return receipt


def offloading(copier: ThreadCopier) -> tuple[LocalCache, by.Lease]:
    """A cache whose next step copies a lease's blocks down."""
    cache = by.local(LAYOUT, device=20, host=40, write="through", ahead=16, copier=copier)
    lease = begin(cache, text(1, 33))
    cache.seal(lease, 33)
    return cache, lease


def test_a_step_within_a_step_is_refused_and_its_copy_is_not_believed() -> None:
    copier = Calling(workers=0)
    cache, lease = offloading(copier)
    said: list[str] = []

    def handler() -> None:
        try:
            cache.step()
        except by.Misuse as error:
            said.append(str(error))
            raise

    copier.act = handler
    cache.step()
    copier.act = lambda: None
    cache.step()
    assert said
    assert "LocalCache.step was called within LocalCache.step" in said[0]
    check_unbelieved(cache, lease)


def check_unbelieved(cache: LocalCache, lease: by.Lease) -> None:
    """The copier had it: its slot may be written, and is neither read nor given to another."""
    assert cache.stats()["host_quarantined"] > 0
    assert cache.probe(cache.keys(text(1, 33))).host == 0
    cache.finish(lease)
    assert cache.audit() is None
    cache.reset()
    assert cache.stats()["host_quarantined"] == 0
    cache.close()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_lets_go_of_it_and_loses_no_flight(error: type[BaseException]) -> None:
    copier = Calling(workers=0)
    cache, lease = offloading(copier)

    def interrupt() -> None:
        raise error

    copier.act = interrupt
    with pytest.raises(error):
        cache.step()
    copier.act = lambda: None
    for _ in range(3):
        cache.step()
    assert cache.crane.in_flight == 0
    assert cache.stats()["host_quarantined"] > 0
    cache.finish(lease)
    assert cache.audit() is None
    cache.close()


def test_a_timeout_of_a_signal_handler_ends_the_step_and_its_copy_is_not_believed() -> None:
    """It is no refusal of the copier, which has the copy by then."""

    def expired(*_: object) -> None:
        raise TimeoutError

    copier = Calling(workers=0)
    cache, lease = offloading(copier)
    before = signal.signal(signal.SIGUSR1, expired)
    try:
        copier.act = lambda: signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(TimeoutError):
            cache.step()
    finally:
        signal.signal(signal.SIGUSR1, before)
    copier.act = lambda: None
    cache.step()
    check_unbelieved(cache, lease)


def test_an_interrupt_at_any_call_leaves_the_owner_free() -> None:
    """A signal comes before or after some call of a step: each place is tried."""
    for at in range(1, 600):
        copier = ThreadCopier(workers=0)
        with by.local(LAYOUT, device=20, host=40, write="through", copier=copier) as cache:
            lease = begin(cache, text(1, 33))
            cache.seal(lease, 33)
            seen = 0

            def trace(frame: Any, _event: str, _what: Any, at: int = at) -> None:
                nonlocal seen
                seen += 1
                if seen == at and frame.f_code.co_filename != __file__:
                    raise KeyboardInterrupt

            sys.setprofile(trace)
            try:
                cache.step()
                ended = True
            except KeyboardInterrupt:
                ended = False
            finally:
                sys.setprofile(None)
            for _ in range(100):  # what it does not have by then it never has
                cache.step()
            assert cache.crane.in_flight == 0
            cache.finish(lease)
            assert cache.audit() is None
        if ended:
            break
    assert 100 < at < 599


def test_what_the_crane_reported_is_not_lost_when_the_cache_does_not_take_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache, lease = offloading(ThreadCopier(workers=0))
    cache.step()
    assert cache.crane.in_flight == 1
    monkeypatch.setattr(LocalCache, "_take", refuse_once(LocalCache._take))
    with pytest.raises(OSError, match="once"):
        cache.step()
    assert cache.step() == 1
    assert cache.stats()["host_in"] > 0
    cache.finish(lease)
    cache.close()


def refuse_once(right: Callable[..., Any]) -> Callable[..., Any]:
    raised: list[bool] = []

    def wrong(self: Any, *what: Any) -> Any:
        if not raised:
            raised.append(True)
            raise OSError("once")
        return right(self, *what)

    return wrong


def test_plans_that_the_crane_does_not_take_have_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, lease = offloading(ThreadCopier(workers=0))
    monkeypatch.setattr(Traffic, "submit", refuse_once(Traffic.submit))
    with pytest.raises(OSError, match="once"):
        cache.step()
    assert cache.blocks_in_flight() == (0, 0)
    assert cache.crane.in_flight == 0
    cache.step()
    cache.finish(lease)
    assert cache.audit() is None
    cache.close()


class Once(ThreadCopier):
    """Its first receipt cannot be polled once."""

    @override
    def start(self, *what: Any) -> Any:
        receipt = super().start(*what)
        return Balking(receipt)


class Balking:
    def __init__(self, receipt: Any) -> None:
        self.receipt, self.balked = receipt, False

    def poll(self) -> Any:
        if not self.balked:
            self.balked = True
            raise OSError("once")
        return self.receipt.poll()


def test_a_receipt_that_raises_loses_no_flight() -> None:
    cache, lease = offloading(Once(workers=0))
    cache.step()
    with pytest.raises(OSError, match="once"):
        cache.step()
    assert cache.step() == 1
    assert cache.stats()["host_in"] > 0
    cache.finish(lease)
    cache.close()


def test_a_copy_whose_start_fails_is_written_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    copier, device = ThreadCopier(workers=1), MemoryTier(LAYOUT, 9, name="device")
    host = MemoryTier(LAYOUT, 9)
    gate = gated(device)
    slots = np.arange(8, dtype=np.uint32)
    queue = copier._threads._queue
    put = queue.put

    def interrupted(what: Any) -> None:
        put(what)
        if what is not None:
            assert gate.reached.wait(30)
            threading.Timer(0.05, gate.opened.set).start()
            raise KeyboardInterrupt

    monkeypatch.setattr(
        copier._threads,
        "_queue",
        SimpleNamespace(put=interrupted, get=queue.get, empty=queue.empty),
    )
    with pytest.raises(KeyboardInterrupt):
        copier.start(device, host, slots, slots)
    before = held(host)
    time.sleep(0.02)
    assert same(host, before)
    copier.close()


def test_streams_are_read_in_the_event_loop_that_entered_their_engine() -> None:
    async def act(served: Served) -> None:
        stream = served.add("one", 9, 4)
        refusals: list[BaseException | None] = []

        def elsewhere() -> None:
            for what in (stream.result, served.front.drain, served.front.close):
                try:
                    asyncio.run(what())
                except by.Misuse as error:
                    refusals.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        await asyncio.to_thread(thread.join, 30)
        assert len(refusals) == 3
        assert all("event loop of thread 'MainThread'" in str(error) for error in refusals)
        assert len((await stream.result()).tokens) == 4

    play(act)


def test_of_two_threads_that_are_first_at_a_scheduler_one_has_it() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(50):
            scheduler = Scheduler(by.KVCache(device=9))
            barrier, had = threading.Barrier(2), list[int]()

            def first(
                scheduler: Scheduler = scheduler,
                barrier: threading.Barrier = barrier,
                had: list[int] = had,
            ) -> None:
                barrier.wait(30)
                for _ in range(20):
                    try:
                        scheduler.results()
                        had.append(threading.get_ident())
                    except by.Misuse:
                        pass

            threads = [threading.Thread(target=first) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
            assert len(set(had)) == 1
    finally:
        sys.setswitchinterval(before)
