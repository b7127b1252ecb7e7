"""The lexer: text to tokens of Spark SQL, with ``//`` comments in addition."""

from __future__ import annotations

import enum
import hashlib
import re
import sys
from dataclasses import dataclass
from typing import Any

from headrace.errors import SqlError
from headrace.options.secrets import is_secret_name, secrets_inside


class TokenKind(enum.Enum):
    """The kind of a token. ``QUOTED`` is a name in backquotes."""

    WORD = "word"
    QUOTED = "quoted name"
    STRING = "string"
    NUMBER = "number"
    SYMBOL = "symbol"


@dataclass(frozen=True, slots=True)
class Token:
    """A token: ``text`` as written, from ``start`` to ``end`` (offsets in characters)."""

    kind: TokenKind
    text: str
    start: int
    end: int

    def is_word(self, *words: str) -> bool:
        """Return whether the token is one of these keywords (in capitals), in any case."""
        return self.kind is TokenKind.WORD and self.text.upper() in words

    def is_symbol(self, symbol: str) -> bool:
        return self.kind is TokenKind.SYMBOL and self.text == symbol

    @property
    def is_name(self) -> bool:
        return self.kind in (TokenKind.WORD, TokenKind.QUOTED)

    @property
    def name(self) -> str:
        """The name, without backquotes."""
        return self.text[1:-1].replace("``", "`") if self.kind is TokenKind.QUOTED else self.text


@dataclass(frozen=True)
class Lexed:
    """The tokens of a text, and the text with its ``//`` comments replaced by spaces, so that offsets stay valid."""

    text: str
    tokens: tuple[Token, ...]


_PATTERN = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<dashes>--(?:\\\n|[^\r\n])*)
    | (?P<slashes>//[^\n]*)
    | (?P<block>/\*)
    | (?P<STRING>[rR]'[^']*'|[rR]"[^"]*"|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    | (?P<QUOTED>`(?:[^`]|``)*`)
    | (?P<NUMBER>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\w*)
    | (?P<WORD>\w+)
    | (?P<SYMBOL>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_MOST_PARTS = 64
_SETTING = re.compile(r"\s+([\w.`-]+)[\s=]+([^;]*)")
_LITERALS = frozenset({TokenKind.STRING, TokenKind.NUMBER})
_BARE_VALUE = re.compile(r"[^\s,;]+")
_BLOCK_EDGE = re.compile(r"/\*|\*/")
# Spark reads the rest of these statements verbatim. It can contain unquoted addresses such as hdfs://host/dir.
_VERBATIM_STATEMENTS = frozenset({"SET", "ADD", "LIST"})


def tokenize(text: str) -> Lexed:
    """Return the tokens of a text, without white space and comments.

    Raises:
        SqlError: a string, a quoted name or a comment has no end, or the text has a lone surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        shown = text.encode(errors="replace").decode()
        raise error_at("a lone surrogate is not a character", shown, error.start) from None
    tokens, comments, endless = _cut(text)
    if endless is not None:
        raise error_at(f"the {text[endless]} at this position has no end", text, endless)
    return Lexed(_blank(text, comments), tuple(tokens))


def fingerprint(text: str) -> str:
    """Return a hash of a text. White space and comments do not change it."""
    words = "\n".join(token.text for token in tokenize(text).tokens)
    return hashlib.sha256(words.encode()).hexdigest()


def error_at(problem: str, text: str, offset: int, **details: Any) -> SqlError:
    """Return an error with a position. The values of secret options in the shown line are replaced by stars."""
    return SqlError(problem, text=hide_secrets(text), offset=offset, **details)


def _cut(text: str) -> tuple[list[Token], list[tuple[int, int]], int | None]:
    """Return the tokens, the ranges of ``//`` comments, and the start of a string or comment without an end."""
    tokens: list[Token] = []
    comments: list[tuple[int, int]] = []
    verbatim = False
    position = 0
    while position < len(text):
        match = _PATTERN.match(text, position)
        assert match is not None, "the pattern matches any character"
        kind, end = match.lastgroup, match.end()
        if kind == "block":
            block_end = _end_of_block_comment(text, position)
            if block_end is None:
                return tokens, comments, position
            end = block_end
        elif kind == "slashes":
            if verbatim and text[position - 1] not in " \t\r\n":
                end = position + 1
                tokens.append(Token(TokenKind.SYMBOL, "/", position, end))
            else:
                comments.append((position, end))
        elif kind not in ("space", "dashes"):
            if kind == "SYMBOL" and match[0] in "'\"`":
                return tokens, comments, position
            if not tokens or tokens[-1].is_symbol(";"):
                verbatim = match[0].upper() in _VERBATIM_STATEMENTS
            tokens.append(Token(TokenKind[str(kind)], match[0], position, end))
        position = end
    return tokens, comments, None


def _end_of_block_comment(text: str, start: int) -> int | None:
    depth = 0
    for edge in _BLOCK_EDGE.finditer(text, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    return None


def _blank(text: str, spans: list[tuple[int, int]]) -> str:
    pieces: list[str] = []
    position = 0
    for start, end in spans:
        pieces += (text[position:start], " " * (end - start))
        position = end
    return "".join((*pieces, text[position:]))


_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2}|.)|''|\"\"", re.DOTALL)


