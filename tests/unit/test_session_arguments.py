"""Invalid arguments of sessions, scripts and workspaces raise headrace's errors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import pytest

import headrace
from headrace.errors import HeadraceError, OptionError, StoreError
from headrace.spark.session import interpreters
from headrace.streaming_sql.workspace import Workspace


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": "\ud800"},
        {"name": 1},
        {"master": "\ud800"},
        {"master": "local\0"},
        {"master": -1},
        {"conf": "spark.x=1"},
        {"conf": 1},
        {"conf": {1: 2}},
        {"conf": {"\ud800": 1}},
        {"conf": {"spark.x": "\0"}},
    ],
)
def test_a_session_refuses_arguments_before_it_starts_spark(arguments: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        headrace.session(**arguments)


def test_a_refused_setting_does_not_show_its_value() -> None:
    with pytest.raises(OptionError) as refusal:
        headrace.session(conf={"spark.token": "hunter2\ud800"})
    assert "hunter2" not in str(refusal.value)


def test_a_setting_names_the_interpreter_before_the_environment_of_an_earlier_session() -> None:
    first = interpreters({}, {})
    assert first == {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    second = interpreters({"spark.pyspark.python": "/opt/python"}, first)
    assert second == {"PYSPARK_PYTHON": "/opt/python", "PYSPARK_DRIVER_PYTHON": sys.executable}


@pytest.mark.parametrize("path", ["\ud800", "a\0b"])
def test_a_workspace_must_be_a_path(path: str) -> None:
    with pytest.raises(StoreError, match="must be a path"):
        Workspace(path)


@pytest.mark.parametrize("text", [None, 1, b"SELECT 1", ["SELECT 1"]])
def test_a_script_is_a_text(text: object, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="a script must be a text"):
        headrace.sql(cast("Any", None), tmp_path).run(cast("Any", text))


def test_a_text_is_not_a_boolean_argument(tmp_path: Path) -> None:
    with pytest.raises(OptionError):
        headrace.sql(cast("Any", None), tmp_path).run("", available_now=cast("Any", "false"))
    with pytest.raises(HeadraceError):
        headrace.open(tmp_path / "store", create=cast("Any", "false"))
    assert not (tmp_path / "store").exists()
