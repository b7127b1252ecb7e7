"""The settings in ``deploy`` are settings of Spark: their names are known, and their values can be read."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession
from tools.release.versions import last_release

from tests.documents import ROOT

# Objects of Scala that declare settings: Spark knows those of loaded ones.
_DECLARING = (
    "org.apache.spark.internal.config.package",
    "org.apache.spark.deploy.yarn.config.package",
    "org.apache.spark.deploy.k8s.Config",
)


def yarn_settings() -> dict[str, str]:
    lines = (ROOT / "deploy" / "yarn" / "spark-defaults.conf").read_text().splitlines()
    pairs = [line.split(maxsplit=1) for line in lines if line.strip() and not line.startswith("#")]
    return {name: value.strip() for name, value in pairs}


def kubernetes_settings() -> dict[str, str]:
    manifests = list(yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "stream.yaml").read_text()))
    (deployment,) = (each for each in manifests if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    arguments = [each.removeprefix("--conf=") for each in container["args"] if each.startswith("--conf=")]
    return dict(each.split("=", 1) for each in arguments)


@pytest.mark.parametrize("settings", [yarn_settings(), kubernetes_settings()], ids=["yarn", "kubernetes"])
def test_spark_knows_each_setting_and_can_read_its_value(spark: SparkSession, settings: dict[str, str]) -> None:
    jvm: Any = spark.sparkContext._jvm
    for declaring in _DECLARING:
        jvm.java.lang.Class.forName(f"{declaring}$")
    given = jvm.java.util.HashMap()
    for name, value in settings.items():
        given.put(name, value)
    reader = jvm.org.apache.spark.internal.config.ConfigReader(given)
    assert len(settings) >= 6
    for name in settings:
        entry = jvm.org.apache.spark.internal.config.ConfigEntry.findEntry(name)
        assert entry is not None, name
        # Java raises an error if the value has another type.
        entry.readFrom(reader)


def test_the_archive_has_the_last_release() -> None:
    assert yarn_settings()["spark.archives"].endswith(f"environment-{last_release()}.tar.gz#environment")
