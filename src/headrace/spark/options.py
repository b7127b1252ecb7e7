"""The options of the data source formats, in one table; docs/options.md is made from it.

Spark compares option names without regard to case, and hands them over in lower case; so does this module.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headrace.errors import OptionError
from headrace.model import Limits, RowChange, Start

SOURCE, SINK, BATCH_READ, BATCH_WRITE = "stream read", "stream write", "batch read", "batch write"
EVERYWHERE = (SOURCE, SINK, BATCH_READ, BATCH_WRITE)


@dataclass(frozen=True)
class Option:
    """One option: its documented name, what it is for, and how its text is read."""

    name: str
    meaning: str
    parse: Callable[[str], Any] = str
    default: str | None = None
    used_by: tuple[str, ...] = EVERYWHERE


def _positive(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise ValueError("a positive whole number")
    return value


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError("a whole number, not negative")
    return value


def _limit(text: str) -> int | None:
    """A row limit in the connector's manner: below 0 means none."""
    value = int(text)
    if value == 0:
        raise ValueError("a whole number other than 0; below 0 means no limit")
    return value if value > 0 else None


def _boolean(text: str) -> bool:
    words = {"true": True, "false": False, "1": True, "0": False}
    if text.strip().lower() not in words:
        raise ValueError("true or false")
    return words[text.strip().lower()]


_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _duration(text: str) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*", text.lower())
    if not match:
        raise ValueError("a duration such as 500ms, 30s, 15m or 1h (a bare number is seconds)")
    return float(match[1]) * _DURATION_UNITS[match[2] or "s"]


_BYTE_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _bytes(text: str) -> int:
    match = re.fullmatch(r"\s*(\d+)\s*([kmg]?)b?\s*", text.lower())
    if not match or int(match[1]) == 0:
        raise ValueError("a size such as 1048576, 512k, 64m or 1g")
    return int(match[1]) * _BYTE_UNITS[match[2]]


STREAM_OPTIONS = (
    Option("startingPosition", "where a new query begins: `committed` (the tunnel's checkpoints), "
           "`earliest`, `latest` or a timestamp; a query with a checkpoint goes on from there", Start.parse,
           "committed", (SOURCE,)),
    Option("maxRowsPerChannel", "most rows of one channel in a batch; below 0 no limit", _limit, None, (SOURCE,)),
    Option("maxRowsPerTrigger", "most rows in a batch, shared over the channels", _limit, None, (SOURCE,)),
    Option("maxBytesPerTrigger", "about how many bytes a batch may have (`64m`); base data is of unknown size, only "
           "rows limit it", _bytes, None, (SOURCE,)),
    Option("minRowsPerTrigger", "wait for so many rows before a batch is made …", _natural, "0", (SOURCE,)),
    Option("maxTriggerDelay", "… unless a row has waited so long", _duration, "15m", (SOURCE,)),
    Option("failOnDataLoss", "fail when changes that were to be read are gone; `false` skips and reports them",
           _boolean, "true", (SOURCE,)),
    Option("retainBatches", "how many batches back a query can be restarted from; at least "
           "`spark.sql.streaming.minBatchesToRetain`", _positive, "100", (SOURCE,)),
)  # fmt: skip

HEADRACE_OPTIONS = (
    Option("store", "the store: a directory or a URL"),
    Option("table", "the table; `load(\"name\")` and `path` mean the same", str, None, EVERYWHERE),
    Option("path", "see `table`", str, None, EVERYWHERE),
    Option("tunnel", "the tunnel, by id or by name", str, None, (SOURCE,)),
    *STREAM_OPTIONS,
    Option("preImages", "give `update_preimage` rows, where the table keeps them", _boolean, "true", (SOURCE,)),
    Option("splits", "into how many tasks a batch read is cut; by the table's size if not set", _positive, None,
           (BATCH_READ,)),
    Option("pushDownFilters", "evaluate filters in the store. Spark 4.3 keeps the filters of a DataFrame's first use "
           "for its later ones: set it on a DataFrame that is used once. Needs the setting "
           "`spark.sql.python.filterPushdown.enabled`, which `headrace.session()` makes", _boolean, "false",
           (BATCH_READ,)),
    Option("rowChange", "`put` replaces rows, `update` sets the cells that are not null, `delete` removes rows",
           RowChange.parse, "put", (SINK, BATCH_WRITE)),
    Option("synchronous", "embedded store: `full`, `normal` or `off`; see docs/embedded-store.md", str, "full"),
)  # fmt: skip

