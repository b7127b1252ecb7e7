from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PrimaryKeyType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INTEGER: _ClassVar[PrimaryKeyType]
    STRING: _ClassVar[PrimaryKeyType]
    BINARY: _ClassVar[PrimaryKeyType]

class DefinedColumnType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DCT_INTEGER: _ClassVar[DefinedColumnType]
    DCT_DOUBLE: _ClassVar[DefinedColumnType]
    DCT_BOOLEAN: _ClassVar[DefinedColumnType]
    DCT_STRING: _ClassVar[DefinedColumnType]
    DCT_BLOB: _ClassVar[DefinedColumnType]

class PrimaryKeyOption(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AUTO_INCREMENT: _ClassVar[PrimaryKeyOption]

class SSEKeyType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SSE_KMS_SERVICE: _ClassVar[SSEKeyType]
    SSE_BYOK: _ClassVar[SSEKeyType]

class IndexUpdateMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    IUM_ASYNC_INDEX: _ClassVar[IndexUpdateMode]
    IUM_SYNC_INDEX: _ClassVar[IndexUpdateMode]

class IndexType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    IT_GLOBAL_INDEX: _ClassVar[IndexType]
    IT_LOCAL_INDEX: _ClassVar[IndexType]

class TableStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTIVE: _ClassVar[TableStatus]
    INACTIVE: _ClassVar[TableStatus]
    LOADING: _ClassVar[TableStatus]
    UNLOADING: _ClassVar[TableStatus]
    UPDATING: _ClassVar[TableStatus]

class RowExistenceExpectation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    IGNORE: _ClassVar[RowExistenceExpectation]
    EXPECT_EXIST: _ClassVar[RowExistenceExpectation]
    EXPECT_NOT_EXIST: _ClassVar[RowExistenceExpectation]

class ReturnType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RT_NONE: _ClassVar[ReturnType]
    RT_PK: _ClassVar[ReturnType]
    RT_AFTER_MODIFY: _ClassVar[ReturnType]

class OperationType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PUT: _ClassVar[OperationType]
    UPDATE: _ClassVar[OperationType]
    DELETE: _ClassVar[OperationType]

class Direction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FORWARD: _ClassVar[Direction]
    BACKWARD: _ClassVar[Direction]

class FilterType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FT_SINGLE_COLUMN_VALUE: _ClassVar[FilterType]
    FT_COMPOSITE_COLUMN_VALUE: _ClassVar[FilterType]
    FT_COLUMN_PAGINATION: _ClassVar[FilterType]

class ComparatorType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CT_EQUAL: _ClassVar[ComparatorType]
    CT_NOT_EQUAL: _ClassVar[ComparatorType]
    CT_GREATER_THAN: _ClassVar[ComparatorType]
    CT_GREATER_EQUAL: _ClassVar[ComparatorType]
    CT_LESS_THAN: _ClassVar[ComparatorType]
    CT_LESS_EQUAL: _ClassVar[ComparatorType]
    CT_EXIST: _ClassVar[ComparatorType]
    CT_NOT_EXIST: _ClassVar[ComparatorType]

class VariantType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VT_INTEGER: _ClassVar[VariantType]
    VT_DOUBLE: _ClassVar[VariantType]
    VT_STRING: _ClassVar[VariantType]
    VT_NULL: _ClassVar[VariantType]
    VT_BLOB: _ClassVar[VariantType]

class LogicalOperator(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LO_NOT: _ClassVar[LogicalOperator]
    LO_AND: _ClassVar[LogicalOperator]
    LO_OR: _ClassVar[LogicalOperator]
INTEGER: PrimaryKeyType
STRING: PrimaryKeyType
BINARY: PrimaryKeyType
DCT_INTEGER: DefinedColumnType
DCT_DOUBLE: DefinedColumnType
DCT_BOOLEAN: DefinedColumnType
DCT_STRING: DefinedColumnType
DCT_BLOB: DefinedColumnType
AUTO_INCREMENT: PrimaryKeyOption
SSE_KMS_SERVICE: SSEKeyType
SSE_BYOK: SSEKeyType
IUM_ASYNC_INDEX: IndexUpdateMode
IUM_SYNC_INDEX: IndexUpdateMode
IT_GLOBAL_INDEX: IndexType
IT_LOCAL_INDEX: IndexType
ACTIVE: TableStatus
INACTIVE: TableStatus
LOADING: TableStatus
UNLOADING: TableStatus
UPDATING: TableStatus
IGNORE: RowExistenceExpectation
EXPECT_EXIST: RowExistenceExpectation
EXPECT_NOT_EXIST: RowExistenceExpectation
RT_NONE: ReturnType
RT_PK: ReturnType
RT_AFTER_MODIFY: ReturnType
PUT: OperationType
UPDATE: OperationType
DELETE: OperationType
FORWARD: Direction
BACKWARD: Direction
FT_SINGLE_COLUMN_VALUE: FilterType
FT_COMPOSITE_COLUMN_VALUE: FilterType
FT_COLUMN_PAGINATION: FilterType
CT_EQUAL: ComparatorType
CT_NOT_EQUAL: ComparatorType
CT_GREATER_THAN: ComparatorType
CT_GREATER_EQUAL: ComparatorType
CT_LESS_THAN: ComparatorType
CT_LESS_EQUAL: ComparatorType
CT_EXIST: ComparatorType
CT_NOT_EXIST: ComparatorType
VT_INTEGER: VariantType
VT_DOUBLE: VariantType
VT_STRING: VariantType
VT_NULL: VariantType
VT_BLOB: VariantType
LO_NOT: LogicalOperator
LO_AND: LogicalOperator
LO_OR: LogicalOperator

class Error(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class PrimaryKeySchema(_message.Message):
    __slots__ = ("name", "type", "option")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    OPTION_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: PrimaryKeyType
    option: PrimaryKeyOption
    def __init__(self, name: _Optional[str] = ..., type: _Optional[_Union[PrimaryKeyType, str]] = ..., option: _Optional[_Union[PrimaryKeyOption, str]] = ...) -> None: ...

class DefinedColumnSchema(_message.Message):
    __slots__ = ("name", "type")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: DefinedColumnType
    def __init__(self, name: _Optional[str] = ..., type: _Optional[_Union[DefinedColumnType, str]] = ...) -> None: ...

class TableMeta(_message.Message):
    __slots__ = ("table_name", "primary_key", "defined_column", "table_id", "global_table_id")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_KEY_FIELD_NUMBER: _ClassVar[int]
    DEFINED_COLUMN_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    primary_key: _containers.RepeatedCompositeFieldContainer[PrimaryKeySchema]
    defined_column: _containers.RepeatedCompositeFieldContainer[DefinedColumnSchema]
    table_id: str
    global_table_id: str
    def __init__(self, table_name: _Optional[str] = ..., primary_key: _Optional[_Iterable[_Union[PrimaryKeySchema, _Mapping]]] = ..., defined_column: _Optional[_Iterable[_Union[DefinedColumnSchema, _Mapping]]] = ..., table_id: _Optional[str] = ..., global_table_id: _Optional[str] = ...) -> None: ...

class TableOptions(_message.Message):
    __slots__ = ("time_to_live", "max_versions", "deviation_cell_version_in_sec", "allow_update", "update_full_row")
    TIME_TO_LIVE_FIELD_NUMBER: _ClassVar[int]
    MAX_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    DEVIATION_CELL_VERSION_IN_SEC_FIELD_NUMBER: _ClassVar[int]
    ALLOW_UPDATE_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FULL_ROW_FIELD_NUMBER: _ClassVar[int]
    time_to_live: int
    max_versions: int
    deviation_cell_version_in_sec: int
    allow_update: bool
    update_full_row: bool
    def __init__(self, time_to_live: _Optional[int] = ..., max_versions: _Optional[int] = ..., deviation_cell_version_in_sec: _Optional[int] = ..., allow_update: bool = ..., update_full_row: bool = ...) -> None: ...

class CapacityUnit(_message.Message):
    __slots__ = ("read", "write")
    READ_FIELD_NUMBER: _ClassVar[int]
    WRITE_FIELD_NUMBER: _ClassVar[int]
    read: int
    write: int
    def __init__(self, read: _Optional[int] = ..., write: _Optional[int] = ...) -> None: ...

class ReservedThroughput(_message.Message):
    __slots__ = ("capacity_unit",)
    CAPACITY_UNIT_FIELD_NUMBER: _ClassVar[int]
    capacity_unit: CapacityUnit
    def __init__(self, capacity_unit: _Optional[_Union[CapacityUnit, _Mapping]] = ...) -> None: ...

class ReservedThroughputDetails(_message.Message):
    __slots__ = ("capacity_unit", "last_increase_time", "last_decrease_time")
    CAPACITY_UNIT_FIELD_NUMBER: _ClassVar[int]
    LAST_INCREASE_TIME_FIELD_NUMBER: _ClassVar[int]
    LAST_DECREASE_TIME_FIELD_NUMBER: _ClassVar[int]
    capacity_unit: CapacityUnit
    last_increase_time: int
    last_decrease_time: int
    def __init__(self, capacity_unit: _Optional[_Union[CapacityUnit, _Mapping]] = ..., last_increase_time: _Optional[int] = ..., last_decrease_time: _Optional[int] = ...) -> None: ...

class CapacityDataSize(_message.Message):
    __slots__ = ("read_size", "write_size")
    READ_SIZE_FIELD_NUMBER: _ClassVar[int]
    WRITE_SIZE_FIELD_NUMBER: _ClassVar[int]
    read_size: int
    write_size: int
    def __init__(self, read_size: _Optional[int] = ..., write_size: _Optional[int] = ...) -> None: ...

class ConsumedCapacity(_message.Message):
    __slots__ = ("capacity_unit", "capacity_data_size")
    CAPACITY_UNIT_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_DATA_SIZE_FIELD_NUMBER: _ClassVar[int]
    capacity_unit: CapacityUnit
    capacity_data_size: CapacityDataSize
    def __init__(self, capacity_unit: _Optional[_Union[CapacityUnit, _Mapping]] = ..., capacity_data_size: _Optional[_Union[CapacityDataSize, _Mapping]] = ...) -> None: ...

class StreamSpecification(_message.Message):
    __slots__ = ("enable_stream", "expiration_time", "columns_to_get")
    ENABLE_STREAM_FIELD_NUMBER: _ClassVar[int]
    EXPIRATION_TIME_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_TO_GET_FIELD_NUMBER: _ClassVar[int]
    enable_stream: bool
    expiration_time: int
    columns_to_get: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, enable_stream: bool = ..., expiration_time: _Optional[int] = ..., columns_to_get: _Optional[_Iterable[str]] = ...) -> None: ...

class StreamDetails(_message.Message):
    __slots__ = ("enable_stream", "stream_id", "expiration_time", "last_enable_time", "column_to_get")
    ENABLE_STREAM_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRATION_TIME_FIELD_NUMBER: _ClassVar[int]
    LAST_ENABLE_TIME_FIELD_NUMBER: _ClassVar[int]
    COLUMN_TO_GET_FIELD_NUMBER: _ClassVar[int]
    enable_stream: bool
    stream_id: str
    expiration_time: int
    last_enable_time: int
    column_to_get: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, enable_stream: bool = ..., stream_id: _Optional[str] = ..., expiration_time: _Optional[int] = ..., last_enable_time: _Optional[int] = ..., column_to_get: _Optional[_Iterable[str]] = ...) -> None: ...

class SSESpecification(_message.Message):
    __slots__ = ("enable", "key_type", "key_id", "role_arn")
    ENABLE_FIELD_NUMBER: _ClassVar[int]
    KEY_TYPE_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_ARN_FIELD_NUMBER: _ClassVar[int]
    enable: bool
    key_type: SSEKeyType
    key_id: bytes
    role_arn: bytes
    def __init__(self, enable: bool = ..., key_type: _Optional[_Union[SSEKeyType, str]] = ..., key_id: _Optional[bytes] = ..., role_arn: _Optional[bytes] = ...) -> None: ...

class SSEDetails(_message.Message):
    __slots__ = ("enable", "key_type", "key_id", "role_arn")
    ENABLE_FIELD_NUMBER: _ClassVar[int]
    KEY_TYPE_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_ARN_FIELD_NUMBER: _ClassVar[int]
    enable: bool
    key_type: SSEKeyType
    key_id: bytes
    role_arn: bytes
    def __init__(self, enable: bool = ..., key_type: _Optional[_Union[SSEKeyType, str]] = ..., key_id: _Optional[bytes] = ..., role_arn: _Optional[bytes] = ...) -> None: ...

class IndexMeta(_message.Message):
    __slots__ = ("name", "primary_key", "defined_column", "update_mode", "type")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_KEY_FIELD_NUMBER: _ClassVar[int]
    DEFINED_COLUMN_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MODE_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    primary_key: _containers.RepeatedScalarFieldContainer[str]
    defined_column: _containers.RepeatedScalarFieldContainer[str]
    update_mode: IndexUpdateMode
    type: IndexType
    def __init__(self, name: _Optional[str] = ..., primary_key: _Optional[_Iterable[str]] = ..., defined_column: _Optional[_Iterable[str]] = ..., update_mode: _Optional[_Union[IndexUpdateMode, str]] = ..., type: _Optional[_Union[IndexType, str]] = ...) -> None: ...

class PartitionRange(_message.Message):
    __slots__ = ("begin", "end")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    begin: bytes
    end: bytes
    def __init__(self, begin: _Optional[bytes] = ..., end: _Optional[bytes] = ...) -> None: ...

class CreateTableRequest(_message.Message):
    __slots__ = ("table_meta", "reserved_throughput", "table_options", "partitions", "stream_spec", "sse_spec", "index_metas", "enable_local_txn")
    TABLE_META_FIELD_NUMBER: _ClassVar[int]
    RESERVED_THROUGHPUT_FIELD_NUMBER: _ClassVar[int]
    TABLE_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    STREAM_SPEC_FIELD_NUMBER: _ClassVar[int]
    SSE_SPEC_FIELD_NUMBER: _ClassVar[int]
    INDEX_METAS_FIELD_NUMBER: _ClassVar[int]
    ENABLE_LOCAL_TXN_FIELD_NUMBER: _ClassVar[int]
    table_meta: TableMeta
    reserved_throughput: ReservedThroughput
    table_options: TableOptions
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionRange]
    stream_spec: StreamSpecification
    sse_spec: SSESpecification
    index_metas: _containers.RepeatedCompositeFieldContainer[IndexMeta]
    enable_local_txn: bool
    def __init__(self, table_meta: _Optional[_Union[TableMeta, _Mapping]] = ..., reserved_throughput: _Optional[_Union[ReservedThroughput, _Mapping]] = ..., table_options: _Optional[_Union[TableOptions, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[PartitionRange, _Mapping]]] = ..., stream_spec: _Optional[_Union[StreamSpecification, _Mapping]] = ..., sse_spec: _Optional[_Union[SSESpecification, _Mapping]] = ..., index_metas: _Optional[_Iterable[_Union[IndexMeta, _Mapping]]] = ..., enable_local_txn: bool = ...) -> None: ...

class CreateTableResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UpdateTableRequest(_message.Message):
    __slots__ = ("table_name", "reserved_throughput", "table_options", "stream_spec")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    RESERVED_THROUGHPUT_FIELD_NUMBER: _ClassVar[int]
    TABLE_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    STREAM_SPEC_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    reserved_throughput: ReservedThroughput
    table_options: TableOptions
    stream_spec: StreamSpecification
    def __init__(self, table_name: _Optional[str] = ..., reserved_throughput: _Optional[_Union[ReservedThroughput, _Mapping]] = ..., table_options: _Optional[_Union[TableOptions, _Mapping]] = ..., stream_spec: _Optional[_Union[StreamSpecification, _Mapping]] = ...) -> None: ...

class UpdateTableResponse(_message.Message):
    __slots__ = ("reserved_throughput_details", "table_options", "stream_details")
    RESERVED_THROUGHPUT_DETAILS_FIELD_NUMBER: _ClassVar[int]
    TABLE_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    STREAM_DETAILS_FIELD_NUMBER: _ClassVar[int]
    reserved_throughput_details: ReservedThroughputDetails
    table_options: TableOptions
    stream_details: StreamDetails
    def __init__(self, reserved_throughput_details: _Optional[_Union[ReservedThroughputDetails, _Mapping]] = ..., table_options: _Optional[_Union[TableOptions, _Mapping]] = ..., stream_details: _Optional[_Union[StreamDetails, _Mapping]] = ...) -> None: ...

