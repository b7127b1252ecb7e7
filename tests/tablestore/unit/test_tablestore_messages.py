"""The generated code of Tablestore's messages matches the .proto files and the official SDK."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

from headrace_tablestore.wire import table_pb2, tunnel_pb2

GENERATED = [table_pb2, tunnel_pb2]
LABELS = {"optional": 1, "required": 2, "repeated": 3}
COMMENT = re.compile(r"//.*")
ENTITY = re.compile(
    r"(message|enum)\s+(\w+)\s*\{|(optional|required|repeated)\s+(\w+)\s+(\w+)\s*=\s*(\d+)|(\w+)\s*=\s*(\d+)|(\})"
)

Outline = dict[str, dict[str, tuple[Any, ...]]]


def outline_of_source(text: str) -> Outline:
    """Return the label, type and number of each field of the messages and enums in a .proto file."""
    found: Outline = {}
    path: list[str] = []
    body = COMMENT.sub("", text).split(";", 2)[2]
    for kind, name, label, type_name, field, number, value, code, _ in ENTITY.findall(body):
        if kind:
            path.append(name)
            found[".".join(path)] = {}
        elif label:
            found[".".join(path)][field] = (LABELS[label], type_name, int(number))
        elif value:
            found[".".join(path)][value] = (int(code),)
        else:
            path.pop()
    return found


def outline_of_code(module: Any) -> Outline:
    """Return the same for generated code."""
    file = FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    found: Outline = {}

    def add_enum(enum: EnumDescriptorProto, prefix: str) -> None:
        found[prefix + enum.name] = {value.name: (value.number,) for value in enum.value}

    def add_message(message: DescriptorProto, prefix: str) -> None:
        found[prefix + message.name] = {
            field.name: (int(field.label), type_of(field), field.number) for field in message.field
        }
        for nested in message.nested_type:
            add_message(nested, f"{prefix}{message.name}.")
        for enum in message.enum_type:
            add_enum(enum, f"{prefix}{message.name}.")

    for message in file.message_type:
        add_message(message, "")
    for enum in file.enum_type:
        add_enum(enum, "")
    return found


def type_of(field: FieldDescriptorProto) -> str:
    if field.type_name:
        return field.type_name.rpartition(".")[2]
    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


@pytest.mark.parametrize("module", GENERATED, ids=lambda module: module.__name__)
def test_the_generated_code_is_that_of_the_source(module: Any) -> None:
    source = Path(module.__file__).with_name(Path(module.DESCRIPTOR.name).name)
    assert outline_of_code(module) == outline_of_source(source.read_text())


@pytest.mark.parametrize("module", GENERATED, ids=lambda module: module.__name__)
def test_the_types_of_the_generated_code_know_every_message(module: Any) -> None:
    stub = Path(module.__file__).with_suffix(".pyi").read_text()
    missing = [name for name in outline_of_code(module) if f"class {name.rpartition('.')[2]}(" not in stub]
    assert missing == []


def test_messages_are_those_of_the_official_sdk() -> None:
    """Compares numbers, labels and types, which the encoding contains. headrace's messages may have more fields."""
    official = pytest.importorskip("tablestore.protobuf.table_store_pb2")
    filters = pytest.importorskip("tablestore.protobuf.table_store_filter_pb2")
    theirs = outline_of_code(official) | outline_of_code(filters)
    ours = outline_of_code(table_pb2)
    shared = ours.keys() & theirs.keys()
    assert len(shared) > 60
    for name in shared:
        # The SDK also has boolean keys, for time series.
        official_fields = {key: value for key, value in theirs[name].items() if key != "PK_BOOLEAN"}
        assert set(official_fields.values()) <= set(ours[name].values()), name
