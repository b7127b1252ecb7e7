"""The output of the command line: one interface, with text for people and JSON for programs.

Results go to standard output, errors and progress to standard error. As JSON a command prints one document, or one
line for each item of a sequence.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import json
import re
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import click

from headrace.errors import HeadraceError, own_message, printable, without_passwords
from headrace.model.json_values import plain
from headrace.options.secrets import hide

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console, RenderableType
    from rich.table import Table

Record = Mapping[str, Any]
ShowProgress = Callable[[int, int], None]


class Output(ABC):
    """The output of a command."""

    @abstractmethod
    def record(self, record: Record, *, title: str | None = None) -> None:
        """Print one object with its properties. Nested lists of mappings are shown as tables."""

    @abstractmethod
    def records(self, records: Sequence[Record], *, columns: Sequence[str], nothing: str) -> None:
        """Print objects of one kind in columns. ``nothing`` is the text for an empty list."""

    @abstractmethod
    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], /, **facts: Any) -> None:
        """Print rows under their columns. As JSON: one object with the facts, and the rows as ``rows``."""

    @abstractmethod
    def rows(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Print rows as they arrive, as JSON one line each; return their number."""

    @abstractmethod
    def done(self, text: str, /, **facts: Any) -> None:
        """Print the result of an action: a sentence for people, the facts for programs."""

    def created(self, kind: str, name: str, *, new: bool) -> None:
        """Print that an object of a kind was created, or that it existed before."""
        text = f"Created {kind} {name}." if new else f"{kind.capitalize()} {name} exists."
        self.done(text, **{kind: name}, created=new)

    def dropped(self, kind: str, name: str, *, found: bool, more: str = "", **facts: Any) -> None:
        """Print that an object of a kind was dropped, or that there is none."""
        text = f"Dropped {kind} {name}.{more}" if found else f"There is no {kind} {name}."
        self.done(text, **{kind: name}, dropped=found, **facts)

    @abstractmethod
    def event(self, text: str, /, **facts: Any) -> None:
        """Print one event of a sequence, immediately."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Print a text that is not a result. JSON output omits it."""

    @abstractmethod
    def warning(self, text: str) -> None:
        """Print a warning to standard error."""

    @abstractmethod
    def status(self, text: str) -> contextlib.AbstractContextManager[None]:
        """Show a text on a terminal, from half a second after the begin of the block until its end."""

    @abstractmethod
    def start_waiting(self, text: str) -> None:
        """Show a text on a terminal, from half a second after this call until the first output of the command."""

    @abstractmethod
    def stop_waiting(self) -> None:
        """Remove the text of `start_waiting`."""

    @abstractmethod
    def progress(self, text: str, total: int | None) -> contextlib.AbstractContextManager[ShowProgress]:
        """Show the progress of rows on a terminal until the block ends, with the rate and the remaining time.

        Args:
            total: the number of bytes of all rows; None if it is unknown.

        Returns:
            A function that takes the number of rows so far, and their bytes.
        """

    @abstractmethod
    def live(self) -> contextlib.AbstractContextManager[LiveView]:
        """Open a view that changes in place on a terminal, and prints one line for each state elsewhere."""

    @abstractmethod
    def error(self, problem: BaseException, *, hint: str | None = None, secrets: Iterable[str] = ()) -> None:
        """Print the message of an error, without a traceback, and with ``***`` instead of secrets."""


class LiveView(ABC):
    """A view of a running process. ``seconds_between`` is the recommended interval between two states."""

    seconds_between = 2.0

    @abstractmethod
    def show(self, text: str, picture: RenderableType, /, **facts: Any) -> None:
        """Show the current state: ``picture`` on a terminal, otherwise ``text``, or ``facts`` as JSON."""


