"""Do the engines' own types read every byte of the events that are published?

    python events.py

It runs in an environment with vLLM, or with SGLang, and decodes what a cache tells in random lives
with theirs. What they would drop in silence, a field that they do not know, fails it too, but for
the one that each has no place for and that is said in another field.
"""

import importlib.util
import logging
import random
import sys
from typing import Any

import msgspec

import blockyard as by

SIZE, TURNS, LIVES = 4, 200, 12
TYPES = {
    "vllm": ("vllm.distributed.kv_events", frozenset({"cache_salt"})),
    "sglang": ("sglang.srt.disaggregation.kv_events", frozenset({"extra_keys"})),
}
"""Each engine's module, and what it forgets: vLLM has the salt in `extra_keys`, SGLang beside them.

SGLang has no field for media either: who reads with its types does not tell images apart.
"""


def life(seed: int) -> list[bytes]:
    """Everything that a cache of three tiers tells in one life, snapshots too."""
    chance = random.Random(seed)
    cache = by.KVCache(block_size=SIZE, device=33, host=24, disk=24)
    cache.listen(ring=chance.choice([64, 4096]), salts="tell" if seed % 2 else "hide")
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
    gone, snapshot = cache.snapshot_events(now=1.5, rank=0)
    told += [snapshot] if gone is None else [gone, snapshot]
    return told


def check(name: str, payload: bytes, met: set[str]) -> int:
    """Decodes a batch with an engine's types; returns how many events it has.

    The fields that have come are added to `met`.
    """
    module, forgets = TYPES[name]
    types = importlib.import_module(module)
    batch = msgspec.msgpack.decode(payload, type=types.KVEventBatch)
    plain = msgspec.msgpack.decode(payload)
    assert len(batch.events) == len(plain[1])
    for event, fields in zip(batch.events, plain[1], strict=True):
        kind = type(event)
        assert kind.__name__ == fields.pop("type")
        met.update(fields)
        unknown = fields.keys() - set(kind.__struct_fields__)
        assert unknown <= forgets, f"{name} forgets {unknown - forgets}"
        for field in fields.keys() - unknown:
            own = msgspec.json.decode(msgspec.json.encode(getattr(event, field)))
            value = fields[field]
            assert own == value, f"{name} reads {field} = {own}, and was sent {value}"
    return len(batch.events)


def main() -> int:
    """Checks what is installed here."""
    # What PyTorch warns of when an engine imports it is not about events.
    logging.disable(logging.WARNING)
    here = [name for name in TYPES if importlib.util.find_spec(name) is not None]
    if not here:
        print("BROKEN  events: neither vLLM nor SGLang is installed here")
        return 1
    for name in here:
        met: set[str] = set()
        events = sum(check(name, payload, met) for seed in range(LIVES) for payload in life(seed))
        missed = {"lora_name", "extra_keys", "cache_salt", "parent_block_hash"} - met
        assert not missed, f"no life has told {missed}: this has shown nothing of them"
        print(f"ok      events: {name} reads all {events:,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
