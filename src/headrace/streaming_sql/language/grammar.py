"""The parser: tokens to statements of the streaming dialect, by recursive descent. All other statements are Spark's.

The first words of a statement decide whether it belongs to the dialect. After that, any error is an `SqlError`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from headrace.derived.merge.statement import merge_body
from headrace.derived.mirror.statement import mirror_statement
from headrace.errors import SqlError
from headrace.sql_text.cursor import Cursor
from headrace.sql_text.lexer import Token, tokenize
from headrace.sql_text.script import Name, Statement, StreamBody
from headrace.streaming_sql.language import queue_grammar, table_grammar, view_grammar
from headrace.streaming_sql.language import statements as st
from headrace.streaming_sql.language.column_grammar import columns_and_key, has_key
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
    return _spark(cursor)


def _spark(cursor: Cursor) -> st.SparkStatement:
    return st.SparkStatement(part=cursor.whole)


# -- tables -------------------------------------------------------------------------------------------


def _create_table(cursor: Cursor) -> Statement:
    if_not_exists = cursor.take_words("IF", "NOT", "EXISTS")
    if not cursor.at_name():
        return _spark(cursor)
    name = cursor.need_name("the table")
    behind_name = cursor.left()
    columns = cursor.parenthesised() if cursor.at_symbol("(") else None
    definitions = behind_name[: len(behind_name) - len(cursor.left())]
    if not cursor.take_words("USING"):
        return _spark(cursor)
    provider = str(cursor.need_name("the provider"))
    if _has_spark_clauses(cursor, provider):
        return _spark(cursor)
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
    return _column_names(cursor)


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
        return _spark(cursor)
    name = cursor.need_name("the table")
    cascade = cursor.take_words("CASCADE")
    if cursor.peek() is not None:
        return _spark(cursor)
    return st.DropTable(part=cursor.whole, name=name, if_exists=if_exists, cascade=cascade)


def _insert_or_spark(cursor: Cursor) -> Statement:
    overwrite = cursor.take_words("OVERWRITE")
    if not overwrite and not cursor.take_words("INTO"):
        return _spark(cursor)
    try:
        return _insert(cursor, cursor.whole.start, overwrite)
    except SqlError:
        # Spark has more forms of INSERT, and its parser gives better errors for them.
        return _spark(cursor)


def _insert(cursor: Cursor, start: int, overwrite: bool) -> st.Insert:
    cursor.take_words("TABLE")
    target = cursor.need_name("the table")
    columns = None
    if not cursor.take_words("BY", "NAME") and cursor.at_symbol("(") and not cursor.at_query():
        columns = _column_names(cursor)
    query = cursor.query()
    return st.Insert(
        part=cursor.part(start, query.end), target=target, overwrite=overwrite, columns=columns, query=query
    )


def _column_names(cursor: Cursor) -> tuple[str, ...]:
    cursor.need_symbol("(")
    names = [cursor.need_simple_name("a column").parts[0]]
    while cursor.take_symbol(","):
        names.append(cursor.need_simple_name("a column").parts[0])
    cursor.need_symbol(")")
    return tuple(names)


# -- scans --------------------------------------------------------------------------------------------


def _replace_scan(cursor: Cursor) -> Statement:
    return _create_scan(cursor, replace=True)


def _create_scan(cursor: Cursor, replace: bool = False) -> Statement:
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


def _show_scans(cursor: Cursor) -> Statement:
    return st.ShowScans(part=cursor.whole)


def _drop_scan(cursor: Cursor) -> Statement:
    if_exists = cursor.take_words("IF", "EXISTS")
    return st.DropScan(part=cursor.whole, name=cursor.need_simple_name("the scan"), if_exists=if_exists)


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


def _replace_stream(cursor: Cursor) -> st.CreateStream:
    return _create_stream(cursor, replace=True)


def _show_streams(cursor: Cursor) -> Statement:
    return st.ShowStreams(part=cursor.whole)


def _describe_stream(cursor: Cursor) -> Statement:
    return st.DescribeStream(part=cursor.whole, name=cursor.need_simple_name("the stream"))


def _stop_stream(cursor: Cursor) -> Statement:
    return st.StopStream(part=cursor.whole, name=cursor.need_simple_name("the stream"))


def _start_stream(cursor: Cursor) -> Statement:
    return st.StartStream(part=cursor.whole, name=cursor.need_simple_name("the stream"))


def _drop_stream(cursor: Cursor) -> Statement:
    if_exists = cursor.take_words("IF", "EXISTS")
    return st.DropStream(part=cursor.whole, name=cursor.need_simple_name("the stream"), if_exists=if_exists)


def _explain_stream(cursor: Cursor) -> Statement:
    return st.ExplainStream(part=cursor.whole, target=cursor.need_simple_name("the stream"))


def _explain_create_stream(cursor: Cursor) -> Statement:
    return st.ExplainStream(part=cursor.whole, target=_create_stream(cursor))


def _explain_replace_stream(cursor: Cursor) -> Statement:
    return st.ExplainStream(part=cursor.whole, target=_replace_stream(cursor))


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


_READERS: dict[str, Callable[[Cursor], Statement]] = {
    "CREATE TABLE": _create_table,
    "DROP TABLE": _drop_table,
    "CREATE SCAN": _create_scan,
    "CREATE OR REPLACE SCAN": _replace_scan,
    "SHOW SCANS": _show_scans,
    "DROP SCAN": _drop_scan,
    "CREATE STREAM": _create_stream,
    "CREATE OR REPLACE STREAM": _replace_stream,
    "SHOW STREAMS": _show_streams,
    "DESCRIBE STREAM": _describe_stream,
    "DESC STREAM": _describe_stream,
    "STOP STREAM": _stop_stream,
    "START STREAM": _start_stream,
    "DROP STREAM": _drop_stream,
    "EXPLAIN STREAM": _explain_stream,
    "EXPLAIN CREATE STREAM": _explain_create_stream,
    "EXPLAIN CREATE OR REPLACE STREAM": _explain_replace_stream,
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
