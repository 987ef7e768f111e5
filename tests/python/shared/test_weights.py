"""What tells weights from others: their content, and neither time, path nor name."""

import json
import os
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from blockyard.shared.weights import SAMPLE, content, file_content, files_of, folder_of, stated
from yard import publish

TENSOR = 64 * SAMPLE
"""Bytes of each tensor of a shard."""


def shard(path: Path, tensors: int = 8, *, size: int = TENSOR, **changed: int) -> Path:
    """Writes a shard of safetensors; a tensor's byte at a place is changed by name and place."""
    header = {
        f"layer {at}": {
            "dtype": "U8",
            "shape": [size],
            "data_offsets": [at * size, at * size + size],
        }
        for at in range(tensors)
    }
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + tensors * size)
        for name, place in changed.items():
            at = int(name.removeprefix("layer_")) * size + place % size
            file.seek(8 + len(text) + at)
            file.write(b"\1")
    return path


def model(folder: Path, **changed: int) -> Path:
    """A model of two shards, its configuration, code and index, all of the year 1970."""
    folder.mkdir(parents=True)
    first, second = (f"model-0000{at}-of-00002.safetensors" for at in (1, 2))
    shard(folder / first, **changed)
    shard(folder / second)
    config = {"model_type": "llama", "rope_theta": 1e4, "_name_or_path": str(folder)}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling.py").write_text("SCALE = 1\n")
    index = {"weight_map": {"layer 0": first, "layer 1": second}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for file in folder.iterdir():
        os.utime(file, (0, 0))
    return folder


def test_what_is_downloaded_anew_into_another_folder_is_the_same(tmp_path: Path) -> None:
    first, second = model(tmp_path / "a"), model(tmp_path / "elsewhere" / "b")
    assert content(first) == content(second) == content(str(first)) is not None
    for name in ("tokenizer.json", "generation_config.json", "README.md", ".lock", "optimizer.pt"):
        (second / name).write_text("{}")
    (second / "original").mkdir()
    shard(second / "original" / "consolidated.safetensors")
    assert content(second) == content(first)


@pytest.mark.parametrize(
    "place", [0, SAMPLE - 1, TENSOR // 2, -SAMPLE, -1], ids=["first", "", "middle", "", "last"]
)
@pytest.mark.parametrize("tensor", [0, 5, 7])
def test_other_weights_of_the_same_shape_size_and_time_are_others(
    tmp_path: Path, tensor: int, place: int
) -> None:
    plain = model(tmp_path / "a")
    assert content(model(tmp_path / "b", **{f"layer_{tensor}": place})) != content(plain)


def test_what_a_sample_does_not_see_is_not_seen(tmp_path: Path) -> None:
    plain = model(tmp_path / "a")
    assert content(model(tmp_path / "b", layer_3=2 * SAMPLE)) == content(plain)


def test_configuration_code_and_header_count(tmp_path: Path) -> None:
    plain = model(tmp_path / "a")
    seen = {content(plain)}
    config = json.loads((plain / "config.json").read_text())
    changes: list[tuple[str, str]] = [
        ("config.json", json.dumps(config | {"rope_theta": 5e3})),
        ("modeling.py", "SCALE = 2\n"),
        ("preprocessor_config.json", '{"size": 224}'),
        ("preprocessor_config.json", '{"size": 336}'),
        ("hf_quant_config.json", "no JSON"),
    ]
    for name, text in changes:
        (plain / name).write_text(text)
        seen.add(content(plain))
    shard(plain / "model-00002-of-00002.safetensors", 9)
    seen.add(content(plain))
    assert len(seen) == len(changes) + 2
    (plain / "config.json").write_text(
        json.dumps(config | {"rope_theta": 5e3, "_commit_hash": "1"})
    )
    assert content(plain) in seen


def told_apart(*folders: Path) -> None:
    seen = {content(folder) for folder in folders}
    assert None not in seen
    assert len(seen) == len(folders)


def test_files_that_have_changed_places_are_others(tmp_path: Path) -> None:
    """As a rollback does: which file an engine loads is said by where it lies, and by an index."""
    for name, own, old in (("now", {}, {"layer_1": 1}), ("back", {"layer_1": 1}, {})):
        (tmp_path / name / "old").mkdir(parents=True)
        shard(tmp_path / name / "model.safetensors", **own)
        shard(tmp_path / name / "old" / "model.safetensors", **old)
    told_apart(tmp_path / "now", tmp_path / "back")
    for name, own, old in (("two", {}, {"layer_1": 1}), ("owt", {"layer_1": 1}, {})):
        (tmp_path / name).mkdir()
        shard(tmp_path / name / "model.safetensors", **own)
        shard(tmp_path / name / "model.v2.safetensors", **old)
    told_apart(tmp_path / "two", tmp_path / "owt")
    for name in ("v1", "v2"):
        (tmp_path / name).mkdir()
        shard(tmp_path / name / "v1.safetensors")
        shard(tmp_path / name / "v2.safetensors", layer_1=1)
        index = {"weight_map": {"layer 0": f"{name}.safetensors"}}
        (tmp_path / name / "model.safetensors.index.json").write_text(json.dumps(index))
    told_apart(tmp_path / "v1", tmp_path / "v2")
    for name, first, second in (("ab", 1, 2), ("ba", 2, 1)):
        folder = model(tmp_path / name)
        for part, value in (("text", first), ("vision", second)):
            (folder / part).mkdir()
            (folder / part / "config.json").write_text(json.dumps({"value": value}))
    told_apart(tmp_path / "ab", tmp_path / "ba")


def test_a_file_under_another_name_is_the_same(tmp_path: Path) -> None:
    for name in ("a", "z"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        shard(tmp_path / name / f"{name}.safetensors")
    assert content(tmp_path / "a") == content(tmp_path / "z")


def test_a_folder_that_leads_to_itself_is_none_of_it(tmp_path: Path) -> None:
    folder = model(tmp_path / "a")
    known = content(folder)
    (folder / "loop").symlink_to(folder / "loop")
    assert content(folder) == known
    (folder / "loop.json").symlink_to(folder / "loop.json")
    with pytest.raises(by.Unavailable, match=r"loop\.json"):
        content(folder)


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"3",
        b'{"a": 3}',
        b'{"a": {"data_offsets": [-5, 3]}}',
        b'{"a": {"data_offsets": [0, 1e400]}}',
        b'{"a": {"data_offsets": [0]}}',
        b"[" * 200_000,
        b"\xff\xfe{",
    ],
    ids=repr,
)
def test_a_header_of_any_kind_is_refused_by_name(tmp_path: Path, header: bytes) -> None:
    whole = len(header).to_bytes(8, "little") + header + bytes(2 << 20)
    (tmp_path / "model.safetensors").write_bytes(whole)
    with pytest.raises(by.Unavailable, match=r"model\.safetensors"):
        content(tmp_path)


@pytest.mark.parametrize("path", ["~nobody at all/x", "\0", "a" * 5000, "org/name", "/dev/zero"])
def test_what_names_no_file_stands_for_itself(path: str) -> None:
    assert file_content(path) == path


def archive(path: Path, middle: bytes) -> None:
    """A file of PyTorch's, as `torch.save` writes it."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", b"pickled")
        file.writestr("archive/data/0", bytes(9 * SAMPLE) + middle + bytes(700 * SAMPLE))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.gguf", "weights.pt"])
def test_other_formats_are_sampled_by_file(tmp_path: Path, name: str) -> None:
    seen = set()
    for middle in (b"one", b"two"):
        archive(tmp_path / name, middle)
        seen.add(content(tmp_path))
        seen.add(content(tmp_path / name))
    for last in (b"one", b"two"):
        (tmp_path / name).write_bytes(bytes(20 << 20) + last)
        seen.add(content(tmp_path))
    # The name of a folder or file is none of it.
    assert len(seen) == 4


def test_a_file_in_a_hubs_cache_counts_by_its_blob(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set()
    for cache, blob, commit in (("a", "1", "c"), ("b", "1", "c"), ("a", "1", "d"), ("a", "2", "e")):
        repository = tmp_path / cache / "models--org--name"
        snapshot = repository / "snapshots" / (commit * 40)
        snapshot.mkdir(parents=True)
        (repository / "blobs").mkdir(exist_ok=True)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / "main").write_text(commit * 40)
        (repository / "blobs" / (blob * 64)).write_bytes(b"not read")
        (snapshot / "model.safetensors").symlink_to(f"../../blobs/{blob * 64}")
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / cache))
        assert folder_of("org/name") == folder_of("org/name", commit * 40) == snapshot
        assert folder_of("org/name", "main", tmp_path / cache) == snapshot
        found.add((blob, content(snapshot)))
    assert len(found) == 2
    for variable in ("VLLM_USE_MODELSCOPE", "SGLANG_USE_MODELSCOPE"):
        with monkeypatch.context() as other:
            other.setenv(variable, "True")
            assert folder_of("org/name") is None, "it is downloaded to elsewhere"
    for name, revision in (("org/name", "tag"), ("org/name", "f" * 40), ("a", None), ("\0", None)):
        assert folder_of(name, revision) is None
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "nowhere"))
    assert folder_of("org/name") is None


def broken(how: str, folder: Path) -> None:
    second = folder / "model-00002-of-00002.safetensors"
    if how == "cut off":
        os.truncate(second, 5 * TENSOR)
    elif how == "no header":
        second.write_bytes(bytes(1 << 21))
    else:
        second.unlink()
    if how == "a link to nowhere":
        second.symlink_to("/nowhere")
    elif how == "a pipe":
        os.mkfifo(second)


@pytest.mark.parametrize("how", ["missing", "cut off", "no header", "a link to nowhere", "a pipe"])
def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path, how: str) -> None:
    folder = model(tmp_path / "a")
    broken(how, folder)
    with pytest.raises(by.Unavailable, match=r"model-00002-of-00002.*\"weights\": \"v1\""):
        content(folder)


def test_an_index_of_a_format_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    folder = model(tmp_path / "a")
    known = content(folder)
    index = {"weight_map": {"layer 0": "pytorch_model-1.bin", "layer 1": "pytorch_model-2.bin"}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    (folder / "odd.index.json").write_text("[]")
    assert content(folder) is not None
    (folder / "odd.index.json").unlink()
    assert content(folder) == content(folder)
    assert known is not None


def test_where_there_are_no_weights_there_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for path in (tmp_path, tmp_path / "nowhere", "\0", "org/name"):
        assert content(path) is None
    assert files_of(str(tmp_path / "nowhere")) is None


def test_sixty_shards_are_read_in_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of tensors are three reads each, of 4 KiB, whatever their size."""
    reads: list[int] = []
    read = os.pread

    def counted(number: int, size: int, place: int) -> bytes:
        reads.append(size)
        return read(number, size, place)

    monkeypatch.setattr(os, "pread", counted)
    for at in range(60):
        shard(tmp_path / f"model-{at}.safetensors", 50, size=256 * SAMPLE)
    assert content(tmp_path) is not None
    # Where a tensor ends, the next begins: two samples, one read.
    assert len(reads) <= 60 * (3 + 2 * 50 + 1)
    assert sum(reads) <= 60 * (50 * 3 * SAMPLE + 3 * 16_384)


def test_nothing_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"one")
    first = content(tmp_path)
    path.write_bytes(b"two")
    os.utime(path, (0, 0))
    assert content(tmp_path) != first


