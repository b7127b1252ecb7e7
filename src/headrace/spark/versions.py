"""Versions of Spark, and all in which they differ for headrace. No other module asks for Spark's version.

`DIFFERENCES` has the limits of old versions: ``tools/spark_versions_page.py`` writes docs/spark-versions.md from them.
`headrace.spark.old_streams` has the streams of versions that do not tell a source the start of a batch.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
)

from headrace.batches.feeds.feed import Offset
from headrace.errors import UnsupportedError

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable as ReadAllAvailable
    from pyspark.sql.streaming.datasource import ReadLimit as ReadLimit
    from pyspark.sql.streaming.datasource import ReadMaxRows as ReadMaxRows
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as SupportsTriggerAvailableNow
except ImportError:
    # Spark 4.0 and 4.1 do not call the methods that use these.
    ReadAllAvailable = ReadLimit = ReadMaxRows = SupportsTriggerAvailableNow = object  # type: ignore[assignment, misc]

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType, StructType

OLDEST, NEWEST = (4, 0), (4, 3)
"""The versions of Spark with which the tests run."""
_FUNCTION_SETTING = "sqlConfig."
_PYTHONS = "Programming Language :: Python :: 3."
# The packages that bring the module pyspark.
_PACKAGES = ("pyspark", "pyspark-client", "databricks-connect")
_log = logging.getLogger("headrace")


def _numbers(version: str) -> tuple[int, int]:
    major, minor = re.findall(r"\d+", version)[:2]
    return int(major), int(minor)


INSTALLED = _numbers(pyspark.__version__)


@dataclass(frozen=True)
class Difference:
    """What versions of Spark before one do not have.

    Attributes:
        feature: the feature of headrace.
        since: the first version of Spark with the feature.
        before: what headrace does with older versions.
    """

    feature: str
    since: tuple[int, int]
    before: str

    @property
    def present(self) -> bool:
        """Whether the installed version has the feature."""
        return self.since <= INSTALLED

    def check(self) -> None:
        """Raise `UnsupportedError` if the installed version does not have the feature."""
        if not self.present:
            raise UnsupportedError(
                f"{self.feature} needs a newer Spark",
                received=f"pyspark {pyspark.__version__}",
                valid=f"pyspark {self.since[0]}.{self.since[1]} and newer",
                remedy="docs/spark-versions.md lists the differences of Spark's versions",
            )


STARTS = Difference(
    "`trigger(availableNow=True)` reads all rows that exist at its start, in several batches",
    (4, 2),
    "Queries of headrace and of its SQL have the trigger `processingTime`. With any trigger, a query first reads the "
    "rows that exist at its start, without waiting for `minRowsPerTrigger`, and then pauses for half a second. In the "
    "pause, such a query stops. If it has several sources, whose pauses differ, it also reads some rows that are "
    "committed meanwhile; with a source of another package that always has new rows, it does not stop. Other queries "
    "(`df.writeStream … .start()`) run one batch, and Spark warns that the source `does not support "
    "Trigger.AvailableNow`: the batch keeps the limits of the options, and reads only the base data of a tunnel that "
    "has some. Start them again, or use `headrace.write_stream`",
)
SINGLE_BATCH = Difference(
    "`trigger(once=True)` reads all rows in one batch, without limits",
    (4, 2),
    "The batch keeps the limits of the options",
)
LAG = Difference(
    "Progress reports have the lag of each source (`headrace.lag_of`, lag in metrics, traces, the web page)",
    (4, 2),
    "Reports have no lag, and alerts on it are silent; `headrace tunnel describe` and `headrace consumer describe` "
    "have it",
)
FILTERS = Difference(
    "Option `pushDownFilters`",
    (4, 1),
    "The option is an error",
)
ELEMENTS = Difference(
    "`NOT NULL` of the elements of arrays and the values of maps is in the schema of a DataFrame",
    (4, 1),
    "They can be null in the schema. Their values are the same, and writes into `NOT NULL` are checked",
)
ENVIRONMENT = Difference(
    "Variables such as `HEADRACE_STORE`, and interpreters, that are set after Spark's Java process has started reach "
    "sources and native sinks",
    (4, 1),
    "Set them before the first session: these keep the environment of the start, and a warning names the variables",
)
WATERMARKS = Difference(
    "Watermarks in SQL: `FROM t WATERMARK …`, `DELAY`, `WATERMARK(…)`",
    (4, 1),
    "They are an error; `DataFrame.withWatermark` has the same meaning",
)
SESSIONS = Difference(
    "`headrace.follow` over Spark Connect",
    (4, 3),
    "The call is an error: batches would run in the user's own session, whose settings and views can change",
)
PIPELINES = Difference(
    "[Declarative pipelines](pipelines.md) over tables and queues",
    (4, 3),
    "Not supported: their tests need Spark 4.3",
)
DIFFERENCES = (STARTS, SINGLE_BATCH, LAG, FILTERS, ELEMENTS, ENVIRONMENT, WATERMARKS, SESSIONS, PIPELINES)

if INSTALLED >= (4, 1):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):  # type: ignore[misc, no-redef]
        """A sink of streams that takes Arrow: Spark 4.0 passes Arrow to all subclasses of the base for batches."""


class PlanningReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader with the methods of the newest Spark, and one for older ones."""

    @abstractmethod
    def next_offset(self, start: Offset) -> Offset:
        """Return the end of the batch that starts at an offset, within the limits of the options."""

    @abstractmethod
    def lift_end(self) -> None:
        """Plan batches with all rows again, after `prepareForTriggerAvailableNow`."""


