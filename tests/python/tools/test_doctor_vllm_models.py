"""What the doctor reads of a model: its groups of layers, what they need, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from test_doctor_vllm import failed, line, parsed, serve

from blockyard.tools.doctor.finding import Site
from blockyard.tools.doctor.model import Model, Wanted
from blockyard.tools.doctor.pinned import registration
from blockyard.tools.doctor.stand_ins import CHUNKED
from blockyard.tools.doctor.vllm import Serve
from wrong_flags import LLAMA

LATENT = LLAMA | {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_hidden_layers": 60}
GEMMA = LLAMA | {
    "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 6,
    "num_hidden_layers": 36,
    "sliding_window": 1024,
}
OFF = "--disable-hybrid-kv-cache-manager"
JAMBA = LLAMA | {"model_type": "jamba"}
MAMBA = {"model_type": "mamba", "num_hidden_layers": 24, "hidden_size": 768}
WHISPER = {"model_type": "whisper", "is_encoder_decoder": True, "num_hidden_layers": 6}
MTP = """--speculative-config '{"method": "mtp", "num_speculative_tokens": 1}'"""
EVERY = "--prefix-cache-retention-interval"
LLAMA_4 = LLAMA | {"model_type": "llama4_text", "attention_chunk_size": 8192}


@pytest.mark.parametrize(
    ("config", "extra", "more", "says", "do"),
    [
        (LLAMA, {"host": "8 GiB"}, "", "has 8192 blocks, and a tier below has 4096", "larger host"),
        (LLAMA, {"host": "1 MiB"}, "", "smaller than one block of 2,097,152 bytes", ""),
        (LLAMA, {"host": "64 GiB"}, "-pp 5", "this stage has 6 of the model's 32", "PARTITION"),
        (LATENT, {"host": "64 GiB"}, "-pp 2", "the same on all ranks", "tensor parallel"),
        (
            JAMBA,
            {"host": "9 GiB"},
            "--no-enable-prefix-caching",
            "mamba_cache_mode = 'none'",
            "start with --enable-prefix-caching",
        ),
        (
            LLAMA | {"layer_types": ["linear_attention", "full_attention"] * 16},
            {"host": "9 GiB"},
            "--disable-hybrid-kv-cache-manager",
            "beside recurrent states",
            "leave --disable-hybrid-kv-cache-manager out",
        ),
        (LLAMA | {"model_type": "mamba2"}, {"host": 9}, "", "MambaSpec alone", "without this"),
        (MAMBA, {"host": "9 GiB"}, "-tp 2", "MambaSpec alone", "without this connector"),
        (MAMBA, {"host": 9}, "--no-enable-prefix-caching", "MambaSpec alone", "without this"),
        (WHISPER, {"host": "9 GiB"}, "", "group 1 (CrossAttentionSpec)", "without this connector"),
        (JAMBA, {"host": ["9 GiB", "XiB"]}, "", "host = 'XiB'", "64 GiB"),
        (
            JAMBA,
            {"host": 4096},
            "",
            "host = 4096: a number of blocks does",
            "give the memory of all",
        ),
        (JAMBA, {"host": "9 blocks"}, "", "host = '9 blocks': a number", "give the memory of all"),
        (JAMBA, {"host": ["9 GiB"]}, "", "one size for several groups", "give a size for each"),
        (JAMBA, {"host": []}, "", "host = 0 without a disk", "64 GiB"),
        (JAMBA, {"host": 9}, MTP, "looks ahead (EAGLE, MTP) beside recurrent states", "leave --sp"),
        (GEMMA, {"host": ["9 GiB"] * 5}, "", "5 sizes for 6 groups", "each of the 6 groups"),
        (
            GEMMA,
            {"host": "9 GiB", "split": [1, 4]},
            "",
            "2 shares for 6",
            "like [1, 1, 1, 1, 1, 4]",
        ),
        (LLAMA, {"host": ["9 GiB"]}, "", "keep their KV alike", "give one size"),
        (
            GEMMA,
            {"host": "64 GiB"},
            "--block-size 32 --prefix-match-unit 16",
            "hashed by 16",
            "leave --prefix-match-unit out",
        ),
        (GEMMA, {"host": "9 GiB"}, "-pp 2", "= 2 with 6 KV cache groups", "use tensor parallel"),
        (GEMMA, {"host": "9 GiB"}, "-pp 2", "= 2 with 6 KV cache groups", "take more memory"),
        (GEMMA, {"host": 9}, "", "host = 9: a number of blocks does", "give the memory of all"),
        (GEMMA, {"host": "1 GiB"}, "", "group 5 (Full) has 1,215", "or more"),
        (
            LLAMA | {"model_type": "mistral", "sliding_window": 4096},
            {"host": 9},
            "",
            "SlidingWindowSpec alone",
            "without this connector",
        ),
    ],
)
def test_what_the_model_refuses_is_told_from_its_configuration(
    tmp_path: Path, config: dict[str, Any], extra: dict[str, Any], more: str, says: str, do: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (one,) = failed(serve(line(extra, more, model=str(tmp_path))))
    assert says in one.fact
    assert do in one.do


@pytest.mark.parametrize(
    ("config", "more", "environ", "level", "says", "do"),
    [
        (LLAMA, "", {}, "ok", "one group of layers", ""),
        (GEMMA, "", {}, "ok", "6 groups of layers", ""),
        (
            GEMMA,
            "--disable-hybrid-kv-cache-manager",
            {},
            "warn",
            "5.2 times as much",
            "leave --dis",
        ),
        (LLAMA_4, "", {}, "warn", "24 of 32 layers keep all tokens", f"set {CHUNKED}=1"),
        (LLAMA_4, OFF, {}, "warn", "24 of 32 layers keep all tokens", f"and leave {OFF} out"),
        (LLAMA_4, "", {CHUNKED: "1"}, "ok", "4 groups of layers", ""),
        (LLAMA_4, "--no-disable-hybrid-kv-cache-manager", {}, "fail", "24 of 32", f"{CHUNKED}=1"),
        (JAMBA, "", {}, "warn", "names only the state at the last", f"{EVERY} N, where N is"),
        (JAMBA, f"{EVERY} 1056", {}, "ok", "2 groups of layers", ""),
    ],
)
def test_what_vllms_hybrid_manager_does_is_told(
    tmp_path: Path,
    config: dict[str, Any],
    more: str,
    environ: dict[str, str],
    level: str,
    says: str,
    do: str,
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = line({"host": "64 GiB"}, f"{more} --max-model-len 32k", model=str(tmp_path))
    found = serve(command, environ)
    assert found["hybrid manager"].level == level
    assert says in found["hybrid manager"].fact
    assert do in found["hybrid manager"].do
    assert OFF in more.split() or f"leave {OFF}" not in found["hybrid manager"].do
    assert [one for one in failed(found) if one.name != "hybrid manager"] == []


@pytest.mark.parametrize(
    ("config", "extra"),
    [
        (GEMMA, {"host": ["9 GiB"] * 6}),
        (JAMBA, {"host": ["9 GiB", 1000], "typical": 100, "split": [1, 2]}),
        (JAMBA, {"host": "9 GiB", "disk": ["9 GiB", 1000], "disk_path": "/kv"}),
    ],
)
def test_a_size_for_each_group_is_right(
    tmp_path: Path, config: dict[str, Any], extra: dict[str, Any]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert failed(serve(line(extra, "--max-model-len 8k", model=str(tmp_path)))) == []


def test_a_model_that_is_refused_gets_no_advice_on_its_states(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MAMBA))
    found = serve(line({"host": "9 GiB"}, model=str(tmp_path)))
    for name, fact in (("hybrid manager", ""), ("settings", "the keys go together; ")):
        assert (found[name].level, found[name].fact) == ("unknown", f"{fact}the model is refused")


def test_a_window_that_the_configuration_does_not_tell_is_unknown(tmp_path: Path) -> None:
    told = {name: value for name, value in GEMMA.items() if name != "sliding_window"}
    (tmp_path / "config.json").write_text(json.dumps(told))
    found = serve(line({"host": "64 GiB"}, model=str(tmp_path)))
    assert failed(found) == []
    assert (found["model"].level, found["model"].fact) == (
        "unknown",
        "there is no sliding_window in its configuration",
    )


def test_the_model_is_described_by_group(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GEMMA))
    said = serve(line({"host": "64 GiB"}, "--max-model-len 32k", model=str(tmp_path)))["model"].fact
    assert said.startswith("group 0 (SlidingWindow of 1,024 tokens); group 1")
    assert said.endswith("; group 5 (Full); 384 KiB for 16 tokens in each group")
    (tmp_path / "config.json").write_text(json.dumps(JAMBA))
    said = serve(line({"host": "64 GiB"}, "", model=str(tmp_path)))["model"].fact
    assert said == "FullAttention, Mamba: the bytes of its states are seen in memory alone"
    settings = serve(line({"host": "64 GiB"}, "", model=str(tmp_path)))["settings"]
    assert settings.level == "unknown"
    assert "the bytes of the model's states are not known here" in settings.fact


@pytest.mark.parametrize(
    ("config", "counts"),
    [
        ({"model_type": "gemma2"}, [16, 16]),
        ({"model_type": "gemma3_text", "num_hidden_layers": 62}, [9, 9, 9, 9, 8, 8, 10]),
        ({"model_type": "cohere2"}, [8, 8, 8, 8]),
        ({"layer_types": ["sliding_attention", "full_attention"] * 16}, [16, 16]),
        # 12 and 13 are near enough to be two groups.
        (
            {"layer_types": ["full_attention", *["sliding_attention", "full_attention"] * 12]},
            [13, 12],
        ),
    ],
)
def test_layers_are_grouped_as_vllm_groups_them(config: dict[str, Any], counts: list[int]) -> None:
    text = LLAMA | {"sliding_window": 128} | config
    model = Wanted(name="m")._model(text)
    assert isinstance(model, Model)
    assert [one.number for one in model.groups] == counts


@pytest.mark.parametrize(
    ("config", "more", "host", "pinned", "shared"),
    [
        (LLAMA, "", 64 << 30, 64 << 30, 0),
        (LLAMA, "-tp 4", 64 << 30, 16 << 30, 0),
        (LLAMA, "-tp 4 -dp 2", 64 << 30, 8 << 30, 0),
        (GEMMA, "", 64 << 30, 64 << 30, 0),
        (GEMMA, "-tp 4", 64 << 30, 16 << 30, 0),
        (LATENT, "-tp 4", 64 << 30, 64 << 30, 64 << 30),
        (None, "-tp 4", 64 << 30, 16 << 30, 0),
        (None, "-tp 4 -dp 2", 64 << 30, 8 << 30, 0),
    ],
)
def test_what_the_machine_must_have_follows_from_the_flags(
    tmp_path: Path, config: dict[str, Any] | None, more: str, host: int, pinned: int, shared: int
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    command = line(
        {
            "host": "64 GiB",
            "disk": "1 TiB",
            "disk_path": ["/a", "/b"],
            "namespace": {"weights": "v1"},
        },
        more + " --max-model-len 32k",
        model=str(tmp_path),
    )
    asked = Serve(parsed(command)[0], {}).asked()
    replicas = 2 if "-dp" in more else 1
    close = 1 << 24
    assert abs(asked.host - host) < close
    assert abs(asked.pinned - pinned) < close
    assert abs(asked.shared - shared) < close
    assert abs(asked.disk - (1 << 40)) < close
    assert asked.paths == (Path("/a"), Path("/b"))
    assert asked.ranks == (4 if "-tp" in more else 1) * replicas
    assert failed(serve(command)) == []


@pytest.mark.parametrize(
    ("config", "level", "says"),
    [
        (LLAMA, "fail", "a rank pins 600 GiB in one piece"),
        (GEMMA, "ok", "in one piece"),
        (JAMBA, "unknown", "what each group of layers pins is not known here"),
    ],
)
def test_each_group_of_layers_is_pinned_in_a_piece_of_its_own(
    tmp_path: Path, config: dict[str, Any], level: str, says: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = line({"host": "600 GiB"}, "--max-model-len 32k", model=str(tmp_path))
    found = registration(Site(asked=Serve(parsed(command)[0], {}).asked()))
    assert (found.level, says in found.fact) == (level, True)
