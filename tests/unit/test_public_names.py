"""What users can import is pinned; what Spark imports everywhere stays light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace
import headrace.errors


def test_the_public_names_are_these() -> None:
    assert headrace.__all__ == [
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
        "mirror_worker",
        "open",
        "restore",
        "session",
        "sql",
        "write_stream",
    ]
    assert headrace.__all__ == sorted(headrace.__all__)
    assert all(getattr(headrace, name) is not None for name in headrace.__all__)


def test_importing_headrace_imports_nothing_heavy() -> None:
    code = "import sys, headrace; print(sorted({'pyspark', 'pyarrow', 'pandas', 'apsw', 'click'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_store_is_opened_and_described_without_pandas(tmp_path: Path) -> None:
    code = (
        "import sys, headrace\n"
        "store = headrace.open(sys.argv[1], create=True)\n"
        "orders = store.create_table('orders', {'id': 'string', 'tags': 'array<string>'}, 'id')\n"
        "stats, clicks = store.create_tunnel('orders', 'stats'), store.create_queue('clicks', {'page': 'string'})\n"
        "assert store.tables() == ['orders'] and store.queues() == ['clicks'] and store.tunnels()\n"
        "assert orders.describe().rows == 0 and stats.describe().channels and clicks.bounds()\n"
        "assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "shop")], check=True)


def test_stores_of_packages_are_imported_without_pandas() -> None:
    code = (
        "import sys, headrace_tablestore.store.store, headrace_ytsaurus.store.store\nassert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_modules_that_spark_discovers_load_no_store() -> None:
    code = (
        "import sys, pyspark_headrace, pyspark_tablestore, pyspark_yt; "
        "assert pyspark_headrace.DefaultSource.name() == 'headrace'; "
        "assert pyspark_tablestore.DefaultSource.name() == 'tablestore'; "
        "assert pyspark_yt.DefaultSource.name() == 'yt'; "
        "print('apsw' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_example_of_the_package_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    lines = str(headrace.__doc__).split("\n")
    exec("\n".join(line.removeprefix("    ") for line in lines if line.startswith("    ")), {})
    printed = capsys.readouterr().out
    assert "{'id': 'o1', 'price': 10.0}" in printed
    assert "'_change_type': 'insert'" in printed


def test_all_errors_are_exported() -> None:
    errors = {name for name, value in vars(headrace.errors).items() if isinstance(value, type) and name[0] != "_"}
    assert {name for name in errors if issubclass(getattr(headrace.errors, name), Exception)} <= set(headrace.__all__)
