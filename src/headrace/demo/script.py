"""The script of the demonstration: the sample of Tablestore's vendor, and a stream that follows the orders.

The vendor's sample has only an endpoint, keys and a tunnel id of ours. It counts events. The second part, in headrace's
own format, keeps totals of the orders that exist. For stores that format ``tablestore`` does not know, the sample is in
headrace's format, too.
"""

from __future__ import annotations

from pathlib import Path
from string import Template

INSTANCE = "vehicle-test"
SOURCE, SINK = "OrderSource", "OrderStreamSink"
SINK_COLUMNS = {"begin": "string", "end": "string", "count": "long", "totalPrice": "double"}
SINK_KEY = ("begin", "end")
TOTALS = "OrderTotals"
TOTALS_COLUMNS = {"UserId": "string", "orders": "long", "spent": "double", "highest": "double"}
TOTALS_KEY = ("UserId",)

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

_STORE_SCRIPT = Template("""\
CREATE TABLE order_source USING headrace OPTIONS (store = "$store", table = "$source");
CREATE TABLE order_stream_sink USING headrace OPTIONS (store = "$store", table = "$sink");

CREATE SCAN order_source_stream_view ON order_source USING STREAM
  OPTIONS (tunnel = "$tunnel", maxRowsPerTrigger = 10000);

-- With pre-images, a deleted order has its time. It is no event.
CREATE STREAM job1 OPTIONS (checkpointLocation = "$checkpoint", outputMode = "update")
INSERT INTO order_stream_sink
SELECT CAST(window.start AS String) AS begin, CAST(window.end AS String) AS end,
  count(*) AS count, CAST(sum(price) AS Double) AS totalPrice
FROM order_source_stream_view WHERE _change_type IN ('insert', 'update_postimage')
GROUP BY window(to_timestamp(timestamp / 1000), "30 seconds");
""")

# A batch every two seconds: the totals share two cores with the vendor's stream and the writers.
_TOTALS_SCRIPT = Template("""
-- The orders that exist, by user: updates and deletes of orders change the totals, too.
CREATE TABLE orders USING headrace OPTIONS (store = "$store", table = "$source");
CREATE TABLE order_totals USING headrace OPTIONS (store = "$store", table = "$totals");
CREATE SCAN orders_now ON orders USING STREAM OPTIONS (tunnel = "$tunnel", readAs = "table");

CREATE STREAM totals OPTIONS (checkpointLocation = "$checkpoint", outputMode = "update", triggerIntervalMs = 2000)
INSERT INTO order_totals
SELECT UserId, count(*) AS orders, sum(price) AS spent, max(price) AS highest FROM orders_now GROUP BY UserId;
""")


def script(*, endpoint: Path | str, tunnel_id: str, checkpoint: Path) -> str:
    """Return the vendor's script for the instance `INSTANCE` of an endpoint, or for that sub-directory of a path."""
    return _SCRIPT.substitute(
        endpoint=endpoint, instance=INSTANCE, source=SOURCE, sink=SINK, tunnel=tunnel_id, checkpoint=checkpoint
    )


def store_script(*, store: str, tunnel: str, checkpoint: Path) -> str:
    """Return the sample in headrace's format, for the tunnel with a name in a store."""
    return _STORE_SCRIPT.substitute(store=store, source=SOURCE, sink=SINK, tunnel=tunnel, checkpoint=checkpoint)


def totals_script(*, store: Path | str, tunnel: str, checkpoint: Path) -> str:
    """Return the script of the totals, for the tunnel with a name in a store."""
    return _TOTALS_SCRIPT.substitute(store=store, source=SOURCE, totals=TOTALS, tunnel=tunnel, checkpoint=checkpoint)
