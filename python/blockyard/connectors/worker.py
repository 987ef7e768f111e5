"""The worker's half for an engine that gives out its block ids itself: one rank's copies."""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Misuse, Unavailable
from blockyard.connectors.orders import Orders
from blockyard.crane.copiers import Copier, Pair, Slots
from blockyard.crane.copiers.checked import checked
from blockyard.crane.copiers.select import select_copiers
from blockyard.crane.copiers.sharing import SharedCopying
from blockyard.crane.crane import Crane
from blockyard.crane.gpu import Gpu
from blockyard.crane.gpu.cuda import current
from blockyard.crane.tiers.device import DeviceTier
from blockyard.crane.tiers.disk import DiskTier
from blockyard.crane.tiers.disk_paths import DiskPath
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.crane.tiers.pinned import PinnedTier
from blockyard.crane.tiers.remote import RemoteTier
from blockyard.shared.endpoints import Carrier
from blockyard.shared.owner import Owner, broke_in, owned
from blockyard.shared.plan import Cause, Outcome, Plan, Unreported
from blockyard.shared.restored import Restored
from blockyard.shared.single import Single
from blockyard.stores import Store
from blockyard.yard.config import Config

if TYPE_CHECKING:
    from blockyard.crane.tiers import Tier

__all__ = ["Worker"]

_Name: TypeAlias = tuple[int, int]
"""A flight: the number of its yard, and its own there."""
_SHORTENED: Final = 2**14
"""Flights at least that are remembered: the crane remembers fewer."""
_PAUSE: Final = 5e-5
"""Seconds between two questions whether a copy has ended that the engine waits for."""


