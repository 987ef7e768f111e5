"""Groups of layers as vLLM has them: their kinds, blocks and shares, and what is refused."""

from typing import Any

import pytest

import blockyard as by
from blockyard.connectors.vllm import Blockyard
from blockyard.connectors.vllm.compatibility import Facts, facts
from blockyard.connectors.vllm.groups import layered
from blockyard.connectors.vllm.hybrid_manager import may_have_groups, switched_off
from blockyard.connectors.vllm.identity import fingerprint_of
from blockyard.connectors.vllm.settings import Settings
from blockyard.shared.layout import Plane
from vllm_front import SIZE, Drafts, no_torch, vllm_config
from vllm_groups import PAGE, chunk, full, kv_of, latent, names, several, state, window
from vllm_stub import Recorded

__all__ = ["no_torch"]

GEMMA = (*[window()] * 5, full())
MIXED = (window(), state(), full(), chunk(), latent())


def known_of(*groups: Any, changes: dict[str, Any] | None = None, **more: Any) -> Facts:
    return facts(vllm_config(**(changes or {})), kv_of(*groups, **more), version="0.33.0")


def place(layers: list[str], page: int, blocks: int = 32) -> Any:
    """Where vLLM puts layers, one layer after the other."""
    strides = {"layer_stride": page * blocks, "block_stride": page}
    return Recorded("KVCacheTensor", layers=layers, **strides)


def test_the_first_group_of_full_attention_is_ours_first_whatever_vllms_number() -> None:
    known = known_of(*MIXED)
    groups = known.groups
    assert groups is not None
    assert groups.numbers == (2, 0, 1, 3, 4)
    assert [str(group) for group in groups] == [
        "Full",
        "SlidingWindow of 8 tokens",
        "RecurrentState",
        "ChunkedAttention of 8 tokens",
        "Full",
    ]
    assert known.layers == tuple(tuple(names(at)) for at in (2, 0, 1, 3, 4))
    assert known.layout == groups[0].layout
    # A state's page is padded to attention's, and what is behind it is nobody's.
    assert [group.layout.block_bytes for group in groups] == [128, 128, 80, 128, 128]


def test_one_group_is_as_it_was() -> None:
    known = known_of(full())
    assert known.groups is None
    assert known.layers == (tuple(names(0)),)
    assert known.layout.planes == (Plane("kv", 2, PAGE),)
    assert known.namespace["layout"]["kind"] == "FullAttentionSpec"
    assert known.namespace["layout"]["layers"] == 2
    assert known.namespace["layout"]["page"] == PAGE


def test_a_drafters_last_tokens_make_a_window_longer() -> None:
    known = known_of(full(), window(8, extra_retained_tokens=2))
    assert known.groups is not None
    assert str(known.groups[1]) == "SlidingWindow of 10 tokens"


@pytest.mark.parametrize("layout", ["LBNHC", "BLNHC"])
def test_layers_with_pages_of_their_own_are_planes_of_one_block(layout: str) -> None:
    """A worker has each layer's spec; vLLM's scheduler has the first one's, and the places."""
    specs = [full(64), full(96), full(64)]
    places = [place(["layer 0", "layer 2"], 64), place(["layer 1"], 96)]
    if layout == "BLNHC":
        for one, page in zip(places, (64, 96), strict=True):
            one.layer_stride, one.block_stride = page, 224
    more: dict[str, Any] = {"kv_cache_tensors": places, "kv_cache_layout": layout}
    workers = kv_of(several(*specs), **more)
    schedulers = kv_of(specs[0], **more)
    schedulers.kv_cache_groups[0].layer_names = ["layer 0", "layer 1", "layer 2"]
    for kv in (workers, schedulers):
        found = layered(kv, ranks=1, stages=1)
        assert found.groups is None
        assert found.layers == (("layer 0", "layer 2", "layer 1"),)
        assert found.layouts[0].planes == (Plane("kv", 2, 64), Plane("kv.1", 1, 96))


