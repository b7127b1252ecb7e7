"""Write docs/options.md from the tables of options: ``python tools/options_page.py`` (``--check`` to compare)."""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.formats.format import Format
from headrace.formats.registry import FORMATS
from headrace.options.option import EVERYWHERE, Option
from headrace.streaming_sql import stream_options

PAGE = Path(__file__).parent.parent / "docs" / "options.md"
_HEAD = """# Options of the data source formats and of streams

Made by `tools/options_page.py` from `options.py` and `FORMAT/options.py` in `src/headrace/formats`, and from
`src/headrace/streaming_sql/stream_options.py`.

- The case of names and of listed values does not matter. Numbers have 64 bits. Other values are errors.
- An unknown name is an error in Spark, SQL and Python. The error suggests the nearest name. Spark's own options are
  valid: `path`, `checkpointLocation`, `queryName`, `outputMode` and the options of asynchronous progress tracking.
- A definition (`CREATE TABLE`, `CREATE QUEUE`, Spark's temporary views) may have the options of all uses. Each use
  ignores the options of the others. The same holds for `spark.read`, `spark.readStream` and native sinks, so one dict
  can serve a reader and a writer.
- `CREATE SCAN`, `CREATE STREAM` and `headrace.write_stream` have one use. An option of another use is an error.

Spark does not pass the columns that a query uses to a Python source. If a table or queue has many columns, name the
columns that you need with `.schema("id long, price double")`. Only these columns are then converted and sent to Spark.
"""


def page() -> str:
    """Return the page's text."""
    return "\n".join([_HEAD, *(line for each in FORMATS.values() for line in _section(each)), *_streams()])


def _section(format: Format) -> list[str]:
    lines = [
        f"## Format `{format.name}`",
        "",
        "| option | value | default | used by | meaning |",
        "|---|---|---|---|---|",
    ]
    for option in format.options:
        used_by = "all" if option.used_by == EVERYWHERE else ", ".join(option.used_by)
        name, value, default, meaning = _cells(option)
        lines.append(f"| {name} | {value} | {default} | {used_by} | {meaning} |")
    return [*lines, ""]


def _streams() -> list[str]:
    lines = ["## `CREATE STREAM`", "", "Other options of a stream are those of its sink.", ""]
    lines += ["| option | value | default | meaning |", "|---|---|---|---|"]
    return [*lines, *(f"| {' | '.join(_cells(option))} |" for option in stream_options.OPTIONS), ""]


def _cells(option: Option) -> tuple[str, str, str, str]:
    """Return the name of an option, its values, its default and its meaning."""
    kind = option.kind
    value = ", ".join(f"`{value}`" for value in kind.values) if kind.values else kind.short
    default = f"`{option.default}`" if option.default else "–"
    return f"`{option.name}`", value, default, option.meaning.replace("|", chr(92) + "|")


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(
            0 if PAGE.read_text() == page() else "docs/options.md is out of date: run python tools/options_page.py"
        )
    PAGE.write_text(page())
