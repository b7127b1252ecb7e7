"""Operations on tables and their predefined columns, and ComputeSplitPointsBySize."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headrace.model.tables.conditions import KeyRange
from headrace.model.tables.schema import Column, Key, TableSchema
from headrace_tablestore.endpoint.errors import invalid, refused
from headrace_tablestore.endpoint.instances import Instance, staying
from headrace_tablestore.endpoint.rows.keys import wrong_key_count
from headrace_tablestore.endpoint.rows.layout import (
    ARROW_TYPES,
    HIDDEN_COLUMNS,
    VERSION_COLUMNS,
    CellType,
    type_of_column,
)
from headrace_tablestore.endpoint.rows.single_rows import consumed
from headrace_tablestore.endpoint.rows.writing import add_columns
from headrace_tablestore.endpoint.tables.settings import FOR_EVER, Stream, TableSettings
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire.errors import ServiceError
from headrace_tablestore.wire.limits import (
    DEFAULT_SPLIT_UNIT_BYTES,
    MAX_DEFINED_COLUMNS,
    MAX_KEY_COLUMNS,
    MAX_STREAM_HOURS,
    MAX_TABLES,
    MIN_STREAM_HOURS,
    is_name,
)
from headrace_tablestore.wire.plainbuffer.rows import encode_row
from headrace_tablestore.wire.plainbuffer.values import Row, values_of_key

_KEY_TYPES = {pb.INTEGER: CellType.INTEGER, pb.STRING: CellType.STRING, pb.BINARY: CellType.BINARY}
_KEY_CODES = {kind: code for code, kind in _KEY_TYPES.items()}
_DEFINED_TYPES = {
    pb.DCT_INTEGER: CellType.INTEGER,
    pb.DCT_DOUBLE: CellType.DOUBLE,
    pb.DCT_BOOLEAN: CellType.BOOLEAN,
    pb.DCT_STRING: CellType.STRING,
    pb.DCT_BLOB: CellType.BINARY,
}
_SHORTEST_LIFE = 86400
_SAMPLE_ROWS = 1024
_MOST_SPLITS = 10_000
_SMALLEST_UNIT = 1 << 20


def create_table(instance: Instance, request: pb.CreateTableRequest) -> pb.CreateTableResponse:
    """Create a table. Predefined columns get their columns at once."""
    meta = request.table_meta
    _check_meta(meta)
    _refuse(bool(request.index_metas), "secondary indexes")
    _refuse(bool(request.partitions), "predefined partitions")
    _refuse(request.sse_spec.enable, "encryption")
    _refuse(request.enable_local_txn, "local transactions")
    numbered = [column.name for column in meta.primary_key if column.HasField("option")]
    settings = TableSettings(
        defined_columns=tuple((column.name, int(column.type)) for column in meta.defined_column),
        auto_increment=numbered[0] if numbered else None,
        created=time.time_ns() // 1000,
    )
    settings = _with_options(settings, request.table_options)
    settings = replace(settings, update_full_row=request.table_options.update_full_row)
    settings = _with_throughput(settings, request.reserved_throughput)
    if request.HasField("stream_spec"):
        settings = _with_stream(settings, request.stream_spec)
    columns = {
        **{column.name: ARROW_TYPES[_KEY_TYPES[column.type]] for column in meta.primary_key},
        **{column.name: ARROW_TYPES[_DEFINED_TYPES[column.type]] for column in meta.defined_column},
        **_hidden_columns(settings),
    }
    key = [column.name for column in meta.primary_key]
    with instance.changing:
        if len(_names(instance)) >= MAX_TABLES:
            raise ServiceError("OTSQuotaExhausted", f"Number of tables exceeds the quota:{MAX_TABLES}.")
        instance.store.create_table(meta.table_name, columns, key, **_log_options(settings))
        instance.forget(meta.table_name)
        instance.settings.save(meta.table_name, settings)
    return pb.CreateTableResponse()


def list_table(instance: Instance, request: pb.ListTableRequest) -> pb.ListTableResponse:
    return pb.ListTableResponse(table_names=_names(instance))


def _names(instance: Instance) -> list[str]:
    return [name for name in instance.store.tables() if is_name(name)]


def describe_table(instance: Instance, request: pb.DescribeTableRequest) -> pb.DescribeTableResponse:
    name = request.table_name
    description = instance.table(name).describe()
    settings = instance.settings.get(name)
    meta = pb.TableMeta(table_name=name)
    for column in description.schema.primary_key:
        meta.primary_key.append(_key_column(description.schema.column(column), settings))
    for column, kind in settings.defined_columns:
        meta.defined_column.add(name=column, type=kind)
    lows = sorted(part.keys.low for part in description.partitions if part.open and part.keys.low is not None)
    return pb.DescribeTableResponse(
        table_meta=meta,
        reserved_throughput_details=_throughput(settings),
        table_options=_options(settings),
        table_status=pb.ACTIVE,
        stream_details=_stream_details(settings),
        shard_splits=[_key_bytes(low, description.schema) for low in lows],
        creation_time=settings.created,
    )


def update_table(instance: Instance, request: pb.UpdateTableRequest) -> pb.UpdateTableResponse:
    """Change a table's options, its throughput, or its stream."""
    changed = [field for field in ("reserved_throughput", "table_options", "stream_spec") if request.HasField(field)]
    if not changed:
        raise invalid("an update of a table has no changes", valid="throughput, options or stream")
    if request.table_options.HasField("update_full_row"):
        raise refused("The table options of an update cannot contain updateFullRow.")

    def updated(settings: TableSettings) -> TableSettings:
        if "table_options" in changed:
            settings = _with_options(settings, request.table_options)
        if "reserved_throughput" in changed:
            settings = _with_throughput(settings, request.reserved_throughput)
        if "stream_spec" in changed:
            settings = _with_stream(settings, request.stream_spec)
        return settings

    settings = _change(instance, request.table_name, updated)
    return pb.UpdateTableResponse(
        reserved_throughput_details=_throughput(settings),
        table_options=_options(settings),
        stream_details=_stream_details(settings),
    )


