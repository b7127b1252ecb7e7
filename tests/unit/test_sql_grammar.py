"""The parser: statements of the dialect, statements of Spark, and errors with positions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as s

from headrace.derived.mirror.statement import Mirror
from headrace.errors import HeadraceError, SqlError
from headrace.model.queues.columns import QueueSchema
from headrace.sql_text.lexer import hide_secrets, quote, string_value, tokenize
from headrace.sql_text.script import Statement
from headrace.streaming_sql.language import statements as st
from headrace.streaming_sql.language.grammar import parse

VENDOR_SCRIPT = """
     // Create an external table, which is the Sink table named order_stream_sink. It's indented.
     DROP TABLE IF EXISTS order_stream_sink;
     CREATE TABLE order_stream_sink
     USING tablestore
     OPTIONS(
     endpoint="http://vehicle-test.cn-hangzhou.vpc.tablestore.aliyuncs.com",
     access.key.id="",
     access.key.secret="",
     instance.name="vehicle-test",
     table.name="OrderStreamSink",
     catalog='{"columns": {"begin": {"type": "string"},"end": {"type": "string"}, "count": {"type": "long"}}}'
     );

     // Create a view named order_source_stream_view on the order_source table.
     CREATE SCAN order_source_stream_view ON order_source USING STREAM
     OPTIONS(
     tunnel.id="4987845a-1321-4d36-9f4e-73d6db63bf0f",
     maxoffsetsperchannel="10000");

     // Write the aggregate results to the OrderStreamSink table in Tablestore in real time.
     CREATE STREAM job1
     options(
     checkpointLocation='/tmp/spark/cp/job1',
     outputMode='update'
     )
     INSERT INTO order_stream_sink
     SELECT CAST(window.start AS String) AS begin, CAST(window.end AS String) AS end, count(*) AS count,
     CAST(sum(price) AS Double) AS totalPrice FROM order_source_stream_view
     GROUP BY window(to_timestamp(timestamp / 1000), "30 seconds");
