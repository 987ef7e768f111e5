"""The handshake: how the yard and the cranes of all ranks agree before the first plan."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from blockyard._core import Misuse
from blockyard.shared.layout import TIERS, Hello
from blockyard.shared.validate import integer, shown
from blockyard.yard.config import Config

__all__ = ["agree", "check_hello", "checked_hellos"]


def agree(config: Config, hellos: Iterable[Hello]) -> Config:
    """Returns the configuration that the yard opens with: each tier as small as on any rank.

    Its `yard` is the number in the hellos, if they have one.

    Args:
        config: The yard's own.
        hellos: The hello of each rank's crane, in any order.

    Raises:
        Misuse: A rank is missing, twice there or unknown, has another configuration or version,
            or shook hands with another yard; or an argument is of another type.
    """
    if not isinstance(config, Config):
        raise Misuse(f"config = {shown(config)}: give the Config that every process has")
    hellos = checked_hellos(hellos)
    said = sorted(hello.rank for hello in hellos)
    if said != list(range(config.ranks)):
        raise Misuse(f"ranks {said} said hello, and {config.ranks} were expected: each once")
    for hello in hellos:
        check_hello(config, hello, config.yard or hellos[0].yard)
    sizes: dict[str, Any] = {tier: min(getattr(one, tier) for one in hellos) for tier in TIERS}
    if config.engine:
        sizes["engine"] = sizes.pop("device")
    yard = hellos[0].yard or None
    return replace(config, **sizes, yard=yard)


def check_hello(config: Config, hello: Hello, yard: int) -> None:
    """Refuses a crane that was started otherwise, or shook hands with another yard.

    Raises:
        Misuse: It was, or did; the rank is named.
    """
    rank = f"rank {hello.rank}"
    if hello.group != config.group:
        raise Misuse(
            f"{rank} has group {hello.group} of the layers, and the yard {config.group}: agree "
            "with the cranes of each group by itself"
        )
    if config.layout is not None and hello.layout != config.layout.fingerprint:
        raise Misuse(f"{rank} has another layout: start every process from one configuration")
    if hello.fingerprint != config.fingerprint:
        raise Misuse(
            f"{rank} is configured otherwise: its fingerprint is "
            f"{hello.fingerprint[:12]}, the yard's {config.fingerprint[:12]}; start every "
            "process from one configuration and version, and give its fingerprint to the Crane"
        )
    if hello.yard != yard:
        raise Misuse(
            f"{rank} shook hands with yard {hello.yard}, and not with this one, "
            f"{yard}: ask every rank for crane.hello({yard})"
        )


def checked_hellos(hellos: object) -> list[Hello]:
    """Returns the hellos, checked field by field.

    Raises:
        Misuse: One is not what a crane of this version returns; it is named.
    """
    if isinstance(hellos, Hello) or not isinstance(hellos, Iterable):
        raise Misuse(f"hellos = {shown(hellos)}: give a list of the answers of crane.hello()")
    said = list(hellos)
    for at, hello in enumerate(said):
        if not isinstance(hello, Hello):
            raise Misuse(f"hellos[{at}] = {shown(hello)}: give the answer of crane.hello() there")
        for name in ("rank", *TIERS, "yard", "group"):
            integer(f"hellos[{at}].{name}", getattr(hello, name), least=0)
        for name in ("fingerprint", "layout"):
            if not isinstance(text := getattr(hello, name), str):
                raise Misuse(
                    f"hellos[{at}].{name} = {shown(text)}: must be text, as in crane.hello()"
                )
    return said
