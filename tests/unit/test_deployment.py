"""The manifests for Kubernetes fit the schema of its API, and name the packages of this release; the image is clean."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

import headrace
from headrace.streaming_sql.language.grammar import parse
from tests.documents import ROOT

with warnings.catch_warnings():
    # It uses an old way to find its own version.
    warnings.simplefilter("ignore")
    import kubernetes_validate

MANIFESTS = list(yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "stream.yaml").read_text()))


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda each: f"{each['kind']} {each['metadata']['name']}")
def test_a_manifest_fits_the_api(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, "1.31", strict=True)


def test_the_job_can_be_parsed_and_the_image_has_this_release() -> None:
    by_kind = {each["kind"]: each for each in MANIFESTS}
    assert len(parse(by_kind["ConfigMap"]["data"]["job.sql"])) == 5
    (container,) = by_kind["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["image"].endswith(f":{headrace.__version__}")
    assert f"--conf=spark.kubernetes.container.image={container['image']}" in container["args"]


def test_the_image_is_built_as_a_linter_advises() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("hadolint is not installed: its package has no build for this machine")
    done = subprocess.run([hadolint, "--no-color", ROOT / "deploy" / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