class DescribeTableRequest(_message.Message):
    __slots__ = ("table_name",)
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    def __init__(self, table_name: _Optional[str] = ...) -> None: ...

class DescribeTableResponse(_message.Message):
    __slots__ = ("table_meta", "reserved_throughput_details", "table_options", "table_status", "stream_details", "shard_splits", "sse_details", "index_metas", "creation_time")
    TABLE_META_FIELD_NUMBER: _ClassVar[int]
    RESERVED_THROUGHPUT_DETAILS_FIELD_NUMBER: _ClassVar[int]
    TABLE_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    TABLE_STATUS_FIELD_NUMBER: _ClassVar[int]
    STREAM_DETAILS_FIELD_NUMBER: _ClassVar[int]
    SHARD_SPLITS_FIELD_NUMBER: _ClassVar[int]
    SSE_DETAILS_FIELD_NUMBER: _ClassVar[int]
    INDEX_METAS_FIELD_NUMBER: _ClassVar[int]
    CREATION_TIME_FIELD_NUMBER: _ClassVar[int]
    table_meta: TableMeta
    reserved_throughput_details: ReservedThroughputDetails
    table_options: TableOptions
    table_status: TableStatus
    stream_details: StreamDetails
    shard_splits: _containers.RepeatedScalarFieldContainer[bytes]
    sse_details: SSEDetails
    index_metas: _containers.RepeatedCompositeFieldContainer[IndexMeta]
    creation_time: int
    def __init__(self, table_meta: _Optional[_Union[TableMeta, _Mapping]] = ..., reserved_throughput_details: _Optional[_Union[ReservedThroughputDetails, _Mapping]] = ..., table_options: _Optional[_Union[TableOptions, _Mapping]] = ..., table_status: _Optional[_Union[TableStatus, str]] = ..., stream_details: _Optional[_Union[StreamDetails, _Mapping]] = ..., shard_splits: _Optional[_Iterable[bytes]] = ..., sse_details: _Optional[_Union[SSEDetails, _Mapping]] = ..., index_metas: _Optional[_Iterable[_Union[IndexMeta, _Mapping]]] = ..., creation_time: _Optional[int] = ...) -> None: ...

class ListTableRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTableResponse(_message.Message):
    __slots__ = ("table_names",)
    TABLE_NAMES_FIELD_NUMBER: _ClassVar[int]
    table_names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, table_names: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteTableRequest(_message.Message):
    __slots__ = ("table_name",)
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    def __init__(self, table_name: _Optional[str] = ...) -> None: ...

class DeleteTableResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AddDefinedColumnRequest(_message.Message):
    __slots__ = ("table_name", "columns")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    columns: _containers.RepeatedCompositeFieldContainer[DefinedColumnSchema]
    def __init__(self, table_name: _Optional[str] = ..., columns: _Optional[_Iterable[_Union[DefinedColumnSchema, _Mapping]]] = ...) -> None: ...

class AddDefinedColumnResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeleteDefinedColumnRequest(_message.Message):
    __slots__ = ("table_name", "columns")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    columns: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, table_name: _Optional[str] = ..., columns: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteDefinedColumnResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSearchIndexRequest(_message.Message):
    __slots__ = ("table_name",)
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    def __init__(self, table_name: _Optional[str] = ...) -> None: ...

class SearchIndexInfo(_message.Message):
    __slots__ = ("table_name", "index_name")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    INDEX_NAME_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    index_name: str
    def __init__(self, table_name: _Optional[str] = ..., index_name: _Optional[str] = ...) -> None: ...

