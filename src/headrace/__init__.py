"""headrace streams changes of tables and rows of queues through Spark, and into tables and queues, exactly once.

Tables and their changes need no Spark:

    import headrace

    store = headrace.open("shop", create=True)
    orders = store.create_table("orders", {"id": "string", "price": "double"}, "id")
    orders.put([{"id": "o1", "price": 10.0}, {"id": "o2", "price": 2.5}])
    print(orders.get({"id": "o1"}), orders.scan().read_all().num_rows)

    tunnel = store.create_tunnel("orders", "stats")
    for batch in tunnel.consume(idle="stop"):
        print(batch.to_arrow().to_pylist())

Spark, from the extra ``spark``, streams a tunnel into a table with ``headrace.session``,
``headrace.write_stream`` and ``headrace.sql``; the command ``headrace demo`` shows it.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.derived.follow.stream import follow as follow
    from headrace.derived.merge.stream import merge as merge
    from headrace.derived.mirror.stream import mirror as mirror
    from headrace.derived.mirror.worker import mirror_worker as mirror_worker
    from headrace.errors import AlreadyExistsError as AlreadyExistsError
    from headrace.errors import BatchFailedError as BatchFailedError
    from headrace.errors import ClaimLostError as ClaimLostError
    from headrace.errors import ClientGoneError as ClientGoneError
    from headrace.errors import DataLossError as DataLossError
    from headrace.errors import ExpressionError as ExpressionError
    from headrace.errors import HeadraceError as HeadraceError
    from headrace.errors import InUseError as InUseError
    from headrace.errors import LostRaceError as LostRaceError
    from headrace.errors import MissingDependencyError as MissingDependencyError
    from headrace.errors import NotFoundError as NotFoundError
    from headrace.errors import NumericOverflowError as NumericOverflowError
    from headrace.errors import OffsetConflictError as OffsetConflictError
    from headrace.errors import OptionError as OptionError
    from headrace.errors import PublicationError as PublicationError
    from headrace.errors import QueryLimitError as QueryLimitError
    from headrace.errors import RowsNotWrittenError as RowsNotWrittenError
    from headrace.errors import SchemaError as SchemaError
    from headrace.errors import SequenceNumberError as SequenceNumberError
    from headrace.errors import SessionEpochError as SessionEpochError
    from headrace.errors import SqlError as SqlError
    from headrace.errors import StateMismatchError as StateMismatchError
    from headrace.errors import StoreBusyError as StoreBusyError
    from headrace.errors import StoreDamagedError as StoreDamagedError
    from headrace.errors import StoreError as StoreError
    from headrace.errors import TunnelTakenError as TunnelTakenError
    from headrace.errors import UnsupportedError as UnsupportedError
    from headrace.inspect.comparing.results import TableChecksum as TableChecksum
    from headrace.inspect.comparing.results import TableDiff as TableDiff
    from headrace.inspect.comparing.tables import checksum_table as checksum_table
    from headrace.inspect.comparing.tables import diff_tables as diff_tables
    from headrace.ports import Consumer as Consumer
    from headrace.ports import Producer as Producer
    from headrace.ports import Queue as Queue
    from headrace.ports import Store as Store
    from headrace.ports import Table as Table
    from headrace.ports import Tunnel as Tunnel
    from headrace.spark.checkpoint_location import checkpoint as checkpoint
    from headrace.spark.data_sources import FormatDataSource
    from headrace.spark.listener import LagListener as LagListener
    from headrace.spark.listener import lag_of as lag_of
    from headrace.spark.outputs import Output as Output
    from headrace.spark.session import session as session
    from headrace.spark.write_stream import write_stream as write_stream
    from headrace.stores.registry import open as open
    from headrace.stores.registry import restore as restore
    from headrace.streaming_sql.session import StreamingSql as StreamingSql
    from headrace.streaming_sql.session import sql as sql
    from headrace.workers import ChangeBatch as ChangeBatch
    from headrace.workers import TunnelWorker as TunnelWorker

    HeadraceDataSource: type[FormatDataSource]

__version__ = "0.2.0.dev0"

# Spark imports this package in every worker, so a name imports its module when it is first used.
_NAMES = {
    "headrace.derived.follow.stream": "follow",
    "headrace.derived.merge.stream": "merge",
    "headrace.derived.mirror.stream": "mirror",
    "headrace.derived.mirror.worker": "mirror_worker",
    "headrace.errors": """
        AlreadyExistsError BatchFailedError ClaimLostError ClientGoneError DataLossError ExpressionError
        HeadraceError InUseError LostRaceError MissingDependencyError NotFoundError NumericOverflowError
        OffsetConflictError OptionError PublicationError QueryLimitError RowsNotWrittenError SchemaError
        SequenceNumberError SessionEpochError SqlError StateMismatchError StoreBusyError StoreDamagedError
        StoreError TunnelTakenError UnsupportedError
    """,
    "headrace.inspect.comparing.results": "TableChecksum TableDiff",
    "headrace.inspect.comparing.tables": "checksum_table diff_tables",
    "headrace.ports": "Consumer Producer Queue Store Table Tunnel",
    "headrace.spark.checkpoint_location": "checkpoint",
    "headrace.spark.listener": "LagListener lag_of",
    "headrace.spark.outputs": "Output",
    "headrace.spark.session": "session",
    "headrace.spark.write_stream": "write_stream",
    "headrace.stores.registry": "open restore",
    "headrace.streaming_sql.session": "StreamingSql sql",
    "headrace.workers": "ChangeBatch TunnelWorker",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
_DATA_SOURCE = "DataSource"

# The homes that import pyspark.
_OF_SPARK = (
    "headrace.derived.follow.",
    "headrace.derived.merge.",
    "headrace.derived.mirror.stream",
    "headrace.spark.",
    "headrace.streaming_sql.",
)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name.endswith(_DATA_SOURCE) and find_spec(module := f"pyspark_{name.removesuffix(_DATA_SOURCE).lower()}"):
        return import_module(module).DefaultSource
    if name == "__all__":
        return __dir__()
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names: those of this package that can be imported, and the data sources of its formats."""
    from headrace.support.entry_points import FORMATS, entries
    from headrace.support.extras import SPARK, is_installed

    if not is_installed(SPARK[1]):
        # `help(headrace)` reads all attributes.
        return sorted(name for name, home in _HOMES.items() if not home.startswith(_OF_SPARK))
    formats = [name for name in entries(FORMATS) if find_spec(f"pyspark_{name}")]
    return sorted([*_HOMES, *(f"{name.capitalize()}{_DATA_SOURCE}" for name in formats)])
