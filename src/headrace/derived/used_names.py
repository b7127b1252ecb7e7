"""The columns that a text uses. A change of another column does not concern its query."""

from __future__ import annotations

from headrace.sql_text.query_text import QueryText

_OF_ALL_COLUMNS = ("NATURAL", "PIVOT", "UNPIVOT", "TABLE", "TRANSFORM")


def used_names(tokens: QueryText) -> set[str] | None:
    """Return the names in a query, of which some are columns; None if it uses all columns, or renames them all."""
    if any(relation.columns is not None for block in tokens.blocks() for relation in tokens.all_relations(block)):
        return None
    for index, token in enumerate(tokens.tokens):
        counted = tokens.is_symbol(index - 1, "(") and tokens.is_word(index - 2, "COUNT")
        if (tokens.is_star(index) and not counted) or token.is_word(*_OF_ALL_COLUMNS):
            return None
    return {token.name.lower() for token in tokens.tokens if token.is_name}
