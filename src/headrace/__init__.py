"""headrace streams changes of tables and rows of queues through Spark, and into tables and queues, exactly once.

Tables and their changes need no Spark:

    import headrace

    store = headrace.open("shop", create=True)
    orders = store.create_table("orders", {"id": "string", "price": "double"}, "id")
    orders.put([{"id": "o1", "price": 10.0}, {"id": "o2", "price": 2.5}])
    print(orders.get({"id": "o1"}), orders.to_pandas())

    tunnel = store.create_tunnel("orders", "stats")
    for batch in tunnel.consume(idle="stop"):
        print(batch.to_arrow().to_pylist())

Spark streams a tunnel into a table with ``headrace.session``, ``headrace.write_stream`` and ``headrace.sql``; the
command ``headrace demo`` shows it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.derived.follow.stream import follow
    from headrace.derived.merge.stream import merge
    from headrace.derived.mirror.stream import mirror
    from headrace.errors import (
        AlreadyExistsError,
        BatchFailedError,
        ClaimLostError,
        ClientGoneError,
        DataLossError,
        ExpressionError,
        HeadraceError,
        InUseError,
        LostRaceError,
        MissingDependencyError,
        NotFoundError,
        NumericOverflowError,
        OffsetConflictError,
        OptionError,
        PublicationError,
        QueryLimitError,
        RowsNotWrittenError,
        SchemaError,
        SequenceNumberError,
        SessionEpochError,
        SqlError,
        StateMismatchError,
        StoreBusyError,
        StoreDamagedError,
        StoreError,
        TunnelTakenError,
        UnsupportedError,
    )
    from headrace.inspect.comparing.results import TableChecksum, TableDiff
    from headrace.inspect.comparing.tables import checksum_table, diff_tables
    from headrace.ports import Consumer, Producer, Queue, Store, Table, Tunnel
    from headrace.spark.checkpoint_location import checkpoint
    from headrace.spark.listener import LagListener, lag_of
    from headrace.spark.outputs import Output
    from headrace.spark.session import session
    from headrace.spark.write_stream import write_stream
    from headrace.stores.registry import open, restore
    from headrace.streaming_sql.session import StreamingSql, sql
    from headrace.workers import ChangeBatch, TunnelWorker
    from pyspark_headrace import DefaultSource as HeadraceDataSource
    from pyspark_tablestore import DefaultSource as TablestoreDataSource
    from pyspark_yt import DefaultSource as YtDataSource

__version__ = "0.1.0"

# Spark imports this package in every worker, so a name imports its module when it is first used.
# The module of each name, and its name there if that is another.
_HOMES = {
    "AlreadyExistsError": "headrace.errors",
    "BatchFailedError": "headrace.errors",
    "ChangeBatch": "headrace.workers",
    "ClaimLostError": "headrace.errors",
    "ClientGoneError": "headrace.errors",
    "Consumer": "headrace.ports",
    "DataLossError": "headrace.errors",
    "ExpressionError": "headrace.errors",
    "HeadraceDataSource": "pyspark_headrace:DefaultSource",
    "HeadraceError": "headrace.errors",
    "InUseError": "headrace.errors",
    "LagListener": "headrace.spark.listener",
    "LostRaceError": "headrace.errors",
    "MissingDependencyError": "headrace.errors",
    "NotFoundError": "headrace.errors",
    "NumericOverflowError": "headrace.errors",
    "OffsetConflictError": "headrace.errors",
    "OptionError": "headrace.errors",
    "Output": "headrace.spark.outputs",
    "Producer": "headrace.ports",
    "PublicationError": "headrace.errors",
    "QueryLimitError": "headrace.errors",
    "Queue": "headrace.ports",
    "RowsNotWrittenError": "headrace.errors",
    "SchemaError": "headrace.errors",
    "SequenceNumberError": "headrace.errors",
    "SessionEpochError": "headrace.errors",
    "SqlError": "headrace.errors",
    "StateMismatchError": "headrace.errors",
    "Store": "headrace.ports",
    "StoreBusyError": "headrace.errors",
    "StoreDamagedError": "headrace.errors",
    "StoreError": "headrace.errors",
    "StreamingSql": "headrace.streaming_sql.session",
    "Table": "headrace.ports",
    "TableChecksum": "headrace.inspect.comparing.results",
    "TableDiff": "headrace.inspect.comparing.results",
    "TablestoreDataSource": "pyspark_tablestore:DefaultSource",
    "Tunnel": "headrace.ports",
    "TunnelTakenError": "headrace.errors",
    "TunnelWorker": "headrace.workers",
    "UnsupportedError": "headrace.errors",
    "YtDataSource": "pyspark_yt:DefaultSource",
    "checkpoint": "headrace.spark.checkpoint_location",
    "checksum_table": "headrace.inspect.comparing.tables",
    "diff_tables": "headrace.inspect.comparing.tables",
    "follow": "headrace.derived.follow.stream",
    "lag_of": "headrace.spark.listener",
    "merge": "headrace.derived.merge.stream",
    "mirror": "headrace.derived.mirror.stream",
    "open": "headrace.stores.registry",
    "restore": "headrace.stores.registry",
    "session": "headrace.spark.session",
    "sql": "headrace.streaming_sql.session",
    "write_stream": "headrace.spark.write_stream",
}

__all__ = [
    "AlreadyExistsError",
    "BatchFailedError",
    "ChangeBatch",
    "ClaimLostError",
    "ClientGoneError",
    "Consumer",
    "DataLossError",
    "ExpressionError",
    "HeadraceDataSource",
    "HeadraceError",
    "InUseError",
    "LagListener",
    "LostRaceError",
    "MissingDependencyError",
    "NotFoundError",
    "NumericOverflowError",
    "OffsetConflictError",
    "OptionError",
    "Output",
    "Producer",
    "PublicationError",
    "QueryLimitError",
    "Queue",
    "RowsNotWrittenError",
    "SchemaError",
    "SequenceNumberError",
    "SessionEpochError",
    "SqlError",
    "StateMismatchError",
    "Store",
    "StoreBusyError",
    "StoreDamagedError",
    "StoreError",
    "StreamingSql",
    "Table",
    "TableChecksum",
    "TableDiff",
    "TablestoreDataSource",
    "Tunnel",
    "TunnelTakenError",
    "TunnelWorker",
    "UnsupportedError",
    "YtDataSource",
    "checkpoint",
    "checksum_table",
    "diff_tables",
    "follow",
    "lag_of",
    "merge",
    "mirror",
    "open",
    "restore",
    "session",
    "sql",
    "write_stream",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        module, _, attribute = _HOMES[name].partition(":")
        return getattr(import_module(module), attribute or name)
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
