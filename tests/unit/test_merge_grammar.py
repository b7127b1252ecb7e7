"""MERGE in a stream: its grammar, the resolution of its names, and all refusals."""

from __future__ import annotations

import pytest

from headrace.derived.merge.plan import MergePlan, plan_merge
from headrace.derived.merge.statement import Merge, MergeAction
from headrace.errors import HeadraceError, SchemaError, SqlError
from headrace.model.tables.schema import TableSchema
from headrace.streaming_sql.language import statements as st
from headrace.streaming_sql.language.grammar import parse

TARGET = TableSchema.of({"shop": "string", "id": "long", "price": "double", "note": "string"}, ["shop", "id"])
CHANGES = ("_change_type", "_commit_version", "_commit_timestamp")
SOURCE = ("shop", "id", "price", "note", *CHANGES)
ON = "ON t.shop = s.shop AND t.id = s.id"
MIRROR = (
    "WHEN MATCHED AND s._change_type = 'delete' THEN DELETE WHEN MATCHED THEN UPDATE SET * "
    "WHEN NOT MATCHED AND s._change_type <> 'delete' THEN INSERT *"
)


def merge(text: str) -> Merge:
    (statement,) = parse(f"CREATE STREAM m OPTIONS (checkpointLocation='cp') MERGE {text};")
    assert isinstance(statement, st.CreateStream)
    assert isinstance(statement.body, Merge)
    return statement.body


def plan(
    clauses: str,
    *,
    on: str = ON,
    target: TableSchema = TARGET,
    source: tuple[str, ...] = SOURCE,
    row_key: tuple[str, ...] = (),
) -> MergePlan:
    return plan_merge(merge(f"INTO orders AS t USING scan AS s {on} {clauses}"), target, source, row_key)


# -- grammar ------------------------------------------------------------------------------------------


def test_a_statement_is_split_into_parts() -> None:
    body = merge(
        """INTO orders t USING (SELECT id, CASE WHEN a THEN 1 ELSE 2 END AS c FROM scan WHERE x IN (1, 2)) AS s -- when
        ON t.id = s.id
        WHEN MATCHED AND CASE WHEN s.c = 1 THEN true ELSE s.c > 3 END // then
          THEN UPDATE SET t.price = CASE WHEN s.c = 2 THEN 1 END, note = concat('a, b', "WHEN", s.`when`)
        WHEN NOT MATCHED BY TARGET THEN INSERT (id, price) VALUES (s.id, map(1, 2)[1])
        """
    )
    assert (str(body.target), body.target_alias, body.source_alias) == ("orders", "t", "s")
    assert body.source.text.startswith("(SELECT id, CASE")
    assert body.source.text.endswith("IN (1, 2))")
    assert body.on.text == "t.id = s.id"
    update, insert = body.clauses
    assert update.action is MergeAction.UPDATE
    assert update.condition is not None
    assert update.condition.text == "CASE WHEN s.c = 1 THEN true ELSE s.c > 3 END"
    assert [(str(name), value.text) for name, value in update.values or ()] == [
        ("t.price", "CASE WHEN s.c = 2 THEN 1 END"),
        ("note", "concat('a, b', \"WHEN\", s.`when`)"),
    ]
    assert [(str(name), value.text) for name, value in insert.values or ()] == [
        ("id", "s.id"),
        ("price", "map(1, 2)[1]"),
    ]
    assert parse(f"CREATE STREAM m {body.text}")


def test_a_column_named_end_does_not_end_a_case() -> None:
    body = merge(
        """INTO t USING s ON t.id = s.id AND end = s.end
        WHEN MATCHED AND end > 1 AND CASE WHEN end IN (1) THEN end ELSE s.end END < 9
          THEN UPDATE SET end = end, a = CASE WHEN s.case THEN 1 END
        WHEN NOT MATCHED AND 1 < end THEN INSERT (id, end) VALUES (end, CASE end WHEN 1 THEN 2 END)
        """
    )
    assert body.on.text == "t.id = s.id AND end = s.end"
    update, insert = body.clauses
    assert update.condition is not None
    assert update.condition.text == "end > 1 AND CASE WHEN end IN (1) THEN end ELSE s.end END < 9"
    assert [value.text for _, value in update.values or ()] == ["end", "CASE WHEN s.case THEN 1 END"]
    assert insert.condition is not None
    assert insert.condition.text == "1 < end"
    assert [value.text for _, value in insert.values or ()] == ["end", "CASE end WHEN 1 THEN 2 END"]


