"""The inflated bytes of compressed bodies never exceed their limits, of one request or of all."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from headrace.http.unpacking import (
    Budget,
    ExhaustedError,
    PackedError,
    Parts,
    Share,
    TooLongError,
    plain,
    read_all,
)
from headrace_tablestore.endpoint.authentication import COMPRESSION, unpacked
from headrace_tablestore.wire.errors import ServiceError
from headrace_tablestore.wire.limits import MAX_BODY_BYTES
from headrace_tablestore.wire.signatures import CONTENT_MD5, content_md5
from headrace_ytsaurus.endpoint.http.encodings import packed, unpacking

MEBIBYTE = 1 << 20
TOTAL_BYTES = 64 * MEBIBYTE
# Each thread has an uncounted step, or a block of 16 MiB twice.
SLACK_BYTES = 300 * MEBIBYTE
BOMBS = """
import json, resource, sys, threading
from headrace.http.unpacking import Budget
from headrace_ytsaurus.endpoint.http.request_bodies import RequestBody
from headrace_ytsaurus.endpoint.http.encodings import packed
from headrace_ytsaurus.wire.errors import YtError

size, total, threads = 128 << 20, int(sys.argv[1]), int(sys.argv[2])
piece = bytes(16 << 20)
bombs = {}
for encoding in ("gzip", "br", "z-zstd_3", "z-brotli_1", "z-lz4", "z-snappy", "z-zlib"):
    if encoding in ("gzip", "br"):
        bombs[encoding] = b"".join(packed((piece for _ in range(size // len(piece))), encoding))
    else:
        one = b"".join(packed([piece[: 1 << 20]], encoding))
        # Without the last block, and many times.
        end = b"".join(packed([], encoding))
        bombs[encoding] = one[: -len(end)] * (size >> 20) + end
del piece

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

before, codes = peak(), []
budget = Budget(total)

def unpack(encoding, most):
    body = RequestBody(encoding, most, spooled=False, budget=budget)
    try:
        body.feed(bombs[encoding])
        body.bytes()
    except YtError as error:
        codes.append(error.code)
    finally:
        body.close()

for encoding in bombs:
    unpack(encoding, 8 << 20)
alone, codes[:] = list(codes), []
for encoding in bombs:
    workers = [threading.Thread(target=unpack, args=(encoding, 1 << 30)) for _ in range(threads)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
budget.take(total)
print(json.dumps({"alone": alone, "together": codes, "grown": peak() - before}))
"""


def test_compression_bombs_of_every_codec_stay_within_the_limits() -> None:
    threads = 8
    ran = subprocess.run(
        [sys.executable, "-c", BOMBS, str(TOTAL_BYTES), str(threads)], capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    # Each body is too long, and all bodies together exceed the memory.
    assert told["alone"] == [1] * 7
    assert told["together"] == [108] * 7 * threads
    assert told["grown"] < TOTAL_BYTES + SLACK_BYTES


@pytest.mark.parametrize("encoding", ["gzip", "br", "z-zstd_3", "z-brotli_6", "z-lz4", "z-snappy", "z-zlib", "z-bzip2"])
def test_damaged_bodies_keep_no_memory(encoding: str) -> None:
    cut_off = b"".join(packed([b"a body, " * 100], encoding))[:-3]

    def unpack(times: int) -> int:
        for _ in range(times):
            with pytest.raises(PackedError):
                read_all(unpacking(encoding)(Parts([cut_off])), lambda size: None)
        (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData"))
        return int(line.split()[1]) << 10

    before = unpack(50)
    assert unpack(200) - before < 50 * MEBIBYTE


def test_compressed_bodies_of_tablestore_stay_within_the_limits() -> None:
    def headers(body: bytes) -> dict[str, str]:
        return {CONTENT_MD5: content_md5(body), COMPRESSION: "deflate"}

    budget = Budget(MAX_BODY_BYTES)
    small, large, bomb = (zlib.compress(bytes(size)) for size in (1000, MAX_BODY_BYTES, 50 * MEBIBYTE))
    with unpacked(small, headers(small), budget) as content:
        assert content == bytes(1000)
        with pytest.raises(ServiceError, match="OTSServerBusy"), unpacked(large, headers(large), budget):
            pass
    with unpacked(large, headers(large), budget) as content:
        assert len(content) == MAX_BODY_BYTES
    with pytest.raises(ServiceError, match="OTSRequestBodyTooLarge"), unpacked(bomb, headers(bomb), budget):
        pass
    for wrong in (b"no stream", small[:-3]):
        with pytest.raises(ServiceError, match="OTSParameterInvalid"), unpacked(wrong, headers(wrong), budget):
            pass
    budget.take(MAX_BODY_BYTES)


def test_a_request_releases_its_bytes() -> None:
    budget = Budget(100)
    one, other = Share(budget, 80), Share(budget, 80)
    one.take(80)
    with pytest.raises(TooLongError):
        one.take(1)
    with pytest.raises(ExhaustedError):
        other.take(21)
    one.free()
    one.free()
    other.take(80)


def test_parts_are_read_in_steps_of_any_size() -> None:
    parts = [b"", b"abc", b"", b"defgh", b""]
    assert read_all(plain(Parts(parts)), lambda size: None) == b"abcdefgh"
    source = Parts(parts)
    assert [source.read(2) for _ in range(6)] == [b"ab", b"c", b"de", b"fg", b"h", b""]
