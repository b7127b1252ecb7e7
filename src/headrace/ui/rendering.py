"""Templates, and the texts of numbers, sizes, times and cells on pages."""

from __future__ import annotations

import datetime
import hashlib
import math
import time
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from headrace.support.extras import PAGE, check_extras

_CELL_LENGTH = 200
_KIB = 1024
MISSING = "–"
"""The text of an unknown value."""


class Templates:
    """The templates of the pages.

    Raises:
        MissingDependencyError: Jinja is not installed.
    """

    def __init__(self) -> None:
        check_extras("the web page", PAGE)
        import jinja2

        self._environment = jinja2.Environment(
            loader=jinja2.PackageLoader("headrace.ui"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(
            number=number, size=size, ago=ago, duration=duration, cell=cell, rate=rate, percent=percent, moment=moment
        )
        self._environment.globals.update(link=link, asset=asset)

    def page(self, template: str, values: Mapping[str, Any]) -> bytes:
        """Return a whole page."""
        return self._environment.get_template(template).render(values).encode("utf-8", "replace")

    def live_part(self, template: str, values: Mapping[str, Any]) -> str:
        """Return the block ``live`` of a page; an empty text if it has none."""
        # Older stubs of Jinja do not know the blocks of a template.
        found: Any = self._environment.get_template(template)
        block = found.blocks.get("live")
        return "" if block is None else "".join(block(found.new_context(dict(values))))


def link(path: str, **parameters: object) -> str:
    """Return a URL of this server."""
    given = {name: value for name, value in parameters.items() if value is not None and value != ""}
    return f"{path}?{urlencode(given)}" if given else path


_versions: dict[str, str] = {}


def asset(name: str) -> str:
    """Return the URL of a static file. It changes with the content, so browsers keep the file."""
    if name not in _versions:
        content = resources.files("headrace.ui").joinpath("static", name).read_bytes()
        _versions[name] = hashlib.sha256(content).hexdigest()[:12]
    return f"/static/{name}?v={_versions[name]}"


def static_files() -> dict[str, bytes]:
    """Return the static files by name."""
    folder = resources.files("headrace.ui").joinpath("static")
    return {Path(each.name).name: each.read_bytes() for each in folder.iterdir() if each.is_file()}


def number(value: float | None) -> str:
    """Return a number with separators of thousands; decimals only for small ones."""
    if value is None:
        return MISSING
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, float) and abs(value) < 10 and value != int(value):
        return f"{value:.1f}"
    return f"{round(value):,}"


def rate(value: float | None) -> str:
    """Return rows for a second."""
    return MISSING if value is None else f"{number(value)} rows/s"


def percent(part: float, whole: float) -> float:
    """Return a part of a whole in percent, between 0 and 100."""
    return 0.0 if whole <= 0 else round(max(0.0, min(100.0, 100.0 * part / whole)), 2)


def size(value: float | None) -> str:
    """Return a number of bytes with a binary unit."""
    if value is None:
        return MISSING
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < _KIB:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 10 else f"{value:.1f} {unit}"
        value /= _KIB
    return f"{value:,.1f} TiB"


def duration(seconds: float | None) -> str:
    """Return a duration in its largest unit."""
    if seconds is None:
        return MISSING
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds > 0 else "0 s"
    for limit, length, unit in ((60, 1, "s"), (3600, 60, "min"), (2 * 86400, 3600, "h")):
        if seconds < limit:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"


def ago(seconds: float | None) -> str:
    """Return the time since a time in seconds since 1970."""
    if seconds is None:
        return "never"
    passed = time.time() - seconds
    return "just now" if passed < 2 else f"{duration(passed)} ago"


def moment(seconds: float) -> str:
    """Return a time in seconds since 1970 as date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def cell(value: Any) -> str:
    """Return a value of a row as a short text."""
    if isinstance(value, bytes):
        text = "0x" + value[: _CELL_LENGTH // 2].hex()
    elif isinstance(value, datetime.datetime):
        text = value.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
    elif isinstance(value, float):
        text = repr(value) if not value.is_integer() or abs(value) >= 1e15 else f"{value:.1f}"
    else:
        text = str(value)
    return text if len(text) <= _CELL_LENGTH else text[:_CELL_LENGTH] + "…"
