"""A scheduler and two ranks in processes of their own; `docs/processes.md` explains it."""

import multiprocessing
import tempfile
import time
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import numpy as np

import blockyard as by
from blockyard.crane.tiers.memory import MemoryTier

RANKS, TALKS, BLOCKS, TOKENS = 2, 5, 8, 128
LAYOUT = by.KVLayout.llama(layers=2, kv_heads=2, head_dim=64, ranks=RANKS)
# Every process starts from it. The device, ordinary memory here, holds two talks; the host all.
CONFIG = by.Config(layout=LAYOUT, device=17, host=99, write="through", ahead=16, deadline=9 * 10**9)


def serve(rank: int, address: str) -> None:
    """A rank's process: answers one scheduler after the other."""
    device = MemoryTier(LAYOUT, CONFIG.device_blocks, name="device")
    host = MemoryTier(LAYOUT, CONFIG.host_blocks, name="host")
    crane = by.Crane(LAYOUT, rank=rank, device=device, host=host, fingerprint=CONFIG.fingerprint)

    def compute(talk: int, table: list[int], found: int) -> int:
        kv, own = device.planes[0], (97 * rank + 7 * talk + np.arange(BLOCKS)) % 255 + 1
        wrong = (kv[table[:found]] != own[:found, None, None]).any(axis=(1, 2)).sum()
        kv[table[found:]] = own[found:, None, None]
        return int(wrong)

    Path(address).unlink(missing_ok=True)
    with crane, Listener(address) as listener:
        while True:
            with listener.accept() as scheduler, suppress(EOFError, OSError):
                while True:
                    verb, *what = scheduler.recv()
                    if verb == "step":
                        crane.submit(*what)
                        scheduler.send(crane.poll())
                    else:
                        scheduler.send(crane.hello(*what) if verb == "hello" else compute(*what))


def schedule(addresses: list[str], talks: Connection) -> None:
    """The scheduler's process: a yard with a number of its own, and a way to each rank."""
    config, ways = CONFIG.named(), dict[int, Any]()

    def meet(rank: int) -> Any:
        while True:  # whoever has started it starts it again
            with suppress(EOFError, OSError):
                ways[rank] = Client(addresses[rank])
                ways[rank].send(("hello", config.yard))
                return ways[rank].recv()
            time.sleep(0.01)

    def ask(*what: Any) -> list[Any]:
        answers: list[Any] = [None] * RANKS
        for rank in range(RANKS):  # each of them, also when one is away
            with suppress(EOFError, OSError):
                ways[rank].send(what)
                answers[rank] = ways[rank].recv()
        if what[0] == "step":
            cache.commit([one for said in answers for one in said or ()], now=time.monotonic_ns())
        for rank in (away := [rank for rank in range(RANKS) if answers[rank] is None]):
            hellos[rank] = meet(rank)
            by.agree(config, hellos)
            cache.reset(rank, memory="lost")
        if away:
            raise ConnectionError(f"ranks {away} are back, and what they had computed is lost")
        return answers

    def play(talk: int) -> tuple[int, int]:
        while True:
            with suppress(ConnectionError, by.NoRoom):  # what is copied down is not evicted yet
                ask("step", cache.dispatch())
                with cache.begin(range(TOKENS * talk, TOKENS * (talk + 1))) as lease:
                    while lease.state == "loading":
                        ask("step", cache.dispatch())
                    table, found = cache.block_tables(lease)[0], lease.cached // LAYOUT.block_size
                    wrong = sum(ask("compute", talk, table.tolist(), found))
                    cache.seal(lease, TOKENS)
                    ask("step", cache.dispatch())
                    return found, wrong

    hellos = [meet(rank) for rank in range(RANKS)]
    cache = by.KVCache(by.agree(config, hellos))
    with suppress(EOFError):
        while True:
            talks.send(play(talks.recv()))


def main() -> None:
    """Plays all talks six times, and kills a rank and then the scheduler in between."""
    with tempfile.TemporaryDirectory() as folder:
        ways, (mine, theirs) = [f"{folder}/{rank}" for rank in range(RANKS)], multiprocessing.Pipe()
        todo = [(serve, rank, way) for rank, way in enumerate(ways)] + [(schedule, ways, theirs)]

        def start(run: Any, *what: Any) -> Any:
            one = multiprocessing.get_context("spawn").Process(target=run, args=what, daemon=True)
            one.start()
            return one

        living = [start(*one) for one in todo]
        for turn in range(6):
            if turn in {2, 4}:  # the second rank, and then the scheduler
                living[turn // 2].kill()
                living[turn // 2] = start(*todo[turn // 2])
            for talk in range(TALKS):
                mine.send(talk)
            found, wrong = map(sum, zip(*(mine.recv() for _ in range(TALKS)), strict=True))
            print(f"turn {turn}: {found} of {TALKS * BLOCKS} blocks were found, {wrong} wrong")
            if wrong:
                raise SystemExit("a block was served that is not what was asked for")


if __name__ == "__main__":
    main()
