"""A connector that stands before Blockyard in a MultiConnector.

It receives prompts that a prefiller has, loads as a store does, beside the computation or before
it, sends what has ended, fails, and is late: all as a request asks for it. What it says is true.
Its transfers wait for no stream: what is on its way writes other bytes first.
"""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.v1.request import RequestStatus

NAME = "StandIn"


@dataclass
class Transfer:
    """What it moves of a request."""

    name: str
    tables: list[list[int]]
    """Its blocks in each group of layers."""
    tokens: list[int]
    """All up to the last one whose KV it moves."""
    first: int
    """The first token whose KV it moves."""
    late: int
    """Steps that it takes; 0 for none, beside the computation."""
    bad: list[int] = field(default_factory=list)
    """Places in the one table that do not come."""
    lost: bool = False
    """Whether nothing of it comes, which is said of the request and not of its blocks."""


@dataclass
class Said(KVConnectorMetadata):
    """What a step begins."""

    loads: list[Transfer]
    sends: list[Transfer]


class StandIn(KVConnectorBase_V1, SupportsHMA):
    """Both halves.

    `kv_transfer_params` of a request has "afar": {"tokens": how many it has of the prompt,
    "late": steps that a load takes, 0 for one beside the computation, "bad": places of blocks that
    do not come, "lost": whether nothing comes, "unsure": how often it does not know yet, "again":
    whether it loads more than once}; and "send": steps for which a peer reads what has ended.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.size = vllm_config.cache_config.block_size
        self.asked: dict[str, int] = {}
        self.said = Said([], [])
        self.rank: Any = None
        """The rank whose blocks it moves, where it is a worker."""
        self.loading: list[Transfer] = []
        self.sending: list[Transfer] = []
        self.received: set[str] = set()
        self.sent: set[str] = set()
        self.errors: set[int] = set()
        self.lost: set[str] = set()
        self.counts: dict[str, int] = {}

    # -- in the scheduler's process ------------------------------------------------------

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Offers what its peer has."""
        asks = (request.kv_transfer_params or {}).get("afar")
        if asks is None or asks.get("done"):
            return 0, False
        if asks.get("unsure", 0) > 0:
            asks["unsure"] -= 1
            return None, False
        self.asked[request.request_id] = num_computed_tokens
        most = min(asks["tokens"], request.num_prompt_tokens)
        if not asks["late"] or len(self._kv_cache_config.kv_cache_groups) > 1:
            # vLLM computes a token of each request that runs, for which a window may need a block
            # more than for the next one.
            most = min(most, request.num_tokens - 1)
        count = most - num_computed_tokens
        return (count, asks["late"] > 0) if count > 0 else (0, False)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Begins a load."""
        if not num_external_tokens:
            return
        asks = request.kv_transfer_params["afar"]
        asks["done"] = not asks.get("again")
        first = self.asked[request.request_id]
        last = first + num_external_tokens
        tokens = list(request.all_token_ids[:last])
        bad = [first // self.size + at for at in asks.get("bad", ())]
        tables = [list(ids[: -(-last // self.size)]) for ids in blocks.get_block_ids()]
        # Of several groups vLLM is told of the request alone.
        bad = [at for at in bad if at < len(tables[0])] if len(tables) == 1 else []
        lost = bool(asks.get("lost"))
        load = Transfer(request.request_id, tables, tokens, first, asks["late"], bad, lost)
        # It comes whole the next time; and a prefiller is asked once, as NIXL does.
        asks["bad"], asks["lost"] = (), False
        request.kv_transfer_params["do_remote_prefill"] = False
        self.said.loads.append(load)

    def build_connector_meta(self, scheduler_output: Any) -> Said:
        """Says what begins."""
        said, self.said = self.said, Said([], [])
        return said

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Sends what has ended, and was not aborted."""
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """The same, of all groups of layers."""
        late = (request.kv_transfer_params or {}).get("send")
        ended = (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)
        if not late or request.status not in ended or not block_ids[0]:
            return False, None
        tokens = list(request.all_token_ids[: request.num_computed_tokens])
        tables = [list(ids[: -(-len(tokens) // self.size)]) for ids in block_ids]
        self.said.sends.append(Transfer(request.request_id, tables, tokens, 0, late))
        return True, {"peer": list(tables[0])}

    # -- beside the model ----------------------------------------------------------------

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Begins what the step says, and goes on with what is on its way."""
        # Each rank has its own, as where they are processes.
        said = deepcopy(self._get_connector_metadata())
        for load in said.loads:
            self.count("others' loads beside the computation" if not load.late else "others' loads")
            self.count("others' loads that fail", int(bool(load.bad) or load.lost))
            self.count("others' loads that are lost", int(load.lost))
            for ids in load.tables:
                self.rank.spoil([id_ for id_ in ids[load.first // self.size :] if id_])
            # Ranks are not alike.
            load.late += self.rank.number if load.late else 0
        self.loading += said.loads
        self.sending += said.sends
        self.count("sends", len(said.sends))
        for load in self.loading:
            load.late -= 1
            if load.late <= 0:
                self.land(load)
        for send in self.sending:
            send.late -= 1
            if send.late <= 0:
                self.rank.check(send.name, send.tables, send.tokens)
                self.sent.add(send.name)
        self.loading = [load for load in self.loading if load.late > 0]
        self.sending = [send for send in self.sending if send.late > 0]

    def count(self, what: str, number: int = 1) -> None:
        """Counts what has happened, on the first rank."""
        self.counts[what] = self.counts.get(what, 0) + number

    def land(self, load: Transfer) -> None:
        """Ends a load."""
        if load.lost:
            self.lost.add(load.name)
            self.received.add(load.name)
            return
        self.rank.bring(load.name, load.tables, load.tokens, load.first)
        bad = [load.tables[0][at] for at in load.bad]
        self.rank.spoil(bad)
        self.errors.update(bad)
        if load.late == 0:
            self.received.add(load.name)
        else:
            # Beside the computation: rows that read it now have no answer.
            self.rank.excused.update(bad)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Does nothing: what is loaded beside the computation has come before it."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Does nothing."""

    def wait_for_save(self) -> None:
        """Does nothing."""

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Names what has come, and what was read."""
        sent, self.sent = self.sent, set()
        received, self.received = self.received, set()
        return sent or None, received or None

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Names the loads that are lost, too, as NIXL does."""
        results = super().get_transfer_results(finished_req_ids)
        results.failed_recving, self.lost = self.lost, set()
        return results

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Names blocks that have not come."""
        errors, self.errors = self.errors, set()
        return errors
