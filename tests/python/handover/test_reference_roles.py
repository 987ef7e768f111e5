"""The reference engine in both roles, over TCP: what is computed twice, and every token."""

from typing import Any

import pytest

import blockyard as by
from blockyard.handover.prefill_side import PrefillSide
from blockyard.reference.model import Model
from blockyard.reference.reference import alone
from blockyard.reference.sampling import Sampling
from blockyard.reference.weights import ModelConfig
from blockyard.scheduling.request import Result
from handover_rig import until

MODEL = ModelConfig(layers=2, vocabulary=128, hidden=32, head_dim=8, intermediate=64)
LAYOUT = MODEL.layout(block_size=4)
NAMES = {"model": "a small llama", "weights": "v1"}


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