class ListSearchIndexResponse(_message.Message):
    __slots__ = ("indices",)
    INDICES_FIELD_NUMBER: _ClassVar[int]
    indices: _containers.RepeatedCompositeFieldContainer[SearchIndexInfo]
    def __init__(self, indices: _Optional[_Iterable[_Union[SearchIndexInfo, _Mapping]]] = ...) -> None: ...

class ListTimeseriesTableRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TimeseriesTableMeta(_message.Message):
    __slots__ = ("table_name",)
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    def __init__(self, table_name: _Optional[str] = ...) -> None: ...

class ListTimeseriesTableResponse(_message.Message):
    __slots__ = ("table_metas",)
    TABLE_METAS_FIELD_NUMBER: _ClassVar[int]
    table_metas: _containers.RepeatedCompositeFieldContainer[TimeseriesTableMeta]
    def __init__(self, table_metas: _Optional[_Iterable[_Union[TimeseriesTableMeta, _Mapping]]] = ...) -> None: ...

class Condition(_message.Message):
    __slots__ = ("row_existence", "column_condition")
    ROW_EXISTENCE_FIELD_NUMBER: _ClassVar[int]
    COLUMN_CONDITION_FIELD_NUMBER: _ClassVar[int]
    row_existence: RowExistenceExpectation
    column_condition: bytes
    def __init__(self, row_existence: _Optional[_Union[RowExistenceExpectation, str]] = ..., column_condition: _Optional[bytes] = ...) -> None: ...

class TimeRange(_message.Message):
    __slots__ = ("start_time", "end_time", "specific_time")
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    SPECIFIC_TIME_FIELD_NUMBER: _ClassVar[int]
    start_time: int
    end_time: int
    specific_time: int
    def __init__(self, start_time: _Optional[int] = ..., end_time: _Optional[int] = ..., specific_time: _Optional[int] = ...) -> None: ...

class ReturnContent(_message.Message):
    __slots__ = ("return_type", "return_column_names")
    RETURN_TYPE_FIELD_NUMBER: _ClassVar[int]
    RETURN_COLUMN_NAMES_FIELD_NUMBER: _ClassVar[int]
    return_type: ReturnType
    return_column_names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, return_type: _Optional[_Union[ReturnType, str]] = ..., return_column_names: _Optional[_Iterable[str]] = ...) -> None: ...

class GetRowRequest(_message.Message):
    __slots__ = ("table_name", "primary_key", "columns_to_get", "time_range", "max_versions", "filter", "start_column", "end_column", "token", "transaction_id")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_KEY_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_TO_GET_FIELD_NUMBER: _ClassVar[int]
    TIME_RANGE_FIELD_NUMBER: _ClassVar[int]
    MAX_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    START_COLUMN_FIELD_NUMBER: _ClassVar[int]
    END_COLUMN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    primary_key: bytes
    columns_to_get: _containers.RepeatedScalarFieldContainer[str]
    time_range: TimeRange
    max_versions: int
    filter: bytes
    start_column: str
    end_column: str
    token: bytes
    transaction_id: str
    def __init__(self, table_name: _Optional[str] = ..., primary_key: _Optional[bytes] = ..., columns_to_get: _Optional[_Iterable[str]] = ..., time_range: _Optional[_Union[TimeRange, _Mapping]] = ..., max_versions: _Optional[int] = ..., filter: _Optional[bytes] = ..., start_column: _Optional[str] = ..., end_column: _Optional[str] = ..., token: _Optional[bytes] = ..., transaction_id: _Optional[str] = ...) -> None: ...

class GetRowResponse(_message.Message):
    __slots__ = ("consumed", "row", "next_token")
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    NEXT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    consumed: ConsumedCapacity
    row: bytes
    next_token: bytes
    def __init__(self, consumed: _Optional[_Union[ConsumedCapacity, _Mapping]] = ..., row: _Optional[bytes] = ..., next_token: _Optional[bytes] = ...) -> None: ...

class PutRowRequest(_message.Message):
    __slots__ = ("table_name", "row", "condition", "return_content", "transaction_id")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    RETURN_CONTENT_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    row: bytes
    condition: Condition
    return_content: ReturnContent
    transaction_id: str
    def __init__(self, table_name: _Optional[str] = ..., row: _Optional[bytes] = ..., condition: _Optional[_Union[Condition, _Mapping]] = ..., return_content: _Optional[_Union[ReturnContent, _Mapping]] = ..., transaction_id: _Optional[str] = ...) -> None: ...

class PutRowResponse(_message.Message):
    __slots__ = ("consumed", "row")
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    consumed: ConsumedCapacity
    row: bytes
    def __init__(self, consumed: _Optional[_Union[ConsumedCapacity, _Mapping]] = ..., row: _Optional[bytes] = ...) -> None: ...

class UpdateRowRequest(_message.Message):
    __slots__ = ("table_name", "row_change", "condition", "return_content", "transaction_id")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    ROW_CHANGE_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    RETURN_CONTENT_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    row_change: bytes
    condition: Condition
    return_content: ReturnContent
    transaction_id: str
    def __init__(self, table_name: _Optional[str] = ..., row_change: _Optional[bytes] = ..., condition: _Optional[_Union[Condition, _Mapping]] = ..., return_content: _Optional[_Union[ReturnContent, _Mapping]] = ..., transaction_id: _Optional[str] = ...) -> None: ...