def test_ranks_that_have_kv_alike_share_it_by_group() -> None:
    known = known_of(latent(), state(), changes={"tensor_parallel_size": 2}, kv_tp_replicas=1)
    assert known.groups is not None
    assert [group.layout.planes[0].replicated for group in known.groups] == [True, False]


@pytest.mark.parametrize(
    ("groups", "more", "says"),
    [
        ([], {}, "no layer of this model keeps KV"),
        ([window()], {}, "SlidingWindowSpec alone: models in which no group has full attention"),
        ([window(), state()], {}, "SlidingWindowSpec, MambaSpec alone"),
        ([state(mode="none")], {}, "MambaSpec alone: models in which no group has full attention"),
        ([full(), state(mode="none")], {}, "group 1 .MambaSpec. has mamba_cache_mode = 'none'"),
        ([full(), state(mode="none")], {}, "start with --enable-prefix-caching"),
        ([full(), window(block_size=8)], {}, "blocks of 4 in group 0, 8 in group 1 tokens"),
        ([full(), window(block_size=8)], {}, "add --disable-hybrid-kv-cache-manager"),
        ([full(), state(block_size=8)], {}, "leave --mamba-block-size out"),
        ([full(), window()], {"hash_block_size": 2}, "leave --prefix-match-unit out"),
        ([full(), window()], {"prefix_cacheable_group_ids": (0,)}, "group 1 .SlidingWindowSpec.*"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    groups: list[Any], more: dict[str, Any], says: str
) -> None:
    with pytest.raises(by.Unsupported, match=says):
        known_of(*groups, **more)


@pytest.mark.parametrize(
    "kind",
    ["CrossAttentionSpec", "EncoderOnlyAttentionSpec", "CircularBufferSpec", "RSWASpec", "Another"],
)
def test_a_kind_that_is_not_kept_is_named_with_its_group(kind: str) -> None:
    other = type(kind, (), {"block_size": SIZE, "page_size_bytes": PAGE})()
    with pytest.raises(by.Unsupported, match=rf"group 1 \({kind}\): .*without this connector"):
        known_of(full(), other)


def test_stages_of_a_pipeline_have_one_group() -> None:
    with pytest.raises(
        by.Unsupported, match=r"= 2 with 2 KV cache groups: .*tensor parallel ranks"
    ):
        known_of(full(), window(), changes={"pipeline_parallel_size": 2})


def test_a_drafter_that_looks_ahead_beside_states_is_refused() -> None:
    ahead = {"speculative_config": Drafts(ahead=True)}
    assert known_of(*GEMMA, changes=ahead).again == 1
    with pytest.raises(by.Unsupported, match=r"beside recurrent states.*--speculative-config"):
        known_of(full(), state(), changes=ahead)


# -- shares ------------------------------------------------------------------------------


def read(
    *groups: Any, changes: dict[str, Any] | None = None, longest: int = 64, **extra: Any
) -> tuple[Settings, tuple[by.Config, ...], by.Groups]:
    known = known_of(*groups, changes=changes)._replace(longest=longest)
    settings, configs = Settings.read({"host": "64 KiB"} | extra, known)
    assert known.groups is not None
    return settings, configs, known.groups


def test_memory_is_divided_by_what_a_typical_request_needs() -> None:
    _, configs, _ = read(full(), window(), typical=64)
    # A full block and a window's are alike: 16 blocks, and two checkpoints of 2.
    assert [config.host_blocks for config in configs] == [410, 102]
    assert [config.group for config in configs] == [0, 1]
    assert [config.linked for config in configs] == [True, False]
    _, configs, _ = read(full(), window(), split=[1, 3])
    assert [config.host_blocks for config in configs] == [128, 384]
    _, configs, _ = read(window(), full(), host=[40, 50])
    assert [config.host_blocks for config in configs] == [50, 40]


def test_replicas_of_a_machine_divide_bytes() -> None:
    replica = {"data_parallel_size": 2, "data_parallel_size_local": 2}
    _, configs, _ = read(full(), window(), changes=replica, host="128 KiB", split=[1, 3])
    assert [config.host_blocks for config in configs] == [128, 384]
    _, configs, _ = read(full(), window(), changes=replica, host=["64 KiB", "16 KiB"])
    assert [config.host_blocks for config in configs] == [256, 64]
    _, configs, _ = read(full(), window(), changes=replica, host=["64 KiB/rank", 9])
    assert [config.host_blocks for config in configs] == [512, 9]
    with pytest.raises(by.TooLarge, match="are for one of 2 replicas on this machine"):
        read(full(), window(), changes=replica, host="2 KiB")


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"disk": [16, 0]}, r"disk = \[16, 0\]: group 1 .SlidingWindow of 8 tokens. has no block"),
        ({"disk": [0, 16]}, r"disk = \[0, 16\]: group 0 .Full. has no block of it"),
        ({"host": [16, 0], "disk": [16, 16]}, r"host = \[16, 0\]: group 1 .* has no block of it"),
    ],
)
def test_each_group_needs_a_part_of_the_disk(extra: dict[str, Any], says: str) -> None:
    with pytest.raises(by.Misuse, match=says):
        read(full(), window(), disk_path="/kv", namespace={"weights": "v1"}, **extra)