"""


def only(text: str) -> Statement:
    (statement,) = parse(text)
    return statement


def test_the_vendors_script_parses_unchanged() -> None:
    drop, table, scan, stream = parse(VENDOR_SCRIPT)
    assert isinstance(drop, st.DropTable)
    assert drop.if_exists
    assert isinstance(table, st.CreateTable)
    assert (str(table.name), table.provider) == ("order_stream_sink", "tablestore")
    assert table.options["access.key.id"] == ""
    assert table.options["endpoint"] == "http://vehicle-test.cn-hangzhou.vpc.tablestore.aliyuncs.com"
    assert table.options["catalog"].startswith('{"columns": {"begin"')
    assert isinstance(scan, st.CreateScan)
    assert scan.streaming
    assert scan.options == {"tunnel.id": "4987845a-1321-4d36-9f4e-73d6db63bf0f", "maxoffsetsperchannel": "10000"}
    assert isinstance(stream, st.CreateStream)
    assert stream.options == {"checkpointLocation": "/tmp/spark/cp/job1", "outputMode": "update"}
    assert isinstance(stream.body, st.Insert)
    assert str(stream.body.target) == "order_stream_sink"
    assert stream.body.query.text.startswith("SELECT CAST(window.start")
    assert stream.body.query.text.endswith('"30 seconds")')


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("create or replace scan s on t using batch", st.CreateScan),
        ("SHOW SCANS", st.ShowScans),
        ("DROP SCAN IF EXISTS s", st.DropScan),
        ("SHOW STREAMS", st.ShowStreams),
        ("DESCRIBE STREAM s", st.DescribeStream),
        ("desc stream `a b`", st.DescribeStream),
        ("STOP STREAM s", st.StopStream),
        ("START STREAM s", st.StartStream),
        ("DROP STREAM IF EXISTS s", st.DropStream),
        ("EXPLAIN STREAM s", st.ExplainStream),
        ("EXPLAIN CREATE STREAM s INSERT INTO t SELECT 1", st.ExplainStream),
        ("EXPLAIN CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT 1", st.ExplainView),
        ("CREATE TUNNEL IF NOT EXISTS x ON t USING BaseAndStream OPTIONS (start='earliest')", st.CreateTunnel),
        ("CREATE TUNNEL x ON t, a.u, `v w` USING Stream", st.CreateTunnel),
        ("SHOW TUNNELS ON t", st.ShowTunnels),
        ("DESCRIBE TUNNEL 4987845a-1321-4d36-9f4e-73d6db63bf0f", st.DescribeTunnel),
        ("DROP TUNNEL IF EXISTS x ON t", st.DropTunnel),
        ("DROP TUNNEL x ON t CASCADE", st.DropTunnel),
        ("DROP TABLE t CASCADE", st.DropTable),
        ("DROP TUNNEL '4987845a-1321'", st.DropTunnel),
        ("CREATE QUEUE IF NOT EXISTS q (a int)", st.CreateQueue),
        ("SHOW QUEUES", st.ShowQueues),
        ("DESCRIBE QUEUE '//tmp/q'", st.DescribeQueue),
        ("desc queue `//tmp/q`", st.DescribeQueue),
        ("DROP QUEUE IF EXISTS q", st.DropQueue),
        ("DROP QUEUE q CASCADE", st.DropQueue),
        ("CREATE CONSUMER IF NOT EXISTS '//c' OPTIONS (store='shop')", st.CreateConsumer),
        ("SHOW CONSUMERS FOR QUEUE q", st.ShowConsumers),
        ("DESCRIBE CONSUMER '//c'", st.DescribeConsumer),
        ("DESC CONSUMER c FOR QUEUE q", st.DescribeConsumer),
        ("DROP CONSUMER IF EXISTS c", st.DropConsumer),
        ("REGISTER CONSUMER c FOR QUEUE q", st.RegisterConsumer),
        ("UNREGISTER CONSUMER c FROM QUEUE q", st.UnregisterConsumer),
        ("SHOW PRODUCERS", st.ShowProducers),
        ("CREATE TABLE t (a int, b decimal(10,2)) USING parquet LOCATION '/x' AS SELECT 1", st.CreateTable),
        ("CREATE TABLE t USING parquet OPTIONS (path '/x') (SELECT 1)", st.CreateTable),
        ("INSERT INTO TABLE t (a, `b`) SELECT 1, 2", st.Insert),
        ("INSERT OVERWRITE t WITH c AS (SELECT 1) SELECT * FROM c", st.Insert),
        ("INSERT INTO t BY NAME SELECT 1 AS a", st.Insert),
        ("SET streaming.query.name=q", st.SetQueryName),
        ("SET spark.sql.streaming.query.options.q.checkpointLocation=/tmp//q", st.SetQueryOption),
        ("SELECT 1", st.SparkStatement),
        ("CREATE TABLE t (a int)", st.SparkStatement),
        ("CREATE TABLE t (a int) USING parquet PARTITIONED BY (a)", st.SparkStatement),
        ("CREATE TABLE t LIKE u", st.SparkStatement),
        ("DROP TABLE t PURGE", st.SparkStatement),
        ("INSERT INTO t PARTITION (a=1) SELECT 1", st.SparkStatement),
        ("INSERT OVERWRITE DIRECTORY '/x' USING csv SELECT 1", st.SparkStatement),
        ("SET spark.sql.streaming.checkpointLocation=/x", st.SparkStatement),
        ("MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN DELETE", st.BatchMerge),
        ("update t as x set x.a = case when b then (1) else 2 end, b = f(1, 2) where a in (1, 2)", st.Update),
        ("UPDATE IDENTIFIER('t') SET a = 1", st.SparkStatement),
        ("DELETE FROM t x WHERE x.a = (SELECT max(a) FROM u)", st.Delete),
        ("DELETE FROM t", st.Delete),
        ("TRUNCATE TABLE t", st.Truncate),
        ("TRUNCATE TABLE t PARTITION (a = 1)", st.SparkStatement),
        ("ALTER TABLE t ADD COLUMNS (a int, b string)", st.AlterTable),
        ("ALTER TABLE t ADD COLUMN a int, ADD COLUMN b array<string>", st.AlterTable),
        ("ALTER TABLE t RENAME TO u", st.AlterTable),
        ("SHOW CREATE TABLE t", st.ShowCreateTable),
        ("SHOW CREATE TABLE t AS SERDE", st.SparkStatement),
    ],
)
def test_each_statement_is_recognised(text: str, kind: type[Statement]) -> None:
    assert type(only(text)) is kind


def test_a_queue_can_have_columns_of_any_type() -> None:
    statement = only(
        """CREATE QUEUE clicks (user STRING NOT NULL, `$timestamp` TIMESTAMP, -- when
        price DECIMAL(10, 2), seen ARRAY<STRUCT<page: STRING NOT NULL, tags: MAP<STRING, ARRAY<INT>>>> NOT NULL,
        stay INTERVAL DAY /* not year */ TO SECOND)
        USING yt PARTITIONS 3 OPTIONS (proxy='shop', autoTrim=true)"""
    )
    assert isinstance(statement, st.CreateQueue)
    assert statement.columns == {
        "user": "STRING not null",
        "$timestamp": "TIMESTAMP",
        "price": "DECIMAL(10, 2)",
        "seen": "ARRAY<STRUCT<page: STRING NOT NULL, tags: MAP<STRING, ARRAY<INT>>>> not null",
        "stay": "INTERVAL DAY TO SECOND",
    }
    assert len(QueueSchema.of(statement.columns).columns) == 5
    assert (statement.provider, statement.partitions) == ("yt", 3)
    assert statement.options == {"proxy": "shop", "autoTrim": "true"}


def test_a_registration_is_parsed() -> None:
    statement = only("REGISTER CONSUMER '//home/it''s' FOR QUEUE `//tmp/q` VITAL")
    assert isinstance(statement, st.RegisterConsumer)
    assert (str(statement.name), str(statement.queue), statement.vital) == ("//home/it's", "//tmp/q", True)


def test_options_keep_their_names_and_values() -> None:
    statement = only(
        r"""CREATE SCAN s ON t USING STREAM OPTIONS (
        a.b-c.d = 'it''s \'x\' \u00e9', "quoted key" = "say ""hi"" 'x'", n=-12.5, on=TRUE, `back`='1')"""
    )
    assert isinstance(statement, st.CreateScan)
    assert statement.options == {
        "a.b-c.d": "it's 'x' é",
        "quoted key": "say \"hi\" 'x'",
        "n": "-12.5",
        "on": "true",
        "back": "1",
    }


@pytest.mark.parametrize(
    ("text", "query", "option", "value"),
    [
        ("SET spark.sql.streaming.query.options.q.a.b = x y", "q", "a.b", "x y"),
        ("SET spark.sql.streaming.query.outputMode.q=update", "q", "outputMode", "update"),
        ("SET spark.sql.streaming.query.trigger.q=ProcessingTime", "q", "triggerType", "ProcessingTime"),
        ("SET spark.sql.streaming.query.trigger.intervalMs.q=100", "q", "triggerIntervalMs", "100"),
        ("SET spark.sql.streaming.checkpointLocation.q=hdfs://h/x", "q", "checkpointLocation", "hdfs://h/x"),
        ("SET spark.sql.streaming.query.checkpointLocation.q='/x'", "q", "checkpointLocation", "/x"),
        ("SET spark.sql.streaming.query.timeout.ms=5000", None, "timeoutMs", "5000"),
    ],
)
def test_settings_of_the_older_dialect_are_parsed(text: str, query: str | None, option: str, value: str) -> None:
    statement = only(text)
    assert isinstance(statement, st.SetQueryOption)
    assert (statement.query, statement.option, statement.value) == (query, option, value)


def test_comments_and_semicolons_in_texts_do_not_split_statements() -> None:
    first, second, third = parse(
        "SELECT ';', \"http://x;y\", `a;b` -- one; comment\n; /* two; /* nested; */ */ SELECT 2 // three; it's\n;"
        "SELECT r'\\', 3"
    )
    assert first.part.text == "SELECT ';', \"http://x;y\", `a;b`"
    assert second.part.text == "SELECT 2"
    assert third.part.text == "SELECT r'\\', 3"


def test_slash_comments_become_spaces_but_not_in_texts() -> None:
    statement = only("SELECT 'a//b', // it's a remark\n  1 /* // */")
    assert statement.part.text.split("\n")[0].rstrip() == "SELECT 'a//b',"
    assert statement.part.text.endswith("  1")


def test_unquoted_addresses_are_not_comments() -> None:
    first, second = parse("ADD JAR hdfs://host//lib/x.jar; SET spark.x=a//b // remark")
    assert first.part.text == "ADD JAR hdfs://host//lib/x.jar"
    assert second.part.text.rstrip() == "SET spark.x=a//b"


def test_a_compound_statement_is_not_split() -> None:
    text = "BEGIN DECLARE x INT; IF x = 1 THEN SELECT CASE WHEN 1=1 THEN 2 END; END IF; BEGIN SELECT 1; END; END"
    first, second = parse(text + "; SELECT 2;")
    assert first.part.text == text
    assert second.part.text == "SELECT 2"


@pytest.mark.parametrize(
    ("text", "line", "column", "says"),
    [
        ("SELECT 1;\nCREATE SCAN s ON t USNG STREAM", 2, 20, "expected USING"),
        ("CREATE SCAN s ON t USING STREAM OPTIONS (a='1' b='2')", 1, 48, "expected a comma or )"),
        ("CREATE SCAN s ON t USING STREAM OPTIONS (a=b)", 1, 44, "the value of option a"),
        ("CREATE SCAN s ON t USING STREAM OPTIONS (a=1, A=2)", 1, 47, "occurs twice"),
        ("CREATE STREAM s\n\tSELECT 1", 2, 2, "expected INSERT INTO, MERGE INTO or MIRROR"),
        ("CREATE STREAM s", 1, 16, "expected INSERT INTO, MERGE INTO or MIRROR"),
        ("CREATE STREAM a.b INSERT INTO t SELECT 1", 1, 15, "no dots"),
        ("CREATE STREAM s MIRROR t", 1, 25, "expected INTO"),
        ("CREATE STREAM s MIRROR t INTO c WITH TIME", 1, 38, "expected HISTORY"),
        ("CREATE STREAM s MIRROR t INTO c WHERE 1", 1, 33, "expected the end"),
        ("CREATE TABLE t USING headrace PARTITIONED BY (a)", 1, 31, "has a PRIMARY KEY"),
        ("CREATE TABLE t (a INT, PRIMARY KEY (a)) USING headrace CLUSTERED BY (a)", 1, 56, "expected OPTIONS"),
        (
            "CREATE TABLE t (a INT, b INT, PRIMARY KEY (a)) USING headrace PARTITIONED BY (a) PARTITIONED BY (b)",
            1,
            82,
            "occurs twice",
        ),
        ("CREATE TUNNEL x ON t USING Base", 1, 28, "expected BaseData"),
        ("STOP STREAM s t", 1, 15, "the end of the statement"),
        ("CREATE QUEUE q", 1, 15, r"expected ("),
        ("CREATE QUEUE q (a int,\n  b strng)", 2, 5, "unknown column type"),
        ("CREATE QUEUE q (a decimal(50, 2))", 1, 19, "38"),
        ("CREATE QUEUE q (a int, a long)", 1, 24, "occurs twice"),
        ("CREATE QUEUE q (a array<int)", 1, 24, "not closed"),
        ("CREATE QUEUE q (a int DEFAULT 1)", 1, 23, "expected NOT NULL, a comma or )"),
        ("CREATE QUEUE q (a int) USING tablestore", 1, 30, "no queues"),
        ("CREATE QUEUE q (a int) PARTITIONS 0", 1, 35, "a positive whole number"),
        ("REGISTER CONSUMER c FOR q", 1, 21, "expected FOR QUEUE"),
        ("REGISTER CONSUMER //c FOR QUEUE q", 1, 18, "the name of the consumer"),
        ("DESCRIBE CONSUMER c ON q", 1, 21, "the end of the statement"),
        ("SELECT 'open", 1, 8, "no end"),
        ("SELECT 1 /* /* */", 1, 10, "no end"),
        ("SET spark.sql.streaming.query.outputMod.q=update", 1, 5, "unknown setting"),
        ("SET streaming.query.name", 1, 25, "expected ="),
    ],
)
def test_errors_show_line_column_and_caret(text: str, line: int, column: int, says: str) -> None:
    with pytest.raises(SqlError, match=says.replace("(", r"\(").replace(")", r"\)")) as caught:
        parse(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    shown, caret = str(caught.value).split("\n")[1:]
    assert shown[2:] == text.split("\n")[line - 1]
    assert caret.index("^") == column + 1


@pytest.mark.parametrize(
    "rest", ['"t0psecret" endpoint="x"', "t0psecret", '"t0psecret', "t0p-secret+x", "'t0psecret' /* ", "t0psecret x y"]
)
def test_errors_do_not_show_secrets(rest: str) -> None:
    with pytest.raises(SqlError) as caught:
        parse(f"CREATE TABLE t USING tablestore OPTIONS (access.key.secret={rest}")
    assert "t0p" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("SET password t0p; SELECT 1", "SET password ***; SELECT 1"),
        ("SET spark.hadoop.fs.s3a.secret.key = t0p t0p", "SET spark.hadoop.fs.s3a.secret.key = *******"),
        ("OPTIONS (password 't''0' 'p' || 'x', q 'y')", "OPTIONS (password '****' '*' || '*', q 'y')"),
        ("SET a.url=https://u:t0p@h/x; SELECT 1", "SET a.url=https://u:***@h/x; SELECT 1"),
        ("OPTIONS (password 12345)", "OPTIONS (password *****)"),
        (
            "url 'jdbc:postgresql://h/db?user=u&password=t0p&x=1'",
            "url 'jdbc:postgresql://h/db?user=u&password=***&x=1'",
        ),
        ("url 'jdbc:sqlserver://h;user=u;password=t0p'", "url 'jdbc:sqlserver://h;user=u;password=***'"),
        ("store='postgresql://u:t@0p@h/db'", "store='postgresql://u:****@h/db'"),
        ("store='postgresql://u:t0p@h/db", "store='postgresql://u:***@h/db"),
        ("SET a = 'x'; SELECT 'b' 'c'", "SET a = 'x'; SELECT 'b' 'c'"),
    ],
)
def test_secrets_are_hidden_in_every_form_of_a_value(text: str, shown: str) -> None:
    assert hide_secrets(text) == shown


@settings(deadline=None)
@given(s.text())
def test_reading_is_the_inverse_of_quoting(text: str) -> None:
    (token,) = tokenize(quote(text)).tokens
    assert string_value(token) == text


WORDS = (
    "CREATE TABLE SCAN STREAM TUNNEL QUEUE CONSUMER REGISTER PARTITIONS DROP SHOW DESCRIBE EXPLAIN START STOP IF NOT "
    "EXISTS ON USING OPTIONS INSERT INTO SELECT FROM WHERE AS BEGIN END CASE SET MERGE WHEN MATCHED THEN UPDATE "
    "LOCATION BATCH BaseData t s.a "
    "int array < > ( ) , = . ; - 'x' \"y\" `z` 1 1.5 '\\ud800' // -- /* */ ' \" ` streaming.query.name "
    "spark.sql.streaming.query.options.q.a"
)


@settings(deadline=None)
@given(
    s.one_of(
        s.text(),
        s.lists(s.sampled_from([*WORDS.split(), "\n", " "])).map(" ".join),
        s.lists(s.sampled_from([*WORDS.split(), "\n", " "])).map("".join),
    )
)
def test_any_text_parses_or_raises_a_headrace_error(text: str) -> None:
    try:
        statements = parse(text)
    except HeadraceError:
        return
    for statement in statements:
        assert text[statement.part.start : statement.part.end]


@pytest.mark.parametrize("history", ["", " WITH HISTORY"])
def test_the_text_of_a_mirror_is_the_same_mirror(history: str) -> None:
    (stream,) = parse(f"CREATE STREAM s OPTIONS (a = 1) mirror `my orders` into copy {history};")
    assert isinstance(stream, st.CreateStream)
    body = stream.body
    assert isinstance(body, Mirror)
    assert (str(body.source), str(body.target), body.history) == ("my orders", "copy", bool(history))
    assert body.text == f"MIRROR `my orders` INTO copy{history}"
    assert body.reads.text == "FROM `my orders`"


def test_materialized_views_have_options_and_a_query() -> None:
    created, replaced, kept = parse("""
        CREATE MATERIALIZED VIEW v OPTIONS (primaryKey = 'a') AS SELECT a FROM t;
        CREATE OR REFRESH MATERIALIZED VIEW v AS WITH x AS (SELECT 1) SELECT * FROM x;
        CREATE MATERIALIZED VIEW IF NOT EXISTS v AS SELECT a FROM t
    """)
    assert isinstance(created, st.CreateView)
    assert (created.query.text, created.options) == ("SELECT a FROM t", {"primaryKey": "a"})
    assert isinstance(replaced, st.CreateView)
    assert isinstance(kept, st.CreateView)
    assert (replaced.replace, kept.replace, kept.if_not_exists) == (True, False, True)
    (stream,) = parse("CREATE OR REPLACE STREAM s INSERT INTO t SELECT 1")
    assert isinstance(stream, st.CreateStream)
    assert stream.replace


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("REFRESH MATERIALIZED VIEW v", "needs no REFRESH"),
        ("CREATE MATERIALIZED VIEW v (a INT) AS SELECT 1", "no list of columns"),
        ("CREATE MATERIALIZED VIEW v PARTITIONED BY (a) AS SELECT 1", "target of CREATE STREAM"),
        ("CREATE MATERIALIZED VIEW v SCHEDULE EVERY 1 HOUR AS SELECT 1", "triggerIntervalMs"),
        ("CREATE MATERIALIZED VIEW v SELECT 1", "AS"),
    ],
)
def test_clauses_of_other_systems_are_refused_with_the_alternative(statement: str, message: str) -> None:
    with pytest.raises(SqlError, match=message):
        parse(statement)
