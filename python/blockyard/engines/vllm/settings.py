"""What an operator says in `kv_connector_extra_config`, and the cache that follows from it."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, Self

from blockyard._core import Misuse, TooLarge
from blockyard.engines.vllm.identity import namespace_of
from blockyard.shared.layout import KVLayout
from blockyard.shared.validate import one_of
from blockyard.yard.config import Config

__all__ = ["OWN", "Settings"]

OWN: Final = ("layout", "block_size", "device", "engine", "recompute", "keyed", "hash")
"""Fields of `Config` that are vLLM's to say."""
_BOOLS: Final = (True, False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the connector does, beside the sizes and policies of its cache.

    Raises:
        Misuse: A value is none of those that are allowed.
    """

    stow: Literal["finish", "through", "none"] = "finish"
    """When full blocks are copied down for others: as a request ends; as they fill; or never."""
    preempt: Literal["park", "recompute"] = "park"
    """Whether a preempted request's KV is kept, its last token too; or dropped."""
    decode: bool = True
    """Whether blocks that hold answers are stowed, and not those of the prompt alone."""

    def __post_init__(self) -> None:
        """Checks every value."""
        one_of("stow", self.stow, ("finish", "through", "none"))
        one_of("preempt", self.preempt, ("park", "recompute"))
        one_of("decode", self.decode, _BOOLS)

    @classmethod
    def read(
        cls,
        extra: Mapping[str, Any],
        *,
        layout: KVLayout,
        blocks: int,
        namespace: Mapping[str, Mapping[str, object]],
        longest: int,
    ) -> tuple[Self, Config]:
        """Reads the operator's words, and completes them by what vLLM has.

        Args:
            extra: `kv_connector_extra_config`; `config` in it names a TOML file, whose values it
                overrides.
            layout: Of a block, as vLLM has it.
            blocks: The blocks that vLLM gives out.
            namespace: What its KV depends on; the operator's `namespace` adds to it.
            longest: Tokens of the longest request.

        Raises:
            Misuse: A key is unknown or vLLM's own, or a value is out of range.
            TooLarge: A request of full length cannot be kept, and shall be.
        """
        given = dict(extra)
        path = given.pop("config", None)
        if path is not None:
            given = {**_table(path), **given}
        own = {field.name for field in fields(cls)}
        known = sorted((own | {field.name for field in fields(Config)}) - set(OWN))
        for name in given:
            if name in OWN:
                raise Misuse(f"{name} = {given[name]!r}: vLLM says that itself, leave it out")
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.0)
                raise Misuse(
                    f"there is no {name!r} in kv_connector_extra_config: did you mean {near[0]!r}?"
                )
        settings = cls(**{name: given.pop(name) for name in own & given.keys()})
        if "host" not in given and "disk" not in given:
            raise Misuse(
                'host is missing in kv_connector_extra_config: give it, as "host": "64 GiB"'
            )
        more = given.pop("namespace", None) or {}
        if not isinstance(more, Mapping):
            raise Misuse(f"namespace = {more!r}: give a mapping of names to text")
        said = namespace_of(namespace, more)
        config = Config.of({**given, "layout": layout, "engine": blocks, "namespace": said})
        settings.check_room(config, longest)
        return settings, config

    def check_room(self, config: Config, longest: int) -> None:
        """Checks that one request of full length can be kept."""
        wants = -(-longest // config.block_size)
        room = max(config.host_blocks, config.disk_blocks)
        if self.preempt == "park" and room < wants:
            raise TooLarge(
                f"a request of max_model_len = {longest} tokens has {wants} blocks, and a tier "
                f"below has {room} at most: give a larger host, a smaller --max-model-len, or "
                '"preempt": "recompute"'
            )


def _table(path: object) -> dict[str, Any]:
    """Reads a TOML file: its table `blockyard`, or the whole file."""
    import tomllib  # noqa: PLC0415 - most operators name no file

    try:
        table = tomllib.loads(Path(str(path)).read_text("utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Misuse(f"{path} is no configuration: {error}") from error
    return dict(table.get("blockyard", table))
