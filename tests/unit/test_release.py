"""What a release publishes: versions agree, archives have what they should, and workflows name what exists."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
from pathlib import Path

import click
import pytest
import yaml
from tools.release.contents import sdist_problems
from tools.release.versions import MENTIONS, disagreements, last_release

from headrace.cli.run import run
from headrace.stores.embedded.format import FORMAT_VERSION
from tests.documents import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_all_files_name_one_version() -> None:
    assert disagreements() == []


@pytest.mark.parametrize(
    ("version", "sections", "problems"),
    [
        ("7.0.0", ["7.0.0 (2026-01-02)", "6.0.0 (2026-01-01)"], []),
        ("7.1.0.dev0", ["Unreleased", "7.0.0 (2026-01-02)"], []),
        ("7.0.0", ["Unreleased", "7.0.0 (2026-01-02)"], ["begins with 'Unreleased' instead of '7.0.0 (YEAR"]),
        ("7.0.0", ["7.0.0 (unreleased)", "7.0.0 (2026-01-02)"], ["begins with '7.0.0 (unreleased)'"]),
        ("7.1.0.dev0", ["7.0.0 (2026-01-02)"], ["instead of 'Unreleased', and the version is 7.1.0.dev0"]),
        ("7.0.0.dev0", ["Unreleased", "7.0.0 (2026-01-02)"], ["not after the last release, 7.0.0"]),
    ],
)
def test_the_version_the_changelog_and_the_files_for_users_agree(
    version: str, sections: list[str], problems: list[str], tmp_path: Path
) -> None:
    text = "# Changes\n" + "".join(f"\n## {section}\n" for section in sections)
    files = {"pyproject.toml": f'[project]\nversion = "{version}"\n', "CHANGELOG.md": text}
    files["src/headrace/__init__.py"] = f'__version__ = "{version}"\n'
    for file in MENTIONS:
        files[file] = (ROOT / file).read_text().replace(last_release(), "7.0.0")
    for file, content in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(content)
    found = disagreements(tmp_path)
    assert len(found) == len(problems)
    assert all(problem in each for problem, each in zip(problems, found, strict=True))
    (tmp_path / "deploy/yarn/spark-defaults.conf").write_text("environment-6.9.0.tar.gz")
    assert disagreements(tmp_path) == [*found, "deploy/yarn/spark-defaults.conf names 6.9.0 instead of 7.0.0"]


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["src/headrace/a.py", "tests/test_a.py"], "the sdist has tests/test_a.py"),
        ([], "the sdist has no headrace/a.py"),
        (["src/headrace/a.py", "src/headrace/b.py"], "the sdist has headrace/b.py"),
    ],
)
def test_a_wrong_file_in_an_archive_is_noticed(names: list[str], problem: str, tmp_path: Path) -> None:
    (tmp_path / "src" / "headrace").mkdir(parents=True)
    (tmp_path / "src" / "headrace" / "a.py").touch()
    sdist = tmp_path / "headrace-1.0.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for name in (*names, ".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"):
            archive.add("/dev/null", f"headrace-1.0/{name}", filter=_as_file)
    assert sdist_problems(sdist, tmp_path) == [problem]


def _as_file(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.type = tarfile.REGTYPE
    return member


def test_the_list_of_contained_scripts_names_the_files() -> None:
    components = json.loads((ROOT / "src" / "headrace" / "ui" / "components.cdx.json").read_text())["components"]
    named = {f"{each['name'].removesuffix('.org')}-{each['version']}" for each in components}
    files = (ROOT / "src" / "headrace" / "ui" / "static").glob("*.LICENSE.txt")
    assert named == {each.name.removesuffix(".LICENSE.txt") for each in files}


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda each: each.stem)
def test_a_workflow_has_pinned_actions_and_calls_commands_that_exist(workflow: Path) -> None:
    text = workflow.read_text()
    actions = re.findall(r"uses: (\S+)", text)
    assert actions
    assert [each for each in actions if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", each)] == []
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"run: make ([a-z-]+)", text)) <= targets


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda each: each.stem)
def test_a_workflow_has_no_rights_but_those_that_its_jobs_name(workflow: Path) -> None:
    content = yaml.safe_load(workflow.read_text())
    assert content["permissions"] in ({}, {"contents": "read"})
    for job in content["jobs"].values():
        assert "timeout-minutes" in job


def test_the_page_on_support_has_the_formats_of_this_release() -> None:
    table = (ROOT / "docs" / "support.md").read_text()
    assert f"| embedded store | {FORMAT_VERSION} | 1 to {FORMAT_VERSION};" in table
    workspace = (ROOT / "src" / "headrace" / "streaming_sql" / "workspace.py").read_text()
    (version,) = re.findall(r"^_FORMAT_VERSION = (\d+)$", workspace, re.MULTILINE)
    assert f"| workspace of streaming SQL | {version} | 1 to {version};" in table


@pytest.mark.parametrize(
    "file", ["systemd/headrace@.service", "airflow/headrace_totals.py", "dagster/headrace_totals.py"]
)
def test_the_command_of_a_recipe_has_options_of_headrace(file: str) -> None:
    """`make test-recipes` runs the recipes; this check needs no scheduler."""
    options = re.findall(r"(?<![\w-])--[a-z-]+", (ROOT / "deploy" / file).read_text())
    known = {option for each in run.params if isinstance(each, click.Option) for option in each.opts}
    assert options
    assert set(options) <= known


def test_the_entrypoint_of_the_image_starts_a_driver_of_sparks_operator(tmp_path: Path) -> None:
    for name, script in {"tini": 'shift; exec "$@"', "spark-submit": 'printf "%s\\n" "$@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    arguments = ["--properties-file", "/opt/spark/conf/spark.properties", "local:///job/job.py"]
    done = subprocess.run(
        [ROOT / "deploy" / "image" / "entrypoint.sh", "driver", *arguments],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.7"},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = ["--deploy-mode", "client", "--conf", "spark.driver.bindAddress=10.0.0.7", *arguments]
    assert done.stdout.splitlines() == expected
