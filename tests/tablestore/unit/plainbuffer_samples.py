"""PlainBuffer rows for tests: samples whose bytes the official SDKs agree on, and strategies for other rows."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st

from headrace_tablestore.wire.plainbuffer.values import Cell, CellOp, Marker, Row, SequenceInfo, Value

patient = settings(deadline=None)
"""Settings for tests on a busy machine."""

_PK = (("pk", "a"),)
_UPDATE_CELLS = (
    Cell("c1", 7, timestamp=1700000000001),
    Cell("c2", op=CellOp.DELETE_ONE, timestamp=1700000000000),
    Cell("c3", op=CellOp.DELETE_ALL),
)
_PUT_CELLS = (Cell("c1", "v", timestamp=1700000000000),)
_MANUAL_CELLS = (
    Cell("column1", "bad", timestamp=1001),
    Cell("column2", 128, timestamp=1002),
    Cell("column3", 34.2, timestamp=1003),
    Cell("column4", op=CellOp.DELETE_ALL),
)

SAMPLES: dict[str, tuple[Row, bytes]] = {
    name: (row, bytes.fromhex(text.replace(" ", "")))
    for name, row, text in (
        ("key", Row(_PK), "7500000001030402000000706b05060000000301000000610ad409ee"),
        ("smallest key", Row((("pk", Marker.INF_MIN),)), "7500000001030402000000706b0501000000090a3a097b"),
        ("largest key", Row((("pk", Marker.INF_MAX),)), "7500000001030402000000706b05010000000a0a3309c6"),
        (
            "put",
            Row(_PK, _PUT_CELLS),
            "7500000001030402000000706b05060000000301000000610ad402030402000000633105060000000301000000760700"
            "68e5cf8b0100000a72090c",
        ),
        (
            "update",
            Row(_PK, _UPDATE_CELLS),
            "7500000001030402000000706b05060000000301000000610ad402030402000000633105090000000007000000000000"
            "00070168e5cf8b0100000aaf03040200000063320603070068e5cf8b0100000aaf030402000000633306010ab90932",
        ),
        (
            "increment",
            Row(_PK, (Cell("c1", 5, op=CellOp.INCREMENT),)),
            "7500000001030402000000706b05060000000301000000610ad402030402000000633105090000000005000000000000"
            "0006040ad4096a",
        ),
        ("delete", Row(_PK, delete=True), "7500000001030402000000706b05060000000301000000610ad40809e9"),
        (
            "record of a put",
            Row(_PK, _PUT_CELLS, sequence=SequenceInfo(0, 1700000000000000, 0)),
            "7500000001030402000000706b05060000000301000000610ad402030402000000633105060000000301000000760700"
            "68e5cf8b0100000a720b180000000c130000000d000000000e00401e18240a06000f00000000090c",
        ),
        (
            "record of an update",
            Row(_PK, _UPDATE_CELLS, sequence=SequenceInfo(0, 1700000000001000, 1)),
            "7500000001030402000000706b05060000000301000000610ad402030402000000633105090000000007000000000000"
            "00070168e5cf8b0100000aaf03040200000063320603070068e5cf8b0100000aaf030402000000633306010ab90b1800"
            "00000c130000000d000000000ee8431e18240a06000f010000000932",
        ),
        (
            "example of the manual",
            Row((("pk1", "iampk"), ("pk2", 100)), _MANUAL_CELLS),
            "7500000001030403000000706b31050a000000030500000069616d706b0a98030403000000706b320509000000006400"
            "0000000000000a0502030407000000636f6c756d6e310508000000030300000062616407e9030000000000000a300304"
            "07000000636f6c756d6e32050900000000800000000000000007ea030000000000000a69030407000000636f6c756d6e"
            "330509000000019a9999999919414007eb030000000000000acf030407000000636f6c756d6e3406010aa70922",
        ),
    )
}

integers = st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 200)
# Without NaN, which is not equal to itself.
doubles = st.floats(allow_nan=False)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values: st.SearchStrategy[Value] = (
    st.none() | integers | doubles | st.booleans() | texts | st.binary(max_size=200) | st.sampled_from(Marker)
)
sequences = st.builds(SequenceInfo, st.integers(-5, 5), integers, st.integers(-(2**31), 2**31 - 1))


def cells(names: st.SearchStrategy[str], ops: st.SearchStrategy[CellOp | None]) -> st.SearchStrategy[tuple[Cell, ...]]:
    """Cells with any values; several can have the same name."""
    cell = st.builds(Cell, names, values, ops, st.none() | integers)
    return st.lists(cell, max_size=6).map(tuple)


rows = st.builds(
    Row,
    st.lists(st.tuples(texts, values), max_size=4).map(tuple),
    cells(texts, st.none() | st.sampled_from(CellOp)),
    st.booleans(),
    st.none() | sequences,
)
