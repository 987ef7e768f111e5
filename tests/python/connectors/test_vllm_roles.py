"""The roles kv_producer and kv_consumer inside vLLM: what one engine has computed another loads."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

import blockyard as by
from blockyard.connectors.vllm import Blockyard, handing_over
from blockyard.connectors.vllm.metrics import rank_stats, scheduler_stats
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.tiers.peers import Peers
from blockyard.testing import ScriptedCopier, fail
from fake_nixl import road
from handover_rig import Relay
from vllm_front import SIZE, Ended, Front, idle, kv_config, no_torch, vllm_config

__all__ = ["no_torch", "road"]

PROMPT = list(range(4 * SIZE))
IDS = [3, 4, 5, 6]
WEIGHTS = {"weights": "v1"}
PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}


class Engine(Front):
    """Both halves, in one role."""

    def __init__(
        self,
        role: str,
        changes: dict[str, Any] | None = None,
        copier: Any = None,
        **extra: Any,
    ) -> None:
        given = {"namespace": WEIGHTS} | extra
        plain = copier or ThreadCopier(workers=0)
        own = {("device", "host"): plain, ("host", "device"): plain}
        super().__init__(own, changes={"kv_role": role, **(changes or {})}, **given)
        said = self.worker.get_handshake_metadata()
        self.scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): said})

    @property
    def handing(self) -> Any:
        return self.scheduler.front.handing

    def prefilled(self, name: str, tokens: list[int], ids: list[int], **more: Any) -> Any:
        """Computes a prompt, whose blocks have their own number; returns what is said."""
        one = self.request(name, tokens, **({"kv_transfer_params": PREFILL} | more))
        self.scheduler.on_new_request(one)
        assert self.begin(one, ids) == 0
        self.step({one: (ids, len(tokens))}, write={at: 10 + at for at in ids})
        one.num_tokens += 1
        return self.scheduler.request_finished(one, ids[: len(tokens) // SIZE])

    def steps_until(self, condition: Any) -> None:
        """Steps until it holds."""
        until = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < until
            self.step()
            time.sleep(1e-3)

    def decoding(self, name: str, tokens: list[int], params: Any, **more: Any) -> Any:
        """A request that has come from a router."""
        one = self.request(name, tokens, kv_transfer_params=params, **more)
        self.scheduler.on_new_request(one)
        return one

    def matched(self, one: Any) -> int:
        """Tokens that are there of a request, as soon as that is known."""
        until = time.monotonic() + 20
        while (found := self.scheduler.get_num_new_matched_tokens(one, 0)[0]) is None:
            assert time.monotonic() < until
            self.step()
            time.sleep(1e-3)
        return int(found)

    def loaded(self, one: Any, ids: list[int]) -> set[int]:
        """Loads a request; returns the blocks that have not come."""
        found, missing = self.matched(one), set[int]()
        assert self.begin(one, ids) == found > 0
        until = time.monotonic() + 20
        while True:
            said = self.step()
            missing |= said.invalid_block_ids
            if one.request_id in said.finished_recving:
                return missing
            assert time.monotonic() < until
            time.sleep(1e-3)

    def block(self, at: int) -> list[int]:
        return sorted({int(value) for tensor in self.kv.values() for value in tensor[at]})

    def close(self) -> None:
        self.worker.shutdown()
        self.scheduler.shutdown()


@pytest.fixture
def made() -> Iterator[list[Engine]]:
    engines: list[Engine] = []
    yield engines
    for one in engines:
        one.close()


def pair(made: list[Engine], offers_by: str = "tcp", **more: Any) -> tuple[Engine, Engine]:
    prefill = Engine("kv_producer", listen="127.0.0.1:0", carrier=offers_by)
    made.append(prefill)
    decode = Engine("kv_consumer", peers=[prefill.handing.prefill.listens], **more)
    made.append(decode)
    return prefill, decode


def test_what_a_prefill_engine_has_computed_is_loaded_by_a_decode_engine(
    made: list[Engine], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "blockyard"):
        prefill, decode = pair(made)
    at = prefill.handing.prefill.listens
    assert f"offers the KV of prompts at {at}" in caplog.text
    assert f"takes the KV of prompts from {at}" in caplog.text
    delays, params = prefill.prefilled("p", [*PROMPT, 1], [*IDS, 7])
    assert not delays
    assert params["do_remote_prefill"] is True
    assert set(params["blockyard.offer"]) == {"id", "at", "boot"}
    one = decode.decoding("d", [*PROMPT, 1], params)
    prefill.steps_until(lambda: prefill.handing.prefill.stats()["offers_held"] == 1)
    assert decode.loaded(one, [8, 9, 10, 11]) == set()
    assert [decode.block(at) for at in (8, 9, 10, 11)] == [[13], [14], [15], [16]]
    prefill.steps_until(lambda: prefill.handing.prefill.stats()["offers_ended_by_done"] == 1)
    assert prefill.scheduler.front.cache.stats()["held_blocks"] == 0
    assert prefill.held() == decode.held() == [0, 0, 0]
    assert decode.handing.decode.stats()["handover_taken"] == 1
    assert decode.scheduler.front.connector.stats()["cached_remote"] == 4 * SIZE


# -- what a prefill engine offers, and until when -------------------------------------------


def offered(engine: Engine, name: str = "p", tokens: Any = (*PROMPT, 1)) -> Any:
    """What is said of a request that was prefilled, when its blocks are held."""
    _, params = engine.prefilled(name, list(tokens), [*IDS, 7])
    engine.steps_until(lambda: engine.handing.prefill.stats()["offers_held"] == 1)
    return params


@pytest.mark.parametrize(
    "more",
    [
        {"kv_transfer_params": None},
        {"kv_transfer_params": {"do_remote_decode": False}},
        {"kv_transfer_params": {**PREFILL, "blockyard.offload": "none"}},
        {"status": Ended.FINISHED_ABORTED},
    ],
)
def test_nothing_is_offered_that_nobody_asked_for_or_that_was_aborted(
    made: list[Engine], more: dict[str, Any]
) -> None:
    made.append(Engine("kv_producer", listen="127.0.0.1:0"))
    (prefill,) = made
    assert prefill.prefilled("p", [*PROMPT, 1], [*IDS, 7], **more) == (False, None)
    assert prefill.handing.prefill.stats()["offers_made"] == 0


def test_a_prompt_without_a_full_block_is_not_offered(made: list[Engine]) -> None:
    made.append(Engine("kv_producer", listen="127.0.0.1:0"))
    assert made[0].prefilled("p", [1, 2], [3]) == (False, None)


def test_an_offer_that_nobody_takes_ends_and_its_blocks_are_free(made: list[Engine]) -> None:
    """In llm-d#1138 they were stranded for 480 s, in vllm#35943 for ever."""
    made.append(Engine("kv_producer", listen="127.0.0.1:0", unread=0.05))
    (prefill,) = made
    offered(prefill)
    prefill.steps_until(lambda: prefill.handing.prefill.stats()["offers_ended_by_unread"] == 1)
    assert prefill.scheduler.front.cache.stats()["held_blocks"] == 0


