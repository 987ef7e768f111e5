"""Every option of vLLM and SGLang is in the identity or out of it, with a reason."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from blockyard.connectors.effective import Mark, digest, plain
from blockyard.connectors.sglang import server_args as sglang
from blockyard.connectors.vllm import environment
from blockyard.connectors.vllm import options as vllm

HERE = Path(__file__).parent
MARKS: dict[str, tuple[Mark, ...]] = {
    "vllm_0_33": vllm.IN + vllm.OUT + environment.IN + environment.OUT,
    "sglang_0_5_23": sglang.IN + sglang.OUT,
}


def recorded(engine: str) -> dict[str, str]:
    return dict(json.loads((HERE / f"{engine}.json").read_text("utf-8"))["options"])


def unlike(options: Mapping[str, str], marks: tuple[Mark, ...]) -> list[tuple[str, str]]:
    """The options that are not marked once, of a record or of the marks."""
    seen = Counter(
        (part, name)
        for mark in marks
        for part, names in mark.options.items()
        for name in names.split()
    )
    known = {(part, name) for part, names in options.items() for name in names.split()}
    return sorted(one for one in known | set(seen) if one not in known or seen[one] != 1)


@pytest.mark.parametrize("engine", MARKS)
def test_every_recorded_option_is_marked_once(engine: str) -> None:
    assert unlike(recorded(engine), MARKS[engine]) == []
    assert all(mark.reason and mark.options for mark in MARKS[engine])


@pytest.mark.parametrize("engine", MARKS)
def test_an_option_that_an_engine_gains_is_noticed(engine: str) -> None:
    options = recorded(engine)
    assert sum(len(names.split()) for names in options.values()) > 400
    for part in options:
        more = options | {part: f"{options[part]} is_new"}
        assert unlike(more, MARKS[engine]) == [(part, "is_new")]
    assert unlike(options | {"NewConfig": "is_new"}, MARKS[engine]) == [("NewConfig", "is_new")]


def test_a_configuration_is_plain_and_without_places() -> None:
    class Odd:
        pass

    def said(folder: str) -> object:
        return plain(
            {
                "b": {3, 1},
                "a": (folder, f"{folder}/x", f"{folder}x", Odd(), Odd, None, 1.5),
                "name_or_path": folder,
                "inside": [{"_name_or_path": folder}],
                7: Path("/kept"),
            },
            folder,
        )

    first = said("/models/a")
    assert json.loads(json.dumps(first)) == first
    assert digest(first) == digest(json.loads(json.dumps(first)))
    assert "name_or_path" not in json.dumps(first)
    assert "0x" not in json.dumps(first)
    assert digest(said("/models/b")) != digest(first), "/models/bx is no path into it"


def test_variables_of_sglang_are_out_by_what_they_are_about() -> None:
    out = sglang.ENVIRONMENT_OUT
    for name in ("HF_HUB_DISABLE_XET", "SGLANG_LOG_GC", "SGLANG_TCP_STORE_PORT", "SGLANG_IS_IN_CI"):
        assert out.fullmatch(name)
    for name in ("SGLANG_USE_AITER", "SGLANG_INT4_WEIGHT", "SGLANG_USE_HND_KVCACHE"):
        assert not out.fullmatch(name)