@pytest.mark.parametrize(
    ("extra", "error", "says"),
    [
        ({"host": 64}, by.Misuse, "host = 64: a number of blocks does not say which"),
        ({"host": 0}, by.Misuse, "host = 0 without a disk"),
        ({"split": [1]}, by.Misuse, r"1 share for 2 groups; give .*, like \[1, 4\]"),
        ({"split": 0.5}, by.Misuse, "split = 0.5: it is no list of shares; give one for"),
        ({"split": [1, "2"]}, by.Misuse, "split of group 1 = '2': must be a number above 0"),
        ({"typical": 0}, by.Misuse, "typical = 0"),
        ({"typical": "8k"}, by.Misuse, "typical = '8k'"),
        (
            {"host": "2 KiB"},
            by.TooLarge,
            "group 0 .Full. .*_len = 64 .*give host=.*--max-mo",
        ),
        (
            {"host": "2 KiB", "preempt": "recompute"},
            by.Misuse,
            r"group 1 .SlidingWindow of 8 tokens. has 3 .*two checkpoints.*give host='.* MiB'",
        ),
    ],
)
def test_memory_that_does_not_do_is_refused_with_what_would(
    extra: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        read(full(), window(), **extra)


def test_one_group_has_nothing_to_divide() -> None:
    with pytest.raises(by.Misuse, match="there is nothing to divide; leave it out"):
        Settings.read({"host": 64, "split": [1, 2]}, known_of(full()))
    with pytest.raises(by.Misuse, match=r"host = \[64\]: .*give one size, like"):
        Settings.read({"host": [64]}, known_of(full()))
    assert Settings.read({"host": 64, "typical": 100}, known_of(full()))[1][0].host_blocks == 64


def test_the_line_at_the_start_has_each_group_by_both_numbers() -> None:
    settings, configs, groups = read(window(), state(), full(), split=[1, 1, 2])
    said = settings.said(configs, groups)
    assert said.startswith(
        "Blockyard keeps preempted requests, and offloads full blocks as requests end, below "
        "vLLM's 32 blocks of 4 tokens on each of 1 ranks. Folders of a disk count groups of layers "
        "from the first of full attention on: group 0 is vLLM's group 2 (Full): 2"
    )
    assert "; group 1 is vLLM's group 0 (SlidingWindow of 8 tokens): 128 blocks of 128 B, " in said
    assert "; group 2 is vLLM's group 1 (RecurrentState): 204 blocks of 80 B, " in said
    assert said.endswith(
        "that vLLM names: where it names all, a request that comes back computes up to 4 "
        "tokens again"
    )


def test_each_group_counts_in_the_identity() -> None:
    def prints(*groups: Any) -> list[str]:
        return [fingerprint_of(config) for config in read(*groups)[1]]

    said = [prints(full(), window()), prints(full(), window(12)), prints(full(), window(page=128))]
    said += [prints(full(), state()), prints(full(), full())]
    assert prints(full(), window()) == said[0]
    assert len({one for some in said for one in some}) == 10


# -- vLLM's hybrid manager -----------------------------------------------------------------


def text(*kinds: str, **more: Any) -> dict[str, Any]:
    """The configuration of a model with these layers."""
    return {"hf_text_config": type("Text", (), {"layer_types": list(kinds)} | more)()}


GEMMA_27B = text(*["sliding_attention"] * 52, *["full_attention"] * 10, sliding_window=1024)
OFF = {"disable_hybrid_kv_cache_manager": True}


def test_where_the_hybrid_manager_is_off_the_start_says_what_it_costs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = vllm_config(**GEMMA_27B, **OFF, max_model_len=32768)
    said = switched_off(config, None)
    assert said is not None
    assert "52 of 62 layers keep all tokens in place of a window" in said
    assert "max_model_len = 32,768 tokens takes 5.3 times as much memory, in vLLM and" in said
    assert said.endswith("; leave --disable-hybrid-kv-cache-manager out")
    assert "switched it off for NixlConnector, leave that one" in (
        switched_off(config, "NixlConnector") or ""
    )
    roles = Blockyard.__init__.__globals__["KVConnectorRole"]
    config = vllm_config(**GEMMA_27B, **OFF, kv_connector_extra_config={"host": 64})
    Blockyard(config, roles.SCHEDULER, kv_of(full()))
    assert "hybrid KV cache manager is off" in caplog.text


def test_chunks_need_a_variable_of_vllms() -> None:
    chunks = text("chunked_attention", "full_attention", attention_chunk_size=8192)
    said = switched_off(vllm_config(**chunks, **OFF, max_model_len=16384), None)
    assert said is not None
    assert "takes 1.3 times as much memory" in said
    assert "; set VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE=1, and leave" in said
    assert said.endswith("--disable-hybrid-kv-cache-manager out if you gave it")


@pytest.mark.parametrize(
    ("every", "says"),
    [
        (0, "= 0: vLLM names only the state at the last boundary of the prompt, so a preempted"),
        (64, "= 64: vLLM names a state for every 64 tokens, so a preempted request computes up to"),
        (SIZE, None),
        (None, None),
    ],
)
def test_the_start_says_where_vllm_names_few_states(
    caplog: pytest.LogCaptureFixture, every: int | None, says: str | None
) -> None:
    roles = Blockyard.__init__.__globals__["KVConnectorRole"]
    config = vllm_config(
        prefix_cache_retention_interval=every, kv_connector_extra_config={"host": "1 MiB"}
    )
    Blockyard(config, roles.SCHEDULER, kv_of(full(), state()))
    assert ("prefix_cache_retention_interval" in caplog.text) == (says is not None)
    if says is not None:
        assert says in caplog.text
        assert f"start vLLM with --prefix-cache-retention-interval {SIZE}, its" in caplog.text


@pytest.mark.parametrize(
    ("config", "expects"),
    [
        ({}, False),
        (text("full_attention"), False),
        (text("sliding_attention"), False),
        (GEMMA_27B, True),
        ({"is_hybrid": True}, True),
        ({**GEMMA_27B, **OFF}, False),
    ],
)
def test_a_front_end_sees_from_the_configuration_whether_there_may_be_groups(
    config: dict[str, Any], *, expects: bool
) -> None:
    made = vllm_config(**config)
    assert may_have_groups(made) == expects
    assert switched_off(made, None) is None or made.scheduler_config.disable_hybrid_kv_cache_manager