def enable_stream(instance: Instance, name: str) -> None:
    """Enable the stream of a table, as the service does for the first tunnel of a table."""
    wanted = pb.StreamSpecification(enable_stream=True, expiration_time=MAX_STREAM_HOURS)
    _change(instance, name, lambda settings: _with_stream(settings, wanted) if settings.stream is None else settings)


def _change(instance: Instance, name: str, updated: Callable[[TableSettings], TableSettings]) -> TableSettings:
    """Change the settings of a table, and return the new settings."""
    with instance.changing:
        table = instance.table(name)
        table.describe()  # Raises an error if the table was dropped: it must not get settings.
        before = instance.settings.get(name)
        settings = updated(before)
        if settings.stream != before.stream:
            table.set_options(**_log_options(settings))
        missing = {name: kind for name, kind in _hidden_columns(settings).items() if name not in table.schema.names}
        if missing and settings.max_versions > 1:
            table.add_columns(missing)
        if settings != before:
            instance.settings.save(name, settings)
    return settings


def add_defined_columns(instance: Instance, request: pb.AddDefinedColumnRequest) -> pb.AddDefinedColumnResponse:
    """Predefine columns. Existing cells do not change."""
    table = instance.table(request.table_name)
    added = [(column.name, int(column.type)) for column in request.columns]

    def updated(settings: TableSettings) -> TableSettings:
        defined = (*settings.defined_columns, *added)
        _check_defined(table.schema.primary_key, [name for name, _ in defined])
        return replace(settings, defined_columns=defined)

    _change(instance, request.table_name, updated)
    add_columns(table, [(column.name, _DEFINED_TYPES[column.type]) for column in request.columns])
    return pb.AddDefinedColumnResponse()


def delete_defined_columns(
    instance: Instance, request: pb.DeleteDefinedColumnRequest
) -> pb.DeleteDefinedColumnResponse:
    """Remove columns from the predefined ones. Their cells stay."""

    def updated(settings: TableSettings) -> TableSettings:
        names = [name for name, _ in settings.defined_columns]
        for name in request.columns:
            if name not in names:
                raise invalid("the table does not have this predefined column", received=repr(name), valid=names)
        kept = tuple(column for column in settings.defined_columns if column[0] not in request.columns)
        return replace(settings, defined_columns=kept)

    _change(instance, request.table_name, updated)
    return pb.DeleteDefinedColumnResponse()


def delete_table(instance: Instance, request: pb.DeleteTableRequest) -> pb.DeleteTableResponse:
    """Drop a table and its tunnels."""
    with instance.changing:
        name = instance.table(request.table_name).name
        tunnels = instance.store.tunnels(name)
        instance.store.drop_table(name)
        instance.settings.delete(name)
        instance.forget(name)
        for tunnel in tunnels:
            instance.stream_bounds.delete(tunnel.id)
    return pb.DeleteTableResponse()


