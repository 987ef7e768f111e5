"""The reference engine in both roles, over TCP: what is computed twice, resets, and every token."""

from collections.abc import Iterator
from typing import Any

import pytest

import blockyard as by
from blockyard.handover.prefill_side import PrefillSide
from blockyard.reference.model import Model
from blockyard.reference.reference import alone
from blockyard.reference.sampling import Sampling
from blockyard.reference.weights import ModelConfig
from blockyard.scheduling.request import RequestState, Result
from handover_rig import Relay, until

MODEL = ModelConfig(layers=2, vocabulary=128, hidden=32, head_dim=8, intermediate=64)
LAYOUT = MODEL.layout(block_size=4)
NAMES = {"model": "a small llama", "weights": "v1"}
TOKENS = [(7 * at) % MODEL.vocabulary for at in range(32)]


class Role:
    """An engine, and its scheduler."""

    def __init__(self, device: int = 64, **more: Any) -> None:
        config = by.Config(layout=LAYOUT, device=device, namespace=NAMES)
        sampling = Sampling(temperature=0.8)
        self.cache, self.engine = alone(Model(MODEL), config, sampling=sampling, **more)
        options = by.SchedulerOptions(stops=self.engine.stops)
        self.scheduler = by.Scheduler(self.cache, options, lookup=self.cache.lookup)
        self.computed = 0

    def step(self) -> None:
        step = self.scheduler.schedule()
        self.computed += int(step.counts.sum())
        self.engine.submit(step)
        self.cache.step()
        outputs, acks = self.engine.poll()
        for output in outputs:
            self.scheduler.on_output(output)
        self.scheduler.on_acks(acks)

    def ends(self) -> Result:
        until(lambda: self.scheduler.idle, self.step)
        (result,) = self.scheduler.results()
        return result


@pytest.mark.law("INV-36f")
@pytest.mark.parametrize("tokens", [3, 4, 5, 8, 31, 32, 33])
def test_inv_36f_only_the_last_block_is_computed_twice(tokens: int) -> None:
    prompt = [(7 * at + tokens) % MODEL.vocabulary for at in range(tokens)]
    ample, prefill = Role(), Role()
    ample.scheduler.add(by.NewRequest("one", prompt, max_tokens=6))
    wanted = ample.ends().tokens.tolist()
    side = PrefillSide(prefill.cache, prefill.cache.crane.device)
    decode = Role(peers=[side.address])
    taking = decode.cache.decode_side
    assert taking is not None
    ticket = taking.reserve("one", tokens, 6, patience=60.0)
    decode.scheduler.add(by.NewRequest("one", prompt, max_tokens=6, ticket=ticket))
    prefill.scheduler.add(by.NewRequest("one", prompt, max_tokens=1, hold=True))
    offer = side.offer(prefill.ends().held)
    assert (offer is None) == (tokens < LAYOUT.block_size)
    taking.offered("one", None if offer is None else offer.to_json())
    result = decode.ends()
    assert result.tokens.tolist() == wanted
    full = tokens // LAYOUT.block_size * LAYOUT.block_size
    assert result.cached_tokens.total == min(full, tokens - 1)
    assert decode.computed - 5 == max(tokens - full, 1), "the rest, or one token for its logits"
    until(lambda: not side.stats()["offers_held"])
    assert side.stats()["offers_ended_by_done"] == (offer is not None)
    assert decode.cache.stats()["remote_peer_stale"] == 0
    side.close()
    for role in (ample, prefill, decode):
        assert role.cache.audit() is None
        role.cache.close()


