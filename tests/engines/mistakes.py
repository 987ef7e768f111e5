"""Mistakes that the seeds must notice, each a law that is broken on purpose."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import cases
from blockyard._core import Misuse
from blockyard.connectors.connector import Connector
from blockyard.connectors.vllm.identity import Root
from blockyard.connectors.vllm.reported import Reported
from blockyard.connectors.vllm.resets import Resets
from blockyard.connectors.vllm.scheduler_half import SchedulerHalf
from blockyard.connectors.worker import Worker
from blockyard.crane.copiers.checked import Checksums
from blockyard.shared.plan import Cause
from blockyard.yard.cache import KVCache
from seeds import Game
from simulated_model import Wrong

MISTAKES: list[Callable[[], None]] = []
BYTES, LEFT = "holds something else", "left behind"


def seeds() -> None:
    """Plays seeds, which are to break."""
    for seed in range(200):
        Game(seed).play()


def noticed(
    of: type,
    verb: str,
    *says: str,
    by: Callable[[], None] = seeds,
    among: list[Callable[[], None]] = MISTAKES,
) -> Callable[[Callable[..., Any]], None]:
    """Registers a mistake in place of a verb, and what the seeds or a case say of it."""

    def register(wrong: Callable[..., Any]) -> None:
        def check() -> None:
            right = getattr(of, verb)
            setattr(of, verb, lambda self, *what, **named: wrong(right, self, *what, **named))
            try:
                by()
            except Misuse:
                # What it was called with contradicts itself.
                if says:
                    raise
            except Wrong as broken:
                if says and not any(one in str(broken) for one in says):
                    raise
            else:
                raise Wrong("nothing has noticed it")
            finally:
                setattr(of, verb, right)

        check.__name__ = f"noticed_{wrong.__name__}"
        among.append(check)

    return register


@noticed(KVCache, "must_finish", BYTES)
def e1_a_fence_that_is_not_kept(_right: Any, _self: KVCache, _ids: Any) -> None:
    """What is copied is written meanwhile."""


@noticed(Worker, "_spoil", BYTES)
def e1_blocks_that_the_second_runner_has_zeroed_are_copied(*_: Any) -> None:
    """They were written before the fence."""


@noticed(SchedulerHalf, "finished")
def e2_blocks_are_offloaded_under_the_keys_of_others(
    right: Any, self: SchedulerHalf, request: Any, tables: Any
) -> None:
    """The last block's KV is found as the first one's."""
    right(self, request, [ids[::-1] for ids in tables])


@noticed(Root, "keys")
def e2_keys_stand_for_no_tokens(right: Any, self: Root, hashes: Any, start: Any) -> Any:
    """A byte of a hash is not the hash."""
    return right(self, [one[:1] * 32 for one in hashes], start)


@noticed(Connector, "commit", BYTES)
def e2_e3_one_ranks_word_is_taken_for_all(
    right: Any, self: Connector, outcomes: Any, **named: Any
) -> None:
    """The other's blocks are not there yet, or are read after they have gone."""
    ranks = range(self.cache.config.ranks)
    said = [one._replace(rank=rank) for one in outcomes if one.rank == 0 for rank in ranks]
    right(self, said, **named)


@noticed(Reported, "take", BYTES)
def e4_tokens_that_did_not_come_are_not_named(right: Any, self: Reported, reports: Any) -> None:
    """vLLM would compute them."""
    right(self, reports)
    self.missing.clear()


@noticed(Connector, "preempted", BYTES)
def e4_a_request_is_kept_with_a_token_too_many(
    right: Any, self: Connector, name: Any, keys: Any, ids: Any, tokens: int
) -> None:
    """Its last token is computed by no step that has ended."""
    size = self.cache.config.block_size
    right(self, name, keys, ids, tokens + 1 if tokens % size else tokens)


@noticed(
    KVCache, "commit", "cut short", by=cases.a_copy_that_was_found_corrupt_is_never_offered_again
)
def e5_a_copy_that_was_found_bad_stays(
    right: Any, self: KVCache, outcomes: Any, **named: Any
) -> None:
    """It is offered again and again."""
    failed = {Cause.CORRUPT: Cause.FAILED}
    right(self, [one._replace(cause=failed.get(one.cause, one.cause)) for one in outcomes], **named)


@noticed(Checksums, "compare", BYTES)
def e5_checksums_are_not_compared(_right: Any, _self: Checksums, _tier: Any, slots: Any) -> Any:
    """A bit has flipped in host memory."""
    all_good: Future[int] = Future()
    all_good.set_result(len(slots))
    return all_good


@noticed(Connector, "_release", LEFT)
def e6_what_is_kept_outlives_its_request(*_: Any) -> None:
    """It holds memory for nobody."""


@noticed(Resets, "unheard", BYTES)
def new_weights_meet_old_kv(*_: Any) -> bool:
    """vLLM has told nobody of its reset."""
    return False


@noticed(Connector, "clear", BYTES, by=cases.what_ended_just_before_a_reset_is_not_found_after_it)
def what_ended_just_before_new_weights_is_offloaded_after_them(
    _right: Any, self: Connector
) -> None:
    """It ended in the step before the reset."""
    self.cache.clear()
