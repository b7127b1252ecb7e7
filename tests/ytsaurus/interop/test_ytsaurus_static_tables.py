"""Static tables of several pieces, with YTsaurus' client."""

from __future__ import annotations

from typing import Any

import psutil
import pytest
from yt.wrapper import YtClient, YtResponseError

from tests.ytsaurus.interop.ytsaurus_server import YtServer

ROWS = 10_000
MANY = (b'{a="' + b"x" * 1000 + b'"};') * 3000
SCHEMA = [{"name": "a", "type": "int64"}, {"name": "s", "type": "string"}, {"name": "y", "type": "any"}]


def row(number: int) -> dict[str, Any]:
    # The value contains the bytes of a row's end.
    return {"a": number, "s": "};" * 100, "y": [{"b": "};{"}, {"b": number}]}


@pytest.mark.parametrize("schema", [SCHEMA, None], ids=["schema", "no schema"])
@pytest.mark.parametrize("form", ["yson", "json"])
def test_rows_are_read_from_any_pieces(client: YtClient, home: str, schema: Any, form: str) -> None:
    path = f"{home}/t"
    client.create("table", path, attributes={} if schema is None else {"schema": schema})
    client.write_table(path, map(row, range(ROWS)), format=form)
    client.write_table(f"<append=%true>{path}", [row(ROWS), row(ROWS + 1)], format=form)
    assert client.get(f"{path}/@row_count") == ROWS + 2
    assert list(client.read_table(path, format=form)) == [row(number) for number in range(ROWS + 2)]

    def numbers(ranges: str) -> list[int]:
        return [found["a"] for found in client.read_table(f"{path}{{a}}[{ranges}]", format=form)]

    assert numbers("#9998:#10009") == [9998, 9999, 10000, 10001]
    assert numbers("#7000,#3:#5,#10001,#30000,#9:#8") == [7000, 3, 4, 10001]
    assert numbers("#3000:#8000") == list(range(3000, 8000))
    assert list(client.read_table(f"{path}{{nothing}}[#1:#3]", format=form)) == [{}, {}]


def test_writing_invalid_rows_leaves_the_table_unchanged(client: YtClient, home: str) -> None:
    client.write_table(f"{home}/t", [{"a": 1}])
    for body in (b'{"a":1}{"a":', b'{"a":2}[]', MANY + b"{", MANY + b"5"):
        with pytest.raises(YtResponseError):
            client.write_table(f"{home}/t", [body], raw=True, format="json" if body[1:2] == b'"' else "yson")
    assert list(client.read_table(f"{home}/t")) == [{"a": 1}]


def test_a_large_table_is_not_kept_in_memory(yt_server: YtServer, client: YtClient, home: str) -> None:
    """A table of 100 MB is read twice; only pages of it are in memory."""
    path = f"{home}/t"
    client.create("table", path, attributes={"schema": SCHEMA[:2]})
    for number in range(5):
        client.write_table(f"<append=%true>{path}", [{"a": number, "s": "x" * 20_000}] * 1000)
    process = psutil.Process(yt_server.process.pid)
    before = process.memory_info().rss
    found = client.read_table(f"{path}[:,:]", raw=True, format="yson")
    assert process.memory_info().rss - before < 80 << 20
    assert sum(map(len, iter(lambda: found.read(1 << 20), b""))) > 200_000_000
    assert process.memory_info().rss - before < 80 << 20