def string_value(token: Token) -> str:
    """Return the value of a string token, by Spark's rules for escapes.

    Raises:
        ValueError: an escape is not a character.
    """
    quoted = token.text
    if quoted[0] in "rR":
        return quoted[2:-1]
    quote = quoted[0]

    def replace(match: re.Match[str]) -> str:
        escape = match[1]
        if escape is None:
            return quote if match[0][0] == quote else match[0]
        if len(escape) == 1:
            return _ESCAPES.get(escape, escape)
        code = int(escape, 8) if escape.isdigit() else int(escape[1:], 16)
        if code > sys.maxunicode:
            raise ValueError(f"\\{escape} is not a character of Unicode")
        return chr(code)

    value = _ESCAPE.sub(replace, quoted[1:-1])
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("a lone surrogate") from None
    return value


def quote(value: str) -> str:
    """Return a value as a string literal in single quotes, the inverse of `string_value`."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def quote_name(name: str) -> str:
    """Return a name in backquotes."""
    return "`" + name.replace("`", "``") + "`"


def option_key(tokens: tuple[Token, ...], index: int) -> tuple[str, int]:
    """Return the dotted option name at a token, and the index of the token after it; '' if there is no name.

    A string or a quoted name is also a name. Dashes and dots without spaces around them belong to the name.
    """
    if index >= len(tokens) or tokens[index].kind is TokenKind.SYMBOL:
        return "", index
    first = tokens[index]
    if first.kind is TokenKind.STRING:
        return string_value(first), index + 1
    key, end = first.name, first.end
    index += 1
    while index < len(tokens) and tokens[index].start == end:
        token = tokens[index]
        if not (token.text in ".-" or token.kind in (TokenKind.WORD, TokenKind.QUOTED, TokenKind.NUMBER)):
            break
        key, end = key + token.name, token.end
        index += 1
    return key, index


def hide_secrets(text: str) -> str:
    """Return a text with stars, of the same length, instead of secrets.

    Secrets are the values of secret options, also of several literals and in SET, and passwords inside addresses.
    """
    tokens, _, endless = _cut(text)
    shown = list(text)

    def hide(start: int, end: int) -> None:
        shown[start:end] = _stars(text[start:end])

    secret = False
    for index, token in enumerate(tokens):
        # Spark joins adjacent literals, and || joins them, too.
        joined = secret and (tokens[index - 1].kind in _LITERALS or tokens[index - 1].is_symbol("|"))
        secret = secret and token.is_symbol("|")
        if token.kind in _LITERALS and (joined or _follows_secret_key(tokens, index)):
            secret = True
            quotes = 1 if token.kind is TokenKind.STRING else 0
            hide(token.start + quotes, token.end - quotes)
        elif token.kind is TokenKind.STRING:
            for start, end in secrets_inside(token.text):
                hide(token.start + start, token.start + end)
        elif index > 0 and tokens[index - 1].is_symbol("=") and _follows_secret_key(tokens, index):
            bare = _BARE_VALUE.match(text, token.start)
            hide(token.start, bare.end() if bare else token.end)
        elif token.text.upper() == "SET" and (index == 0 or tokens[index - 1].is_symbol(";")):
            for start, end in _secrets_of_set(text, token.end):
                hide(start, end)
    if endless is not None and text[endless] in "'\"":
        if _follows_secret_key(tokens, len(tokens)):
            hide(endless + 1, len(text))
        for start, end in secrets_inside(text[endless:]):
            hide(endless + start, endless + end)
    return "".join(shown)


def _secrets_of_set(text: str, start: int) -> list[tuple[int, int]]:
    """Return the ranges of secrets in the rest of a SET statement: the value of a secret key, passwords in others."""
    match = _SETTING.match(text, start)
    if match is None:
        return []
    if is_secret_name(match[1]):
        return [match.span(2)]
    return [(match.start(2) + begin, match.start(2) + end) for begin, end in secrets_inside(match[2])]


def _stars(text: str) -> str:
    return re.sub(r"[^\n]", "*", text)


def _follows_secret_key(tokens: list[Token], index: int) -> bool:
    last = index - 2 if index > 0 and tokens[index - 1].is_symbol("=") else index - 1
    return last >= 0 and is_secret_name(_key_ending_at(tokens, last))


def _key_ending_at(tokens: list[Token], index: int) -> str:
    if tokens[index].kind is TokenKind.STRING:
        return tokens[index].text[1:-1]
    first = index
    # The limit keeps the time linear for texts without spaces.
    earliest = max(0, index - _MOST_PARTS)
    while (
        first > earliest
        and tokens[first - 1].end == tokens[first].start
        and tokens[first - 1].kind is not TokenKind.STRING
    ):
        first -= 1
    return "".join(token.name for token in tokens[first : index + 1])
