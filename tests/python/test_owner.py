"""One thread at a time: a call that comes meanwhile is refused, and nothing is half done."""

import random
import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import blockyard as by
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.local import LocalCache

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

    def serve(self, wait: Callable[[], object]) -> None:
        prompt = self.chance.choice(self.prompts)
        try:
            lease = self.cache.begin(prompt)
        except by.NoRoom:
            return
        assert isinstance(lease, by.Lease)
        while lease.state == "loading":
            wait()
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
            for _ in range(60):
                reader.serve(lambda: stop.wait(1e-4))
        finally:
            stop.set()
            for driver in drivers:
                driver.join(30)
        assert not failures
        assert all("thread 'driver" in one for one in refused)
        assert reader.found > 20
        assert reader.wrong == 0
        assert cache.audit() is None
        while cache.crane.in_flight or any(cache.blocks_in_flight()):
            cache.step()
        assert cache.stats()["flights_failed"] == 0
        cache.close()
        assert np.size(reader.raw)
