"""The actions of Delta Lake's log, as the protocol has them, and what a commit of headrace changes. No I/O."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import headrace
from headrace_lake.delta.log import DataFile
from headrace_lake.delta.vectors import Vector

FEATURES_READER, FEATURES_WRITER = 3, 7
VECTORS, LOCAL_TIMES = "deletionVectors", "timestampNtz"
WRITES_VECTORS = "delta.enableDeletionVectors"
APPEND_ONLY = "delta.appendOnly"
# The versions of writers with these features. A protocol with a list of features must name them.
_FEATURES_OF_VERSIONS = {
    2: ("appendOnly", "invariants"),
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
}
_TIGHT = re.compile(r'("tightBounds"\s*:\s*)true')
_LOCAL_TIME = re.compile(r'[tT]ype": ?"timestamp_ntz"')

Action = Mapping[str, Any]
"""An action: its kind, and its content."""


@dataclass(frozen=True)
class Added:
    """A file that a commit adds. It is in the directory of the table.

    Attributes:
        modified: when it was written, in milliseconds since 1970.
    """

    path: str
    size: int
    modified: int
    statistics: str
    partition: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def log_path(self) -> str:
        """The path in the log."""
        return quote(self.path, safe="/=")


@dataclass(frozen=True)
class Shortened:
    """A data file that loses rows.

    Attributes:
        vector: its new deletion vector, which has the rows of the former one.
    """

    file: DataFile
    vector: Vector


@dataclass(frozen=True)
class Actions:
    """What a commit changes in a version.

    Attributes:
        added: the new files, which are on the disk.
        removed: files of the version.
        shortened: files of the version that lose rows.
        feed: new files of the change feed.
        definition: the new columns, properties or features of the table.
    """

    added: Sequence[Added] = ()
    removed: Sequence[DataFile] = ()
    shortened: Sequence[Shortened] = ()
    feed: Sequence[Added] = ()
    definition: Sequence[Action] = ()

    @property
    def files(self) -> set[str]:
        """The files that the commit needs, relative to the directory of the table."""
        vectors = {each.vector.file for each in self.shortened}
        return {each.path for each in (*self.added, *self.feed)} | {name for name in vectors if name is not None}


def entry(
    actions: Actions,
    *,
    now: int,
    read_version: int,
    data_change: bool,
    markers: Mapping[str, int],
    information: Mapping[str, Any],
    stored: Mapping[str, Mapping[str, Any]],
) -> list[Action]:
    """Return the actions of a commit for the log.

    Args:
        now: the time of the commit, in milliseconds since 1970.
        markers: the transactions of the commit, by application.
        information: texts for the history of the table.
        stored: the content of the log for the files that are shortened, by their paths in the log.
    """
    found: list[Action] = [_information(now, information, "WRITE" if data_change else "OPTIMIZE", read_version)]
    found += actions.definition
    found += [{"txn": {"appId": app, "version": version, "lastUpdated": now}} for app, version in markers.items()]
    for file in (*actions.removed, *(each.file for each in actions.shortened)):
        found.append({"remove": _removed(file, now, data_change=data_change)})
    found += [{"add": _added(file, data_change=data_change)} for file in actions.added]
    found += [
        {"add": _shortened(stored[each.file.log_path], each, data_change=data_change)} for each in actions.shortened
    ]
    found += [{"cdc": _changed(file)} for file in actions.feed]
    return found


def _added(file: Added, *, data_change: bool) -> dict[str, Any]:
    return {
        "path": file.log_path,
        "partitionValues": dict(file.partition),
        "size": file.size,
        "modificationTime": file.modified,
        "dataChange": data_change,
        "stats": file.statistics,
    }


def _changed(file: Added) -> dict[str, Any]:
    partition = dict(file.partition)
    return {"path": file.log_path, "partitionValues": partition, "size": file.size, "dataChange": False}


def _shortened(stored: Mapping[str, Any], shortened: Shortened, *, data_change: bool) -> dict[str, Any]:
    return {
        **{name: value for name, value in stored.items() if value is not None},
        "stats": _loose(stored.get("stats") or "{}", shortened.file.stored_rows),
        "deletionVector": shortened.vector.content,
        "dataChange": data_change,
    }


def _loose(statistics: str, rows: int | None) -> str:
    """Return the statistics of a file that may have rows with the bounds no longer.

    The text is not written anew: its decimals have more digits than Python's numbers.
    """
    known = json.loads(statistics)
    if "numRecords" not in known:
        return text_of({"numRecords": rows, "tightBounds": False})
    if "tightBounds" in known:
        return _TIGHT.sub(r"\1false", statistics)
    return '{"tightBounds":false,' + statistics.lstrip()[1:]


def _information(now: int, information: Mapping[str, Any], operation: str, read_version: int | None) -> Action:
    content: dict[str, Any] = {
        "timestamp": now,
        "operation": operation,
        "operationParameters": {},
        "engineInfo": f"headrace/{headrace.__version__}",
        # No other entry has the content of this one.
        "txnId": str(uuid.uuid4()),
    }
    if information:
        content["headrace"] = dict(information)
    if read_version is not None:
        content["readVersion"] = read_version
    return {"commitInfo": content}


def _removed(file: DataFile, now: int, *, data_change: bool) -> dict[str, Any]:
    content = {
        "path": file.log_path,
        "deletionTimestamp": now,
        "dataChange": data_change,
        "extendedFileMetadata": True,
        "partitionValues": dict(file.partition),
        "size": file.size,
    }
    if file.vector is not None:
        content["deletionVector"] = file.vector.content
    return content


# -- definitions --------------------------------------------------------------------------------------------------


def creation(
    identity: str,
    fields: str,
    partition_columns: Sequence[str],
    properties: Mapping[str, str],
    now: int,
) -> list[Action]:
    """Return the actions of the first version of a table.

    Args:
        identity: the id of the table.
        fields: the columns, as JSON.
    """
    definition = {
        "id": identity,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": fields,
        "partitionColumns": list(partition_columns),
        "configuration": dict(properties),
        "createdTime": now,
    }
    plain = {"minReaderVersion": 1, "minWriterVersion": 2}
    protocol = with_features(plain, needed_features(fields, properties))
    return [_information(now, {}, "CREATE TABLE", None), {"protocol": protocol}, {"metaData": definition}]


def needed_features(fields: str, properties: Mapping[str, str | None]) -> list[str]:
    """Return the features of readers that the columns and the properties of a table need."""
    found = [LOCAL_TIMES] if _LOCAL_TIME.search(fields) else []
    return found + [VECTORS] * is_on(properties, WRITES_VECTORS)


def is_on(properties: Mapping[str, str | None], name: str, *, default: bool = False) -> bool:
    """Return a boolean property of a table. Spark reads it in upper and lower case."""
    text = properties.get(name)
    return default if text is None else text.lower() == "true"


def with_features(protocol: Mapping[str, Any], features: Iterable[str]) -> dict[str, Any]:
    """Return a protocol with more features of readers.

    Args:
        protocol: one of reader version 1 and writer version 4 at most, or with lists of features.
    """
    wanted = [name for name in features if name not in (protocol.get("readerFeatures") or ())]
    if not wanted:
        return dict(protocol)
    version = protocol["minWriterVersion"]
    plain = [name for first, names in _FEATURES_OF_VERSIONS.items() if first <= version for name in names]
    writers = list(protocol.get("writerFeatures") or plain)
    return {
        "minReaderVersion": FEATURES_READER,
        "minWriterVersion": FEATURES_WRITER,
        "readerFeatures": [*(protocol.get("readerFeatures") or ()), *wanted],
        "writerFeatures": [*writers, *(name for name in wanted if name not in writers)],
    }


def lines(actions: Iterable[Action]) -> bytes:
    """Return actions as the content of an entry of the log."""
    return "".join(f"{text_of(action)}\n" for action in actions).encode()


def text_of(content: Any) -> str:
    """Return a part of an action as JSON in one line."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))
