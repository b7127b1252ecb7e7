"""From tokens to statements: the streaming dialect by recursive descent; anything else is Spark's.

A statement belongs to the dialect as soon as its first words say so; from there on it must be right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.errors import SqlError, UnsupportedError
from headrace.streaming_sql import statements as st
from headrace.streaming_sql.lexer import Kind, Token, error_at, hide_secrets, option_key, string_value, tokenize

HEADRACE_PROVIDERS = ("headrace", "tablestore")
TUNNEL_KINDS = ("BaseData", "Stream", "BaseAndStream")
QUERY_STARTS = ("SELECT", "WITH", "FROM", "VALUES", "TABLE")
# Clauses of Spark's CREATE TABLE that the dialect does not have.
_SPARK_TABLE_CLAUSES = (
    "PARTITIONED", "CLUSTERED", "CLUSTER", "SKEWED", "ROW", "STORED", "COMMENT", "TBLPROPERTIES", "DEFAULT",
)  # fmt: skip
_QUERY_SETTINGS = "spark.sql.streaming.query."
_CHECKPOINT_SETTING = "spark.sql.streaming.checkpointlocation."


def parse(text: str) -> list[st.Statement]:
    """Return the statements of a script, which are separated by semicolons.

    Raises:
        SqlError: with line, column and a caret.
        UnsupportedError: a statement is for a later version.
    """
    lexed = tokenize(text)
    return [_StatementParser(text, lexed.text, tokens).statement() for tokens in _split(lexed.tokens) if tokens]


def _split(tokens: tuple[Token, ...]) -> list[tuple[Token, ...]]:
    """Cut at semicolons, but not at those inside ``BEGIN … END``."""
    pieces: list[tuple[Token, ...]] = []
    first = depth = 0
    for index, token in enumerate(tokens):
        if tokens[first].is_word("BEGIN"):
            if token.is_word("BEGIN", "CASE") and not (index and tokens[index - 1].is_word("END")):
                depth += 1
            elif token.is_word("END"):
                following = tokens[index + 1] if index + 1 < len(tokens) else None
                if following is None or not following.is_word("IF", "WHILE", "LOOP", "REPEAT", "FOR"):
                    depth -= 1
        if token.is_symbol(";") and depth <= 0:
            pieces.append(tokens[first:index])
            first, depth = index + 1, 0
    pieces.append(tokens[first:])
    return pieces


class _StatementParser:
    """Reads one statement. ``original`` is for messages, ``script`` has its ``//`` comments blanked."""

    def __init__(self, original: str, script: str, tokens: tuple[Token, ...]) -> None:
        self._original = original
        self._script = script
        self._tokens = tokens
        self._index = 0

    # -- reading tokens -------------------------------------------------------------------------------

    def _peek(self, ahead: int = 0) -> Token | None:
        index = self._index + ahead
        return self._tokens[index] if index < len(self._tokens) else None

    def _at_words(self, *words: str) -> bool:
        """Tell whether these keywords stand here, one after the other."""
        tokens = self._tokens[self._index : self._index + len(words)]
        return len(tokens) == len(words) and all(token.is_word(word) for token, word in zip(tokens, words, strict=True))

    def _take_words(self, *words: str) -> bool:
        if self._at_words(*words):
            self._index += len(words)
            return True
        return False

    def _take_symbol(self, symbol: str) -> bool:
        token = self._peek()
        if token is not None and token.is_symbol(symbol):
            self._index += 1
            return True
        return False

    def _need_words(self, *words: str) -> None:
        if not self._take_words(*words):
            raise self._expected(" ".join(words))

    def _need_symbol(self, symbol: str) -> None:
        if not self._take_symbol(symbol):
            raise self._expected(symbol)

    def _need_end(self) -> None:
        if self._peek() is not None:
            raise self._expected("the end of the statement (;)")

    def _need_string(self, what: str) -> str:
        token = self._peek()
        if token is None or token.kind is not Kind.STRING:
            raise self._expected(what)
        self._index += 1
        return self._string(token)

    def _string(self, token: Token) -> str:
        try:
            return string_value(token)
        except ValueError as error:
            raise error_at(f"the text holds no valid character: {error}", self._original, token.start) from None

    def _need_name(self, what: str) -> st.Name:
        token = self._peek()
        if token is None or not token.is_name or token.text == "``":
            raise self._expected(f"the name of {what}")
        parts = [token.name]
        self._index += 1
        end = token.end
        while (dot := self._peek()) is not None and dot.is_symbol(".") and (part := self._peek(1)) and part.is_name:
            parts.append(part.name)
            self._index += 2
            end = part.end
        return st.Name(tuple(parts), self._part(token.start, end))

    def _need_simple_name(self, what: str) -> st.Name:
        return self._without_dots(self._need_name(what), what)

    def _without_dots(self, name: st.Name, what: str) -> st.Name:
        if len(name.parts) > 1:
            raise error_at(f"the name of {what} can have no dots", self._original, name.part.start, received=str(name))
        return name

    def _part(self, start: int, end: int) -> st.Part:
        return st.Part(self._script, start, end)

    @property
    def _whole(self) -> st.Part:
        return self._part(self._tokens[0].start, self._tokens[-1].end)

    def _rest(self) -> st.Part:
        """Take all tokens that are left."""
        part = self._part(self._tokens[self._index].start, self._tokens[-1].end)
        self._index = len(self._tokens)
        return part

    def _expected(self, what: str) -> SqlError:
        token = self._peek()
        offset = self._tokens[-1].end if token is None else token.start
        received = "the end of the statement" if token is None else token.text
        if token is not None and hide_secrets(self._original)[token.start : token.end] != token.text:
            received = "a text that may be secret"
        return error_at(f"expected {what}", self._original, offset, received=received)

    # -- statements -----------------------------------------------------------------------------------

    def statement(self) -> st.Statement:
        readers: Sequence[tuple[tuple[str, ...], Callable[[], st.Statement]]] = (
            (("CREATE", "TABLE"), self._create_table),
            (("DROP", "TABLE"), self._drop_table),
            (("CREATE", "SCAN"), self._create_scan),
            (("CREATE", "OR", "REPLACE", "SCAN"), self._replace_scan),
            (("SHOW", "SCANS"), self._show_scans),
            (("DROP", "SCAN"), self._drop_scan),
            (("CREATE", "STREAM"), self._create_stream),
            (("SHOW", "STREAMS"), self._show_streams),
            (("DESCRIBE", "STREAM"), self._describe_stream),
            (("DESC", "STREAM"), self._describe_stream),
            (("STOP", "STREAM"), self._stop_stream),
            (("START", "STREAM"), self._start_stream),
            (("DROP", "STREAM"), self._drop_stream),
            (("EXPLAIN", "STREAM"), self._explain_stream),
            (("EXPLAIN", "CREATE", "STREAM"), self._explain_create_stream),
            (("CREATE", "TUNNEL"), self._create_tunnel),
            (("SHOW", "TUNNELS"), self._show_tunnels),
            (("DESCRIBE", "TUNNEL"), self._describe_tunnel),
            (("DESC", "TUNNEL"), self._describe_tunnel),
            (("DROP", "TUNNEL"), self._drop_tunnel),
            (("INSERT",), self._insert_or_spark),
            (("SET",), self._set),
        )
        for words, reader in readers:
            if self._take_words(*words):
                statement = reader()
                if not isinstance(statement, st.SparkStatement):
                    self._need_end()
                return statement
        return self._spark()

    def _spark(self) -> st.SparkStatement:
        return st.SparkStatement(part=self._whole)

    def _create_table(self) -> st.Statement:
        if_not_exists = self._take_words("IF", "NOT", "EXISTS")
        token = self._peek()
        if token is None or not token.is_name:
            return self._spark()
        name = self._need_name("the table")
        columns = self._parenthesised() if self._at_symbol("(") else None
        if not self._take_words("USING"):
            return self._spark()
        provider = str(self._need_name("the provider"))
        if self._has_spark_clauses(provider):
            return self._spark()
        options: dict[str, str] = {}
        while True:
            if self._at_words("OPTIONS"):
                options = {**options, **self._options()}
            elif self._take_words("LOCATION"):
                location = self._need_string("the location, in quotes")
                options = {key: value for key, value in options.items() if key.lower() != "path"}
                options["path"] = location
            else:
                break
        query = None
        if self._take_words("AS") or self._at_query():
            query = self._query()
        if self._peek() is not None:
            raise self._expected("OPTIONS, LOCATION, AS or the end of the statement (;)")
        return st.CreateTable(
            part=self._whole,
            name=self._without_dots(name, "the table"),
            if_not_exists=if_not_exists,
            columns=columns,
            provider=provider,
            options=options,
            query=query,
        )

    def _has_spark_clauses(self, provider: str) -> bool:
        if provider.lower() in HEADRACE_PROVIDERS:
            return False
        depth = 0
        for token in self._tokens[self._index :]:
            depth += token.is_symbol("(") - token.is_symbol(")")
            if depth == 0 and token.is_word("AS", "SELECT"):
                return False
            if depth == 0 and token.is_word(*_SPARK_TABLE_CLAUSES):
                return True
        return False

    def _at_symbol(self, symbol: str) -> bool:
        token = self._peek()
        return token is not None and token.is_symbol(symbol)

    def _at_query(self, ahead: int = 0) -> bool:
        while (token := self._peek(ahead)) is not None and token.is_symbol("("):
            ahead += 1
        return token is not None and token.is_word(*QUERY_STARTS)

    def _parenthesised(self) -> str:
        """Take ``( … )`` and return the text inside."""
        opening = self._tokens[self._index]
        depth = 0
        while (token := self._peek()) is not None:
            self._index += 1
            depth += token.is_symbol("(") - token.is_symbol(")")
            if depth == 0:
                return self._script[opening.end : token.start].strip()
        raise error_at("this parenthesis is not closed", self._original, opening.start)

    def _query(self) -> st.Part:
        if not self._at_query():
            raise self._expected("a query")
        return self._rest()

    def _drop_table(self) -> st.Statement:
        if_exists = self._take_words("IF", "EXISTS")
        token = self._peek()
        if token is None or not token.is_name:
            return self._spark()
        name = self._need_name("the table")
        if self._peek() is not None:
            return self._spark()
        return st.DropTable(part=self._whole, name=name, if_exists=if_exists)

    def _replace_scan(self) -> st.Statement:
        return self._create_scan(replace=True)

    def _create_scan(self, replace: bool = False) -> st.Statement:
        name = self._need_simple_name("the scan")
        self._need_words("ON")
        table = self._need_name("the table")
        self._need_words("USING")
        streaming = self._take_words("STREAM")
        if not streaming and not self._take_words("BATCH"):
            raise self._expected("BATCH or STREAM")
        return st.CreateScan(
            part=self._whole, name=name, table=table, streaming=streaming, replace=replace, options=self._options()
        )

    def _show_scans(self) -> st.Statement:
        return st.ShowScans(part=self._whole)

    def _drop_scan(self) -> st.Statement:
        if_exists = self._take_words("IF", "EXISTS")
        return st.DropScan(part=self._whole, name=self._need_simple_name("the scan"), if_exists=if_exists)

    def _create_stream(self) -> st.CreateStream:
        name = self._need_simple_name("the stream")
        options = self._options()
        if self._at_words("MERGE"):
            raise UnsupportedError(
                f"MERGE INTO in a stream comes in a later version (line {self._whole.line})",
                remedy="use INSERT INTO with outputMode='update': rows of a table with a primary key are replaced",
            )
        start = self._tokens[min(self._index, len(self._tokens) - 1)].start
        self._need_words("INSERT", "INTO")
        return st.CreateStream(part=self._whole, name=name, options=options, insert=self._insert(start, False))

    def _insert_or_spark(self) -> st.Statement:
        overwrite = self._take_words("OVERWRITE")
        if not overwrite and not self._take_words("INTO"):
            return self._spark()
        try:
            return self._insert(self._tokens[0].start, overwrite)
        except SqlError:
            # INSERT has more forms in Spark; its parser tells better what is wrong with one of those.
            return self._spark()

    def _insert(self, start: int, overwrite: bool) -> st.Insert:
        self._take_words("TABLE")
        target = self._need_name("the table")
        columns = None
        if not self._take_words("BY", "NAME") and self._at_symbol("(") and not self._at_query():
            columns = self._column_names()
        query = self._query()
        return st.Insert(
            part=self._part(start, query.end), target=target, overwrite=overwrite, columns=columns, query=query
        )

    def _column_names(self) -> tuple[str, ...]:
        self._need_symbol("(")
        names = [self._need_simple_name("a column").parts[0]]
        while self._take_symbol(","):
            names.append(self._need_simple_name("a column").parts[0])
        self._need_symbol(")")
        return tuple(names)

    def _show_streams(self) -> st.Statement:
        return st.ShowStreams(part=self._whole)

    def _describe_stream(self) -> st.Statement:
        return st.DescribeStream(part=self._whole, name=self._need_simple_name("the stream"))

    def _stop_stream(self) -> st.Statement:
        return st.StopStream(part=self._whole, name=self._need_simple_name("the stream"))

    def _start_stream(self) -> st.Statement:
        return st.StartStream(part=self._whole, name=self._need_simple_name("the stream"))

    def _drop_stream(self) -> st.Statement:
        if_exists = self._take_words("IF", "EXISTS")
        return st.DropStream(part=self._whole, name=self._need_simple_name("the stream"), if_exists=if_exists)

    def _explain_stream(self) -> st.Statement:
        return st.ExplainStream(part=self._whole, target=self._need_simple_name("the stream"))

    def _explain_create_stream(self) -> st.Statement:
        return st.ExplainStream(part=self._whole, target=self._create_stream())

    def _create_tunnel(self) -> st.Statement:
        if_not_exists = self._take_words("IF", "NOT", "EXISTS")
        name = self._need_simple_name("the tunnel")
        self._need_words("ON")
        table = self._need_name("the table")
        kind = None
        if self._take_words("USING"):
            for known in TUNNEL_KINDS:
                if self._take_words(known.upper()):
                    kind = known
                    break
            else:
                raise self._expected(" or ".join(TUNNEL_KINDS))
        return st.CreateTunnel(
            part=self._whole, name=name, if_not_exists=if_not_exists, table=table, kind=kind, options=self._options()
        )

    def _table_after_on(self) -> st.Name | None:
        return self._need_name("the table") if self._take_words("ON") else None

    def _tunnel_name(self) -> st.Name:
        """A tunnel's name, or its id in quotes or not: an id such as 4987845a-1321-… is no word."""
        token = self._peek()
        if token is None or token.kind is Kind.SYMBOL:
            raise self._expected("the name or the id of the tunnel")
        text, index = self._key()
        part = self._part(token.start, self._tokens[index - 1].end)
        self._index = index
        return st.Name((text,), part)

    def _show_tunnels(self) -> st.Statement:
        return st.ShowTunnels(part=self._whole, table=self._table_after_on())

    def _describe_tunnel(self) -> st.Statement:
        return st.DescribeTunnel(part=self._whole, name=self._tunnel_name(), table=self._table_after_on())

    def _drop_tunnel(self) -> st.Statement:
        if_exists = self._take_words("IF", "EXISTS")
        name = self._tunnel_name()
        return st.DropTunnel(part=self._whole, name=name, if_exists=if_exists, table=self._table_after_on())

    # -- options --------------------------------------------------------------------------------------

    def _options(self) -> dict[str, str]:
        """Read ``OPTIONS (key = value, …)`` if it stands here."""
        if not self._take_words("OPTIONS"):
            return {}
        self._need_symbol("(")
        options: dict[str, str] = {}
        seen: set[str] = set()
        if self._take_symbol(")"):
            return options
        while True:
            start = self._peek()
            key, index = self._key()
            if not key or start is None:
                raise self._expected("the name of an option")
            if key.lower() in seen:
                raise error_at("the option stands twice", self._original, start.start, received=key)
            seen.add(key.lower())
            self._index = index
            self._take_symbol("=")
            options[key] = self._option_value(key)
            if self._take_symbol(")"):
                return options
            if not self._take_symbol(","):
                raise self._expected("a comma or )")

    def _key(self) -> tuple[str, int]:
        try:
            return option_key(self._tokens, self._index)
        except ValueError as error:
            raise error_at(f"no valid name: {error}", self._original, self._tokens[self._index].start) from None

    def _option_value(self, key: str) -> str:
        token = self._peek()
        sign = ""
        if token is not None and token.is_symbol("-"):
            sign, token = "-", self._peek(1)
        if token is not None and token.kind is Kind.NUMBER:
            self._index += 2 if sign else 1
            return sign + token.text
        if not sign and token is not None and (token.kind is Kind.STRING or token.is_word("TRUE", "FALSE")):
            self._index += 1
            return self._string(token) if token.kind is Kind.STRING else token.text.lower()
        raise self._expected(f"the value of option {key}: a text in quotes, a number, true or false")

    # -- the older dialect ------------------------------------------------------------------------------

    def _set(self) -> st.Statement:
        """``SET key=value`` where the key is one of the dialect's; the value is the rest of the statement."""
        key, index = self._key()
        lower = key.lower()
        named = lower == "streaming.query.name"
        if not (named or lower.startswith((_QUERY_SETTINGS, _CHECKPOINT_SETTING))):
            return self._spark()
        self._index = index
        self._need_symbol("=")
        if self._peek() is None:
            raise self._expected(f"the value of {key}")
        first, last = self._tokens[self._index], self._tokens[-1]
        value = self._string(first) if first is last and first.kind is Kind.STRING else self._rest().text
        self._index = len(self._tokens)
        if named:
            return st.SetQueryName(part=self._whole, name=value)
        query, option = self._setting(key)
        return st.SetQueryOption(part=self._whole, query=query, option=option, value=value)

    def _setting(self, key: str) -> tuple[str | None, str]:
        """Return the query and the option that a key of the older dialect means."""
        if key.lower().startswith(_CHECKPOINT_SETTING):
            return key[len(_CHECKPOINT_SETTING) :], "checkpointLocation"
        words = key[len(_QUERY_SETTINGS) :].split(".")
        match [word.lower() for word in words]:
            case ["options", _, _, *_]:
                return words[1], ".".join(words[2:])
            case ["outputmode", _]:
                return words[1], "outputMode"
            case ["trigger", "intervalms", _]:
                return words[2], "triggerIntervalMs"
            case ["trigger", _]:
                return words[1], "triggerType"
            case ["checkpointlocation", _]:
                return words[1], "checkpointLocation"
            case ["timeout", "ms"]:
                return None, "timeoutMs"
        raise error_at(
            "unknown setting of a streaming query",
            self._original,
            self._tokens[1].start,
            received=key,
            valid="options.<query>.<option>, outputMode.<query>, trigger.<query>, trigger.intervalMs.<query>, "
            "checkpointLocation.<query> or timeout.ms behind spark.sql.streaming.query",
        )
