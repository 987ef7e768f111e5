"""How long a step takes on a GPU by a roofline model; nothing here is measured.

A step takes as long as its arithmetic or its reading of memory, whichever is longer, plus a fixed
overhead. Every figure is published, or is marked as an assumption, and each can be replaced.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from blockyard._core import Misuse
from blockyard.shared.models import MODELS as LAYOUTS
from blockyard.shared.models import Heads

__all__ = ["MACHINES", "MODELS", "GpuSpec", "ModelSpec", "Roofline", "preset", "roofline_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder: the figures of its model card and its `config.json`."""

    name: str
    params: float
    """All parameters, which memory must hold."""
    active: float
    """The parameters that one token uses; all of them in a dense model."""
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
    """A GPU as in its data sheet, and the share of that which is reached.

    The efficiencies are assumptions: half of the peak in the arithmetic of prefill, and 80 % of the
    memory bandwidth.
    """

    name: str
    flops: float
    """Peak in bfloat16 without sparsity, FLOP/s."""
    hbm_bytes_per_second: float
    """Bandwidth of its own memory, bytes/s."""
    hbm_bytes: float
    """Size of its own memory, bytes."""
    link_bytes_per_second: float
    """Bandwidth to pinned host memory by large copies, in each direction at once, bytes/s."""
    link_latency: float = 1e-4
    """Seconds to launch a copy and to notice its end, an assumption."""
    sync: float = 1e-5
    """Seconds of an all-reduce beside its bytes; there are two per layer and step."""
    flops_efficiency: float = 0.5
    hbm_efficiency: float = 0.8
    hbm_share: float = 0.9
    """The share of memory for weights and KV cache; activations get the rest."""


