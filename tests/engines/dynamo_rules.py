"""What Dynamo does with events, as far as Blockyard's are made for it: by hand, without a cache.

Where a release of Dynamo does something else, a rule breaks: what is published may have to change.
"""

import time
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from dynamo_process import SIZE, Indexer, Wrong, until

Rule = Callable[[Indexer], None]
RULES: list[Rule] = []
WORKER = 90
CLEARED = {"type": "AllBlocksCleared"}


def rule(function: Callable[["Teller"], None]) -> None:
    """Registers a rule."""

    def checked(indexer: Indexer) -> None:
        teller = Teller(indexer)
        try:
            function(teller)
        finally:
            teller.close()

    checked.__name__ = f"its_rule:_{function.__name__}"
    RULES.append(checked)


def stored(first: int, count: int, medium: str = "GPU", **more: Any) -> dict[str, Any]:
    """Blocks `first` and following of a sequence, in which block 7 has 7 as each of its tokens."""
    names = list(range(first, first + count))
    fields = {"type": "BlockStored", "block_hashes": names, "block_size": SIZE, "medium": medium}
    fields |= {"parent_block_hash": first - 1 if first % 100 else None, "lora_id": None}
    return fields | {"token_ids": prompt(first, count), "lora_name": None} | more


def removed(*names: int, medium: str = "GPU") -> dict[str, Any]:
    """Blocks that are gone."""
    return {"type": "BlockRemoved", "block_hashes": list(names), "medium": medium}


def prompt(first: int, count: int) -> list[int]:
    """The tokens of these blocks."""
    return [name for name in range(first, first + count) for _ in range(SIZE)]


class Teller:
    """A publisher by hand."""

    def __init__(self, indexer: Indexer) -> None:
        self.indexer = indexer
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.PUB)
        port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{port}"
        indexer.register(WORKER, self.endpoint, None)
        self.number = 0
        self.marks = 0
        self.mark(connects=True)

    def close(self) -> None:
        """Ends it, and has it forgotten."""
        self.indexer.unregister(WORKER)
        self.context.destroy(linger=0)

    def registers_anew(self, replay: str | None) -> None:
        """Registers again, with another place to ask."""
        self.indexer.unregister(WORKER)
        self.indexer.register(WORKER, self.endpoint, replay)

    def send(self, *events: dict[str, Any], number: int | None = None) -> None:
        """Sends a batch, under the next number or under another one."""
        if number is None:
            number = self.number = self.number + 1
        payload = msgspec.msgpack.encode([time.time(), events, 0])
        self.socket.send_multipart((b"", number.to_bytes(8, "big"), payload))

    def mark(self, *, connects: bool = False) -> None:
        """Waits until it has read all that was sent: a block on each tier, sent last, is known."""
        self.marks += 1
        start = 100_000 + 100 * self.marks
        batch = stored(start, 1), stored(start + 1, 1, "CPU"), stored(start + 2, 1, "STORAGE")
        self.send(*batch)
        for _ in range(100):
            if until(lambda: self.knows(start, 3) == (1, 2, 3), 0.1):
                return
            if connects:
                self.send(*batch)
        raise Wrong("it reads nothing more")

    def knows(self, first: int, count: int, **more: str) -> tuple[int, ...]:
        """How many of these blocks it knows: on the GPU, there and on the host, in all."""
        return self.indexer.known(WORKER, prompt(first, count), **more)

    def told(
        self,
        *events: dict[str, Any],
        wants: tuple[int, ...],
        of: int = 8,
        first: int = 0,
        **more: str,
    ) -> None:
        """Sends a batch, and checks what it knows then."""
        self.send(*events)
        self.mark()
        have = self.knows(first, of, **more)
        if have != wants:
            raise Wrong(f"it knows {have} of the blocks, not {wants}")


