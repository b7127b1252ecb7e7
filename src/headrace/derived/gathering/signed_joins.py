"""Queries whose change is the result of one evaluation: joins and filters of rows that each have a sign.

A query whose rows are those of inner joins has a row before a batch if all the rows are there before it of which it is
made, and so after it. So the text can say by itself which rows leave and which enter: the signs of the joined rows make
a further item, and a further condition leaves out what is in the result before and after the batch, or in neither.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from headrace.derived.gathering.model import QueryModel
from headrace.derived.own_names import SIGN
from headrace.sql_text.lexer import quote_name
from headrace.sql_text.query_text import Block, QueryText


def signed_join(text: QueryText, model: QueryModel | None, followed: Collection[str]) -> str | None:
    """Return the query for the rows that leave (-1 in column `SIGN`, the last one) and that enter (1) a result.

    It reads tables with a column `SIGN`: -1 for a row that is in the table only before a batch, 1 for one that is in it
    only after the batch, 0 for one in both. It can compute values of rows that were never together in the tables. So it
    can fail where the query does not.

    Args:
        model: the structure of the text; None if it is unclear.
        followed: the tables that change, in lower case.

    Returns:
        None for a query that does more than to join and to filter, or whose tables and columns cannot be named here.
    """
    if model is None or model.units[0].grouped or any(each.unit for each in model.occurrences):
        return None
    # Signs are no columns of a star, and NATURAL does not join by them.
    names_all = (text.is_star(index) or text.is_word(index, "NATURAL") for index in range(len(text.tokens)))
    if not text.is_word(0, "SELECT") or any(names_all):
        return None
    signs = _Signs(text, followed)
    try:
        signs.add(0, len(text.tokens))
    except _NoNames:
        return None
    selects = {index for index in range(len(text.tokens)) if text.is_word(index, "SELECT")}
    return text.render(0, len(text.tokens), signs.edits) if signs.selects == selects else None


class _NoNames(Exception):
    """A sign has no name in the text."""


class _Signs:
    """Adds the sign of its rows to a SELECT and to those in its FROM clause.

    Attributes:
        selects: the first tokens of the SELECTs.
        edits: what is added.
    """

    def __init__(self, text: QueryText, followed: Collection[str]) -> None:
        self._text = text
        self._followed = followed
        self.selects: set[int] = set()
        self.edits: list[tuple[int, int, str]] = []

    def add(self, start: int, end: int) -> bool:
        """Add the sign to the rows of a SELECT; return whether it has one: it reads a table that changes."""
        block = self._text.block(start, end)
        self.selects.add(start)
        signs = ", ".join(self._joined(block))
        if not signs:
            return False
        least, greatest = f"least(0, {signs})", f"greatest(0, {signs})"
        items, (first, last) = block.select[1], block.where
        self.edits.append((items, items, f", CAST({least} + {greatest} AS TINYINT) AS {SIGN}"))
        # Rows that were never together cancel out, as those without a change do. The latter matter to a SELECT around.
        condition = f"({least} = 0 OR {greatest} = 0)" if start else f"{least} + {greatest} <> 0"
        if first < last:
            self.edits += [(first, first, " ("), (last, last, f") AND {condition}")]
        else:
            self.edits.append((block.where_end, block.where_end, f" WHERE {condition}"))
        return True

    def _joined(self, block: Block) -> Iterator[str]:
        """Yield the signs in a FROM clause."""
        for relation in self._text.all_relations(block):
            if relation.query is not None:
                has_sign = self.add(relation.query + 1, self._text.closing[relation.query])
            else:
                has_sign = relation.table is not None and relation.table.lower() in self._followed
            if not has_sign:
                continue
            alias = relation.alias or relation.implied_alias
            if alias is None or relation.columns is not None:
                raise _NoNames
            yield f"{quote_name(alias)}.{SIGN}"