class ConsoleOutput(Output):
    """Output for people: tables and sentences, in colour on terminals that support it."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out_console = _console(out or sys.stdout)
        self._err_console = _console(err or sys.stderr)
        self._waiting: _DelayedStatus | None = None

    def record(self, record: Record, *, title: str | None = None) -> None:
        from rich.text import Text

        if title is not None:
            self._out.print(Text(title, style="bold"))
        plain = {key: value for key, value in record.items() if not _is_list_of_records(value)}
        width = max((len(key) for key in plain), default=0)
        for key, value in plain.items():
            shown = _cell(value, lines=True).replace("\n", "\n" + " " * (width + 2))
            self._out.print(Text(f"{key:<{width}}  ", style="cyan") + Text(shown), soft_wrap=True)
        for key, value in record.items():
            if _is_list_of_records(value):
                self._out.print()
                self._out.print(Text(key, style="bold"))
                self._print_table(list(value[0]), [list(item.values()) for item in value])

    def records(self, records: Sequence[Record], *, columns: Sequence[str], nothing: str) -> None:
        if records:
            self._print_table(columns, [[_few(record.get(column)) for column in columns] for record in records])
        else:
            self.note(nothing)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], /, **facts: Any) -> None:
        self._out.print(console_table(columns, rows, lines=True))

    def rows(self, batches: Iterable[pa.RecordBatch]) -> int:
        from headrace.rows.json_rows import with_objects
        from headrace.rows.shown_values import shown_rows

        count = 0
        for batch in batches:
            for start in range(0, batch.num_rows, _ROWS_PER_TABLE):
                part = batch.slice(start, _ROWS_PER_TABLE)
                rows = with_objects(shown_rows(part), part.schema)
                self._print_table(part.schema.names, [list(row.values()) for row in rows])
                count += part.num_rows
        return count

    def done(self, text: str, /, **facts: Any) -> None:
        self._print_text(text)

    def event(self, text: str, /, **facts: Any) -> None:
        self._print_text(text)

    def note(self, text: str) -> None:
        from rich.text import Text

        self._err.print(Text(printable(text), style="dim"), soft_wrap=True)

    def warning(self, text: str) -> None:
        from rich.text import Text

        self._err.print(Text("warning: ", style="bold yellow") + Text(printable(text)), soft_wrap=True)

    @contextlib.contextmanager
    def status(self, text: str) -> Iterator[None]:
        shown = _DelayedStatus(self._err, text)
        try:
            yield
        finally:
            shown.stop()

    def start_waiting(self, text: str) -> None:
        self._waiting = _DelayedStatus(self._err, text)

    def stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.stop()
            self._waiting = None

    @property
    def _out(self) -> Console:
        self.stop_waiting()
        return self._out_console

    @property
    def _err(self) -> Console:
        self.stop_waiting()
        return self._err_console

    @contextlib.contextmanager
    def progress(self, text: str, total: int | None) -> Iterator[ShowProgress]:
        if not self._err.is_terminal:
            yield _show_nothing
            return
        from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

        known = (BarColumn(), DownloadColumn(), TimeRemainingColumn()) if total else ()
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TextColumn("{task.fields[rows]:,} rows"), *known)
        with Progress(*columns, console=self._err, transient=True) as bar:
            task = bar.add_task(printable(text), total=total, rows=0)
            yield lambda rows, size: bar.update(task, completed=size, rows=rows)

    @contextlib.contextmanager
    def live(self) -> Iterator[LiveView]:
        if not self._out.is_terminal:
            yield _Lines(self)
            return
        from rich.live import Live

        with Live(console=self._out, auto_refresh=False) as live:
            yield _Screen(live)

    def error(self, problem: BaseException, *, hint: str | None = None, secrets: Iterable[str] = ()) -> None:
        from rich.text import Text

        text = hide(message_of(problem), secrets)
        self._err.print(Text("error: ", style="bold red") + Text(text), soft_wrap=True)
        if hint is not None:
            self.note(hint)

    def _print_text(self, text: str) -> None:
        from rich.text import Text

        self._out.print(Text(printable(text)), soft_wrap=True)

    def _print_table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self._out.print(console_table(columns, rows))


class _DelayedStatus:
    """A text with a spinner on a terminal, which appears after half a second: most work has ended by then."""

    def __init__(self, console: Console, text: str) -> None:
        self._timer: threading.Timer | None = None
        if console.is_terminal:
            from rich.text import Text

            # Brackets in a text of the user's are no markup.
            self._status = console.status(Text(printable(text)))
            self._timer = threading.Timer(_SECONDS_BEFORE_STATUS, self._status.start)
            self._timer.daemon = True
            self._timer.start()

    def stop(self) -> None:
        """Remove the text."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
            self._status.stop()


