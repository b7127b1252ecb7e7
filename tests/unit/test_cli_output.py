"""The output of the command line, as text and as JSON."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import threading
from typing import Any

import pyarrow as pa
import pytest

from headrace.cli.output import ConsoleOutput, JsonOutput, Output, to_json
from headrace.errors import NotFoundError


def outputs(kind: type[ConsoleOutput] | type[JsonOutput]) -> tuple[Output, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    return kind(out, err), out, err


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), '"NaN"'),
        (float("-inf"), '"-Infinity"'),
        (b"\x00\xff", '"AP8="'),
        (decimal.Decimal("1.250"), '"1.250"'),
        (datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.UTC), '"2026-01-02T03:04:05.000006+00:00"'),
        (datetime.date(2026, 1, 2), '"2026-01-02"'),
        ({"ü": (1, None, True)}, '{"ü": [1, null, true]}'),
    ],
)
def test_json_expresses_every_value_of_a_table(value: Any, text: str) -> None:
    assert to_json(value) == text


def test_json_rows_are_one_line_each() -> None:
    output, out, _ = outputs(JsonOutput)
    batches = [pa.record_batch({"a": [1, 2]}), pa.record_batch({"a": [None]})]
    assert output.rows(batches) == 3
    assert [json.loads(line) for line in out.getvalue().splitlines()] == [{"a": 1}, {"a": 2}, {"a": None}]


def test_json_lists_are_one_document_even_when_empty() -> None:
    output, out, err = outputs(JsonOutput)
    output.records([], columns=("name",), nothing="Nothing.")
    assert json.loads(out.getvalue()) == []
    assert err.getvalue() == ""


def test_one_wide_table_in_a_list_does_not_make_all_lines_wide() -> None:
    output, out, _ = outputs(ConsoleOutput)
    record = {"name": "wide", "columns": [f"c{number}" for number in range(1600)]}
    output.records([record], columns=("name", "columns"), nothing="Nothing.")
    assert "c19, and 1580 more" in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) < 150
    output, out, _ = outputs(JsonOutput)
    output.records([record], columns=("name", "columns"), nothing="Nothing.")
    assert json.loads(out.getvalue()) == [record]


def test_an_empty_list_on_the_console_is_a_note() -> None:
    output, out, err = outputs(ConsoleOutput)
    output.records([], columns=("name",), nothing="Nothing here.")
    assert out.getvalue() == ""
    assert err.getvalue() == "Nothing here.\n"


def test_values_are_never_cut_outside_of_a_terminal() -> None:
    output, out, _ = outputs(ConsoleOutput)
    output.rows([pa.record_batch({"text": ["x" * 500], "number": [7]})])
    assert "x" * 500 in out.getvalue()
    assert "7" in out.getvalue()


def test_control_characters_in_data_do_not_reach_the_terminal() -> None:
    output, out, _ = outputs(ConsoleOutput)
    output.rows([pa.record_batch({"text": ["\x1b[2Jgone\n[bold]kept[/bold]"]})])
    assert "\x1b" not in out.getvalue()
    assert r"\x1b[2Jgone\n[bold]kept[/bold]" in out.getvalue()


def test_a_record_shows_its_lists_as_tables() -> None:
    output, out, _ = outputs(ConsoleOutput)
    output.record({"name": "orders", "columns": [{"column": "id", "type": "long"}]}, title="orders")
    lines = [line.rstrip() for line in out.getvalue().splitlines() if line.strip()]
    assert lines[0] == "orders"
    assert lines[1].split() == ["name", "orders"]
    assert lines[-1].split() == ["id", "long"]


def test_errors_go_to_standard_error_with_all_their_parts() -> None:
    problem = NotFoundError("no such table", received="'x'", valid=["a", "b"], remedy="create it")
    output, out, err = outputs(JsonOutput)
    output.error(problem)
    assert out.getvalue() == ""
    assert json.loads(err.getvalue()) == {
        "error": {
            "type": "NotFoundError",
            "message": str(problem),
            "problem": "no such table",
            "received": "'x'",
            "valid": "a, b",
            "remedy": "create it",
        }
    }
    output, out, err = outputs(ConsoleOutput)
    output.error(problem, hint="a hint")
    assert err.getvalue() == f"error: {problem}\na hint\n"


def test_errors_of_spark_are_printed_without_stack_trace() -> None:
    output, _, err = outputs(ConsoleOutput)
    output.error(RuntimeError("table not found\n\nJVM stacktrace:\njava.lang.Exception\n\tat here"))
    assert err.getvalue() == "error: RuntimeError: table not found\n"


def test_errors_of_headrace_in_a_spark_worker_are_printed_without_traceback() -> None:
    output, _, err = outputs(ConsoleOutput)
    text = (
        "Traceback (most recent call last):\n  File ...\nheadrace.errors.NotFoundError: no such table\n SQLSTATE: 38000"
    )
    output.error(RuntimeError(f"[PYTHON_DATA_SOURCE_ERROR] Failed: {text}"))
    assert err.getvalue() == "error: no such table\n"


def test_records_and_results_of_statements_keep_line_breaks() -> None:
    output, out, _ = outputs(ConsoleOutput)
    output.record({"name": "x", "script": "SELECT 1\nFROM\x1b[2J t\n"})
    assert out.getvalue() == "name    x\nscript  SELECT 1\n        FROM\\x1b[2J t\n"
    output, out, _ = outputs(ConsoleOutput)
    output.table(("property", "value"), [("plan", "one\ntwo")])
    assert [line.split() for line in out.getvalue().splitlines()[3:5]] == [["plan", "one"], ["two"]]


def test_live_views_are_lines_outside_of_a_terminal() -> None:
    output, out, _ = outputs(ConsoleOutput)
    with output.live() as live:
        live.show("one", "picture", value=1)
        live.show("two", "picture", value=2)
    assert out.getvalue() == "one\ntwo\n"
    output, out, _ = outputs(JsonOutput)
    with output.live() as live:
        live.show("one", "picture", event="lag", value=1)
    assert json.loads(out.getvalue()) == {"event": "lag", "value": 1}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_slow_store_shows_a_spinner_until_the_first_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.output._SECONDS_BEFORE_STATUS", 0)
    out, err = Terminal(), Terminal()
    output = ConsoleOutput(out, err)
    output.start_waiting("Waiting for the store")
    while "Waiting" not in err.getvalue():
        threading.Event().wait(0.01)
    output.done("Done.")
    assert "Done." in out.getvalue()
    shown = err.getvalue()
    output.stop_waiting()
    assert err.getvalue() == shown


def test_work_that_ends_soon_shows_no_spinner() -> None:
    err = Terminal()
    output = ConsoleOutput(Terminal(), err)
    with output.status("Working"):
        pass
    output.start_waiting("Waiting")
    output.stop_waiting()
    assert err.getvalue() == ""


def test_progress_has_rows_bytes_and_the_remaining_time() -> None:
    err = Terminal()
    with ConsoleOutput(Terminal(), err).progress("Loading t", 1000) as show:
        show(12345, 500)
    assert "Loading t" in err.getvalue()
    assert "12,345 rows" in err.getvalue()
    piped = io.StringIO()
    with ConsoleOutput(io.StringIO(), piped).progress("Loading t", 1000) as show:
        show(1, 1)
    assert piped.getvalue() == ""
