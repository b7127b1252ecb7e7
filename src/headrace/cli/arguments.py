"""Arguments of several commands: columns, numbers by partition, file formats."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import click

from headrace.cli.app import parse_pairs
from headrace.errors import OptionError

FORMAT_NAMES = ("csv", "jsonl", "parquet", "arrow")
TYPES_HELP = (
    "Types: boolean, byte, short, int, long, float, double, decimal(p,s), string, binary, date, timestamp, "
    "array<…>, map<…,…>, struct<name:…,…>. 'not null' can follow a type."
)
_NEXT_COLUMN = re.compile(r",(?=[^,=<>()]+=)")


def format_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--format``, the format of a file with rows."""
    return click.option(
        "-f",
        "--format",
        "file_format",
        type=click.Choice(FORMAT_NAMES),
        help="The file's format; by default from its suffix.",
    )(command)


null_option = click.option(
    "--null",
    "nulls",
    multiple=True,
    metavar="TEXT",
    help="In CSV, this text without quotes is null, such as NA; can be repeated. An empty field is always null.",
)


def names_option(*names: str, help: str, required: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return an option that takes names: separated by commas, or each with an option of its own."""
    return click.option(*names, multiple=True, required=required, metavar="NAME,…", help=help, callback=_some_names)


def _some_names(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Check that texts have names. A shell makes an empty text of a variable that is not set."""
    for text in texts:
        if not text.strip(" ,"):
            raise click.BadParameter(f"{text!r} has no name.", context, option)
    return texts


def listed(texts: Sequence[str], known: Collection[str] = ()) -> list[str]:
    """Return the names that texts such as ``a,b`` list. A text that is a known name is one name, with its commas."""
    parts = [part for text in texts for part in ([text] if text in known else map(str.strip, text.split(",")))]
    return [part for part in parts if part]


def column_types(columns: tuple[str, ...]) -> dict[str, str]:
    """Parse ``NAME=TYPE`` texts, also several in one text with commas.

    The last equals sign separates a name from its type, because a name can contain one.
    """
    types: dict[str, str] = {}
    for text in (each for column in columns for each in _columns_in(column)):
        name, equals, kind = text.rpartition("=")
        if not equals or name in types:
            problem = "a column occurs twice" if equals else "a column is written NAME=TYPE"
            raise OptionError(problem, received=repr(text))
        types[name] = kind
    return types


def _columns_in(text: str) -> list[str]:
    # Types have commas in brackets, but no equals signs. A name can contain a comma.
    parts = [part.strip() for part in _NEXT_COLUMN.split(text)]
    return parts if all("=" in part for part in parts) else [text]


def whole_number(text: str, option: str) -> int:
    """Parse a whole number."""
    try:
        return int(text)
    except ValueError:
        raise OptionError(f"option {option} takes whole numbers", received=repr(text)) from None


def row_numbers(pairs: tuple[str, ...], option: str) -> dict[int, int]:
    """Parse ``PARTITION=ROW`` texts."""
    return {
        whole_number(partition, option): whole_number(row, option)
        for partition, row in parse_pairs(pairs, option).items()
    }
