"""The options of format ``tablestore``."""

from __future__ import annotations

from headrace.formats.common_options import RETAIN_BATCHES, STREAM_LIMITS, row_change, start
from headrace.options.kinds import boolean, limit, name, natural, one_of, positive, secret, tasks, text, whole
from headrace.options.option import BATCH_READ, BATCH_WRITE, SINK, SOURCE, Option

_COMPUTE_MODE = one_of("KV", "Auto", "Search")
_IN_FLIGHT = whole(1, 500, "whole number from 1 to 500")
_WRITER = (
    ("batch.update.size", "maximum number of rows in a request; 0 means the limit of the service", natural),
    ("writer.max.batch.count", "maximum number of rows in a request, at most 200", positive),
    ("writer.max.batch.size.byte", "maximum number of bytes in a request, at most 4 MiB", positive),
    ("writer.concurrency", "maximum number of concurrent requests of one task", _IN_FLIGHT),
    ("writer.max.column.count", "maximum number of attributes in a row", positive),
    ("writer.max.attr.size.byte", "maximum number of bytes of an attribute", positive),
    ("writer.max.pk.size.byte", "maximum number of bytes of a key column", positive),
    ("client.retry.strategy", "whether `client.retry.time.s` or `client.retry.count` limits retries",
     one_of("time", "count")),
    ("client.retry.time.s", "the time during which rows are retried, in seconds", natural),
    ("client.retry.count", "number of retries", natural),
    ("client.retry.pause.ms", "the maximum pause before a retry, in milliseconds", natural),
    ("spark.ignore.on-failure.enabled", "log rows that cannot be written instead of failing", boolean),
)  # fmt: skip
_UNUSED = "accepted without effect: headrace has one writer, which chooses this itself"
_UNUSED_WRITER = (
    ("version", one_of("v1", "v2")),
    ("writer.batch.request.type", text),
    ("writer.batch.order.guaranteed", boolean),
    ("writer.batch.duplicate.allowed", boolean),
    ("writer.bucket.num", positive),
    ("writer.callback.pool.num", positive),
    ("writer.callback.pool.queue.size", positive),
    ("writer.buffer.size", positive),
    ("writer.flush.interval.ms", natural),
    ("client.io.pool", positive),
)
OPTIONS = (
    Option("endpoint", "the instance's endpoint, `https://…`; a directory or `file:` URL is an embedded store"),
    Option("access.key.id", "the AccessKey id; the environment's HEADRACE_ACCESS_KEY_ID by default. An embedded store "
           "needs none", secret),
    Option("access.key.secret", "the AccessKey secret; the environment's HEADRACE_ACCESS_KEY_SECRET by default",
           secret),
    Option("sts.token", "the token of a temporary AccessKey", secret),
    Option("region", "the region, such as `cn-hangzhou`; requests then have signatures of version 4"),
    Option("instance.name", "the instance; for an embedded store, a directory below the endpoint", name),
    Option("table.name", "the table", name),
    Option("catalog", "the columns as JSON: `{\"columns\": {\"UserId\": {\"type\": \"string\"}, …}}`. An instance "
           "knows only the key and the predefined columns of a table: other columns must be named in the catalog"),
    Option("tunnel.id", "the tunnel's id; for an embedded store also its name", name, None, (SOURCE,)),
    Option("maxoffsetsperchannel", "maximum number of rows of one channel in a batch; below 0 means no limit", limit,
           "10000", (SOURCE,)),
    Option("maxoffsetspertrigger", "maximum number of rows in a batch, divided among the channels", limit, None,
           (SOURCE,)),
    Option("startingPosition", "where a new query starts: `committed` (the tunnel's committed positions), `earliest`, "
           "`latest`, a timestamp, or `batch:<uuid>`: the end of this batch of another query, or of Tablestore's "
           "connector, in the table that `checkpoint.table` names. A query with a checkpoint continues from the "
           "checkpoint. An instance returns no change before its tunnel's committed positions, so it has no "
           "`earliest`", start, "committed", (SOURCE,)),
    *STREAM_LIMITS,
    Option("failOnDataLoss", "see format `headrace`", boolean, "true", (SOURCE,)),
    RETAIN_BATCHES,
    Option("checkpoint.table", "the meta table, for batches and publications; an embedded store does not use it", name,
           "__spark_meta_checkpoint__"),
    Option("ots.client", "client name", name, "spark-client", (SOURCE,)),
    Option("writer.row.change.type", "`put` replaces rows, `update` sets the cells that are not null",
           row_change, "put", (SINK, BATCH_WRITE)),
    Option("compute.mode", "`Search` needs a search index, which an embedded store does not have", _COMPUTE_MODE, "KV",
           (BATCH_READ,)),
    Option("search.index.name", "a search index; an embedded store has none", text, "", (BATCH_READ,)),
    Option("max.split.count", "maximum number of tasks of a batch read", tasks, "1000", (BATCH_READ,)),
    Option("split.size.mbs", "size of a task of a batch read, in MiB", tasks, "100", (BATCH_READ,)),
    Option("pushDownFilters", "see format `headrace`", boolean, "false", (BATCH_READ,)),
    Option("push.down.range.long", "accepted without effect: `pushDownFilters` also pushes down ranges", boolean,
           "true", (BATCH_READ,)),
    Option("push.down.range.string", "accepted without effect: `pushDownFilters` also pushes down ranges", boolean,
           "true", (BATCH_READ,)),
    *(Option(title, meaning, kind, None, (SINK, BATCH_WRITE)) for title, meaning, kind in _WRITER),
    *(Option(title, _UNUSED, kind, None, (SINK, BATCH_WRITE)) for title, kind in _UNUSED_WRITER),
    Option("synchronous", "see format `headrace`", one_of("full", "normal", "off"), "full"),
)  # fmt: skip
