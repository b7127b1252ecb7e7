"""What Spark must not show: the settings by which it redacts secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET_NAMES = "(?i)secret|password|token|access[.]?key|credential"
"""Names of settings and options that hold secrets: Spark's default, and the options of the formats."""
TEXT_SETTING = "spark.sql.redaction.string.regex"
# Over Spark Connect, Spark shows each request: options and arguments as protocol buffers, and SQL as a string in them,
# whose quotes and line breaks have a backslash. The rest of an SQL text after the key goes, so that its own escapes do
# not matter. The quantifiers are possessive, because Java's others are recursive.
SECRETS_IN_REQUESTS = (
    r"(?is:(?:secret|password|token|access[.]?_?key|credential)[\w.-]*+"
    r"""(?:"\s*+value\s*+(?::\s*+|\{[^"]*+)"|(?:\\++["'])?(?:[\s`=>]|\\[nrtf])*+r?\\++["'])"""
    r"""[^"\\]*+(?:\\.[^"\\]*+)*+)"""
)


def redact_requests(spark: SparkSession) -> None:
    """Redact secrets in the requests of a session of Spark Connect, besides what the server redacts."""
    known = spark.conf.get(TEXT_SETTING, None)
    if not known:
        spark.conf.set(TEXT_SETTING, SECRETS_IN_REQUESTS)
    elif SECRETS_IN_REQUESTS not in known:
        spark.conf.set(TEXT_SETTING, f"{known}|{SECRETS_IN_REQUESTS}")
