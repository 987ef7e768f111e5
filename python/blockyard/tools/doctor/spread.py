"""How vLLM spreads data parallel replicas over machines and servers, by its flags."""

from collections.abc import Iterator

from blockyard.connectors.command_line import Flags
from blockyard.tools.doctor.model import Model

__all__ = ["wrong_replicas"]


def wrong_replicas(flags: Flags, model: Model | str | None) -> Iterator[tuple[str, str]]:
    """Gives what vLLM refuses of how replicas are spread, and what to write.

    Args:
        flags: vLLM's.
        model: The model; text where it is not known.
    """
    values, number = flags.values, flags.number
    every, local = number("data_parallel_size"), values.get("data_parallel_size_local")
    modes = {
        "--data-parallel-multi-port-external-lb": "data_parallel_multi_port_external_lb",
        "--data-parallel-rank": "data_parallel_rank",
        "--data-parallel-external-lb": "data_parallel_external_lb",
        "--data-parallel-hybrid-lb": "data_parallel_hybrid_lb",
        "--data-parallel-start-rank": "data_parallel_start_rank",
    }
    given = [flag for flag, name in modes.items() if values.get(name) not in {None, False}]
    external = {"--data-parallel-rank", "--data-parallel-external-lb"} & set(given)
    if isinstance(local, int) and local > every:
        fact = f"--data-parallel-size-local {local} is more than --data-parallel-size {every}"
        yield fact, f"write --data-parallel-size {local}, or a smaller --data-parallel-size-local"
    for name in ("data_parallel_rank", "data_parallel_start_rank"):
        if not 0 <= number(name, 0) < every:
            flag, more = f"--{name.replace('_', '-')}", number(name) + 1
            fact = f"{flag} {number(name)} of {every} replicas"
            yield fact, f"write --data-parallel-size {more} or more, or leave {flag} out"
    if given and every == 1:
        yield f"{given[0]} with one replica", f"leave {given[0]} out"
    if external and isinstance(model, Model) and not model.experts:
        fact = f"{min(external)} for a model without experts"
        yield fact, "leave the flags of data parallelism out, and start each by itself"
    if external and local not in {None, 1}:
        fact = f"{min(external)} with --data-parallel-size-local {local}"
        yield fact, "leave --data-parallel-size-local out: each is started by itself"
    if external and len(set(given) - external):
        yield f"{' and '.join(given)}: two ways to share requests", f"leave {given[-1]} out"
    if "--data-parallel-hybrid-lb" in given and local is None:
        yield "--data-parallel-hybrid-lb alone", "add --data-parallel-size-local"