class UpdateRowResponse(_message.Message):
    __slots__ = ("consumed", "row")
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    consumed: ConsumedCapacity
    row: bytes
    def __init__(self, consumed: _Optional[_Union[ConsumedCapacity, _Mapping]] = ..., row: _Optional[bytes] = ...) -> None: ...

class DeleteRowRequest(_message.Message):
    __slots__ = ("table_name", "primary_key", "condition", "return_content", "transaction_id")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_KEY_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    RETURN_CONTENT_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    primary_key: bytes
    condition: Condition
    return_content: ReturnContent
    transaction_id: str
    def __init__(self, table_name: _Optional[str] = ..., primary_key: _Optional[bytes] = ..., condition: _Optional[_Union[Condition, _Mapping]] = ..., return_content: _Optional[_Union[ReturnContent, _Mapping]] = ..., transaction_id: _Optional[str] = ...) -> None: ...

class DeleteRowResponse(_message.Message):
    __slots__ = ("consumed", "row")
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    consumed: ConsumedCapacity
    row: bytes
    def __init__(self, consumed: _Optional[_Union[ConsumedCapacity, _Mapping]] = ..., row: _Optional[bytes] = ...) -> None: ...

class TableInBatchGetRowRequest(_message.Message):
    __slots__ = ("table_name", "primary_key", "token", "columns_to_get", "time_range", "max_versions", "filter", "start_column", "end_column")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_KEY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_TO_GET_FIELD_NUMBER: _ClassVar[int]
    TIME_RANGE_FIELD_NUMBER: _ClassVar[int]
    MAX_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    START_COLUMN_FIELD_NUMBER: _ClassVar[int]
    END_COLUMN_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    primary_key: _containers.RepeatedScalarFieldContainer[bytes]
    token: _containers.RepeatedScalarFieldContainer[bytes]
    columns_to_get: _containers.RepeatedScalarFieldContainer[str]
    time_range: TimeRange
    max_versions: int
    filter: bytes
    start_column: str
    end_column: str
    def __init__(self, table_name: _Optional[str] = ..., primary_key: _Optional[_Iterable[bytes]] = ..., token: _Optional[_Iterable[bytes]] = ..., columns_to_get: _Optional[_Iterable[str]] = ..., time_range: _Optional[_Union[TimeRange, _Mapping]] = ..., max_versions: _Optional[int] = ..., filter: _Optional[bytes] = ..., start_column: _Optional[str] = ..., end_column: _Optional[str] = ...) -> None: ...

class BatchGetRowRequest(_message.Message):
    __slots__ = ("tables",)
    TABLES_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[TableInBatchGetRowRequest]
    def __init__(self, tables: _Optional[_Iterable[_Union[TableInBatchGetRowRequest, _Mapping]]] = ...) -> None: ...

class RowInBatchGetRowResponse(_message.Message):
    __slots__ = ("is_ok", "error", "consumed", "row", "next_token")
    IS_OK_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    NEXT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    is_ok: bool
    error: Error
    consumed: ConsumedCapacity
    row: bytes
    next_token: bytes
    def __init__(self, is_ok: bool = ..., error: _Optional[_Union[Error, _Mapping]] = ..., consumed: _Optional[_Union[ConsumedCapacity, _Mapping]] = ..., row: _Optional[bytes] = ..., next_token: _Optional[bytes] = ...) -> None: ...

class TableInBatchGetRowResponse(_message.Message):
    __slots__ = ("table_name", "rows")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    rows: _containers.RepeatedCompositeFieldContainer[RowInBatchGetRowResponse]
    def __init__(self, table_name: _Optional[str] = ..., rows: _Optional[_Iterable[_Union[RowInBatchGetRowResponse, _Mapping]]] = ...) -> None: ...

class BatchGetRowResponse(_message.Message):
    __slots__ = ("tables",)
    TABLES_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[TableInBatchGetRowResponse]
    def __init__(self, tables: _Optional[_Iterable[_Union[TableInBatchGetRowResponse, _Mapping]]] = ...) -> None: ...

class RowInBatchWriteRowRequest(_message.Message):
    __slots__ = ("type", "row_change", "condition", "return_content")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    ROW_CHANGE_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    RETURN_CONTENT_FIELD_NUMBER: _ClassVar[int]
    type: OperationType
    row_change: bytes
    condition: Condition
    return_content: ReturnContent
    def __init__(self, type: _Optional[_Union[OperationType, str]] = ..., row_change: _Optional[bytes] = ..., condition: _Optional[_Union[Condition, _Mapping]] = ..., return_content: _Optional[_Union[ReturnContent, _Mapping]] = ...) -> None: ...

class TableInBatchWriteRowRequest(_message.Message):
    __slots__ = ("table_name", "rows")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    rows: _containers.RepeatedCompositeFieldContainer[RowInBatchWriteRowRequest]
    def __init__(self, table_name: _Optional[str] = ..., rows: _Optional[_Iterable[_Union[RowInBatchWriteRowRequest, _Mapping]]] = ...) -> None: ...