def test_an_idle_prefill_engine_does_not_step_for_long_for_an_offer_that_nobody_takes(
    made: list[Engine],
) -> None:
    """vLLM waits for the last step before it pauses, sleeps or ends."""
    made.append(Engine("kv_producer", listen="127.0.0.1:0"))
    (prefill,) = made
    now = [100.0]
    prefill.scheduler.front.clock = lambda: now[0]
    offered(prefill)
    assert prefill.scheduler.has_pending_push_work()
    now[0] += 2.1
    idle(prefill, 20)
    assert prefill.handing.prefill.stats()["offers_held"] == 1


def test_an_idle_prefill_engine_steps_until_its_offers_have_ended_and_tells_so(
    made: list[Engine],
) -> None:
    made.append(Engine("kv_producer", listen="127.0.0.1:0", unread=0.3))
    (prefill,) = made
    prefill.scheduler.front.clock = lambda: 100.0
    offered(prefill)
    idle(prefill)
    assert prefill.handing.prefill.stats()["offers_ended_by_unread"] == 1
    told: dict[str, Any] = {}
    for one in prefill.told:
        told |= one
    assert (told["offers_held"], told["offers_ended{by=unread}"]) == (0, 1)


def test_a_host_without_room_offers_what_has_come(made: list[Engine]) -> None:
    made.append(Engine("kv_producer", {"max_model_len": 8}, listen="127.0.0.1:0", host=2))
    (prefill,) = made
    offered(prefill)
    assert prefill.handing.prefill.stats()["offer_blocks_held"] == 2


