"""The options of format ``headrace``."""

from __future__ import annotations

from headrace.formats.common_options import QUEUE_OPTIONS, RETAIN_BATCHES
from headrace.formats.headrace.debezium import CHANGE_FORMATS, COLUMNS
from headrace.formats.headrace.read_as import CHANGES, READ_AS
from headrace.model.tables.json_forms import Decimals
from headrace.options.kinds import boolean, limit, name, names, one_of
from headrace.options.option import BATCH_READ, BATCH_WRITE, SINK, SOURCE, Option
from headrace.stores.registry import openings

TYPED = "typed"
OPTIONS = (
    Option("store", "the store: a directory or a URL; the environment's HEADRACE_STORE by default"),
    *(each.option for opening in openings() for each in opening.options if each.option is not None),
    Option("table", "the table", name),
    Option("queue", "the queue", name),
    Option("queues", "queues with the same columns to read as one, separated by commas or as a JSON list", names, None,
           (SOURCE, BATCH_READ)),
    Option("path", "the table or queue; `load(\"name\")` and `save(\"name\")` set it", name),
    Option("tunnel", "the tunnel, by id or by name", name, None, (SOURCE,)),
    Option("consumer", "the consumer whose offsets follow the query; it must be registered for the queues", name, None,
           (SOURCE, BATCH_READ)),
    Option("maxRowsPerChannel", "maximum number of rows of one channel of a tunnel in a batch; below 0 means no "
           "limit", limit, None, (SOURCE,)),
    Option("maxRowsPerPartition", "maximum number of rows of one partition of a queue in a batch; below 0 means no "
           "limit", limit, None, (SOURCE,)),
    *QUEUE_OPTIONS,
    RETAIN_BATCHES,
    Option("preImages", "tunnel: include `update_preimage` rows if the table logs them", boolean, "true", (SOURCE,)),
    Option("includeTransactionId", "tunnel of a PostgreSQL database: add the column `_transaction_id` at the end, the "
           "id of the transaction of each change, and null for base data", boolean, "false", (SOURCE,)),
    Option("truncations", "tunnel of a PostgreSQL database: a TRUNCATE of the table is a row with `_change_type` "
           "`truncate`, the first of its batch, whose columns are null. Otherwise it is an error, except in mirrors "
           "and followed queries", boolean, "false", (SOURCE,)),
    Option("readAs", "tunnel: `changes` gives the changes that the log has. `table` gives the same columns and "
           "promises that the rows add up to the table: each update and delete has its old row, and a new query reads "
           "the tunnel from its beginning. It is an error if the table does not keep pre-images", one_of(*READ_AS),
           CHANGES, (SOURCE,)),
    Option("rows", "tunnel of several tables: `typed` gives the column `_table`, the name of the table of each row, "
           "and for each table a struct column of its name, which is null in the rows of other tables. It is the "
           "default of embedded stores, which have no other form, and with `readAs=table` and option `table`. `json` "
           "is the default of PostgreSQL: the columns `schema`, `table`, `key` and `row`", one_of(TYPED, "json"), None,
           (SOURCE,)),
    Option("changeFormat", "tunnel of several tables: `columns` gives the columns `schema`, `table`, `key` and `row`. "
           "`debezium` gives change events as Debezium's connector writes them with JSON without schemas: the columns "
           "`topic`, `key` and `value`", one_of(*CHANGE_FORMATS), COLUMNS, (SOURCE,)),
    Option("topicPrefix", "`changeFormat=debezium`: Debezium's `topic.prefix`, the beginning of each topic and "
           "`source.name` of each event; the name of the database by default", name, None, (SOURCE,)),
    Option("decimalHandlingMode", "`changeFormat=debezium`: Debezium's `decimal.handling.mode`", one_of(*Decimals),
           Decimals.PRECISE, (SOURCE,)),
    Option("tombstonesOnDelete", "`changeFormat=debezium`: after each delete a row with its key and no value, for the "
           "compaction of Kafka; Debezium's `tombstones.on.delete`", boolean, "false", (SOURCE,)),
    Option("badRows", "sink table of an embedded store or PostgreSQL: `fail` fails a batch with rows that the table "
           "refuses. `table` puts [these rows](bad-rows.md) into a table beside it", one_of("fail", "table"), "fail",
           (SINK, BATCH_WRITE)),
    Option("includeRowAddress", "queues: add the columns `_queue`, `_partition` and `_row_index` at the end", boolean,
           "false", (SOURCE, BATCH_READ)),
)  # fmt: skip
