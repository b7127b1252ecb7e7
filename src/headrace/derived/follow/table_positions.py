"""The rows of a followed table as of a batch of its query, which the store itself cannot read.

The table has changes that the query has not read yet. So its current rows are read first, and then the changes from the
end of the batch up to the end of the log, which is later than all that was read. A key without such a change has the
row that was read. A key with changes has the row before its first one, which the log of a followed table has: the
pre-image of an update or delete, and nothing before an insert. So each row is that of the batch, whenever it was read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.batches.sinks.jobs import ANEW
from headrace.derived.follow.scans import FollowedScan, signed_rows
from headrace.derived.gathering.row_keys import row_bytes
from headrace.derived.last_rows import net_changes
from headrace.derived.own_names import SIGN
from headrace.errors import OptionError, StoreBusyError, UnsupportedError
from headrace.formats.option_checks import options_for
from headrace.formats.source import Source, TunnelRead
from headrace.model.tables.changes import ChangeOp, Changes
from headrace.model.tunnels.values import FINISHED, ChannelKind, ChannelState, Position
from headrace.options.option import BATCH_READ
from headrace.ports import Store, Tunnel
from headrace.spark.analysed_plans import stream_sources
from headrace.spark.arrow_functions import map_in_arrow
from headrace.spark.connect import is_connect
from headrace.spark.versions import arrow_schema
from headrace.sql_text.lexer import quote_name
from headrace.support import failpoints

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PAGE_ROWS = 65_536


@dataclass(frozen=True)
class TablePosition:
    """A followed table at the end of a batch.

    Attributes:
        scan: the scan.
        df: the streaming DataFrame of its reader.
        offset: the offset of the reader at the end of the batch.
    """

    scan: FollowedScan
    df: DataFrame
    offset: Any

    def check(self) -> int | None:
        """Check that the rows can be read; return their number now, None if the store does not know it.

        Raises:
            UnsupportedError: the tunnel does not have the whole table, or its reader is not known.
            OptionError: the tunnel has not read the rows that were in the table when it was created.
        """
        source = self._source()
        with source.location.open_store() as store:
            _, tunnel, positions = self._positions(source, store)
            self._check_whole(tunnel, positions)
            return tunnel.table.describe().rows

    def rows(self) -> DataFrame:
        """Read the rows, in the columns of the scan."""
        source = self._source()
        columns = [quote_name(name) for name in self.scan.schema.names]
        with source.location.open_store() as store:
            read, tunnel, positions = self._positions(source, store)
            self._check_whole(tunnel, positions)
            options = options_for(source.format, source.options, BATCH_READ) | {"table": tunnel.table.name}
            reader = self.df.sparkSession.read.format(source.format.name).options(**options)
            # The executors keep what they read: rows that were read again after the log would be later ones.
            current = reader.load().select(*columns).localCheckpoint(eager=True)
            failpoints.reach("table-read")
            changed, before = self._before_changes(read, tunnel, positions)
        if not len(changed):
            return current
        schema = arrow_schema(self.scan.schema)
        key = list(self.scan.key)

        def unchanged(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for part in parts:
                keys = row_bytes(pa.table(part).cast(schema).select(key))
                yield part.filter(pc.invert(pc.is_in(keys, changed)))

        kept = map_in_arrow(current.toDF(*schema.names), unchanged, self.scan.schema)
        # Arrow can have no rows in no chunks, for which pyspark fails if a column is an array, a map or a struct.
        return kept.unionAll(self.df.sparkSession.createDataFrame(before, self.scan.schema)) if len(before) else kept

    def _source(self) -> Source:
        found = stream_sources(self.df)
        if not found:
            raise UnsupportedError(
                f"the table of scan {self.scan.name} cannot be read as of the last batch",
                received="a session of Spark Connect" if is_connect(self.df.sparkSession) else "an unknown reader",
                remedy=f"start the new text from a classic session; or {ANEW}",
            )
        return found[0]

    def _positions(self, source: Source, store: Store) -> tuple[TunnelRead, Tunnel, Mapping[str, Position]]:
        """Return the tunnel, and the position in each of its channels: the first one if no batch has read it."""
        read = source.stream(store)
        assert isinstance(read, TunnelRead), "a followed scan reads a tunnel"
        feed = read.feed(store)
        assert isinstance(feed, TunnelFeed)
        positions = feed.positions_after(feed.position_of(self.offset))
        known = {
            channel.id: FINISHED if channel.state is ChannelState.FINISHED else channel.committed
            for channel in feed.tunnel.channels(positions)
        }
        return read, feed.tunnel, {**known, **positions}

    def _check_whole(self, tunnel: Tunnel, positions: Mapping[str, Position]) -> None:
        if tunnel.whole_transactions:
            raise UnsupportedError(
                "a table of a tunnel of several tables cannot be read as of the last batch",
                received=f"scan {self.scan.name}, tunnel {tunnel.name!r}",
                remedy=ANEW,
            )
        try:
            with tunnel.table.scan(list(self.scan.key), limit=1):
                pass
        except UnsupportedError as error:
            raise UnsupportedError(
                "the table of a tunnel that leaves out or masks a part of it cannot be read as of the last batch",
                received=f"scan {self.scan.name}, tunnel {tunnel.name!r}",
                remedy=ANEW,
            ) from error
        base = [each.id for each in tunnel.channels(positions) if each.kind is ChannelKind.BASE_DATA]
        unread = [channel for channel in base if positions.get(channel) != FINISHED]
        if unread:
            raise OptionError(
                f"scan {self.scan.name} has not read all rows that were in the table when its tunnel was created",
                received=f"{len(unread)} of {len(base)} ranges are left",
                remedy="start the stream with the text before until its lag is 0, and replace the text then",
            )

    def _before_changes(
        self, read: TunnelRead, tunnel: Tunnel, positions: Mapping[str, Position]
    ) -> tuple[pa.BinaryArray, pa.Table]:
        """Return the keys with changes after some positions, as `row_bytes`, and their rows before these changes."""
        schema, shape = arrow_schema(self.scan.schema), read.shape(tunnel, None)
        signed = schema.append(pa.field(SIGN, pa.int8()))
        changes = [signed_rows(pa.table(shape.rows(each)), schema) for each in self._changes(tunnel, positions)]
        rows = pa.concat_tables([signed.empty_table(), *changes]).combine_chunks()
        places = [schema.get_field_index(name) for name in self.scan.key]
        net = pa.Table.from_batches(net_changes(rows.to_batches(), places), signed)
        before = net.filter(pc.less(net.column(SIGN), 0)).drop_columns([SIGN])
        return row_bytes(rows.select(list(self.scan.key))).unique(), before

    def _changes(self, tunnel: Tunnel, positions: Mapping[str, Position]) -> Iterator[Changes]:
        """Yield the changes after some positions, in the order of each channel."""
        latest = tunnel.settled_positions()
        for channel in tunnel.channels(positions):
            position, until = positions[channel.id], latest.get(channel.id)
            if channel.kind is ChannelKind.BASE_DATA:
                continue
            ends = position == FINISHED and channel.state is not ChannelState.FINISHED
            while position != FINISHED:
                page = tunnel.read(channel.id, position, _PAGE_ROWS, until)
                if page.changes.num_rows:
                    self._refuse_truncation(page.changes)
                    yield page.changes
                ends = page.next == FINISHED
                if not page.changes.num_rows or page.next == until:
                    break
                position = page.next
            if ends:
                raise StoreBusyError(
                    f"a partition of the table of scan {self.scan.name} was split or merged after the last batch",
                    received=f"channel {channel.id}",
                    remedy="start the stream with the text before until it has read all changes, and replace the text "
                    "then",
                )

    def _refuse_truncation(self, changes: Changes) -> None:
        """Raise `OptionError` for a TRUNCATE: the log does not have the rows that it removed."""
        if pc.any(pc.equal(changes.ops, ChangeOp.TRUNCATE)).as_py():
            raise OptionError(
                f"the table of scan {self.scan.name} was truncated after the last batch",
                received="a new text whose state lacks columns of this table",
                remedy="start the stream with the text before until it has read all changes, and replace the text then",
            )
