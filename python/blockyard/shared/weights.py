"""What tells weights from others: their content, of which samples are read.

No time, path or name of a folder counts, and nothing is kept: who asks again reads again.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from blockyard._core import Misuse, Unavailable
from blockyard.shared.validate import shown

__all__ = [
    "SAMPLE",
    "content",
    "file_content",
    "files_of",
    "folder_of",
    "nameless",
    "namespace",
    "stated",
]

SAMPLE: Final = 4096
"""Bytes that are read at the start, in the middle and at the end of every tensor."""
_WHOLE: Final = 1 << 20
"""A file of so many bytes is read whole."""
_HEADER: Final = 16 << 20
"""Bytes at the start of a file whose tensors are not known here."""
_SPREAD: Final = 4096
"""Samples of the rest of such a file."""
_MOST_HEADER: Final = 100_000_000
"""Bytes of a header that safetensors allows."""
_UNREADABLE: Final = (
    *(OSError, ValueError, LookupError, TypeError, RuntimeError, AttributeError, ArithmeticError),
)
"""What comes of files that are not what their names say."""
_READERS: Final = 16
_DEPTH: Final = 2
"""Levels of folders below that of the model."""

_WEIGHTS: Final = (
    *(".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".npz", ".npy", ".tensors"),
)
"""How the names of files of weights end."""
_BESIDE: Final = (".json", ".py")
"""Files beside them that say how they are used."""
_UNUSED: Final = frozenset(
    (
        *("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt"),
        *("rng_state.pth", "trainer_state.json", "generation_config.json", "tokenizer.json"),
        *("tokenizer_config.json", "vocab.json", "added_tokens.json", "special_tokens_map.json"),
        *("chat_template.json", "tekken.json"),
    )
)
"""Files that no KV of given tokens depends on."""
_SKIPPED: Final = re.compile(r"\.|original$|onnx$|openvino$|checkpoint-|global_step")
"""Folders with other versions of the weights, or with none."""
_NAMES: Final = frozenset({"_commit_hash", "transformers_version"})
_PATHS: Final = "name_or_path"
_PLACES: Final = ("/", "~/", "./", "../")
_HEX: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_OTHER_HUBS: Final = ("VLLM_USE_MODELSCOPE", "SGLANG_USE_MODELSCOPE")
"""Where one is set, a model of that name in this hub's cache is another one."""
_HUB: Final = re.compile(r"[\w.-]+(/[\w.-]+)?")


def content(path: str | os.PathLike[str]) -> str | None:
    """Returns what tells the weights at a path from others; None where none are to be seen.

    Of safetensors, and of PyTorch's files that are archives, that is the header and `SAMPLE` bytes
    at the start, in the middle and at the end of every tensor; of a small file all of it; of others
    16 MiB and 4,096 samples. A file in a hub's cache counts by the name of its blob, which is a
    hash of its content. Configurations and code beside the weights count whole, without the names
    and paths in them; so does an index. No file's name counts, but the order of the files does, and
    which folder below they are in: an engine loads some of them, or one over another.

    Args:
        path: A file, or a folder with files, as engines take it.

    Raises:
        Unavailable: A file cannot be read, is cut off, or is missing though an index names it.
    """
    if not _is_there(path):
        return None
    where = Path(path).expanduser()
    try:
        files = [where] if where.is_file() else sorted(_files(where, _DEPTH))
    except OSError as error:
        raise _refused(where, error) from error
    # What lies in folders below is part of a model, and no model.
    own = [one for one in files if one.parent == where and one.name.endswith(_WEIGHTS)]
    if not own and not where.is_file():
        return None
    _check_shards(files)
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - most programs need it not

    with ThreadPoolExecutor(_READERS, "weights") as readers:
        said = list(readers.map(_file, files))
    inside = [os.path.relpath(one.parent, where if one != where else where.parent) for one in files]
    # Files of weights stay in the order of their names, and among others no name counts.
    found = sorted(zip(inside, said, strict=True), key=lambda one: (one[0], one[1][0]))
    return "sha256:" + _digest(json.dumps(found).encode())


def file_content(path: str) -> str:
    """Returns what tells a file or folder from others; the path itself where there is none.

    Args:
        path: What an option names: a file, a folder, or something of a hub.

    Raises:
        Unavailable: It cannot be read.
    """
    if not _is_there(path):
        return path
    where = Path(path).expanduser()
    if where.is_dir():
        return content(where) or _digest(json.dumps(sorted(map(_file, _beside(where)))).encode())
    return str(_file(where)[1]) if where.is_file() else path


