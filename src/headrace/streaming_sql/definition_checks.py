"""Checks of ``CREATE TABLE``: unknown providers are refused, and tables that are missing in their stores are named."""

from __future__ import annotations

import re
from importlib import metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, NotFoundError, OptionError
from headrace.options.names import did_you_mean, nearest
from headrace.streaming_sql.catalog import TableDefinition
from headrace.streaming_sql.locations import location_of
from headrace.streaming_sql.providers import FILE_PROVIDERS, HEADRACE_PROVIDERS, PACKAGES, is_headrace, is_of_files
from headrace.support.time_limits import within

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SECONDS_TO_ANSWER = 2.0
_SHORT = 4
# Such as KAFKA_DATA_SOURCE_NOT_ENABLED.
_UNKNOWN = re.compile(r"\[(DATA_SOURCE_NOT_FOUND|\w+_DATA_SOURCE_NOT_ENABLED)\]|Failed to find data source: avro")


def check_provider(spark: SparkSession, name: str, provider: str) -> None:
    """Raise `OptionError` if neither headrace nor this Spark session knows the provider of a table."""
    if is_headrace(provider) or (is_of_files(provider) and provider.lower() not in PACKAGES):
        return
    try:
        # Without the options of the definition, so that a known source reads and connects to nothing.
        _ = spark.read.format(provider).load().schema
    except Exception as error:
        # Other errors are those of a source that exists. Spark raises this one as different classes.
        if _UNKNOWN.search(str(error)) is not None:
            raise _unknown(name, provider) from None


def check_near_miss(name: str, provider: str) -> None:
    """Raise `OptionError` for a misspelt name of a format of headrace, which needs no Spark."""
    if is_headrace(provider) or is_of_files(provider) or provider.lower() in PACKAGES or not provider.isidentifier():
        return
    near = nearest(provider, [each for each in HEADRACE_PROVIDERS if len(each) > _SHORT])
    # A format of the user's can have a similar name: Spark finds it by this module.
    if near is not None and find_spec(f"pyspark_{provider}") is None:
        raise _unknown(name, provider)


def _unknown(name: str, provider: str) -> OptionError:
    known = [*HEADRACE_PROVIDERS, *(each for each in FILE_PROVIDERS if each not in PACKAGES)]
    package, remedy = PACKAGES.get(provider.lower()), did_you_mean(provider, known)
    if package is not None:
        # Delta has versions of its own.
        version = "VERSION" if provider.lower() == "delta" else metadata.version("pyspark")
        remedy = (
            f"start Spark with its package: headrace run -c spark.jars.packages={package}:{version} …, in Python "
            f'headrace.session(conf={{"spark.jars.packages": "{package}:{version}"}})'
        )
    return OptionError(
        f"table {name} has an unknown provider",
        received=f"USING {provider}",
        valid=[*known, "a source of Spark whose package is in the session"],
        remedy=remedy,
    )


def missing_note(definition: TableDefinition) -> str:
    """Return the end of a message about a definition whose store has no such table; nothing if it has one.

    A definition may come before its table, so this is no error. A store that is slow to answer is not waited for.

    Raises:
        OptionError: the store cannot be opened with these options.
    """
    if not is_headrace(definition.provider):
        return ""
    try:
        within(_SECONDS_TO_ANSWER, lambda: _find(definition))
    except _UnusableError as error:
        raise error.reason from None
    except TimeoutError:
        return f"; note: its store has not answered within {_SECONDS_TO_ANSWER:g} seconds"
    except NotFoundError as error:
        return f"; note: {error.problem}: {error.received}"
    except HeadraceError as error:
        return f"; note: it was not looked up in its store: {error.problem}"
    return ""


class _UnusableError(Exception):
    """The options of a definition open no store."""

    def __init__(self, reason: OptionError) -> None:
        super().__init__(reason)
        self.reason = reason


def _find(definition: TableDefinition) -> None:
    # A variable of the environment, and a secret that is not stored, can be missing until the table is used.
    location = location_of(definition)
    try:
        opened = location.open_store()
    except OptionError as error:
        raise _UnusableError(error) from None
    with opened as store:
        location.open(store)
