"""The tools of ``--allow``: rows, and the runs of streams. No tool drops anything."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Callable
from typing import Annotated, Any

import pyarrow as pa
from pydantic import Field

from headrace.cli.file_formats import InputFile
from headrace.cli.mcp.reading import Facts, StoreName
from headrace.cli.mcp.sources import Sources
from headrace.cli.output import to_json
from headrace.cli.row_files import rows_of
from headrace.model.tables.schema import RowSchema
from headrace.streaming_sql.stream_process import log_file, start_process

MOST_ROWS = 1000
Rows = Annotated[
    list[dict[str, Any]],
    Field(
        min_length=1,
        max_length=MOST_ROWS,
        description="Objects with the columns as keys. Dates and times are ISO 8601, decimals texts, binary base64.",
    ),
]


class WritingTools:
    """The tools, which threads can share."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def tools(self) -> list[Callable[..., Facts]]:
        return [self.put_rows, self.delete_rows, self.append_rows, self.start_stream, self.stop_stream]

    def put_rows(self, table: str, rows: Rows, store: StoreName = None) -> Facts:
        """Write rows into a table, in one write. They replace whole rows with the same keys."""
        target = self._sources.store(store).table(table)
        target.put(_read(rows, target.schema))
        return {"table": table, "rows": len(rows)}

    def delete_rows(self, table: str, keys: Rows, store: StoreName = None) -> Facts:
        """Delete the rows of keys from a table, in one write. A key without a row is no error."""
        target = self._sources.store(store).table(table)
        schema = target.schema
        target.delete(_read(keys, RowSchema(tuple(schema.column(name) for name in schema.primary_key))))
        return {"table": table, "keys": len(keys)}

    def append_rows(
        self,
        queue: str,
        rows: Rows,
        partition: Annotated[int | None, Field(ge=0, description="By default the one with the fewest rows.")] = None,
        store: StoreName = None,
    ) -> Facts:
        """Append rows to a queue, in one write."""
        target = self._sources.store(store).queue(queue)
        ranges = target.append(_read(rows, target.schema), partition=partition)
        return {"queue": queue, "rows": len(rows), "partitions": [each.partition for each in ranges]}

    def start_stream(self, name: str) -> Facts:
        """Start a stream of the workspace, in a process of its own that outlives this server. It needs seconds."""
        self._started = [process for process in self._started if process.poll() is None]
        workspace = self._sources.workspace
        log = log_file(workspace, "mcp-start.log")
        process = start_process(self._sources.registry.get(name), workspace, log)
        self._started.append(process)
        return {"stream": name, "pid": process.pid, "log": str(log)}

    def stop_stream(self, name: str) -> Facts:
        """Stop a stream of the workspace, in whatever process it runs. Its batch ends before; `describe` shows when."""
        status = self._sources.registry.get(name)
        if status.is_live:
            self._sources.registry.ask_to_stop(status.name)
        return {"stream": status.name, "state": status.state, "asked_to_stop": status.is_live}


def _read(rows: list[dict[str, Any]], schema: RowSchema) -> pa.Table:
    """Return rows with the types of a schema, as `headrace table put` reads them."""
    lines = io.BytesIO("\n".join(map(to_json, rows)).encode())
    batches = list(rows_of(InputFile("the argument", lines, None, lines), "jsonl", schema))
    return pa.Table.from_batches(batches).combine_chunks()