def test_a_file_put_in_anothers_place_is_noticed_whatever_its_time(tmp_path: Path) -> None:
    path = tmp_path / "adapter_model.bin"
    path.write_bytes(b"one")
    os.utime(path, (0, 0))
    first = files_of(str(tmp_path))
    assert files_of(str(tmp_path)) == first
    (tmp_path / "new").write_bytes(b"two")
    os.utime(tmp_path / "new", (0, 0))
    (tmp_path / "new").rename(path)
    assert files_of(str(tmp_path)) != first


def test_a_path_in_a_namespace_stands_for_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = model(tmp_path / "a"), model(tmp_path / "b")

    def identity(**named: Any) -> dict[str, str]:
        names = {"model": "m", **named}
        return by.Config.of({"device": 4, "block_size": 4, "namespace": names}).identity

    assert identity(weights=first) == identity(weights=second) == identity(weights=str(first))
    assert identity(weights=first) != identity(weights=model(tmp_path / "c", layer_1=1))
    monkeypatch.chdir(tmp_path)
    for text in ("./a", f"../{tmp_path.name}/b"):
        assert identity(weights=text) == identity(weights=first)
    assert identity(weights="v1")["weights"] == stated("weights", "v1") == "v1"
    # A name that looks like a path is a name.
    assert identity(model=str(first))["model"] == str(first)
    config = by.Config.of({"device": 4, "namespace": {"weights": first}})
    assert by.Config.of(config.to_mapping()).identity == config.identity
    with pytest.raises(by.Unavailable, match="there are no files of weights"):
        identity(weights=str(tmp_path))
    with pytest.raises(by.Misuse, match="or the path of weights"):
        identity(weights=3)


def test_a_disk_is_not_read_by_other_weights_at_the_same_path(tmp_path: Path) -> None:
    layout = by.KVLayout.llama(layers=1, kv_heads=1, head_dim=8, dtype="float16", block_size=4)
    found: list[int] = []
    changes: list[dict[str, int]] = [{}, {}, {"layer_1": 1}]
    for changed in changes:
        folder = model(tmp_path / f"weights {len(found)}", **changed)
        names: dict[str, str | Path] = {"model": "m", "weights": folder}
        with by.local(
            layout, device=8, disk=16, disk_path=tmp_path / "kv", namespace=names
        ) as cache:
            found.append(cache.restored)
            if found[1:]:
                continue
            publish(cache, list(range(17)))
            cache.demote(4)
            while cache.step() or cache.stats()["flights"]:
                time.sleep(1e-4)
    assert found[0] == 0
    assert found[1] > 0
    assert found[2] == 0
