"""`make soak-stores`: engines over shared stores are killed again and again, and others go on.

    python soak_stores.py [--seeds 24] [--first 0] [--stores file redis mooncake] [--lies 0.4]

Each seed is a play of ten requests, of which most are handed over. Every token must be that of an
engine which has ample memory and no store; and where the store tells the truth, every leading full
block that it has acknowledged before the kill must be loaded by the engine that goes on.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "python" / "support"))

from handed_over import Setup, asks, play
from store_servers import mooncake, redis_server

STORES = ("file", "redis", "mooncake")


@contextmanager
def opened(kind: str) -> Iterator[str]:
    """The URL of a store, which ends with its server."""
    with tempfile.TemporaryDirectory(prefix="blockyard-soak-") as made:
        folder = Path(made)
        if kind == "file":
            yield folder.as_uri()
        elif kind == "redis":
            with redis_server(folder) as server:
                yield server.url
        else:
            with mooncake() as pool:
                yield pool.url


def played(url: str, seed: int, lies: float) -> Counter[str]:
    """Plays a seed, and returns what has happened."""
    chance = random.Random(seed)
    setup = Setup(
        url,
        seed,
        device=chance.randrange(18, 40),
        host=chance.choice((0, 16, 64)),
        lies=lies,
        faulty=lies > 0,
    )
    return play(setup, asks(seed, 10), kills=4, engines=chance.choice((1, 1, 2)))


def main() -> int:
    """Plays all seeds through each store."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--seeds", type=int, default=24)
    asked.add_argument("--first", type=int, default=0)
    asked.add_argument("--stores", nargs="+", choices=STORES, default=STORES)
    asked.add_argument("--lies", type=float, default=0.0, help="part of the answers that are wrong")
    options = asked.parse_args()
    for kind in options.stores:
        began, counts = time.monotonic(), Counter[str]()
        with opened(kind) as url:
            for seed in range(options.first, options.first + options.seeds):
                try:
                    counts += played(url, seed, options.lies)
                except AssertionError:
                    sys.stdout.write(f"{kind}: seed {seed} is broken\n")
                    raise
        sys.stdout.write(f"{kind}: seeds {options.first} to {options.first + options.seeds - 1}, ")
        sys.stdout.write(f"no token differs, in {time.monotonic() - began:.0f} s\n")
        for name, count in sorted(counts.items()):
            sys.stdout.write(f"{count:9,}  {name}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
