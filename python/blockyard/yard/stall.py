"""What stands still in the yard: plans that nobody dispatches, and flights that nobody reports."""

from blockyard._core import Cache
from blockyard.shared.stall import Fact, Rule, lasting, those
from blockyard.yard.flights import Flights, ranks
from blockyard.yard.offload import Offload

__all__ = ["undispatched", "unreported"]


def undispatched(cache: Cache, offload: Offload) -> Fact | None:
    """Plans that were made, or copies ahead that are due, while `dispatch` is not called."""
    waiting = cache.undispatched()
    if waiting is not None:
        plans, flight = waiting

        def plans_wait(steps: int, seconds: float) -> str:
            return (
                f"{those(plans, 'plan', 'wait')} to be dispatched, the oldest is flight {flight} "
                f"({lasting(steps, seconds)}): call cache.step() (or dispatch) once per turn"
            )

        return Fact(Rule.UNDISPATCHED, ("plan", flight), plans_wait)
    if offload.due(cache):

        def nothing_ahead(steps: int, seconds: float) -> str:
            return (
                f"Dispatch was not called for {lasting(steps, seconds)}, so that nothing is copied "
                "to the host ahead of need: call cache.step() (or dispatch) once per turn"
            )

        return Fact(Rule.UNDISPATCHED, ("ahead", offload.decided), nothing_ahead)
    return None


def unreported(cache: Cache, flights: Flights, now: int) -> Fact | None:
    """The oldest flight that was dispatched, and not reported by every rank."""
    waiting = flights.waiting(now)
    if waiting is None:
        return None

    def say(steps: int, seconds: float) -> str:
        spoken = waiting.spoken
        heard = f"; {ranks(spoken)} {_have(spoken)} spoken" if spoken else ""
        more = f"; {those(waiting.others, 'newer flight', 'wait')}, too" if waiting.others else ""
        held = ", ".join(
            f"{blocks} idle {'block' if blocks == 1 else 'blocks'} of the {tier}"
            for tier, (blocks, _) in cache.idle_in_flight().items()
        )
        held = f"; nobody can have {held} until flights end" if held else ""
        return (
            f"Flight {waiting.flight} waits for {ranks(waiting.missing)} "
            f"({lasting(steps, seconds)}){heard}{more}{held}: call commit(crane.poll()) with "
            "what every rank's crane says, once per turn (cache.step() does); where a report may "
            "be lost, commit(crane.reconcile(cache.unreported(rank)))"
        )

    return Fact(Rule.NO_OUTCOME, waiting.flight, say)


def _have(ranks: list[int]) -> str:
    return "has" if len(ranks) == 1 else "have"
