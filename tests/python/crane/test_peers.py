"""The peers of a rank, by themselves."""

from typing import Any

import pytest

from blockyard.crane.tiers import peers as module
from blockyard.crane.tiers.peers import Peers


class Silent:
    """A peer at a prefill side that does not answer: its close takes all the time."""

    def __init__(self, clock: "Clock") -> None:
        self.clock, self.told = clock, False

    def close(self, *, patience: float) -> bool:
        self.told = True
        self.clock.others += [one.told for one in self.clock.every]
        self.clock.now += patience
        return False


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.every: list[Silent] = []
        self.others: list[bool] = []

    def monotonic(self) -> float:
        return self.now


def test_a_close_takes_as_long_for_many_silent_peers_as_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, addresses = Clock(), [f"127.0.0.1:{port}" for port in range(7000, 7050)]
    every: Any = Peers(addresses, fields={"model": "m"}, rank=0, block_bytes=64)
    clock.every = [Silent(clock) for _ in addresses]
    every._peers = dict(zip(addresses, clock.every, strict=True))
    monkeypatch.setattr(module, "time", clock)
    assert not every.close(1.0)
    assert clock.now <= 101.0 + 1e-6
    assert all(clock.others[-len(addresses) :]), "all are told before any is waited for"
