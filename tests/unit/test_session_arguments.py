"""Invalid arguments of sessions, scripts and workspaces raise headrace's errors."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace.errors import HeadraceError, OptionError, StoreError
from headrace.spark.session import SECRETS_IN_REQUESTS, interpreters
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


KEYS = st.sampled_from(["token", "password", "access_key_secret", "tablestore.access.key.secret", "STS_TOKEN"])
FORMS = st.sampled_from(
    [
        "{key}{space}'{value}'",
        "'{key}'{space}= '{value}'",
        '"{key}"="{value}"',
        "`{key}` '{value}'",
        "{key} => r'{value}'",
    ]
)
SPACES = st.text(" \t\r\n", min_size=1, max_size=3)
ENDS = st.text("ab;, '\"\\\n", max_size=4)


def request(message: str, **fields: str) -> str:
    """Return a request as Spark Connect shows it: a protocol buffer as text."""
    shown = []
    for name, value in fields.items():
        escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace('"', '\\"')
        escaped = escaped.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
        shown.append(f'  {name}: "{escaped}"\n')
    return f"{message} {{\n{''.join(shown)}}}\n"


@given(key=KEYS, form=FORMS, space=SPACES, before=ENDS, after=ENDS, cut=st.integers(0, 99))
def test_requests_of_spark_connect_show_no_secret_of_sql(
    key: str, form: str, space: str, before: str, after: str, cut: int
) -> None:
    value = f"{before}hunter2{after}".replace("\\", "\\\\").replace("'", "\\'").replace('"', '\\"')
    sql = f"CREATE VIEW v OPTIONS (store 'shop', {form.format(key=key, space=space, value=value)})"
    text = request("sql", query=sql) + request("other", name="last")
    shown = re.sub(SECRETS_IN_REQUESTS, "*", text)
    assert "hunter2" not in shown
    assert "shop" in shown
    assert "last" in shown
    assert "hunter2" not in re.sub(SECRETS_IN_REQUESTS, "*", text[: text.index("hunter2") + 7 + cut])


@given(key=KEYS, before=ENDS, after=ENDS)
def test_requests_of_spark_connect_show_no_secret_of_options(key: str, before: str, after: str) -> None:
    others = request("options", key="store", value="shop")
    text = request("options", key=key, value=f"{before}hunter2{after}") + others
    shown = re.sub(SECRETS_IN_REQUESTS, "*", text)
    assert "hunter2" not in shown
    assert shown.endswith(others)
    argument = (
        f'named_arguments {{\n  key: "{key}"\n  value {{\n    literal {{\n      string: "hunter2"\n    }}\n  }}\n}}\n'
    )
    assert "hunter2" not in re.sub(SECRETS_IN_REQUESTS, "*", argument)


def test_requests_of_spark_connect_show_the_names_of_columns() -> None:
    text = request("sql", query="SELECT token, password AS p FROM users")
    assert re.sub(SECRETS_IN_REQUESTS, "*", text) == text


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
