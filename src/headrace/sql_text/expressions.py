"""Reading expressions without a complete grammar: aliases, operands and equal parts."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.sql_text.lexer import TokenKind, quote_name
from headrace.sql_text.token_text import TokenText

_UNITS = frozenset(
    f"{unit}{plural}"
    for unit in (
        "YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND",
        "NANOSECOND", "DAYOFYEAR",
    )
    for plural in ("", "S")
)  # fmt: skip
_WITH_A_UNIT = ("EXTRACT", "TIMESTAMPADD", "TIMESTAMPDIFF", "DATEADD", "DATE_ADD", "DATEDIFF", "DATE_DIFF")
# An operand follows these words, so that the name after them is not an alias.
OPERATORS = (
    "AND", "OR", "XOR", "NOT", "IS", "IN", "LIKE", "ILIKE", "RLIKE", "REGEXP", "BETWEEN", "DIV", "FROM", "ESCAPE",
    "COLLATE", "CASE", "WHEN", "THEN", "ELSE", "AS", "TO", "ON", "WHERE", "BY", "HAVING", "SELECT", "DISTINCT", "ALL",
    "ANY", "SOME", "INTERVAL", "EXISTS", "OVER", "IGNORE", "RESPECT",
)  # fmt: skip
# A quoted name that equals one of these is not the same as the word.
_OWN_MEANING = frozenset(("TRUE", "FALSE", "NULL", "END", *OPERATORS))
_LEFT_BOUNDS = ("CASE", "WHEN", "THEN", "ELSE")
_RIGHT_BOUNDS = ("WHEN", "THEN", "ELSE", "END", "AS")


def ends_operand(text: TokenText, index: int) -> bool:
    """Return whether an operand can end at a token."""
    token = text.token(index)
    if token is None:
        return False
    if token.kind is TokenKind.SYMBOL:
        return token.text in ")]"
    return not token.is_word(*OPERATORS)


def ends_case(text: TokenText, index: int) -> bool:
    """Return whether a token is the END of a CASE, which follows an operand. A column can have this name as well."""
    return text.is_word(index, "END") and ends_operand(text, index - 1)


def split_alias(text: TokenText, start: int, end: int) -> tuple[int, str | None]:
    """Return the end of an item's expression, and its alias or None."""
    last = text.tokens[end - 1]
    if not last.is_name or end - start < 2:
        return end, None
    if text.is_word(end - 2, "AS"):
        return end - 2, last.name
    if not ends_operand(text, end - 2) or _closes_case(text, start, end) or _is_unit(text, start, end):
        return end, None
    return end - 1, last.name


def _closes_case(text: TokenText, start: int, end: int) -> bool:
    if not text.is_word(end - 1, "END"):
        return False
    open_cases = 0
    for index in text.top(start, end - 1):
        open_cases += text.is_word(index, "CASE") - ends_case(text, index)
    return open_cases > 0


def _is_unit(text: TokenText, start: int, end: int) -> bool:
    """Return whether the last token is the unit of an interval."""
    if text.tokens[end - 1].text.upper() not in _UNITS:
        return False
    intervals = [index for index in text.top(start, end - 1) if text.is_word(index, "INTERVAL")]
    return bool(intervals) and end - intervals[-1] <= 8


def operand_end(text: TokenText, start: int, end: int) -> int:
    """Return the end of the name, call, parentheses or CASE at the start of a range; ``start`` if there is none."""
    index = start
    if text.is_symbol(start, "("):
        index = text.after(start)
    elif text.is_word(start, "CASE"):
        depth = 0
        for index in text.top(start, end):
            depth += text.is_word(index, "CASE") - ends_case(text, index)
            if depth == 0:
                break
        index += 1
    elif text.is_name(start):
        _, index = text.dotted(start)
        if text.is_symbol(index, "("):
            index = text.after(index)
    while start < index < end:
        if text.is_symbol(index, "["):
            index = text.after(index)
        elif text.is_symbol(index, ".") and text.is_name(index + 1):
            index += 2
        else:
            break
    return index


