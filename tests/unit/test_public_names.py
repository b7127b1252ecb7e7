"""What users can import is pinned; what Spark imports everywhere stays light."""

from __future__ import annotations

import subprocess
import sys

import headrace


def test_the_public_names_are_these() -> None:
    assert headrace.__all__ == [
        "ChangeBatch",
        "Consumer",
        "HeadraceDataSource",
        "HeadraceError",
        "LagListener",
        "Output",
        "Producer",
        "Queue",
        "Store",
        "StreamingSql",
        "Table",
        "TableChecksum",
        "TableDiff",
        "TablestoreDataSource",
        "Tunnel",
        "TunnelWorker",
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
    assert headrace.__all__ == sorted(headrace.__all__)
    assert all(getattr(headrace, name) is not None for name in headrace.__all__)


def test_importing_headrace_imports_nothing_heavy() -> None:
    code = "import sys, headrace; print(sorted({'pyspark', 'pyarrow', 'pandas', 'apsw', 'click'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


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
