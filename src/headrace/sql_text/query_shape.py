"""The structure of a query: its SELECT blocks, their clauses and relations.

This is not a complete parser of Spark SQL. It finds parentheses, the clauses at each level, and the relations of FROM,
and ignores everything else. Spark's parser reports syntax errors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.sql_text.lexer import Token, TokenKind

_QUERY_STARTS = ("SELECT", "WITH", "FROM", "VALUES", "TABLE")
_SET_OPERATIONS = ("UNION", "INTERSECT", "EXCEPT", "MINUS")
_CLAUSES_WITH_BY = ("GROUP", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE")
_NO_ALIAS = (
    "JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "SEMI", "ANTI", "NATURAL", "OUTER", "ON", "USING", "LATERAL",
    "PIVOT", "UNPIVOT", "TABLESAMPLE", "WATERMARK", "CHANGES", "VERSION", "TIMESTAMP", "FOR", "IDENTIFIED", "WITH",
)  # fmt: skip
# A name of a table can also follow these words.
_BEFORE_A_NAME = ("TABLE", "DESCRIBE", "DESC", "EXTENDED", "FORMATTED", "USING", "INTO", "FROM", "JOIN", "IN")


@dataclass(frozen=True)
class Level:
    """The tokens of one pair of parentheses (or of the whole text), without the tokens of inner parentheses."""

    tokens: tuple[Token, ...]


@dataclass(frozen=True)
class Relation:
    """A relation of a FROM clause, from ``start`` to ``end``, not including its alias.

    Attributes:
        name: the parts of a table's name; None for a subquery or a table function.
        watermarked: whether it has a WATERMARK clause.
    """

    start: int
    end: int
    name: tuple[str, ...] | None
    alias: str | None
    watermarked: bool

    def answers_to(self, qualifier: Sequence[str]) -> bool:
        """Return whether this qualifier can precede the columns of this relation."""
        wanted = [part.lower() for part in qualifier]
        if self.alias is not None:
            return wanted == [self.alias.lower()]
        return self.name is not None and wanted == [part.lower() for part in self.name[-len(wanted) :]]


@dataclass(frozen=True)
class Block:
    """A SELECT: the tokens of its select list and of its WHERE clause, without inner levels, and its relations."""

    select: tuple[Token, ...]
    where: tuple[Token, ...]
    relations: tuple[Relation, ...]


class QueryShape:
    """The levels and blocks of a text with queries."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens = tuple(tokens)
        self.levels: list[Level] = []
        self._inside: dict[int, Level] = {}
        self._closing: dict[int, Token] = {}
        self._find_levels()
        self.blocks = [block for level in self.levels for block in self._blocks(level)]

    def _find_levels(self) -> None:
        # A stack instead of recursion: parentheses can be nested deeper than Python's calls.
        open_levels: list[list[Token]] = [[]]
        openings: list[Token] = []
        for token in self.tokens:
            if token.is_symbol("("):
                open_levels[-1].append(token)
                open_levels.append([])
                openings.append(token)
            elif token.is_symbol(")") and openings:
                self._close(openings.pop(), open_levels.pop(), token)
                open_levels[-1].append(token)
            else:
                open_levels[-1].append(token)
        while openings:
            self._close(openings.pop(), open_levels.pop(), self.tokens[-1])
        self.levels.append(Level(tuple(open_levels[0])))

    def _close(self, opening: Token, tokens: list[Token], closing: Token) -> None:
        level = Level(tuple(tokens))
        self.levels.append(level)
        self._inside[opening.start] = level
        self._closing[opening.start] = closing

    def inside(self, opening: Token) -> Level:
        """Return the level inside of an opening parenthesis."""
        return self._inside[opening.start]

    def closing(self, opening: Token) -> Token:
        """Return the closing parenthesis of an opening one; the last token of the text if it is missing."""
        return self._closing[opening.start]

    # -- blocks ---------------------------------------------------------------------------------------

    def _blocks(self, level: Level) -> Iterator[Block]:
        tokens = level.tokens
        starts = [index for index, token in enumerate(tokens) if token.is_word("SELECT")]
        for start, following in itertools.pairwise([*starts, len(tokens)]):
            end = next((i for i in range(start, following) if self._is_set_operation(tokens, i)), following)
            source = next((i for i in range(start, end) if _is_from(tokens, i)), end)
            clauses = source if source < end else start
            filter_ = next((i for i in range(clauses, end) if tokens[i].is_word("WHERE")), end)
            tail = next((i for i in range(clauses, end) if _begins_tail(tokens, i)), end)
            yield Block(
                select=_without_quantifier(tokens[start + 1 : source]),
                where=tokens[filter_ + 1 : max(tail, filter_ + 1)],
                relations=tuple(self._relations(tokens[source + 1 : min(filter_, tail)])),
            )

    def _is_set_operation(self, tokens: Sequence[Token], index: int) -> bool:
        # EXCEPT is also a part of SELECT * EXCEPT (a).
        if not tokens[index].is_word(*_SET_OPERATIONS) or index + 1 == len(tokens):
            return False
        following = tokens[index + 1]
        if following.is_symbol("("):
            return self._is_query(self.inside(following))
        return following.is_word("ALL", "DISTINCT", *_QUERY_STARTS)

    def _is_query(self, level: Level) -> bool:
        return bool(level.tokens) and (level.tokens[0].is_word(*_QUERY_STARTS))

    # -- relations --------------------------------------------------------------------------------------

    def _relations(self, tokens: tuple[Token, ...]) -> Iterator[Relation]:
        waiting = [tokens]
        while waiting:
            tokens = waiting.pop(0)
            index, expected = 0, True
            while index < len(tokens):
                token = tokens[index]
                if not expected:
                    expected = token.is_symbol(",") or token.is_word("JOIN")
                    if token.is_word("LATERAL") and index + 1 < len(tokens) and tokens[index + 1].is_word("VIEW"):
                        # The columns of LATERAL VIEW … AS a, b are not relations.
                        index = next((i for i in range(index, len(tokens)) if tokens[i].is_word("JOIN")), len(tokens))
                        continue
                    index += 1
                elif token.is_word("LATERAL") or (token.is_word("STREAM") and _begins_relation(tokens, index + 1)):
                    index += 1
                elif token.is_symbol("(") and not self._is_query(self.inside(token)):
                    waiting.append(self.inside(token).tokens)
                    index, expected = index + 1, False
                elif _begins_relation(tokens, index):
                    relation, index = self._relation(tokens, index)
                    yield relation
                    expected = False
                else:
                    index, expected = index + 1, False

    def _relation(self, tokens: tuple[Token, ...], index: int) -> tuple[Relation, int]:
        first = tokens[index]
        name: tuple[str, ...] | None = None
        if first.is_symbol("("):
            end, index = self._skip_parentheses(tokens, index)
        else:
            parts, index = dotted_name(tokens, index)
            name, end = tuple(parts), tokens[index - 1].end
            if index < len(tokens) and tokens[index].is_symbol("("):
                name = None
                end, index = self._skip_parentheses(tokens, index)
        for word in ("WITH", "TABLESAMPLE"):
            if index + 1 < len(tokens) and tokens[index].is_word(word) and tokens[index + 1].is_symbol("("):
                end, index = self._skip_parentheses(tokens, index + 1)
        watermarked = index < len(tokens) and tokens[index].is_word("WATERMARK")
        alias = None
        if index < len(tokens) and tokens[index].is_word("AS"):
            index += 1
        if index < len(tokens) and tokens[index].is_name and not tokens[index].is_word(*_NO_ALIAS):
            alias = tokens[index].name
            index += 1
        return Relation(first.start, end, name, alias, watermarked), index

    def _skip_parentheses(self, tokens: tuple[Token, ...], index: int) -> tuple[int, int]:
        """Return the offset and the index after a pair of parentheses."""
        closing = self.closing(tokens[index])
        index += 1
        if index < len(tokens) and tokens[index] is closing:
            index += 1
        return closing.end, index

    # -- names ------------------------------------------------------------------------------------------

    def references(self) -> set[str]:
        """Return all names that can be tables, in lower case and with dots. Some of them can be other names."""
        found = {
            ".".join(relation.name).lower()
            for block in self.blocks
            for relation in block.relations
            if relation.name is not None
        }
        for before, token in zip(self.tokens, self.tokens[1:], strict=False):
            if before.is_word(*_BEFORE_A_NAME) and token.is_name:
                found.add(token.name.lower())
        return found


