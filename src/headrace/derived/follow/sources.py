"""The relations of a followed query: the columns of the sign and the order go from the scan up to the result.

Every SELECT over a followed relation gets the two columns at the end of its select list. Static relations stay as they
are. A change of a scan's row then becomes the changes of the rows that are computed of it, with the same sign. That is
right for each operator here because the result for a union of rows is the union of the results; the preserved side of
an outer join, INTERSECT, DISTINCT and others do not have this property, and are refused.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from headrace.derived.follow.refusals import IN_A_BATCH, refuse_clauses
from headrace.derived.follow.shape import Item, Select, Source
from headrace.derived.own_names import ORDER, SIGN
from headrace.errors import SqlError
from headrace.sql_text.expressions import split_alias
from headrace.sql_text.lexer import TokenKind, quote_name
from headrace.sql_text.token_text import TokenText

_SET_OPERATIONS = ("UNION", "INTERSECT", "EXCEPT", "MINUS")
_QUERY_STARTS = ("SELECT", "WITH", "VALUES", "TABLE", "FROM")
_JOIN_WORDS = ("INNER", "CROSS", "LEFT", "RIGHT", "FULL", "OUTER", "SEMI", "ANTI", "NATURAL", "LATERAL", "ASOF", "JOIN")
_NOT_IN_FROM = {
    "PIVOT": "write one aggregate with FILTER (WHERE …) for each column",
    "UNPIVOT": IN_A_BATCH,
    "TABLESAMPLE": "write a condition on a hash of the key: WHERE pmod(hash(id), 10) = 0",
    "LATERAL": IN_A_BATCH,
    "MATCH_RECOGNIZE": IN_A_BATCH,
    "WATERMARK": "leave it out: a followed table needs no watermark, its groups are kept until their rows are deleted",
}
_TIME_TRAVEL = ("AS", "VERSION", "TIMESTAMP", "SYSTEM_VERSION", "SYSTEM_TIME")
_BOTH = f", {SIGN}, {ORDER}"


class Sources:
    """Finds the scans of a query's text, and adds the edits that carry the sign and the order."""

    def __init__(self, text: TokenText, scans: Collection[str]) -> None:
        self._text = text
        self._scans = {name.lower(): name for name in scans}
        # The branches of each common table expression, and the names that it gives to their columns.
        self._ctes: dict[str, tuple[tuple[Select, ...], tuple[str, ...]]] = {}
        self._queries: set[int] = set()
        self.scans: list[str] = []
        self.others: list[str] = []
        self.has_join = False

    # -- queries --------------------------------------------------------------------------------------

    def query(self) -> tuple[tuple[int, int], list[Select]]:
        """Read the whole text; return the range of its WITH clause, and the branches of its UNION ALL."""
        start, end = self._without_brackets(0, len(self._text.tokens))
        with_, main = start, start
        if self._text.is_word(start, "WITH"):
            main = start = self._common_table_expressions(start + 1, end)
        branches = self._branches(start, end, top=True)
        self._refuse_other_subqueries()
        if any(select.followed is None for select in branches):
            raise self._static_branch(main)
        return (with_, main), branches

    def _static_branch(self, index: int) -> SqlError:
        return self._text.error(
            "this SELECT reads no followed scan",
            index,
            remedy="select from a scan with readAs = 'table'; write rows that never change into the target with INSERT",
        )

    def _without_brackets(self, start: int, end: int) -> tuple[int, int]:
        while self._text.is_symbol(start, "(") and self._text.closing[start] == end - 1:
            self._queries.add(start)
            start, end = start + 1, end - 1
        return start, end

    def _common_table_expressions(self, index: int, end: int) -> int:
        text = self._text
        if text.is_word(index, "RECURSIVE"):
            raise text.error("a followed query cannot have WITH RECURSIVE", index, remedy=IN_A_BATCH)
        while index < end:
            name_at = index
            if not text.is_name(name_at):
                raise text.error("expected the name of a common table expression", index)
            index += 1
            columns = index if text.is_symbol(index, "(") else None
            index = text.after(index) if columns is not None else index
            index += text.is_word(index, "AS")
            if not text.is_symbol(index, "("):
                raise text.error("expected a query in parentheses", index)
            branches = self._subquery(index)
            name = text.tokens[name_at].name.lower()
            self._check_own_name(name, name_at)
            names: tuple[str, ...] = ()
            if columns is not None and branches:
                text.insert(text.closing[columns], _BOTH)
                inside = range(columns + 1, text.closing[columns])
                names = tuple(text.tokens[each].name for each in inside if text.is_name(each))
            self._ctes[name] = (branches, names)
            index = text.after(index)
            if not text.is_symbol(index, ","):
                return index
            index += 1
        raise text.error("expected SELECT", end)

    def _check_own_name(self, name: str, index: int) -> None:
        """Raise `SqlError` if a scan or table has the name of a WITH query: one view would replace both."""
        if name in self._scans or name in (other.lower() for other in self.others):
            raise self._text.error(
                f"WITH gives a query the name of a scan or table: {name}", index, remedy="choose another name"
            )

    def _subquery(self, opening: int) -> tuple[Select, ...]:
        """Read a query in parentheses; return its branches, or an empty tuple if it has no followed relation."""
        self._queries.add(opening)
        text = self._text
        start, end = self._without_brackets(opening + 1, text.closing[opening])
        if text.is_word(start, "VALUES"):
            return ()
        if text.is_word(start, "WITH"):
            raise text.error("WITH inside a subquery", start, remedy="move it to the beginning of the query")
        branches = self._branches(start, end, top=False)
        followed = [branch for branch in branches if branch.followed is not None]
        if not followed:
            return ()
        if len(followed) < len(branches):
            raise self._static_branch(next(branch.start for branch in branches if branch.followed is None))
        return tuple(branches)

    def _branches(self, start: int, end: int, *, top: bool) -> list[Select]:
        text = self._text
        ranges, first = [], start
        for index in text.top(start, end):
            if self._is_set_operation(index, end):
                if not (text.is_word(index, "UNION") and text.is_word(index + 1, "ALL")):
                    name = text.tokens[index].text.upper()
                    raise text.error(
                        f"a followed query cannot have {name}{'' if name != 'UNION' else ' without ALL'}",
                        index,
                        remedy="write UNION ALL, and GROUP BY around it for rows without duplicates"
                        if name == "UNION"
                        else "write a LEFT SEMI JOIN or LEFT ANTI JOIN with a static table",
                    )
                ranges.append((first, index))
                first = index + 2
                if text.is_word(first, "BY") and text.is_word(first + 1, "NAME"):
                    raise text.error(
                        "a followed query cannot have UNION ALL BY NAME", first, remedy="write the columns in one order"
                    )
        branches: list[Select] = []
        several = bool(ranges)
        for each in [*ranges, (first, end)]:
            inner = self._without_brackets(*each)
            if inner != each and any(self._is_set_operation(index, inner[1]) for index in text.top(*inner)):
                branches += self._branches(*inner, top=top)
            else:
                branches.append(self._select(*inner, top=top and not several))
        return branches

    def _is_set_operation(self, index: int, end: int) -> bool:
        text = self._text
        # EXCEPT is also a part of SELECT * EXCEPT (a).
        if not text.is_word(index, *_SET_OPERATIONS) or index + 1 >= end:
            return False
        if text.is_symbol(index + 1, "("):
            return text.is_word(index + 2, *_QUERY_STARTS) or text.is_symbol(index + 2, "(")
        return text.is_word(index + 1, "ALL", "DISTINCT", *_QUERY_STARTS)

    # -- one SELECT -----------------------------------------------------------------------------------

    def _select(self, start: int, end: int, *, top: bool) -> Select:
        text = self._text
        if not text.is_word(start, "SELECT"):
            raise text.error(
                "a followed query must be a SELECT",
                start,
                remedy="write SELECT … FROM scan",
                received=_one(text, start),
            )
        refuse_clauses(text, start + 1, end)
        first = start + 1
        if text.is_word(first, "DISTINCT") and not text.is_symbol(first + 1, ","):
            raise text.error(
                "a followed query cannot have SELECT DISTINCT", first, remedy="write GROUP BY ALL, or name the columns"
            )
        if text.is_word(first, "ALL"):
            first += 1
        if text.is_call(first) and text.is_word(first, "TRANSFORM") and text.is_word(text.after(first + 1), "USING"):
            raise text.error("a followed query cannot have TRANSFORM … USING", first, remedy=IN_A_BATCH)
        from_ = self._clause(first, end, "FROM")
        if from_ == end:
            # One constant row.
            items = tuple(self._item(*each) for each in text.split(first, self._clause(first, end, "WHERE")))
            return Select(start, end, items, (end, end), end, None, None, ())
        where = self._clause(from_ + 1, end, "WHERE")
        group = next(
            (i for i in text.top(from_ + 1, end) if text.is_word(i, "GROUP") and text.is_word(i + 1, "BY")), end
        )
        having = self._clause(from_ + 1, end, "HAVING")
        where_end = min(group, having)
        sources = self._from_clause(from_ + 1, min(where, where_end))
        items = tuple(self._item(*each) for each in text.split(first, from_))
        select = Select(
            start,
            end,
            items,
            (from_ + 1, where_end),
            where_end,
            (group + 2, having if group < having else end) if group < end else None,
            (having + 1, end) if having < end else None,
            tuple(sources),
        )
        if not top and (select.group or select.having) is not None:
            raise text.error(
                "a followed query cannot have GROUP BY or HAVING inside a subquery or a branch of UNION ALL",
                min(group, having),
                remedy="follow the inner query into another table; for a static table, create a view",
            )
        if select.followed is not None:
            self._carry(select, from_)
        return select

    def _clause(self, start: int, end: int, word: str) -> int:
        text = self._text
        return next(
            (
                index
                for index in text.top(start, end)
                if text.is_word(index, word)
                and not text.is_symbol(index - 1, ".")
                and not (word == "FROM" and text.is_word(index - 1, "DISTINCT"))
            ),
            end,
        )

    def _item(self, start: int, end: int) -> Item:
        text = self._text
        if start >= end:
            raise text.error("expected an expression", start)
        if text.is_symbol(end - 1, ")") and text.is_word(_opening(text, end - 1) - 1, "AS"):
            raise text.error("a followed query cannot have an item with several names", start, remedy=IN_A_BATCH)
        star = next((i for i in text.top(start, end) if text.is_star(i)), None)
        if star is not None:
            path = text.dotted(start)[0] if star > start else ()
            return Item(start, end, None, "star", path)
        after, alias = split_alias(text, start, end)
        kind, path = "expression", ()
        if text.is_name(start):
            path, name_end = text.dotted(start)
            if name_end == after:
                kind = "column"
            else:
                path = ()
        elif after == start + 1 and text.tokens[start].kind in (TokenKind.STRING, TokenKind.NUMBER):
            kind = "literal"
        return Item(start, after, alias, kind, path)

    def _carry(self, select: Select, from_: int) -> None:
        """Add the sign and the order to the select list, and take them out of its stars."""
        text = self._text
        for index in range(select.start, from_):
            if not text.is_star(index) or self._in_count(index):
                continue
            qualifier = self._qualifier_of(index)
            if qualifier and not any(source.followed and source.answers_to(qualifier) for source in select.sources):
                continue
            if text.is_word(index + 1, "EXCEPT") and text.is_symbol(index + 2, "("):
                text.insert(text.closing[index + 2], _BOTH)
            else:
                text.insert(index + 1, f" EXCEPT ({SIGN}, {ORDER})")
        text.insert(from_, _BOTH)

    def _in_count(self, index: int) -> bool:
        text = self._text
        return text.is_symbol(index - 1, "(") and text.is_word(index - 2, "COUNT") and text.is_symbol(index + 1, ")")

    def _qualifier_of(self, star: int) -> tuple[str, ...]:
        text, parts = self._text, []
        while text.is_symbol(star - 1, ".") and text.is_name(star - 2):
            parts.append(text.tokens[star - 2].name.lower())
            star -= 2
        return tuple(reversed(parts))

    # -- FROM -----------------------------------------------------------------------------------------

    def _from_clause(self, start: int, end: int) -> list[Source]:
        text = self._text
        for index in text.top(start, end):
            word = text.tokens[index].text.upper() if text.tokens[index].kind is TokenKind.WORD else ""
            if word in _NOT_IN_FROM and not text.is_symbol(index - 1, "."):
                raise text.error(f"a followed query cannot have {word}", index, remedy=_NOT_IN_FROM[word])
        sources: list[Source] = []
        index = start
        while index < end:
            words: list[str] = []
            first = index
            while text.is_word(index, *_JOIN_WORDS) or text.is_symbol(index, ","):
                words.append(text.tokens[index].text.upper())
                index += 1
            found, index = self._relation(index, end)
            if sources:
                self._check_join(words, first, found, sources)
            sources += found
            index = next((i for i in text.top(index, end) if text.is_symbol(i, ",") or self._begins_join(i, end)), end)
        return sources

    def _begins_join(self, index: int, end: int) -> bool:
        text = self._text
        while index < end and text.is_word(index, *_JOIN_WORDS):
            if text.is_word(index, "JOIN"):
                return True
            index += 1
        return False

    def _check_join(self, words: list[str], at: int, right: list[Source], left: list[Source]) -> None:
        text = self._text
        follows_left = any(source.followed for source in left)
        follows_right = any(source.followed for source in right)
        if not (follows_left or follows_right):
            return
        self.has_join = True
        for word in ("RIGHT", "FULL", "ASOF"):
            if word in words:
                raise text.error(
                    f"a followed query cannot have a {word} JOIN",
                    at,
                    remedy="write a LEFT JOIN with the scan on the left: a static table has no changes",
                )
        if follows_left and follows_right:
            raise text.error(
                "a followed query cannot join two followed scans, or one with itself",
                at,
                remedy="join with a static table, or follow one scan into a table and join that as a static one",
            )
        if follows_right and ({"LEFT", "SEMI", "ANTI"} & set(words)):
            raise text.error(
                f"the followed scan must be on the left of a {' '.join(words)}", at, remedy="exchange the two sides"
            )

    def _relation(self, index: int, end: int) -> tuple[list[Source], int]:
        text = self._text
        start = index
        if text.is_word(index, "STREAM") and (text.is_symbol(index + 1, "(") or text.is_name(index + 1)):
            raise text.error(
                "a followed query cannot have STREAM", index, remedy="write the scan's name only: it is followed anyway"
            )
        name: tuple[str, ...] = ()
        scan: str | None = None
        query: tuple[Select, ...] = ()
        columns: tuple[str, ...] = ()
        if text.is_symbol(index, "("):
            if not self._begins_query(index):
                inner = self._from_clause(index + 1, text.closing[index])
                index = text.after(index)
                if index < end and text.is_name(index) and not self._ends_relation(index, end):
                    raise text.error("an alias of joined relations", index, remedy="write it as a subquery")
                return inner, index
            query = self._subquery(index)
            index = text.after(index)
        elif text.is_name(index):
            name, index = text.dotted(index)
            if text.is_symbol(index, "("):
                raise text.error(
                    "a followed query cannot have a table function", start, remedy="make a table or a view of it"
                )
            joined = ".".join(name).lower()
            if len(name) == 1 and joined in self._ctes:
                query, columns = self._ctes[joined]
            elif joined in self._scans:
                if len(name) > 1:
                    raise text.error("the name of a scan with dots", start, remedy=f"write {quote_name(joined)}")
                scan = self._scans[joined]
                if scan not in self.scans:
                    self.scans.append(scan)
            elif any("." in part for part in name):
                raise text.error(
                    "the name of a static table has a dot inside of quotes",
                    start,
                    remedy="make a view with another name",
                )
            elif ".".join(name) not in self.others:
                self.others.append(".".join(name))
        else:
            raise text.error("expected the name of a table or scan", index)
        if text.is_word(index, "VERSION", "TIMESTAMP", "FOR") and text.is_word(index + 1, *_TIME_TRAVEL):
            raise text.error(
                "a followed query cannot have time travel", index, remedy="leave it out, or read it in a batch"
            )
        if text.is_word(index, "WITH", "CHANGES", "IDENTIFIED"):
            raise text.error(
                "options after a relation", index, remedy="write them in CREATE SCAN, or make a view of the relation"
            )
        lower = tuple(part.lower() for part in name)
        names = tuple(lower[first:] for first in range(len(lower)))
        source = Source(names, scan, query, (start, index), name[-1] if name else None, columns)
        return self._with_alias(source, index, end)

    def _with_alias(self, source: Source, index: int, end: int) -> tuple[list[Source], int]:
        """Return a source with its alias, and the index after it and its list of columns."""
        text = self._text
        index += text.is_word(index, "AS")
        if index < end and text.is_name(index) and not self._ends_relation(index, end):
            source = replace(source, names=((text.tokens[index].name.lower(),),), alias=None)
            index += 1
            if text.is_symbol(index, "(") and index < end:
                if source.followed:
                    text.insert(text.closing[index], _BOTH)
                index = text.after(index)
        return [source], index

    def _ends_relation(self, index: int, end: int) -> bool:
        return self._text.is_word(index, "ON", "USING") or self._begins_join(index, end)

    def _begins_query(self, opening: int) -> bool:
        text, index = self._text, opening
        while text.is_symbol(index, "("):
            index += 1
        if not text.is_word(index, *_QUERY_STARTS):
            return False
        # ((SELECT …) x JOIN …) is a join in parentheses.
        return (
            index == opening + 1
            or text.closing[opening + 1] == text.closing[opening] - 1
            or self._is_set_operation(text.after(opening + 1), text.closing[opening])
        )

    def _refuse_other_subqueries(self) -> None:
        text = self._text
        for opening in sorted(text.closing):
            if (
                opening not in self._queries
                and text.is_symbol(opening, "(")
                and text.is_word(opening + 1, "SELECT", "WITH", "VALUES", "TABLE")
                and not text.is_symbol(opening + 2, ",")
                and not text.is_symbol(opening + 2, ")")
            ):
                named = "EXISTS" if text.is_word(opening - 1, "EXISTS") else "IN (SELECT …)"
                if not text.is_word(opening - 1, "EXISTS", "IN"):
                    named = "a scalar subquery"
                raise text.error(
                    f"a followed query cannot have {named}",
                    opening,
                    remedy="write a LEFT SEMI JOIN, a LEFT ANTI JOIN or a LEFT JOIN with a static table",
                )


def _opening(text: TokenText, closing: int) -> int:
    return next(opening for opening, end in text.closing.items() if end == closing)


def _one(text: TokenText, index: int) -> str:
    token = text.token(index)
    return "the end" if token is None else token.text