def stated(name: str, given: object) -> object:
    """Returns a part of a namespace: of a path its content stands for it, of text the text.

    Args:
        name: Of the part. Text is a path where this is "weights" and it begins with /, ~/, ./ or
            ../.
        given: Text, or a path.

    Raises:
        Unavailable: There are no weights at the path, or they cannot be read.
    """
    # A version that is called so would be read by another one, where it is a path by mistake.
    text = isinstance(given, str) and name == "weights" and given.startswith(_PLACES)
    if not (text or isinstance(given, os.PathLike)):
        return given
    found = content(given)  # type: ignore[arg-type]
    if found is None:
        raise Unavailable(
            f"{name} = {str(given)!r}: there are no files of weights; give their folder, or text "
            "that is another one with each version"
        )
    return found


def namespace(given: object) -> tuple[tuple[str, str], ...]:
    """Returns sorted pairs: frozen, hashed, and the same in whatever order they were given.

    Args:
        given: A mapping of names to text, or to paths.

    Raises:
        Misuse: It is none.
        Unavailable: As in `stated`.
    """
    try:
        pairs = sorted(dict(given).items())  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise Misuse(f"namespace = {shown(given)}: give a mapping of names to text") from None
    for name, part in pairs:
        if not isinstance(name, str) or not isinstance(part, str | os.PathLike):
            raise Misuse(
                f"namespace has {shown((name, part))}: give text, or the path of weights, for a "
                "name that is text"
            )
    return tuple((name, str(stated(name, part))) for name, part in pairs)


def folder_of(
    name: str, revision: str | None = None, cache: str | os.PathLike[str] | None = None
) -> Path | None:
    """Returns where the files of a model are: at the path, or in the cache of a hub.

    Args:
        name: A path, or the name of a model of a hub.
        revision: Of that model.
        cache: The folder that the engine downloads to; None for the hub's own.
    """
    if _is_there(name):
        return Path(name).expanduser()
    if not _HUB.fullmatch(name) or any(
        os.environ.get(one, "").lower() in {"1", "true"} for one in _OTHER_HUBS
    ):
        return None
    repository = Path(cache or _cache()).expanduser() / f"models--{name.replace('/', '--')}"
    # vLLM's is text that has the commit, too.
    commit = str(getattr(revision, "resolved", None) or revision or "main")
    if not _HEX.fullmatch(commit):
        try:
            commit = (repository / "refs" / commit).read_text("utf-8").strip()
        except (OSError, ValueError):
            return None
    snapshot = repository / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def files_of(path: str) -> list[tuple[str, int, int, int, int]] | None:
    """Returns what tells whether files at a path are still those that they were a moment ago.

    Args:
        path: As in `content`.

    Returns:
        Of each file its name, bytes, time of change and of change of its inode, in nanoseconds,
        and the number of its inode; None where there are none to be seen.
    """
    try:
        where = Path(path).expanduser()
        files = [where] if where.is_file() else sorted(_files(where, _DEPTH))
        seen = [(str(one), one.stat()) for one in files]
    except (OSError, ValueError, RuntimeError):
        return None
    return [
        (name, one.st_size, one.st_mtime_ns, one.st_ctime_ns, one.st_ino) for name, one in seen
    ] or None


def nameless(value: Any) -> Any:  # noqa: ANN401 - it is any JSON
    """Returns a configuration without what only names it, or the place where it was."""
    if isinstance(value, Mapping):
        return {
            str(name): nameless(one)
            for name, one in value.items()
            if name not in _NAMES and not str(name).endswith(_PATHS)
        }
    if isinstance(value, list | tuple):
        return [nameless(one) for one in value]
    return value


def _cache() -> Path:
    """Returns the folder in which the hub's library keeps what it has downloaded."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(name):
            return Path(os.environ[name])
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("HF_HOME") or f"{home}/huggingface") / "hub"


def _is_there(path: str | os.PathLike[str]) -> bool:
    try:
        return Path(path).expanduser().exists()
    except (OSError, ValueError, RuntimeError):
        return False


def _files(folder: Path, depth: int) -> Iterator[Path]:
    """Yields the files that KV may depend on."""
    with os.scandir(folder) as entries:
        for one in entries:
            # Where a link leads nowhere, it is a file that is missing.
            if _is_folder(one):
                if depth and not _SKIPPED.match(one.name):
                    yield from _files(Path(one.path), depth - 1)
            elif (
                one.name.endswith(_WEIGHTS + _BESIDE)
                and one.name not in _UNUSED
                and not one.name.startswith(".")
            ):
                yield Path(one.path)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        # A link that leads to itself.
        return False


def _beside(folder: Path) -> list[Path]:
    return [one for one in _files(folder, 0) if one.name.endswith(_BESIDE)]


def _check_shards(files: Iterable[Path]) -> None:
    """Checks that there are all shards of an index of which there are some."""
    for index in (one for one in files if one.name.endswith(".index.json")):
        try:
            named = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
            missing = [one for one in named if not (index.parent / one).exists()]
        except OSError as error:
            raise _refused(index, error) from error
        except (ValueError, LookupError, AttributeError, TypeError):
            continue
        # Of another format than the engine's there may be the index alone.
        if missing and len(missing) < len(named):
            raise _refused(index.parent / missing[0], f"it is missing, and {index.name} names it")


def _file(path: Path) -> tuple[str, str]:
    """Returns what a file is by its kind or name, and its content."""
    try:
        real = path.resolve(strict=True)
        seen = real.stat()
        if not stat.S_ISREG(seen.st_mode):
            # To open a pipe would wait for its writer.
            raise IsADirectoryError("it is no file")
        if path.name.endswith(_BESIDE):
            return path.name, _digest(_without_names(path))
        if real.parent.name == "blobs" and _HEX.fullmatch(real.name):
            return "weights", f"blob {real.name} {seen.st_size}"
        return "weights", _sampled(path)
    except _UNREADABLE as error:
        raise _refused(path, error) from error


def _without_names(path: Path) -> bytes:
    """Returns a file's bytes; of JSON without names, in one order."""
    text = path.read_bytes()
    if not path.name.endswith(".json"):
        return text
    try:
        return json.dumps(nameless(json.loads(text)), sort_keys=True).encode()
    except ValueError:
        return text


