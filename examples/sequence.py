"""The life of one sequence: begin, decode, park under pressure, resume, finish.

The model is left out: comments say what it computes, and `seal` believes that it has done so.
"""

import numpy as np

import blockyard as by

layout = by.KVLayout.llama(layers=2, kv_heads=2, head_dim=64)
tables = np.zeros((1, 32), dtype=np.int32)

with by.local(layout, device=64, host=256) as cache:
    lease = cache.begin(range(100), reserve=64)  # 7 blocks now, 4 more promised
    while lease.state == "loading":  # always before the model: what was found may be on its way
        cache.step()
    # the model computes tokens lease.cached to 100 here
    for step in range(40):
        batch = [lease]
        cache.grow(batch)  # inside the promise: never fails
        cache.append(batch, [1000 + step])
        cache.block_tables(batch, out=tables, cells="changed")
        # the model computes token lease.appended - 1 here
        cache.seal(batch, lease.appended)  # full blocks can be shared from here on
        cache.step()  # once per step: finished copies in, new ones out

    parked = cache.park(lease, computed=140)  # pins become keeps; nothing is copied yet
    cache.demote(4, of=parked)  # the tail leaves first, as far as the need goes
    while parked.moving:
        cache.step()

    resumed = cache.begin(parked)  # the same road as a new request
    if isinstance(resumed, by.Soon):
        raise SystemExit(f"wait for {resumed.flight}")
    while resumed.state == "loading":  # where others took its slots, it comes back
        cache.step()
    print(f"resumed at token {resumed.cached} of {resumed.appended}, nothing computed again")
    cache.finish(resumed)

    again = cache.begin(range(96))
    print(f"a prompt of 96 again: {again.cached} tokens are there or on their way: {again.state}")
    while again.state == "loading":  # found whole: a copy of its last block, without any host too
        cache.step()
    cache.block_tables([again], out=tables)
    # the model computes tokens again.cached to 96 here: the last one, for its logits
    cache.seal(again, computed=96)
    cache.finish(again)
    print(f"audit: {cache.audit() or 'every law holds'}")