def test_of_a_prompt_with_more_blocks_than_an_offer_may_have_the_first_are_offered(
    made: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handing_over, "MOST_BLOCKS", 3)
    made.append(Engine("kv_producer", listen="127.0.0.1:0"))
    offered(made[0])
    assert made[0].handing.prefill.stats()["offer_blocks_held"] == 3


def test_an_offer_that_nobody_takes_ends_at_its_own_time_while_others_come(
    made: list[Engine],
) -> None:
    """In sglang#23272 blocks were held for ever under steady load."""
    made.append(Engine("kv_producer", listen="127.0.0.1:0"))
    (prefill,) = made
    side = prefill.handing.prefill
    offered(prefill)
    for count in (1, 2, 3):
        # Each prompt brings the time of now with it, from which the next seconds count.
        assert side.sweep(time.monotonic() + 15) == 0
        start = 100 * count
        prefill.prefilled(f"p{count}", [*range(start, start + 4 * SIZE), 1], [*IDS, 7])
        prefill.steps_until(lambda count=count: side.stats()["offers_held"] == 1 + count)
    assert side.sweep(time.monotonic() + 16) == side.stats()["offers_ended_by_unread"] == 1
    assert side.stats()["offers_held"] == 3


def test_a_copy_that_fails_ends_what_was_promised(made: list[Engine]) -> None:
    failing = ScriptedCopier(ThreadCopier(workers=0), [fail(0)] * 3)
    made.append(Engine("kv_producer", listen="127.0.0.1:0", copier=failing))
    (prefill,) = made
    _, params = prefill.prefilled("p", [*PROMPT, 1], [*IDS, 7])
    assert "blockyard.offer" in params
    prefill.steps_until(lambda: prefill.handing.prefill.stats()["offers_ended_by_room"] == 1)
    assert prefill.held() == [0, 0, 0]


def test_a_reset_ends_all_offers_and_none_is_made_after_it(made: list[Engine]) -> None:
    made.append(Engine("kv_producer", listen="127.0.0.1:0"))
    (prefill,) = made
    offered(prefill)
    prefill.prefilled("q", [*range(50, 50 + 4 * SIZE), 1], [10, 11, 12, 13, 14])
    assert prefill.scheduler.reset_cache()
    prefill.steps_until(lambda: prefill.handing.prefill.stats()["offers_ended_by_cleared"] == 2)
    assert prefill.prefilled("r", [*PROMPT, 1], [*IDS, 7]) == (False, None)


# -- what a decode engine takes -------------------------------------------------------------


def test_a_prefill_engine_that_has_gone_costs_a_computation(made: list[Engine]) -> None:
    prefill, decode = pair(made, patience=0.2)
    params = offered(prefill)
    prefill.close()
    one = decode.decoding("d", [*PROMPT, 1], params)
    assert decode.matched(one) == 0
    assert decode.held() == [0, 0, 0]


def test_a_request_that_is_aborted_gives_its_offer_back(made: list[Engine]) -> None:
    prefill, decode = pair(made)
    params = offered(prefill)
    one = decode.decoding("d", [*PROMPT, 1], params)
    one.status = Ended.FINISHED_ABORTED
    decode.scheduler.request_finished(one, [])
    prefill.steps_until(lambda: prefill.handing.prefill.stats()["offers_ended_by_done"] == 1)
    assert decode.handing.decode.stats()["handover_waiting"] == 0