class BatchWriteRowRequest(_message.Message):
    __slots__ = ("tables", "transaction_id", "is_atomic")
    TABLES_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    IS_ATOMIC_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[TableInBatchWriteRowRequest]
    transaction_id: str
    is_atomic: bool
    def __init__(self, tables: _Optional[_Iterable[_Union[TableInBatchWriteRowRequest, _Mapping]]] = ..., transaction_id: _Optional[str] = ..., is_atomic: bool = ...) -> None: ...

class RowInBatchWriteRowResponse(_message.Message):
    __slots__ = ("is_ok", "error", "consumed", "row")
    IS_OK_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    is_ok: bool
    error: Error
    consumed: ConsumedCapacity
    row: bytes
    def __init__(self, is_ok: bool = ..., error: _Optional[_Union[Error, _Mapping]] = ..., consumed: _Optional[_Union[ConsumedCapacity, _Mapping]] = ..., row: _Optional[bytes] = ...) -> None: ...

class TableInBatchWriteRowResponse(_message.Message):
    __slots__ = ("table_name", "rows")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    rows: _containers.RepeatedCompositeFieldContainer[RowInBatchWriteRowResponse]
    def __init__(self, table_name: _Optional[str] = ..., rows: _Optional[_Iterable[_Union[RowInBatchWriteRowResponse, _Mapping]]] = ...) -> None: ...

class BatchWriteRowResponse(_message.Message):
    __slots__ = ("tables",)
    TABLES_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[TableInBatchWriteRowResponse]
    def __init__(self, tables: _Optional[_Iterable[_Union[TableInBatchWriteRowResponse, _Mapping]]] = ...) -> None: ...

class GetRangeRequest(_message.Message):
    __slots__ = ("table_name", "direction", "columns_to_get", "time_range", "max_versions", "limit", "inclusive_start_primary_key", "exclusive_end_primary_key", "filter", "start_column", "end_column", "token", "transaction_id")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_TO_GET_FIELD_NUMBER: _ClassVar[int]
    TIME_RANGE_FIELD_NUMBER: _ClassVar[int]
    MAX_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    INCLUSIVE_START_PRIMARY_KEY_FIELD_NUMBER: _ClassVar[int]
    EXCLUSIVE_END_PRIMARY_KEY_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    START_COLUMN_FIELD_NUMBER: _ClassVar[int]
    END_COLUMN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    direction: Direction
    columns_to_get: _containers.RepeatedScalarFieldContainer[str]
    time_range: TimeRange
    max_versions: int
    limit: int
    inclusive_start_primary_key: bytes
    exclusive_end_primary_key: bytes
    filter: bytes
    start_column: str
    end_column: str
    token: bytes
    transaction_id: str
    def __init__(self, table_name: _Optional[str] = ..., direction: _Optional[_Union[Direction, str]] = ..., columns_to_get: _Optional[_Iterable[str]] = ..., time_range: _Optional[_Union[TimeRange, _Mapping]] = ..., max_versions: _Optional[int] = ..., limit: _Optional[int] = ..., inclusive_start_primary_key: _Optional[bytes] = ..., exclusive_end_primary_key: _Optional[bytes] = ..., filter: _Optional[bytes] = ..., start_column: _Optional[str] = ..., end_column: _Optional[str] = ..., token: _Optional[bytes] = ..., transaction_id: _Optional[str] = ...) -> None: ...

class GetRangeResponse(_message.Message):
    __slots__ = ("consumed", "rows", "next_start_primary_key", "next_token")
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    NEXT_START_PRIMARY_KEY_FIELD_NUMBER: _ClassVar[int]
    NEXT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    consumed: ConsumedCapacity
    rows: bytes
    next_start_primary_key: bytes
    next_token: bytes
    def __init__(self, consumed: _Optional[_Union[ConsumedCapacity, _Mapping]] = ..., rows: _Optional[bytes] = ..., next_start_primary_key: _Optional[bytes] = ..., next_token: _Optional[bytes] = ...) -> None: ...

class ComputeSplitPointsBySizeRequest(_message.Message):
    __slots__ = ("table_name", "split_size", "split_size_unit_in_byte", "split_point_limit")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    SPLIT_SIZE_FIELD_NUMBER: _ClassVar[int]
    SPLIT_SIZE_UNIT_IN_BYTE_FIELD_NUMBER: _ClassVar[int]
    SPLIT_POINT_LIMIT_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    split_size: int
    split_size_unit_in_byte: int
    split_point_limit: int
    def __init__(self, table_name: _Optional[str] = ..., split_size: _Optional[int] = ..., split_size_unit_in_byte: _Optional[int] = ..., split_point_limit: _Optional[int] = ...) -> None: ...

