"""Where a command's requests come from, by its options: a trace, or a workload that is made."""

from pathlib import Path
from typing import TypedDict

from blockyard._core import Misuse
from blockyard.tools.traces.adversaries import ADVERSARIES, AdversaryName
from blockyard.tools.traces.trace import Trace, read
from blockyard.tools.traces.workload import WORKLOADS, WorkloadName, generate

__all__ = ["Source", "check_source", "trace_of"]


class Source(TypedDict):
    """The options for it; None for one that was left out."""

    trace: Path | None
    trace_block: int | None
    requests: int | None
    rate: float | None
    workload: WorkloadName | AdversaryName | None
    seed: int


def check_source(options: Source) -> None:
    """Checks what needs no look at the trace.

    Raises:
        Misuse: An option is for the other kind of source.
    """
    if options["trace"] is None and options["trace_block"] is not None:
        raise Misuse("--trace-block is for a TRACE: a generated workload has 16 tokens per id")
    for option, value in (("--rate", options["rate"]), ("--workload", options["workload"])):
        if options["trace"] is not None and value is not None:
            raise Misuse(f"{option} is for a generated workload: leave it out with a TRACE")


def trace_of(options: Source) -> Trace:
    """Reads the trace, or makes the workload: 1,000 requests of "mixed" at 4 per second.

    Raises:
        Misuse: The trace cannot be read.
    """
    path = options["trace"]
    if path is not None:
        return read(path, trace_block=options["trace_block"], requests=options["requests"])
    rate = 4.0 if options["rate"] is None else options["rate"]
    requests = options["requests"] or 1000
    match options["workload"] or "mixed":
        case "loop" | "flood" | "shift" as name:
            return ADVERSARIES[name](options["seed"], requests=requests, rate=rate)
        case name:
            workload = WORKLOADS[name]
    return generate(options["seed"], requests=requests, rate=rate, workload=workload)