def register(spark: SparkSession, sources: Sequence[type[DataSource]], changed: Sequence[str]) -> None:
    """Register data sources again, so that Spark's processes get the current environment and the workers' interpreter.

    Args:
        changed: the variables that differ from the environment of Spark's Java process, or from this interpreter.
    """
    if ENVIRONMENT.present:
        for source in sources:
            spark.dataSource.register(source)
    else:
        # Spark 4.0 does not replace a source that it has found itself.
        _log.warning(
            "Spark %s does not pass %s to the formats %s, whose sources run with %s: set them before the first session",
            spark.version,
            ", ".join(changed),
            ", ".join(source.name() for source in sources),
            os.environ.get("PYSPARK_DRIVER_PYTHON", sys.executable),
        )


def unsupported_python() -> str:
    """Return a text if the installed pyspark does not name this version of Python in its metadata; else empty."""
    packages = (each for name in _PACKAGES for each in distributions(name=name))
    lines = [line for package in packages for line in package.metadata.get_all("Classifier") or ()]
    names = [f"3.{line.removeprefix(_PYTHONS)}" for line in lines if line.startswith(_PYTHONS)]
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if not names or here in names:
        return ""
    return f"pyspark {pyspark.__version__} is for Python {', '.join(names)}, and this is Python {here}"


def function_lines(lines: Sequence[str]) -> list[str]:
    """Return the lines of ``DESCRIBE FUNCTION EXTENDED`` in the form of Spark 4.3.

    Spark 4.0 and 4.1 show a temporary function in SQL as JSON, with the time of its creation.
    """
    return [shown for line in lines for shown in (_properties(line) if line.startswith('Usage: {"') else [line])]


def _properties(line: str) -> list[str]:
    values: dict[str, str] = json.loads(line.removeprefix("Usage: "))
    values.pop("sqlFunction.createTime", None)
    settings = {name: value for name, value in values.items() if name.startswith(_FUNCTION_SETTING)}
    meaning = sorted(f"{name}={value}" for name, value in values.items() if name not in settings)
    configs = [f"{name.removeprefix(_FUNCTION_SETTING)}={value}" for name, value in settings.items()]
    return ["Usage:", *meaning, "Configs:", *configs]


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow types of rows, with times in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    zone: dict[str, Any] = {"timezone": "UTC"} if INSTALLED >= (4, 2) else {"timestamp_utc": True}
    return to_arrow_schema(schema, **zone)


def spark_schema(columns: pa.Schema) -> StructType:
    """Return Spark's types of columns. A time without a zone is ``timestamp_ntz``."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(columns, prefer_timestamp_ntz=True)


def spark_type(type: pa.DataType) -> DataType:
    """Return Spark's type of a column; see `spark_schema`."""
    from pyspark.sql.pandas.types import from_arrow_type

    return from_arrow_type(type, prefer_timestamp_ntz=True)