def dotted_name(tokens: Sequence[Token], index: int) -> tuple[list[str], int]:
    """Return the parts of the name at an index, and the index after it."""
    parts = [tokens[index].name]
    index += 1
    while index + 1 < len(tokens) and tokens[index].is_symbol(".") and tokens[index + 1].is_name:
        parts.append(tokens[index + 1].name)
        index += 2
    return parts, index


def _begins_relation(tokens: Sequence[Token], index: int) -> bool:
    if index >= len(tokens):
        return False
    token = tokens[index]
    return token.is_symbol("(") or (token.is_name and not token.is_word("AS", "ON", "JOIN", "WATERMARK"))


def _is_from(tokens: Sequence[Token], index: int) -> bool:
    """Return whether a token begins a FROM clause, and is not part of ``IS DISTINCT FROM``."""
    return tokens[index].is_word("FROM") and not (index and tokens[index - 1].is_word("DISTINCT"))


def _begins_tail(tokens: Sequence[Token], index: int) -> bool:
    """Return whether a token begins a clause that follows WHERE: grouping, ordering, limits, windows."""
    token = tokens[index]
    following = tokens[index + 1] if index + 1 < len(tokens) else None
    if token.is_word("HAVING", "LIMIT", "QUALIFY"):
        return following is not None and (following.kind is not TokenKind.SYMBOL or following.is_symbol("("))
    if following is None:
        return False
    if token.is_word("WINDOW"):
        return following.is_name and index + 2 < len(tokens) and tokens[index + 2].is_word("AS")
    if token.is_symbol("|"):
        return following.is_symbol(">")
    return token.is_word(*_CLAUSES_WITH_BY) and following.is_word("BY")


def _without_quantifier(select: tuple[Token, ...]) -> tuple[Token, ...]:
    return select[1:] if select and select[0].is_word("DISTINCT", "ALL") else select
