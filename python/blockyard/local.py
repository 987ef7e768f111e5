"""One process: a yard and one crane, wired."""

from types import TracebackType
from typing import Any, Self, Unpack

from blockyard._core import Misuse
from blockyard._typing import override
from blockyard.cache import KVCache
from blockyard.config import Config, Keywords, agree
from blockyard.copiers import Copier
from blockyard.crane import Crane
from blockyard.layout import KVLayout
from blockyard.stats import Stat
from blockyard.tiers import Tier
from blockyard.tiers.memory import MemoryTier

__all__ = ["Local", "local"]


class Local(KVCache):
    """A `KVCache` with its crane; `step` once per step of the engine is all there is to add.

    Make it with `local`.
    """

    __slots__ = ("_crane",)

    _crane: Crane

    @property
    def crane(self) -> Crane:
        """What owns the memory."""
        return self._crane

    def step(self, *, done: int | None = None) -> int:
        """Takes what has landed, then sends out what should move. Never waits.

        Args:
            done: As in `commit`.

        Returns:
            Flights that ended.
        """
        ended = self.commit(self._crane.poll(), done=done, now=self._now + 1)
        self._crane.submit(self.dispatch())
        return ended

    @override
    def stats(self) -> dict[str, int]:
        """Counters and sizes, the crane's too."""
        return super().stats() | self._crane.stats()

    @override
    @staticmethod
    def schema() -> tuple[Stat, ...]:
        """Name, unit and meaning of each number in `stats`."""
        return KVCache.schema() + Crane.SCHEMA

    def close(self) -> None:
        """Ends the copiers and frees the memory; what is in the air is waited for."""
        self._crane.close()

    def __enter__(self) -> Self:
        """Is closed at the end of the block."""
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Closes it."""
        self.close()


def local(
    layout: KVLayout,
    *,
    memory: tuple[Tier, Tier | None] | None = None,
    copier: Copier | None = None,
    **keywords: Unpack[Keywords],
) -> Local:
    """Wires a yard and one crane in this process.

    Args:
        layout: What a block is in bytes; of one rank.
        memory: The tiers of device and host; None for NumPy memory of the sizes asked for.
        copier: What carries bytes; None for a few threads.
        keywords: The fields of `Config`.

    Raises:
        Misuse: A value is out of range, or the layout has several ranks.
        Unavailable: The memory is not to be had.

    Example:
        >>> import blockyard as by
        >>> layout = by.KVLayout.llama(layers=2, kv_heads=2, head_dim=8)
        >>> with by.local(layout, device=64, host="0.001 GiB") as cache:
        ...     lease = cache.begin(range(100))
        ...     cache.seal(lease, 100)
        ...     cache.finish(lease)
        ...     cache.step()
        6
        0
    """
    if layout.ranks != 1:
        raise Misuse(f"a layout of {layout.ranks} ranks: run a Crane in each rank's process")
    wanted: dict[str, Any] = {"layout": layout, **keywords}
    config = Config.of(wanted)
    device, host = memory or _numpy(layout, config)
    crane = Crane(layout, device=device, host=host, copier=copier, fingerprint=config.fingerprint)
    cache = Local(agree(config, [crane.hello()]))
    cache._crane = crane  # noqa: SLF001 - the wiring is what this file is
    return cache


def _numpy(layout: KVLayout, config: Config) -> tuple[Tier, Tier | None]:
    device = MemoryTier(layout, config.device_blocks, name="device")
    if not config.host_blocks:
        return device, None
    return device, MemoryTier(layout, config.host_blocks, name="host")
