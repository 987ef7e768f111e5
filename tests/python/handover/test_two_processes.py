"""Two engines in processes of their own over TCP: a kill and a stop lose nothing."""

import pytest

from handover_play import Play, Setup, asks

KILLS, STOPS = 1, 1


@pytest.mark.law("INV-36d", "INV-36e", "INV-36f")
def test_inv_36f_a_kill_and_a_stop_cost_no_token_and_leave_nothing_held() -> None:
    seen = Play(Setup(0), asks(0, 10), kills=KILLS, stops=STOPS).run()
    assert seen["requests"] == 10
    assert 2 * seen["prefiller lived, blocks taken over"] >= seen["prefiller lived"]
    assert sum(seen[f"{side} kill"] for side in ("Prefill", "Decode")) == KILLS
    assert sum(seen[f"{side} stop"] for side in ("Prefill", "Decode")) == STOPS
