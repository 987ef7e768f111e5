"""The life of one sequence: begin, decode, park under pressure, resume, finish."""

import numpy as np

import blockyard as by

cache = by.KVCache(block_size=16, device=64, host=256)
tables = np.zeros((1, 32), dtype=np.int32)

lease = cache.begin(range(100), reserve=64)  # 7 blocks now, 4 more promised
for step in range(40):
    batch = [lease]
    cache.grow(batch)  # inside the promise: never fails
    cache.append(batch, [1000 + step])
    cache.block_tables(batch, out=tables, cells="changed")
    cache.seal(batch, lease.appended)  # full blocks can be shared from here on

parked = cache.park(lease, computed=140)  # pins become keeps; nothing is copied yet
if plan := cache.demote(4, of=parked):  # the tail leaves first, as far as the need goes
    cache.commit(plan)  # the crane reports that the bytes are there

resumed = cache.begin(parked)  # the same road as a new request
if isinstance(resumed, by.Soon):
    raise SystemExit(f"wait for {resumed.flight}")
cache.commit(resumed.plans)  # what had left the device has come back
print(f"resumed at token {resumed.cached} of {resumed.appended}, nothing computed again")

cache.finish(resumed)
again = cache.begin(range(100))
print(f"the same prompt again: {again.cached} of 100 tokens are there")
print(f"audit: {cache.audit() or 'every law holds'}")
