"""What the disks of all groups of layers have from before, found again after a restart."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from blockyard._core import Misuse
from blockyard.shared.groups import Groups
from blockyard.shared.log import Limited
from blockyard.shared.restored import Restored
from blockyard.shared.validate import bounded, shown
from blockyard.yard.cache import KVCache

__all__ = ["FoundGroups", "Settle", "restore_groups"]

_log = Limited(__name__, 0)

Settle: TypeAlias = Callable[[int, Restored], Restored]
"""Returns what is restored of a group, by the number of its cache, of what its ranks agree on."""


class FoundGroups(NamedTuple):
    """What was found again."""

    run: int
    """The highest number of an owner of the disks, for `Worker.count_as`; 0 without a disk."""
    blocks: dict[int, int]
    """By the engine's number of each group, how many blocks."""


def restore_groups(
    caches: Sequence[KVCache],
    groups: Groups,
    ranks: Iterable[Mapping[int, Restored]],
    settle: Settle | None = None,
) -> FoundGroups:
    """Finds again what the disks of all ranks have from before, in every group by itself.

    Of several groups the log says how many blocks each has. One of which nothing is found costs
    hits, and nothing else.

    Args:
        caches: The bookkeeping of each group, spine first.
        groups: The groups.
        ranks: What `Worker.restored` returned in each rank, rank 0 first.
        settle: Chooses or orders what is restored; None for all.

    Raises:
        Misuse: A rank or a group of one is missing, or a cache has blocks already. Nothing is
            restored in the first case.
    """
    offers = _checked(caches, groups, ranks)
    agreed = {number: Restored.agreed(each) for number, each in offers.items()}
    if settle is not None:
        agreed = {number: settle(number, found) for number, found in agreed.items()}
    for number, found in agreed.items():
        if not isinstance(found, Restored):
            raise Misuse(
                f"settle returned {shown(found)} of {groups.name(number)}: return a `Restored`, "
                "like `found` or `found.take(rows)`"
            )
    for number, found in agreed.items():
        try:
            caches[number].restore("disk", found.slots, found.keys, found.parents)
        except Misuse as error:
            raise Misuse(f"{groups.name(number)}: {error}") from None
    if len(agreed) > 1:
        _say(groups, agreed)
    run = max((one.run for each in offers.values() for one in each), default=0)
    return FoundGroups(run, {groups.numbers[number]: len(one) for number, one in agreed.items()})


def _checked(
    caches: Sequence[KVCache], groups: Groups, ranks: Iterable[Mapping[int, Restored]]
) -> dict[int, list[Restored]]:
    """Returns what each rank has of each group with a disk."""
    wanted = caches[0].config.ranks
    if isinstance(ranks, Mapping) or not isinstance(ranks, Iterable):
        raise Misuse(f"ranks = {shown(ranks)}: give [worker.restored()], a value for each rank")
    given = bounded("ranks", ranks)
    if len(given) != wanted:
        raise Misuse(
            f"ranks = {len(given)} values, of {wanted} ranks: give what `Worker.restored` "
            "returned in each rank, rank 0 first"
        )
    disks = {number for number, cache in enumerate(caches) if cache.config.disk_blocks}
    offers: dict[int, list[Restored]] = {number: [] for number in sorted(disks)}
    for rank, one in enumerate(given):
        if not isinstance(one, Mapping):
            raise Misuse(f"ranks[{rank}] = {shown(one)}: must be what `Worker.restored` returned")
        if one.keys() != disks:
            number = min(one.keys() ^ disks, key=str)
            name = groups.name(number) if number in disks else f"group {shown(number)}"
            raise Misuse(
                f"ranks[{rank}] has groups {shown([*one])}, and the caches have disks for "
                f"{sorted(disks)}: {name} must be in both or in none; start all ranks with the "
                "configuration of the caches"
            )
        for number, found in one.items():
            if not isinstance(found, Restored):
                raise Misuse(
                    f"ranks[{rank}] of {groups.name(number)} = {shown(found)}: must be what "
                    "`Worker.restored` returned"
                )
            offers[number].append(found)
    return offers


def _say(groups: Groups, agreed: Mapping[int, Restored]) -> None:
    """Logs what each group has; a warning where one has nothing and others have."""
    said = [f"{groups.name(number)}: {len(found):,} blocks" for number, found in agreed.items()]
    _log.info("found again on the disk: %s", "; ".join(said))
    empty = [groups.name(number) for number, found in agreed.items() if not len(found)]
    if empty and len(empty) < len(agreed):
        _log.warning(
            "nothing is found again of %s: a hit needs all groups, so prompts are computed until "
            "their blocks have been offloaded anew",
            ", ".join(empty),
        )
