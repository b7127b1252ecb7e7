"""Spark Declarative Pipelines over headrace: the example, and the pipelines that Spark refuses.

Pipelines run on Spark Connect: their clients are other processes, the server is in the shared session.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headrace
from tests.documents import ROOT, claimed

pytest.importorskip("grpc")
pytest.importorskip("yaml")

EXAMPLE = ROOT / "examples" / "pipelines"
PIPELINES = Path(sys.executable).parent / "spark-pipelines"


def _run(command: list[str | Path], directory: Path, **variables: str) -> str:
    done = subprocess.run(
        command, cwd=directory, env={**os.environ, **variables}, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout


def _table(spark: SparkSession, name: str) -> list[dict[str, Any]]:
    """Return the rows of a table of Spark, in some order that is always the same."""
    # Another session has written it.
    spark.catalog.refreshTable(name)
    return sorted((row.asDict() for row in spark.table(name).collect()), key=str)


def _with_store(text: str, store: str) -> str:
    """Return Python code with the store in its options: the server's environment names none."""
    return text.replace('.format("headrace")', f'.format("headrace").option("store", {store!r})').replace(
        '"headrace", {', f'"headrace", {{"store": {store!r}, '
    )


def test_the_example_goes_on_where_the_last_run_ended(spark: SparkSession, connect: str, tmp_path: Path) -> None:
    example, store = tmp_path / "example", str(tmp_path / "store")
    shutil.copytree(EXAMPLE, example, ignore=shutil.ignore_patterns("__pycache__"))
    spec, definitions = example / "spark-pipeline.yml", example / "transformations" / "orders.py"
    text = spec.read_text()
    assert "file:///tmp/orders-pipeline/" in text
    # By default, Spark fails a flow three times, with pauses, before it gives up.
    text += '  spark.sql.pipelines.maxFlowRetryAttempts: "0"\n'
    spec.write_text(text.replace("file:///tmp/orders-pipeline/", f"file://{tmp_path}/"))
    definitions.write_text(_with_store(definitions.read_text(), store))
    create: list[str | Path] = [sys.executable, example / "create_store.py", tmp_path]
    run: list[str | Path] = [PIPELINES, "--remote", connect, "run", "--spec", spec]

    _run(create, tmp_path)
    assert "Run is COMPLETED" in _run(run, tmp_path)
    assert len(_table(spark, "order_changes")) == 6
    _run([*create, "--more"], tmp_path)
    assert "Run is COMPLETED" in _run(run, tmp_path)

    # Inserts of the first run, then an update, a delete and an insert: each change once.
    changes = [(row["id"], row["_change_type"]) for row in _table(spark, "order_changes")]
    assert sorted(changes, key=str) == sorted(
        [(n, "insert") for n in range(7)] + [(1, "update_postimage"), (5, "delete")], key=str
    )
    assert _table(spark, "totals_per_city") == [
        {"city": "Oslo", "orders": 2, "spent": 45.0},
        {"city": "Riga", "orders": 4, "spent": 215.0},
    ]
    with headrace.open(store) as opened:
        big = opened.table("big_orders").scan().read_all().to_pylist()
        closed = opened.table("closed_orders").scan().read_all().to_pylist()
    assert [(row["id"], row["p2"]) for row in big] == [(1, 150.0), (3, 120.0), (4, 160.0), (5, 200.0)]
    assert [row["id"] for row in closed] == [5]