# 80 % of the 31.5 and 63.0 GB/s of 16 lanes, an assumption as well.
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
    """A model on tensor-parallel GPUs of one kind, each with its own link.

    Raises:
        Misuse: A figure is out of range.
    """

    model: ModelSpec
    machine: GpuSpec
    ranks: int = 1
    overhead: float = 1e-3
    """Seconds of scheduling, launches and sampling in every step, an assumption."""

    def __post_init__(self) -> None:
        """Checks every figure."""
        for name, value in self.figures().items():
            least = 0 if name in _MAY_BE_NONE else 1 if name in _WHOLE else 1e-12
            most = 1 if name in _SHARES else 1e30
            if not least <= value <= most:
                within = f"must be a number from {least:g} to {most:g}"
                raise Misuse(f"{name} = {value:g}: {within}")
        if self.model.active > self.model.params:
            raise Misuse(
                f"active = {self.model.active:g}: must be at most params = {self.model.params:g}, "
                "all parameters of the model"
            )

    def figures(self) -> dict[str, float]:
        """Returns every figure by name, for `with_`."""
        figures = {"ranks": self.ranks, "overhead": self.overhead}
        for part in (self.model, self.machine):
            figures |= {f.name: getattr(part, f.name) for f in fields(part) if f.name != "name"}
        return figures

    def with_(self, figures: Mapping[str, str | float]) -> "Roofline":
        """Returns a copy with other figures, numbers or text like "3.35e12".

        Where `params` is given and `active` is not, their ratio stays.

        Raises:
            Misuse: A figure is unknown, or its value is not a number in range.
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
                raise Misuse(f"{name} = {given!r}: must be a number, like 3.35e12") from None
            if values[name] != value:
                kind = "an integer" if name in _WHOLE else "a number"
                raise Misuse(f"{name} = {given!r}: must be {kind}, like {known[name]:g}")
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
        """The bytes of KV of one token, over all ranks; a KV head is never split."""
        model = self.model
        heads = max(model.kv_heads, self.ranks)
        return round(2 * model.layers * heads * model.head_dim * model.kv_bytes)

    def device_blocks(self, block_size: int) -> int:
        """Returns how many blocks of `block_size` tokens memory holds beside the weights.

        Raises:
            Misuse: The weights leave no room for one block.
        """
        machine, model = self.machine, self.model
        weights = model.params * model.weight_bytes
        room = self.ranks * machine.hbm_bytes * machine.hbm_share - weights
        blocks = int(room // (block_size * self.kv_bytes_per_token))
        if blocks < 1:
            raise Misuse(
                f"{model.name} has {weights / 1e9:.0f} GB of weights, and {self.ranks} x "
                f"{machine.name} has room for {(weights + room) / 1e9:.0f} GB in all: give more "
                f"ranks, like {machine.name}x{2 * self.ranks}, or a larger GPU"
            )
        return blocks

    def step_seconds(self, prefill: int, pairs: float, read: int, rows: int, context: int) -> float:
        """Returns the seconds that a step takes.

        Args:
            prefill: The new tokens of all chunks of prompts.
            pairs: The sum over the chunks of their new tokens times the tokens that each of these
                attends to: those before the chunk and, on average, half of the chunk.
            read: The tokens that the chunks attend to, summed over the chunks: each chunk reads
                those before it and its own once.
            rows: The sequences that compute one token each.
            context: The tokens that these attend to, summed over the rows.
        """
        machine, model = self.machine, self.model
        tokens = prefill + rows
        # A few tokens use only some of the experts.
        weights = min(model.params, tokens * model.active) * model.weight_bytes
        moved = weights + (context + read) * self.kv_bytes_per_token
        reading = moved / (self.ranks * machine.hbm_bytes_per_second * machine.hbm_efficiency)
        syncs = 2 * model.layers * machine.sync if self.ranks > 1 else 0.0
        return max(self._computing(tokens, pairs + context), reading) + syncs + self.overhead

    def prefill_seconds(self, tokens: int, context: int = 0) -> float:
        """Returns the seconds that `tokens` of a prompt, after `context` others, add to steps."""
        return self._computing(tokens, tokens * (context + tokens / 2))

    def copy_seconds(self, tokens: int) -> float:
        """Returns the seconds of copying the KV of `tokens` tokens, all ranks at once."""
        rank_bytes = tokens * self.kv_bytes_per_token / self.ranks
        return self.machine.link_latency + rank_bytes / self.machine.link_bytes_per_second

    def block_costs(self, block_size: int) -> tuple[int, int, int]:
        """Returns what gates loads, in nanoseconds.

        Returns:
            The time to load a block of `block_size` tokens beside others; to compute the first
            block of a sequence; and what is added to that for each block before it.
        """
        rank_bytes = block_size * self.kv_bytes_per_token / self.ranks
        load = rank_bytes / self.machine.link_bytes_per_second
        compute = self.prefill_seconds(block_size)
        attend = self.prefill_seconds(block_size, block_size) - compute
        return round(1e9 * load), round(1e9 * compute), round(1e9 * attend)

    def _computing(self, tokens: int, pairs: float) -> float:
        """Returns the seconds of two operations per parameter and token, and of attention."""
        machine, model = self.machine, self.model
        # Four operations per element of a head and pair of tokens.
        attention = 4 * model.layers * model.heads * model.head_dim * pairs
        flops = 2 * model.active * tokens + attention
        return flops / (self.ranks * machine.flops * machine.flops_efficiency)


_WHOLE: Final = frozenset({"layers", "heads", "kv_heads", "head_dim", "ranks"})
_SHARES: Final = frozenset({"flops_efficiency", "hbm_efficiency", "hbm_share"})
_MAY_BE_NONE: Final = frozenset({"link_latency", "sync", "overhead"})


def preset(name: str) -> Roofline:
    """Returns a model on GPUs, like "llama-3-8b/h100", or on four, like "llama-3-70b/h100x4".

    Raises:
        Misuse: The model or GPU is unknown; the message offers the nearest.
    """
    model, slash, machine = name.lower().partition("/")
    if not slash:
        raise Misuse(f"preset {name!r}: must be a model and a GPU, like 'llama-3-8b/h100'")
    if model not in MODELS:
        raise _unknown("model", model, MODELS)
    found = re.fullmatch(r"(.+?)(?:x([1-9]\d{0,3}))?", machine)
    gpu, ranks = found.groups() if found else (machine, None)
    if gpu not in MACHINES:
        raise _unknown("GPU", gpu, MACHINES)
    return Roofline(model=MODELS[model], machine=MACHINES[gpu], ranks=int(ranks or 1))


def roofline_of(name: str, figures: Iterable[str], ranks: int | None) -> Roofline:
    """Returns a preset as options change it.

    Args:
        name: As in `preset`.
        figures: Figures to replace, each "NAME=VALUE".
        ranks: GPUs to split the model over; None for as many as the preset says.

    Raises:
        Misuse: The preset or a figure is unknown or out of range, the model cannot be split so, or
            its KV would take no memory.
    """
    given: dict[str, str] = {}
    for figure in figures:
        key, equals, value = figure.partition("=")
        if not equals:
            raise Misuse(f"--set {figure}: must be FIGURE=VALUE, like hbm_share=0.8")
        if key == "ranks":
            raise Misuse(f"--set {figure}: give --ranks {value} instead")
        if key in given:
            raise Misuse(f"--set {figure}: {key} is given twice; give it once")
        given[key] = value
    if ranks is not None:
        given["ranks"] = str(ranks)
    roofline = preset(name).with_(given)
    split, model = roofline.ranks, roofline.model
    # A KV head is never split, but several ranks may hold the same one.
    shared = model.kv_heads % split == 0 or split % model.kv_heads == 0
    if model.heads % split or not shared:
        raise Misuse(
            f"--ranks {split}: must divide the {model.heads} heads of {model.name}, and divide its "
            f"{model.kv_heads} KV heads or be a multiple of them"
        )
    if not roofline.kv_bytes_per_token:
        raise Misuse(f"--set kv_bytes={model.kv_bytes:g}: KV would take no memory; give more")
    return roofline


def _unknown(what: str, name: str, known: Iterable[str]) -> Misuse:
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0)
    return Misuse(
        f"unknown {what} {name!r}: did you mean {near[0]!r}? Known are {', '.join(known)}"
    )
