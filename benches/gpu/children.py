"""Processes that may crash, or hang in a driver, and what became of them."""

import os
import signal
import subprocess
import sys

__all__ = ["ended", "missing"]

# Seconds that a process has to go when it is killed: one that is stuck in a driver never goes.
_GONE = 5.0


def ended(
    command: list[str], seconds: float, environment: dict[str, str] | None = None
) -> tuple[str, str]:
    """How a process has ended, nothing if well, and what it printed."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | (environment or {})
    ) as process:
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            how = f"hung: it did not end within {seconds:.0f} s"
            try:
                said, _ = process.communicate(timeout=_GONE)
            except subprocess.TimeoutExpired:
                # It is left behind: whoever waits for it hangs with it.
                process.returncode, said = -signal.SIGKILL, ""
                how += ", nor when it was killed"
            return how, said or ""
    if process.returncode < 0:
        return f"crashed: {signal.Signals(-process.returncode).name}", said
    return f"failed: it ended with {process.returncode}" if process.returncode else "", said


def missing() -> str:
    """Why there is no GPU, empty if there is; a process of its own asks, as it makes a context."""
    code = (
        "from blockyard import Unavailable\nfrom blockyard.crane.gpu.cuda import current\n"
        "try: current()\nexcept Unavailable as error: print(error)"
    )
    how, said = ended([sys.executable, "-c", code], 60.0)
    return said.strip() or how
