"""The tiers of a cache in one process: those given, slot files, stores and peers, or memory."""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from blockyard._core import Misuse
from blockyard.crane.tiers import Persistent, Tier
from blockyard.crane.tiers.disk import DiskTier
from blockyard.crane.tiers.disk_paths import DiskPath
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.shared.layout import TIERS, KVLayout
from blockyard.shared.validate import bounded, integer, shown
from blockyard.yard.config import Config
from blockyard.yard.store_urls import NAMES

if TYPE_CHECKING:
    from blockyard.crane.tiers.remote import RemoteTier
    from blockyard.stores import Store

__all__ = ["made", "made_remote", "named", "on_disk", "stores_of", "with_names"]


def on_disk(config: Config, given: Mapping[str, Tier], disk_path: DiskPath | None) -> Config:
    """Returns a configuration whose slot files know the keys of their blocks.

    Raises:
        Misuse: A disk has no path, or no size; or the slot files given are of another identity.
    """
    if disk_path is not None and "disk" in given:
        raise Misuse("disk_path was given, and memory has a disk: give one of them")
    if disk_path is not None and not config.disk:
        raise Misuse('disk_path was given, and no size: give disk="200 GiB"')
    if disk_path is None and config.disk and "disk" not in given:
        raise Misuse(
            f"disk = {config.disk} blocks, and no disk_path: give the folder in which they outlive "
            "this process; or for a third tier of memory, which does not, "
            'memory=(device, host, MemoryTier(layout, blocks, name="disk"))'
        )
    if config.disk_reclaim and disk_path is None:
        raise Misuse(
            'disk_reclaim = True, and no disk_path: give disk="200 GiB" and disk_path; or, for a '
            "DiskTier in memory, DiskTier(reclaim=True)"
        )
    persistent = [name for name, tier in given.items() if isinstance(tier, Persistent)]
    persistent += [] if disk_path is None else ["disk"]
    if "device" in persistent:
        raise Misuse(
            "memory[0] is slot files, and no kernel computes there: give memory on the device, "
            'MemoryTier(layout, blocks, name="device")'
        )
    if len(persistent) > 1:
        raise Misuse(f"{' and '.join(persistent)} are slot files: one tier of a cache can be")
    for tier in given.values():
        if isinstance(tier, DiskTier):
            _check_identity(config, tier)
    missing = [name for name in persistent if name not in config.keyed]
    return replace(config, keyed=(*config.keyed, *missing)) if missing else config


def stores_of(
    config: Config,
    stores: "Sequence[Store | str] | None",
    peers: Sequence[str] | None,
    secret_file: str | os.PathLike[str] | None,
) -> "tuple[Config, Sequence[Store | str] | None]":
    """Returns a configuration with the peers, and the stores; None where there are none.

    Raises:
        Misuse: Stores, peers or a secret were given, and the configuration has some; or a secret,
            and there are no peers.
    """
    if stores is not None and config.stores:
        raise Misuse("stores were given, and the Config has some: give them once")
    if peers is not None and config.peers:
        raise Misuse("peers were given, and the Config has some: give them once")
    if secret_file is not None and config.secret_file is not None:
        raise Misuse("secret_file was given, and the Config has one: give it once")
    if peers is not None:
        config = replace(config, peers=peers)
    if secret_file is not None:
        if not config.peers:
            raise Misuse(
                "secret_file was given without peers: give their addresses, as in "
                'peers=["10.0.0.7:7000"]; on a prefill engine, give it to PrefillSide'
            )
        config = replace(config, secret_file=secret_file)
    return config, config.stores or None if stores is None else stores


def with_names(config: Config, stores: object) -> Config:
    """Returns a configuration with a size for the names of what stores and peers have.

    Raises:
        Misuse: There is a size, and neither stores nor peers; or the stores are something else, or
            none.
    """
    if stores is None and not config.peers:
        if config.remote:
            raise Misuse(
                f"remote = {config.remote} blocks, and no stores: give where they are, as in "
                'stores=["redis://127.0.0.1:6379"]; or peers, as in peers=["127.0.0.1:7000"]'
            )
        return config
    if stores is None:
        # Nothing is written to a peer.
        config = replace(config, remote_writes=False)
    elif (
        isinstance(stores, str) or not isinstance(stores, Sequence) or not bounded("stores", stores)
    ):
        raise Misuse(
            f"stores = {shown(stores)}: give a list of one or more, as in "
            'stores=["redis://127.0.0.1:6379"]'
        )
    if not config.remote:
        return replace(config, remote=NAMES)
    # The tier would refuse it under another name.
    integer("remote", config.remote_blocks, most=(1 << 32) - 1)
    return config


def _check_identity(config: Config, disk: DiskTier) -> None:
    """Refuses slot files of another identity than the configuration's.

    Without a namespace keys are of any model, and slot files alone name theirs.

    Raises:
        Misuse: The identities differ; each is named.
    """
    wanted, found = config.identity, {"keys": config.identity["keys"], **disk.identity}
    names = sorted(wanted.keys() | found.keys()) if config.namespace is not None else ["keys"]
    said = "; ".join(
        f"{name} is {found.get(name)!r} in the identity of {disk.path}, and "
        f"{wanted.get(name)!r} in the namespace"
        for name in names
        if wanted.get(name) != found.get(name)
    )
    if said:
        raise Misuse(f"{said}: give DiskTier(identity=config.identity)")


def named(memory: Sequence[Tier | None]) -> dict[str, Tier]:
    """Returns the tiers that are there, by name."""
    if len(memory) not in {2, 3} or memory[0] is None:
        raise Misuse(f"memory = {memory!r:.60}: give tiers, (device, host) or (device, host, disk)")
    return {name: tier for name, tier in zip(TIERS, memory, strict=False) if tier is not None}


def made(
    layout: KVLayout,
    config: Config,
    given: Mapping[str, Tier],
    disk_path: DiskPath | None,
    opened: ExitStack,
) -> dict[str, Tier]:
    """Returns the tiers given, with slot files for a path, or makes all of NumPy memory."""
    made = dict(given)
    if disk_path is not None:
        made["disk"] = disk = DiskTier(
            layout,
            disk_path,
            blocks=config.disk_blocks,
            identity=config.identity,
            reclaim=config.disk_reclaim,
        )
        opened.callback(disk.close)
    if not given:
        sizes = {"device": config.device_blocks, "host": config.host_blocks}
        for name, blocks in sizes.items():
            if blocks or name == "device":
                made[name] = MemoryTier(layout, blocks, name=name)
    return {name: made[name] for name in TIERS if name in made}


def made_remote(
    layout: KVLayout, config: Config, stores: "Sequence[Store | str]", opened: ExitStack
) -> "RemoteTier":
    """Returns the tier of stores and peers; some stores may be URLs. Nothing is connected yet."""
    # Only now: most caches have no stores.
    from blockyard.crane.tiers.remote import RemoteTier  # noqa: PLC0415
    from blockyard.stores.open import open_store  # noqa: PLC0415

    every = [open_store(one) if isinstance(one, str) else one for one in stores]
    names, identity = config.remote_blocks, config.identity
    remote = RemoteTier(
        layout,
        names,
        every,
        identity=identity,
        group=config.group,
        peers=config.peers,
        secret_file=config.secret_file,
        carrier=config.carrier,
    )
    opened.callback(remote.close)
    return remote
