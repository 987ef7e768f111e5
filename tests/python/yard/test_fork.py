"""After a fork, what was made before it refuses to be used in the child, and waits for nothing."""

import subprocess
import sys

# Run apart: a fork beside pytest's own threads is not what is tested.
CHILD = """
import multiprocessing, os, sys
import blockyard as by

cache = by.KVCache(block_size=4, device=16, host=16)
lease = cache.begin(range(8), reserve=4)
parked = cache.park(cache.begin(range(100, 106)), 6)
keys = cache.keys(range(8))
plan = cache.demote(1, of=parked)

def uses():
    yield from (
        cache.stats, cache.audit, cache.clear, cache.draining, cache.probe,
        lambda: cache.begin(keys), lambda: cache.begin(parked), lambda: cache.grow(lease),
        lambda: cache.append(lease, [1]), lambda: cache.seal(lease, 4),
        lambda: cache.trim(lease, 8),
        lambda: cache.block_tables(lease), lambda: cache.slot_mapping(lease, 0),
        lambda: cache.park(lease, 8), lambda: cache.fork(lease, 8), lambda: cache.finish(lease),
        lambda: cache.abandon(parked), lambda: cache.demote(1), lambda: cache.promote(keys),
        lambda: cache.commit(plan), lambda: cache.abort(plan), lambda: cache.mark_unknown(plan),
        lambda: cache.resize("device", 20), lambda: lease.cached, lambda: lease.appended,
        lambda: lease.state, lambda: parked.state, lambda: parked.appended,
        lambda: lease.__exit__(None, None, None),
    )

def refusals():
    refused = 0
    for use in uses():
        try:
            use()
        except by.Misuse as error:
            refused += "fork" in str(error)
    return refused

def child(answer=None):
    global lease, parked
    refused = refusals()
    # What needs no lock goes on; a new cache works; handles from before can be dropped.
    fine = plan.flight > 0 and len(keys) == 2 and repr(lease).startswith("Lease(")
    fresh = by.KVCache(device=16)
    fresh.finish(fresh.begin(range(8)))
    fine = fine and fresh.audit() is None
    del lease, parked
    if answer is not None:
        answer.put((refused, fine))
    return refused, fine

expected = (len(list(uses())), True)
if sys.argv[1] == "fork":
    pid = os.fork()
    if pid == 0:
        os._exit(0 if child() == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
else:
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    process = context.Process(target=child, args=(answer,))
    process.start()
    assert answer.get(timeout=30) == expected
    process.join(30)
    assert process.exitcode == 0
# The parent has noticed nothing.
cache.commit(plan)
cache.finish(lease)
cache.abandon(parked)
assert cache.audit() is None
assert cache.stats()["leaked"] == cache.stats()["rejected"] == 0
print("done")
"""


def run(how: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", CHILD, how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)  # noqa: S603
    assert done.stdout == "done\n", done.stderr


def test_every_verb_and_handle_refuses_in_a_child_of_os_fork() -> None:
    run("fork")


def test_every_verb_and_handle_refuses_in_a_forked_process_of_multiprocessing() -> None:
    run("multiprocessing")
