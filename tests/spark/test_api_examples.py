"""The examples of public names that use Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.api.examples import examples, needs, run, variables

NAMES = [each.name for each in examples() if needs(each, "spark")]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_with_a_session_has_its_output(
    name: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Workspaces are in the working directory.
    monkeypatch.chdir(tmp_path)
    names = variables(tmp_path, 2)
    (example,) = (each for each in examples(tmp_path) if each.name == name)
    assert run(example, names) == ""
    names["store"].close()


def test_examples_with_a_query_have_their_outputs(spark: SparkSession, tmp_path: Path) -> None:
    names = variables(tmp_path, 3)
    found = [each for each in examples(tmp_path) if needs(each, "query")]
    assert "".join(run(each, names) for each in found) == ""
    names["store"].close()
