"""The manifests for Kubernetes fit the schema of its API, and each other; the image is as a linter advises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.release.versions import last_release

from headrace.stores.registry import openings
from headrace.streaming_sql.language.grammar import parse
from tests.documents import ROOT

with warnings.catch_warnings():
    # It uses an old way to find its own version.
    warnings.simplefilter("ignore")
    import kubernetes_validate

MANIFESTS = list(yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "stream.yaml").read_text()))
BY_KIND: dict[str, dict[str, Any]] = {each["kind"]: each for each in MANIFESTS}
TEMPLATE = BY_KIND["Deployment"]["spec"]["template"]
(CONTAINER,) = TEMPLATE["spec"]["containers"]
SETTINGS = dict(each.removeprefix("--conf=").split("=", 1) for each in CONTAINER["args"] if each.startswith("--conf="))


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda each: f"{each['kind']} {each['metadata']['name']}")
def test_a_manifest_fits_the_api(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, "1.31", strict=True)


def test_the_job_can_be_parsed_and_the_image_has_the_last_release() -> None:
    assert len(parse(BY_KIND["ConfigMap"]["data"]["job.sql"])) == 5
    assert CONTAINER["image"].endswith(f":{last_release()}")
    assert SETTINGS["spark.kubernetes.container.image"] == CONTAINER["image"]


@pytest.mark.parametrize(
    ("setting", "field"),
    [
        # Otherwise executors start in the namespace "default".
        ("spark.kubernetes.namespace", "metadata.namespace"),
        # It owns the pods of executors, which Kubernetes deletes after their owner.
        ("spark.kubernetes.driver.pod.name", "metadata.name"),
        # Executors connect to it.
        ("spark.driver.bindAddress", "status.podIP"),
    ],
)
def test_settings_have_fields_of_the_drivers_pod(setting: str, field: str) -> None:
    variables = {f"$({each['name']})": each.get("valueFrom", {}) for each in CONTAINER["env"]}
    assert variables[SETTINGS[setting]] == {"fieldRef": {"fieldPath": field}}


def test_the_manifests_name_each_other() -> None:
    account, role, binding = BY_KIND["ServiceAccount"], BY_KIND["Role"], BY_KIND["RoleBinding"]
    assert TEMPLATE["spec"]["serviceAccountName"] == account["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["metadata"]["name"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    service = BY_KIND["Service"]
    assert service["spec"]["selector"] == TEMPLATE["metadata"]["labels"]
    assert SETTINGS["spark.driver.host"] == service["metadata"]["name"]
    ports = {each["name"]: str(each["port"]) for each in service["spec"]["ports"]}
    assert ports == {
        "driver": SETTINGS["spark.driver.port"],
        "blockmanager": SETTINGS["spark.driver.blockManager.port"],
    }
    volumes = {each["name"]: each for each in TEMPLATE["spec"]["volumes"]}
    assert volumes["job"]["configMap"]["name"] == BY_KIND["ConfigMap"]["metadata"]["name"]
    assert volumes.keys() == {each["name"] for each in CONTAINER["volumeMounts"]}


def test_the_image_is_built_as_a_linter_advises() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("hadolint is not installed: its package has no build for this machine")
    done = subprocess.run([hadolint, "--no-color", ROOT / "deploy" / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_image_has_the_packages_of_all_stores() -> None:
    (extras,) = re.findall(r"^ARG EXTRAS=(\S+)$", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE)
    of_stores = {each.extra for each in openings() if each.extra is not None}
    assert {f"headrace[{extra}]" for extra in extras.split(",")} == of_stores | {"headrace[metrics]", "headrace[spark]"}


def test_the_scripts_of_the_image_can_be_executed() -> None:
    scripts = sorted((ROOT / "deploy" / "image").iterdir())
    assert [each.name for each in scripts] == ["decom.sh", "entrypoint.sh"]
    assert all(os.access(each, os.X_OK) for each in scripts)