def compute_split_points_by_size(
    instance: Instance, request: pb.ComputeSplitPointsBySizeRequest
) -> pb.ComputeSplitPointsBySizeResponse:
    """Return keys that divide a table into splits of about the requested size, with about equal numbers of rows."""
    unit = request.split_size_unit_in_byte if request.HasField("split_size_unit_in_byte") else DEFAULT_SPLIT_UNIT_BYTES
    if request.split_size < 1:
        raise refused("The split_size should be greater than 0.")
    if unit < 1:
        # The service refuses a unit below this minimum. The endpoint accepts it, so that tests can split small tables.
        raise refused(f"The split_size_unit_in_byte should be greater equal than: {_SMALLEST_UNIT}")
    most = request.split_point_limit if request.HasField("split_point_limit") else _MOST_SPLITS
    if most < 1:
        raise invalid("the limit of split points must be greater than 0", received=most)
    table = instance.table(request.table_name)
    description = table.describe()
    schema = description.schema
    with staying(table, schema):
        sample = table.page(schema.names, KeyRange(), limit=_SAMPLE_ROWS).rows
    size = description.rows * sample.nbytes // max(1, sample.num_rows)
    splits = max(1, min(size // (request.split_size * unit), most, _MOST_SPLITS))
    points = [split.low for split in table.splits(splits) if split.low is not None]
    settings = instance.settings.get(request.table_name)
    response = pb.ComputeSplitPointsBySizeResponse(
        consumed=consumed(read=1),
        schema=[_key_column(schema.column(name), settings) for name in schema.primary_key],
        split_points=[_key_bytes(point, schema) for point in points],
    )
    response.locations.add(location=_location(instance), repeat=len(points) + 1)
    return response


def list_search_index(instance: Instance, request: pb.ListSearchIndexRequest) -> pb.ListSearchIndexResponse:
    return pb.ListSearchIndexResponse()


def list_timeseries_table(instance: Instance, request: pb.ListTimeseriesTableRequest) -> pb.ListTimeseriesTableResponse:
    return pb.ListTimeseriesTableResponse()


def _location(instance: Instance) -> str:
    """Return the location of all splits of an instance: 32 characters, as the tests of the Java SDK expect."""
    return hashlib.md5(instance.name.encode(), usedforsecurity=False).hexdigest()


# -- checks, settings and messages ----------------------------------------------------------------------------------


def _check_meta(meta: pb.TableMeta) -> None:
    if not is_name(meta.table_name):
        raise refused(f"Invalid table name: '{meta.table_name}'.")
    if not 1 <= len(meta.primary_key) <= MAX_KEY_COLUMNS:
        raise wrong_key_count()
    key = [column.name for column in meta.primary_key]
    for name in key:
        _check_column(name)
        if key.count(name) > 1:
            raise refused(f"Duplicated primary key name: '{name}'.")
    _check_defined(key, [column.name for column in meta.defined_column])
    numbered = [number for number, column in enumerate(meta.primary_key) if column.HasField("option")]
    if len(numbered) > 1 or 0 in numbered or any(meta.primary_key[number].type != pb.INTEGER for number in numbered):
        raise invalid("the server can number one key column: an INTEGER, and not the first column")


def _check_defined(key: Sequence[str], defined: Sequence[str]) -> None:
    """Raise `ServiceError` for predefined columns that a table with this key cannot have."""
    if len(defined) > MAX_DEFINED_COLUMNS:
        raise refused(f"The number of defined columns must be in range: [0, {MAX_DEFINED_COLUMNS}].")
    for name in defined:
        _check_column(name)
        if name in key or defined.count(name) > 1:
            raise invalid("a column name occurs twice", received=repr(name))


def _check_column(name: str) -> None:
    if not is_name(name):
        raise refused(f"Invalid column name: '{name}'.")


def _refuse(requested: bool, feature: str) -> None:
    if requested:
        raise invalid(f"the endpoint does not support {feature}")


def _hidden_columns(settings: TableSettings) -> dict[str, pa.DataType]:
    return {**HIDDEN_COLUMNS, **(VERSION_COLUMNS if settings.max_versions > 1 else {})}


def _with_options(settings: TableSettings, options: pb.TableOptions) -> TableSettings:
    if options.HasField("max_versions"):
        if options.max_versions < 1:
            raise invalid("max_versions must be at least 1", received=options.max_versions)
        settings = replace(settings, max_versions=options.max_versions)
    if options.HasField("time_to_live"):
        life = options.time_to_live
        if life != FOR_EVER and life < _SHORTEST_LIFE:
            raise invalid("time_to_live is -1, or at least a day", received=life, valid=f"-1, from {_SHORTEST_LIFE} on")
        settings = replace(settings, time_to_live=life)
    if options.HasField("deviation_cell_version_in_sec"):
        deviation = options.deviation_cell_version_in_sec
        if deviation < 1:
            raise invalid("deviation_cell_version_in_sec must be greater than 0", received=deviation)
        settings = replace(settings, deviation=deviation)
    if options.HasField("allow_update"):
        settings = replace(settings, allow_update=options.allow_update)
    return settings


def _with_throughput(settings: TableSettings, throughput: pb.ReservedThroughput) -> TableSettings:
    unit = throughput.capacity_unit
    if unit.read < 0 or unit.write < 0:
        raise invalid("reserved throughput cannot be negative", received=f"read {unit.read}, write {unit.write}")
    return replace(
        settings,
        read_units=unit.read if unit.HasField("read") else settings.read_units,
        write_units=unit.write if unit.HasField("write") else settings.write_units,
        throughput_changed=int(time.time()),
    )


def _with_stream(settings: TableSettings, wanted: pb.StreamSpecification) -> TableSettings:
    if not wanted.enable_stream:
        return replace(settings, stream=None)
    hours = wanted.expiration_time
    if not MIN_STREAM_HOURS <= hours <= MAX_STREAM_HOURS:
        raise invalid(
            "a stream keeps changes for 1 to 168 hours",
            received=hours,
            valid=f"expiration_time from {MIN_STREAM_HOURS} to {MAX_STREAM_HOURS}",
        )
    columns = tuple(wanted.columns_to_get)
    if settings.stream is not None:
        return replace(settings, stream=replace(settings.stream, hours=hours, columns=columns))
    stream = Stream(f"{uuid.uuid4().hex}_{time.time_ns() // 1000}", time.time_ns() // 1000, hours, columns)
    return replace(settings, stream=stream)


def _log_options(settings: TableSettings) -> dict[str, Any]:
    """Return the options of the store's table for a stream; none without a stream."""
    stream = settings.stream
    if stream is None:
        return {}
    # Changes of a stream expire even if a tunnel has not read them.
    options: dict[str, Any] = {"retention_seconds": stream.hours * 3600.0, "retention_ignores_tunnels": True}
    # Records with previous values need pre-images.
    return {**options, "pre_images": True} if stream.columns else options


def _options(settings: TableSettings) -> pb.TableOptions:
    return pb.TableOptions(
        time_to_live=settings.time_to_live,
        max_versions=settings.max_versions,
        deviation_cell_version_in_sec=settings.deviation,
        allow_update=settings.allow_update,
        update_full_row=settings.update_full_row,
    )


def _throughput(settings: TableSettings) -> pb.ReservedThroughputDetails:
    unit = pb.CapacityUnit(read=settings.read_units, write=settings.write_units)
    return pb.ReservedThroughputDetails(capacity_unit=unit, last_increase_time=settings.throughput_changed)


def _stream_details(settings: TableSettings) -> pb.StreamDetails:
    stream = settings.stream
    if stream is None:
        return pb.StreamDetails(enable_stream=False)
    return pb.StreamDetails(
        enable_stream=True,
        stream_id=stream.id,
        expiration_time=stream.hours,
        last_enable_time=stream.enabled,
        column_to_get=stream.columns,
    )


def _key_column(column: Column, settings: TableSettings) -> pb.PrimaryKeySchema:
    kind = type_of_column(column.type)
    assert kind is not None
    message = pb.PrimaryKeySchema(name=column.name, type=_KEY_CODES[kind])
    if column.name == settings.auto_increment:
        message.option = pb.AUTO_INCREMENT
    return message


def _key_bytes(key: Key, schema: TableSchema) -> bytes:
    """Return an encoded key, or key prefix."""
    return encode_row(Row(tuple(zip(schema.primary_key, values_of_key(key), strict=False))))
