"""The script of the demonstration: the sample of Tablestore's vendor with endpoint, keys and tunnel id."""

from __future__ import annotations

from pathlib import Path
from string import Template

INSTANCE = "vehicle-test"
SOURCE, SINK = "OrderSource", "OrderStreamSink"
SINK_COLUMNS = {"begin": "string", "end": "string", "count": "long", "totalPrice": "double"}
SINK_KEY = ("begin", "end")

_SCRIPT = Template("""\
CREATE TABLE order_source USING tablestore OPTIONS(
  endpoint="$endpoint", access.key.id="", access.key.secret="", instance.name="$instance", table.name="$source",
  catalog='{"columns": {"UserId": {"type": "string"}, "OrderId": {"type": "string"},
    "price": {"type": "double"}, "timestamp": {"type": "long"}}}');

CREATE TABLE order_stream_sink USING tablestore OPTIONS(
  endpoint="$endpoint", access.key.id="", access.key.secret="", instance.name="$instance", table.name="$sink",
  catalog='{"columns": {"begin": {"type": "string"}, "end": {"type": "string"},
    "count": {"type": "long"}, "totalPrice": {"type": "double"}}}');

// Create a view named order_source_stream_view on the order_source table.
CREATE SCAN order_source_stream_view ON order_source USING STREAM
  OPTIONS(tunnel.id="$tunnel", maxoffsetsperchannel="10000");

CREATE STREAM job1 options(checkpointLocation='$checkpoint', outputMode='update')
INSERT INTO order_stream_sink
SELECT CAST(window.start AS String) AS begin, CAST(window.end AS String) AS end,
  count(*) AS count, CAST(sum(price) AS Double) AS totalPrice
FROM order_source_stream_view GROUP BY window(to_timestamp(timestamp / 1000), "30 seconds");
""")


def script(*, endpoint: Path | str, tunnel_id: str, checkpoint: Path) -> str:
    """Return the script for the instance `INSTANCE` of an endpoint, or for that sub-directory of a path."""
    return _SCRIPT.substitute(
        endpoint=endpoint, instance=INSTANCE, source=SOURCE, sink=SINK, tunnel=tunnel_id, checkpoint=checkpoint
    )
