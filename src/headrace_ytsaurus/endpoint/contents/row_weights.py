"""The maximum weight of a row of a static table: 16 MiB, unless the writer sets another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace_ytsaurus.endpoint.parameters import Parameters, number_of
from headrace_ytsaurus.wire.errors import Code, YtError
from headrace_ytsaurus.wire.yson import documents

DEFAULT_ROW_BYTES = 16 << 20
MAX_ROW_BYTES = 128 << 20
"""The maximum that a writer can set."""


def check_row_weights(parameters: Parameters, pieces: Sequence[tuple[int, bytes]]) -> None:
    """Raise an error if a row of a request is too long (``max_row_weight`` of ``table_writer``).

    Args:
        pieces: for each, the number of its rows, and the rows in YSON.
    """
    most = _most(parameters)
    for _, data in pieces:
        if len(data) <= most:
            continue
        longest = max(sum(map(_weight, row.values())) for row in documents.load_fragment(data))
        if longest > most:
            raise YtError(
                Code.ROW_WEIGHT_LIMIT_EXCEEDED,
                "Row weight is too large",
                received=f"{longest} bytes",
                valid=f"at most {most}",
                remedy=f"set max_row_weight of table_writer, at most {MAX_ROW_BYTES}",
            )


def _weight(value: object) -> int:
    return len(value) if isinstance(value, bytes) else len(documents.dumps(value, text=False))


def _most(parameters: Parameters) -> int:
    writer: Mapping[str, object] = parameters.mapping("table_writer", {})
    given = writer.get("max_row_weight", DEFAULT_ROW_BYTES)
    return number_of(given, "max_row_weight of /table_writer", least=1, most=MAX_ROW_BYTES)