_PIPELINES = """
import contextlib, io, json, sys
from pathlib import Path
from pyspark import pipelines as dp
from pyspark.pipelines.add_pipeline_analysis_context import add_pipeline_analysis_context
from pyspark.pipelines.graph_element_registry import graph_element_registration_context
from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, handle_pipeline_events, start_run
from pyspark.sql import SparkSession
import headrace

directory = Path(sys.argv[1])
store = headrace.open(directory / "store", create=True)
orders = store.create_table("orders", {"id": "long", "user": "string", "price": "double"}, "id")
store.create_table("copy", {"id": "long", "user": "string", "price": "double"}, "id")
store.create_table("counts", {"user": "string", "count": "long"}, "user")
store.create_tunnel("orders", "all", kind="BaseAndStream")
store.create_tunnel("orders", "for_sql", kind="BaseAndStream")
orders.put([{"id": 1, "user": "u1", "price": 1.0}])
for name in ("history", "history_of_sql", "big", "cdc"):
    store.create_tunnel("orders", name, kind="BaseAndStream")
store.create_table("big_orders", {"id": "long", "user": "string", "price": "double"}, "id")
orders.put([{"id": 2, "user": "u2", "price": 60.0}])
for queue in ("clicks", "copied_clicks"):
    store.create_queue(queue, {"user": "string"})
store.queue("clicks").append([{"user": "u1"}, {"user": "u2"}])
COPY = {"store": store.url, "table": "copy"}

spark = SparkSession.builder.remote(sys.argv[2]).config("spark.sql.pipelines.maxFlowRetryAttempts", 0).getOrCreate()


def changes():
    return spark.readStream.format("headrace").options(store=store.url, tunnel="all").load()


def cdc(target):
    dp.temporary_view(name="cdc_rows")(changes)
    dp.create_auto_cdc_flow(
        target=target, source="cdc_rows", keys=["id"], sequence_by="_commit_version",
        apply_as_deletes="_change_type = 'delete'",
        except_column_list=["_change_type", "_commit_version", "_commit_timestamp"], stored_as_scd_type=1,
    )


def auto_cdc_into_parquet():
    dp.create_streaming_table("current_orders")
    cdc("current_orders")


def auto_cdc_into_a_sink():
    dp.create_sink("copy", "headrace", COPY)
    cdc("copy")


def aggregate_into_a_sink():
    dp.create_sink("counts", "headrace", {"store": store.url, "table": "counts"})
    dp.append_flow(target="counts", name="count")(lambda: changes().groupBy("user").count())


def batch_for_a_streaming_table():
    dp.table(name="orders_now")(lambda: spark.read.format("headrace").option("store", store.url).load("orders"))


def stream_for_a_materialized_view():
    dp.materialized_view(name="orders_view")(changes)


def sink_as_a_source():
    dp.create_sink("copy", "headrace", COPY)
    dp.append_flow(target="copy", name="put")(lambda: changes().select("id", "user", "price"))
    dp.materialized_view(name="copied")(lambda: spark.read.table("copy"))


def table_in_format_headrace():
    properties = {f"option.{name}": value for name, value in COPY.items()}
    dp.table(name="kept", format="headrace", table_properties=properties)(
        lambda: changes().select("id", "user", "price"))


def stream_of_a_format_in_sql():
    options = f"store='{store.url}', tunnel='all'"
    return f"CREATE STREAMING TABLE t AS SELECT * FROM STREAM headrace.`orders` WITH ({options})"


def view_of_a_format_in_sql():
    return f"CREATE TEMPORARY VIEW v USING headrace OPTIONS (store '{store.url}', tunnel 'all')"


def queue_to_queue_and_tunnel_in_sql():
    dp.create_sink("copied_clicks", "headrace", {"store": store.url, "queue": "copied_clicks"})
    options = {"store": store.url, "queue": "clicks", "startingPosition": "earliest"}
    dp.append_flow(target="copied_clicks", name="copy")(
        lambda: spark.readStream.format("headrace").options(**options).load())
    options = f"store = '{store.url}', tunnel = 'for_sql'"
    return f"CREATE STREAMING TABLE from_sql AS SELECT id, _change_type FROM STREAM listed WITH ({options})"


# The blocks of the page: Python, two statements of SQL, Python. The environment of this process names no store.
page = [
    block.replace('.format("headrace")', f'.format("headrace").option("store", {store.url!r})')
    .replace('{"table": "big_orders"}', repr({"store": store.url, "table": "big_orders"}))
    .replace("/data/shop", store.url)
    # Each flow needs its own tunnel.
    .replace("tunnel 'history'", "tunnel 'history_of_sql'")
    .replace("tunnel = 'history'", "tunnel = 'history_of_sql'")
    for block in json.loads((directory / "page.json").read_text())
]


def the_python_of_the_page():
    exec(page[0], globals())


def the_sql_of_the_page():
    # The Python of the page has a table of this name.
    return page[2].replace("order_changes", "order_changes_of_sql")


def the_auto_cdc_of_the_page():
    exec(page[3], globals())


outcomes = {}
spark.sql(page[1])
spark.sql(f"CREATE TABLE listed USING headrace OPTIONS (store '{store.url}', tunnel 'for_sql')")
for define in [auto_cdc_into_parquet, auto_cdc_into_a_sink, aggregate_into_a_sink, batch_for_a_streaming_table,
               stream_for_a_materialized_view, sink_as_a_source, table_in_format_headrace,
               stream_of_a_format_in_sql, view_of_a_format_in_sql, queue_to_queue_and_tunnel_in_sql,
               the_python_of_the_page, the_sql_of_the_page, the_auto_cdc_of_the_page]:
    graph = create_dataflow_graph(spark, default_catalog=None, default_database=None, sql_conf={})
    registry = SparkConnectGraphElementRegistry(spark, graph)
    # Spark prints the errors of the analysis as events.
    with contextlib.redirect_stdout(io.StringIO()) as events:
        try:
            with graph_element_registration_context(registry):
                with add_pipeline_analysis_context(spark=spark, dataflow_graph_id=graph, flow_name=None):
                    sql = define()
                if sql:
                    registry.register_sql(sql, Path("definitions.sql"))
            handle_pipeline_events(start_run(
                spark, graph, full_refresh=[], full_refresh_all=False, refresh=[], dry=False,
                storage=f"file://{directory}/{define.__name__}",
            ))
            error = "completed"
        except Exception as raised:
            error = str(raised)
    outcomes[define.__name__] = events.getvalue() + error
(directory / "outcomes.json").write_text(json.dumps(outcomes))
spark.stop()
"""