def test_aliases_are_optional() -> None:
    body = merge("INTO orders USING changes ON orders.id = changes.id WHEN MATCHED THEN DELETE")
    assert (body.target_alias, body.source_alias) == ("orders", "changes")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("WITH SCHEMA EVOLUTION INTO t USING s ON a = b WHEN MATCHED THEN DELETE", "cannot change the columns"),
        ("INTO t USING s ON a = b WHEN NOT MATCHED BY SOURCE THEN DELETE", "all other rows of the target would count"),
        ("INTO t USING s ON a = b", "expected WHEN MATCHED or WHEN NOT MATCHED"),
        ("INTO t USING s WHEN MATCHED THEN DELETE", "expected ON"),
        ("INTO t USING s ON WHEN MATCHED THEN DELETE", "expected the condition"),
        ("INTO t USING (SELECT 1) ON a = b WHEN MATCHED THEN DELETE", "expected an alias of the query"),
        ("INTO t USING (a) s ON a = b WHEN MATCHED THEN DELETE", r"expected the name of the scan, or \(SELECT"),
        ("INTO t USING u AS t ON a = b WHEN MATCHED THEN DELETE", "have the same name"),
        ("INTO t USING s ON a = b WHEN MATCHED THEN INSERT *", "expected DELETE, UPDATE SET"),
        ("INTO t USING s ON a = b WHEN NOT MATCHED THEN DELETE", "expected INSERT"),
        ("INTO t USING s ON a = b WHEN NOT MATCHED THEN UPDATE SET *", "expected INSERT"),
        ("INTO t USING s ON a = b WHEN MATCHED THEN DELETE WHEN MATCHED THEN UPDATE SET *", "would never apply"),
        ("INTO t USING s ON a = b WHEN NOT MATCHED THEN INSERT (a, b) VALUES (1)", "2 columns, 1 values"),
        ("INTO t USING s ON a = b WHEN NOT MATCHED THEN INSERT (a) VALUES (DEFAULT)", "columns have no DEFAULT"),
        ("INTO t USING s ON a = b WHEN MATCHED THEN UPDATE SET a = (SELECT 1)", "cannot have a subquery"),
        ("INTO t USING s ON a = b WHEN MATCHED THEN UPDATE SET a = 2 * hash(s.*)", "cannot have a star"),
        ("INTO t USING s ON a = b WHEN MATCHED AND hash(*) = 1 THEN DELETE", "cannot have a star"),
        ("INTO t USING s ON a = b WHEN MATCHED AND sum(x) OVER (ORDER BY y) > 1 THEN DELETE", "a window function"),
        ("INTO t USING s ON a = b WHEN MATCHED THEN DELETE ORDER BY a", "expected the end of the statement"),
        ("INTO t USING s ON a = b WHEN MATCHED THEN UPDATE SET a", "expected = and the value"),
    ],
)
def test_invalid_statements_of_merge_are_refused(text: str, message: str) -> None:
    with pytest.raises(SqlError, match=message):
        merge(text)


# -- names --------------------------------------------------------------------------------------------


def test_keys_are_expressions_of_the_source_in_the_order_of_the_primary_key() -> None:
    found = plan("WHEN MATCHED THEN DELETE", on="ON (CAST(s.nr AS BIGINT) == T.ID) AND upper(s.shop) = `t`.shop")
    assert found.keys == ("upper(s.shop)", "CAST(s.nr AS BIGINT)")
    unqualified = plan("WHEN MATCHED THEN DELETE", on="ON shop = x AND nr = t.id", source=("x", "nr"))
    assert unqualified.keys == ("x", "nr")


@pytest.mark.parametrize(
    ("on", "message"),
    [
        ("ON t.shop = s.shop", "does not compare key column 'id'"),
        ("ON t.shop = s.shop AND t.id = s.id AND s.price > 1", "can only compare"),
        ("ON t.shop = s.shop AND t.id = s.id AND t.price = s.price", "can only compare"),
        ("ON t.shop = s.shop AND t.id <=> s.id", "can only compare"),
        ("ON t.shop = s.shop OR t.id = s.id", "can only compare"),
        ("ON t.shop = s.shop AND NOT t.id = s.id", "can only compare"),
        ("ON t.shop = s.shop AND t.id + 1 = s.id", "can only compare"),
        ("ON t.shop = s.shop AND t.id = t.id", "can only compare"),
        ("ON t.shop = s.shop AND t.id = s.id AND t.id = s.nr", "key column 'id' twice"),
        ("ON t.shop = s.shop AND id = s.nr", "can only compare"),
    ],
)
def test_on_compares_each_key_column_once(on: str, message: str) -> None:
    with pytest.raises(SqlError, match=message):
        plan("WHEN MATCHED THEN DELETE", on=on)


