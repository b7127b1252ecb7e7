"""Options of formats, and the options that several formats have.

Spark compares the names of options without regard to case and passes them in lower case. The formats do the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.formats.option_kinds import (
    OptionKind,
    boolean,
    duration,
    limit,
    name,
    names,
    natural,
    one_of,
    position,
    positive,
    row_change,
    size,
    tasks,
    text,
)

SOURCE, SINK, BATCH_READ, BATCH_WRITE = "stream read", "stream write", "batch read", "batch write"
EVERYWHERE = (SOURCE, SINK, BATCH_READ, BATCH_WRITE)


@dataclass(frozen=True)
class Option:
    """An option of a format.

    Attributes:
        name: the documented name.
        meaning: its description, for docs/options.md and for the error if it is missing.
        kind: how its text is read.
        default: the text that applies if the option is not set; None if there is none.
        used_by: the uses of the format that read the option.
    """

    name: str
    meaning: str
    kind: OptionKind = text
    default: str | None = None
    used_by: tuple[str, ...] = EVERYWHERE


SYNCHRONOUS_VALUES = one_of("full", "normal", "off")
SYNCHRONOUS = Option(
    "synchronous", "embedded store: when a commit is written to the disk; see docs/embedded-store.md",
    SYNCHRONOUS_VALUES, "full",
)  # fmt: skip
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
    SYNCHRONOUS,
)  # fmt: skip
"""The options of each format with queues."""
