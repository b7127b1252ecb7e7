"""The contents of the sdist and the wheel: the files of src/, licences and metadata, and nothing else."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Iterable
from email import message_from_bytes
from pathlib import Path, PurePosixPath

# The sdist builds the wheel, and has no more than that needs.
_SDIST_FILES = {".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
# The conformance tests of stores are for other packages too, so they are published.
_PUBLISHED_TESTS = PurePosixPath("headrace/testing")
_NOT_PUBLISHED = {"bench", "docs", "examples", "tests", "tools", ".github"}


def sdist_problems(sdist: Path, tree: Path) -> list[str]:
    """Return the faults of an sdist that was built of a tree, a sentence each."""
    with tarfile.open(sdist) as archive:
        top = sdist.name.removesuffix(".tar.gz")
        names = {each.name.removeprefix(f"{top}/") for each in archive.getmembers() if each.isfile()}
    code = {name.removeprefix("src/") for name in names if name.startswith("src/")}
    others = {name for name in names if not name.startswith("src/")}
    return _differences("sdist", others, _SDIST_FILES) + _code_problems("sdist", code, tree)


def wheel_problems(wheel: Path, tree: Path) -> list[str]:
    """Return the faults of a wheel that was built of a tree, a sentence each."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        information = "{}-{}.dist-info/".format(*wheel.name.split("-")[:2])
        metadata = message_from_bytes(archive.read(f"{information}METADATA"))
    licences = {"LICENSE", *(str(each.relative_to(tree)) for each in tree.glob("src/**/*.LICENSE.txt"))}
    files = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", *(f"licenses/{each}" for each in licences)}
    files.add("sboms/components.cdx.json")
    others = {name.removeprefix(information) for name in names if name.startswith(information)}
    problems = _differences("declaration of licences", set(metadata.get_all("License-File", [])), licences)
    problems += _differences("metadata of the wheel", others, files)
    return problems + _code_problems("wheel", {name for name in names if not name.startswith(information)}, tree)


def _code_problems(archive: str, names: set[str], tree: Path) -> list[str]:
    source = tree / "src"
    files = {str(each.relative_to(source)) for each in source.rglob("*") if each.is_file()}
    problems = _differences(archive, names, files)
    for path in map(PurePosixPath, sorted(names)):
        if path.is_relative_to(_PUBLISHED_TESTS):
            continue
        if _NOT_PUBLISHED & set(path.parts) or path.name.startswith("test_"):
            problems.append(f"the {archive} has {path}, which is not for users")
    return problems


def _differences(what: str, present: Iterable[str], expected: Iterable[str]) -> list[str]:
    present, expected = set(present), set(expected)
    return [f"the {what} has {each}" for each in sorted(present - expected)] + [
        f"the {what} has no {each}" for each in sorted(expected - present)
    ]