def test_a_block_that_does_not_come_is_a_shorter_prefix(made: list[Engine]) -> None:
    prefill, decode = pair(made)
    params = offered(prefill)
    one = decode.decoding("d", [*PROMPT, 1], params)
    assert decode.matched(one) == 4 * SIZE
    prefill.scheduler.reset_cache()
    missing = decode.loaded(one, [8, 9, 10, 11])
    assert missing == {8, 9, 10, 11}
    # Asked again, it is computed: this has an end.
    assert decode.scheduler.get_num_new_matched_tokens(one, 0) == (0, False)
    assert decode.held() == [0, 0, 0]


def test_an_aborted_load_ends_though_the_prefill_engine_says_nothing_more(
    made: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In vllm#46283 the decode engine kept its blocks for ever."""
    defaults = Peers.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "timeout", 0.5)
    relay = Relay()
    prefill = Engine("kv_producer", listen="127.0.0.1:0", advertise=relay.address)
    decode = Engine("kv_consumer", peers=[relay.address])
    made += [prefill, decode]
    relay.target = prefill.handing.prefill.listens
    one = decode.decoding("d", [*PROMPT, 1], offered(prefill))
    assert decode.matched(one) == 4 * SIZE
    relay.most = relay.passed
    assert decode.begin(one, [8, 9, 10, 11]) == 4 * SIZE
    decode.step()
    one.status = Ended.FINISHED_ABORTED
    decode.scheduler.request_finished(one, [8, 9, 10, 11])
    decode.until("d")
    assert decode.held() == [0, 0, 0]
    relay.close()


def test_of_an_offer_that_has_ended_no_other_prompts_bytes_are_taken(made: list[Engine]) -> None:
    """In aws-do-eks#84 and vllm#52234 a read of blocks with other content was a good one."""
    small = {"max_model_len": 4 * SIZE}
    prefill = Engine("kv_producer", small, listen="127.0.0.1:0", host=4)
    decode = Engine("kv_consumer", small, peers=[prefill.handing.prefill.listens])
    made += [prefill, decode]
    one = decode.decoding("d", [*PROMPT, 1], offered(prefill))
    assert decode.matched(one) == 4 * SIZE
    assert prefill.handing.prefill.make_room()
    prefill.prefilled("q", [*range(50, 50 + 4 * SIZE), 1], [20, 21, 22, 23, 24])
    prefill.steps_until(lambda: prefill.handing.prefill.stats()["offers_held"] == 1)
    assert decode.loaded(one, [8, 9, 10, 11]) == {8, 9, 10, 11}
    assert [decode.block(at) for at in (8, 9, 10, 11)] == [[0]] * 4


def test_blocks_with_equal_tokens_come_each_to_its_own_place(made: list[Engine]) -> None:
    """In vllm#52617 all of a prompt came that repeats itself, and the answer was another one."""
    prefill, decode = pair(made)
    tokens = [7] * 4 * SIZE + [1]
    one = decode.decoding("d", tokens, offered(prefill, tokens=tokens))
    assert decode.loaded(one, [8, 9, 10, 11]) == set()
    assert [decode.block(at) for at in (8, 9, 10, 11)] == [[13], [14], [15], [16]]


@pytest.mark.parametrize(
    ("offer", "counts"),
    [
        ({"id": "0" * 32, "at": "10.9.9.9:7000", "boot": 1}, "foreign"),
        ({"id": "0" * 31, "at": "127.0.0.1:7000", "boot": 1}, "malformed"),
        ("an offer", "malformed"),
    ],
)
def test_what_is_no_offer_of_a_peer_is_computed_at_once(
    made: list[Engine], offer: Any, counts: str
) -> None:
    _, decode = pair(made)
    one = decode.decoding("d", [*PROMPT, 1], {"blockyard.offer": offer})
    assert decode.scheduler.get_num_new_matched_tokens(one, 0) == (0, False)
    assert decode.handing.decode.stats()[f"handover_{counts}"] == 1


