"""The options that several formats have."""

from __future__ import annotations

from headrace.batches.feeds.queue_positions import parse_position
from headrace.model.tables.changes import RowChange
from headrace.model.tunnels.values import Start
from headrace.options.kinds import (
    OptionKind,
    boolean,
    duration,
    limit,
    name,
    names,
    natural,
    one_of,
    positive,
    size,
    tasks,
)
from headrace.options.option import BATCH_READ, BATCH_WRITE, SINK, SOURCE, Option

row_change = one_of("put", "update", "delete", convert=RowChange)
start = OptionKind("committed, earliest, latest, a timestamp, or batch:<uuid>", Start.parse, name="position")
position = OptionKind(
    "committed, earliest, latest, a timestamp, or row indexes as JSON", parse_position, name="position"
)
ROWS_PER_TRIGGER = Option(
    "maxRowsPerTrigger",
    "maximum number of rows in a batch, divided among the channels or partitions",
    limit,
    None,
    (SOURCE,),
)
STREAM_LIMITS = (
    Option("maxBytesPerTrigger", "approximate maximum number of bytes in a batch (`64m`). The size of base data is "
           "unknown: only limits of rows apply to it", size, None, (SOURCE,)),
    Option("minRowsPerTrigger", "number of new rows with which a batch starts", natural, "0", (SOURCE,)),
    Option("maxTriggerDelay", "maximum time that a row waits for `minRowsPerTrigger`", duration, "15m", (SOURCE,)),
)  # fmt: skip
RETAIN_BATCHES = Option(
    "retainBatches", "tunnel: number of batches that a query can go back at a restart; at least "
    "`spark.sql.streaming.minBatchesToRetain`", positive, "100", (SOURCE,)
)  # fmt: skip
QUEUE_OPTIONS = (
    Option("startingPosition", "where a new query starts: `committed` (the committed positions of the tunnel, the "
           "offsets of the consumer), `earliest`, `latest`, a timestamp, or for queues row indexes (`{\"clicks\": "
           "{\"0\": 5}}`, `{\"0\": 5}`). A query with a checkpoint continues from the checkpoint. A batch read of a "
           "queue starts at `earliest` by default", position, "committed", (SOURCE, BATCH_READ)),
    Option("endingPosition", "where a batch read of a queue ends, in the form of `startingPosition`", position,
           "latest", (BATCH_READ,)),
    ROWS_PER_TRIGGER,
    *STREAM_LIMITS,
    Option("failOnDataLoss", "fail if rows were deleted before they were read; `false` skips and reports them",
           boolean, "true", (SOURCE, BATCH_READ)),
    Option("minPartitions", "queues: minimum number of tasks of a batch. By default small partitions share a task, and "
           "large partitions are not split", tasks, None, (SOURCE,)),
    Option("sourcePathColumn", "queues: name of an additional column with the name of the row's queue", name, None,
           (SOURCE, BATCH_READ)),
    Option("splits", "number of tasks of a batch read; by default it depends on the number of rows", tasks, None,
           (BATCH_READ,)),
    Option("pushDownFilters", "evaluate filters in the store: on all columns of a table, and on the address columns "
           "of a queue. Spark 4.3 applies the filters of a DataFrame's first use to its later uses, too. Set the "
           "option only for a DataFrame that is used once. It needs the setting "
           "`spark.sql.python.filterPushdown.enabled`, which `headrace.session()` sets", boolean, "false",
           (BATCH_READ,)),
    Option("keyColumns", "sink queue: columns, separated by commas. Rows with the same values in them go to the same "
           "partition", names, None, (SINK, BATCH_WRITE)),
    Option("rowChange", "sink table: `put` replaces rows, `update` sets the cells that are not null, `delete` deletes "
           "rows", row_change, "put", (SINK, BATCH_WRITE)),
)  # fmt: skip
"""The options of each format with queues."""
