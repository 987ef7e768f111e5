"""What tells weights from others: their content, and neither time, path nor name."""

import json
import os
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from blockyard.shared.weights import SAMPLE, content, files_of, folder_of, stated

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


def test_a_path_in_a_namespace_stands_for_its_content(tmp_path: Path) -> None:
    first, second = model(tmp_path / "a"), model(tmp_path / "b")

    def identity(**named: Any) -> dict[str, str]:
        names = {"model": "m", **named}
        return by.Config.of({"device": 4, "block_size": 4, "namespace": names}).identity

    assert identity(weights=first) == identity(weights=second) == identity(weights=str(first))
    assert identity(weights=first) != identity(weights=model(tmp_path / "c", layer_1=1))
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
            lease = cache.begin(list(range(17)))
            cache.seal(lease, 17)
            cache.finish(lease)
            cache.demote(4)
            while cache.step() or cache.stats()["flights"]:
                time.sleep(1e-4)
    assert found[0] == 0
    assert found[1] > 0
    assert found[2] == 0
