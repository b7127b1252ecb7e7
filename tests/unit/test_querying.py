"""Read-only SQL over tables and queues."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace.errors import NotFoundError, OptionError, QueryLimitError, SqlError
from headrace.inspect.querying.datasets import Scans, StoreDataset
from headrace.inspect.querying.engine import QueryResult, open_query
from headrace.inspect.querying.engine import run as run_query
from headrace.inspect.querying.filters import columns_of, conditions
from headrace.inspect.querying.messages import NextRows, Scan
from headrace.inspect.querying.process import QueryProcesses
from headrace.model.tables.conditions import Predicate
from headrace.ports import Store, Table

ROWS = 50_000
COLUMNS = {
    "id": "long",
    "city": "string",
    "price": "double",
    "cost": "decimal(10,2)",
    "at": "timestamp",
    "day": "date",
    "data": "binary",
    "tags": "array<string>",
    "counts": "map<string,long>",
    "took": "interval day to second",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with headrace.open(tmp_path_factory.mktemp("query") / "store", create=True, synchronous="off") as store:
        orders = store.create_table("orders", COLUMNS, "id")
        numbers = np.arange(ROWS)
        orders.put(
            pa.table(
                {
                    "id": numbers,
                    "city": [f"c{number % 7}" for number in range(ROWS)],
                    "price": [None if number % 10 == 0 else float(number) for number in range(ROWS)],
                    "at": pa.array(numbers * 1_000_000, pa.timestamp("us", tz="UTC")),
                }
            )
        )
        orders.update(
            [
                {
                    "id": 7,
                    "cost": decimal.Decimal("1.20"),
                    "day": datetime.date(2026, 1, 2),
                    "data": b"\x00\xff",
                    "tags": ["a"],
                    "counts": {"k": 1},
                    "took": datetime.timedelta(seconds=3),
                }
            ]
        )
        store.create_table("public.odd name", {"k": "string", "A b": "long", "a B.c": "long"}, "k").put(
            [{"k": "x", "A b": 1, "a B.c": 2}]
        )
        clicks = store.create_queue("clicks", {"user": "string"}, partitions=3)
        for partition in range(3):
            clicks.append([{"user": f"u{partition}"}, {"user": "all"}], partition=partition)
        yield store


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch, store: Store) -> list[dict[str, Any]]:
    """The arguments of each scan of a table, and the rows that were read from it."""
    seen: list[dict[str, Any]] = []
    scan = type(store.table("orders")).scan

    def observed(table: Table, columns: Any = None, where: Any = None, **options: Any) -> pa.RecordBatchReader:
        found = {"columns": columns, "where": where, "limit": options["limit"], "rows": 0}
        seen.append(found)
        reader = scan(table, columns, where, **options)

        def counted() -> Iterator[pa.RecordBatch]:
            for batch in reader:
                found["rows"] += batch.num_rows
                yield batch

        return pa.RecordBatchReader.from_batches(reader.schema, counted())

    monkeypatch.setattr(type(store.table("orders")), "scan", observed)
    return seen


PROCESSES = QueryProcesses()


@pytest.fixture(scope="module", autouse=True)
def warm() -> Iterator[None]:
    """A process that is kept from query to query."""
    PROCESSES.prepare()
    yield
    PROCESSES.close()


@pytest.fixture
def processes() -> Iterator[QueryProcesses]:
    """Processes that a test may end."""
    with contextlib.closing(QueryProcesses()) as found:
        yield found


def run(store: Store, sql: str, **limits: Any) -> QueryResult:
    return run_query(store, sql, **{"processes": PROCESSES, **limits})


def rows(store: Store, sql: str, **limits: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run(store, sql, **limits).rows.to_pylist()
    return found


def test_a_query_joins_tables_and_queues(store: Store) -> None:
    sql = 'SELECT user, city FROM clicks JOIN orders ON id = "$tablet_index" WHERE "$row_index" = 0 ORDER BY id'
    assert rows(store, sql) == [{"user": f"u{n}", "city": f"c{n}"} for n in range(3)]
    totals = rows(store, "SELECT count(*) AS n, sum(price) AS total FROM orders")
    assert totals == [{"n": ROWS, "total": float(sum(n for n in range(ROWS) if n % 10))}]


def test_a_comparison_of_the_key_reads_only_its_rows(store: Store, scans: list[dict[str, Any]]) -> None:
    assert rows(store, "SELECT city FROM orders WHERE id = 77") == [{"city": "c0"}]
    assert rows(store, "SELECT id FROM orders WHERE id BETWEEN 5 AND 6") == [{"id": 5}, {"id": 6}]
    assert rows(store, "SELECT id FROM orders WHERE id IN (3, 49999)") == [{"id": 3}, {"id": 49999}]
    assert [scan["rows"] for scan in scans] == [1, 2, 2]
    assert scans[0]["columns"] == ["city", "id"] or scans[0]["columns"] == ["id", "city"]


def test_a_limit_reads_no_more_rows_than_it_shows(store: Store, scans: list[dict[str, Any]]) -> None:
    assert len(rows(store, "SELECT * FROM orders LIMIT 3")) == 3
    assert rows(store, "SELECT id FROM orders LIMIT 2 OFFSET 5") == [{"id": 5}, {"id": 6}]
    assert len(rows(store, "SELECT * FROM orders", max_rows=4)) == 4
    assert [scan["rows"] for scan in scans] == [3, 7, 5]


def test_a_limit_after_a_condition_stops_the_scan_early(store: Store, scans: list[dict[str, Any]]) -> None:
    assert [row["id"] for row in rows(store, "SELECT id FROM orders WHERE city LIKE '%3' LIMIT 2")] == [3, 10]
    assert scans[0]["limit"] is None
    assert scans[0]["rows"] < ROWS


def test_limits_that_do_not_apply_to_all_rows_of_a_table_are_not_passed_to_its_scan(store: Store) -> None:
    assert rows(store, "SELECT count(*) AS n FROM orders LIMIT 1") == [{"n": ROWS}]
    assert rows(store, "SELECT id FROM orders ORDER BY id DESC LIMIT 1") == [{"id": ROWS - 1}]
    assert rows(store, "SELECT DISTINCT city FROM orders ORDER BY 1 LIMIT 7")[-1] == {"city": "c6"}
    assert rows(store, "SELECT unnest(tags) AS tag FROM orders LIMIT 1") == [{"tag": "a"}]
    assert rows(store, "SELECT id FROM (SELECT * FROM orders WHERE id > 100) LIMIT 1") == [{"id": 101}]


@pytest.mark.parametrize(
    "condition",
    [
        "price > 49998",
        "price <= 1",
        "price IS NULL AND id < 11",
        "city = 'c3' AND id < 20",
        "NOT (city = 'c3') AND id < 5",
        "id = 4 OR id = 9 OR city IS NULL",
        "at = TIMESTAMPTZ '1970-01-01 00:00:05+00'",
        "day = DATE '2026-01-02'",
        "cost BETWEEN 1.1 AND 1.3",
        "data = '\\x00\\xFF'::BLOB",
        "tags IS NOT NULL",
        "counts['k'] = 1",
        "took = INTERVAL 3 SECOND",
        "price IN (1, 2, 0)",
    ],
)
def test_conditions_have_the_result_that_duckdb_computes_without_passing_them_on(store: Store, condition: str) -> None:
    condition = condition.replace("at =", '"at" =')
    passed = rows(store, f"SELECT id FROM orders WHERE {condition} ORDER BY id")
    # A condition in the select list is not passed to the scan.
    computed = rows(store, f"SELECT id, ({condition}) AS yes FROM orders ORDER BY id", max_rows=ROWS)
    assert [row["id"] for row in passed] == [row["id"] for row in computed if row["yes"]]
    assert passed


def test_names_may_have_schemas_blanks_dots_and_other_cases(store: Store) -> None:
    expected = [{"k": "x", "A b": 1, "a B.c": 2}]
    assert rows(store, 'SELECT * FROM public."odd name"') == expected
    assert rows(store, 'SELECT * FROM "public.odd name"') == expected
    assert rows(store, 'SELECT "a B.c" FROM public."odd name" AS o WHERE o."A b" = 1') == [{"a B.c": 2}]
    assert rows(store, "SELECT count(*) AS n FROM ORDERS") == [{"n": ROWS}]


def test_a_common_table_expression_hides_a_table(store: Store) -> None:
    assert rows(store, "WITH orders AS (SELECT 1 AS x) SELECT * FROM orders") == [{"x": 1}]
    assert rows(store, "WITH c AS (SELECT count(*) AS n FROM clicks) SELECT n FROM c") == [{"n": 6}]


def test_the_address_of_a_queue_restricts_the_rows_that_are_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = type(store.queue("clicks"))
    read, pages = queue.read, []

    def observed(self: Any, partition: int, first_row: int, max_rows: int = 1000, *, until: int | None = None) -> Any:
        pages.append((partition, first_row, until))
        return read(self, partition, first_row, max_rows, until=until)

    monkeypatch.setattr(queue, "read", observed)
    found = rows(store, 'SELECT user FROM clicks WHERE "$tablet_index" = 1 AND "$row_index" >= 1')
    assert found == [{"user": "all"}]
    assert pages == [(1, 1, 2)]


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE orders",
        "CREATE TABLE x (a INT)",
        "INSERT INTO orders (id) VALUES (1)",
        "SET threads = 8",
        "PRAGMA database_list",
        "ATTACH 'x.db'",
        "INSTALL httpfs",
        "COPY (SELECT 1) TO 'x.csv'",
        "SELECT 1; SELECT 2",
        "EXPLAIN ANALYZE SELECT 1",
        "",
        "   -- nothing",
    ],
)
def test_only_one_select_is_run(store: Store, sql: str) -> None:
    with pytest.raises(SqlError, match="a query is one SELECT"):
        run(store, sql)


def test_no_file_directory_variable_or_address_can_be_read(store: Store, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    for sql in (
        f"SELECT * FROM read_csv('{secret}')",
        f"SELECT * FROM read_text('{secret}')",
        f"SELECT * FROM read_blob('{secret}')",
        f"SELECT * FROM glob('{tmp_path}/*')",
        "SELECT * FROM read_csv('http://127.0.0.1:1/x.csv')",
        "SELECT * FROM sqlite_scan('x', 'y')",
        "SELECT getenv('HOME')",
        "SELECT * FROM query('COPY (SELECT 1) TO ''x''')",
    ):
        with pytest.raises(SqlError):
            run(store, sql)
    leaked = [{"a": 1}]  # DuckDB can read variables of the program that calls it.
    for name in (str(secret), "leaked", "information_schema.tables"):
        with pytest.raises(NotFoundError):
            run(store, f'SELECT * FROM "{name}"' if "/" in name else f"SELECT * FROM {name}")
    assert leaked


def test_a_missing_table_is_an_error_with_near_names(store: Store) -> None:
    with pytest.raises(NotFoundError, match="received: ordrs; valid: orders; did you mean orders"):
        run(store, "SELECT * FROM ordrs")
    with pytest.raises(NotFoundError, match=r'valid: "public\.odd name"'):
        run(store, "SELECT * FROM public.oddname")
    with pytest.raises(SqlError, match='Candidate bindings: "price"'):
        run(store, "SELECT prise FROM orders")
    with pytest.raises(SqlError, match="headrace table list"):
        run(store, "SHOW TABLES")


def test_time_and_memory_are_limited(store: Store, processes: QueryProcesses) -> None:
    with pytest.raises(QueryLimitError, match=r"0\.2 seconds"):
        run(store, "SELECT count(*) FROM range(1000000000000)", timeout_seconds=0.2, processes=processes)
    with pytest.raises(QueryLimitError, match="16 MiB"):
        run(store, "SELECT list(a.city || b.city) FROM orders a, orders b WHERE b.id < 500", memory_bytes=16 << 20)


@pytest.mark.parametrize(
    ("sql", "limit"),
    [
        ("SELECT length(repeat('x', 1000000000))", "more memory"),
        ("SELECT list_sum(range(100000000))", "more memory"),
        ("SELECT jaro_winkler_similarity(repeat('a', 2000000), repeat('b', 2000000))", "longer than it may"),
        ("SELECT damerau_levenshtein(repeat('a', 200000), repeat('b', 200000))", "(longer than it may|more memory)"),
        ("SELECT regexp_matches(repeat('a', 1000000), '((a{1,100}){1,10}){1,1}b')", "longer than it may"),
    ],
)
def test_limits_hold_for_functions_that_duckdb_does_not_interrupt(
    store: Store, processes: QueryProcesses, sql: str, limit: str
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = 0.8 if "longer" in limit else 30
    with pytest.raises(QueryLimitError, match=limit):
        run(store, sql, timeout_seconds=seconds, memory_bytes=128 << 20, processes=processes)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
    assert rows(store, "SELECT 1 AS x", processes=processes) == [{"x": 1}]


def test_a_process_without_limits_is_killed_when_its_query_is_left(store: Store, processes: QueryProcesses) -> None:
    def left() -> None:
        with open_query(store, "SELECT * FROM range(1000000000000)", processes=processes) as reader:
            reader.read_next_batch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        left()
    with open_query(store, "SELECT * FROM range(1000000000000)", processes=processes) as reader:
        reader.read_next_batch()
    assert rows(store, "SELECT 1 AS x", processes=processes) == [{"x": 1}]


def test_long_expressions_are_computed(store: Store) -> None:
    assert rows(store, f"SELECT {'+'.join(['1'] * 900)} AS n") == [{"n": 900}]
    with pytest.raises(SqlError, match="nested too deeply; join operands by a list"):
        run(store, f"SELECT {'+'.join(['1'] * 3000)}")


def test_the_process_of_a_query_ends_with_the_process_that_asks(store: Store, tmp_path: Path) -> None:
    program = (
        "import headrace, os, psutil, signal, sys\n"
        "from headrace.inspect.querying.engine import open_query\n"
        "with headrace.open(sys.argv[1]) as store:\n"
        "    with open_query(store, 'SELECT * FROM range(1000000000000)') as reader:\n"
        "        reader.read_next_batch()\n"
        "        print(psutil.Process().children()[0].pid, flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, store.url], capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    process = Path("/proc") / ended.stdout.strip()
    deadline = time.monotonic() + 10
    while process.exists() and "State:\tZ" not in (process / "status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_rows_and_bytes_of_a_result_are_limited(store: Store) -> None:
    cut = run(store, "SELECT id FROM orders", max_rows=10)
    assert (cut.cut, cut.rows.num_rows, cut.schema.names) == (True, 10, ["id"])
    assert not run(store, "SELECT id FROM orders WHERE id < 10", max_rows=10).cut
    large = run(store, "SELECT repeat('x', 1000) FROM orders", max_rows=ROWS, max_result_bytes=1 << 20)
    assert large.cut
    assert large.rows.nbytes < 4 << 20


def test_an_error_of_the_store_ends_the_query(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(type(store.table("orders")), "scan", fail)
    with pytest.raises(OSError, match="the disk is gone"):
        run(store, "SELECT * FROM orders")


def test_the_rows_of_an_open_query_are_computed_while_they_are_read(store: Store, scans: list[dict[str, Any]]) -> None:
    with open_query(store, "SELECT id * 2 AS double FROM orders", processes=PROCESSES) as reader:
        assert reader.read_next_batch().column(0)[1].as_py() == 2
        assert scans[0]["rows"] < ROWS


VALUES = st.integers(-5, 5)
COMPARISONS = st.builds(
    lambda operator, value, mirrored: {
        "<": (ds.scalar(value) > ds.field("x")) if mirrored else (ds.field("x") < value),
        ">=": (ds.scalar(value) <= ds.field("x")) if mirrored else (ds.field("x") >= value),
        "=": ds.field("x") == value,
        "!=": ds.field("x") != value,
        "in": ds.field("x").isin([value, value + 2]),
        "null": ds.field("x").is_null(),
        "valid": ds.field("y").is_valid(),
    }[operator],
    st.sampled_from(["<", ">=", "=", "!=", "in", "null", "valid"]),
    VALUES,
    st.booleans(),
)
EXPRESSIONS = st.recursive(
    COMPARISONS,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
)


@given(EXPRESSIONS)
def test_each_row_of_a_filter_satisfies_its_conditions(expression: ds.Expression) -> None:
    data = pa.table({"x": [*range(-6, 7), None], "y": [None, 1] * 7})
    kept = data.filter(expression)
    for predicate in conditions(expression):
        assert all(_satisfies(value, predicate) for value in kept.column(predicate.column).to_pylist())
    assert columns_of(expression) <= {"x", "y"}


def _satisfies(value: int | None, predicate: Predicate) -> bool:
    if value is None or predicate.operator in ("is null", "is not null"):
        return (predicate.operator == "is null") == (value is None)
    match predicate.operator:
        case "in":
            return value in predicate.value
        case "=":
            return bool(value == predicate.value)
        case "!=":
            return bool(value != predicate.value)
        case "<":
            return bool(value < predicate.value)
        case "<=":
            return bool(value <= predicate.value)
        case ">":
            return bool(value > predicate.value)
        case _:
            return bool(value >= predicate.value)


def test_comparisons_in_a_conjunction_become_conditions() -> None:
    expression = (ds.field("a") > 1) & ((ds.field("b") == "x") & ds.field("c").is_valid()) & (ds.field("d", "e") == 1)
    assert conditions(expression) == (Predicate("a", ">", 1), Predicate("b", "=", "x"), Predicate("c", "is not null"))
    assert columns_of(expression) == {"a", "b", "c", "d"}
    assert conditions(None) == ()


def test_a_dataset_is_one_that_pyarrow_knows() -> None:
    rows = pa.record_batch({"id": [3, 4], "city": ["c3", "c4"]})
    answers = iter([0, rows.select(["city", "id"]).serialize().to_pybytes(), None, None])
    asked: list[Any] = []

    class Store(Scans):
        def __init__(self) -> None: ...

        def ask(self, request: Any) -> Any:
            asked.append(request)
            return next(answers)

    dataset = StoreDataset(Store(), 7, rows.schema, limit=None)
    assert isinstance(dataset, ds.Dataset)
    found = dataset.scanner(columns=["city"], filter=ds.field("id") == 3).to_reader().read_all()
    assert found.to_pylist() == [{"city": "c3"}]
    # The store's rows are filtered again: it may return more.
    assert asked[0] == Scan(7, ["city", "id"], (Predicate("id", "=", 3),), None)


def test_a_scan_that_outlives_its_query_asks_nothing_of_the_next_one() -> None:
    store, process = Pipe()
    with store, process:
        scans = Scans(process)
        rows = StoreDataset(scans, 0, pa.schema({"id": pa.int64()}), limit=None).scanner().to_reader()
        store.send(0)
        store.send(pa.record_batch({"id": [1]}).serialize().to_pybytes())
        assert rows.read_next_batch().to_pydict() == {"id": [1]}
        assert [type(store.recv()) for _ in range(2)] == [Scan, NextRows]
        scans.close()
        assert rows.read_all().num_rows == 0
        assert not store.poll()


def test_a_store_answers_a_query_with_all_rows(tmp_path: Path) -> None:
    with headrace.open(tmp_path / "shop", create=True) as store:
        store.create_table("t", {"id": "long", "price": "double"}, "id").put(
            [{"id": n, "price": n / 2} for n in range(3000)]
        )
        rows = store.query("SELECT id, price FROM t WHERE price >= 1 ORDER BY id")
        assert (rows.num_rows, rows.slice(0, 1).to_pylist()) == (2998, [{"id": 2, "price": 1.0}])
        with pytest.raises(SqlError):
            store.query("DELETE FROM t")
        with pytest.raises(OptionError):
            store.query("SELECT 1", timeout_seconds=-1)
