"""Blockyard inside vLLM's MultiConnector: beside whom, and what is refused there.

MultiConnector gives a load to the first connector that has some of a request, and tells all of them
of every step. So another one may send KV, receive it or load it, and Blockyard, the last, loads
what the other does not have. vLLM reads the policy for loads that fail and the role from what
stands around both, and shows that to no connector in its scheduler's process: each worker checks it
as it starts.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from blockyard._core import Misuse, Unsupported
from blockyard.shared.log import Limited
from blockyard.shared.validate import shown

__all__ = ["beside"]

_OWN: Final = "Blockyard"
_AROUND: Final = "MultiConnector"
_SENDS: Final = frozenset(
    (
        *("NixlConnector", "NixlPullConnector", "NixlPushConnector"),
        *("MooncakeConnector", "MoRIIOConnector", "ExampleHiddenStatesConnector"),
    )
)
"""Those of vLLM that store no KV."""
_WRITES: Final = "MoRIIOConnector"
_STORES: Final = re.compile(
    r"offload|store|storage|cache|flexkv|3fs|hisparse|^(Example|Dynamo)Connector$", re.IGNORECASE
)
"""Names of those that do: all of vLLM's, and others as far as their names say it."""
_log = Limited(__name__, 0)


def beside(vllm: Any, around: Any) -> str | None:
    """Returns the connector that Blockyard stands beside; None where it stands alone.

    Args:
        vllm: Its own `VllmConfig`.
        around: That of the process; None where it is not known.

    Raises:
        Misuse: What stands around both must say something else; the message has the line to write.
        Unsupported: The other one, or their order, cannot be served.
    """
    outer = getattr(around, "kv_transfer_config", None)
    if outer is None or outer.kv_connector == vllm.kv_transfer_config.kv_connector:
        return None
    if outer.kv_connector != _AROUND:
        raise Unsupported(
            f"kv_connector = {outer.kv_connector!r} with Blockyard in it: it is known how "
            f'{_AROUND} calls those in it, and of no other; write "kv_connector": "{_AROUND}"'
        )
    inside = _inside(outer.kv_connector_extra_config.get("connectors"))
    other = _other([str(one.get("kv_connector")) for one in inside])
    _check_writes(inside)
    if outer.kv_load_failure_policy != "recompute":
        raise Misuse(
            f"kv_load_failure_policy = {outer.kv_load_failure_policy!r} around Blockyard: a load "
            "that comes short would end its request; write "
            f'"kv_load_failure_policy": "recompute" beside "kv_connector": "{_AROUND}"'
        )
    if outer.kv_role == "kv_producer":
        raise Misuse(
            'kv_role = "kv_producer" around Blockyard: vLLM would give out blocks that a step '
            'still writes, and Blockyard loads into them; write "kv_role": "kv_both" beside '
            f'"kv_connector": "{_AROUND}", and {other} keeps its own'
        )
    return other


def _inside(connectors: Any) -> list[Mapping[str, Any]]:
    """Returns what is said of the connectors that stand inside, in their order."""
    inside = connectors if isinstance(connectors, list | tuple) else ()
    return [one for one in inside if isinstance(one, Mapping)]


def _check_writes(inside: list[Mapping[str, Any]]) -> None:
    """Refuses one whose peer writes to blocks before the workers hear of them.

    MoRIIO tells its peer of the blocks from the scheduler's process, as they are given out, if it
    is not told to read. No copy from them could be waited for.

    Raises:
        Misuse: The message has the line to write.
    """
    for one in inside:
        extra = one.get("kv_connector_extra_config")
        reads = extra.get("read_mode", False) if isinstance(extra, Mapping) else False
        # As MoRIIO reads it. A producer's blocks are written by nobody.
        if str(reads).lower().strip() in {"true", "1"} or one.get("kv_role") == "kv_producer":
            continue
        if one.get("kv_connector") == _WRITES:
            raise Misuse(
                f"{_WRITES} with read_mode = {reads!r}: its peer writes to blocks while Blockyard "
                'still copies from them; write "kv_connector_extra_config": {"read_mode": true} '
                f'beside "kv_connector": "{_WRITES}", here and at its peers'
            )


def _other(names: list[str]) -> str:
    """Returns the one that stands before Blockyard, if there is one that may.

    Raises:
        Misuse: Their order or their number must be another one.
        Unsupported: It stores KV itself, or has none.
    """
    said = f"{_AROUND} of {shown(names)}"
    others = [name for name in names if name != _OWN]
    if len(names) - len(others) > 1:
        raise Misuse(f"{said}: two Blockyards would keep everything twice; leave one of them out")
    if not others:
        raise Misuse(f'{said}: nobody is beside it; write "kv_connector": "{_OWN}" alone')
    for name in others:
        if name not in _SENDS and _STORES.search(name):
            raise Unsupported(
                f"{said}: {name} stores KV that Blockyard stores; leave one of them out"
            )
        if name in {"DecodeBenchConnector", _AROUND}:
            why = "hides who is in it" if name == _AROUND else "fills blocks with no KV of a model"
            raise Unsupported(f"{said}: {name} {why}; leave it out")
    if len(others) > 1:
        raise Unsupported(f"{said}: one may be beside Blockyard; leave {others[-1]} out")
    (other,) = others
    if names[-1] != _OWN:
        raise Misuse(
            f"{said}: {other} would be asked for nothing that Blockyard has, and its peer waits; "
            f"write {other} first, and Blockyard behind it"
        )
    if other not in _SENDS:
        _log.info("Blockyard does not know %s beside it: let it store no KV itself", other)
    return other
