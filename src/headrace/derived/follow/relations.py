"""The relations of a followed query: the columns of the sign and the order go from the scan up to the result.

Every SELECT over a followed relation gets the two columns at the end of its select list. Static relations stay as they
are. A change of a scan's row then becomes the changes of the rows that are computed of it, with the same sign. That is
right for each operator here because the result for a union of rows is the union of the results. The preserved side of
an outer join, INTERSECT, DISTINCT and others do not have this property: a query with them is `NotSplit`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from headrace.derived.follow.refusals import NotSplit
from headrace.derived.own_names import ORDER, SIGN
from headrace.sql_text.expressions import ends_operand
from headrace.sql_text.lexer import TokenKind
from headrace.sql_text.query_text import Block, Item, QueryText, Relation

_NOT_IN_FROM = ("PIVOT", "UNPIVOT", "TABLESAMPLE", "LATERAL", "MATCH_RECOGNIZE", "WATERMARK")
# Clauses of several rows after SELECT: those with a second word, and those of one word.
_WITH_BY = ("ORDER", "SORT", "CLUSTER", "DISTRIBUTE")
_ONE_WORD = ("LIMIT", "OFFSET", "QUALIFY")
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
            main = start = self._common_table_expressions(start + 1)
        branches = self._branches(start, end, top=True)
        self._check_subqueries()
        if any(select.followed is None for select in branches):
            raise NotSplit("a SELECT that reads no followed scan")
        return (with_, main), branches

    def _without_brackets(self, start: int, end: int) -> tuple[int, int]:
        while self._text.is_symbol(start, "(") and self._text.closing[start] == end - 1:
            self._queries.add(start)
            start, end = start + 1, end - 1
        return start, end

    def _common_table_expressions(self, index: int) -> int:
        text = self._text
        if text.is_word(index, "RECURSIVE"):
            raise NotSplit("WITH RECURSIVE")
        for each in text.definitions_at(index):
            branches = self._subquery(each.query)
            if each.name in self._scans or each.name in (other.lower() for other in self.others):
                # One view would replace both.
                raise NotSplit("WITH gives a query the name of a scan or table")
            if each.columns_at is not None and branches:
                text.insert(text.closing[each.columns_at], _BOTH)
            self._ctes[each.name] = (branches, each.columns if branches else ())
            index = each.end
        return index

    def _subquery(self, opening: int) -> tuple[Select, ...]:
        """Read a query in parentheses; return its branches, or an empty tuple if it has no followed relation."""
        self._queries.add(opening)
        text = self._text
        start, end = self._without_brackets(opening + 1, text.closing[opening])
        if text.is_word(start, "VALUES"):
            return ()
        if text.is_word(start, "WITH"):
            raise NotSplit("WITH inside a subquery")
        branches = self._branches(start, end, top=False)
        followed = [branch for branch in branches if branch.followed is not None]
        if not followed:
            return ()
        if len(followed) < len(branches):
            raise NotSplit("a SELECT that reads no followed scan")
        return tuple(branches)

    def _branches(self, start: int, end: int, *, top: bool) -> list[Select]:
        text = self._text
        ranges, first = [], start
        for index in text.set_operations(start, end):
            if not (text.is_word(index, "UNION") and text.is_word(index + 1, "ALL")):
                raise NotSplit("a set operation without ALL, or another one than UNION")
            ranges.append((first, index))
            first = index + 2
            if text.is_word(first, "BY") and text.is_word(first + 1, "NAME"):
                raise NotSplit("UNION ALL BY NAME")
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
            raise NotSplit("a query that does not begin with SELECT")
        self._check_clauses(start + 1, end)
        first = start + 1
        if text.is_word(first, "DISTINCT") and not text.is_symbol(first + 1, ","):
            raise NotSplit("SELECT DISTINCT")
        if text.is_word(first, "ALL"):
            first += 1
        if text.is_call(first) and text.is_word(first, "TRANSFORM") and text.is_word(text.after(first + 1), "USING"):
            raise NotSplit("TRANSFORM … USING")
        block = text.block(start, end)
        relations = tuple(self._from_clause(*block.from_))
        items = tuple(self._item(*each) for each in text.split(*block.select))
        select = Select(block, items, relations)
        if not top and (block.group or block.having) is not None:
            raise NotSplit("GROUP BY or HAVING inside a subquery or a branch of UNION ALL")
        if select.followed is not None:
            self._carry(select)
        return select

    def _check_clauses(self, start: int, end: int) -> None:
        """Raise `NotSplit` for a clause of several rows after SELECT, in a range outside of brackets, or a pipe."""
        text = self._text
        for index in text.top(start, end):
            following = text.token(index + 1)
            if text.begins_pipe(index):
                raise NotSplit("a pipe")
            begins = following is not None and (following.kind is not TokenKind.SYMBOL or following.is_symbol("("))
            ends = index == start or ends_operand(text, index - 1)
            clause = (
                (text.is_word(index, *_WITH_BY) and text.is_word(index + 1, "BY"))
                or (text.is_word(index, "LATERAL") and text.is_word(index + 1, "VIEW"))
                or (text.is_word(index, *_ONE_WORD) and begins and ends)
                or text.begins_windows(index)
            )
            if clause and not text.is_symbol(index - 1, "."):
                raise NotSplit(f"the clause {text.tokens[index].text.upper()}")

    def _item(self, start: int, end: int) -> Item:
        text = self._text
        if start >= end:
            raise NotSplit("an item without an expression")
        if text.is_symbol(end - 1, ")") and text.is_word(_opening(text, end - 1) - 1, "AS"):
            raise NotSplit("an item with several names")
        return text.item(start, end)

    def _carry(self, select: Select) -> None:
        """Add the sign and the order to the select list, and take them out of its stars and of those in WHERE."""
        text = self._text
        followed = [each.relation for each in select.relations if each.followed]
        for index in (*range(*select.block.select), *range(*select.block.where)):
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
            if text.is_word(index, *_NOT_IN_FROM) and not text.is_symbol(index - 1, "."):
                raise NotSplit(text.tokens[index].text.upper())
        relations: list[RelationRows] = []
        for relation in text.relations(start, end):
            found = self._with_rows(relation)
            if relations:
                self._check_join(relation, found, relations)
            relations += found
        return relations

    def _check_join(self, relation: Relation, right: Iterable[RelationRows], left: Iterable[RelationRows]) -> None:
        words = set(relation.join)
        follows_left = any(each.followed for each in left)
        follows_right = any(each.followed for each in right)
        if not (follows_left or follows_right):
            return
        self.has_join = True
        if words & {"RIGHT", "FULL", "ASOF"}:
            raise NotSplit("a join that keeps all rows of its right side, or an ASOF JOIN")
        if follows_left and follows_right:
            raise NotSplit("a join of two followed scans, or of one with itself")
        if follows_right and words & {"LEFT", "SEMI", "ANTI"}:
            raise NotSplit("a followed scan on the right of a LEFT, SEMI or ANTI JOIN")

    def _with_rows(self, relation: Relation) -> list[RelationRows]:
        """Return a relation with its rows; of joined relations in brackets each one."""
        text, start = self._text, relation.start
        if relation.stream:
            raise NotSplit("STREAM")
        if relation.joined is not None:
            inner = self._from_clause(start + 1, text.closing[start])
            if relation.alias is not None:
                raise NotSplit("an alias of joined relations")
            return inner
        scan: str | None = None
        query: tuple[Select, ...] = ()
        renamed: tuple[str, ...] = ()
        if relation.query is not None:
            query = self._subquery(relation.query)
        elif relation.function:
            raise NotSplit("a table function")
        elif relation.table is None:
            raise NotSplit("a relation without a name")
        elif len(relation.name) == 1 and relation.table.lower() in self._ctes:
            query, renamed = self._ctes[relation.table.lower()]
        else:
            scan = self._scan(relation.table, relation)
        after = relation.name_end
        if text.travels_in_time(after):
            raise NotSplit("time travel")
        if text.is_word(after, "WITH", "CHANGES", "IDENTIFIED"):
            raise NotSplit("options after a relation")
        rows = RelationRows(relation, scan, query, renamed)
        if rows.followed and relation.columns is not None:
            text.insert(text.closing[relation.columns], _BOTH)
        return [rows]

    def _scan(self, table: str, relation: Relation) -> str | None:
        """Return the scan of a name, and note it; None for a static table, which is noted too."""
        scan = self._scans.get(table.lower())
        if scan is not None:
            if len(relation.name) > 1:
                raise NotSplit("the name of a scan with dots")
            if scan not in self.scans:
                self.scans.append(scan)
        elif any("." in part for part in relation.name):
            raise NotSplit("the name of a static table with a dot inside of quotes")
        elif table not in self.others:
            self.others.append(table)
        return scan

    def _check_subqueries(self) -> None:
        """Raise `NotSplit` for a subquery in an expression."""
        text = self._text
        for opening in sorted(text.closing):
            if (
                opening not in self._queries
                and text.is_symbol(opening, "(")
                and text.is_word(opening + 1, "SELECT", "WITH", "VALUES", "TABLE")
                and not text.is_symbol(opening + 2, ",")
                and not text.is_symbol(opening + 2, ")")
            ):
                raise NotSplit("a subquery in an expression")


def _opening(text: QueryText, closing: int) -> int:
    return next(opening for opening, end in text.closing.items() if end == closing)
