"""Whatever users pass to a store: it works or raises an error of headrace, and an error leaves nothing behind."""

from __future__ import annotations

import inspect
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace
from headrace import ports
from headrace.errors import HeadraceError, shown
from headrace.model.tables.alterations import Alteration
from headrace.model.tables.changes import RowChange
from headrace.model.tables.conditions import KeyRange
from headrace.model.tables.json_forms import PLAIN
from headrace.model.tables.schema import TableSchema
from headrace.model.tunnels.records import INITIAL_BATCH, BatchPlan, ChannelEnd, ChannelPlan
from headrace.model.tunnels.values import FINISHED, KindName, Start, StartKind
from headrace.ports import Advance, Claim, Store, Write
from headrace.stores.embedded.store import EmbeddedStore
from tests.unit.hostile_values import VALUES

COLUMNS = {"id": "string", "n": "long", "f": "float", "d": "decimal(5,2)", "t": "timestamp", "l": "array<long>"}
QUEUE_COLUMNS = {"id": "string", "n": "long"}
PORTS: dict[str, type[Any]] = {
    **{"store": ports.Store, "table": ports.Table, "queue": ports.Queue, "consumer": ports.Consumer},
    **{"producer": ports.Producer, "base": ports.Tunnel, "stream": ports.Tunnel, "client": ports.TunnelClient},
    **{"base batches": ports.BatchRecords, "stream batches": ports.BatchRecords},
    **{"files": ports.Files, "publisher": ports.Publisher},
}
# They end or wait.
LEFT_OUT = {"consume", "close", "wait_for_change"}
# Any text is a directory of this machine; tests of backups pass invalid ones.
NEVER_HOSTILE = {"directory"}
CALLS = [
    (receiver, name, tuple(inspect.signature(method).parameters.values())[1:])
    for receiver, port in PORTS.items()
    for name, method in vars(port).items()
    if inspect.isfunction(method) and not name.startswith("_") and name not in LEFT_OUT
]
# They are optional, and tests need them.
FILLED = {"exist_ok", "overwrite", "sequence_number"}
REFUSED = {
    # Partitions have other numbers; a client has begun to read one tunnel, and is none of the other; claims are
    # published.
    *{("table", "merge"), ("base batches", "check_reader"), ("stream", "client"), ("publisher", "take")},
    # An embedded store does not have them.
    *{("store", "create_tunnel_of_tables"), ("store", "diagnose"), ("base", "with_json"), ("stream", "with_json")},
    # A tunnel of one table has no columns for each of several.
    *{("base", "typed"), ("stream", "typed")},
    # A tunnel reads the base data of the table.
    ("table", "widen_column"),
}
EXAMPLES = int(os.environ.get("HEADRACE_CHAOS_INPUTS", "0")) or 150


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store of the test's own: a call may begin another reader of a tunnel."""
    # Backups go to directories that the test names.
    monkeypatch.chdir(tmp_path)
    with headrace.open(tmp_path / "store", create=True, synchronous="off") as opened:
        yield opened


def receivers(store: Store) -> dict[str, Any]:
    """Return one of everything that has methods to call, making those that are not there."""
    if "t" in store.tables() and store.table("t").schema != TableSchema.of(COLUMNS, "id"):
        # An example has changed its columns.
        for tunnel in store.tunnels("t"):
            store.drop_tunnel(tunnel.id)
        store.drop_table("t")
    table = store.create_table("t", COLUMNS, "id", exist_ok=True)
    table.put([{"id": "a", "n": 1}, {"id": "b", "n": 2}])
    store.create_bad_rows("t")
    queue = store.create_queue("q", QUEUE_COLUMNS, partitions=2, exist_ok=True)
    consumer = store.create_consumer("c", exist_ok=True)
    store.register_consumer("q", "c", vital=True)
    there = {tunnel.name for tunnel in store.tunnels("t")}
    kinds: dict[str, KindName] = {"base": "BaseAndStream", "stream": "Stream"}
    for name, kind in kinds.items():
        if name not in there:
            store.create_tunnel("t", name, kind)
    if not queue.bounds()[0].rows:
        queue.append({"id": "a"}, partition=0)
    store.files().write("/d/f", b"content", overwrite=True)
    client = store.tunnel("base").connect(timeout=600)
    client.heartbeat([])
    base, stream = store.tunnel("base"), store.tunnel("stream")
    return {
        **{"store": store, "table": table, "queue": queue, "consumer": consumer, "client": client},
        **{"producer": store.create_producer("p", exist_ok=True), "base": base, "stream": stream},
        **{
            "base batches": base.batches,
            "stream batches": stream.batches,
            "files": store.files(),
            "publisher": store.publisher("job"),
        },
    }