_WRITER_NOTE = "accepted; one writer serves both versions and takes care of this itself"
TABLESTORE_OPTIONS = (
    Option("endpoint", "the instance's endpoint; a directory or `file:` URL is an embedded store"),
    Option("access.key.id", "the AccessKey id; not needed by an embedded store"),
    Option("access.key.secret", "the AccessKey secret; not needed by an embedded store"),
    Option("instance.name", "the instance; for an embedded store, its sub-directory of the endpoint"),
    Option("table.name", "the table"),
    Option("catalog", "the columns as JSON: `{\"columns\": {\"UserId\": {\"type\": \"string\"}, …}}`"),
    Option("tunnel.id", "the tunnel's id; an embedded store also takes its name", str, None, (SOURCE,)),
    Option("maxoffsetsperchannel", "most rows of one channel in a batch; below 0 no limit", _limit, "10000", (SOURCE,)),
    Option("maxoffsetspertrigger", "most rows in a batch, shared over the channels", _limit, None, (SOURCE,)),
    *(option for option in STREAM_OPTIONS if option.name not in ("maxRowsPerChannel", "maxRowsPerTrigger")),
    Option("checkpoint.table", "the meta table; an embedded store keeps batches in a place of its own", str,
           "__spark_meta_checkpoint__", (SOURCE,)),
    Option("ots.client", "client name", str, "spark-client", (SOURCE,)),
    Option("writer.row.change.type", "`put` replaces rows, `update` sets the cells that are not null",
           RowChange.parse, "put", (SINK, BATCH_WRITE)),
    Option("compute.mode", "`KV` or `Auto`; `Search` needs a search index", str, "KV", (BATCH_READ,)),
    Option("search.index.name", "a search index; an embedded store has none", str, "", (BATCH_READ,)),
    Option("max.split.count", "most tasks of a batch read", _positive, "1000", (BATCH_READ,)),
    Option("split.size.mbs", "MiB of a task of a batch read", _positive, "100", (BATCH_READ,)),
    Option("pushDownFilters", "as in format `headrace`", _boolean, "false", (BATCH_READ,)),
    Option("push.down.range.long", "accepted; ranges are pushed down wherever filters are", _boolean, "true",
           (BATCH_READ,)),
    Option("push.down.range.string", "accepted; ranges are pushed down wherever filters are", _boolean, "true",
           (BATCH_READ,)),
    *(Option(name, _WRITER_NOTE, str, None, (SINK, BATCH_WRITE)) for name in (
        "batch.update.size", "version", "writer.batch.request.type", "writer.batch.order.guaranteed",
        "writer.batch.duplicate.allowed", "writer.bucket.num", "writer.callback.pool.num",
        "writer.callback.pool.queue.size", "writer.concurrency", "writer.buffer.size", "writer.flush.interval.ms",
        "writer.max.batch.size.byte", "writer.max.batch.count", "writer.max.column.count",
        "writer.max.attr.size.byte", "writer.max.pk.size.byte", "client.io.pool", "client.retry.strategy",
        "client.retry.time.s", "client.retry.count", "client.retry.pause.ms", "spark.ignore.on-failure.enabled")),
    Option("synchronous", "as in format `headrace`", str, "full"),
)  # fmt: skip


class Settings:
    """The options of one use of a format, checked and typed; never shows the values in `repr`."""

    def __init__(self, table: tuple[Option, ...], given: Mapping[str, str]) -> None:
        self._table = {option.name.lower(): option for option in table}
        self._given = {name.lower(): value for name, value in given.items()}
        for name in self._given:
            if name not in self._table:
                close = difflib.get_close_matches(name, self._table, n=1, cutoff=0.8)
                if close:
                    raise OptionError(
                        "unknown option", received=name, valid=f"did you mean {self._table[close[0]].name}?"
                    )

    def __repr__(self) -> str:
        return f"Settings({', '.join(sorted(self._given))})"

    def get(self, name: str) -> Any:
        """Return an option's value, its default, or None.

        Raises:
            OptionError: the value cannot be read.
        """
        option = self._table[name.lower()]
        text = self._given.get(name.lower(), option.default)
        if text is None:
            return None
        try:
            return option.parse(text)
        except OptionError:
            raise
        except ValueError as error:
            valid = str(error) if "invalid literal" not in str(error) else "a whole number"
            raise OptionError(f"option {option.name} cannot be read", received=repr(text), valid=valid) from None

    def need(self, name: str, why: str = "") -> str:
        """Return the text of an option that must be there and not empty."""
        value = self._given.get(name.lower())
        if not value:
            option = self._table[name.lower()]
            raise OptionError(f"option {option.name} is missing{why}", valid=option.meaning)
        return value

    def limits(self) -> Limits:
        """Return the limits of a stream read."""
        channel = "maxRowsPerChannel" if "maxrowsperchannel" in self._table else "maxoffsetsperchannel"
        trigger = "maxRowsPerTrigger" if "maxrowspertrigger" in self._table else "maxoffsetspertrigger"
        return Limits(
            rows_per_channel=self.get(channel),
            rows_per_batch=self.get(trigger),
            bytes_per_batch=self.get("maxBytesPerTrigger"),
            min_rows=self.get("minRowsPerTrigger"),
            max_delay=self.get("maxTriggerDelay"),
        )


@dataclass(frozen=True)
class Location:
    """Where a data source's rows are: a store's URL and a table in it."""

    store_url: str
    table: str | None


def locate(provider: str, options: Mapping[str, str]) -> Location:
    """Return where a definition of format ``headrace`` or ``tablestore`` points to.

    Raises:
        OptionError: an option that is needed for that is missing.
    """
    if provider.lower() == "tablestore":
        return _locate_tablestore(Settings(TABLESTORE_OPTIONS, options))
    if provider.lower() == "headrace":
        settings = Settings(HEADRACE_OPTIONS, options)
        table = settings.get("table") or settings.get("path")
        return Location(settings.need("store"), table)
    raise OptionError("not a format of headrace", received=provider, valid="headrace, tablestore")


def _locate_tablestore(settings: Settings) -> Location:
    # The connector asks for its options in this order, and so do its users' error messages.
    table, instance = settings.need("table.name"), settings.need("instance.name")
    endpoint = settings.get("endpoint")
    scheme = urlsplit(endpoint or "").scheme
    if scheme in ("http", "https"):
        settings.need("access.key.id")
        settings.need("access.key.secret")
        return Location(f"tablestore+{endpoint}/{instance}", table)
    endpoint = settings.need("endpoint")
    directory = endpoint.removeprefix("file://") if scheme == "file" else endpoint
    if scheme == "file" and not directory.startswith("/"):
        directory = directory.removeprefix("file:")
    if instance in (".", "..") or "/" in instance or os.sep in instance:
        raise OptionError("option instance.name must be a plain name", received=repr(instance))
    return Location(str(Path(directory) / instance), table)
