"""A lease that loads, and an engine whose stream waits for the copies in place of the host."""

import pytest

import blockyard as by
from cranes import LAYOUTS
from rigs import Rig

LAYOUT = LAYOUTS["layer-first"]


def test_behind_join_a_lease_is_read_while_it_loads(gpu: Rig) -> None:
    *memory, copier = gpu.made(LAYOUT, 12, 9, {})
    gpu.fill(memory[0], 1)
    tokens = range(3 * LAYOUT.block_size)
    with by.local(LAYOUT, memory=tuple(memory), copier=copier) as cache:
        first = cache.begin(tokens)
        source = int(cache.block_tables(first)[0, 2])
        cache.seal(first, len(tokens))
        cache.finish(first)
        (plane,) = memory[0].planes
        # Done before, so that nothing of it is loaded behind the copy; the null slot is what reads.
        gpu.compute(lambda: plane.__setitem__(0, plane[1]))
        gpu.settle()
        wanted = gpu.held(memory[0])[0][source]

        lease = cache.begin(tokens)
        gpu.hold()
        cache.step()
        assert lease.plans
        with pytest.raises(by.Misuse, match="which is loading"):
            cache.block_tables(lease)
        assert cache.crane.join()
        table = cache.block_tables(lease, loading="joined")[0].tolist()
        assert cache.slot_mapping(lease, lease.cached, loading="joined") > 0
        assert table[2] != source
        gpu.compute(lambda: plane.__setitem__(0, plane[table[2]]))
        gpu.release()
        gpu.settle()
        assert (gpu.held(memory[0])[0][0] == wanted).all()
        while lease.state == "loading":  # `seal` waits for the report
            cache.step()
        cache.seal(lease, len(tokens))
        cache.finish(lease)
        assert cache.audit() is None
