"""vLLM's requests, from their arrival to their end, and their keys."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from blockyard._core import Keys, Misuse
from blockyard.connectors.vllm.identity import Root, Start
from blockyard.connectors.vllm.others import is_certain
from blockyard.connectors.vllm.settings import Settings
from blockyard.connectors.vllm.tier_events import TierEvents
from blockyard.shared.log import Limited
from blockyard.yard.cache import KVCache

__all__ = ["Row", "Rows"]

_KEY: Final = 32
_log = Limited(__name__, 0)


@dataclass(slots=True, eq=False)
class Row:
    """A request of vLLM, from its arrival to its end."""

    request: Any
    settings: Settings
    start: Start | None
    """What its keys start with; None for one that has no keys."""
    keys: bytearray = field(default_factory=bytearray)
    ids: list[int] = field(default_factory=list)
    """Its block table, as of the last step in which it was scheduled; of several that of the first
    group of full attention."""
    tables: list[list[int]] = field(default_factory=list)
    """Where there are several groups its table in each, in vLLM's order."""
    later: list[Sequence[list[int]]] = field(default_factory=list)
    """New blocks in each group that are not in `tables` yet."""
    checkpoints: list[int] = field(default_factory=list)
    """Lengths ahead of it at which all groups are offloaded, ascending."""
    started: int = 0
    """Tokens that it had when it was scheduled first since it waited."""
    scheduled: int = 0
    """Tokens that were given to the model since, at the last step that took more than one."""
    local: int = 0
    """Tokens that vLLM had itself when it asked last."""
    told: int = 0
    """Tokens behind these that vLLM was told to be below."""
    has: int = 0
    """Tokens that its blocks held when it began: what vLLM found, and what a load has brought."""
    given: int = 0
    """Tokens to which another connector brings it as it runs; 0 when they are there."""
    wanted: int = 0
    """Tokens that a load shall bring it to, from its start."""
    offloaded: int = 0
    """Leading blocks that were offloaded since it began."""
    preemptions: int = 0
    """How often it was preempted."""
    loading: list[int] = field(default_factory=list)
    """Its block table while it loads."""

    def computed(self) -> int:
        """Tokens whose KV is in its blocks, whatever step is in flight.

        The last token was sampled and is computed by no step that has ended. A prompt is computed
        as far as it was scheduled. Of what another connector brings it counts when it is there.
        """
        tokens = self.reached()
        return tokens if is_certain(self) else min(tokens, self.has)

    def reached(self) -> int:
        """Tokens whose KV is in its blocks, if all has come that another connector brings it."""
        known = int(self.request.num_tokens)
        return known - 1 if known > self.started else min(self.scheduled, known - 1)

    def begin(self, ids: Iterable[int]) -> None:
        """Takes its block table, as it runs now."""
        self.ids, self.started, self.scheduled = list(ids), int(self.request.num_tokens), 0
        self.offloaded = self.given = 0

    def offloadable(self) -> int:
        """Tokens that are computed, and are to be offloaded."""
        tokens = self.computed()
        return tokens if self.settings.decode else min(tokens, int(self.request.num_prompt_tokens))

    def join(self) -> None:
        """Brings its tables up to date."""
        for more in self.later:
            for table, ids in zip(self.tables, more, strict=True):
                table += ids  # noqa: PLW2901 - in place
        self.later.clear()

    def blocks(self, first: int, end: int | None = None) -> list[int]:
        """Returns the ids of some of its blocks, of all groups; the null block is none."""
        if not self.tables:
            return self.ids[first:end]
        self.join()
        return [one for table in self.tables for one in table[first:end] if one]

    def count_cached(self, tokens: int) -> None:
        """Has vLLM report what a load has brought, and not what was matched.

        vLLM counts what it was told before the load. Of a prompt that is there whole it computes
        the last token again.

        Args:
            tokens: What the request has, from its start; it has not run since it came.
        """
        request = self.request
        stats, prompt = request.prefill_stats, int(request.num_prompt_tokens)
        if stats is None or request.num_preemptions:
            return
        stats.set(
            num_prompt_tokens=prompt,
            num_local_cached_tokens=self.local,
            num_external_cached_tokens=max(min(tokens, prompt - 1) - self.local, 0),
        )


class Rows:
    """The requests that have not ended.

    Args:
        cache: Takes their keys.
        settings: Defaults for requests without options.
        has_groups: Whether keys count the tokens behind the last full block, too.
    """

    def __init__(self, cache: KVCache, settings: Settings, *, has_groups: bool = False) -> None:
        self.cache, self._settings, self.block_size = cache, settings, cache.block_size
        self._has_groups = has_groups
        self._root = Root(dict(cache.config.namespace or ()).items())
        self._warned: set[str] = set()
        self.by_name: dict[str, Row] = {}
        """Each of them, by vLLM's id."""
        self.tier_events: TierEvents | None = None
        """What hears of their tokens; None where vLLM publishes no events."""

    def listen(self, tier_events: TierEvents) -> None:
        """Has it hear of their tokens from now on."""
        self.tier_events = tier_events

    def of(self, request: Any) -> Row:
        """Returns a request, which may be new."""
        row = self.by_name.get(request.request_id)
        if row is None:
            row = self.by_name[request.request_id] = self._new(request)
        return row

    def keys(self, row: Row) -> Keys:
        """Returns the keys of its full blocks."""
        full = self.hash(row)
        size = self.block_size
        tokens = full * size
        if self._has_groups:
            # A full block whose hash needs the tokens behind it may have no key yet.
            tokens = min(int(row.request.num_tokens), tokens + size - 1)
        return self.cache.ready_keys(bytes(row.keys[: full * _KEY]), tokens)

    def first(self, row: Row, blocks: int) -> Keys:
        """Returns the keys of its first blocks, which are full."""
        return self.cache.ready_keys(bytes(row.keys[: blocks * _KEY]), blocks * self.block_size)

    def hash(self, row: Row) -> int:
        """Makes the keys that a request has not yet; returns how many it has."""
        hashes = () if row.start is None else row.request.block_hashes
        have = len(row.keys) // _KEY
        if len(hashes) > have:
            row.keys += self._root.keys(hashes[have:], row.start)
            if self.tier_events is not None:
                self.tier_events.describe(row.request, row.keys, have)
        return len(hashes)

    def _new(self, request: Any) -> Row:
        settings = self._settings
        try:
            settings = settings.of_request(request.kv_transfer_params)
        except Misuse as error:
            # An error here would end vLLM: it is the client's to mend.
            self._warn(f"{error}; such requests run as all others")
        if request.skip_reading_prefix_cache:
            # vLLM computes all of it, whatever is offered: it wants the logits of the prompt.
            settings = settings.as_reading_nothing()
        start = self._root.start(request.lora_request, request.cache_salt)
        if start is None:
            settings = settings.as_nothing()
            self._warn(
                f"which weights LoRA adapter {request.lora_request.lora_name!r:.100} has is not "
                "known here, as its files are not to be seen or have changed: nothing of it is "
                "kept; load it from a path of its own"
            )
        if request.resumable:
            # Its tokens and hashes change while it waits for more.
            settings, start = settings.as_nothing(), None
        return Row(request, settings, start)

    def _warn(self, text: str) -> None:
        """Logs a message once."""
        if text not in self._warned and len(self._warned) < 1000:  # noqa: PLR2004 - clients make it
            self._warned.add(text)
            _log.warning(text)
