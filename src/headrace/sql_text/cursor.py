"""Reading the tokens of one statement: keywords, names, options, and errors with positions."""

from __future__ import annotations

from typing import Any

from headrace.errors import SqlError
from headrace.sql_text.lexer import Token, TokenKind, error_at, hide_secrets, option_key, string_value
from headrace.sql_text.script import Name, ScriptPart

QUERY_STARTS = ("SELECT", "WITH", "FROM", "VALUES", "TABLE")
_SHOWN = 200


class Cursor:
    """A position in the tokens of a statement.

    Methods ``at_…`` test the current tokens. Methods ``take_…`` also move past them if the test succeeds, and return
    the result of the test. Methods ``need_…`` raise `SqlError` if the test fails.

    Args:
        original: the script, for messages.
        script: the script with its ``//`` comments blanked.
        tokens: the tokens of the statement, at least one.
    """

    def __init__(self, original: str, script: str, tokens: tuple[Token, ...]) -> None:
        self._original = original
        self._script = script
        self._tokens = tokens
        self._index = 0

    def over(self, tokens: tuple[Token, ...]) -> Cursor:
        """Return a cursor over some tokens of this statement, at least one."""
        return Cursor(self._original, self._script, tokens)

    # -- tokens ---------------------------------------------------------------------------------------

    def peek(self, ahead: int = 0) -> Token | None:
        index = self._index + ahead
        return self._tokens[index] if index < len(self._tokens) else None

    def left(self) -> tuple[Token, ...]:
        """Return the tokens from the current one on."""
        return self._tokens[self._index :]

    def at_words(self, *words: str) -> bool:
        """Return whether the next tokens are these keywords."""
        tokens = self._tokens[self._index : self._index + len(words)]
        return len(tokens) == len(words) and all(token.is_word(word) for token, word in zip(tokens, words, strict=True))

    def at_symbol(self, symbol: str) -> bool:
        token = self.peek()
        return token is not None and token.is_symbol(symbol)

    def take(self) -> Token:
        """Return the current token, which must exist, and move past it."""
        token = self._tokens[self._index]
        self._index += 1
        return token

    def take_words(self, *words: str) -> bool:
        if self.at_words(*words):
            self._index += len(words)
            return True
        return False

    def take_symbol(self, symbol: str) -> bool:
        if self.at_symbol(symbol):
            self._index += 1
            return True
        return False

    def need_words(self, *words: str) -> None:
        if not self.take_words(*words):
            raise self.expected(" ".join(words))

    def need_symbol(self, symbol: str) -> None:
        if not self.take_symbol(symbol):
            raise self.expected(symbol)

    def need_end(self) -> None:
        if self.peek() is not None:
            raise self.expected("the end of the statement (;)")

    def need_string(self, what: str) -> str:
        token = self.peek()
        if token is None or token.kind is not TokenKind.STRING:
            raise self.expected(what)
        self._index += 1
        return self.string(token)

    def string(self, token: Token) -> str:
        """Return the value of a string token."""
        try:
            return string_value(token)
        except ValueError as error:
            raise self.error(f"the string contains an invalid character: {error}", token) from None

    # -- names ----------------------------------------------------------------------------------------

    def at_name(self) -> bool:
        token = self.peek()
        return token is not None and token.is_name

    def need_name(self, what: str) -> Name:
        token = self.peek()
        if token is None or not token.is_name or token.text == "``":
            raise self.expected(f"the name of {what}")
        parts = [token.name]
        self._index += 1
        end = token.end
        while (dot := self.peek()) is not None and dot.is_symbol(".") and (part := self.peek(1)) and part.is_name:
            parts.append(part.name)
            self._index += 2
            end = part.end
        return Name(tuple(parts), self.part(token.start, end))

    def need_simple_name(self, what: str) -> Name:
        return self.without_dots(self.need_name(what), what)

    def without_dots(self, name: Name, what: str) -> Name:
        if len(name.parts) > 1:
            raise error_at(f"the name of {what} can have no dots", self._original, name.part.start, received=str(name))
        return name

    def need_names(self, what: str) -> tuple[str, ...]:
        """Read ``(name, …)``."""
        self.need_symbol("(")
        names = [str(self.need_simple_name(what))]
        while self.take_symbol(","):
            names.append(str(self.need_simple_name(what)))
        self.need_symbol(")")
        return tuple(names)

    def take_alias(self, before: str) -> str | None:
        """Read ``[AS] alias``; return None if there is none. ``before`` is the word that then follows."""
        if self.take_words("AS") or (self.at_name() and not self.at_words(before)):
            return str(self.need_simple_name("the alias"))
        return None

    def need_store_name(self, what: str) -> Name:
        """Read a name inside a store: any text in quotes, or words with dots and dashes, such as a tunnel's id."""
        token = self.peek()
        if token is None or token.kind is TokenKind.SYMBOL:
            raise self.expected(f"the name of {what}")
        text, index = self.key()
        if not text:
            raise self.expected(f"the name of {what}")
        part = self.part(token.start, self._tokens[index - 1].end)
        self._index = index
        return Name((text,), part)

    # -- parts of the text ----------------------------------------------------------------------------

    def part(self, start: int, end: int) -> ScriptPart:
        return ScriptPart(self._script, start, end)

    @property
    def start(self) -> int:
        """The offset of the current token; at the end of the statement, of the last token."""
        return self._tokens[min(self._index, len(self._tokens) - 1)].start

    @property
    def before(self) -> Token:
        """The token before the current one, which must exist."""
        return self._tokens[self._index - 1]

    @property
    def whole(self) -> ScriptPart:
        return self.part(self._tokens[0].start, self._tokens[-1].end)

    def rest(self) -> ScriptPart:
        """Return the rest of the statement, and move to its end."""
        part = self.part(self._tokens[self._index].start, self._tokens[-1].end)
        self._index = len(self._tokens)
        return part

    def rest_or_end(self) -> None:
        """Move to the end of the statement."""
        self._index = len(self._tokens)

    def at_query(self, ahead: int = 0) -> bool:
        while (token := self.peek(ahead)) is not None and token.is_symbol("("):
            ahead += 1
        return token is not None and token.is_word(*QUERY_STARTS)

    def query(self) -> ScriptPart:
        if not self.at_query():
            raise self.expected("a query")
        return self.rest()

    def parenthesised(self) -> str:
        """Return the text inside of ``( … )``, and move past it."""
        opening = self._tokens[self._index]
        depth = 0
        while (token := self.peek()) is not None:
            self._index += 1
            depth += token.is_symbol("(") - token.is_symbol(")")
            if depth == 0:
                return self._script[opening.end : token.start].strip()
        raise self.error("this parenthesis is not closed", opening)

    # -- options --------------------------------------------------------------------------------------

    def options(self) -> dict[str, str]:
        """Read ``OPTIONS (key = value, …)``; return an empty dict if the clause is missing."""
        if not self.take_words("OPTIONS"):
            return {}
        self.need_symbol("(")
        options: dict[str, str] = {}
        seen: set[str] = set()
        if self.take_symbol(")"):
            return options
        while True:
            start = self.peek()
            key, index = self.key()
            if not key or start is None:
                raise self.expected("the name of an option")
            if key.lower() in seen:
                raise self.error("the option occurs twice", start, received=key)
            seen.add(key.lower())
            self._index = index
            self.take_symbol("=")
            options[key] = self._option_value(key)
            if self.take_symbol(")"):
                return options
            if not self.take_symbol(","):
                raise self.expected("a comma or )")

    def key(self) -> tuple[str, int]:
        """Return the dotted name at the current token, and the index of the token after it."""
        try:
            return option_key(self._tokens, self._index)
        except ValueError as error:
            raise self.error(f"invalid name: {error}", self._tokens[self._index]) from None

    def take_key(self) -> str:
        """Return the dotted name at the current token, and move past it; '' if there is no name."""
        key, self._index = self.key()
        return key

    def _option_value(self, key: str) -> str:
        token = self.peek()
        sign = ""
        if token is not None and token.is_symbol("-"):
            sign, token = "-", self.peek(1)
        if token is not None and token.kind is TokenKind.NUMBER:
            self._index += 2 if sign else 1
            return sign + token.text
        if not sign and token is not None and (token.kind is TokenKind.STRING or token.is_word("TRUE", "FALSE")):
            self._index += 1
            return self.string(token) if token.kind is TokenKind.STRING else token.text.lower()
        raise self.expected(f"the value of option {key}: a text in quotes, a number, true or false")

    # -- errors ---------------------------------------------------------------------------------------

    def refused(self, problem: str, start: int, **details: Any) -> SqlError:
        """Return an error at an offset of the script; ``details`` are those of `SqlError`."""
        return error_at(problem, self._original, start, **details)

    def error(self, problem: str, token: Token, *, received: str | None = None, valid: str | None = None) -> SqlError:
        """Return the error for a token."""
        shown = None if received is None else _short(received)
        return error_at(problem, self._original, token.start, received=shown, valid=valid)

    def expected(self, what: str) -> SqlError:
        """Return the error that ``what`` is missing at the current token."""
        token = self.peek()
        offset = self._tokens[-1].end if token is None else token.start
        received = "the end of the statement" if token is None else _short(token.text)
        if token is not None and hide_secrets(self._original)[token.start : token.end] != token.text:
            received = "a text that may be secret"
        return error_at(f"expected {what}", self._original, offset, received=received)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"
