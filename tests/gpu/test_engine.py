"""The reference engine on a GPU: no token is lost there either."""

import pytest

from gpus import gpu
from proving import prove


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(4))
def test_on_a_gpu_no_request_loses_a_token_under_pressure(seed: int) -> None:
    seen = prove(seed, gpu(), None)
    assert all(seen[what] for what in ("park", "resume", "checked")), seen
