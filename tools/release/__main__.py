"""``make release``: build sdist and wheel twice, check them, try the wheel, and write an SBOM and checksums to dist/.

The files are built of the last commit, in two directories. The time of the commit is that of all files, so the same
commit gives the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tools.release.contents import sdist_problems, wheel_problems
from tools.release.versions import ROOT, disagreements, is_release, source_version

DIST = ROOT / "dist"
SMOKE = Path(__file__).with_name("smoke.py")
# What the smoke job uses.
EXTRAS = "spark,query,ui"
_CONTAINED = "src/headrace/ui/components.cdx.json"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("--no-smoke", action="store_true", help="neither install nor try the wheel, and write no SBOM")
    arguments = parser.parse_args()
    _check_tree()
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    with _commit() as tree:
        _build_twice(tree)
        sdist, wheel = _only("*.tar.gz"), _only("*.whl")
        _run(sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel))
        _fail_on(sdist_problems(sdist, tree) + wheel_problems(wheel, tree))
    if not arguments.no_smoke:
        with _environment(wheel) as python:
            with tempfile.TemporaryDirectory(prefix="headrace-smoke-") as directory:
                _run(python, "-I", str(SMOKE), str(ROOT), directory=Path(directory))
            _write_sbom(python)
    _write_checksums()


def _check_tree() -> None:
    """Check that everything is committed, and that all files agree on the version of a release."""
    problems = disagreements()
    if not is_release(source_version()):
        problems.append(f"pyproject.toml names {source_version()}, a version between releases: see CONTRIBUTING.md")
    changed = _output("git", "status", "--porcelain", "--untracked-files=no").splitlines()
    problems += [f"{line[3:]} has changes without a commit" for line in changed]
    _fail_on(problems)


@contextmanager
def _commit() -> Iterator[Path]:
    """Provide the files of the last commit in a directory."""
    with tempfile.TemporaryDirectory(prefix="headrace-tree-") as directory:
        archive = Path(directory) / "tree.tar"
        _run("git", "archive", "--output", str(archive), "HEAD")
        tree = Path(directory) / "tree"
        shutil.unpack_archive(archive, tree, filter="data")
        yield tree


def _build_twice(tree: Path) -> None:
    """Build into dist/, and again of a copy at another path, with another mask of rights and another time zone."""
    time = {"SOURCE_DATE_EPOCH": _output("git", "log", "-1", "--format=%ct").strip()}
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir")
    _run(*build, str(DIST), str(tree), environment=time)
    with tempfile.TemporaryDirectory(prefix="headrace-again-") as directory:
        again = Path(directory) / "elsewhere" / "tree"
        shutil.copytree(tree, again)
        former = os.umask(0o077)
        try:
            _run(
                *build, f"{directory}/dist", str(again), environment=time | {"TZ": "Asia/Tokyo", "PYTHONHASHSEED": "1"}
            )
        finally:
            os.umask(former)
        first, second = (
            {each.name: _checksum(each) for each in folder.iterdir()} for folder in (DIST, Path(directory, "dist"))
        )
        _fail_on([] if first == second else [f"two builds differ: {first} and {second}"])
    print("Built twice with the same bytes")


@contextmanager
def _environment(wheel: Path) -> Iterator[str]:
    """Provide the Python of a new environment with the wheel and its dependencies."""
    with tempfile.TemporaryDirectory(prefix="headrace-environment-") as directory:
        venv.create(directory, with_pip=True)
        python = f"{directory}/bin/python"
        install = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        _run(*install, f"{wheel}[{EXTRAS}]", directory=Path(directory))
        yield python


def _write_sbom(python: str) -> None:
    """Write the packages of an environment, and the scripts that headrace contains, as CycloneDX."""
    sbom = DIST / f"headrace-{source_version()}.cdx.json"
    # They installed the others.
    _run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools", "pip")
    report = (sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--gather-license-texts")
    _run(*report, "--pyproject", str(ROOT / "pyproject.toml"), "--output-file", str(sbom), python)
    content = json.loads(sbom.read_text())
    content["components"] += json.loads((ROOT / _CONTAINED).read_text())["components"]
    sbom.write_text(json.dumps(content, indent=2) + "\n")


def _write_checksums() -> None:
    """Write SHA256SUMS, in the form that ``sha256sum --check`` reads."""
    lines = [f"{_checksum(each)}  {each.name}\n" for each in sorted(DIST.iterdir())]
    (DIST / "SHA256SUMS").write_text("".join(lines))
    print("".join(lines), end="")


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _only(pattern: str) -> Path:
    (path,) = DIST.glob(pattern)
    return path


def _run(*command: str, directory: Path = ROOT, environment: Mapping[str, str] | None = None) -> None:
    print("+", *command, flush=True)
    # A path of the checkout would hide what the wheel lacks.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=directory, env=variables | dict(environment or {}))
    if done.returncode:
        sys.exit(f"release: {command[0]} failed")


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def _fail_on(problems: list[str]) -> None:
    if problems:
        sys.exit("release: " + "\nrelease: ".join(problems))


if __name__ == "__main__":
    main()
