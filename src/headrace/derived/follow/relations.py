"""The relations of a followed query: the columns of the sign and the order go from the scan up to the result.

Every SELECT over a followed relation gets the two columns at the end of its select list. Static relations stay as they
are. A change of a scan's row then becomes the changes of the rows that are computed of it, with the same sign. That is
right for each operator here because the result for a union of rows is the union of the results; the preserved side of
an outer join, INTERSECT, DISTINCT and others do not have this property, and are refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from headrace.derived.follow.refusals import IN_A_BATCH, refuse_clauses
from headrace.derived.own_names import ORDER, SIGN
from headrace.errors import SqlError
from headrace.sql_text.lexer import TokenKind, quote_name
from headrace.sql_text.query_text import Block, Item, QueryText, Relation

_NOT_IN_FROM = {
    "PIVOT": "write one aggregate with FILTER (WHERE …) for each column",
    "UNPIVOT": IN_A_BATCH,
    "TABLESAMPLE": "write a condition on a hash of the key: WHERE pmod(hash(id), 10) = 0",
    "LATERAL": IN_A_BATCH,
    "MATCH_RECOGNIZE": IN_A_BATCH,
    "WATERMARK": "leave it out: a followed table needs no watermark, its groups are kept until their rows are deleted",
}
_BOTH = f", {SIGN}, {ORDER}"


@dataclass(frozen=True)
class RelationRows:
    """A relation of a followed query, and the rows that it has.

    Attributes:
        scan: the scan's name, if it is one.
        query: the branches of the subquery or common table expression, if it is a followed one.
        renamed: the names that WITH gives to its columns; empty without a list.
    """

    relation: Relation
    scan: str | None
    query: tuple[Select, ...]
    renamed: tuple[str, ...] = ()

    @property
    def followed(self) -> bool:
        return self.scan is not None or bool(self.query)


@dataclass(frozen=True)
class Select:
    """A SELECT of a followed query."""

    block: Block
    items: tuple[Item, ...]
    relations: tuple[RelationRows, ...]

    @property
    def start(self) -> int:
        return self.block.start

    @property
    def followed(self) -> RelationRows | None:
        return next((each for each in self.relations if each.followed), None)

    @property
    def scan(self) -> str:
        """The followed scan that it reads, perhaps through subqueries."""
        rows = self.followed
        assert rows is not None, "each SELECT of a followed query reads a scan"
        return rows.scan if rows.scan is not None else rows.query[0].scan


class QueryRelations:
    """Finds the scans of a query's text, and adds the edits that carry the sign and the order."""

    def __init__(self, text: QueryText, scans: Collection[str]) -> None:
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
        for index in text.set_operations(start, end):
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
            if inner != each and any(text.set_operations(*inner)):
                branches += self._branches(*inner, top=top)
            else:
                branches.append(self._select(*inner, top=top and not several))
        return branches

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
        block = text.block(start, end)
        relations = tuple(self._from_clause(*block.from_))
        items = tuple(self._item(*each) for each in text.split(*block.select))
        select = Select(block, items, relations)
        if not top and (block.group or block.having) is not None:
            raise text.error(
                "a followed query cannot have GROUP BY or HAVING inside a subquery or a branch of UNION ALL",
                block.where_end,
                remedy="follow the inner query into another table; for a static table, create a view",
            )
        if select.followed is not None:
            self._carry(select)
        return select

    def _item(self, start: int, end: int) -> Item:
        text = self._text
        if start >= end:
            raise text.error("expected an expression", start)
        if text.is_symbol(end - 1, ")") and text.is_word(_opening(text, end - 1) - 1, "AS"):
            raise text.error("a followed query cannot have an item with several names", start, remedy=IN_A_BATCH)
        return text.item(start, end)

    def _carry(self, select: Select) -> None:
        """Add the sign and the order to the select list, and take them out of its stars."""
        text = self._text
        followed = [each.relation for each in select.relations if each.followed]
        for index in range(*select.block.select):
            if not text.is_star(index) or self._in_count(index):
                continue
            qualifier = self._qualifier_of(index)
            if qualifier and not any(relation.answers_to(qualifier) for relation in followed):
                continue
            if text.is_word(index + 1, "EXCEPT") and text.is_symbol(index + 2, "("):
                text.insert(text.closing[index + 2], _BOTH)
            else:
                text.insert(index + 1, f" EXCEPT ({SIGN}, {ORDER})")
        text.insert(select.block.select[1], _BOTH)

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

    def _from_clause(self, start: int, end: int) -> list[RelationRows]:
        text = self._text
        for index in text.top(start, end):
            word = text.tokens[index].text.upper() if text.tokens[index].kind is TokenKind.WORD else ""
            if word in _NOT_IN_FROM and not text.is_symbol(index - 1, "."):
                raise text.error(f"a followed query cannot have {word}", index, remedy=_NOT_IN_FROM[word])
        relations: list[RelationRows] = []
        for relation in text.relations(start, end):
            found = self._with_rows(relation)
            if relations:
                self._check_join(relation, found, relations)
            relations += found
        return relations

    def _check_join(self, relation: Relation, right: Iterable[RelationRows], left: Iterable[RelationRows]) -> None:
        text, words, at = self._text, relation.join, relation.join_at
        follows_left = any(each.followed for each in left)
        follows_right = any(each.followed for each in right)
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

    def _with_rows(self, relation: Relation) -> list[RelationRows]:
        """Return a relation with its rows; of joined relations in brackets each one."""
        text, start = self._text, relation.start
        if relation.stream:
            raise text.error(
                "a followed query cannot have STREAM",
                start - 1,
                remedy="write the scan's name only: it is followed anyway",
            )
        if relation.joined is not None:
            inner = self._from_clause(start + 1, text.closing[start])
            if relation.alias is not None:
                raise text.error("an alias of joined relations", relation.end, remedy="write it as a subquery")
            return inner
        scan: str | None = None
        query: tuple[Select, ...] = ()
        renamed: tuple[str, ...] = ()
        if relation.query is not None:
            query = self._subquery(relation.query)
        elif relation.function:
            raise text.error(
                "a followed query cannot have a table function", start, remedy="make a table or a view of it"
            )
        elif relation.table is None:
            raise text.error("expected the name of a table or scan", start)
        elif len(relation.name) == 1 and relation.table.lower() in self._ctes:
            query, renamed = self._ctes[relation.table.lower()]
        else:
            scan = self._scan(relation.table, relation)
        after = relation.name_end
        if text.travels_in_time(after):
            raise text.error(
                "a followed query cannot have time travel", after, remedy="leave it out, or read it in a batch"
            )
        if text.is_word(after, "WITH", "CHANGES", "IDENTIFIED"):
            raise text.error(
                "options after a relation", after, remedy="write them in CREATE SCAN, or make a view of the relation"
            )
        rows = RelationRows(relation, scan, query, renamed)
        if rows.followed and relation.columns is not None:
            text.insert(text.closing[relation.columns], _BOTH)
        return [rows]

    def _scan(self, table: str, relation: Relation) -> str | None:
        """Return the scan of a name, and note it; None for a static table, which is noted too."""
        scan = self._scans.get(table.lower())
        if scan is not None:
            if len(relation.name) > 1:
                raise self._text.error(
                    "the name of a scan with dots", relation.start, remedy=f"write {quote_name(table.lower())}"
                )
            if scan not in self.scans:
                self.scans.append(scan)
        elif any("." in part for part in relation.name):
            raise self._text.error(
                "the name of a static table has a dot inside of quotes",
                relation.start,
                remedy="make a view with another name",
            )
        elif table not in self.others:
            self.others.append(table)
        return scan

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


def _opening(text: QueryText, closing: int) -> int:
    return next(opening for opening, end in text.closing.items() if end == closing)


def _one(text: QueryText, index: int) -> str:
    token = text.token(index)
    return "the end" if token is None else token.text