class Worker(Single):
    """Carries out a connector's orders, and keeps their fence.

    It is for one thread at a time: a call that comes during another one is refused.

    In a step of the engine `begin` comes before anything is written to a block, and `outcomes`
    goes back to the connector with what the step has sampled.

    Args:
        crane: The memory of this rank and its copies, which the worker closes. Its device tier is
            the engine's. With several groups of layers, the crane of each group.
        patience: Seconds for which a fence may hold up the engine's thread, where no stream can
            wait in its place.

    Raises:
        Misuse: The patience is no number above 0; or two cranes have one group, or different ranks.
    """

    def __init__(self, crane: Crane | Sequence[Crane], *, patience: float = 60.0) -> None:
        if not patience > 0:
            raise Misuse(f"patience = {patience!r}: must be seconds, more than 0")
        self.cranes = _by_group([crane] if isinstance(crane, Crane) else crane)
        """The crane of each group of layers, by its number; the `hello` of each is for `agree`."""
        self.crane = next(iter(self.cranes.values()))
        """The crane, or the first one."""
        self.patience = patience
        """As in the arguments; it may be changed."""
        self._owner = Owner()
        self._ids: dict[_Name, tuple[bool, Slots]] = {}
        """Of each flight in the air from or to the engine's blocks: whether it goes up, and ids."""
        self._cut: dict[_Name, int] = {}
        """Of flights whose sources were written too early: how many blocks may be good."""
        self._shortened: dict[_Name, int] = {}
        """The last of these that have ended, for `reconcile`."""
        self._outcomes: list[Outcome] = []
        self._suspended = False

    @classmethod
    def adopt(  # noqa: PLR0913 - what an engine has, and how it is copied
        cls,
        config: Config,
        tensors: object,
        *,
        rank: int = 0,
        axis: int | Mapping[str, int] | None = None,
        gpu: Gpu | Literal["cuda"] | None = None,
        stream: object = 0,
        copier: Copier | Mapping[Pair, Copier] | None = None,
        shared: str | os.PathLike[str] | None = None,
        checksums: bool = False,
        disk_path: DiskPath | None = None,
        replica: str | None = None,
        keys: str | None = None,
        stores: Sequence[Store] = (),
        peers: Sequence[str] = (),
        secret_file: str | None = None,
        carrier: Carrier = "tcp",
        sharing: "SharedCopying | None" = None,
    ) -> Self:
        """Makes a worker over the tensors in which an engine has its KV.

        Args:
            config: Made with a layout and `engine=`, the blocks of the tensors.
            tensors: The engine's tensors, in the forms that `tiers.adopt.places` takes.
            rank: Which rank this is, from 0.
            axis: Which axis counts blocks, where several have their length; or a mapping by plane.
            gpu: The GPU that has them, or "cuda" for the current one; None for memory of the host.
            stream: The stream on which the engine computes, on a GPU.
            copier: As in `Crane`.
            shared: As in `MemoryTier`, for the host.
            checksums: Whether blocks are checked before they leave a tier below the engine's: one
                that is no longer what came there is not copied, and never offered again.
            disk_path: As in `by.local`: the configuration has `disk`, and "disk" in `keyed`, then.
            replica: Which of several engines this is that are alike and share a disk, such as
                "1 of 2": each has folders of its own.
            keys: What makes the keys, for the identity of disk and stores; None for `KVCache.keys`.
            stores: As in `RemoteTier`, and so are the next three; the configuration has `remote`.
            peers: Likewise.
            secret_file: Likewise.
            carrier: Likewise.
            sharing: Threads, streams and rings that the workers of other groups of layers share.

        Raises:
            Misuse: The configuration has no layout, a disk without a path or a path without a disk
                that knows its keys, likewise with stores, or the tensors do not fit it; the message
                names what differs.
            Unavailable: There is no GPU, or the memory below is not to be had.
        """
        layout, blocks = config.layout, config.device_blocks
        if layout is None:
            raise Misuse("layout = None: copies need the layout of a block; give Config(layout=…)")
        _check_disk(config, disk_path)
        _check_stores(config, stores, peers)
        device: DeviceTier | MemoryTier
        if gpu is None:
            device = MemoryTier.adopt(layout, tensors, blocks=blocks, axis=axis)
        else:
            gpu = current(None if gpu == "cuda" else gpu)
            device = DeviceTier.adopt(
                layout, tensors, blocks=blocks, axis=axis, gpu=gpu, stream=stream
            )
        below: dict[str, Tier] = {}
        remote: RemoteTier | None = None
        identity = config.identity | ({"keys": keys} if keys else {})
        with ExitStack() as opened:
            opened.callback(device.close)
            if disk_path is not None:
                below["disk"] = on_disk = DiskTier(
                    layout,
                    disk_path,
                    blocks=config.disk_blocks,
                    identity=identity | ({"replica": replica} if replica else {}),
                    rank=rank,
                    reclaim=config.disk_reclaim,
                    group=config.group,
                    threads=4 if sharing is None else sharing.disk_threads(disk_path),
                )
                opened.callback(on_disk.close)
            if config.host_blocks:
                below["host"] = tier = (
                    MemoryTier(layout, config.host_blocks, name="host", shared=shared)
                    if gpu is None
                    else PinnedTier(layout, config.host_blocks, name="host", gpu=gpu, shared=shared)
                )
                opened.callback(tier.close)
            if stores or peers:
                below["remote"] = remote = RemoteTier(
                    layout,
                    config.remote_blocks,
                    stores,
                    identity=identity,
                    rank=rank,
                    group=config.group,
                    peers=peers,
                    secret_file=secret_file,
                    carrier=carrier,
                )
                opened.callback(remote.close)
            tiers = {"device": device, **below}
            sums = None if sharing is None else sharing.checksums
            copiers = select_copiers(tiers, copier, config.copying, sharing)
            for one in {id(one): one for one in copiers.values()}.values():
                opened.callback(one.close)
            crane = Crane(
                layout,
                rank=rank,
                device=device,
                host=below.get("host"),
                disk=below.get("disk"),
                remote=remote,
                copier=checked(copiers, threads=sums) if checksums else copiers,
                fingerprint=config.fingerprint,
                group=config.group,
            )
            worker = cls(crane)
            opened.pop_all()
        return worker

    @classmethod
    def adopt_groups(  # noqa: PLR0913 - as in `adopt`
        cls,
        configs: Iterable[Config],
        tensors: Sequence[object],
        *,
        rank: int = 0,
        axis: int | Mapping[str, int] | None = None,
        gpu: Gpu | Literal["cuda"] | None = None,
        stream: object = 0,
        copier: Copier | Mapping[Pair, Copier] | None = None,
        shared: str | os.PathLike[str] | None = None,
        checksums: bool = False,
        disk_path: DiskPath | None = None,
        replica: str | None = None,
        keys: str | None = None,
        stores: Sequence[Store] = (),
    ) -> Self:
        """Makes a worker over the tensors of several groups of layers.

        Their cranes share threads, streams and rings, so that there are no more of them than with
        one group.

        Args:
            configs: The configuration of each group, as of `GroupConfigs`.
            tensors: The tensors of each group, in the same order, each as in `adopt`.
            rank: As in `adopt`; so are the others.
            axis: Likewise.
            gpu: Likewise.
            stream: Likewise.
            copier: Likewise, for every group.
            shared: Likewise; the name of each further group's file ends with its number.
            checksums: Likewise.
            disk_path: Likewise; each group has a folder of its own under it.
            replica: Likewise.
            keys: Likewise.
            stores: Likewise; the group is in the addresses.

        Raises:
            Misuse: There are not tensors for each group, or as in `adopt`; the message names the
                group.
            Unavailable: As in `adopt`.
        """
        configs = list(configs)
        if len(tensors) != len(configs):
            raise Misuse(f"tensors of {len(tensors)} groups, of {len(configs)}: give each its own")
        layouts = [config.layout for config in configs if config.layout is not None]
        tuning = configs[0].copying if configs else None
        sharing = SharedCopying(layouts, copy_tuning=tuning) if layouts else None
        cranes: list[Crane] = []
        with ExitStack() as opened:
            for config, own in zip(configs, tensors, strict=True):
                name = f"{os.fspath(shared)}.{config.group}" if shared and config.group else shared
                try:
                    worker = cls.adopt(
                        config,
                        own,
                        rank=rank,
                        axis=axis,
                        gpu=gpu,
                        stream=stream,
                        copier=copier,
                        shared=name,
                        checksums=checksums,
                        disk_path=disk_path if config.disk_blocks else None,
                        replica=replica,
                        keys=keys,
                        stores=stores if config.remote_blocks else (),
                        sharing=sharing,
                    )
                except Misuse as error:
                    raise Misuse(f"group {config.group}: {error}") from None
                opened.callback(worker.crane.close)
                cranes.append(worker.crane)
            made = cls(cranes)
            opened.pop_all()
        return made

    @owned
    def begin(self, orders: Orders, stream: object = None) -> None:
        """Submits a step's copies, those down first. What it has a fence for may then be written.

        On a GPU the stream waits for the copies that read or write these blocks, and this thread
        does not. Elsewhere, where a copy could not be queued yet, and for blocks that are lent,
        this thread waits.

        Args:
            orders: From `Connector.step`, each once, in their order.
            stream: The stream on which the engine computes, from now on, which must wait for what
                the one before it was given; None for the device tier's.

        After an interrupt it is unknown which orders were taken: reset the worker, and
        commit what `outcomes` and `reconcile` say then.

        Raises:
            Misuse: As in `Crane.submit`; nothing of these orders is taken then.
            Unavailable: A copy has not ended in time. Nothing of the fence may be written; end the
                step, and reset the worker.
        """
        for crane in self.cranes.values() if stream is not None else ():
            if isinstance(crane.device, DeviceTier):
                crane.device.stream = stream
        plans = [*orders.down, *orders.up]
        if self._suspended:
            rank = self.crane.rank
            self._outcomes += [Outcome.of(plan, rank, 0, Cause.FAILED) for plan in plans]
            return
        if len(orders.overwritten):
            self._spoil(orders)
        if orders.fence is None:
            self._submit(plans)
            return
        near = [plan for plan in plans if _meets(_ids(plan)[1], orders.written)]
        self._submit(near)
        try:
            met = {
                flight: up for flight, (up, ids) in self._ids.items() if _meets(ids, orders.written)
            }
            if not self._ordered(set(met.values())):
                self._wait(set(met))
            elif len(orders.lent):
                # No stream holds up who fills these.
                self._wait({one for one in met if _meets(self._ids[one][1], orders.lent)})
        finally:
            taken = set(map(_name, near))
            self._submit(plan for plan in plans if _name(plan) not in taken)

    @owned
    def outcomes(self) -> list[Outcome]:
        """Returns what has ended since the last call, for `Connector.commit`. Never waits.

        Where it is interrupted an outcome may come twice, which changes nothing, or be lost on its
        way to the caller: `reconcile` returns it again.
        """
        self._poll()
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    @owned
    def reconcile(self, asked: Unreported, *, group: int | None = None) -> list[Outcome]:
        """Returns the state of flights whose outcomes may be lost.

        Ask the worker, and not its crane, which does not know of blocks that were overwritten.

        Args:
            asked: `KVCache.unreported` of this rank.
            group: The group of layers whose cache asks; None for the first.

        Raises:
            Misuse: There is no such group, or as in `Crane.reconcile`.
        """
        crane = self.crane if group is None else self._crane_of(group, f"group = {group}")
        self._poll()
        said = list(map(self._believed, crane.reconcile(asked)))
        self._land(said)
        return said

    @owned
    def suspend(self) -> None:
        """Ends all copies, and begins none before `resume`: the engine's memory goes away.

        It waits for what is in the air, for as long as a fence may; what has not ended then is
        given up. What is ordered meanwhile is reported as failed.
        """
        self._suspended = True
        try:
            self._wait(set(self._ids))
        except Unavailable:
            self._reset()

    @owned
    def resume(self) -> None:
        """Begins copies again: the engine's memory is there, at its old addresses."""
        self._suspended = False

    @owned
    def reset(self) -> None:
        """Ends all copies, after the engine's own reset of this rank; `outcomes` has them."""
        self._reset()

    def _reset(self) -> None:
        for crane in self.cranes.values():
            crane.reset()
        self._poll()
        # Nothing is in the air any more, of a flight that was cut off either.
        self._ids.clear()
        self._cut.clear()

    @owned
    def close(self) -> None:
        """Ends all copies, and frees the memory below; the engine's tensors are dropped."""
        with ExitStack() as closing:
            for crane in self.cranes.values():
                closing.callback(crane.close)

    @owned
    def clear(self, *, forget: bool = False) -> bool:
        """Clears what the disks of all groups have of the plans that were submitted so far.

        Args:
            forget: As in `PersistentTiers.clear`.

        Returns:
            Whether no restart brings any of it back, in any group; it is tried on where not.
        """
        done = [crane.persistent.clear(forget=forget) for crane in self.cranes.values()]
        return all(done)

    @owned
    def restored(self) -> dict[int, Restored]:
        """Returns what this rank's disk of each group has from before, by the group's number.

        It is for `HybridConnector.restore`, as plain values that pickle carries. Ask before the
        first orders.

        Raises:
            Unavailable: A disk cannot be read.
        """
        found = {group: crane.persistent.restored() for group, crane in self.cranes.items()}
        return {group: one for group, one in found.items() if one is not None}

    @owned
    def count_as(self, run: int) -> None:
        """Lets the disks of all groups count as the latest owner, before the next orders.

        Args:
            run: The highest number of all ranks, from `HybridConnector.restore`.

        Raises:
            Unavailable: A disk refuses.
        """
        for crane in self.cranes.values():
            crane.persistent.count_as(run)

    def dead(self) -> frozenset[tuple[int, int]]:
        """Returns which slots are on disks that have died, as any group has found.

        It is for `HybridConnector.withdraw`, or `PersistentTiers.dead` of the one group.
        """
        return frozenset().union(*(crane.persistent.dead() for crane in self.cranes.values()))

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it on exit."""
        self.close()

    def _submit(self, plans: Iterable[Plan]) -> None:
        plans = list(plans)
        new: dict[_Name, tuple[bool, Slots]] = {}
        for plan in plans:
            up, ids = _ids(plan)
            if ids is not None and _name(plan) not in self._ids:
                new[_name(plan)] = up, ids
        # Before: what a copy may read or write is waited for, wherever this is interrupted.
        self._ids |= new
        try:
            if len(self.cranes) == 1:
                self.crane.submit(plans)
            else:
                self._submit_by_group(plans)
        except Exception as error:
            if not broke_in(error):
                for name in new:
                    del self._ids[name]
            raise

    def _submit_by_group(self, plans: list[Plan]) -> None:
        parts: dict[int, list[Plan]] = {}
        for plan in plans:
            parts.setdefault(plan.group, []).append(plan)
        cranes = [
            self._crane_of(group, f"flight {part[0].flight}") for group, part in parts.items()
        ]
        for crane, part in zip(cranes, parts.values(), strict=True):
            crane.submit(part)

    def _crane_of(self, group: int, what: str) -> Crane:
        crane = self.cranes.get(group)
        if crane is None:
            raise Misuse(f"{what}: group {group} has no crane here, of groups {list(self.cranes)}")
        return crane

    def _spoil(self, orders: Orders) -> None:
        """Cuts what is copied from blocks that have been written, where it was not seen to end."""
        read = {flight: ids for flight, (up, ids) in self._ids.items() if not up}
        planned = ((_name(plan), _ids(plan)[1]) for plan in orders.down)
        read |= {flight: ids for flight, ids in planned if ids is not None}
        for flight, ids in read.items():
            at = np.flatnonzero(np.isin(ids, orders.overwritten))
            if len(at):
                self._cut[flight] = min(int(at[0]), self._cut.get(flight, int(at[0])))

    def _poll(self) -> None:
        for crane in self.cranes.values():
            crane.deliver(self._take)

    def _take(self, outcomes: list[Outcome]) -> None:
        """Takes outcomes, which come once more where this is interrupted."""
        self._outcomes += map(self._believed, outcomes)
        self._land(outcomes)
        if len(self._shortened) > 2 * _SHORTENED:
            self._shortened = dict(list(self._shortened.items())[-_SHORTENED:])

    def _believed(self, outcome: Outcome) -> Outcome:
        """Returns an outcome without blocks that were written while they were copied."""
        name, good = _name(outcome), outcome.good
        good = min(good, self._cut.get(name, good), self._shortened.get(name, good))
        if good == outcome.good:
            return outcome
        # The crane tells it again, to `reconcile` and after an interrupt.
        self._shortened[name] = good
        return outcome._replace(good=good, cause=outcome.cause or Cause.FAILED)

    def _land(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            # What is lost may still read and write: until a reset it is waited for.
            if outcome.cause is not Cause.LOST:
                self._cut.pop(_name(outcome), None)
                self._ids.pop(_name(outcome), None)

    def _ordered(self, ways: set[bool]) -> bool:
        """Lets the stream wait for copies of these ways; returns whether it waits for all."""
        # Each is asked, so that the stream waits for all that it can wait for.
        up = [crane.join() for crane in self.cranes.values()] if True in ways else []
        down = [crane.fence() for crane in self.cranes.values()] if False in ways else []
        return all(up) and all(down)

    def _wait(self, flights: set[_Name]) -> None:
        """Waits until these have ended."""
        until = time.monotonic() + self.patience
        while True:
            self._poll()
            late = flights & self._ids.keys()
            if not late:
                return
            if time.monotonic() > until:
                raise Unavailable(
                    f"flight {min(late)[1]} has not ended for {self.patience:g} s, and the engine "
                    "would overwrite its source: end the step and reset this rank"
                )
            time.sleep(_PAUSE)


def _by_group(cranes: Sequence[Crane]) -> dict[int, Crane]:
    """Returns the cranes of one rank by the group of each."""
    found: dict[int, Crane] = {}
    for crane in cranes:
        group = crane.traffic.group
        if group in found:
            raise Misuse(f"two cranes of group {group}: make each with the group of its cache")
        found[group] = crane
    ranks = sorted({crane.rank for crane in cranes})
    if len(ranks) != 1:
        raise Misuse(f"cranes of ranks {ranks}: give a worker the cranes of one rank, at least one")
    return found


def _check_disk(config: Config, disk_path: DiskPath | None) -> None:
    if disk_path is None and config.disk_blocks:
        raise Misuse(
            f"disk = {config.disk_blocks} blocks without disk_path: give a folder; for a third "
            "tier in memory, use Worker(Crane(..., disk=))"
        )
    if disk_path is not None and not (config.disk_blocks and "disk" in config.keyed):
        raise Misuse(
            f"disk_path was given, and disk = {config.disk_blocks}, keyed = {config.keyed}: "
            'give Config(disk="200 GiB", keyed=("disk",))'
        )


def _check_stores(config: Config, stores: Sequence[Store], peers: Sequence[str]) -> None:
    if bool(stores or peers) != bool(config.remote_blocks):
        raise Misuse(
            f"stores = {[one.url for one in stores]}, and remote = {config.remote_blocks}: give "
            "both, stores=[open_store(…)] or peers, and Config(remote=1_000_000), or none"
        )


def _name(one: Plan | Outcome) -> _Name:
    return one.yard, one.flight


def _ids(plan: Plan) -> tuple[bool, Slots | None]:
    """Returns whether a plan goes up, and the engine's ids in it; None where it has none."""
    if plan.destination_tier == "device":
        return True, plan.destinations
    return False, plan.sources if plan.source_tier == "device" else None


def _meets(ids: Slots | None, written: NDArray[np.integer[Any]]) -> bool:
    return ids is not None and bool(np.isin(ids, written).any())