class Roles:
    """A prefill and a decode engine, with a relay between them."""

    def __init__(self) -> None:
        self.relay, self.prefill, ample = Relay(), Role(), Role()
        device = self.prefill.cache.crane.device
        self.side = PrefillSide(self.prefill.cache, device, advertise=self.relay.address, lease=2.0)
        self.relay.target = self.side.listens
        self.decode = Role(peers=[self.relay.address])
        assert self.decode.cache.decode_side is not None
        self.taking = self.decode.cache.decode_side
        ample.scheduler.add(by.NewRequest("one", TOKENS, max_tokens=6))
        self.wanted = ample.ends().tokens.tolist()
        ample.cache.close()

    def adds(self) -> None:
        ticket = self.taking.reserve("one", len(TOKENS), 6, patience=60.0)
        request = by.NewRequest("one", TOKENS, max_tokens=6, ticket=ticket)
        self.decode.scheduler.add(request)

    def offers(self) -> None:
        self.prefill.scheduler.add(by.NewRequest("one", TOKENS, max_tokens=1, hold=True))
        made = self.side.offer(self.prefill.ends().held)
        assert self.taking.offered("one", made)

    def reads(self) -> None:
        """Brings them into the middle of the read."""
        self.adds()
        self.offers()
        self.relay.most = float("inf") if self.relay.passed else 2 * LAYOUT.block_bytes
        until(lambda: self.relay.passed >= self.relay.most, self.decode.step)
        assert self.decode.scheduler.state("one") is RequestState.LOADING

    def reset(self, role: Role) -> list[Result]:
        role.engine.reset()
        role.scheduler.reset(requests="abort")
        self.relay.most = float("inf")
        return role.scheduler.results()

    def close(self) -> None:
        """Checks that nothing is left on either side."""
        until(lambda: not self.side.stats()["offers_held"])
        stats = self.taking.stats()
        assert (stats["handover_waiting"], stats["handover_open"]) == (0, 0)
        remote = self.decode.cache.crane.remote
        assert remote is not None
        (peer,) = remote.peers
        until(lambda: not peer.stats()["leases"])
        assert peer.stats()["in_flight"] == peer.stats()["offers_open"] == 0
        self.side.close()
        for role in (self.prefill, self.decode):
            assert role.cache.audit() is None
            found = role.cache.stats()
            assert not any(found[name] for name in ("leases", "tickets", "flights", "held_blocks"))
            role.cache.close()
        self.relay.close()


@pytest.fixture
def roles() -> Iterator[Roles]:
    found = Roles()
    yield found
    found.close()


@pytest.mark.law("INV-36f")
def test_inv_36f_a_decode_side_that_aborts_in_the_read_gives_all_back(roles: Roles) -> None:
    roles.reads()
    (result,) = roles.reset(roles.decode)
    assert (result.request, result.state) == ("one", RequestState.ABORTED)
    until(lambda: not roles.side.stats()["offers_held"])
    # The router gives it to this engine again, under its name.
    roles.adds()
    roles.offers()
    again = roles.decode.ends()
    assert again.tokens.tolist() == roles.wanted
    assert again.cached_tokens.remote == len(TOKENS) - 1


@pytest.mark.law("INV-36a")
def test_inv_36a_a_prefill_side_that_aborts_in_the_read_ends_its_offers_first(roles: Roles) -> None:
    roles.reads()
    # One that computes has no hold; the offer of the one that has ended goes with its blocks.
    roles.prefill.scheduler.add(by.NewRequest("two", TOKENS[::-1], max_tokens=9, hold=True))
    roles.prefill.step()
    (result,) = roles.reset(roles.prefill)
    assert (result.request, result.held) == ("two", None)
    until(lambda: roles.side.stats()["offers_ended_by_cleared"] == 1)
    device: Any = roles.prefill.cache.crane.device
    device.planes[0][:] = 0
    assert roles.decode.ends().tokens.tolist() == roles.wanted


def test_a_reset_that_keeps_the_memory_keeps_the_offers(roles: Roles) -> None:
    roles.reads()
    roles.prefill.cache.reset()
    roles.relay.most = float("inf")
    result = roles.decode.ends()
    assert result.tokens.tolist() == roles.wanted
    assert result.cached_tokens.remote == len(TOKENS) - 1
