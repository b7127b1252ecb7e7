"""The options of the data source formats, in one table; docs/options.md is made from it.

Spark compares option names without regard to case, and hands them over in lower case; so does this module.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from headrace.errors import NotFoundError, OptionError
from headrace.feeds.limits import Limits
from headrace.formats.option_kinds import (
    Kind,
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
    secret,
    size,
    start,
    tasks,
    text,
    whole,
    ypath,
)
from headrace.formats.store_options import configured_proxy, proxy_url, store_options, with_access_key

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.ports import Queue, Store, Table

SOURCE, SINK, BATCH_READ, BATCH_WRITE = "stream read", "stream write", "batch read", "batch write"
EVERYWHERE = (SOURCE, SINK, BATCH_READ, BATCH_WRITE)


@dataclass(frozen=True)
class Option:
    """One option: its documented name, what it is for, and what its text may be."""

    name: str
    meaning: str
    kind: Kind = text
    default: str | None = None
    used_by: tuple[str, ...] = EVERYWHERE


_SYNCHRONOUS = one_of("full", "normal", "off")
_COMPUTE_MODE = one_of("KV", "Auto", "Search")
_LAYOUT = one_of("scan", "lookup")
_IN_FLIGHT = whole(1, 500, "whole number from 1 to 500")
_STREAM = (
    Option("maxRowsPerTrigger", "most rows in a batch, shared over the channels or partitions", limit, None, (SOURCE,)),
    Option(
        "maxBytesPerTrigger",
        "about how many bytes a batch may have (`64m`); base data is of unknown size, only rows limit it",
        size,
        None,
        (SOURCE,),
    ),
    Option("minRowsPerTrigger", "wait for so many rows before a batch is made …", natural, "0", (SOURCE,)),
    Option("maxTriggerDelay", "… unless a row has waited so long", duration, "15m", (SOURCE,)),
)
_QUEUE = (
    Option("startingPosition", "where a new query begins: `committed` (the checkpoints of the tunnel, the offsets of "
           "the consumer), `earliest`, `latest`, a timestamp, or for queues row indexes (`{\"clicks\": {\"0\": 5}}`, "
           "`{\"0\": 5}`); a query with a checkpoint goes on from there. A batch read of a queue begins at "
           "`earliest` if not told otherwise", position, "committed", (SOURCE, BATCH_READ)),
    Option("endingPosition", "where a batch read of a queue ends, written as `startingPosition`", position,
           "latest", (BATCH_READ,)),
    *_STREAM,
    Option("failOnDataLoss", "fail when rows that were to be read are gone; `false` skips and reports them",
           boolean, "true", (SOURCE, BATCH_READ)),
    Option("minPartitions", "queues: cut a batch into at least so many tasks; without it small partitions share a "
           "task and large ones are not cut", tasks, None, (SOURCE,)),
    Option("sourcePathColumn", "queues: add a column of this name that holds the name of the row's queue", name, None,
           (SOURCE, BATCH_READ)),
    Option("splits", "into how many tasks a batch read is cut; by the number of rows if not set", tasks, None,
           (BATCH_READ,)),
    Option("pushDownFilters", "evaluate filters in the store: of a table on all columns, of a queue on the columns of "
           "the row's address. Spark 4.3 keeps the filters of a DataFrame's first use for its later ones: set it on "
           "a DataFrame that is used once. Needs the setting `spark.sql.python.filterPushdown.enabled`, which "
           "`headrace.session()` makes", boolean, "false", (BATCH_READ,)),
    Option("keyColumns", "sink queue: rows with the same values in these columns, named with commas between, go to "
           "the same partition", names, None, (SINK, BATCH_WRITE)),
    Option("rowChange", "sink table: `put` replaces rows, `update` sets the cells that are not null, `delete` removes "
           "rows", row_change, "put", (SINK, BATCH_WRITE)),
    Option("synchronous", "embedded store: see docs/embedded-store.md", _SYNCHRONOUS, "full"),
)  # fmt: skip
_TUNNEL_RETENTION = Option(
    "retainBatches", "tunnel: how many batches back a query can be restarted from; at least "
    "`spark.sql.streaming.minBatchesToRetain`", positive, "100", (SOURCE,)
)  # fmt: skip

HEADRACE_OPTIONS = (
    Option("store", "the store: a directory or a URL; the environment's HEADRACE_STORE if not set"),
    Option("accessKeyId", "Tablestore: the AccessKey id of an instance; the environment's HEADRACE_ACCESS_KEY_ID if "
           "not set", secret),
    Option("accessKeySecret", "Tablestore: its secret; the environment's HEADRACE_ACCESS_KEY_SECRET if not set",
           secret),
    Option("stsToken", "Tablestore: the token of a temporary access key", secret),
    Option("region", "Tablestore: such as `cn-hangzhou`; requests are then signed by version 4"),
    Option("metaTable", "Tablestore: the table for batches and publications; `__spark_meta_checkpoint__` if not set",
           name),
    Option("token", "YTsaurus: the cluster's token; the environment's YT_TOKEN if not set, and then what its client "
           "finds (`~/.yt/token`)", secret),
    Option("binaryStrings", "YTsaurus: columns of the type `string` are binary, as they may hold any bytes; `utf8` and "
           "`json` stay texts. Without it a `string` that is not UTF-8 fails the task", boolean, "false"),
    Option("table", "the table", name),
    Option("queue", "the queue", name),
    Option("queues", "queues with the same columns that are read as one, named with commas between (or as a JSON list)",
           names, None, (SOURCE, BATCH_READ)),
    Option("path", "what `load(\"name\")` and `save(\"name\")` set: a table, or a queue", name),
    Option("tunnel", "the tunnel, by id or by name", name, None, (SOURCE,)),
    Option("consumer", "the consumer whose offsets follow the query; registered for the queues", name, None,
           (SOURCE, BATCH_READ)),
    Option("maxRowsPerChannel", "most rows of one channel of a tunnel in a batch; below 0 no limit", limit, None,
           (SOURCE,)),
    Option("maxRowsPerPartition", "most rows of one partition of a queue in a batch; below 0 no limit", limit, None,
           (SOURCE,)),
    *_QUEUE,
    _TUNNEL_RETENTION,
    Option("preImages", "tunnel: give `update_preimage` rows, where the table keeps them", boolean, "true",
           (SOURCE,)),
    Option("includeRowAddress", "queues: add the columns `_queue`, `_partition` and `_row_index` at the end", boolean,
           "false", (SOURCE, BATCH_READ)),
)  # fmt: skip

YT_OPTIONS = (
    Option("path", "the queue or table, as `load` and `save` set it; attributes in front (`<append=%true>//…`) are "
           "dropped, and a choice of columns or rows is refused", ypath),
    Option("store", "the store: a directory or a URL"),
    Option("proxy", "a cluster's proxy (a name, host:port or URL), or what `store` may be; if neither is set, what the "
           "environment's YT_PROXY, then HEADRACE_STORE named when `headrace.session` was called, and then what the "
           "configuration of YTsaurus' client names"),
    Option("token", "the cluster's token; the environment's YT_TOKEN if not set, and then what YTsaurus' client finds "
           "(`~/.yt/token`)", secret),
    Option("consumer_path", "the consumer, registered for the queue; a stream must name one", ypath, None,
           (SOURCE, BATCH_READ)),
    Option("max_rows_per_partition", "most rows of one partition of a queue in a batch; everything if not set",
           limit, None, (SOURCE,)),
    Option("include_service_columns", "put the columns `__spyt_streaming_src_tablet_index` and "
           "`__spyt_streaming_src_row_index` in front of a queue's own", boolean, "false", (SOURCE, BATCH_READ)),
    Option("parsing_type_v3", "give arrays, maps and structs as such; with `false` they are binary columns that hold "
           "JSON: a map as a list of its pairs, a tuple or a variant as the object of its fields", boolean, "true",
           (SOURCE, BATCH_READ)),
    Option("write_type_v3", "accepted; composite values are written in the types of the table or queue", boolean,
           "true", (SINK, BATCH_WRITE)),
    Option("null_type_allowed", "accepted; a column of nulls only can be written into any column", boolean, "false"),
    Option("binary_strings", "columns of the type `string` are binary, as they may hold any bytes; `utf8` and `json` "
           "stay texts. Without it a `string` that is not UTF-8 fails the task", boolean, "false"),
    Option("string_to_utf8", "accepted; texts are UTF-8 here", boolean, "false", (SINK, BATCH_WRITE)),
    Option("inconsistent_dynamic_write", "accepted; writes into dynamic tables are published in transactions", boolean,
           "false", (SINK, BATCH_WRITE)),
    Option("enable_inconsistent_read", "accepted; each task reads one state of its rows", boolean, "false",
           (SOURCE, BATCH_READ)),
    Option("arrow_enabled", "accepted; rows are Arrow batches anyway", boolean, "true", (SOURCE, BATCH_READ)),
    Option("optimize_for", "accepted; it is for tables that a write creates, and here a table is there before", _LAYOUT,
           None, (SINK, BATCH_WRITE)),
    Option("readParallelism", "accepted; `splits` says into how many tasks a batch read is cut", tasks, None,
           (BATCH_READ,)),
    Option("maxSplitRows", "accepted; `splits` says into how many tasks a batch read is cut", positive, None,
           (BATCH_READ,)),
    Option("source_path_column", "see `sourcePathColumn`", name, None, (SOURCE, BATCH_READ)),
    Option("dynBatchSize", "most rows that a task writes at once; the session's setting `spark.yt.write.dynBatchSize` "
           "if not set", positive, None, (SINK, BATCH_WRITE)),
    *_QUEUE,
)  # fmt: skip

_WRITER_NOTE = "accepted; one writer serves both versions and takes care of this itself"
_WRITING = (
    ("batch.update.size", "most rows in a request; 0 is as many as can be", natural),
    ("writer.max.batch.count", "most rows in a request, at most 200", positive),
    ("writer.max.batch.size.byte", "most bytes in a request, at most 4 MiB", positive),
    ("writer.concurrency", "most requests at a time from one task", _IN_FLIGHT),
    ("writer.max.column.count", "most attributes in a row", positive),
    ("writer.max.attr.size.byte", "most bytes of an attribute", positive),
    ("writer.max.pk.size.byte", "most bytes of a key column", positive),
    ("client.retry.strategy", "whether `client.retry.time.s` or `client.retry.count` says how long rows are tried "
     "again", one_of("time", "count")),
    ("client.retry.time.s", "for how many seconds", natural),
    ("client.retry.count", "how often", natural),
    ("client.retry.pause.ms", "the longest pause before a retry", natural),
    ("spark.ignore.on-failure.enabled", "log rows that cannot be written instead of failing", boolean),
)  # fmt: skip
TABLESTORE_OPTIONS = (
    Option("endpoint", "the instance's endpoint, `https://…`; a directory or `file:` URL is an embedded store"),
    Option("access.key.id", "the AccessKey id; the environment's HEADRACE_ACCESS_KEY_ID if not set. Not needed by an "
           "embedded store", secret),
    Option("access.key.secret", "the AccessKey secret; the environment's HEADRACE_ACCESS_KEY_SECRET if not set",
           secret),
    Option("sts.token", "the token of a temporary AccessKey", secret),
    Option("region", "such as `cn-hangzhou`; requests are then signed by version 4"),
    Option("instance.name", "the instance; for an embedded store, its sub-directory of the endpoint", name),
    Option("table.name", "the table", name),
    Option("catalog", "the columns as JSON: `{\"columns\": {\"UserId\": {\"type\": \"string\"}, …}}`. An instance only "
           "knows a table's key and predefined columns: name the others here"),
    Option("tunnel.id", "the tunnel's id; an embedded store also takes its name", name, None, (SOURCE,)),
    Option("maxoffsetsperchannel", "most rows of one channel in a batch; below 0 no limit", limit, "10000", (SOURCE,)),
    Option("maxoffsetspertrigger", "most rows in a batch, shared over the channels", limit, None, (SOURCE,)),
    Option("startingPosition", "where a new query begins: `committed` (the tunnel's committed positions), `earliest`, "
           "`latest`, a timestamp, or `batch:<uuid>`: where another query, or the vendor's connector, left the tunnel, "
           "as the table that `checkpoint.table` names has it. A query with a checkpoint goes on from there. An "
           "instance gives nothing before its tunnel's committed positions, and so no `earliest`", start, "committed",
           (SOURCE,)),
    *(option for option in _STREAM if option.name != "maxRowsPerTrigger"),
    Option("failOnDataLoss", "as in format `headrace`", boolean, "true", (SOURCE,)),
    _TUNNEL_RETENTION,
    Option("checkpoint.table", "the meta table, for batches and publications; an embedded store keeps them in a place "
           "of its own", name, "__spark_meta_checkpoint__"),
    Option("ots.client", "client name", name, "spark-client", (SOURCE,)),
    Option("writer.row.change.type", "`put` replaces rows, `update` sets the cells that are not null",
           row_change, "put", (SINK, BATCH_WRITE)),
    Option("compute.mode", "`Search` needs a search index, which an embedded store has not", _COMPUTE_MODE, "KV",
           (BATCH_READ,)),
    Option("search.index.name", "a search index; an embedded store has none", text, "", (BATCH_READ,)),
    Option("max.split.count", "most tasks of a batch read", tasks, "1000", (BATCH_READ,)),
    Option("split.size.mbs", "MiB of a task of a batch read", tasks, "100", (BATCH_READ,)),
    Option("pushDownFilters", "as in format `headrace`", boolean, "false", (BATCH_READ,)),
    Option("push.down.range.long", "accepted; ranges are pushed down wherever filters are", boolean, "true",
           (BATCH_READ,)),
    Option("push.down.range.string", "accepted; ranges are pushed down wherever filters are", boolean, "true",
           (BATCH_READ,)),
    *(Option(title, meaning, kind, None, (SINK, BATCH_WRITE)) for title, meaning, kind in _WRITING),
    *(Option(title, _WRITER_NOTE, kind, None, (SINK, BATCH_WRITE)) for title, kind in (
        ("version", one_of("v1", "v2")), ("writer.batch.request.type", text),
        ("writer.batch.order.guaranteed", boolean), ("writer.batch.duplicate.allowed", boolean),
        ("writer.bucket.num", positive), ("writer.callback.pool.num", positive),
        ("writer.callback.pool.queue.size", positive), ("writer.buffer.size", positive),
        ("writer.flush.interval.ms", natural), ("client.io.pool", positive))),
    Option("synchronous", "as in format `headrace`", _SYNCHRONOUS, "full"),
)  # fmt: skip


OPTIONS_OF = {"headrace": HEADRACE_OPTIONS, "tablestore": TABLESTORE_OPTIONS, "yt": YT_OPTIONS}
"""The options of each format."""

_CHANNEL_LIMITS = ("maxRowsPerPartition", "max_rows_per_partition", "maxRowsPerChannel", "maxoffsetsperchannel")
_TRIGGER_LIMITS = ("maxRowsPerTrigger", "maxoffsetspertrigger")


class Settings:
    """The options of one use of a format, typed; never shows the values in `repr`. `option_checks` has the names."""

    def __init__(self, table: tuple[Option, ...], given: Mapping[str, str]) -> None:
        self._table = {option.name.lower(): option for option in table}
        self._given = {name.lower(): value for name, value in given.items()}

    def __repr__(self) -> str:
        return f"Settings({', '.join(sorted(self._given))})"

    def get(self, name: str) -> Any:
        """Return an option's value, its default, or None.

        Raises:
            OptionError: the value cannot be read.
        """
        option = self._table[name.lower()]
        given = self._given.get(name.lower(), option.default)
        return None if given is None else self._read(option, given)

    def _read(self, option: Option, given: str) -> Any:
        try:
            return option.kind(given)
        except OptionError:
            raise
        except ValueError as error:
            received = None if option.kind is secret else repr(given)[:200]
            raise OptionError(f"option {option.name} cannot be read", received=received, valid=str(error)) from None

    def need(self, name: str, why: str = "") -> str:
        """Return the text of an option that must be there and not empty.

        Raises:
            OptionError: it is missing, or cannot be read.
        """
        value, option = self._given.get(name.lower()), self._table[name.lower()]
        if not value:
            raise OptionError(f"option {option.name} is missing{why}", valid=option.meaning)
        self._read(option, value)
        return value

    def check(self) -> Settings:
        """Return these settings; raise `OptionError` if any value cannot be read, whether or not it will be used."""
        for given in self._given.keys() & self._table.keys():
            self.get(given)
        return self

    def given(self, name: str) -> bool:
        """Tell whether the user set an option."""
        return name.lower() in self._given

    def limits(self) -> Limits:
        """Return the limits of a stream read."""
        return Limits(
            rows_per_channel=self._first(_CHANNEL_LIMITS),
            rows_per_batch=self._first(_TRIGGER_LIMITS),
            bytes_per_batch=self.get("maxBytesPerTrigger"),
            min_rows=self.get("minRowsPerTrigger"),
            max_delay=self.get("maxTriggerDelay"),
        )

    def _first(self, names: tuple[str, ...]) -> Any:
        """Return the value of the first of these options that the format has and that has one."""
        values = (self.get(name) for name in names if name.lower() in self._table)
        return next((value for value in values if value is not None), None)


@dataclass(frozen=True)
class Location:
    """Where a data source's rows are: a store's URL, and the name of a table there, or of a queue.

    ``table`` may name a queue as well, where the user did not say which it is; ``queue`` is what they said is one.
    ``store_options`` are for `headrace.open`, secrets among them; ``columns`` are those that the user knows of.
    """

    store_url: str
    table: str | None
    queue: str | None = None
    store_options: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    columns: pa.Schema | None = None

    def open_store(self, *, create: bool = False) -> Store:
        """Open the store; with ``create``, one that lies in a directory is made if it is not there."""
        from headrace.stores.registry import open as open_any

        return open_any(self.store_url, create=create, **self.store_options)

    def open(self, store: Store) -> Table | Queue:
        """Return the table or queue of this location; raise what `open_table` raises."""
        if self.queue is not None:
            return store.queue(self.queue)
        return find_queue(store, self.table) or self.open_table(store)

    def open_table(self, store: Store) -> Table:
        """Return the table of this location, whose name is not that of a queue.

        Raises:
            NotFoundError: there is neither a table nor a queue of that name.
            OptionError: the location names nothing.
        """
        if self.table is None:
            raise OptionError(
                "option table or queue is missing",
                valid=store.tables() + _queues(store),
                remedy='name one, or load("name") or save("name")',
            )
        try:
            return store.table(self.table, self.columns)
        except NotFoundError as error:
            if not store.capabilities.queues:
                raise
            raise NotFoundError(
                "no such table or queue", received=error.received, valid=store.tables() + store.queues()
            ) from None


def find_queue(store: Store, name: str | None) -> Queue | None:
    """Return the queue of a name; None if there is none. A store need not list every queue that it finds."""
    if name is None or not store.capabilities.queues:
        return None
    try:
        return store.queue(name)
    except NotFoundError:
        return None


def _queues(store: Store) -> list[str]:
    return store.queues() if store.capabilities.queues else []


def with_default_store(provider: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with the store that the environment names, where they name none, and with its access key.

    Done where the options are given, because tasks may run in another environment.
    """
    given = {name.lower(): value for name, value in options.items()}
    store, proxy = os.environ.get("HEADRACE_STORE"), os.environ.get("YT_PROXY")
    if provider.lower() in ("headrace", "yt") and not given.get("store") and not given.get("proxy"):
        if provider.lower() == "yt" and proxy:
            given["proxy"] = proxy
        elif store:
            given["store"] = store
        elif provider.lower() == "yt" and (configured := configured_proxy()):
            given["proxy"] = configured
    return with_access_key(provider, given)


