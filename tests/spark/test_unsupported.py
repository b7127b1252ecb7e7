"""Queries that Structured Streaming does not support raise the same error with and without headrace's sink."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import headrace
from tests.spark.oracles import example

unsupported = example("unsupported")


def without_ids(error: AnalysisException) -> str:
    """Return the text of an error without the numbers of columns and objects, which differ between queries."""
    return re.sub(r"#\d+L?|@[0-9a-f]+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|T\d+ms", "", str(error))


@pytest.mark.parametrize("number", range(len(unsupported.REFUSED)), ids=lambda n: unsupported.REFUSED[n][0].__name__)
def test_a_refused_query_raises_sparks_error(spark: SparkSession, tmp_path: Path, number: int) -> None:
    query, mode = unsupported.REFUSED[number]
    with headrace.open(tmp_path / "store", create=True, synchronous="off") as store:
        unsupported.create(store)
        with pytest.raises(AnalysisException) as ours:
            unsupported.build(spark, store, tmp_path / "checkpoint", number).start()
        rows = query(unsupported.read(spark, store))
        with pytest.raises(AnalysisException) as theirs:
            rows.writeStream.outputMode(mode).foreachBatch(lambda batch, number: None).start()
    assert ours.value.getCondition() == theirs.value.getCondition()
    assert without_ids(ours.value) == without_ids(theirs.value)


def test_the_example_prints_every_error(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unsupported.main(tmp_path)
    assert len(capsys.readouterr().out.splitlines()) == len(unsupported.REFUSED)
