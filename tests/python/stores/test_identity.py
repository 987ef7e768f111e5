"""The identity of values: that of a disk tier, and another one for all that differs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from blockyard._core import Misuse
from blockyard.crane.tiers.disk import DiskTier
from blockyard.stores.identity import fields_of, number_of, read_text, text_of

pytestmark = pytest.mark.law("INV-35a")

NAMES = {"model": 'a "model"\nof two lines', "weights": "v1"}
SHAPE: dict[str, Any] = {"layers": 2, "kv_heads": 2, "head_dim": 8, "block_size": 4}


def config(names: Mapping[str, str] = NAMES, **more: Any) -> by.Config:
    shape = {name: more.pop(name, value) for name, value in SHAPE.items()}
    for name in ("dtype", "ranks"):
        if name in more:
            shape[name] = more.pop(name)
    return by.Config(layout=by.KVLayout.llama(**shape), device=9, namespace=names, **more)


def number(made: by.Config) -> int:
    assert made.layout is not None
    return number_of(fields_of(made.identity, made.layout))


@pytest.mark.parametrize("ranks", [1, 2])
def test_it_is_that_of_a_disk_with_the_same_fields(tmp_path: Path, ranks: int) -> None:
    made = config(ranks=ranks)
    assert made.layout is not None
    tier = DiskTier(made.layout, tmp_path, blocks=1, identity=made.identity)
    try:
        (folder,) = tier.folders
        assert f"{number(made):016x}" == folder.name
    finally:
        tier.close()


def test_whatever_differs_has_another() -> None:
    others = [
        config(),
        config({**NAMES, "model": "another"}),
        config({**NAMES, "weights": "v2"}),
        config({**NAMES, "tenant": "one"}),
        config(dtype="float32"),
        config(ranks=2),
        config(block_size=8),
        config(layers=3),
        config(key_hash="xxh3"),
        config(groups=2, group=1),
    ]
    assert len({number(one) for one in others}) == len(others)
    assert number(config()) == number(config())


@pytest.mark.parametrize("missing", ["model", "weights"])
def test_a_namespace_without_model_or_weights_is_refused(missing: str) -> None:
    names = {name: value for name, value in NAMES.items() if name != missing}
    for given in (names, {**names, missing: ""}):
        with pytest.raises(Misuse, match=f"names no {missing}"):
            number(config({"other": "x", **{k: v for k, v in given.items() if v}}))


def test_weights_at_a_path_count_by_their_content(tmp_path: Path) -> None:
    layout = by.KVLayout.llama(**SHAPE)
    found = set()
    for place, content in (("a", b"one"), ("b", b"one"), ("c", b"two")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "model.safetensors").write_bytes(content)
        fields = fields_of({"model": "m", "weights": tmp_path / place}, layout)
        assert str(tmp_path) not in str(fields)
        found.add(number_of(fields))
    assert len(found) == 2


def test_its_text_is_read_as_it_was_written() -> None:
    made = config()
    assert made.layout is not None
    fields = fields_of(made.identity, made.layout)
    assert read_text(text_of(fields)) == dict(fields)


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"1", b'{"fields": 1}', b'{"fields": []}', b"\xff\xfe", b"[" * 100_000],
)
def test_what_is_no_text_of_an_identity_names_nothing(text: bytes) -> None:
    assert read_text(text) is None
