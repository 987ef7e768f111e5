"""The keys of docs/keys.md once more, in plain Python: nothing here is from the package.

`hashlib` has no compression function, so that of SHA-256 (FIPS 180-4) is here.
"""

import hashlib
import struct
from collections.abc import Sequence
from itertools import count, islice
from math import isqrt

Media = Sequence[tuple[int, int, bytes]]
WORD = 2**32 - 1


def _primes() -> list[int]:
    """The first 64."""
    whole = (n for n in count(2) if all(n % of for of in range(2, isqrt(n) + 1)))
    return list(islice(whole, 64))


def _cube_root(number: int) -> int:
    """Of any integer, rounded down."""
    low, high = 0, 1 << 64
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**3 <= number else (low, middle)
    return low


IV = tuple(isqrt(prime << 64) & WORD for prime in _primes()[:8])
CONSTANTS = [_cube_root(prime << 96) & WORD for prime in _primes()]


def _turn(word: int, by: int) -> int:
    return (word >> by | word << 32 - by) & WORD


def compress(state: bytes, piece: bytes) -> bytes:
    """Returns the state of SHA-256 behind 64 bytes more; a state is written as a digest is."""
    words = list(struct.unpack(">16I", piece))
    for at in range(16, 64):
        early, late = words[at - 15], words[at - 2]
        first = _turn(early, 7) ^ _turn(early, 18) ^ early >> 3
        second = _turn(late, 17) ^ _turn(late, 19) ^ late >> 10
        words.append((words[at - 16] + first + words[at - 7] + second) & WORD)
    before = struct.unpack(">8I", state)
    a, b, c, d, e, f, g, h = before
    for word, constant in zip(words, CONSTANTS, strict=True):
        added = h + (_turn(e, 6) ^ _turn(e, 11) ^ _turn(e, 25)) + (e & f ^ ~e & g) + constant + word
        mixed = (_turn(a, 2) ^ _turn(a, 13) ^ _turn(a, 22)) + (a & b ^ a & c ^ b & c)
        a, b, c, d, e, f, g, h = (added + mixed) & WORD, a, b, c, (d + added) & WORD, e, f, g
    after = zip(before, (a, b, c, d, e, f, g, h), strict=True)
    return struct.pack(">8I", *((one + other) & WORD for one, other in after))


def states(state: bytes, content: bytes) -> bytes:
    """Compresses whole pieces; zeros fill the last one."""
    content += bytes(-len(content) % 64)
    for at in range(0, len(content), 64):
        state = compress(state, content[at : at + 64])
    return state


def _sized(part: bytes) -> bytes:
    return struct.pack("<Q", len(part)) + part


def keys(
    tokens: Sequence[int],
    size: int,
    namespace: Sequence[str],
    *,
    group: int = 0,
    lora: bytes | None = None,
    salt: bytes | None = None,
    media: Media = (),
) -> list[bytes]:
    """The keys of SHA-256. The namespace is model, weights, dtype, layout, parallel."""

    def header(tag: int, parts: int) -> bytes:
        return struct.pack("<BBBBII4s", tag, 2, 0, group, size, parts, b"BYKY")

    def digest(*parts: bytes) -> bytes:
        return hashlib.sha256(b"".join(parts)).digest()

    root = digest(header(1, 5), *(_sized(field.encode()) for field in namespace))
    if lora is not None or salt is not None:
        extras = [b"\0" if part is None else b"\1" + _sized(part) for part in (lora, salt)]
        root = digest(header(2, 2), root, *extras)
    parent = compress(struct.pack(">8I", *IV), header(4, 0) + root + bytes(16))
    made = []
    for at in range(0, len(tokens) - size + 1, size):
        words = struct.pack(f"<{size}I", *tokens[at : at + size])
        over = [item for item in media if item[0] < at + size and item[1] > at]
        if over:
            items = [
                _sized(id) + struct.pack("<qQ", start - at, end - start) for start, end, id in over
            ]
            parent = digest(header(3, len(over)), parent, words, *items)
        else:
            parent = states(parent, words)
        made.append(parent)
    return made
