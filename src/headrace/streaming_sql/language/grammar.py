"""The parser: tokens to statements of the streaming dialect, by recursive descent. All other statements are Spark's.

The first words of a statement decide whether it belongs to the dialect. After that, any error is an `SqlError`.
"""

from __future__ import annotations

import itertools
from functools import partial

from headrace.derived.merge.statement import merge_body
from headrace.derived.mirror.statement import mirror_statement
from headrace.errors import SqlError
from headrace.sql_text.cursor import Cursor
from headrace.sql_text.lexer import Token, tokenize
from headrace.sql_text.script import Name, Statement, StreamBody
from headrace.streaming_sql.language import queue_grammar, table_grammar, view_grammar
from headrace.streaming_sql.language import statements as st
from headrace.streaming_sql.language.column_grammar import columns_and_key, has_key
from headrace.streaming_sql.language.forms import Reader, dropped, named, plain, spark
from headrace.streaming_sql.language.older_grammar import set_statement
from headrace.streaming_sql.providers import is_headrace

TUNNEL_KINDS = ("BaseData", "Stream", "BaseAndStream")
# Clauses of Spark's CREATE TABLE that the dialect does not have.
_SPARK_TABLE_CLAUSES = (
    "PARTITIONED", "CLUSTERED", "CLUSTER", "SKEWED", "ROW", "STORED", "COMMENT", "TBLPROPERTIES", "DEFAULT",
)  # fmt: skip


def parse(text: str) -> list[Statement]:
    """Return the statements of a script, which are separated by semicolons.

    Raises:
        SqlError: with line, column and a caret.
    """
    lexed = tokenize(text)
    return [_statement(Cursor(text, lexed.text, tokens)) for tokens in _split(lexed.tokens) if tokens]


def _split(tokens: tuple[Token, ...]) -> list[tuple[Token, ...]]:
    """Split at semicolons, except inside of ``BEGIN … END``."""
    pieces: list[tuple[Token, ...]] = []
    first = depth = 0
    for index, token in enumerate(tokens):
        if tokens[first].is_word("BEGIN"):
            if token.is_word("BEGIN", "CASE") and not (index and tokens[index - 1].is_word("END")):
                depth += 1
            elif token.is_word("END"):
                following = tokens[index + 1] if index + 1 < len(tokens) else None
                if following is None or not following.is_word("IF", "WHILE", "LOOP", "REPEAT", "FOR"):
                    depth -= 1
        if token.is_symbol(";") and depth <= 0:
            pieces.append(tokens[first:index])
            first, depth = index + 1, 0
    pieces.append(tokens[first:])
    return pieces


def _statement(cursor: Cursor) -> Statement:
    for words, reader in _READERS.items():
        if cursor.take_words(*words.split()):
            statement = reader(cursor)
            if not isinstance(statement, st.SparkStatement):
                cursor.need_end()
            return statement
    return spark(cursor)


# -- tables -------------------------------------------------------------------------------------------


def _create_table(cursor: Cursor) -> Statement:
    if_not_exists = cursor.take_words("IF", "NOT", "EXISTS")
    if not cursor.at_name():
        return spark(cursor)
    name = cursor.need_name("the table")
    behind_name = cursor.left()
    columns = cursor.parenthesised() if cursor.at_symbol("(") else None
    definitions = behind_name[: len(behind_name) - len(cursor.left())]
    if not cursor.take_words("USING"):
        return spark(cursor)
    provider = str(cursor.need_name("the provider"))
    if _has_spark_clauses(cursor, provider):
        return spark(cursor)
    new_columns: dict[str, str] | None = None
    primary_key: tuple[str, ...] = ()
    if is_headrace(provider):
        _check_nesting(cursor, definitions)
        _refuse_defaults(cursor, definitions)
        if has_key(definitions):
            new_columns, primary_key = columns_and_key(cursor.over(definitions))
            columns = None
    options: dict[str, str] = {}
    partition_by: tuple[str, ...] = ()
    while True:
        if cursor.at_words("OPTIONS"):
            options = {**options, **cursor.options()}
        elif cursor.take_words("LOCATION"):
            location = cursor.need_string("the location, in quotes")
            options = {key: value for key, value in options.items() if key.lower() != "path"}
            options["path"] = location
        elif cursor.at_words("PARTITIONED", "BY") and is_headrace(provider):
            partition_by = _partition_columns(cursor, new=bool(primary_key), twice=bool(partition_by))
        else:
            break
    query = None
    if cursor.take_words("AS") or cursor.at_query():
        query = cursor.query()
    if cursor.peek() is not None:
        raise cursor.expected("OPTIONS, LOCATION, AS or the end of the statement (;)")
    return st.CreateTable(
        part=cursor.whole,
        name=cursor.without_dots(name, "the table"),
        if_not_exists=if_not_exists,
        columns=columns,
        provider=provider,
        options=options,
        query=query,
        new_columns=new_columns,
        primary_key=primary_key,
        partition_by=partition_by,
    )