class ComputeSplitPointsBySizeResponse(_message.Message):
    __slots__ = ("consumed", "schema", "split_points", "locations")
    class SplitLocation(_message.Message):
        __slots__ = ("location", "repeat")
        LOCATION_FIELD_NUMBER: _ClassVar[int]
        REPEAT_FIELD_NUMBER: _ClassVar[int]
        location: str
        repeat: int
        def __init__(self, location: _Optional[str] = ..., repeat: _Optional[int] = ...) -> None: ...
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    SPLIT_POINTS_FIELD_NUMBER: _ClassVar[int]
    LOCATIONS_FIELD_NUMBER: _ClassVar[int]
    consumed: ConsumedCapacity
    schema: _containers.RepeatedCompositeFieldContainer[PrimaryKeySchema]
    split_points: _containers.RepeatedScalarFieldContainer[bytes]
    locations: _containers.RepeatedCompositeFieldContainer[ComputeSplitPointsBySizeResponse.SplitLocation]
    def __init__(self, consumed: _Optional[_Union[ConsumedCapacity, _Mapping]] = ..., schema: _Optional[_Iterable[_Union[PrimaryKeySchema, _Mapping]]] = ..., split_points: _Optional[_Iterable[bytes]] = ..., locations: _Optional[_Iterable[_Union[ComputeSplitPointsBySizeResponse.SplitLocation, _Mapping]]] = ...) -> None: ...

class RowInBulkImportRequest(_message.Message):
    __slots__ = ("type", "row_change")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    ROW_CHANGE_FIELD_NUMBER: _ClassVar[int]
    type: OperationType
    row_change: bytes
    def __init__(self, type: _Optional[_Union[OperationType, str]] = ..., row_change: _Optional[bytes] = ...) -> None: ...

class BulkImportRequest(_message.Message):
    __slots__ = ("table_name", "rows")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    rows: _containers.RepeatedCompositeFieldContainer[RowInBulkImportRequest]
    def __init__(self, table_name: _Optional[str] = ..., rows: _Optional[_Iterable[_Union[RowInBulkImportRequest, _Mapping]]] = ...) -> None: ...

class RowInBulkImportResponse(_message.Message):
    __slots__ = ("is_ok", "error", "consumed")
    IS_OK_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    is_ok: bool
    error: Error
    consumed: ConsumedCapacity
    def __init__(self, is_ok: bool = ..., error: _Optional[_Union[Error, _Mapping]] = ..., consumed: _Optional[_Union[ConsumedCapacity, _Mapping]] = ...) -> None: ...

class BulkImportResponse(_message.Message):
    __slots__ = ("table_name", "rows")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    rows: _containers.RepeatedCompositeFieldContainer[RowInBulkImportResponse]
    def __init__(self, table_name: _Optional[str] = ..., rows: _Optional[_Iterable[_Union[RowInBulkImportResponse, _Mapping]]] = ...) -> None: ...

class Filter(_message.Message):
    __slots__ = ("type", "filter")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    type: FilterType
    filter: bytes
    def __init__(self, type: _Optional[_Union[FilterType, str]] = ..., filter: _Optional[bytes] = ...) -> None: ...

class ValueTransferRule(_message.Message):
    __slots__ = ("regex", "cast_type")
    REGEX_FIELD_NUMBER: _ClassVar[int]
    CAST_TYPE_FIELD_NUMBER: _ClassVar[int]
    regex: str
    cast_type: VariantType
    def __init__(self, regex: _Optional[str] = ..., cast_type: _Optional[_Union[VariantType, str]] = ...) -> None: ...

class SingleColumnValueFilter(_message.Message):
    __slots__ = ("comparator", "column_name", "column_value", "filter_if_missing", "latest_version_only", "value_trans_rule")
    COMPARATOR_FIELD_NUMBER: _ClassVar[int]
    COLUMN_NAME_FIELD_NUMBER: _ClassVar[int]
    COLUMN_VALUE_FIELD_NUMBER: _ClassVar[int]
    FILTER_IF_MISSING_FIELD_NUMBER: _ClassVar[int]
    LATEST_VERSION_ONLY_FIELD_NUMBER: _ClassVar[int]
    VALUE_TRANS_RULE_FIELD_NUMBER: _ClassVar[int]
    comparator: ComparatorType
    column_name: str
    column_value: bytes
    filter_if_missing: bool
    latest_version_only: bool
    value_trans_rule: ValueTransferRule
    def __init__(self, comparator: _Optional[_Union[ComparatorType, str]] = ..., column_name: _Optional[str] = ..., column_value: _Optional[bytes] = ..., filter_if_missing: bool = ..., latest_version_only: bool = ..., value_trans_rule: _Optional[_Union[ValueTransferRule, _Mapping]] = ...) -> None: ...

class CompositeColumnValueFilter(_message.Message):
    __slots__ = ("combinator", "sub_filters")
    COMBINATOR_FIELD_NUMBER: _ClassVar[int]
    SUB_FILTERS_FIELD_NUMBER: _ClassVar[int]
    combinator: LogicalOperator
    sub_filters: _containers.RepeatedCompositeFieldContainer[Filter]
    def __init__(self, combinator: _Optional[_Union[LogicalOperator, str]] = ..., sub_filters: _Optional[_Iterable[_Union[Filter, _Mapping]]] = ...) -> None: ...

class ColumnPaginationFilter(_message.Message):
    __slots__ = ("offset", "limit")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    offset: int
    limit: int
    def __init__(self, offset: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...
