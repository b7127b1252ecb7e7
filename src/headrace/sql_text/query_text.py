"""The structure of a query: its SELECT blocks, their clauses, items and relations.

This is not a complete parser of Spark SQL. It finds brackets, the clauses at each level, and the relations of FROM, and
ignores everything else. Spark's parser reports syntax errors. Ranges are pairs of token indices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from headrace.sql_text.cursor import QUERY_STARTS
from headrace.sql_text.expressions import OPERATORS, ends_case, ends_operand, split_alias
from headrace.sql_text.lexer import Token, TokenKind, quote_name, tokenize
from headrace.sql_text.script import ScriptPart
from headrace.sql_text.token_text import TokenText

Range: TypeAlias = tuple[int, int]

SET_OPERATIONS = ("UNION", "INTERSECT", "EXCEPT", "MINUS")
"""The words with which set operations begin."""
_CLAUSES_WITH_BY = ("GROUP", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE")
_JOIN_WORDS = ("INNER", "CROSS", "LEFT", "RIGHT", "FULL", "OUTER", "SEMI", "ANTI", "NATURAL", "LATERAL", "ASOF", "JOIN")
_AFTER_RELATION = (
    "ON", "USING", "LATERAL", "PIVOT", "UNPIVOT", "TABLESAMPLE", "WATERMARK", "CHANGES", "IDENTIFIED", "WITH", "JOIN",
    "SELECT",
)  # fmt: skip
_TIME_TRAVEL = ("AS", "VERSION", "TIMESTAMP", "SYSTEM_VERSION", "SYSTEM_TIME")
# A name of a table can also follow these words.
_BEFORE_A_NAME = ("TABLE", "DESCRIBE", "DESC", "EXTENDED", "FORMATTED", "USING", "INTO", "FROM", "JOIN", "IN")


@dataclass(frozen=True)
class Item:
    """An item of a select list: the tokens of its expression, and its alias.

    Attributes:
        kind: ``star``, ``column`` for a plain column, ``literal`` for one string or number, or ``expression``.
        path: for a column its dotted name, for a star its qualifier.
    """

    start: int
    end: int
    alias: str | None
    kind: str
    path: tuple[str, ...]

    @property
    def name(self) -> str | None:
        """The name of the output column, if the text determines it."""
        return self.alias if self.alias is not None else (self.path[-1] if self.kind == "column" else None)


@dataclass(frozen=True)
class Relation:
    """A relation of a FROM clause, from ``start`` to ``end``, not including its alias; empty if there is none.

    Attributes:
        join: the commas and words before it, from ``join_at`` on.
        stream: whether STREAM is before it.
        name: the parts of the name of a table, or of a table function.
        name_end: the index after the name or the brackets, before options.
        query: the opening bracket of a subquery; None for other relations.
        joined: the opening bracket of joined relations; None for other relations.
        function: whether it is a table function.
        columns: the opening bracket of the columns after the alias; None without.
    """

    join: tuple[str, ...]
    join_at: int
    stream: bool
    start: int
    end: int
    name: tuple[str, ...]
    name_end: int
    query: int | None
    joined: int | None
    function: bool
    alias: str | None
    columns: int | None

    @property
    def table(self) -> str | None:
        """The name of a table with dots."""
        return ".".join(self.name) if self.name and not self.function else None

    @property
    def implied_alias(self) -> str | None:
        """The name by which a query knows a table without an alias; None for other relations."""
        return self.name[-1] if self.table is not None and self.alias is None else None

    def answers_to(self, qualifier: Sequence[str]) -> bool:
        """Return whether this qualifier can precede the columns of this relation."""
        wanted = [part.lower() for part in qualifier]
        if self.alias is not None:
            return wanted == [self.alias.lower()]
        return self.table is not None and wanted == [part.lower() for part in self.name[-len(wanted) :]]


@dataclass(frozen=True)
class Block:
    """A SELECT.

    Attributes:
        select: its items, without DISTINCT and ALL.
        from_: the relations of FROM; empty without FROM.
        where: the condition of WHERE; empty without WHERE.
        where_end: the index after FROM and WHERE.
        group, having: the expressions of the clause; None without it, or without FROM.
    """

    start: int
    end: int
    select: Range
    from_: Range
    where: Range
    where_end: int
    group: Range | None
    having: Range | None

    @property
    def source(self) -> Range:
        """FROM and WHERE, without the word FROM."""
        return self.from_[0], self.where_end


@dataclass(frozen=True)
class Definition:
    """A query of WITH.

    Attributes:
        name: its name in lower case.
        columns: the names that it gives to the columns of its query; empty without a list.
        columns_at: the opening bracket of this list; None without one.
        query: the opening bracket of its query.
        start: its first token, the name.
        end: the token after it.
        last: the token at the end of the query that can name it.
    """

    name: str
    columns: tuple[str, ...]
    columns_at: int | None
    query: int
    start: int
    end: int
    last: int


class QueryText(TokenText):
    """A text with queries."""

    def __init__(self, text: str, tokens: Sequence[Token] | None = None, *, strict: bool = False) -> None:
        super().__init__(text, tokens, strict=strict)
        # For an opening bracket, the first token after it that is none.
        self._after_brackets: dict[int, int] = {}
        self._definitions: list[Definition] | None = None

    def part(self, start: int, end: int) -> ScriptPart:
        """Return a range as a part of the script."""
        return ScriptPart(self._original, self.tokens[start].start, self.tokens[end - 1].end)

    # -- levels -----------------------------------------------------------------------------------------

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks of all levels, inner ones first."""
        levels = [(opening + 1, end) for opening, end in self.closing.items() if self.is_symbol(opening, "(")]
        for start, end in (*levels, (0, len(self.tokens))):
            selects = [index for index in self.top(start, end) if self.is_word(index, "SELECT")]
            operations = list(self.set_operations(start, end)) if selects else []
            for first, following in pairwise((*selects, end)):
                yield self.block(first, next((i for i in operations if first < i < following), following))

    def outside_of_queries(self, start: int, end: int) -> Iterator[int]:
        """Yield the indices of a range, without those of the queries in brackets in it."""
        while start < end:
            if self.is_symbol(start, "(") and self.is_query(start):
                start = self.after(start)
                continue
            yield start
            start += 1

    def set_operations(self, start: int, end: int) -> Iterator[int]:
        """Yield the words of the set operations of one level."""
        return (index for index in self.top(start, end) if self._is_set_operation(index, end))

    def _is_set_operation(self, index: int, end: int) -> bool:
        # EXCEPT is also a part of SELECT * EXCEPT (a).
        if not self.is_word(index, *SET_OPERATIONS) or index + 1 >= end:
            return False
        if self.is_symbol(index + 1, "("):
            return self.is_word(index + 2, *QUERY_STARTS) or self.is_symbol(index + 2, "(")
        return self.is_word(index + 1, "ALL", "DISTINCT", *QUERY_STARTS)

    def is_query(self, opening: int) -> bool:
        """Return whether brackets have a query, and no relations."""
        index = opening
        while self.is_symbol(index, "("):
            index = self._after_brackets.get(index, index + 1)
        # Brackets can be nested so deeply that the inner ones must not be read again for each outer one.
        self._after_brackets.update(dict.fromkeys(range(opening, index), index))
        if not self.is_word(index, *QUERY_STARTS):
            return False
        # ((SELECT …) x JOIN …) is a join in parentheses.
        return (
            index == opening + 1
            or self.closing[opening + 1] == self.closing[opening] - 1
            or self._is_set_operation(self.after(opening + 1), self.closing[opening])
        )

    # -- blocks -----------------------------------------------------------------------------------------

    @property
    def definitions(self) -> list[Definition]:
        """The queries of all WITH clauses."""
        if self._definitions is None:
            places = (index for index in range(len(self.tokens)) if self.is_word(index, "WITH"))
            self._definitions = [each for index in places for each in self.definitions_at(index + 1)]
        return self._definitions

    def definitions_at(self, index: int) -> Iterator[Definition]:
        """Yield the queries of a WITH clause whose first name is at an index, as far as they have their form."""
        around = [closing for outer, closing in self.closing.items() if outer < index < closing]
        last = min(around, default=len(self.tokens))
        while self.is_name(index):
            query, columns = index + 1, None
            if self.is_symbol(query, "(") and not self.is_query(query):
                columns, query = query, self.after(query)
            query += self.is_word(query, "AS")
            if not (self.is_symbol(query, "(") and self.is_query(query)):
                return
            names = () if columns is None else self.names_in(columns)
            yield Definition(self.tokens[index].name.lower(), names, columns, query, index, self.after(query), last)
            index = self.after(query) + 1
            if not self.is_symbol(index - 1, ","):
                return

    def names_in(self, opening: int) -> tuple[str, ...]:
        """Return the names in brackets."""
        return tuple(token.name for token in self.tokens[opening + 1 : self.closing[opening]] if token.is_name)

    def definition_of(self, relation: Relation) -> Definition | None:
        """Return the query of WITH that a table is. In such a query, its own name is that of another relation."""
        if relation.function or len(relation.name) != 1:
            return None
        name, place = relation.name[0].lower(), relation.start
        found = [each for each in self.definitions if each.name == name and each.end <= place < each.last]
        return max(found, key=lambda each: each.start, default=None)

    def block(self, start: int, end: int) -> Block:
        """Return the SELECT that a range is."""
        level = list(self.top(start + 1, end))

        def clause(word: str, after: int) -> int:
            places = (index for index in level if index >= after and self._begins(index, word))
            return next(places, end)

        from_ = clause("FROM", start)
        after = start if from_ == end else from_
        tail = next((index for index in level if index > after and self._begins_tail(index)), end)
        where = min(clause("WHERE", after), tail)
        group = next((i for i in level if i > from_ and self.is_word(i, "GROUP") and self.is_word(i + 1, "BY")), end)
        having = clause("HAVING", from_)
        quantified = self.is_word(start + 1, "DISTINCT", "ALL") and not self.is_symbol(start + 2, ",")
        return Block(
            start,
            end,
            select=(start + 1 + quantified, where if from_ == end else from_),
            from_=(min(from_ + 1, where), where),
            where=(min(where + 1, tail), tail),
            where_end=tail,
            group=(group + 2, having if group < having else end) if group < end else None,
            having=(having + 1, end) if having < end else None,
        )

    def _begins(self, index: int, word: str) -> bool:
        """Return whether a token begins a clause. ``IS DISTINCT FROM`` does not."""
        return (
            self.is_word(index, word)
            and not self.is_symbol(index - 1, ".")
            and not (word == "FROM" and self.is_word(index - 1, "DISTINCT"))
        )

    def _begins_tail(self, index: int) -> bool:
        """Return whether a token begins a clause that follows WHERE: grouping, ordering, limits, windows, pipes."""
        following = self.token(index + 1)
        if self._begins(index, "HAVING"):
            return True
        if following is None:
            return False
        if self.is_word(index, "LIMIT", "QUALIFY") and ends_operand(self, index - 1):
            return following.kind is not TokenKind.SYMBOL or following.text in "(+-"
        if self.is_word(index, "WINDOW"):
            return self.begins_windows(index)
        if self.is_symbol(index, "|"):
            return self.begins_pipe(index)
        return self.is_word(index, *_CLAUSES_WITH_BY) and following.is_word("BY")

    def item(self, start: int, end: int) -> Item:
        """Return the item that a range is."""
        star = next((i for i in self.top(start, end) if self.is_star(i)), None)
        if star is not None:
            return Item(start, end, None, "star", self.dotted(start)[0] if star > start else ())
        after, alias = split_alias(self, start, end)
        if self.is_name(start) and self.dotted(start)[1] == after:
            return Item(start, after, alias, "column", self.dotted(start)[0])
        is_literal = after == start + 1 and self.tokens[start].kind in (TokenKind.STRING, TokenKind.NUMBER)
        return Item(start, after, alias, "literal" if is_literal else "expression", ())

    def conjuncts(self, start: int, end: int) -> Iterator[Range]:
        """Yield the parts of a condition that must all be true: those between AND, and those in brackets of several."""
        waiting = [(start, end)]
        while waiting:
            start, end = waiting.pop()
            if self.is_symbol(start, "(") and self.after(start) >= end:
                waiting.append((start + 1, end - 1))
                continue
            if any(self.is_word(index, "OR") for index in self.top(start, end)):
                # AND binds more tightly.
                yield start, end
                continue
            parts, between, cases = [], False, 0
            for index in self.top(start, end):
                cases += self.is_word(index, "CASE") - ends_case(self, index)
                if self.is_word(index, "AND") and not between and not cases:
                    parts.append((start, index))
                    start = index + 1
                # BETWEEN a AND b
                between = self.is_word(index, "BETWEEN") or (between and not self.is_word(index, "AND"))
            if parts:
                waiting += reversed([*parts, (start, end)])
            elif start < end:
                yield start, end

    # -- relations --------------------------------------------------------------------------------------

    def relations(self, start: int, end: int) -> Iterator[Relation]:
        """Yield the relations of one level of a FROM clause. Where a relation is missing, an empty one."""
        index = start
        while index < end:
            join_at = index
            while index < end and (self.is_word(index, *_JOIN_WORDS) or self.is_symbol(index, ",")):
                index += 1
            relation, index = self._relation(join_at, index, end)
            yield relation
            index = self._next_join(index, end)

    def all_relations(self, block: Block) -> list[Relation]:
        """Return the relations of a block, those of joins in brackets included."""
        return self.relations_within(*block.from_)

    def relations_within(self, start: int, end: int) -> list[Relation]:
        """Return the relations of a FROM clause, those of joins in brackets included."""
        waiting, found = [(start, end)], []
        while waiting:
            for relation in self.relations(*waiting.pop()):
                if relation.joined is not None:
                    waiting.append((relation.joined + 1, self.closing[relation.joined]))
                elif relation.start < relation.end:
                    found.append(relation)
        return found

    def _next_join(self, index: int, end: int) -> int:
        for each in self.top(index, end):
            if self.is_word(each, "LATERAL") and self.is_word(each + 1, "VIEW"):
                # The columns of LATERAL VIEW … AS a, b are not relations.
                return next((i for i in self.top(each, end) if self.is_word(i, "JOIN")), end)
            if self.is_symbol(each, ",") or self.begins_join(each, end):
                return each
        return end

    def begins_join(self, index: int, end: int) -> bool:
        """Return whether the words of a join begin at a token."""
        while index < end and self.is_word(index, *_JOIN_WORDS):
            if self.is_word(index, "JOIN"):
                return True
            index += 1
        return False

    def _relation(self, join_at: int, index: int, end: int) -> tuple[Relation, int]:
        """Return a relation, and the index after its alias."""
        join = tuple(token.text.upper() for token in self.tokens[join_at:index])
        stream = self.is_word(index, "STREAM") and index + 1 < end and self._follows_stream(index + 1)
        start = index = index + stream
        name: tuple[str, ...] = ()
        query = joined = columns = alias = None
        function = False
        if index < end and self.is_symbol(index, "("):
            query, joined = (index, None) if self.is_query(index) else (None, index)
            index = self.after(index)
        elif index < end and self.is_name(index):
            name, index = self.dotted(index)
            rows = self._rows_end(start, end)
            function = self.is_symbol(index, "(") or rows is not None
            index = rows or (self.after(index) if function else index)
        name_end = index
        for word in ("WITH", "TABLESAMPLE"):
            if self.is_word(index, word) and self.is_symbol(index + 1, "("):
                index = self.after(index + 1)
        after = index
        if start < index:
            after += self.is_word(index, "AS")
            if after < end and self.is_name(after) and not self._ends_relation(after, end):
                alias = self.tokens[after].name
                after += 1
                if after < end and self.is_symbol(after, "("):
                    columns, after = after, self.after(after)
        relation = Relation(
            join, join_at, stream, start, index, name, name_end, query, joined, function, alias, columns
        )
        return relation, after

    def _rows_end(self, start: int, end: int) -> int | None:
        """Return the end of the rows of VALUES, which need no brackets; None for another relation."""
        first = start + 1
        # A table can have this name.
        if not self.is_word(start, "VALUES") or first >= end or self._can_follow_table(first, end):
            return None
        aliases = (each for each in self.top(first + 1, end) if split_alias(self, first, each + 1)[1] is not None)
        return next((each for each in aliases if not self.is_word(each, *OPERATORS) or self.is_word(each, "AS")), end)

    def _can_follow_table(self, index: int, end: int) -> bool:
        """Return whether a token after the name of a table is its alias or begins a clause, and no value does so."""
        if not self.is_name(index) or self.is_word(index, "NULL", "TRUE", "FALSE"):
            return self.is_symbol(index, ".") or self.is_symbol(index, ",")
        after = index + 1
        if self.is_symbol(after, "("):
            inside = self.tokens[index + 2 : self.closing[after]]
            after = self.after(after) if all(each.is_name or each.is_symbol(",") for each in inside) else after
        is_alias = after >= end or self.is_symbol(after, ",") or self._ends_relation(after, end)
        return is_alias or self.is_word(index, "AS", "WITH", "TABLESAMPLE") or self._ends_relation(index, end)

    def _follows_stream(self, index: int) -> bool:
        return self.is_symbol(index, "(") or (
            self.is_name(index) and not self.is_word(index, "AS", "ON", "JOIN", "WATERMARK")
        )

    def _ends_relation(self, index: int, end: int) -> bool:
        return self.is_word(index, *_AFTER_RELATION) or self.begins_join(index, end) or self.travels_in_time(index)

    def travels_in_time(self, index: int) -> bool:
        """Return whether ``VERSION AS OF``, ``TIMESTAMP AS OF`` or ``FOR …`` begins at a token."""
        return self.is_word(index, "VERSION", "TIMESTAMP", "FOR") and self.is_word(index + 1, *_TIME_TRAVEL)

    # -- names ------------------------------------------------------------------------------------------

    def references(self) -> set[str]:
        """Return all names that can be tables, in lower case and with dots. Some of them can be other names."""
        tables = [relation.table for block in self.blocks() for relation in self.all_relations(block)]
        found = {table.lower() for table in tables if table is not None}
        for before, token in pairwise(self.tokens):
            if before.is_word(*_BEFORE_A_NAME) and token.is_name:
                found.add(token.name.lower())
        return found


def with_views(sql: str, views: Mapping[str, str]) -> str:
    """Return a query that reads views under other names.

    Args:
        views: for each name in the query the name of the view to read.
    """
    return with_queries(sql, {name: f"SELECT * FROM {quote_name(view)}" for name, view in views.items()})


def with_queries(sql: str, queries: Mapping[str, str]) -> str:
    """Return a query that reads the results of others.

    Args:
        queries: for each name in the query the query whose result it reads.
    """
    lexed = tokenize(sql)
    sql, first = lexed.text, lexed.tokens[0]
    definitions = ", ".join(f"{quote_name(name)} AS ({query})" for name, query in queries.items())
    if not definitions:
        return sql
    if first.is_word("WITH"):
        return f"{sql[: first.end]} {definitions},{sql[first.end :]}"
    return f"WITH {definitions} {sql}"
