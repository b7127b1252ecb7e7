"""The commands of the prompt of ``headrace sql`` that are no statements: help, exit, ``\\d`` and ``\\watch``."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import SqlError

WATCH_SECONDS = 2.0
_LONGEST_WATCH_SECONDS = 86_400.0

HELP = r"""
  statement;          run a statement; it can have several lines, and ends with ;
  \d                  list the tables, scans and streams of the workspace
  \d NAME             show the columns of a table or scan, or the state of a stream
  \watch [SECONDS]    run the last statement again every 2 seconds, or SECONDS, until Ctrl-C
  help, \?            show this text
  exit, quit, \q      end the prompt and its streams; Ctrl-D does the same
  Tab                 complete a word, a table or a column
  Ctrl-C              cancel the running statement, or remove the typed text

For example:
  SHOW STREAMS;
  CREATE TABLE orders USING headrace OPTIONS (store = 'shop', table = 'orders');
  SELECT * FROM orders LIMIT 3;
"""


@dataclass(frozen=True)
class Help:
    """Show the commands of the prompt."""


@dataclass(frozen=True)
class Exit:
    """End the prompt."""


@dataclass(frozen=True)
class Describe:
    """Describe a table, scan or stream; list them if ``name`` is None."""

    name: str | None


@dataclass(frozen=True)
class Watch:
    """Run the last statement again every ``seconds``."""

    seconds: float


Command = Help | Exit | Describe | Watch
COMMANDS = ("\\d", "\\watch", "\\?", "\\q", "exit", "help", "quit")


def parse_command(text: str) -> Command | None:
    """Return the command in a text; None if the text is a statement.

    Raises:
        SqlError: the command is unknown, or has an invalid argument.
    """
    words = text.strip().removesuffix(";").split()
    if not words:
        return None
    word, arguments = words[0].lower(), words[1:]
    if word in ("help", "\\?", "\\h") and not arguments:
        return Help()
    if word in ("exit", "quit", "\\q") and not arguments:
        return Exit()
    if word == "\\d" and len(arguments) <= 1:
        return Describe(arguments[0].strip("`") if arguments else None)
    if word == "\\watch" and len(arguments) <= 1:
        return Watch(_seconds(arguments[0]) if arguments else WATCH_SECONDS)
    if word.startswith("\\"):
        raise SqlError("no such command of the prompt", received=text.strip(), valid=COMMANDS, remedy="help lists them")
    return None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= _LONGEST_WATCH_SECONDS:
        raise SqlError("\\watch takes a number of seconds", received=text, valid="0.1 to 86400")
    return seconds
