"""vLLM's real scheduler over Blockyard, with its hybrid manager on and several groups of layers.

    python hybrid.py [--seeds 300] [--first 0]

Every block that a step reads is checked, of each group as its layers read it: whole windows and
chunks, and states. The groups share vLLM's one pool of blocks and its tensors.
"""

import os
import sys

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

from hybrid_cases import CASES
from hybrid_mistakes import MISTAKES
from hybrid_seeds import Hybrid
from runner import run

WANTED = {
    "parked": 900,
    "loads cut short": 100,
    "aborted with a copy in the air": 50,
    "seeds in which nothing may be computed again": 20,
}
"""What 300 seeds must have met at least."""


if __name__ == "__main__":
    sys.exit(run(__doc__, [*CASES, *MISTAKES], Hybrid, WANTED, 300))