def _partition_columns(cursor: Cursor, *, new: bool, twice: bool) -> tuple[str, ...]:
    token = cursor.peek()
    assert token is not None
    cursor.need_words("PARTITIONED", "BY")
    if not new:
        raise cursor.refused(
            "PARTITIONED BY divides a new table, which has a PRIMARY KEY",
            token.start,
            remedy="leave it out: a table that exists keeps its partitions",
        )
    if twice:
        raise cursor.refused("PARTITIONED BY occurs twice", token.start, remedy="name all columns in one of them")
    return cursor.need_names("a column")


def _has_spark_clauses(cursor: Cursor, provider: str) -> bool:
    if is_headrace(provider):
        return False
    depth = 0
    for token in cursor.left():
        depth += token.is_symbol("(") - token.is_symbol(")")
        if depth == 0 and token.is_word("AS", "SELECT"):
            return False
        if depth == 0 and token.is_word(*_SPARK_TABLE_CLAUSES):
            return True
    return False


def _check_nesting(cursor: Cursor, definitions: tuple[Token, ...]) -> None:
    """Raise `SqlError` if column types are nested deeper than a table supports. Spark checks the rest."""
    from headrace.model.types import MAX_NESTING

    depth = 0
    for token in definitions:
        depth += token.is_symbol("<") - token.is_symbol(">")
        if depth > MAX_NESTING:
            valid = f"at most {MAX_NESTING} arrays, maps and structs inside each other"
            raise cursor.error("the type of a column is nested too deep", token, valid=valid)


def _refuse_defaults(cursor: Cursor, definitions: tuple[Token, ...]) -> None:
    """Raise `SqlError` if a column has a default value, which no store of headrace keeps."""
    depth = 0
    for before, token in itertools.pairwise(definitions):
        depth += before.is_symbol("(") - before.is_symbol(")")
        named = before.is_symbol("(") or before.is_symbol(",")
        if depth == 1 and token.is_word("DEFAULT", "GENERATED") and not named:
            raise cursor.refused(
                f"a column cannot be {token.text.upper()}: a column without a value is null",
                token.start,
                remedy="leave it out, and write the value in INSERT or SELECT: coalesce(column, value)",
            )


def _drop_table(cursor: Cursor) -> Statement:
    if_exists = cursor.take_words("IF", "EXISTS")
    if not cursor.at_name():
        return spark(cursor)
    name = cursor.need_name("the table")
    cascade = cursor.take_words("CASCADE")
    if cursor.peek() is not None:
        return spark(cursor)
    return st.DropTable(part=cursor.whole, name=name, if_exists=if_exists, cascade=cascade)


def _insert_or_spark(cursor: Cursor) -> Statement:
    overwrite = cursor.take_words("OVERWRITE")
    if not overwrite and not cursor.take_words("INTO"):
        return spark(cursor)
    try:
        return _insert(cursor, cursor.whole.start, overwrite)
    except SqlError:
        # Spark has more forms of INSERT, and its parser gives better errors for them.
        return spark(cursor)


def _insert(cursor: Cursor, start: int, overwrite: bool) -> st.Insert:
    cursor.take_words("TABLE")
    target = cursor.need_name("the table")
    columns = None
    if not cursor.take_words("BY", "NAME") and cursor.at_symbol("(") and not cursor.at_query():
        columns = cursor.need_names("a column")
    query = cursor.query()
    return st.Insert(
        part=cursor.part(start, query.end), target=target, overwrite=overwrite, columns=columns, query=query
    )


# -- scans --------------------------------------------------------------------------------------------


def _create_scan(cursor: Cursor, *, replace: bool = False) -> Statement:
    name = cursor.need_simple_name("the scan")
    cursor.need_words("ON")
    table = cursor.need_name("the table")
    cursor.need_words("USING")
    streaming = cursor.take_words("STREAM")
    if not streaming and not cursor.take_words("BATCH"):
        raise cursor.expected("BATCH or STREAM")
    return st.CreateScan(
        part=cursor.whole, name=name, table=table, streaming=streaming, replace=replace, options=cursor.options()
    )


