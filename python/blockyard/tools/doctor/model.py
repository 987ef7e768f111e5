"""The KV of a model in an engine, from its configuration alone."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from blockyard.shared.layout import WIDTHS
from blockyard.shared.validate import shown
from blockyard.shared.weights import folder_of

__all__ = ["Layers", "Model", "Wanted"]

_WIDTHS: Final = {
    **WIDTHS,
    "auto": 2,
    "bf16": 2,
    "half": 2,
    "float": 4,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}
"""Bytes of a value, by `--kv-cache-dtype` or `--dtype`."""
_STATES: Final = (
    *("mamba", "ssm", "rwkv", "jamba", "bamba", "zamba", "falcon_h1", "granitemoehybrid"),
    *("lfm2", "minimax_text", "nemotron_h", "plamo2", "qwen3_next", "qwen3_5", "kimi_linear"),
)
"""Types of models whose layers keep states beside KV, or in its place."""
_STATES_ALONE: Final = frozenset({"mamba", "mamba2", "falcon_mamba", "rwkv"})
"""Types of models that have no attention, where the configuration lists no layers."""
_WHOLE: Final = frozenset({"full_attention", "attention"})
_KEPT_WHOLE: Final = frozenset({"FullAttentionSpec", "MLAAttentionSpec"})
_ENCODER: Final = "CrossAttentionSpec"
_PATTERNS: Final = {
    "gemma2": ("sliding_attention", 2),
    "gemma3": ("sliding_attention", 6),
    "cohere2": ("sliding_attention", 4),
    "llama4": ("chunked_attention", 4),
}
"""Of types of models, whose older configurations list no layers: the kind of most layers, and that
each such one has full attention."""
_UNTOLD: Final = (
    "global_head_dim",
    "index_topk",
    "compress_ratios",
    "block_configs",
    "per_layer_config",
)
"""Fields of models whose KV cannot be derived from the configuration."""
_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


class Layers(NamedTuple):
    """A group of layers of vLLM."""

    kind: str
    """The class of its spec."""
    number: int
    tokens: int = 0
    """Of a window or a chunk; 0 where the configuration does not tell."""


class Model(NamedTuple):
    """The KV of a model."""

    kinds: tuple[str, ...]
    """The class of the spec of each kind of layers, where windows are kept whole."""
    types: tuple[str, ...]
    """The type of each layer, where the configuration tells."""
    groups: tuple[Layers, ...]
    """The groups of vLLM with its hybrid manager. How many layers keep states is not known."""
    layers: int
    """Of a stage."""
    heads: int
    """Of attention, on all ranks."""
    token_bytes: int
    """Bytes of a token in a layer, on one rank."""
    longest: int
    """Tokens of the longest request; 0 where it is not known."""
    dtype: str
    experts: bool
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The model's options from an engine's flags."""

    name: str
    """Its path, or its name at a hub."""
    revision: str | None = None
    folder: str | None = None
    """Where models of a hub are put; None for the usual place."""
    overrides: object = None
    """Values in place of those of its configuration, as a mapping or as JSON."""
    dtype: str = "auto"
    kv_dtype: str = "auto"
    tensor: int = 1
    stages: int = 1
    longest: object = None
    """Tokens of the longest request, if the flags have it."""
    stretched: bool = False
    """Whether that may be more than the model was made for."""

    def look(self) -> Model | str:
        """Reads its configuration; returns why that cannot be, as text."""
        if not self.name:
            return "no model was named"
        where = folder_of(self.name, self.revision, self.folder)
        if where is None:
            return f"{self.name} is not here, nor in the cache of a hub"
        try:
            config = json.loads((where / "config.json").read_text("utf-8"))
            more = self.overrides
            more = json.loads(more) if isinstance(more, str) else more
            return self._model(config | (more if isinstance(more, Mapping) else {}))
        except (OSError, RecursionError) as error:
            return f"{where}/config.json cannot be read: {error}"
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
            said = f"{type(error).__name__}: {error}"
            return f"{where}/config.json does not describe the KV: {said}"

    def _model(self, config: dict[str, Any]) -> Model | str:
        text = {**config, **(config.get("text_config") or {})}
        untold = [name for name in _UNTOLD if text.get(name)]
        if untold:
            return f"{untold[0]} in its configuration: what KV its layers keep is seen in memory"
        kept = self.dtype if self.kv_dtype == "auto" else self.kv_dtype
        if kept not in _WIDTHS:
            return f"--kv-cache-dtype {shown(kept)}: how its values are packed is not known here"
        latent = text.get("kv_lora_rank")
        kinds = _kinds(text, latent=bool(latent))
        # What is refused by its kinds alone may have no heads, or not by this name.
        is_sized = kinds[0] in _KEPT_WHOLE and _ENCODER not in kinds
        heads = int(text["num_attention_heads"]) if is_sized else max(self.tensor, 1)
        if not is_sized:
            values = 1
        elif latent:
            values = int(latent) + int(text["qk_rope_head_dim"])
        else:
            own = int(text.get("num_key_value_heads") or heads)
            size = text.get("head_dim") or int(text["hidden_size"]) // heads
            values = 2 * max(own // max(self.tensor, 1), 1) * int(size)
        most = text.get("max_position_embeddings")
        longest = most if self.longest is None else self.longest
        # A stage that does not divide has as many as the others, or one more.
        layers = int(text["num_hidden_layers"]) // max(self.stages, 1)
        return Model(
            kinds=kinds,
            types=tuple(_named(text)),
            groups=_groups(text, kinds, layers),
            layers=layers,
            heads=heads,
            token_bytes=values * _WIDTHS[kept],
            longest=longest if isinstance(longest, int) and longest > 0 else 0,
            dtype=str(text.get("dtype") or text.get("torch_dtype") or "bfloat16"),
            experts=any(text.get(name) for name in _EXPERTS),
            config=text,
        )

    def wrong(self, model: Model, length: str) -> Iterator[tuple[str, str]]:
        """Gives what engines refuse for a model, and what to write.

        Args:
            model: The model.
            length: The flag of the longest request.
        """
        if model.heads % max(self.tensor, 1):
            fits = [one for one in range(1, self.tensor) if not model.heads % one]
            fact = f"{model.heads} heads are not divided by {self.tensor} tensor parallel ranks"
            yield fact, f"write --tensor-parallel-size {fits[-1]}"
        layers = int(model.config["num_hidden_layers"])
        if layers < self.stages:
            yield f"{layers} layers in {self.stages} stages", f"write {layers} stages or fewer"
        most, given = model.config.get("max_position_embeddings"), self.longest
        scaled = any(model.config.get(f"rope_{one}") for one in ("scaling", "parameters"))
        if scaled or self.stretched or not (isinstance(most, int) and isinstance(given, int)):
            return
        if given > most:
            yield f"{length} {given} is more than the {most} of the model", f"write {length} {most}"


def _kinds(text: Mapping[str, Any], *, latent: bool) -> tuple[str, ...]:
    """The specs of its kinds of layers, where windows beside full attention are kept whole."""
    full = "MLAAttentionSpec" if latent else "FullAttentionSpec"
    kind = str(text.get("model_type", "")).casefold()
    if text.get("is_encoder_decoder"):
        return (full, _ENCODER)
    named = _named(text)
    states = [one for one in named if not any(word in one for word in ("attention", "moe", "mlp"))]
    states += [one for one in named if "linear" in one]
    if states or kind.startswith(_STATES) or text.get("hybrid_override_pattern"):
        whole = any(one in _WHOLE for one in named)
        alone = kind in _STATES_ALONE and not named
        return (full, "MambaSpec") if whole or not (named or alone) else ("MambaSpec",)
    windows = [one for one in named if "sliding" in one or "chunked" in one]
    window = text.get("sliding_window") and text.get("use_sliding_window") is not False
    if (named and len(windows) == len(named)) or (window and not named and _everywhere(text)):
        return ("SlidingWindowSpec",)
    return (full,)


def _named(text: Mapping[str, Any]) -> list[str]:
    """Returns the type of each layer; none where the configuration does not tell."""
    types = text.get("layer_types") or text.get("layers_block_type")
    if types:
        return [str(one).casefold() for one in types]
    name = next((one for one in _PATTERNS if str(text.get("model_type")).startswith(one)), None)
    if name is None:
        return []
    window, step = _PATTERNS[name]
    step = int(text.get("sliding_window_pattern") or step)
    layers = range(1, int(text["num_hidden_layers"]) + 1)
    return [window if at % step else "full_attention" for at in layers]


def _groups(text: Mapping[str, Any], kinds: tuple[str, ...], layers: int) -> tuple[Layers, ...]:
    """Returns the groups that vLLM makes: the kind with the fewest layers says how many each has.

    Args:
        text: The configuration.
        kinds: As in `Model`.
        layers: Of a stage.
    """
    named = _named(text)
    if kinds[0] not in _KEPT_WHOLE or len(kinds) > 1:
        tokens = int(text.get("sliding_window") or 0)
        return tuple(Layers(kind, layers, tokens) for kind in kinds)
    if not any("sliding" in one or "chunked" in one for one in named):
        return (Layers(kinds[0], layers),)
    counts: dict[Layers, int] = {}
    for one in named:
        made = Layers(kinds[0], 0)
        if "sliding" in one:
            made = Layers("SlidingWindowSpec", 0, int(text.get("sliding_window") or 0))
        elif "chunked" in one:
            chunk = int(text.get("attention_chunk_size") or 0)
            made = Layers("ChunkedLocalAttentionSpec", 0, chunk)
        counts[made] = counts.get(made, 0) + 1
    each, most = min(counts.values()), max(counts.values())
    each = most if 2 * most < 3 * each else each
    return tuple(
        one._replace(number=len(range(at, count, -(-count // each))))
        for one, count in counts.items()
        for at in range(-(-count // each))
    )


def _everywhere(text: Mapping[str, Any]) -> bool:
    """Whether all layers have the window, where the configuration lists no layers."""
    partly = (
        "max_window_layers",
        "sliding_window_pattern",
        "attn_config",
        "interleaved_sliding_window",
    )
    return not any(text.get(name) for name in partly) and text.get("model_type") == "mistral"
