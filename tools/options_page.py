"""Write docs/options.md from the tables of options: ``python tools/options_page.py`` (``--check`` to compare)."""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.formats.options import EVERYWHERE, OPTIONS_OF, Option

PAGE = Path(__file__).parent.parent / "docs" / "options.md"
_HEAD = """# Options of the data source formats

Made from `src/headrace/formats/options.py` by `tools/options_page.py`.

- Names are compared without regard to case, and so are listed values. Other values are refused; numbers have 64 bits.
- A name that is not in the format's table is refused with the nearest one, in Spark, SQL and Python. Spark's own
  options pass: `path`, `checkpointLocation`, `queryName`, `outputMode` and those of asynchronous progress tracking.
- A definition (`CREATE TABLE`, `CREATE QUEUE`, Spark's temporary views) may have the options of all uses, and each use
  takes its own. So do `spark.read`, `spark.readStream` and native sinks: one dict can serve a reader and a writer.
- `CREATE SCAN`, `CREATE STREAM` and `headrace.write_stream` are for one use, and refuse the options of the others.

Spark does not tell a Python source which columns a query uses. Where a table or queue has many, name those that you
need with `.schema("id long, price double")`: only these are then converted and sent to Spark.
"""


def page() -> str:
    """Return the page's text."""
    return "\n".join([_HEAD, *(line for name, options in OPTIONS_OF.items() for line in _section(name, options))])


def _section(name: str, options: tuple[Option, ...]) -> list[str]:
    lines = [f"## Format `{name}`", "", "| option | value | default | used by | meaning |", "|---|---|---|---|---|"]
    for option in options:
        used_by = "all" if option.used_by == EVERYWHERE else ", ".join(option.used_by)
        default = f"`{option.default}`" if option.default else "–"
        kind = option.kind
        value = ", ".join(f"`{value}`" for value in kind.values) if kind.values else kind.short
        meaning = option.meaning.replace("|", chr(92) + "|")
        lines.append(f"| `{option.name}` | {value} | {default} | {used_by} | {meaning} |")
    return [*lines, ""]


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(
            0 if PAGE.read_text() == page() else "docs/options.md is out of date: run python tools/options_page.py"
        )
    PAGE.write_text(page())
