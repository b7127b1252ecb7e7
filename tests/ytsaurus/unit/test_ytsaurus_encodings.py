"""Content encodings of the YTsaurus endpoint: bodies round-trip in every encoding."""

from __future__ import annotations

import gzip
import struct
import zlib

import pytest

from headrace.http.unpacking import CutOffError, PackedError, Parts
from headrace_ytsaurus.endpoint.http.encodings import (
    BLOCK_BYTES,
    MAX_BLOCK_BYTES,
    accepted,
    is_known,
    packed,
    unpacking,
)

CONTENT = b"some content, " * (3 * BLOCK_BYTES // 14) + b"\x00\xff"
ENCODINGS = [
    *("identity", "gzip", "deflate", "br", "z-null", "z-snappy", "z-zlib", "z-zlib-0", "z-bzip2", "z-bzip2-1"),
    *("z-zstd_1", "z-zstd_3", "z-zstd_7", "z-zstd08_22", "z-brotli_1", "z-brotli_6", "z-brotli_11"),
    *("z-lz4", "z-lz4hc", "z-lz4fast", "z-lz4-fast20-safe"),
]


def pack(content: bytes, encoding: str, piece: int = 100_000) -> bytes:
    if encoding == "identity":
        return content
    pieces = (content[begin : begin + piece] for begin in range(0, len(content), piece))
    return b"".join(packed(pieces, encoding))


def unpack(data: bytes, encoding: str, piece: int = 1000) -> bytes:
    parts = [data[begin : begin + piece] for begin in range(0, len(data), piece)]
    return b"".join(unpacking(encoding)(Parts(parts)))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_compressed_content_round_trips(encoding: str) -> None:
    assert is_known(encoding)
    data = pack(CONTENT, encoding)
    assert unpack(data, encoding) == CONTENT
    assert unpack(pack(b"", encoding), encoding) == b""
    assert unpack(b"", encoding) == b""


@pytest.mark.parametrize("encoding", [each for each in ENCODINGS if each not in ("identity", "z-null")])
def test_incomplete_or_damaged_content_is_refused(encoding: str) -> None:
    data = pack(CONTENT, encoding)
    with pytest.raises(CutOffError):
        unpack(data[:-5], encoding)
    with pytest.raises(PackedError):
        unpack(b"\xff" * 100, encoding)
    with pytest.raises(PackedError):
        unpack(data + b"more", encoding)


def test_codec_ids_equal_those_of_the_official_client() -> None:
    ids = dict.fromkeys(("null",), 54476) | {"snappy": 50986, "zstd_1": 55019, "zstd_3": 23308, "zstd_7": 33533}
    ids |= {"brotli_1": 48947, "brotli_6": 63219, "brotli_11": 7241, "lz4": 6051, "lz4hc": 62852}
    written = {name: struct.unpack_from("<H", pack(b"x", f"z-{name}"))[0] for name in ids}
    assert written == ids


@pytest.mark.parametrize("name", ["zstd_3", "brotli_6", "lz4", "zlib", "bzip2"])
@pytest.mark.parametrize("size", [0, 999, 1001, MAX_BLOCK_BYTES + 1, 1 << 62])
def test_blocks_with_a_wrong_size_are_refused(name: str, size: int) -> None:
    data = bytearray(pack(bytes(1000), f"z-{name}"))
    struct.pack_into("<Q", data, 10, size)
    with pytest.raises(PackedError):
        unpack(bytes(data), f"z-{name}")


def test_blocks_with_a_huge_size_are_refused_before_they_are_read() -> None:
    with pytest.raises(PackedError, match="more than"):
        unpack(struct.pack("<HQ", 54476, 1 << 63), "z-null")
    with pytest.raises(PackedError, match="unknown codec"):
        unpack(struct.pack("<HQ", 1, 5) + b"12345", "z-null")
    with pytest.raises(PackedError, match="more than"):
        unpack(struct.pack("<HQ", 50986, 5) + b"\xff\xff\xff\xff\x0f", "z-snappy")


def test_concatenated_streams_are_decompressed() -> None:
    assert unpack(gzip.compress(CONTENT) + zlib.compress(CONTENT), "gzip") == 2 * CONTENT


@pytest.mark.parametrize(
    ("header", "chosen"),
    [
        (None, "identity"),
        ("", "identity"),
        ("gzip, identity", "identity"),
        ("br, gzip, *;q=0.1", "identity"),
        ("gzip", "gzip"),
        ("gzip;q=1.0, deflate", "gzip"),
        ("gzip;q=0, deflate", "deflate"),
        ("zstd, br", "br"),
        ("z-zstd_3", "z-zstd_3"),
        ("z-brotli_11", "z-brotli_11"),
        ("zstd", None),
        ("z-lzo", None),
    ],
)
def test_responses_have_an_accepted_encoding(header: str | None, chosen: str | None) -> None:
    assert accepted(header) == chosen
