"""Requests of the YTsaurus store: their sizes, and the client's backend."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace_ytsaurus.store import connection
from headrace_ytsaurus.store.connection import Address, parts


def sizes(rows: pa.RecordBatch, most: int = 50) -> list[int]:
    found = parts(rows, most)
    assert pa.Table.from_batches(found, rows.schema).equals(pa.Table.from_batches([rows]))
    return [part.num_rows for part in found]


def test_a_request_has_a_maximum_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.record_batch({"n": list(range(120))})
    assert sizes(rows) == [50, 50, 20]
    assert sizes(rows.slice(0, 0)) == []
    assert sizes(rows, 500) == [120]


def test_a_request_has_a_maximum_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_BYTES_PER_REQUEST", 1000)
    wide = pa.record_batch({"data": ["x"] * 16 + ["y" * 600] * 4 + ["z" * 5000]})
    assert sum(sizes(wide)) == 21
    for part in parts(wide):
        assert part.num_rows == 1 or part.nbytes <= 1000


def test_column_names_count_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_BYTES_PER_REQUEST", 1000)
    flags = pa.record_batch({f"flag_{number:03}": [True] * 8 for number in range(50)})
    assert sizes(flags) == [1] * 8


@pytest.mark.parametrize("backend", ["rpc", "native"])
def test_rows_are_sent_over_http_with_any_client_backend(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YT_CONFIG_PATCHES", f"{{backend={backend}}}")
    assert Address("hume").make_client().config["backend"] == "http"
