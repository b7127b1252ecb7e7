"""The rules by which the columns of a Relation message are found, and what a later definition means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.stores.postgres.tunnels.definitions import CatalogColumn, Definition, Leaf, keeps_values, losses
from headrace.stores.postgres.tunnels.histories import History
from headrace.wire.pgoutput import types
from headrace.wire.pgoutput.messages import Relation, RelationColumn


def column(number: int, name: str, kind: int = types.TEXT, modifier: int = -1, **other: Any) -> CatalogColumn:
    found = CatalogColumn(number, name, kind, modifier, "", kind, str(number), None, "", (), False)
    return found._replace(**other)


def version(*columns: CatalogColumn, attributes: int = 0, file: int = 1, **other: Any) -> Definition:
    key = other.pop("key", [columns[0].number])
    highest = attributes or max(each.number for each in columns)
    return Definition("public.t", file, 7, highest, key, list(columns), other.pop("leaves", {}))._replace(**other)


def named(names: str) -> Definition:
    """Return a version of columns such as ``id@1 a@3``, or ``id@1 @3`` if the table had 3 columns.

    ``a@3!`` is a column that was not changed since it was added, and ``a@3~`` one that was changed since another look.
    """
    found = [(name, number.rstrip("!~"), number) for name, number in (each.split("@") for each in names.split())]
    return version(
        *(
            column(int(number), name, row=f"{sum(name.encode())}{marked.count('~')}", fresh=marked.endswith("!"))
            for name, number, marked in found
            if name
        ),
        attributes=max(int(number) for _, number, _ in found),
    )


def relation(names: str, *, identity: str = "d", keys: Sequence[str] = ("id", "number")) -> Relation:
    columns = tuple(RelationColumn(name, types.TEXT, -1, name in keys) for name in names.split())
    return Relation(7, "public", "t", identity, columns)


@pytest.mark.parametrize(
    ("versions", "seen", "places"),
    [
        (["id@1 a@2"], "id a", {"id": 0, "a": 1}),
        # Renamed; renamed and renamed back; names that change places; a renamed key.
        (["id@1 a@2", "id@1 b@2"], "id a", {"id": 0, "b": 1}),
        (["id@1 a@2"], "id x", {"id": 0, "a": 1}),
        (["id@1 a@2 b@3", "id@1 b@2 a@3"], "id a b", {"id": 0, "b": 1, "a": 2}),
        (["id@1 a@2 b@3", "id@1 b@2 a@3"], "id b a", {"id": 0, "b": 1, "a": 2}),
        (["id@1 a@2", "number@1 a@2"], "id a", {"number": 0, "a": 1}),
        # Added and dropped.
        (["id@1 a@2", "id@1 a@2 b@3"], "id a", {"id": 0, "a": 1}),
        (["id@1 a@2 b@3", "id@1 b@3"], "id a b", {"id": 0, "b": 2}),
        (["id@1 a@2 b@3", "id@1 b@3 c@4"], "id a b c", {"id": 0, "b": 2, "c": 3}),
        (["id@1 a@2 b@3", "id@1 b@3 c@4"], "id a b", {"id": 0, "b": 2}),
        (["id@1 a@2 b@3", "id@1 b@3 c@4"], "id b c", {"id": 0, "b": 1, "c": 2}),
        (["id@1 a@2", "id@1 b@2 a@3"], "id a", {"id": 0, "b": 1}),
        # Not seen: a column for a time; a rename that was undone after a new column had the name for a time.
        (["id@1 a@2", "id@1 a@2 @3"], "id a x", {"id": 0, "a": 1}),
        (["id@1 a@2", "id@1 a@2 b@3"], "id a x", {"id": 0, "a": 1, "b": 2}),
        (["id@1 a@2", "id@1 a@2~ @3"], "id b a", {"id": 0, "a": 1}),
        (["id@1 a@2 b@3", "id@1 b@3~ a@4"], "id x", {"id": 0, "b": 1}),
        # A new column comes after those with lower numbers.
        (["id@1 a@2", "id@1 a@2 b@3 c@4"], "id a x", {"id": 0, "a": 1, "b": 2}),
        (["id@1", "id@1 b@2 a@3"], "id a", {"id": 0, "b": 1}),
        (["id@1 a@2", "id@1 b@3!"], "id a", {"id": 0}),
        (["id@1 a@2 b@3", "id@1 c@4!"], "id b", {"id": 0}),
        (["id@1 a@2", "id@1 a@2 b@4!"], "id a x", {"id": 0, "a": 1}),
        # Left out by the publication.
        (["id@1 a@2 b@3"], "id b", {"id": 0, "b": 1}),
        # Not certain: the column can have been dropped, and another one have had its name.
        (["id@1 a@2", "id@1 b@3"], "id a", None),
        (["id@1 a@2", "id@1 a@3!"], "id a", None),
        (["id@1", "id@1 a@3!"], "id a", None),
        (["id@1 a@2 b@3", "id@1 b@3~ c@4"], "id a b", None),
        # Not certain: one of two columns, of which none has the name.
        (["id@1 a@2", "id@1 a@2 b@4"], "id a x", None),
        (["id@1 a@2", "id@1 b@3"], "id x", None),
        (["id@1 a@2 b@3", "id@1 c@4"], "id x", None),
        (["id@1 a@2", "id@1 a@2 b@3", "id@1 b@3"], "id x", None),
        (["id@1 a@2"], "id a b", None),
        (["id@1 a@2 b@3"], "id x", None),
    ],
)
def test_columns_are_found_by_their_numbers(versions: list[str], seen: str, places: dict[str, int] | None) -> None:
    binding = History([named(each) for each in versions]).binding(relation(seen))
    if places is None:
        assert binding.problem is not None
        assert f"the columns were {', '.join(seen.split())}" in binding.problem
    else:
        assert (binding.problem, binding.places) == (None, places)


@pytest.mark.parametrize(
    ("lsns", "places"),
    [([1, 9], {"id": 0}), ([9, 19], None), ([20, 30], {"id": 0, "a": 1}), ([31, 39], {"id": 0, "a": 1})],
)
def test_changes_between_two_looks_at_one_version_have_its_columns(
    lsns: list[int], places: dict[str, int] | None
) -> None:
    looks = {"id@1 a@2": (1, 10), "id@1 a@3!": (20, 31), "id@1 a@3! b@4!": (40, 40)}
    versions = [named(names)._replace(since=since, until=until) for names, (since, until) in looks.items()]
    binding = History(versions).binding(relation("id a"), np.array(lsns))
    if places is None:
        assert "dropped and added between two looks: it is not certain which columns had the names a" in str(
            binding.problem
        )
    else:
        assert (binding.problem, binding.places) == (None, places)


@given(st.data())
def test_a_column_is_never_taken_for_another(data: st.DataObject) -> None:
    """Some definitions are seen. A change at any of them has no column in the place of another one, or is a problem."""
    live, highest, every = {1: column(1, "id"), 2: column(2, "a"), 3: column(3, "b")}, 3, list[Definition]()
    steps = data.draw(st.integers(1, 8))
    for step in range(steps):
        # The look at a definition, and then a change by transaction and at position 10 * step + 5.
        seen = version(*live.values(), attributes=highest, since=10 * step + 4, until=10 * step + 6)
        every.append(seen)
        others = [number for number in live if number != 1]
        free = sorted({"a", "b", "c", "d"} - {each.name for each in live.values()})
        action = data.draw(st.sampled_from(["add", "drop", "rename"]))
        xid = str(10 * step + 8)
        if action == "add" and free:
            highest += 1
            live[highest] = column(highest, data.draw(st.sampled_from(free)), row=xid, fresh=True)
            live |= {number: each._replace(fresh=False) for number, each in live.items() if number != highest}
        elif action == "drop" and others:
            del live[data.draw(st.sampled_from(others))]
        elif others and free:
            number = data.draw(st.sampled_from(others))
            live[number] = column(number, data.draw(st.sampled_from(free)), row=xid)
        live = dict(sorted(live.items()))
    between = [each for each in every[1:-1] if data.draw(st.booleans())]
    versions = [every[0], *between, *every[1:][-1:]]
    place = data.draw(st.integers(0, steps - 1))
    at = every[place]
    names = [each.name for each in at.columns]
    binding = History(versions).binding(
        relation(" ".join(names)), np.array([10 * place + 5]), np.array([10 * place + 5])
    )
    if binding.problem is None:
        places = {each.number: number for number, each in enumerate(at.columns)}
        assert binding.places == {each.name: places[each.number] for each in every[-1].columns if each.number in places}
    else:
        assert at not in versions


def test_rows_that_other_columns_identified_are_a_problem() -> None:
    history = History([version(column(1, "id"), column(2, "a"), key=[2])])
    assert "identified by other columns than the primary key: id" in str(history.binding(relation("id a")).problem)
    assert history.binding(relation("id a", keys=["a"])).problem is None
    # With old rows all columns do; without any, there are only inserts.
    assert history.binding(relation("id a", identity="f", keys=["id", "a"])).problem is None
    assert history.binding(relation("id a", keys=[])).problem is None
    history = History([named("id@1 a@2"), version(column(1, "id"), column(2, "a"), column(3, "b"), key=[3])])
    assert "lack a column of the primary key" in str(history.binding(relation("id a", identity="f")).problem)


def numeric(precision: int, scale: int) -> int:
    return (precision << 16 | scale) + 4


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        ((types.INT2, -1), (types.INT8, -1), True),
        ((types.INT8, -1), (types.INT4, -1), False),
        ((types.INT4, -1), (types.TEXT, -1), False),
        ((types.INT4, -1), (types.FLOAT8, -1), False),
        ((types.FLOAT4, -1), (types.FLOAT8, -1), True),
        ((types.VARCHAR, 9), (types.VARCHAR, 14), True),
        ((types.VARCHAR, 14), (types.VARCHAR, 9), False),
        ((types.VARCHAR, 9), (types.TEXT, -1), True),
        ((types.TEXT, -1), (types.VARCHAR, 9), False),
        ((types.TEXT, -1), (types.VARCHAR, -1), True),
        ((types.BPCHAR, 9), (types.TEXT, -1), True),
        ((types.NUMERIC, numeric(5, 2)), (types.NUMERIC, numeric(9, 2)), True),
        ((types.NUMERIC, numeric(5, 2)), (types.NUMERIC, -1), True),
        ((types.NUMERIC, numeric(9, 4)), (types.NUMERIC, numeric(9, 2)), False),
        ((types.NUMERIC, -1), (types.NUMERIC, numeric(9, 2)), False),
        ((types.TIMESTAMP, 3), (types.TIMESTAMP, 6), True),
        ((types.TIMESTAMP, 6), (types.TIMESTAMP, 3), False),
        ((types.TIMESTAMP, -1), (types.TIMESTAMPTZ, -1), False),
        ((types.TEXT, -1), (types.UUID, -1), False),
    ],
)
def test_a_new_type_keeps_values_only_if_they_are_certain(
    before: tuple[int, int], after: tuple[int, int], kept: bool
) -> None:
    old, new = column(1, "a", *before), column(1, "a", *after)
    assert keeps_values(old, new) is kept
    # A domain over a type has the values of the type.
    domain = new._replace(type=20_000, modifier=-1, of_domain=new.modifier)
    assert keeps_values(old, domain) is kept


def test_a_float_in_the_key_is_a_text_of_its_type() -> None:
    versions = [version(column(1, "id", types.FLOAT4)), version(column(1, "id", types.FLOAT8))]
    assert "had type" in str(History(versions).changed({1: versions[0].columns[0]}))


def test_an_enum_keeps_its_values_in_a_text_and_in_an_enum_that_has_them() -> None:
    old = column(1, "a", 20_000, base=types.TEXT, labels=["new", "old"])
    wider = column(1, "a", 20_001, base=types.TEXT, labels=["new", "closed", "old"])
    assert keeps_values(old, wider)
    assert not keeps_values(wider, old)
    assert keeps_values(old, column(1, "a"))
    assert not keeps_values(old, column(1, "a", types.VARCHAR, 9))
    assert not keeps_values(column(1, "a"), old)


def test_a_domain_keeps_the_values_of_its_type() -> None:
    domain = column(1, "a", 20_000, base=types.INT4)
    assert keeps_values(domain, column(1, "a", types.INT4))
    assert keeps_values(domain, column(1, "a", types.INT8))
    assert keeps_values(column(1, "a", types.INT2), domain)


def test_values_of_a_new_column_are_known_from_its_first_version() -> None:
    first = named("id@1")
    filled = version(column(1, "id"), column(2, "c", missing="5"))
    rewritten = version(column(1, "id"), column(2, "d"), file=2)._replace(new_file=True)
    assert History([first, filled, rewritten]).missing == {"d": ("5", types.TEXT)}
    binding = History([first, rewritten]).binding(relation("id"))
    assert (binding.problem, "column 'd' is newer" in str(binding.newer)) == (None, True)
    empty = version(column(1, "id"), column(2, "e"))
    assert History([first, empty]).binding(relation("id")).newer is None
    mixed = version(column(1, "id"), column(2, "m", mixed=True))
    assert "column 'm' is newer" in str(History([first, mixed]).binding(relation("id")).newer)


def lost(before: Definition, after: Definition, *, delivered: bool = True, rows: bool = True) -> list[str]:
    return losses(
        [before], after, delivered=delivered, attached=lambda oid, leaf: rows, truncated=lambda oid, leaf: rows
    )


def test_a_rewrite_is_a_loss_of_the_columns_whose_rows_in_the_catalog_it_has_replaced() -> None:
    before = version(column(1, "id"), column(2, "a"), column(3, "n", types.INT4))
    assert lost(before, before._replace(file=2)) == []
    using = version(column(1, "id"), column(2, "a", row="99"), column(3, "n", types.INT4), file=2)
    assert lost(before, using) == [
        "column 'a' was rewritten, or changed beside a rewrite of the table, and its values may have changed"
    ]
    assert lost(before, using._replace(file=1)) == []
    # Another column could explain the rewrite, and the new name the row in the catalog.
    renamed = column(2, "b", row="99")
    assert lost(before, version(column(1, "id"), renamed, column(3, "n", types.INT8), file=2)) != []
    # The rewrite fills in the value of older rows, unless ALTER … TYPE has made the default or the values again.
    default = version(column(1, "id"), column(2, "a", missing="x", other="1"))
    for other, filled in (("1", True), ("2", True), ("1", False)):
        now = version(column(1, "id"), column(2, "a", row="99", other=other, filled=filled), file=2)
        assert (lost(default, now) == []) is (other == "1" and filled)


def test_values_of_an_enum_are_the_same_in_their_order() -> None:
    before = version(column(1, "id"), column(2, "e", labels=["a", "b"]))
    for labels, problem in {"0a1b2": "", "ba": "renamed: b", "ac": "renamed: b", "cb": "renamed: a"}.items():
        found = lost(before, version(column(1, "id"), column(2, "e", labels=list(labels))))
        assert [each.endswith(problem) for each in found] == [True] * bool(problem)


def test_names_of_other_columns_are_a_loss_of_rows_that_were_read() -> None:
    swapped = named("id@1 b@2 a@3")
    assert len(lost(named("id@1 a@2 b@3"), swapped)) == 2
    assert lost(named("id@1 a@2 b@3"), swapped, delivered=False) == []
    assert lost(named("id@1 a@2"), named("id@1 a@3"), delivered=False) == []
    versions = [named("id@1 a@2"), named("id@1")]
    (found,) = losses(
        versions, named("id@1 a@3"), delivered=True, attached=lambda oid, leaf: True, truncated=lambda oid, leaf: True
    )
    assert found == "'a' is the name of another column than before"


def test_partitions_that_come_and_go_with_rows_are_a_loss() -> None:
    def parts(**leaves: Leaf) -> Definition:
        return version(column(1, "id"), file=0, leaves=leaves)

    one = Leaf("public.p", 5, "7 9", True)
    assert lost(parts(), parts(p=one)) == ["partition public.p was attached with rows"]
    assert lost(parts(), parts(p=one), rows=False) == []
    assert lost(parts(p=one), parts()) == ["partition public.p was detached or dropped"]
    assert lost(parts(p=one), parts(p=one._replace(name="public.q"))) == []
    assert lost(parts(p=one), parts(p=one._replace(file=6))) != []
    assert lost(parts(p=one), parts(p=one._replace(file=6)), rows=False) == []
    assert lost(parts(p=one), parts(p=one._replace(links="8 9"))) != []
    # A record of an earlier release.
    assert lost(parts(p=one._replace(links="7.2 9.0")), parts(p=one)) == []
    assert lost(parts(p=one._replace(logged=False)), parts(p=one)) != []


def test_a_definition_is_the_same_after_its_text() -> None:
    found = version(column(1, "id", labels=["a"]), leaves={"7": Leaf("public.p", 5, "7.2", True)})
    assert Definition.parse(found.text) == found._replace(key=[1])
