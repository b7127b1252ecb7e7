"""The progress of a stream over base data: its lag falls to zero, and its history remains after its end."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from headrace.model.tunnels.lag import Lag
from headrace.streaming_sql.stream_history import StreamHistory
from headrace.streaming_sql.stream_registry import StreamRegistry
from headrace.streaming_sql.workspace import Workspace
from tests.spark.sql_scripts import create_store, put_orders, sink_rows, sql_session, vendor_script, wait_for


def test_the_lag_of_base_data_falls_to_zero_and_the_history_remains(spark: SparkSession, tmp_path: Path) -> None:
    store = create_store(tmp_path)
    put_orders(store, 0, 90)
    tunnel = store.create_tunnel("OrderSource", "stats", base_channels=1)
    put_orders(store, 90, 5)
    assert tunnel.describe().lag == Lag(95, 0, 1, 0)
    script = vendor_script(tmp_path, tunnel.id).replace('maxoffsetsperchannel="10000"', 'maxoffsetsperchannel="40"')
    with sql_session(spark, tmp_path) as session:
        session.run(script)
        wait_for(lambda: sum(row[2] for row in sink_rows(store)) == 95)
        wait_for(lambda: session.streams()[0].unread == Lag(0, 0, 1, 1))
        shown = session.run("SHOW STREAMS")[0]
        assert shown.rows[0][shown.columns.index("lag")] == 0
        session.run("STOP STREAM job1")
    # As another process sees it.
    workspace = Workspace(tmp_path)
    assert StreamRegistry(workspace).get("job1").state == "stopped"
    history = StreamHistory(workspace)
    batches = [batch for batch in history.batches("job1") if batch.rows_in]
    assert [(batch.rows_in, batch.lag) for batch in batches] == [
        (40, Lag(55, 0, 1, 0)),
        (40, Lag(15, 0, 1, 0)),
        (10, Lag(5, 0, 1, 1)),
        (5, Lag(0, 0, 1, 1)),
    ]
    # Windows of 30 seconds over orders in the order of their keys, of which each batch changes some.
    assert all(batch.rows_out is not None and 1 <= batch.rows_out <= 4 for batch in batches)
    assert batches[-1].state_rows == 4
    assert all(batch.state_bytes and batch.durations["addBatch"] <= batch.seconds for batch in batches)
    assert [ending.state for ending in history.endings("job1")] == ["stopped"]
