"""Random changes of valid inputs: bytes and words that are changed, removed, repeated or taken from other inputs."""

from __future__ import annotations

import random
from collections.abc import Sequence

_LENGTHS = (0, 1, 2, 4, 127, 128, 255, 256, 65_535, 2**31 - 1, 2**31, 2**32 - 1)
_DEPTHS = (1, 2, 3, 5, 10, 20, 50, 100, 2_000)


def changed(chance: random.Random, samples: Sequence[bytes]) -> bytes:
    """Return a sample with random changes, or sometimes random bytes."""
    if chance.random() < 0.05:
        return chance.randbytes(chance.choice((0, 1, 5, 30, 300)))
    data = bytearray(chance.choice(samples))
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(9):
            case 0:
                data[at : at + 1] = bytes((chance.randrange(256),))
            case 1:
                if at < len(data):
                    data[at] ^= 1 << chance.randrange(8)
            case 2:
                del data[at : at + chance.choice((1, 2, 4, 20))]
            case 3:
                del data[at:]
            case 4:
                other = chance.choice(samples)
                begin = chance.randrange(len(other) + 1)
                data[at:at] = other[begin : begin + chance.choice((1, 4, 20, 200))]
            case 5:
                data[at : at + 4] = chance.choice(_LENGTHS).to_bytes(4, chance.choice(("little", "big")))
            case 6:
                piece = bytes(data[at : at + chance.choice((1, 2, 8))])
                data[at:at] = piece * chance.choice(_DEPTHS)
            case 7:
                data[at:at] = chance.randbytes(chance.choice((1, 2, 9)))
            case _:
                data[at:at] = chance.choice((b"\xff" * 9, b"\x80" * 10, b"\0" * 8, b"\x7f\xff\xff\xff"))
    return bytes(data)


def text(chance: random.Random, samples: Sequence[str], words: Sequence[str]) -> str:
    """Return words in a random order, or a sample with random changes."""
    if chance.random() < 0.3:
        between = chance.choice((" ", " ", ""))
        return between.join(chance.choice(words) for _ in range(chance.choice((1, 3, 10, 40))))
    found = chance.choice(samples)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(found) + 1)
        match chance.randrange(6):
            case 0:
                found = (
                    found[:at] + chr(chance.choice((chance.randrange(128), chance.randrange(0x110000)))) + found[at:]
                )
            case 1:
                found = found[:at] + found[at + chance.choice((1, 3, 20)) :]
            case 2:
                found = found[:at]
            case 3:
                found = found[:at] + chance.choice(words) + found[at:]
            case 4:
                other = chance.choice(samples)
                begin = chance.randrange(len(other) + 1)
                found = found[:at] + other[begin : begin + 30] + found[at:]
            case _:
                found = found[:at] + found[at : at + chance.choice((1, 2, 8))] * chance.choice(_DEPTHS) + found[at:]
    return found
