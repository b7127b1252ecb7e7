"""Reads and writes of format ``yt``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.formats.source import QueueRead, Source, TableRead
from headrace_ytsaurus.format.format import YT

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.batches.feeds.queue_columns import AddressColumns
    from headrace.ports import Table


class YtQueues(QueueRead):
    def has_json_composites(self) -> bool:
        return _has_json_composites(self.source)

    def address_columns(self) -> AddressColumns:
        from headrace_ytsaurus.format.columns import address_columns

        settings = self.source.settings
        return address_columns(
            with_service_columns=settings.get("include_service_columns"),
            path_column=settings.get("source_path_column") or settings.get("sourcePathColumn"),
        )


class YtTable(TableRead):
    def columns(self, table: Table) -> pa.Schema:
        import pyarrow as pa

        from headrace.rows.to_reader import opaque_type

        columns = super().columns(table)
        if not _has_json_composites(self.source):
            return columns
        return pa.schema([pa.field(field.name, opaque_type(field.type)) for field in columns])


class YtSource(Source):
    format = YT
    queue_read = YtQueues
    table_read = YtTable


def _has_json_composites(source: Source) -> bool:
    return not source.settings.get("parsing_type_v3")
