"""Do the engines' own types read every byte of the events that are published?

    python events.py

It runs in an environment with vLLM, or with SGLang, and decodes what a cache tells in random lives
with theirs. What they would drop in silence, a field that they do not know, fails it too.
"""

import importlib.util
import random
import sys
from typing import Any

import msgspec

import blockyard as by

SIZE, TURNS, LIVES = 4, 200, 12
#: Each engine's module, and the fields of SGLang that vLLM has not.
TYPES = {
    "vllm": ("vllm.distributed.kv_events", frozenset[str]()),
    "sglang": ("sglang.srt.disaggregation.kv_events", frozenset({"cache_salt"})),
}


def life(seed: int) -> list[bytes]:
    """Everything that a cache of three tiers tells in one life, snapshots too."""
    chance = random.Random(seed)
    cache = by.KVCache(block_size=SIZE, device=33, host=24, disk=24)
    # vLLM's events have no place for a salt.
    cache.listen(ring=chance.choice([64, 4096]), salts="hide")
    told: list[bytes] = []
    for turn in range(TURNS):
        prompt = [chance.randrange(4)] * SIZE * chance.randrange(1, 4)
        prompt += [chance.randrange(1 << 18) for _ in range(chance.randrange(1, 9))]
        extras: dict[str, Any] = chance.choice(
            [{}, {}, {"lora": "an adapter"}, {"salt": "s"}, {"media": [(1, 6, "m" * 64)]}]
        )
        if extras.get("media") and len(prompt) < SIZE + 2:
            extras = {}
        lease = cache.begin(prompt, **extras)
        assert isinstance(lease, by.Lease)
        cache.commit(cache.dispatch())
        cache.seal(lease, len(prompt))
        cache.finish(lease)
        plan = cache.demote(chance.randrange(1, 5), tier=chance.choice(["device", "host"]))
        if plan is not None:
            cache.commit([plan])
        if turn % 90 == 80:
            cache.clear()
        if chance.random() < 0.5:
            payload, _ = cache.take_events(now=turn, rank=chance.choice([None, 1]))
            told += [] if payload is None else [payload]
    told.append(cache.snapshot_events(now=1.5, rank=0))
    return told


def check(name: str, payload: bytes) -> int:
    """Decodes a batch with an engine's types; returns how many events it has."""
    module, more = TYPES[name]
    types = importlib.import_module(module)
    batch = msgspec.msgpack.decode(payload, type=types.KVEventBatch)
    plain = msgspec.msgpack.decode(payload)
    assert len(batch.events) == len(plain[1])
    for event, fields in zip(batch.events, plain[1], strict=True):
        kind = type(event)
        assert kind.__name__ == fields.pop("type")
        unknown = fields.keys() - set(kind.__struct_fields__) - more
        assert not unknown, f"{name} forgets {unknown}"
        for field, value in fields.items():
            own = msgspec.json.decode(msgspec.json.encode(getattr(event, field, value)))
            assert own == value, f"{name} reads {field} = {own}, and was sent {value}"
    return len(batch.events)


def main() -> int:
    """Checks what is installed here."""
    here = [name for name in TYPES if importlib.util.find_spec(name) is not None]
    if not here:
        print("events: neither vLLM nor SGLang is installed here")
        return 1
    for name in here:
        events = sum(check(name, payload) for seed in range(LIVES) for payload in life(seed))
        print(f"events: {name} reads all {events}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
