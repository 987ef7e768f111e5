"""What several groups of layers cost the scheduler's half, as a multiple of what one group costs.

    python benches/python/groups.py

All rows are measured in one run, in CPU time of the thread, the best of some rounds: lookups of a
prompt of 128 blocks, each of another prompt, over a host of 1,200 such prompts and over a host of
one; and a decode step of 256 requests that orders nothing. The bars are those of the design.
"""

import sys
import time
from collections.abc import Callable, Iterable
from typing import Final

import blockyard as by
from blockyard.connectors.connector import Connector
from blockyard.connectors.hybrid_connector import HybridConnector
from blockyard.shared.groups import Group
from blockyard.shared.layout import Plane

SIZE, BLOCKS, PROMPTS, ROUNDS = 16, 128, 1200, 5
LAYOUT: Final = by.KVLayout((Plane("kv", 1, 64),), block_size=SIZE, ranks=1, dtype="uint8")
FULL, STATE = by.Full(LAYOUT), by.RecurrentState(LAYOUT)
WINDOW = by.SlidingWindow(LAYOUT, tokens=128)
MODELS: Final[dict[str, tuple[list[Group], bool, float]]] = {
    "full + window 128": ([FULL, WINDOW], True, 1.4),
    "6 groups": ([FULL, *[WINDOW] * 5], True, 2.5),
    "a state, and none found": ([FULL, STATE], False, 2.5),
}


def best(call: Callable[[int], object], times: Iterable[int]) -> float:
    """Microseconds of a call."""
    each, found = list(times), float("inf")
    for _ in range(ROUNDS):
        begun = time.thread_time()
        for one in each:
            call(one)
        found = min(found, (time.thread_time() - begun) / len(each))
    return found * 1e6


def carry(connector: Connector | HybridConnector) -> None:
    """Carries a step's orders out at once."""
    orders = connector.step()
    plans = (*orders.down, *orders.up)
    connector.commit([by.Outcome.of(plan, 0, len(plan)) for plan in plans])


def one_group(prompts: int) -> tuple[Connector, list[by.Keys]]:
    """A connector over one group, with so many prompts on its host."""
    host = prompts * BLOCKS + 64
    connector = Connector(by.KVCache(by.Config(layout=LAYOUT, engine=8192, host=host)))
    keys = [connector.cache.keys([n, *[7] * BLOCKS * SIZE]) for n in range(prompts)]
    for one in keys:
        connector.offload(one, range(1, BLOCKS + 1))
        carry(connector)
    return connector, keys


def several(
    groups: list[Group], prompts: int, *, riders: bool
) -> tuple[HybridConnector, list[by.Keys]]:
    """The same over groups, whose riders have what the end of each prompt needs, or nothing."""
    hosts = [prompts * BLOCKS + 64, *[prompts * 9 + 64] * (len(groups) - 1)]
    configs = by.GroupConfigs(groups, engine=8192, host=hosts)
    caches = [by.KVCache(config) for config in configs]
    connector = HybridConnector(caches, configs.groups)
    keys = [caches[0].keys([n, *[7] * BLOCKS * SIZE]) for n in range(prompts)]
    tables = [range(1 + 200 * n, 1 + 200 * n + BLOCKS) for n in range(len(groups))]
    for one in keys:
        connector.offload("one", one, tables, at=[BLOCKS * SIZE] if riders else [])
        carry(connector)
    return connector, keys


def decode(connector: Connector | HybridConnector, keys: by.Keys) -> float:
    """Microseconds of the calls of a step in which 256 requests run on."""
    for name in range(256):
        connector.matched(name, keys, len(keys))
        connector.allocated(name)

    def step(_: int) -> None:
        connector.commit([])
        connector.arrived()
        connector.step(range(1, 17))

    return best(step, range(4000))


def main() -> None:
    """Prints a line for each row."""
    say = sys.stdout.write
    for prompts in (PROMPTS, 1):
        order = [n * 7 % prompts for n in range(PROMPTS)]
        plain, keys = one_group(prompts)
        of_one = best(lambda n, c=plain, k=keys: c.matched("one", k[n]), order)  # type: ignore[misc]
        say(f"lookup of {BLOCKS} blocks, {prompts:,} prompts on the host: {of_one:.2f} µs\n")
        for name, (groups, riders, bar) in MODELS.items():
            made, keys = several(groups, prompts, riders=riders)
            taken = best(lambda n, c=made, k=keys: c.matched("one", k[n]), order)  # type: ignore[misc]
            say(f"  {name}: {taken:.2f} µs, {taken / of_one:.2f} times (bar: {bar})\n")
    plain, keys = one_group(1)
    of_one = decode(plain, keys[0])
    made, keys = several(MODELS["6 groups"][0], 1, riders=True)
    taken = decode(made, keys[0])
    say(f"decode step of 256: {of_one:.2f} µs\n")
    say(f"  6 groups: {taken:.2f} µs, {taken / of_one:.2f} times (bar: 1.5)\n")


if __name__ == "__main__":
    main()
