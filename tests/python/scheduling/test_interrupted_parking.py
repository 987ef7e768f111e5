"""A park and a resume, interrupted at every line: no request is lost in silence."""

from collections.abc import Callable

import pytest

import blockyard as by
from blockyard.scheduling.engine import Ack
from blockyard.scheduling.request import RequestState
from interrupted import Places
from loop import Loop, continuation, parked, resuming, stopping


def _ack(loop: Loop) -> None:
    loop.scheduler.on_acks([Ack(*stop) for stop in loop.stops])


def _schedule(loop: Loop) -> None:
    loop.scheduler.schedule()


PLACES = "scheduling", "yard/cache.py", "yard/parking.py", "shared/owner.py"
SCENES: dict[str, tuple[Callable[[bool], Loop], Callable[[Loop], None]]] = {
    "parking": (lambda recompute: stopping(host=32, recompute=recompute), _ack),
    "moving down": (lambda recompute: parked(recompute=recompute), _schedule),
    "resuming": (lambda recompute: resuming(recompute=recompute), _schedule),
}


def reset(loop: Loop) -> None:
    """What the message of an interrupted scheduler tells to do, with an engine that was reset."""
    loop.air.clear()
    loop.bound.clear()
    loop.stops.clear()
    loop.plans.clear()
    loop.scheduler.reset()
    for flight in loop.cache.dispatched():
        loop.cache.abort(flight)


@pytest.mark.parametrize(
    ("name", "recompute"), [("parking", True), *((name, False) for name in SCENES)]
)
def test_a_park_that_is_interrupted_anywhere_keeps_its_request_or_says_that_it_is_lost(
    name: str,
    recompute: bool,
) -> None:
    made, verb = SCENES[name]
    places = Places(*PLACES)
    loop = made(recompute)
    places.during(lambda: verb(loop), None)
    tried = lost = 0
    for place in places.each():
        tried += 1
        loop = made(recompute)
        places.during(lambda loop=loop: verb(loop), place)  # type: ignore[misc]
        try:
            if loop.scheduler._owner.interrupted:
                with pytest.raises(by.Misuse, match=r"call reset\(\)") as half_done:
                    loop.scheduler.schedule()
                assert ("kv_lost" in str(half_done.value)) == (not recompute)
            reset(loop)
            # What an interrupt has dropped is given back as a leak.
            loop.finish(leaked=loop.cache.stats()["leaked"])
            assert loop.results.keys() == {"old", "new"}
            for request, result in loop.results.items():
                if (name, request) == ("resuming", "old"):
                    continue  # it was aborted before
                wanted = continuation(request, 14, 12)
                assert result.tokens.tolist() == wanted[: len(result.tokens)]
                if result.state is RequestState.FINISHED:
                    assert len(result.tokens) == 12
                else:
                    lost += 1
                    assert not recompute
                    assert (result.state, result.reason[:8]) == (RequestState.FAILED, "kv_lost:")
            assert loop.cache.stats()["host_promised"] == 0
        except BaseException as error:
            error.add_note(f"interrupted at {place}")
            raise
    assert tried > 20
    assert (lost > 0) == (not recompute)
