"""How much of everything is measured, on a GPU and on a simulated one."""

from collections.abc import Callable
from dataclasses import dataclass

from blockyard import KVLayout
from blockyard.shared.layout import Order

ORDERS: tuple[Order, ...] = ("page-first", "layer-first")
WAYS = ("down", "up")


@dataclass(frozen=True)
class Case:
    """A model at a block size."""

    model: str
    block_size: int
    make: Callable[[Order], KVLayout]

    @property
    def name(self) -> str:
        return f"{self.model}, {self.block_size} tokens"


def preset(name: str, block_size: int, ranks: int = 1) -> Case:
    def make(order: Order) -> KVLayout:
        return KVLayout.preset(name, block_size=block_size, ranks=ranks, order=order)

    return Case(name + f" / {ranks}" * (ranks > 1), block_size, make)


@dataclass(frozen=True)
class Sizes:
    """How much of everything; the defaults are for a GPU, `TINY` for a simulated one."""

    host: int = 33 << 30
    least_host: int = 1 << 30
    link: tuple[int, ...] = (64 << 20, 256 << 20, 1 << 30)
    cases: tuple[Case, ...] = (
        preset("llama-3-8b", 16),
        preset("llama-3-8b", 64),
        preset("llama-3-70b", 16, 8),
        preset("llama-3-70b", 64, 8),
    )
    counts: tuple[int, ...] = (1, 4, 16, 64, 256, 1024, 4096)
    """Blocks of a flight."""
    sure: int = 256
    """From so many blocks on the shares of the peak are promised."""
    submit: int = 1024
    checked: int = 48
    """Blocks of the tiers that are checked before anything is timed."""
    check_bytes: int = 512 << 20
    swept: int = 512
    linked: int = 64
    rings: tuple[int, ...] = tuple(mib << 20 for mib in (32, 64, 128, 256, 512))
    groups: tuple[int, ...] = (32, 64, 128, 256, 512)
    link_groups: tuple[int, ...] = (4, 8, 16, 32, 64)
    repeats: int = 30
    latency_repeats: int = 200
    pairs: int = 20
    matrix: int = 8192


def _small(order: Order) -> KVLayout:
    return KVLayout.llama(4, 2, 64, block_size=16, order=order)


TINY = Sizes(
    host=8 << 20,
    least_host=1 << 20,
    link=(256 << 10, 1 << 20),
    cases=(Case("small", 16, _small),),
    counts=(1, 4, 16),
    sure=16,
    submit=16,
    checked=12,
    check_bytes=1 << 20,
    swept=8,
    linked=4,
    rings=(64 << 10, 256 << 10),
    groups=(32, 128),
    link_groups=(4, 16),
    repeats=3,
    latency_repeats=5,
    pairs=2,
    matrix=64,
)
