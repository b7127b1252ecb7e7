"""Content encodings of YTsaurus' proxies: those of HTTP, and block codecs, the default of Go's client.

A body in the encoding ``z-NAME`` is a sequence of blocks. Each block has the id of its codec (2 bytes, little-endian),
the number of compressed bytes (8 bytes), and the compressed bytes. These begin with the number of decompressed bytes (8
bytes), except for ``null`` and ``snappy``. An empty block ends the body. The id is a hash of the codec's name.
"""

from __future__ import annotations

import bz2
import io
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.http.unpacking import (
    CutOffError,
    PackedError,
    Parts,
    Source,
    Unpack,
    inflate,
    plain,
    read_all,
    unpack_brotli,
)
from headrace.support.cached import cached_property

IDENTITY = "identity"
BLOCK_PREFIX = "z-"
MAX_BLOCK_BYTES = 16 << 20
"""The maximum size of a block, compressed or decompressed; Go's client has this limit."""
BLOCK_BYTES = 256 << 10
"""The decompressed size of written blocks."""
_HEAD = struct.Struct("<HQ")
_LENGTH = struct.Struct("<Q")
# The level of a YTsaurus proxy.
_GZIP_LEVEL = 4


@dataclass(frozen=True)
class _Codec:
    """A block codec.

    Attributes:
        name: not an alias.
        pack: compresses a block.
        unpack: decompresses a block, given its decompressed size.
        sized: the compressed bytes begin with the decompressed size.
    """

    name: str
    pack: Callable[[bytes], bytes]
    unpack: Callable[[bytes, int], bytes]
    sized: bool = True

    @cached_property
    def id(self) -> int:
        hashed = _murmur(self.name.encode())
        return (hashed >> 16) ^ (hashed & 0xFFFF)


def is_known(encoding: str) -> bool:
    """Return whether a content encoding is supported."""
    return encoding in _STREAMS or _codec(encoding) is not None


def known() -> list[str]:
    """Return all content encodings, for messages."""
    return [*_STREAMS, "z-null", "z-snappy", "z-zstd_1 to 22", "z-brotli_1 to 11", "z-lz4", "z-zlib", "z-bzip2"]


def unpacking(encoding: str) -> Unpack:
    """Return the function that decompresses bodies in a supported content encoding."""
    return _STREAMS.get(encoding, _unpack_blocks)


def packed(pieces: Iterable[bytes | memoryview], encoding: str) -> Iterator[bytes]:
    """Yield content in a supported content encoding."""
    codec = _codec(encoding)
    if codec is not None:
        return _pack_blocks(pieces, codec)
    if encoding == "br":
        return _pack_brotli(pieces)
    return _deflate(pieces, zlib.MAX_WBITS | (16 if encoding == "gzip" else 0))


def accepted(header: str | None) -> str | None:
    """Return the content encoding for a response; None if no encoding of the client is supported.

    ``identity`` is preferred, then the first supported encoding in the header, as in YTsaurus' proxy.
    """
    names = [name.strip() for part in (header or "").split(",") if (name := _wanted(part))]
    if not names or IDENTITY in names or "*" in names:
        return IDENTITY
    return next((name for name in names if is_known(name)), None)


def _wanted(part: str) -> str:
    """Return the name in a part of Accept-Encoding, empty if its weight is 0."""
    name, _, weight = part.partition(";")
    return "" if weight.replace(" ", "").rstrip("0").rstrip(".") == "q=" else name.strip()


def _unpack_blocks(source: Source) -> Iterator[bytes]:
    head = source.read(_HEAD.size)
    while head:
        codec_id, size = _HEAD.unpack(head + _exactly(source, _HEAD.size - len(head)))
        codec = _BY_ID.get(codec_id)
        if codec is None:
            raise PackedError("a block has an unknown codec")
        if size > MAX_BLOCK_BYTES:
            raise PackedError(f"a block has more than {MAX_BLOCK_BYTES} bytes")
        data = _exactly(source, size)
        content = _unpack_block(codec, data) if data else b""
        if not content:
            break
        yield content
        head = _exactly(source, _HEAD.size)
    if source.read(1):
        raise PackedError("there are bytes after the last block")


def _unpack_block(codec: _Codec, data: bytes) -> bytes:
    size = len(data)
    if codec.sized:
        if size < _LENGTH.size:
            raise PackedError("a block is too short")
        (size,) = _LENGTH.unpack_from(data)
        data = data[_LENGTH.size :]
    elif codec.name == "snappy":
        size = _varint(data)
    if size > MAX_BLOCK_BYTES:
        raise PackedError(f"a block has more than {MAX_BLOCK_BYTES} bytes, unpacked")
    if not size:
        return b""
    try:
        content = codec.unpack(data, size)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise PackedError(str(error)) from None
    if len(content) != size:
        raise PackedError("the size of a block differs from its header")
    return content


