"""Columns of a query's result that no two of its rows have alike, for the key of a target.

The text and the model say less than is true. A batch also checks the key, but not of groups that are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from headrace.derived.aggregate_calls import is_any_aggregate, is_generator
from headrace.derived.gathering.model import Ordering, Place, QueryModel
from headrace.sql_text.query_text import Block, QueryText

_TAILS = ("ORDER", "SORT", "LIMIT", "OFFSET", "QUALIFY", "HAVING")


def determines(model: QueryModel | None, columns: Collection[int], other: int) -> bool:
    """Return whether the values of some output columns determine that of another one, by their positions.

    In the result of ``SELECT c.id, c.name FROM orders o JOIN customers c …`` rows with one ``id`` have one ``name``, if
    it is the key of the table.
    """
    if model is None:
        return False
    places = _copies(model)
    given = tuple(places[number] for number in columns if number in places)
    if other not in places or not given:
        return False
    value = _original(model, places[other]) or places[other]
    return model.is_total(Ordering(0, given, values=(value,)))


def without_determined(model: QueryModel | None, columns: Iterable[int]) -> tuple[int, ...]:
    """Return columns, but none that others of them determine: it can be null, and a column of a key cannot."""
    kept = list(dict.fromkeys(columns))
    for number in reversed(tuple(kept)):
        others = [each for each in kept if each != number]
        if determines(model, others, number):
            kept = others
    return tuple(kept)


def unique_columns(text: QueryText, model: QueryModel | None, count: int) -> tuple[int, ...]:
    """Return the positions of output columns that are unique in the result; nothing if none are certain.

    Args:
        model: the structure of the text; None if it is unclear.
        count: the number of output columns.
    """
    if model is not None and len(model.outputs) != count:
        # A star names columns that it does not know.
        model = None
    start, end = text.without_brackets(0, len(text.tokens))
    select = next((index for index in text.top(start, end) if text.is_word(index, "SELECT")), None)
    if select is None:
        return ()
    operations = list(text.set_operations(start, end))
    if operations:
        distinct = not any(text.is_word(each + 1, "ALL") for each in operations)
        return tuple(range(count)) if distinct else ()
    block = text.block(select, end)
    if text.is_word(select + 1, "DISTINCT") and not text.is_symbol(select + 2, ","):
        return without_determined(model, range(count))
    if block.group is not None:
        return without_determined(model, _of_groups(text, block))
    if model is None or any(is_any_aggregate(text, index) for index in text.top(select, end)):
        return ()
    return _of_rows(model)


def _of_groups(text: QueryText, block: Block) -> tuple[int, ...]:
    """Return the items that are the expressions of GROUP BY."""
    assert block.group is not None
    items = [text.item(*each) for each in text.split(*block.select)]
    if any(item.kind == "star" for item in items) or any(is_generator(text, at) for at in range(*block.select)):
        # A generator makes several rows of a group.
        return ()
    texts = [_words(text, item.start, item.end) for item in items]
    aliases = [None if item.name is None else item.name.lower() for item in items]
    start, end = block.group
    tails = (index for index in text.top(start, end) if text.is_word(index, *_TAILS) or text.begins_windows(index))
    end = next(tails, end)
    if text.is_word(start, "ALL") and start + 1 == end:
        return tuple(place for place, item in enumerate(items) if not _aggregates(text, item.start, item.end))
    found: list[int] = []
    for first, last in text.split(start, end):
        words = _words(text, first, last)
        if len(words) == 1 and words[0].isdecimal():
            found.append(int(words[0]) - 1)
        elif words in texts:
            found.append(texts.index(words))
        elif len(words) == 1 and words[0] in aliases and words[0] not in texts[aliases.index(words[0])]:
            # A column comes before an alias of its name.
            found.append(aliases.index(words[0]))
        else:
            return ()
    return tuple(found)


def _words(text: QueryText, start: int, end: int) -> tuple[str, ...]:
    return tuple(
        token.name.lower() if token.is_name else token.text for token in (text.tokens[i] for i in range(start, end))
    )


def _aggregates(text: QueryText, start: int, end: int) -> bool:
    return any(is_any_aggregate(text, index) for index in range(start, end))


def _of_rows(model: QueryModel) -> tuple[int, ...]:
    """Return columns that determine the row of each table of which a row of the result is made."""
    places: dict[int, Place] = {}
    for number, place in _copies(model).items():
        row = _original(model, place)
        if row is not None and not model.can_be_missing(row.occurrence):
            places[number] = place
    if not _determine(model, list(places.values())):
        return ()
    for number in reversed(list(places)):
        others = [place for each, place in places.items() if each != number]
        if _determine(model, others):
            del places[number]
    return tuple(places)


def _copies(model: QueryModel) -> dict[int, Place]:
    """Return the output columns that are copies of one column, by their positions."""
    outputs = enumerate(model.outputs)
    return {number: origin[0] for number, (_, origin) in outputs if origin is not None and len(origin) == 1}


def _original(model: QueryModel, place: Place) -> Place | None:
    """Return the column of a table of which a column is a copy, as in a SELECT with a window; None for others."""
    copied: Place | None = place
    while copied is not None and copied.occurrence < 0:
        copies = model.made[-copied.occurrence - 1].copies
        copied = next((inner for own, inner in copies if own == copied), None)
    return copied


def _determine(model: QueryModel, columns: Sequence[Place]) -> bool:
    rows = _rows(model, model.result)
    return rows is not None and model.is_total(Ordering(0, tuple(columns), rows))


def _rows(model: QueryModel, relation: int) -> tuple[int, ...] | None:
    """Return the occurrences whose rows make a row of a relation; None for other relations, such as groups."""
    if relation >= 0:
        return (relation,)
    parts = model.made[-relation - 1].parts
    found = [] if parts is None else [_rows(model, part) for part in parts]
    return None if not found or None in found else tuple(row for rows in found for row in rows or ())
