"""How long a step takes on a GPU, by a roofline: modelled, never measured.

A step takes as long as its arithmetic or its reading of memory, whichever is longer, plus a fixed
overhead. Every figure is published or an assumption that says so, and each can be replaced.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from blockyard._core import Misuse
from blockyard.shared.models import MODELS as LAYOUTS
from blockyard.shared.models import Heads

__all__ = ["MACHINES", "MODELS", "GpuSpec", "ModelSpec", "Roofline", "preset"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder: the figures of its model card and its `config.json`."""

    name: str
    params: float
    """Parameters, all of them: what a rank's memory holds."""
    active: float
    """Parameters that one token uses; those of a dense model are all."""
    layers: int
    heads: int
    """Query heads."""
    kv_heads: int
    head_dim: int
    weight_bytes: float = 2.0
    """Bytes of a parameter: bfloat16."""
    kv_bytes: float = 2.0
    """Bytes of an element of the KV cache: bfloat16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """A GPU as its maker's data sheet has it, and what of that is taken to be reached.

    The efficiencies are assumptions: half of the peak in the arithmetic of prefill, 80 % of the
    bandwidth of memory.
    """

    name: str
    flops: float
    """Peak in bfloat16 without sparsity, FLOP/s."""
    hbm_bytes_per_second: float
    """Of its own memory, bytes/s."""
    hbm_bytes: float
    """Size of its own memory, bytes."""
    link_bytes_per_second: float
    """To pinned memory of the host by large copies, in one direction; both work at once."""
    link_latency: float = 1e-4
    """Of every copy: to launch it, and to notice its end; seconds. An assumption."""
    sync: float = 1e-5
    """An all-reduce between ranks, two per layer and step, beside its bytes; seconds."""
    flops_efficiency: float = 0.5
    hbm_efficiency: float = 0.8
    hbm_share: float = 0.9
    """Of its memory that weights and KV cache may take; activations get the rest."""


# What is reached of the 31.5 and 63.0 GB/s of 16 lanes: 80 %, an assumption as well.
_PCIE4: Final = 25e9
_PCIE5: Final = 50e9


_SHAPES: Final = {name: shape for name, shape in LAYOUTS.items() if isinstance(shape, Heads)}


def _dense(name: str, params: float, heads: int) -> ModelSpec:
    shape = _SHAPES[name]
    return ModelSpec(
        name=name,
        params=params,
        active=params,
        layers=shape.layers,
        heads=heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
    )


_MODELS: Final = (
    # Llama 3 and 3.1 ("The Llama 3 Herd of Models", arXiv:2407.21783, table 3, and model cards).
    _dense("llama-3-8b", 8.03e9, 32),
    _dense("llama-3-70b", 70.6e9, 64),
    _dense("llama-3.1-405b", 405.9e9, 128),
    # "Mistral 7B", arXiv:2310.06825, and "Mixtral of Experts", arXiv:2401.04088.
    _dense("mistral-7b", 7.25e9, 32),
    replace(_dense("mixtral-8x7b", 46.7e9, 32), active=12.9e9),
    # "Qwen2.5 Technical Report", arXiv:2412.15115, and "Qwen3 Technical Report", arXiv:2505.09388.
    _dense("qwen2.5-7b", 7.62e9, 28),
    _dense("qwen2.5-72b", 72.7e9, 64),
    _dense("qwen3-8b", 8.19e9, 32),
    _dense("qwen3-32b", 32.8e9, 64),
)
_MACHINES: Final = (
    # NVIDIA A100 80GB data sheet (SXM).
    GpuSpec(
        name="a100",
        flops=312e12,
        hbm_bytes_per_second=2.039e12,
        hbm_bytes=80e9,
        link_bytes_per_second=_PCIE4,
    ),
    # NVIDIA H100 data sheet (SXM); it gives 1,979 TFLOPS with sparsity, which doubles the figure.
    GpuSpec(
        name="h100",
        flops=989e12,
        hbm_bytes_per_second=3.35e12,
        hbm_bytes=80e9,
        link_bytes_per_second=_PCIE5,
    ),
    # NVIDIA H200 data sheet (SXM).
    GpuSpec(
        name="h200",
        flops=989e12,
        hbm_bytes_per_second=4.8e12,
        hbm_bytes=141e9,
        link_bytes_per_second=_PCIE5,
    ),
    # NVIDIA HGX B200 data sheet, one of eight; 4.5 PFLOPS with sparsity.
    GpuSpec(
        name="b200",
        flops=2.25e15,
        hbm_bytes_per_second=8e12,
        hbm_bytes=180e9,
        link_bytes_per_second=_PCIE5,
    ),
    # NVIDIA L40S data sheet. Its memory is GDDR6, and its ranks talk over PCIe.
    GpuSpec(
        name="l40s",
        flops=362e12,
        hbm_bytes_per_second=864e9,
        hbm_bytes=48e9,
        link_bytes_per_second=_PCIE4,
        sync=3e-5,
    ),
)

MODELS: Final = {model.name: model for model in _MODELS}
"""Models by name."""
MACHINES: Final = {machine.name: machine for machine in _MACHINES}
"""GPUs by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """A model on tensor-parallel GPUs of one kind, each with a link of its own.

    Raises:
        Misuse: A figure is out of range.
    """

    model: ModelSpec
    machine: GpuSpec
    ranks: int = 1
    overhead: float = 1e-3
    """Of every step, whatever is in it: scheduling, launches, sampling; seconds. An assumption."""

    def __post_init__(self) -> None:
        """Checks every figure."""
        for name, value in self.figures().items():
            least = 0 if name in _MAY_BE_NONE else 1 if name in _WHOLE else 1e-12
            most = 1 if name in _SHARES else 1e30
            if not least <= value <= most:
                raise Misuse(f"{name} = {value:g}: give a number from {least:g} to {most:g}")
        if self.model.active > self.model.params:
            raise Misuse(
                f"active = {self.model.active:g}: a token uses no more than all "
                f"{self.model.params:g} parameters"
            )

    def figures(self) -> dict[str, float]:
        """Every figure by name, for `with_`."""
        figures = {"ranks": self.ranks, "overhead": self.overhead}
        for part in (self.model, self.machine):
            figures |= {f.name: getattr(part, f.name) for f in fields(part) if f.name != "name"}
        return figures

    def with_(self, figures: Mapping[str, str | float]) -> "Roofline":
        """The same with other figures, numbers or text like "3.35e12".

        Where `params` is given and `active` is not, their ratio stays.

        Raises:
            Misuse: An unknown figure, with the nearest one; or a value that is none.
        """
        known = self.figures()
        values: dict[str, Any] = {}
        for name, given in figures.items():
            if name not in known:
                raise _unknown("figure", name, known)
            try:
                value = float(given)
                values[name] = int(value) if name in _WHOLE else value
            except (ValueError, OverflowError):
                raise Misuse(f"{name} = {given!r}: give a number, like 3.35e12") from None
            if values[name] != value:
                raise Misuse(f"{name} = {given!r}: give a number, like {known[name]:g}")
        if "params" in values:
            values.setdefault("active", values["params"] * self.model.active / self.model.params)

        def given_to(part: "ModelSpec | GpuSpec | Roofline") -> dict[str, Any]:
            return {f.name: values[f.name] for f in fields(part) if f.name in values}

        return replace(
            self,
            model=replace(self.model, **given_to(self.model)),
            machine=replace(self.machine, **given_to(self.machine)),
            **given_to(self),
        )

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV that one token takes, over all ranks; a KV head is nowhere split."""
        model = self.model
        heads = max(model.kv_heads, self.ranks)
        return round(2 * model.layers * heads * model.head_dim * model.kv_bytes)

    def device_blocks(self, block_size: int) -> int:
        """Blocks of `block_size` tokens that memory holds beside the weights.

        Raises:
            Misuse: The weights leave no room for one block.
        """
        machine, model = self.machine, self.model
        weights = model.params * model.weight_bytes
        room = self.ranks * machine.hbm_bytes * machine.hbm_share - weights
        blocks = int(room // (block_size * self.kv_bytes_per_token))
        if blocks < 1:
            raise Misuse(
                f"{model.name} takes {weights / 1e9:.0f} GB of weights, and {self.ranks} x "
                f"{machine.name} leaves room for {(weights + room) / 1e9:.0f} GB in all: give more "
                f"ranks, like {machine.name}x{2 * self.ranks}, or a larger GPU"
            )
        return blocks

    def step_seconds(self, prefill: int, pairs: float, read: int, rows: int, context: int) -> float:
        """How long a step takes.

        Args:
            prefill: New tokens of all chunks of prompts.
            pairs: Over the chunks, the sum of new tokens times the tokens that each attends to:
                those before the chunk and, on average, half of the chunk.
            read: Tokens that the chunks attend to, summed over the chunks: each reads those before
                it and its own, once for all of its tokens.
            rows: Sequences that compute one token each.
            context: Tokens that those attend to, summed over the rows.
        """
        machine, model = self.machine, self.model
        tokens = prefill + rows
        # Few tokens use few of the experts.
        weights = min(model.params, tokens * model.active) * model.weight_bytes
        moved = weights + (context + read) * self.kv_bytes_per_token
        reading = moved / (self.ranks * machine.hbm_bytes_per_second * machine.hbm_efficiency)
        syncs = 2 * model.layers * machine.sync if self.ranks > 1 else 0.0
        return max(self._computing(tokens, pairs + context), reading) + syncs + self.overhead

    def prefill_seconds(self, tokens: int, context: int = 0) -> float:
        """What `tokens` tokens of a prompt behind `context` others add to steps that run anyhow."""
        return self._computing(tokens, tokens * (context + tokens / 2))

    def copy_seconds(self, tokens: int) -> float:
        """How long the KV of `tokens` tokens takes over the link, one way, all ranks at once."""
        rank_bytes = tokens * self.kv_bytes_per_token / self.ranks
        return self.machine.link_latency + rank_bytes / self.machine.link_bytes_per_second

    def speeds(self, block_size: int) -> tuple[int, int, int]:
        """What gates loads: nanoseconds to load a block, to compute one, and more per depth.

        Returns:
            To load a block of `block_size` tokens beside others; to compute the first block of a
            sequence; and what that grows by for each block before it.
        """
        rank_bytes = block_size * self.kv_bytes_per_token / self.ranks
        load = rank_bytes / self.machine.link_bytes_per_second
        compute = self.prefill_seconds(block_size)
        attend = self.prefill_seconds(block_size, block_size) - compute
        return round(1e9 * load), round(1e9 * compute), round(1e9 * attend)

    def _computing(self, tokens: int, pairs: float) -> float:
        """Two operations per parameter and token; four per element of a head and pair."""
        machine, model = self.machine, self.model
        attention = 4 * model.layers * model.heads * model.head_dim * pairs
        flops = 2 * model.active * tokens + attention
        return flops / (self.ranks * machine.flops * machine.flops_efficiency)


_WHOLE: Final = frozenset({"layers", "heads", "kv_heads", "head_dim", "ranks"})
_SHARES: Final = frozenset({"flops_efficiency", "hbm_efficiency", "hbm_share"})
_MAY_BE_NONE: Final = frozenset({"link_latency", "sync", "overhead"})


def preset(name: str) -> Roofline:
    """A model on GPUs, like "llama-3-8b/h100" or, over four of them, "llama-3-70b/h100x4".

    Raises:
        Misuse: Not a known model or GPU; the nearest is offered.
    """
    model, slash, machine = name.lower().partition("/")
    if not slash:
        raise Misuse(f"preset {name!r}: give a model and a GPU, like 'llama-3-8b/h100'")
    if model not in MODELS:
        raise _unknown("model", model, MODELS)
    found = re.fullmatch(r"(.+?)(?:x([1-9]\d{0,3}))?", machine)
    gpu, ranks = found.groups() if found else (machine, None)
    if gpu not in MACHINES:
        raise _unknown("GPU", gpu, MACHINES)
    return Roofline(model=MODELS[model], machine=MACHINES[gpu], ranks=int(ranks or 1))


def _unknown(what: str, name: str, known: Iterable[str]) -> Misuse:
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0)
    return Misuse(
        f"unknown {what} {name!r}: did you mean {near[0]!r}? There are {', '.join(known)}"
    )