def not_operands(text: TokenText, start: int, end: int) -> set[int]:
    """Return the names in a range that are types, units, aliases of arguments or parts of typed literals."""
    found: set[int] = set()
    for index in range(start, end):
        if not text.is_name(index):
            continue
        before, after = text.token(index - 1) if index > start else None, text.token(index + 1)
        # DATE '…'; INTERVAL 1 DAY; f(name => …); x::DATE; EXTRACT(DAY FROM …).
        typed = after is not None and after.kind is TokenKind.STRING and text.tokens[index].kind is TokenKind.WORD
        counted = before is not None and before.kind in (TokenKind.NUMBER, TokenKind.STRING)
        argument_name = text.is_pair(index + 1, "=", ">")
        cast = before is not None and text.is_pair(index - 2, ":", ":")
        unit = text.is_symbol(index - 1, "(") and text.is_word(index - 2, *_WITH_A_UNIT)
        if typed or counted or argument_name or cast or (unit and text.tokens[index].text.upper() in _UNITS):
            found.add(index)
        elif text.is_word(index, "CAST", "TRY_CAST") and text.is_symbol(index + 1, "("):
            closing = text.closing[index + 1]
            types = [each for each in text.top(index + 2, closing) if text.is_word(each, "AS")]
            found.update(range(types[-1] if types else closing, closing))
    return found


def struct_fields(text: TokenText, start: int, end: int) -> tuple[dict[tuple[int, int], int], set[int]]:
    """Return the fields of ``struct(…)`` and ``(…, …)`` in a range that have no alias, with their places; and aliases.

    Spark names such a field like its column, or ``col`` with its place, which begins with 1.
    """
    places: dict[tuple[int, int], int] = {}
    aliases: set[int] = set()
    for index in range(start, end):
        if not text.is_symbol(index, "("):
            continue
        parts = text.split(index + 1, text.closing[index])
        if text.is_call(index - 1) and not text.is_word(index - 1, *OPERATORS):
            is_struct = text.tokens[index - 1].name.lower() == "struct"
        else:
            is_struct = len(parts) > 1 and not text.is_word(index - 1, "IN")
        for place, part in enumerate(parts if is_struct else (), start=1):
            if split_alias(text, *part)[1] is None:
                places[text.without_brackets(*part)] = place
            else:
                aliases.add(part[1] - 1)
    return places, aliases


@dataclass(frozen=True)
class Atom:
    """A token, or a dotted name.

    Attributes:
        kind: ``name``, ``call`` for a function's name, ``field`` for a name after brackets or a colon, or ``other``.
        parts: the name's parts in lower case, or the token's text.
        end: the index after the last token.
        written: the name's parts as written.
    """

    kind: str
    parts: tuple[str, ...]
    end: int
    written: tuple[str, ...] = ()

    def sql(self, length: int | None = None) -> str:
        """Return the name, or its first parts, in Spark SQL."""
        return ".".join(map(quote_name, self.written[:length]))


def atom_at(text: TokenText, index: int) -> Atom:
    """Return the atom that begins at a token."""
    token = text.tokens[index]
    if not token.is_name:
        shown = token.text if token.kind is not TokenKind.NUMBER else token.text.upper()
        return Atom("other", (shown,), index + 1)
    if text.is_symbol(index - 1, ".") or text.is_symbol(index - 1, ":"):
        return Atom("field", (token.name.lower(),), index + 1)
    if token.kind is TokenKind.QUOTED and token.name.upper() in _OWN_MEANING and not text.is_symbol(index + 1, "."):
        return Atom("name", ("`", token.name.lower()), index + 1, (token.name,))
    written, end = text.dotted(index)
    parts = tuple(part.lower() for part in written)
    return Atom("call" if text.is_symbol(end, "(") else "name", parts, end, written)


def atoms(text: TokenText, start: int, end: int) -> list[Atom]:
    """Return the atoms of a range, those inside brackets included."""
    found = []
    while start < end:
        found.append(atom_at(text, start))
        start = found[-1].end
    return found


def is_bounded(text: TokenText, start: int, end: int, first: int, last: int) -> bool:
    """Return whether the tokens from ``first`` to ``last`` are a whole operand of the range, whatever operators have.

    They are, between the range's ends, brackets, commas or the words of CASE.
    """
    left = (
        first == start
        or any(text.is_symbol(first - 1, each) for each in "([,")
        or text.is_word(first - 1, *_LEFT_BOUNDS)
    )
    right = last == end or any(text.is_symbol(last, each) for each in ")],") or text.is_word(last, *_RIGHT_BOUNDS)
    return left and right


def lambda_parameters(text: TokenText, start: int, end: int) -> set[str]:
    """Return the parameters of lambda functions in a range, in lower case."""
    found: set[str] = set()
    for index in range(start + 1, end):
        if not text.is_pair(index, "-", ">"):
            continue
        first = index - 1
        if text.is_symbol(first, ")"):
            first = next(opening for opening, closing in text.closing.items() if closing == first)
        found |= {text.tokens[each].name.lower() for each in range(first, index) if text.is_name(each)}
    return found