def test_spark_refuses_what_the_page_says_with_the_errors_that_it_shows(
    spark: SparkSession, connect: str, tmp_path: Path
) -> None:
    blocks = [block.text for block in claimed("docs/pipelines.md", "tests/spark/test_pipelines.py")]
    (tmp_path / "page.json").write_text(json.dumps(blocks))
    _run([sys.executable, "-W", "ignore", "-c", _PIPELINES, str(tmp_path), connect], tmp_path)
    outcomes = json.loads((tmp_path / "outcomes.json").read_text())

    accepted = outcomes.pop("queue_to_queue_and_tunnel_in_sql")
    assert accepted.endswith("completed"), accepted[-2000:]
    assert _table(spark, "from_sql") == [
        {"id": 1, "_change_type": "insert"},
        {"id": 2, "_change_type": "insert"},
    ]
    with headrace.open(tmp_path / "store") as store:
        rows = store.queue("copied_clicks").read(0, 0).rows
        assert rows["user"].to_pylist() == ["u1", "u2"]
        assert [store.table(name).scan().read_all().num_rows for name in ("copy", "counts")] == [0, 0]

    for name in ("the_python_of_the_page", "the_sql_of_the_page"):
        accepted = outcomes.pop(name)
        assert accepted.endswith("completed"), accepted[-2000:]
    for name in ("order_changes", "order_changes_of_sql"):
        assert [row["id"] for row in _table(spark, name)] == [1, 2]
    assert "AUTOCDC_TARGET_DOES_NOT_SUPPORT_MERGE" in outcomes.pop("the_auto_cdc_of_the_page")
    with headrace.open(tmp_path / "store") as store:
        assert [row["id"] for row in store.table("big_orders").scan().read_all().to_pylist()] == [2]

    page = (ROOT / "docs" / "pipelines.md").read_text().split("## What Spark refuses")[1]
    shown = re.findall(r"^\| ([^|]+) \| [^|]+ \| `([^|]+)` \|$", page, re.MULTILINE)
    assert len(shown) == len(outcomes)
    for (pipeline, message), (name, outcome) in zip(shown, outcomes.items(), strict=True):
        for part in message.split(" … "):
            assert part in outcome, f"{pipeline} ({name}): {outcome[:2000]}"
