"""The columns that a text uses. A change of another column does not concern its query."""

from __future__ import annotations

from headrace.sql_text.query_text import SET_OPERATIONS, QueryText

_OF_ALL_COLUMNS = ("NATURAL", "PIVOT", "UNPIVOT", "TABLE", "TRANSFORM")


def used_names(tokens: QueryText) -> set[str] | None:
    """Return the names in a query, of which some are columns; None if it uses all columns, or renames them all."""
    if any(relation.columns is not None for block in tokens.blocks() for relation in tokens.all_relations(block)):
        return None
    of_selects = {block.from_[0] - 1 for block in tokens.blocks()}
    for index, token in enumerate(tokens.tokens):
        if tokens.begins_pipe(index):
            # JOIN in a pipe adds all columns of a table.
            return None
        if token.is_word("FROM") and index not in of_selects and _begins_query(tokens, index):
            return None
        counted = tokens.is_symbol(index - 1, "(") and tokens.is_word(index - 2, "COUNT")
        if (tokens.is_star(index) and not counted) or token.is_word(*_OF_ALL_COLUMNS):
            return None
    return {token.name.lower() for token in tokens.tokens if token.is_name}


def _begins_query(tokens: QueryText, index: int) -> bool:
    """Return whether a query can begin at a word FROM: it has all columns without a star."""
    before = index - 1 - tokens.is_word(index - 1, "ALL", "DISTINCT")
    brackets = any(tokens.is_symbol(index - 1, each) for each in "()")
    return index == 0 or brackets or tokens.is_word(before, *SET_OPERATIONS)
