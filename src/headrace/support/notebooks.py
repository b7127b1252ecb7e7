"""Tables of HTML for notebooks: the forms of ``_repr_html_``.

The colours are those of the notebook, so that they can be read in dark and in light ones.
"""

from __future__ import annotations

import html
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from headrace.support.time_limits import within

_MOST_ROWS = 20
_MOST_CHARACTERS = 300
_SECONDS = 2.0
_log = logging.getLogger("headrace")


def shown(title: str, make: Callable[[], str], known: Mapping[str, object] | None = None) -> str | None:
    """Return the HTML that a function makes from the answer of a store; None if it fails.

    A notebook then shows the text of ``repr``. A store that does not answer within 2 seconds is not waited for: the
    notebook then shows the title and what is known without it.
    """
    try:
        return within(_SECONDS, make)
    except TimeoutError:
        return facts(title, known or {}) + note(f"The store has not answered within {_SECONDS:g} seconds.")
    except Exception as error:
        _log.debug("an object cannot be shown as HTML: %s", error)
        return None


def note(text: str) -> str:
    """Return a line of text."""
    return f"<div>{_text(text)}</div>"


def facts(title: str, values: Mapping[str, object]) -> str:
    """Return a title, and names with their values."""
    lines = (f"<tr><th style='text-align:left'>{_text(name)}</th>{_cell(value)}</tr>" for name, value in values.items())
    return f"<div><strong>{_text(title)}</strong></div><table>{''.join(lines)}</table>"


def rows(columns: Sequence[str], values: Iterable[Sequence[object]], count: int) -> str:
    """Return the first rows of a table, and the number of the others.

    Args:
        count: the number of all rows.
    """
    if not count:
        return ""
    head = "".join(f"<th>{_text(name)}</th>" for name in columns)
    shown = [row for row, _ in zip(values, range(_MOST_ROWS), strict=False)]
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in shown)
    more = f"<div>and {count - len(shown):,} more</div>" if count > len(shown) else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(value: object) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"<td style='text-align:{'right' if number else 'left'}'>{_text(value)}</td>"


def _text(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = str(value)
    shown = text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"
    return html.escape(shown.encode(errors="replace").decode())