def locate(provider: str, options: Mapping[str, str]) -> Location:
    """Return where a definition of format ``headrace``, ``tablestore`` or ``yt`` points to.

    Raises:
        OptionError: an option that is needed for that is missing.
    """
    options = with_default_store(provider, options)
    match provider.lower():
        case "tablestore":
            return _locate_tablestore(Settings(TABLESTORE_OPTIONS, options))
        case "headrace":
            settings = Settings(HEADRACE_OPTIONS, options)
            named = [name for name in ("queue", "queues", "table", "path") if settings.get(name)]
            if len(named) > 1 and named[0] in ("queue", "queues"):
                raise OptionError(f"options {named[0]} and {named[1]} are both set", valid="one of them")
            of_queues = [name for name in ("consumer", "queue", "queues") if settings.get(name)]
            if settings.get("tunnel") and of_queues:
                raise OptionError(
                    f"options tunnel and {of_queues[0]} are both set",
                    valid="one of them",
                    remedy="a tunnel reads the changes of a table, a consumer the rows of queues",
                )
            table = settings.get("table") or settings.get("path")
            store = settings.need("store")
            return Location(store, table, settings.get("queue"), store_options("headrace", settings, store))
        case "yt":
            settings = Settings(YT_OPTIONS, options)
            store = settings.get("store") or proxy_url(settings.need("proxy"))
            settings.need("path")
            return Location(store, settings.get("path"), store_options=store_options("yt", settings, store))
    raise OptionError("not a format of headrace", received=provider, valid="headrace, tablestore, yt")


def _locate_tablestore(settings: Settings) -> Location:
    # The connector asks for its options in this order, and so do its users' error messages.
    table, instance = settings.need("table.name"), settings.need("instance.name")
    endpoint = settings.get("endpoint")
    scheme = urlsplit(endpoint or "").scheme
    columns = None
    if settings.get("catalog"):
        from headrace.tables.change_columns import parse_catalog

        columns = parse_catalog(settings.need("catalog"))
    if scheme in ("http", "https"):
        url = f"tablestore+{(endpoint or '').rstrip('/')}/{instance}"
        return Location(url, table, None, store_options("tablestore", settings, url), columns)
    endpoint = settings.need("endpoint")
    directory = endpoint.removeprefix("file://") if scheme == "file" else endpoint
    if scheme == "file" and not directory.startswith("/"):
        directory = directory.removeprefix("file:")
    if instance in (".", "..") or "/" in instance or os.sep in instance:
        raise OptionError("option instance.name must be a plain name", received=repr(instance))
    path = str(Path(directory) / instance)
    return Location(path, table, None, store_options("tablestore", settings, path), columns)