def test_an_offer_of_another_prompt_is_given_back(made: list[Engine]) -> None:
    """In vllm#52234 answers came from another request's KV."""
    prefill, decode = pair(made)
    one = decode.decoding("d", [*range(70, 70 + 4 * SIZE), 1], offered(prefill))
    assert decode.matched(one) == 0
    prefill.steps_until(lambda: prefill.handing.prefill.stats()["offers_ended_by_done"] == 1)


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"namespace": {"weights": "v2"}}, "weights"),
        ({"changes": {"cache_dtype": "fp8"}}, "dtype"),
        ({"changes": {"dtype": "bfloat16"}}, "dtype"),
        ({"of": kv_config(kv_cache_layout="HND")}, "layout"),
    ],
)
def test_engines_that_differ_meet_by_the_name_of_the_field_and_the_client_is_answered(
    made: list[Engine], more: dict[str, Any], field: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In llm-d#2433 the client hung, in vllm#43523 the engine crashed."""
    prefill, decode = pair(made, **more)
    params = offered(prefill)
    with caplog.at_level("INFO", "blockyard"):
        one = decode.decoding("d", [*PROMPT, 1], params)
        assert decode.matched(one) == 0
    (peer,) = decode.handing._peers
    assert peer.why().startswith(f"{field} is ")
    assert decode.handing.decode.stats()["handover_gone"] == 1


@pytest.mark.usefixtures("road")
@pytest.mark.parametrize(("carrier", "sent"), [("nixl", 0), ("tcp", 4)])
def test_nixl_brings_the_bytes_where_both_sides_have_it(
    made: list[Engine], carrier: str, sent: int
) -> None:
    prefill, decode = pair(made, "nixl", carrier=carrier)
    one = decode.decoding("d", [*PROMPT, 1], offered(prefill))
    assert decode.loaded(one, [8, 9, 10, 11]) == set()
    assert [decode.block(at) for at in (8, 9, 10, 11)] == [[13], [14], [15], [16]]
    assert prefill.handing.prefill.stats()["offers_sent_blocks"] == sent
    prefill.steps_until(lambda: prefill.handing.prefill.stats()["offers_ended_by_done"] == 1)


@pytest.mark.usefixtures("road")
def test_a_prefill_engine_without_nixl_is_refused_by_the_name_of_the_field(
    made: list[Engine],
) -> None:
    prefill, decode = pair(made, "tcp", carrier="nixl")
    one = decode.decoding("d", [*PROMPT, 1], offered(prefill))
    # It is known before vLLM has given the request blocks to load into.
    assert decode.matched(one) == 0
    (peer,) = decode.handing._peers
    assert 'carrier is "tcp" there, and "nixl" here' in peer.why()
    assert decode.handing.decode.stats()["handover_gone"] == 1


def test_both_sides_in_one_engine(made: list[Engine]) -> None:
    prefill = Engine("kv_both", listen="127.0.0.1:0")
    made.append(prefill)
    at = prefill.handing.prefill.listens
    decode = Engine("kv_both", listen="127.0.0.1:0", peers=[at])
    made.append(decode)
    one = decode.decoding("d", [*PROMPT, 1], offered(prefill))
    assert decode.loaded(one, [8, 9, 10, 11]) == set()
    assert decode.prefilled("p", [*range(50, 50 + 4 * SIZE), 1], [20, 21, 22, 23, 24])[1]


def test_the_numbers_of_both_sides_come_with_vllms(made: list[Engine]) -> None:
    prefill, decode = pair(made)
    one = decode.decoding("d", [*PROMPT, 1], offered(prefill))
    decode.loaded(one, [8, 9, 10, 11])
    prefill.steps_until(lambda: prefill.handing.prefill.stats()["offers_ended_by_done"] == 1)
    now = [dict(engine.scheduler._reporter.read()) for engine in (prefill, decode)]
    assert now[0]["offers_ended{by=done}"] == 1
    assert now[1]["handover_offers{result=taken}"] == 1
    assert decode.worker.back._rank_stats()["remote_peer_got_blocks"] == 4
    told = {stat.family for stat in rank_stats(0, disk=False, peers=True)}
    assert {"peer_held_bytes", "peers_resting"} < told
    plain = {stat.metric for stat in scheduler_stats(("device", "host"), events=False)}
    assert plain.isdisjoint({"offers_held", "handover_waiting"})


def test_a_worker_of_another_process_is_refused(made: list[Engine]) -> None:
    made.append(Engine("kv_producer", listen="127.0.0.1:0"))
    (prefill,) = made
    said = prefill.worker.get_handshake_metadata()
    said.lent = 7
    fresh = Front(changes={"kv_role": "kv_producer"}, listen="127.0.0.1:0", namespace=WEIGHTS)
    with pytest.raises(by.Unsupported, match="executor-backend uni"):
        fresh.scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): said})
    fresh.worker.shutdown()


