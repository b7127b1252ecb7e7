"""The version of the source and that of the last release, in each file that names one."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).parents[2]
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_DATED = re.compile(r"(\S+) \(\d{4}-\d\d-\d\d\)")
_SOURCE = ("src/headrace/__init__.py", r'^__version__ = "(.+)"$')
# Files that name the last release, which is what users install; with a pattern for each place.
MENTIONS = {
    "deploy/kubernetes/stream.yaml": r"/headrace:([\w.]+)$",
    "deploy/kubernetes/spark-application.yaml": r"/headrace:([\w.]+)$",
    "deploy/yarn/spark-defaults.conf": r"environment-([\d.]+)\.tar\.gz",
    "docs/deployment.md": r"(?:/headrace:|valid: headrace )([\d.]+\d)",
    "docs/postgres-tunnels.md": r'"version": "([\w.]+)"',
    "docs/recipes.md": r"headrace:(\d[\d.]+\d)",
}


def source_version(root: Path = ROOT) -> str:
    """Return the version in pyproject.toml: that of a release, or between releases one such as ``0.2.0.dev0``."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def is_release(version: str) -> bool:
    """Return whether a version is that of a release."""
    return not Version(version).is_devrelease


def last_release(root: Path = ROOT) -> str:
    """Return the newest version that has a date in the changelog."""
    return next(found[1] for each in _sections(root) if (found := _DATED.fullmatch(each)))


def disagreements(root: Path = ROOT) -> list[str]:
    """Return a sentence for each place that names another version than it should, or none."""
    version, released, first = source_version(root), last_release(root), _sections(root)[0]
    problems = []
    if is_release(version):
        if released != version or not _DATED.fullmatch(first):
            problems.append(f"CHANGELOG.md begins with {first!r} instead of '{version} (YEAR-MONTH-DAY)'")
    elif first != "Unreleased":
        problems.append(f"CHANGELOG.md begins with {first!r} instead of 'Unreleased', and the version is {version}")
    elif Version(version) <= Version(released):
        problems.append(f"pyproject.toml names {version}, which is not after the last release, {released}")
    for file, pattern, wanted in (
        (*_SOURCE, version),
        *((file, pattern, released) for file, pattern in MENTIONS.items()),
    ):
        mentioned = set(re.findall(pattern, (root / file).read_text(), re.MULTILINE))
        if mentioned != {wanted}:
            problems.append(f"{file} names {', '.join(sorted(mentioned)) or 'no version'} instead of {wanted}")
    return problems


def _sections(root: Path) -> list[str]:
    return _SECTION.findall((root / "CHANGELOG.md").read_text())