@rule
def tiers_are_followed_once_each_and_add_up(teller: Teller) -> None:
    teller.told(stored(0, 8), stored(0, 8, "CPU"), removed(*range(4, 8)), wants=(4, 8, 8))
    teller.told(
        CLEARED, stored(0, 2), stored(2, 2, "CPU"), stored(4, 2, "STORAGE"), wants=(2, 4, 6)
    )
    teller.told(stored(6, 2, "CPU"), wants=(2, 4, 6))


@rule
def without_its_tokens_no_block_is_known(teller: Teller) -> None:
    event = stored(0, 8)
    del event["token_ids"]
    teller.told(event, wants=(0, 0, 0))
    teller.told(stored(0, 8, token_ids=[]), wants=(0, 0, 0))


@rule
def on_the_gpu_a_child_before_its_parent_is_skipped(teller: Teller) -> None:
    teller.told(stored(4, 4), stored(0, 4), wants=(4, 4, 4))
    teller.told(stored(4, 4), wants=(8, 8, 8))


@rule
def below_the_gpu_any_order_will_do(teller: Teller) -> None:
    teller.told(stored(4, 4, "CPU"), stored(2, 2, "CPU"), stored(0, 2), wants=(2, 8, 8))


@rule
def on_the_gpu_a_parent_that_comes_back_brings_no_child_back(teller: Teller) -> None:
    teller.told(stored(0, 8), removed(3), stored(3, 1), wants=(4, 4, 4))


@rule
def hashes_of_32_bytes_lose_the_whole_batch(teller: Teller) -> None:
    teller.told(stored(0, 4), stored(100, 1, block_hashes=[bytes(32)]), wants=(0, 0, 0))
    teller.told(stored(0, 4), wants=(4, 4, 4))


@rule
def a_block_told_twice_is_gone_at_its_first_removal(teller: Teller) -> None:
    teller.told(stored(0, 4), stored(0, 4), removed(3), wants=(3, 3, 3))


@rule
def what_it_does_not_know_of_an_event_is_passed_over(teller: Teller) -> None:
    teller.told(stored(0, 4, session="s", anything=[1]), wants=(4, 4, 4))


@rule
def a_salt_in_the_extra_keys_alone_isolates_nobody(teller: Teller) -> None:
    keys = [["a salt"], None, None, None]
    teller.told(stored(0, 4, extra_keys=keys), wants=(4, 4, 4))
    salted = stored(100, 4, extra_keys=keys, cache_salt="a salt")
    teller.told(salted, wants=(0, 0, 0), first=100)
    teller.told(wants=(4, 4, 4), first=100, of=4, cache_salt="a salt")


@rule
def a_lost_batch_stays_lost_until_a_clear_and_the_truth_in_one(teller: Teller) -> None:
    teller.told(stored(0, 4), wants=(4, 4, 4))
    teller.number += 1  # one that removes block 3
    teller.told(stored(4, 1), wants=(5, 5, 5))
    teller.told(CLEARED, stored(0, 3), wants=(3, 3, 3))


@rule
def numbers_that_begin_anew_at_0_are_ignored(teller: Teller) -> None:
    teller.told(stored(0, 4), wants=(4, 4, 4))
    for number in range(teller.number):
        teller.send(CLEARED, stored(100, 4), number=number)
    teller.told(wants=(4, 4, 4))
    if teller.knows(100, 4) != (0, 0, 0):
        raise Wrong("it has listened to numbers that it had passed")


@rule
def a_replay_without_an_answer_is_waited_for_until_the_worker_is_registered_anew(
    teller: Teller,
) -> None:
    router = teller.context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    teller.registers_anew(f"tcp://127.0.0.1:{port}")
    for _ in range(100):
        teller.send(stored(0, 4))
        if router.poll(100):
            break
    else:
        raise Wrong("it asks for nothing")
    teller.send(stored(100, 4))
    if until(lambda: teller.knows(100, 4) != (0, 0, 0), 2):
        raise Wrong("it goes on without an answer")
    teller.registers_anew(None)
    teller.mark(connects=True)
