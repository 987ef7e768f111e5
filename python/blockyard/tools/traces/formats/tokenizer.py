"""Text as tokens: by the user's tokenizer, or by words alone."""

import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Misuse

__all__ = ["CHARS_PER_TOKEN", "Tokenizer", "Words"]

CHARS_PER_TOKEN: Final = 4.0
"""OpenAI's rule for English: a token is about four characters, or three quarters of a word ("What
are tokens and how to count them?", OpenAI help centre). A word that counts one token per four
characters, but at least one, keeps both."""

# Writing without spaces has a word per character. What is longer between spaces, as in JSON, is
# several words.
_CHARACTERS: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3"
_WORD: Final = re.compile(rf"[{_CHARACTERS}]|[^\s{_CHARACTERS}]{{1,16}}")
_UNIT: Final = 1 << 10
"""Parts of a token that lengths are counted in: whole numbers, so that none is lost."""
_LEAST, _MOST = 1.0, 16.0
"""Characters per token that make sense: a word has at least one token."""


class Words:
    """Hashes words, and estimates their tokens, so that texts that begin alike have tokens that do.

    Lengths are estimates. What is shared between prompts is told exactly, to a word.

    Args:
        chars_per_token: In the mean, from 1 to 16. A short word is a token all the same.
    """

    def __init__(self, chars_per_token: float = CHARS_PER_TOKEN) -> None:
        if not _LEAST <= chars_per_token <= _MOST:
            raise Misuse(
                f"--chars-per-token {chars_per_token:g}: must be from {_LEAST:g} to {_MOST:g}"
            )
        self.chars_per_token = chars_per_token

    def tokens(self, text: str) -> NDArray[np.int64]:
        """Returns a hash of each word, as often as the word has tokens."""
        words = _WORD.findall(text)
        hashes = np.array([_hash(word) for word in words], np.int64)
        lengths = np.array([len(word) for word in words], np.float64)
        parts = np.maximum(lengths / self.chars_per_token, 1) * _UNIT
        # Counted from the start of the text: a beginning has the same tokens in every text.
        ends = np.cumsum(np.concatenate(([0], parts.astype(np.int64)))) // _UNIT
        return np.repeat(hashes, np.diff(ends))


class Tokenizer:
    """A tokenizer of the Hugging Face kind, through the package `tokenizers`.

    Args:
        path: A file `tokenizer.json`, or the folder of a model that has one.
    """

    def __init__(self, path: Path) -> None:
        try:
            import tokenizers  # noqa: PLC0415 - no other part needs this package
        except ImportError:
            raise Misuse(
                f"--tokenizer {path} needs the package tokenizers: pip install tokenizers; or "
                "leave it out, and tokens are estimated from the words"
            ) from None
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            raise Misuse(f"--tokenizer {path}: there is no file {file}; give a tokenizer.json")
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # noqa: BLE001 - the package raises nothing narrower
            raise Misuse(f"--tokenizer {path}: it is no tokenizer.json: {error}") from None

    def tokens(self, text: str) -> Sequence[int]:
        """Returns the ids of the text's tokens, without those that mark a beginning or an end."""
        # Half a character, which Python's text may have, is none to a tokenizer.
        text = text.encode(errors="replace").decode()
        ids: Sequence[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


@lru_cache(1 << 16)
def _hash(word: str) -> int:
    return int.from_bytes(
        blake2b(word.encode(errors="surrogatepass"), digest_size=7).digest(), "big"
    )