class _Lines(LiveView):
    """A live view for outputs other than terminals: one line for each state."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def show(self, text: str, picture: RenderableType, /, **facts: Any) -> None:
        self._output.event(text, **facts)


class _Screen(LiveView):
    """A live view on a terminal."""

    seconds_between = 0.5

    def __init__(self, live: Any) -> None:
        self._live = live

    def show(self, text: str, picture: RenderableType, /, **facts: Any) -> None:
        self._live.update(picture, refresh=True)


class JsonOutput(Output):
    """Output for programs: JSON."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._err = err or sys.stderr

    def record(self, record: Record, *, title: str | None = None) -> None:
        self._write(record)

    def records(self, records: Sequence[Record], *, columns: Sequence[str], nothing: str) -> None:
        self._write(list(records))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], /, **facts: Any) -> None:
        self._write({**facts, "rows": [dict(zip(columns, row, strict=True)) for row in rows]})

    def rows(self, batches: Iterable[pa.RecordBatch]) -> int:
        from headrace.rows.json_rows import with_objects
        from headrace.rows.shown_values import shown_rows

        count = 0
        for batch in batches:
            for row in with_objects(shown_rows(batch), batch.schema):
                self._write(row)
            count += batch.num_rows
        return count

    def done(self, text: str, /, **facts: Any) -> None:
        self._write(facts)

    def event(self, text: str, /, **facts: Any) -> None:
        self._write(facts)

    def note(self, text: str) -> None:
        pass

    def warning(self, text: str) -> None:
        self._err.write(to_json({"warning": text}) + "\n")
        self._err.flush()

    def status(self, text: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def start_waiting(self, text: str) -> None:
        pass

    def stop_waiting(self) -> None:
        pass

    def progress(self, text: str, total: int | None) -> contextlib.AbstractContextManager[ShowProgress]:
        return contextlib.nullcontext(_show_nothing)

    def live(self) -> contextlib.AbstractContextManager[LiveView]:
        return contextlib.nullcontext(_Lines(self))

    def error(self, problem: BaseException, *, hint: str | None = None, secrets: Iterable[str] = ()) -> None:
        facts = {name: hide(text, secrets) for name, text in error_facts(problem).items()}
        self._err.write(to_json({"error": facts}) + "\n")
        self._err.flush()

    def _write(self, value: object) -> None:
        self._out.write(to_json(value) + "\n")
        self._out.flush()


def error_facts(problem: BaseException) -> dict[str, Any]:
    """Return an error as a record: its type, its message, and the parts of a message of headrace."""
    parts = ("problem", "received", "valid", "remedy") if isinstance(problem, HeadraceError) else ()
    details = {part: getattr(problem, part) for part in parts if getattr(problem, part) is not None}
    return {"type": type(problem).__name__, "message": message_of(problem), **details}


def _show_nothing(rows: int, size: int) -> None:
    pass


_ROWS_PER_TABLE = 1000
_MOST_ITEMS = 20
_SECONDS_BEFORE_STATUS = 0.5
_ENDLESS = 1_000_000


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    class PlainConsole(Console):
        def on_broken_pipe(self) -> None:
            # Rich would exit the process. `headrace.cli.main` handles the error, the same for all outputs.
            raise BrokenPipeError

    # Lines in a pipe or a file are never wrapped.
    return PlainConsole(file=stream, highlight=False, width=None if stream.isatty() else _ENDLESS)


def console_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None, lines: bool = False
) -> Table:
    """Return a rich table with numbers aligned to the right. With ``lines``, texts keep their line breaks."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    rows = list(rows)
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for index, name in enumerate(columns):
        numbers = all(isinstance(row[index], int | float | decimal.Decimal | None) for row in rows)
        table.add_column(Text(name), justify="right" if rows and numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value, lines=lines), style="" if value is not None else "dim") for value in row))
    return table


def to_json(value: object) -> str:
    """Return a value as one line of JSON.

    Timestamps and dates are ISO 8601 texts, intervals are seconds, decimals are texts, binary is base64. NaN and the
    infinities, which JSON numbers cannot express, are the texts ``NaN``, ``Infinity`` and ``-Infinity``.
    """
    return printable(json.dumps(plain(value), ensure_ascii=False, allow_nan=False))


def _cell(value: Any, *, lines: bool = False) -> str:
    """Return the text of a table cell, in one line unless ``lines`` is set."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime.datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, Mapping):
        return to_json(value)
    if isinstance(value, list | tuple):
        return ", ".join(_cell(item) for item in value)
    text = str(value)
    if lines and "\n" in text:
        return "\n".join(_cell(line) for line in text.rstrip("\n").split("\n"))
    # Control characters in data must not reach the terminal.
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _few(value: Any) -> Any:
    """Return a value with the first of many items: the columns of one wide table would make all lines as wide."""
    if not isinstance(value, list | tuple) or len(value) <= _MOST_ITEMS:
        return value
    return [*value[:_MOST_ITEMS], f"and {len(value) - _MOST_ITEMS} more"]


def _is_list_of_records(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(item, Mapping) for item in value)


_SPARK_DETAILS = re.compile(r"\n(?:JVM stacktrace:|=== Streaming Query ===)")


def message_of(problem: BaseException) -> str:
    """Return the message and the notes of an error, without Spark's stack traces and plans, and without passwords."""
    if isinstance(problem, HeadraceError):
        text = str(problem)
    elif isinstance(problem, click.ClickException):
        text = problem.format_message()
    else:
        said = _SPARK_DETAILS.split(str(problem), maxsplit=1)[0].strip()
        # The packages of stores do not hide theirs.
        said = without_passwords(said)
        text = own_message(said) or (f"{type(problem).__name__}: {said}" if said else type(problem).__name__)
    return printable("\n".join((text, *getattr(problem, "__notes__", ()))))
