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


def header(size: int, tag: int, parts: int, group: int = 0) -> bytes:
    """The first bytes of every message of encoding 2 of SHA-256."""
    return struct.pack("<BBBBII4s", tag, 2, 0, group, size, parts, b"BYKY")


def root_of(
    size: int,
    namespace: Sequence[str],
    group: int = 0,
    lora: bytes | None = None,
    salt: bytes | None = None,
) -> bytes:
    """The root of a sequence; the namespace is model, weights, dtype, layout, parallel."""
    fields = [_sized(field.encode()) for field in namespace]
    root = hashlib.sha256(header(size, 1, 5, group) + b"".join(fields)).digest()
    if lora is None and salt is None:
        return root
    extras = [b"\0" if part is None else b"\1" + _sized(part) for part in (lora, salt)]
    return hashlib.sha256(header(size, 2, 2, group) + root + b"".join(extras)).digest()


def start_of(root: bytes, size: int, group: int = 0) -> bytes:
    """The parent of a sequence's first block."""
    return compress(struct.pack(">8I", *IV), header(size, 4, 0, group) + root + bytes(16))


def message_of(parent: bytes, block: Sequence[int], over: Media, at: int, group: int = 0) -> bytes:
    """What the block at a position is hashed as, where these media items lie over it."""
    items = [
        _sized(name) + struct.pack("<qQ", start - at, end - start) for start, end, name in over
    ]
    words = struct.pack(f"<{len(block)}I", *block)
    return header(len(block), 3, len(over), group) + parent + words + b"".join(items)


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
    """The keys of SHA-256, of full blocks."""
    parent = start_of(root_of(size, namespace, group, lora, salt), size, group)
    made = []
    for at in range(0, len(tokens) - size + 1, size):
        block = tokens[at : at + size]
        over = [item for item in media if item[0] < at + size and item[1] > at]
        if over:
            parent = hashlib.sha256(message_of(parent, block, over, at, group)).digest()
        else:
            parent = states(parent, struct.pack(f"<{size}I", *block))
        made.append(parent)
    return made
