"""The lines that a person types at the prompt of ``headrace sql``, with completion and a history."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.prompt_commands import parse_command
from headrace.errors import SqlError
from headrace.sql_text.lexer import hide_secrets, tokenize

if TYPE_CHECKING:
    from headrace.cli.prompt_completion import KnownNames

PROMPT = "headrace> "
MORE_PROMPT = "       -> "
_HISTORY_LINES = 10_000


def is_complete(text: str) -> bool:
    """Return whether a text can be run: it is a command, ends with a semicolon, or has only comments."""
    try:
        if parse_command(text) is not None:
            return True
    except SqlError:
        # The error of the command is shown when it is run.
        return True
    try:
        tokens = tokenize(text).tokens
    except SqlError:
        # A string or comment continues in the next line.
        return False
    return not tokens or tokens[-1].is_symbol(";")


class PromptLines(ABC):
    """Reads statements from a terminal."""

    @abstractmethod
    def read(self) -> str:
        """Return the next statements or command.

        Raises:
            EOFError: Ctrl-D.
            KeyboardInterrupt: Ctrl-C; the typed text is discarded.
        """

    def close(self) -> None:  # noqa: B027 (prompt_toolkit stores each statement at once)
        """Store the history."""


class PlainLines(PromptLines):
    """Lines of Python's own ``input``, with the history of readline where it exists."""

    def __init__(self) -> None:
        self._history = _load_readline(history_file("sql_history"))

    def read(self) -> str:
        text = ""
        while True:
            text += input(MORE_PROMPT if text else PROMPT) + "\n"
            if is_complete(text):
                if self._history is not None and hide_secrets(text) != text:
                    _replace_last_lines(text)
                return text

    def close(self) -> None:
        if self._history is not None:
            import readline

            readline.write_history_file(self._history)


class ToolkitLines(PromptLines):
    """Lines of prompt_toolkit: several lines are edited as one text, and Tab completes names."""

    def __init__(self, names: KnownNames) -> None:
        """Set up the terminal.

        Raises:
            ImportError: prompt_toolkit is not installed.
        """
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import CompleteEvent, Completer, Completion
        from prompt_toolkit.document import Document
        from prompt_toolkit.history import FileHistory, History, InMemoryHistory
        from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

        from headrace.cli.prompt_completion import completions

        class NamesCompleter(Completer):
            def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
                length, words = completions(document.text_before_cursor, names)
                for word in words:
                    yield Completion(word, start_position=-length)

        class SafeHistory(FileHistory):
            def store_string(self, string: str) -> None:
                super().store_string(hide_secrets(string))

        keys = KeyBindings()

        @keys.add("enter")
        def _enter(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if is_complete(buffer.text):
                buffer.validate_and_handle()
            else:
                buffer.insert_text("\n")

        file = history_file("sql_prompt_history")
        history: History = SafeHistory(file) if file is not None else InMemoryHistory()
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation=MORE_PROMPT,
            completer=NamesCompleter(),
            # A store can be slow, and typing goes on meanwhile.
            complete_in_thread=True,
            complete_while_typing=False,
            history=history,
            key_bindings=keys,
        )

    def read(self) -> str:
        return self._session.prompt()


def open_lines(names: KnownNames) -> PromptLines:
    """Return lines with completion if prompt_toolkit is installed and the terminal can show them."""
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        try:
            return ToolkitLines(names)
        except ImportError:
            pass
    return PlainLines()


def history_file(name: str) -> Path | None:
    """Return a file of the user's history, which only the user can read; None without a writable directory."""
    try:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        file = state / "headrace" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
    except (OSError, RuntimeError):
        return None
    return file


def _replace_last_lines(text: str) -> None:
    """Replace the lines of a text at the end of readline's history by one line without secrets."""
    import readline

    for _ in range(len([line for line in text.splitlines() if line])):
        readline.remove_history_item(readline.get_current_history_length() - 1)
    readline.add_history(" ".join(hide_secrets(text).split()))


def _load_readline(file: Path | None) -> Path | None:
    """Load the lines of earlier sessions. Return the history file; None without readline or a file."""
    try:
        import readline
    except ImportError:
        return None
    if file is None:
        return None
    try:
        readline.read_history_file(file)
    except OSError:
        return None
    readline.set_history_length(_HISTORY_LINES)
    return file