def valid_arguments(found: dict[str, Any], receiver: str, method: str) -> dict[str, Any]:
    """Return arguments that are valid for a method, by the names of parameters."""
    tunnel = found["stream"] if receiver.startswith("stream") else found["base"]
    channel = tunnel.channels()[0]
    rows = [{"id": "x", "n": 3}]
    batches = pa.Table.from_pylist(rows, schema=pa.schema({"id": pa.string(), "n": pa.int64()})).to_batches()
    named: dict[str, Any] = {
        **{"name": "t", "table": "t", "queue": "q", "consumer": "c", "producer": "p", "id_or_name": "base"},
        **{"columns": COLUMNS, "primary_key": "id", "rows": rows, "keys": [{"id": "x"}], "key": {"id": "a"}},
        "prefixes": pa.table({"id": ["a"]}),
        **{"partition": 0, "first_row": 0, "timestamp": 1.0, "row": 0, "timeout": 1.0, "left": 1, "right": 2},
        **{"offsets": {0: 0}, "path": "/d/f", "source": "/d/f", "destination": "/d/g", "data": b"x", "count": 1},
        **{"channel": channel.id, "position": channel.committed, "max_rows": 10, "sequence": 1, "leases": []},
        **{"positions": {channel.id: channel.committed}, "start": Start(), "batch": "batch", "keep": 5, "job": "j"},
        **{"plan": BatchPlan("batch", INITIAL_BATCH, (ChannelPlan(channel.id, channel.committed),))},
        **{
            "end": ChannelEnd(FINISHED, 0),
            "client_id": found["client"].id,
            "session": "session",
            "tables": "*",
            "directory": f"backup-{uuid.uuid4()}",
            "form": PLAIN,
            "sql": "SELECT 1",
            "identity": "another",
            "store": "another",
            "names": ["n"],
        },
    }
    if receiver in ("base", "stream"):
        named |= {"rows": 1, "start": Start(StartKind.LATEST)}
    if receiver == "table":
        named |= {"columns": [] if method == "drop_columns" else {}, "alteration": Alteration()}
        named |= {"column": "n", "data_type": "long", **({"name": "n"} if method == "rename_column" else {})}
    if method == "first_rows":
        named |= {"ranges": [KeyRange()], "columns": ["id"], "rows": 1}
    if receiver == "publisher":
        named |= {"batch": 1, "rows": batches, "writes": [Write("t", RowChange.PUT, ())]}
        named |= {"advances": [Advance("c", "q", {0: 0})], "claim": Claim("t", None, {"id": "x"})}
    kind = method.removeprefix("create_").removeprefix("drop_")
    if kind in ("queue", "consumer", "producer", "tunnel"):
        named |= {"name": kind[0], "columns": QUEUE_COLUMNS, "start": "latest"}
    if method == "push":
        named |= {"sequence_number": 2**40, "session": found["producer"].open_session("q", "session")}
    if method in ("list", "make_directory"):
        named |= {"path": "/d"}
    if method.startswith("create_"):
        named |= {"exist_ok": True}
    if method in ("create", "write"):
        named |= {"overwrite": True}
    return named


def content(store: Store) -> list[Any]:
    """Return all rows of all tables of SQLite, but for those of clients: every call of one is a sign of life."""
    assert isinstance(store, EmbeddedStore)
    with store.database.read() as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        left_out = ("tunnel_client", "sqlite_sequence")
        return [(name, list(connection.execute(f'SELECT * FROM "{name}"'))) for name in names if name not in left_out]


def use_up(result: Any) -> None:
    """Take what a call gives bit by bit."""
    if isinstance(result, pa.RecordBatchReader):
        result.read_all()
    elif isinstance(result, ports.Content):
        b"".join(result.parts)
    elif isinstance(result, ports.Upload):
        with result as upload:
            upload.write(b"x")
            upload.commit()


def try_call(store: Store, receiver: str, method: str, hostile: dict[str, Any]) -> None:
    """Call a method with some arguments of anybody's choice, and valid ones where it needs others."""
    found = receivers(store)
    valid = valid_arguments(found, receiver, method)
    given: dict[str, Any] = {}
    for parameter in inspect.signature(vars(PORTS[receiver])[method]).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            options = hostile.get(parameter.name)
            given |= {str(name): value for name, value in options.items()} if isinstance(options, dict) else {}
        elif parameter.name in hostile:
            given[parameter.name] = hostile[parameter.name]
        elif parameter.name in valid and (parameter.default is parameter.empty or parameter.name in FILLED):
            given[parameter.name] = valid[parameter.name]
    before = content(store)
    try:
        use_up(getattr(found[receiver], method)(**given))
    except HeadraceError as error:
        message = str(error).encode()
        assert content(store) == before, message
        assert hostile or (receiver, method) in REFUSED, message
    except BaseException as error:
        error.add_note(f"{receiver}.{method}({', '.join(f'{name}={shown(value)}' for name, value in hostile.items())})")
        raise


@pytest.mark.parametrize(("receiver", "method"), [call[:2] for call in CALLS], ids=lambda part: str(part))
def test_valid_arguments_work(store: Store, receiver: str, method: str) -> None:
    # Otherwise the test below would look at nothing.
    try_call(store, receiver, method, {})


@st.composite
def calls(draw: Callable[..., Any]) -> tuple[str, str, dict[str, Any]]:
    """Draw a method and hostile values for one or two of its arguments."""
    receiver, method, parameters = draw(st.sampled_from([call for call in CALLS if call[2]]))
    parameters = tuple(each for each in parameters if each.name not in NEVER_HOSTILE)
    chosen = draw(st.lists(st.sampled_from(parameters), min_size=1, max_size=2, unique=True))
    return receiver, method, {parameter.name: draw(st.sampled_from(VALUES)) for parameter in chosen}


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(call=calls())
def test_hostile_arguments_work_or_raise_errors_of_headrace_and_leave_nothing(
    store: Store, call: tuple[str, str, dict[str, Any]]
) -> None:
    try_call(store, *call)