def test_stars_go_by_name_and_leave_out_change_columns() -> None:
    found = plan(MIRROR, source=("SHOP", "id", "price", "extra", *CHANGES))
    delete, update = found.matched
    assert dict(delete.values) == {}
    assert dict(update.values) == {"price": "`s`.`price`"}
    assert dict(found.not_matched[0].values) == {"price": "`s`.`price`"}
    assert found.looked_up == ("shop", "id", "price", "note")  # The update keeps the note.
    assert found.ordered
    assert found.drops_preimages
    assert plan(MIRROR).looked_up == ("shop",)


def test_preimages_stay_if_the_statement_names_them() -> None:
    assert not plan("WHEN MATCHED AND s._change_type IN ('delete', 'update_preimage') THEN DELETE").drops_preimages


@pytest.mark.parametrize(
    ("clauses", "error", "message"),
    [
        ("WHEN MATCHED THEN UPDATE SET prize = 1", SqlError, "no such column"),
        ("WHEN MATCHED THEN UPDATE SET s.price = 1", SqlError, "no such column"),
        ("WHEN MATCHED THEN UPDATE SET note = 'a', t.note = 'b'", SqlError, "'note' twice"),
        ("WHEN MATCHED THEN UPDATE SET id = s.id + 1", SqlError, "'id' to another value than ON"),
        ("WHEN NOT MATCHED THEN INSERT (id, price) VALUES (s.id, 1)", SqlError, "no value for key column 'shop'"),
        ("WHEN NOT MATCHED THEN INSERT (shop, id) VALUES ('x', s.id)", SqlError, "'shop' to another value than ON"),
    ],
)
def test_columns_that_a_clause_cannot_set_are_refused(clauses: str, error: type[HeadraceError], message: str) -> None:
    with pytest.raises(error, match=message):
        plan(clauses)


def test_a_star_cannot_give_another_key_than_on() -> None:
    with pytest.raises(SqlError, match="has another value in column 'id'"):
        plan("WHEN MATCHED THEN UPDATE SET *", on="ON t.shop = s.shop AND t.id = s.nr", source=(*SOURCE, "nr"))
    with pytest.raises(SqlError, match="has no column 'id'"):
        plan("WHEN NOT MATCHED THEN INSERT *", on="ON t.shop = s.shop AND t.id = nr", source=("shop", "nr", "price"))
    assert plan("WHEN MATCHED THEN UPDATE SET *", on="ON t.shop = s.shop AND t.id = nr", source=("shop", "nr", "price"))


def test_an_insert_gives_all_columns_that_are_not_null() -> None:
    target = TableSchema.of({"id": "long", "n": "int not null", "note": "string"}, "id")
    assert plan("WHEN NOT MATCHED THEN INSERT (id, n) VALUES (s.id, 1)", on="ON t.id = s.id", target=target)
    with pytest.raises(SchemaError, match="'n', which is NOT NULL"):
        plan("WHEN NOT MATCHED THEN INSERT *", on="ON t.id = s.id", target=target, source=("id", "note"))


# -- replay -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "clauses",
    [
        MIRROR,
        "WHEN MATCHED THEN DELETE",
        "WHEN MATCHED AND t.id > 3 THEN UPDATE SET price = s.price",
        "WHEN NOT MATCHED THEN INSERT *",
        "WHEN MATCHED THEN UPDATE SET note = upper( S.NOTE ) "
        "WHEN NOT MATCHED THEN INSERT (shop, id, note) VALUES (shop, s.id, upper(note))",
    ],
)
def test_a_replay_of_values_of_the_source_gives_the_same_rows(clauses: str) -> None:
    assert plan(clauses).replay_obstacle() is None


@pytest.mark.parametrize(
    ("clauses", "reason"),
    [
        ("WHEN MATCHED THEN UPDATE SET price = t.price + s.price", "reads price of the target"),
        ("WHEN MATCHED AND t.note IS NULL THEN DELETE", "reads note of the target"),
        ("WHEN MATCHED THEN UPDATE SET note = 'u' WHEN NOT MATCHED THEN INSERT *", "note different values"),
        (
            "WHEN MATCHED THEN UPDATE SET note = 'u' WHEN NOT MATCHED THEN INSERT (shop, id) VALUES (shop, id)",
            "note different values",
        ),
        ("WHEN NOT MATCHED THEN INSERT (shop, id, note) VALUES (s.shop, s.id, uuid())", "UUID gives another value"),
    ],
)
def test_statements_whose_replay_could_give_other_rows_are_found(clauses: str, reason: str) -> None:
    obstacle = plan(clauses).replay_obstacle()
    assert obstacle is not None
    assert reason in obstacle
