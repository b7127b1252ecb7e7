"""Reads and writes of format ``yt``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.formats.source import Source, nullable, splits
from headrace.model.tables.conditions import KeyRange
from headrace_ytsaurus.format.format import YT

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.batches.feeds.queue_columns import AddressColumns
    from headrace.ports import Table


class YtSource(Source):
    format = YT

    def has_json_composites(self) -> bool:
        return not self.settings.get("parsing_type_v3")

    def address_columns(self) -> AddressColumns:
        from headrace_ytsaurus.format.columns import address_columns

        return address_columns(
            with_service_columns=self.settings.get("include_service_columns"),
            path_column=self.settings.get("source_path_column") or self.settings.get("sourcePathColumn"),
        )

    def table_columns(self, table: Table) -> pa.Schema:
        import pyarrow as pa

        from headrace.rows.to_reader import opaque_type

        columns = nullable(table.schema.arrow)
        if not self.has_json_composites():
            return columns
        return pa.schema([pa.field(field.name, opaque_type(field.type)) for field in columns])

    def splits(self, table: Table) -> list[KeyRange]:
        return splits(table, self.settings.get("splits"))
