"""A process in which pyspark and pandas are not installed: it uses all that works so, and asks for the rest.

``python -m tests.unit.base_installation DIRECTORY`` prints the remedies of all errors.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import os
import pkgutil
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

NOON = datetime.datetime(2026, 1, 1, 12)
REFUSED = ("pandas", "py4j", "pyspark")
# The packages whose modules may need Spark.
OF_SPARK = (
    "headrace.demo.", "headrace.derived.", "headrace.monitoring.traces", "headrace.spark", "headrace.streaming_sql.",
    "pyspark_",
)  # fmt: skip
# The public names that need Spark.
NAMES = (
    "HeadraceDataSource", "LagListener", "Output", "StreamingSql", "TablestoreDataSource", "YtDataSource", "checkpoint",
    "follow", "lag_of", "merge", "mirror", "session", "sql", "write_stream",
)  # fmt: skip
STATEMENT = "CREATE TEMPORARY VIEW v AS SELECT 1;"


class _NotInstalled(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name.partition(".")[0] in REFUSED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def use_python(directory: Path) -> None:
    """Use tables, queues, tunnels, workers, mirrors, queries and backups."""
    import headrace

    assert all(getattr(headrace, name) is not None for name in dir(headrace))
    with headrace.open(directory / "shop", create=True) as store:
        orders = store.create_table("orders", {"id": "string", "at": "timestamp", "price": "double"}, "id")
        tunnel = store.create_tunnel("orders", "stats")
        orders.put([{"id": "a", "at": NOON, "price": 1.5}, {"id": "b", "price": 2.0}])
        orders.update({"id": "b", "price": 3.0})
        assert [row["price"] for row in orders] == [1.5, 3.0]
        assert sum(batch.to_arrow().num_rows for batch in tunnel.consume(idle="stop")) == 3
        clicks = store.create_queue("clicks", {"page": "string"})
        clicks.append([{"page": "/"}])
        assert store.query("SELECT sum(price) AS total FROM orders").to_pylist() == [{"total": 4.5}]
        headrace.mirror_worker(store, "orders", store, "copy", idle="stop").run()
        assert headrace.diff_tables(orders, store.table("copy")).equal
        store.back_up(directory / "backup")


def use_commands(directory: Path) -> None:
    """Use the commands that need no Spark."""
    rows = directory / "rows.csv"
    rows.write_text("id,price\nc,9.5\n")
    for line in (
        "--help", "doctor -s shop", "table list", "table head orders", "table describe orders", "queue read clicks",
        "tunnel list", "tunnel describe stats", "load rows.csv --table orders", "export orders out.parquet",
        "query 'SELECT * FROM orders'", "consumer create c", "store check", "stream list",
        "mirror orders copied --available-now",
    ):  # fmt: skip
        code, output = run_command(line)
        assert code == 0, (line, output)


def use_page(directory: Path) -> None:
    """Read pages of `headrace ui`."""
    import headrace
    from headrace.ui.server import UiThread

    with headrace.open(directory / "shop") as store:
        page = UiThread(store, directory, port=0)
        try:
            for path in ("/", "/query", "/metrics"):
                with urllib.request.urlopen(f"{page.address}{path}", timeout=30) as answer:
                    assert answer.status == 200
        finally:
            page.stop()


def import_modules() -> None:
    """Import all modules; those of Spark's layers may raise the error."""
    from headrace.errors import MissingDependencyError

    for package in ("headrace", "headrace_lake", "headrace_tablestore", "headrace_ytsaurus"):
        (place,) = import_module(package).__path__
        for module in pkgutil.walk_packages([place], f"{package}.", onerror=lambda _: None):
            if module.name.startswith("headrace.testing."):
                continue
            try:
                import_module(module.name)
            except MissingDependencyError as error:
                assert module.name.startswith(OF_SPARK), module.name
                assert error.remedy == "pip install 'headrace[spark]'", (module.name, error)


def doors(directory: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the names of all that needs Spark or pandas, with a call of it."""
    import headrace

    for name in NAMES:
        yield name, lambda name=name: getattr(headrace, name)  # type: ignore[misc]
    for name in ("headrace", "tablestore", "yt"):
        yield f"format {name}", lambda name=name: import_module(f"pyspark_{name}")  # type: ignore[misc]
    (directory / "job.sql").write_text(STATEMENT)
    for line in ("run job.sql", f"sql -e '{STATEMENT}'", "demo", "doctor --spark"):
        yield line, lambda line=line: _fail(line)  # type: ignore[misc]
    with headrace.open(directory / "shop") as store:
        yield "to_pandas", store.table("orders").to_pandas


def _fail(line: str) -> None:
    from headrace.errors import MissingDependencyError

    code, output = run_command(f"{line} --json")
    assert code == 1, (line, output)
    error = json.loads(output.splitlines()[-1])["error"]
    assert error["type"] == "MissingDependencyError", error
    raise MissingDependencyError(error["problem"], remedy=error["remedy"])


def run_command(line: str) -> tuple[int, str]:
    """Run a command of headrace; return its exit code and its output."""
    import shlex

    from headrace.cli.main import main

    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = main(shlex.split(line))
    return code, output.getvalue()


def main() -> None:
    directory = Path(sys.argv[1])
    os.chdir(directory)
    os.environ["HEADRACE_STORE"] = "shop"
    sys.meta_path.insert(0, _NotInstalled())
    import_modules()
    use_python(directory)
    use_commands(directory)
    use_page(directory)
    from headrace.errors import MissingDependencyError

    remedies = {}
    for name, call in doors(directory):
        try:
            call()
        except MissingDependencyError as error:
            remedies[name] = error.remedy
    assert not {*REFUSED} & {*sys.modules}
    print(json.dumps(remedies))


if __name__ == "__main__":
    main()