def _exactly(source: Source, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = source.read(size - len(data))
        if not piece:
            raise CutOffError
        data += piece
    return bytes(data)


def _varint(data: bytes) -> int:
    value = 0
    for place, byte in enumerate(data[:5]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value
    raise PackedError("a block has no length")


def _pack_blocks(pieces: Iterable[bytes | memoryview], codec: _Codec) -> Iterator[bytes]:
    for piece in pieces:
        for begin in range(0, len(piece), BLOCK_BYTES):
            yield _pack_block(bytes(piece[begin : begin + BLOCK_BYTES]), codec)
    yield _pack_block(b"", codec)


def _pack_block(content: bytes, codec: _Codec) -> bytes:
    data = codec.pack(content)
    if codec.sized:
        data = _LENGTH.pack(len(content)) + data
    return _HEAD.pack(codec.id, len(data)) + data


def _pack_brotli(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    sink = _Sink()
    with pa.CompressedOutputStream(pa.PythonFile(sink, mode="w"), "brotli") as stream:
        for piece in pieces:
            stream.write(piece)
            yield from sink.taken()
    yield from sink.taken()


class _Sink(io.RawIOBase):
    """A writable file whose content is removed from memory while it is written."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def taken(self) -> list[bytes]:
        parts, self._parts = self._parts, []
        return parts


def _deflate(pieces: Iterable[bytes | memoryview], window: int) -> Iterator[bytes]:
    stream = zlib.compressobj(_GZIP_LEVEL, wbits=window)
    for piece in pieces:
        if data := stream.compress(piece):
            yield data
    yield stream.flush()


def _of_arrow(name: str, codec: str, level: int | None = None, *, sized: bool = True) -> _Codec:
    arrow = pa.Codec(codec, compression_level=level)
    return _Codec(
        name,
        lambda data: bytes(arrow.compress(data, asbytes=True)),
        lambda data, size: bytes(arrow.decompress(data, size, asbytes=True)),
        sized,
    )


def _brotli(name: str, level: int) -> _Codec:
    # For a block, Arrow does not return the number of decompressed bytes. A stream has an end.
    return _Codec(
        name,
        _of_arrow(name, "brotli", level).pack,
        lambda data, size: read_all(unpack_brotli(Parts([data])), _at_most(size)),
    )


def _lz4(name: str) -> _Codec:
    codec = _of_arrow(name, "lz4_raw")

    def unpack(data: bytes, size: int) -> bytes:
        content = codec.unpack(data, size)
        try:
            codec.unpack(data, size - 1)
        except OSError:
            return content
        # For a shorter block, Arrow raises no error, and leaves uninitialized memory at the end.
        raise PackedError("a block is shorter than its header says")

    return _Codec(name, codec.pack, unpack)


def _zlib(name: str, level: int) -> _Codec:
    def unpack(data: bytes, size: int) -> bytes:
        stream = zlib.decompressobj()
        return stream.decompress(data, size + 1)

    return _Codec(name, lambda data: zlib.compress(data, level), unpack)


def _bzip2(name: str, level: int) -> _Codec:
    def unpack(data: bytes, size: int) -> bytes:
        return bz2.BZ2Decompressor().decompress(data, size + 1)

    return _Codec(name, lambda data: bz2.compress(data, level), unpack)


def _at_most(size: int) -> Callable[[int], None]:
    left = size

    def take(taken: int) -> None:
        nonlocal left
        left -= taken
        if left < 0:
            raise PackedError("a block is longer than its header says")

    return take


def _codec(encoding: str) -> _Codec | None:
    """Return the block codec of a content encoding, None if there is none."""
    if not encoding.startswith(BLOCK_PREFIX):
        return None
    name = encoding.removeprefix(BLOCK_PREFIX)
    return _CODECS.get(_ALIASES.get(name, name))


def _murmur(data: bytes) -> int:
    """Return the 32-bit MurmurHash2 of a name with the seed 0."""
    factor, mask = 0x5BD1E995, 0xFFFFFFFF
    hashed = len(data)
    whole = len(data) // 4 * 4
    for begin in range(0, whole, 4):
        word = int.from_bytes(data[begin : begin + 4], "little") * factor & mask
        hashed = (hashed * factor & mask) ^ ((word ^ (word >> 24)) * factor & mask)
    if data[whole:]:
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * factor & mask
    hashed = (hashed ^ (hashed >> 13)) * factor & mask
    return hashed ^ (hashed >> 15)


_STREAMS: dict[str, Unpack] = {IDENTITY: plain, "gzip": inflate, "deflate": inflate, "br": unpack_brotli}
_CODECS = {
    codec.name: codec
    for codec in (
        _Codec("null", lambda data: data, lambda data, size: data, sized=False),
        _of_arrow("snappy", "snappy", sized=False),
        *(_of_arrow(f"zstd08_{level}", "zstd", level) for level in range(1, 23)),
        *(_brotli(f"brotli_{level}", level) for level in range(1, 12)),
        *(
            _lz4(f"lz4-{kind}-{way}")
            for kind in ("hc", *map("fast{}".format, range(10, 21)))
            for way in ("safe", "fast")
        ),
        *(_zlib(f"zlib-{level}", level) for level in range(10)),
        *(_bzip2(f"bzip2-{level}", level) for level in range(1, 10)),
    )
}
_ALIASES = {
    **{f"zstd_{level}": f"zstd08_{level}" for level in range(1, 23)},
    **dict.fromkeys(("lz4", "lz4-fast-safe"), "lz4-fast14-safe"),
    **dict.fromkeys(("lz4fast", "lz4-fast-fast"), "lz4-fast14-fast"),
    "lz4hc": "lz4-hc-safe",
    "zlib": "zlib-6",
    "bzip2": "bzip2-6",
}
_BY_ID = {codec.id: codec for codec in _CODECS.values()}