def _sampled(path: Path) -> str:
    """Returns a hash of a file's size and samples."""
    with path.open("rb", buffering=0) as file:
        number = file.fileno()
        size = os.fstat(number).st_size
        if size <= _WHOLE:
            return _digest(b"whole", file.read())
        if hasattr(os, "posix_fadvise"):
            # A sample of 4 KiB is not to bring 128.
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_RANDOM)
        pieces = _pieces(path, number, size)
        said = hashlib.sha256(f"{size}".encode())
        for first, end in _joined(pieces):
            found = os.pread(number, end - first, first)
            if len(found) != end - first:
                raise ValueError(f"it ends before byte {end}")
            said.update(found)
    return said.hexdigest()


def _pieces(path: Path, number: int, size: int) -> Iterable[tuple[int, int]]:
    """Returns the parts of a file that are read: first byte and end."""
    if path.name.endswith(".safetensors"):
        return _of_safetensors(number, size)
    found = _of_archive(path, size)
    if found:
        return found
    step = max(SAMPLE, (size - _HEADER) // _SPREAD)
    return [
        (0, min(_HEADER, size)),
        *((at, min(at + SAMPLE, size)) for at in range(_HEADER, size, step)),
        (size - SAMPLE, size),
    ]


def _of_safetensors(number: int, size: int) -> list[tuple[int, int]]:
    length = int.from_bytes(os.pread(number, 8, 0), "little")
    if not 0 < length <= min(_MOST_HEADER, size - 8):
        raise ValueError("it has no header of safetensors")
    begins = 8 + length
    header = json.loads(os.pread(number, length, 8))
    pieces = [(0, begins)]
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        first, end = (begins + int(one) for one in tensor["data_offsets"])
        if not begins <= first <= end <= size:
            raise ValueError(f"it ends before tensor {name!r}: {size} bytes, and {end} are named")
        pieces += _of_tensor(first, end)
    return pieces


def _of_archive(path: Path, size: int) -> list[tuple[int, int]]:
    """Returns the parts of an archive, whose directory has a checksum of every tensor."""
    import zipfile  # noqa: PLC0415 - most weights are none

    if not zipfile.is_zipfile(path):
        return []
    try:
        with zipfile.ZipFile(path) as archive:
            starts = sorted(one.header_offset for one in archive.infolist())
            ends = [*starts[1:], archive.start_dir]
    except zipfile.BadZipFile as error:
        raise ValueError(str(error)) from error
    pieces = [(ends[-1], size)]
    for first, end in zip(starts, ends, strict=True):
        pieces += _of_tensor(first, end)
    return pieces


def _of_tensor(first: int, end: int) -> list[tuple[int, int]]:
    if end - first <= 3 * SAMPLE:
        return [(first, end)]
    middle = (first + end - SAMPLE) // 2
    return [(first, first + SAMPLE), (middle, middle + SAMPLE), (end - SAMPLE, end)]


def _joined(pieces: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yields the pieces in the file's order, those that touch as one."""
    start = stop = 0
    for first, end in sorted(pieces):
        if first <= stop:
            stop = max(stop, end)
            continue
        if stop:
            yield start, stop
        start, stop = first, end
    if stop:
        yield start, stop


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _refused(path: Path, why: object) -> Unavailable:
    return Unavailable(
        f"the weights in {path} cannot be read: {why}; make the file whole and readable, or say "
        'which weights these are, as namespace={"weights": "v1"}, another text with each version'
    )
