"""What Spark shows of the requests of Spark Connect has no secrets."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.redaction import SECRETS_IN_REQUESTS, TEXT_SETTING, redact_requests

KEYS = st.sampled_from(["token", "password", "access_key_secret", "tablestore.access.key.secret", "STS_TOKEN"])
FORMS = st.sampled_from(
    [
        "{key}{space}'{value}'",
        "'{key}'{space}= '{value}'",
        '"{key}"="{value}"',
        "`{key}` '{value}'",
        "{key} => r'{value}'",
    ]
)
SPACES = st.text(" \t\r\n", min_size=1, max_size=3)
ENDS = st.text("ab;, '\"\\\n", max_size=4)


def request(message: str, **fields: str) -> str:
    """Return a request as Spark Connect shows it: a protocol buffer as text."""
    shown = []
    for name, value in fields.items():
        escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace('"', '\\"')
        escaped = escaped.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
        shown.append(f'  {name}: "{escaped}"\n')
    return f"{message} {{\n{''.join(shown)}}}\n"


@given(key=KEYS, form=FORMS, space=SPACES, before=ENDS, after=ENDS, cut=st.integers(0, 99))
def test_requests_of_spark_connect_show_no_secret_of_sql(
    key: str, form: str, space: str, before: str, after: str, cut: int
) -> None:
    value = f"{before}hunter2{after}".replace("\\", "\\\\").replace("'", "\\'").replace('"', '\\"')
    sql = f"CREATE VIEW v OPTIONS (store 'shop', {form.format(key=key, space=space, value=value)})"
    text = request("sql", query=sql) + request("other", name="last")
    shown = re.sub(SECRETS_IN_REQUESTS, "*", text)
    assert "hunter2" not in shown
    assert "shop" in shown
    assert "last" in shown
    assert "hunter2" not in re.sub(SECRETS_IN_REQUESTS, "*", text[: text.index("hunter2") + 7 + cut])


@given(key=KEYS, before=ENDS, after=ENDS)
def test_requests_of_spark_connect_show_no_secret_of_options(key: str, before: str, after: str) -> None:
    others = request("options", key="store", value="shop")
    text = request("options", key=key, value=f"{before}hunter2{after}") + others
    shown = re.sub(SECRETS_IN_REQUESTS, "*", text)
    assert "hunter2" not in shown
    assert shown.endswith(others)
    argument = (
        f'named_arguments {{\n  key: "{key}"\n  value {{\n    literal {{\n      string: "hunter2"\n    }}\n  }}\n}}\n'
    )
    assert "hunter2" not in re.sub(SECRETS_IN_REQUESTS, "*", argument)


def test_requests_of_spark_connect_show_the_names_of_columns() -> None:
    text = request("sql", query="SELECT token, password AS p FROM users")
    assert re.sub(SECRETS_IN_REQUESTS, "*", text) == text


def test_the_servers_own_pattern_stays() -> None:
    # A double of the settings of a session of Spark Connect.
    settings: dict[str, str] = {}
    spark = cast("Any", SimpleNamespace(conf=SimpleNamespace(get=settings.get, set=settings.__setitem__)))
    redact_requests(spark)
    assert settings == {TEXT_SETTING: SECRETS_IN_REQUESTS}
    settings[TEXT_SETTING] = "(?i)iban"
    for _ in range(2):
        redact_requests(spark)
        assert settings == {TEXT_SETTING: f"(?i)iban|{SECRETS_IN_REQUESTS}"}
    text = request("sql", query="SELECT 1 AS iban FROM t WITH (token = 'hunter2')")
    shown = re.sub(settings[TEXT_SETTING], "*", text)
    assert "iban" not in shown
    assert "hunter2" not in shown