def test_vllm_frees_no_block_early_that_a_prefill_engine_loads_into(made: list[Engine]) -> None:
    """It defers that where it consumes KV: the next load must not meet a step in flight."""
    config = vllm_config(
        kv_role="kv_producer",
        kv_connector_extra_config={"host": 64, "namespace": WEIGHTS, "listen": "127.0.0.1:0"},
    )
    roles = Blockyard.__init__.__globals__["KVConnectorRole"]
    Blockyard(config, roles.SCHEDULER, kv_config())
    assert config.kv_transfer_config.kv_role == "kv_both"
    assert made == []


def test_two_requests_of_one_offer_load_it_one_after_the_other(made: list[Engine]) -> None:
    """In vllm#44294 they waited for each other for ever, in vllm#53049 both loaded at once."""
    prefill, decode = pair(made)
    params = offered(prefill)
    first, second = (decode.decoding(name, [*PROMPT, 1], params) for name in ("d", "e"))
    assert decode.matched(first) == 4 * SIZE
    assert decode.begin(first, [8, 9, 10, 11]) == 4 * SIZE
    assert decode.scheduler.get_num_new_matched_tokens(second, 0) == (None, False)
    came: set[str] = set()
    until = time.monotonic() + 20
    while "d" not in came:
        came |= decode.step().finished_recving
        assert time.monotonic() < until
        time.sleep(1e-3)
    assert decode.loaded(second, [12, 13, 14, 15]) == set()
    assert [decode.block(at) for at in (12, 13, 14, 15)] == [[13], [14], [15], [16]]
    prefill.steps_until(lambda: prefill.handing.prefill.stats()["offers_ended_by_done"] == 1)
    assert decode.handing.decode.stats()["handover_taken"] == 1
    assert decode.scheduler.front.cache.stats()["remote_idle"] == 0


def test_what_names_alone_say_is_taken_by_its_own_offer(made: list[Engine]) -> None:
    """An offer that has ended may have left them, and another may end before this one loads."""
    prefill, decode = pair(made)
    front = decode.scheduler.front
    one = decode.request("d", [*PROMPT, 1], kv_transfer_params=offered(prefill))
    keys = front._rows.keys(front._rows._new(one))
    front.cache.adopt(keys, 4)
    decode.scheduler.on_new_request(one)
    assert decode.loaded(one, [8, 9, 10, 11]) == set()
    assert front.cache.probe(keys).remote == 0
    assert decode.handing.decode.stats()["handover_taken"] == 1


def test_an_id_that_comes_twice_is_another_request(made: list[Engine]) -> None:
    prefill, decode = pair(made)
    params = offered(prefill)
    # vLLM has not heard of the end of the first, as where its client is gone.
    decode.decoding("d", [*PROMPT, 1], params)
    one = decode.decoding("d", [*PROMPT, 1], params)
    assert decode.matched(one) in {0, 4 * SIZE}
    one.status = Ended.FINISHED_ABORTED
    decode.scheduler.request_finished(one, [])
    prefill.steps_until(lambda: prefill.handing.prefill.stats()["offers_ended_by_done"] == 1)
    assert decode.handing.decode.stats()["handover_waiting"] == 0
