"""The operator's options for handing KV over from prefill engines to decode engines."""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final, Literal, TypeAlias, get_args

from blockyard._core import Misuse, Unsupported
from blockyard.connectors.vllm.compatibility import Facts
from blockyard.shared.endpoints import (
    Carrier,
    endpoint,
    endpoints,
    is_unspecified,
    read_secret,
)
from blockyard.shared.log import Limited
from blockyard.shared.validate import one_of, seconds

__all__ = ["HandoverOptions", "Role", "load_late"]

Role: TypeAlias = Literal["kv_producer", "kv_consumer", "kv_both"]
_LISTEN: Final = '"listen": "10.0.0.7:7000"'
_PEERS: Final = '"peers": ["10.0.0.7:7000"]'
_log = Limited(__name__, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverOptions:
    """Keys of `kv_connector_extra_config` for the roles `kv_producer` and `kv_consumer`."""

    listen: str | None = None
    """Where a prefill engine listens, as `host:port`; None where it offers nothing."""
    advertise: str | None = None
    """What stands in its offers as its address; None for that where it listens."""
    lease: float = 10.0
    """Seconds after which a reader that has not renewed its lease counts as gone."""
    unread: float = 60.0
    """Seconds after which an offer ends that no reader has taken."""
    peers: Sequence[str] = ()
    """Where prefill engines listen whose offers a decode engine takes; it connects to no others."""
    patience: float = 2.0
    """Seconds that a request waits until its offer is taken."""
    secret_file: str | None = None
    """A file with a secret that both sides know."""
    carrier: Carrier = "tcp"
    """What brings the bytes: the connection, or NIXL, which reads the prefill engine's host."""

    @property
    def hands_over(self) -> bool:
        """Whether it offers KV, or takes it."""
        return self.listen is not None or bool(self.peers)

    def check_handover(self) -> None:
        """Checks each value.

        Raises:
            Misuse: One is wrong, or belongs to an option that is missing.
        """
        for name in ("lease", "unread", "patience"):
            seconds(name, getattr(self, name), zero=False)
        one_of("carrier", self.carrier, get_args(Carrier))
        if self.listen is not None:
            endpoint("listen", self.listen, least=0)
        if self.advertise is not None:
            endpoint("advertise", self.advertise)
        endpoints(self.peers)

    @classmethod
    def check_given(cls, given: dict[str, Any]) -> None:
        """Refuses options of a side that is not there.

        Args:
            given: The operator's words.

        Raises:
            Misuse: There is one; the message has the line to write.
        """
        if given.get("peers", ()) is None:
            del given["peers"]
        listens, takes = given.get("listen") is not None, bool(given.get("peers"))
        for name in ("advertise", "lease", "unread"):
            if name in given and not listens:
                raise Misuse(f"{name} was given without listen: give {_LISTEN}; or leave it out")
        if "patience" in given and not takes:
            raise Misuse(f"patience was given without peers: give {_PEERS}; or leave it out")
        for name in ("secret_file", "carrier"):
            if given.get(name) is not None and not (listens or takes):
                raise Misuse(
                    f"{name} was given without listen or peers: give {_LISTEN} on a prefill "
                    f"engine, {_PEERS} on a decode engine; or leave it out"
                )

    def check_role(self, known: Facts, offload: str) -> None:
        """Checks that the role has its options, and that vLLM's set-up can be served.

        Args:
            known: What vLLM has.
            offload: When blocks are copied down.

        Raises:
            Misuse: An option is missing, or belongs to the other role.
            Unsupported: The set-up is not supported with roles, or NIXL is not installed.
        """
        if known.beside is not None and known.role != "kv_both":
            raise Unsupported(
                f'kv_role = "{known.role}" beside {known.beside}, which hands KV over in place of '
                'Blockyard; write "kv_role": "kv_both"'
            )
        self._check_sides(known.role)
        if not self.hands_over:
            return
        if self.listen is not None and offload == "none":
            raise Misuse(
                'listen with "offload": "none": nothing would be offered; write "offload": "finish"'
            )
        option = "listen" if self.listen is not None else "peers"
        _check_served(option, known)
        if self.carrier == "nixl":
            from blockyard.crane.tiers.nixl_source import (  # noqa: PLC0415 - most have no NIXL
                needed_wheel,
            )

            needed_wheel()
        if self.listen is not None and known.replica.name and not self.listen.endswith(":0"):
            raise Misuse(
                f"listen = {self.listen!r} with data parallel replicas: each needs an address of "
                "its own; start each as a server of its own, without --data-parallel-size"
            )
        self._check_addresses()

    def _check_sides(self, role: str) -> None:
        """Checks that a role has its options, and not those of the other one."""
        said = f'kv_role = "{role}"'
        if role == "kv_producer" and self.listen is None:
            raise Misuse(f"{said} without listen: nobody could take its KV; give {_LISTEN}")
        if role == "kv_consumer" and not self.peers:
            raise Misuse(f"{said} without peers: there is nobody to take KV from; give {_PEERS}")
        if role == "kv_producer" and self.peers:
            raise Misuse(f'{said} with peers: leave them out, or write "kv_role": "kv_both"')
        if role == "kv_consumer" and self.listen is not None:
            raise Misuse(f'{said} with listen: leave it out, or write "kv_role": "kv_both"')

    def _check_addresses(self) -> None:
        """Checks that its addresses are of use, and need no secret that is not there."""
        named = self.advertise or self.listen
        secret = read_secret(self.secret_file)
        if named is not None and is_unspecified(named) and (self.advertise or secret is not None):
            raise Misuse(
                f"offers would name {named}, to which nobody connects: give advertise, the address "
                'where decode engines reach this one, as "advertise": "10.0.0.7:7000"'
            )
        if secret is None:
            for option, addresses in {"listen": [self.listen], "peers": self.peers}.items():
                _check_near(option, [one for one in addresses if one is not None])


def _check_near(option: str, addresses: Sequence[str]) -> None:
    """Refuses addresses of other machines, where both sides prove no secret."""
    for address in addresses:
        host = address.rpartition(":")[0].strip("[]")
        try:
            is_near = host == "localhost" or ip_address(host).is_loopback
        except ValueError:
            is_near = False
        if not is_near:
            raise Misuse(
                f'{option} = {address!r} without a secret: give "secret_file", the path of a file '
                "with 16 random bytes or more, on both engines; or an address of this machine, as "
                "127.0.0.1:7000"
            )


def _check_served(option: str, known: Facts) -> None:
    """Refuses set-ups that are not supported with roles."""
    ranks, nixl = known.layout.ranks, "use NixlConnector in a MultiConnector"
    one = f"start it with --tensor-parallel-size 1 and --pipeline-parallel-size 1, or {nixl}"
    alone = f"leave {option} out, as {known.beside} hands KV over"
    for refused, what, remedy in (
        (known.groups is not None, "a hybrid model", nixl),
        (ranks > 1, f"{ranks} ranks", one),
        (known.beside is not None, f"{known.beside} in a MultiConnector", alone),
    ):
        if refused:
            raise Unsupported(f"{option} with {what} is not supported: {remedy}")


def load_late(transfer: Any) -> None:
    """Has vLLM free no block that a step in flight still writes, as loads may fill it.

    It does so where it consumes KV. A prefill engine loads its own blocks from the host, too. vLLM
    reads the role when the connector is made.

    Args:
        transfer: A `KVTransferConfig`.
    """
    if transfer.kv_role == "kv_producer":
        transfer.kv_role = "kv_both"
        _log.info(
            'Blockyard tells vLLM "kv_role": "kv_both", as a prefill engine loads blocks from its '
            "host, too"
        )
