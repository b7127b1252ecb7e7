"""The version of a release, in each file that names it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
_DATED = re.compile(r"^## (\S+) \((\d{4}-\d\d-\d\d|unreleased)\)$", re.MULTILINE)
# Files that name the current version, with a pattern for each place.
_MENTIONS = {
    "deploy/Dockerfile": r"^ARG VERSION=(\S+)$",
    "deploy/kubernetes/stream.yaml": r"/headrace:([\w.]+)$",
    "deploy/kubernetes/spark-application.yaml": r"/headrace:([\w.]+)$",
    "deploy/yarn/spark-defaults.conf": r"environment-([\d.]+)\.tar\.gz",
    "docs/deployment.md": r"(?:/headrace:|valid: headrace )([\d.]+\d)",
    "docs/recipes.md": r"headrace:(\d[\d.]+\d)",
    "src/headrace/__init__.py": r'^__version__ = "(.+)"$',
}


def release_version(root: Path = ROOT) -> str:
    """Return the version in pyproject.toml."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def release_date(root: Path = ROOT) -> str:
    """Return the date of the newest section of the changelog, or ``unreleased``."""
    return _newest_section(root)[1]


def disagreements(root: Path = ROOT) -> list[str]:
    """Return a sentence for each place that names another version than pyproject.toml, or none."""
    version = release_version(root)
    problems = []
    if _newest_section(root)[0] != version:
        problems.append(f"CHANGELOG.md begins with {_newest_section(root)[0]} instead of {version}")
    for file, pattern in _MENTIONS.items():
        mentioned = set(re.findall(pattern, (root / file).read_text(), re.MULTILINE))
        if mentioned != {version}:
            problems.append(f"{file} names {', '.join(sorted(mentioned)) or 'no version'} instead of {version}")
    return problems


def _newest_section(root: Path) -> tuple[str, str]:
    section = _DATED.search((root / "CHANGELOG.md").read_text())
    return (section[1], section[2]) if section else ("no version with a date", "unreleased")