# -- streams ------------------------------------------------------------------------------------------


def _create_stream(cursor: Cursor, *, replace: bool = False) -> st.CreateStream:
    name = cursor.need_simple_name("the stream")
    options = cursor.options()
    return st.CreateStream(part=cursor.whole, name=name, replace=replace, options=options, body=_stream_body(cursor))


def _stream_body(cursor: Cursor) -> StreamBody:
    if cursor.at_words("MERGE"):
        return merge_body(cursor)
    if cursor.at_words("MIRROR"):
        return mirror_statement(cursor)
    start = cursor.start
    if not cursor.take_words("INSERT", "INTO"):
        raise cursor.expected("INSERT INTO, MERGE INTO or MIRROR")
    return _insert(cursor, start, False)


def _explain_stream(cursor: Cursor) -> Statement:
    return st.ExplainStream(part=cursor.whole, target=cursor.need_simple_name("the stream"))


def _explain_create_stream(cursor: Cursor, *, replace: bool = False) -> Statement:
    return st.ExplainStream(part=cursor.whole, target=_create_stream(cursor, replace=replace))


# -- tunnels ------------------------------------------------------------------------------------------


def _create_tunnel(cursor: Cursor) -> Statement:
    if_not_exists = cursor.take_words("IF", "NOT", "EXISTS")
    name = cursor.need_simple_name("the tunnel")
    cursor.need_words("ON")
    tables = [cursor.need_name("the table")]
    while cursor.take_symbol(","):
        tables.append(cursor.need_name("the table"))
    kind = None
    if cursor.take_words("USING"):
        for known in TUNNEL_KINDS:
            if cursor.take_words(known.upper()):
                kind = known
                break
        else:
            raise cursor.expected(" or ".join(TUNNEL_KINDS))
    return st.CreateTunnel(
        part=cursor.whole,
        name=name,
        if_not_exists=if_not_exists,
        tables=tuple(tables),
        kind=kind,
        options=cursor.options(),
    )


def _table_after_on(cursor: Cursor) -> Name | None:
    return cursor.need_name("the table") if cursor.take_words("ON") else None


def _show_tunnels(cursor: Cursor) -> Statement:
    return st.ShowTunnels(part=cursor.whole, table=_table_after_on(cursor))


def _describe_tunnel(cursor: Cursor) -> Statement:
    name = cursor.need_store_name("the tunnel, or its id")
    return st.DescribeTunnel(part=cursor.whole, name=name, table=_table_after_on(cursor))


def _drop_tunnel(cursor: Cursor) -> Statement:
    if_exists = cursor.take_words("IF", "EXISTS")
    name = cursor.need_store_name("the tunnel, or its id")
    table = _table_after_on(cursor)
    cascade = cursor.take_words("CASCADE")
    return st.DropTunnel(part=cursor.whole, name=name, if_exists=if_exists, table=table, cascade=cascade)


_READERS: dict[str, Reader] = {
    "CREATE TABLE": _create_table,
    "DROP TABLE": _drop_table,
    "CREATE SCAN": _create_scan,
    "CREATE OR REPLACE SCAN": partial(_create_scan, replace=True),
    "SHOW SCANS": plain(st.ShowScans),
    "DROP SCAN": dropped(st.DropScan, "the scan"),
    "CREATE STREAM": _create_stream,
    "CREATE OR REPLACE STREAM": partial(_create_stream, replace=True),
    "SHOW STREAMS": plain(st.ShowStreams),
    "DESCRIBE STREAM": named(st.DescribeStream, "the stream"),
    "DESC STREAM": named(st.DescribeStream, "the stream"),
    "STOP STREAM": named(st.StopStream, "the stream"),
    "START STREAM": named(st.StartStream, "the stream"),
    "DROP STREAM": dropped(st.DropStream, "the stream"),
    "EXPLAIN STREAM": _explain_stream,
    "EXPLAIN CREATE STREAM": _explain_create_stream,
    "EXPLAIN CREATE OR REPLACE STREAM": partial(_explain_create_stream, replace=True),
    "CREATE TUNNEL": _create_tunnel,
    "SHOW TUNNELS": _show_tunnels,
    "DESCRIBE TUNNEL": _describe_tunnel,
    "DESC TUNNEL": _describe_tunnel,
    "DROP TUNNEL": _drop_tunnel,
    **queue_grammar.READERS,
    **table_grammar.READERS,
    **view_grammar.READERS,
    "INSERT": _insert_or_spark,
    "SET": set_statement,
}
