"""Python environments of hosts: with headrace, without it, or with another version.

An environment is a real one of `venv`. Its packages are links to those of the tests' environment, so it costs no time
and no disk; a package that is left out cannot be imported. headrace is a copy, like an installed one.
"""

from __future__ import annotations

import shutil
import sysconfig
import venv
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"
STARTUP = Path(__file__).parents[1] / "startup" / "sitecustomize.py"
# Whose names begin so: headrace's packages, its metadata with the entry points, and the modules by which Spark finds
# formats.
PACKAGES = "headrace*"
MODULES = "pyspark_*.py"


def create(
    directory: Path,
    *,
    version: str | None = None,
    headrace: bool = True,
    without: Collection[str] = (),
    copied: Collection[str] = (),
) -> None:
    """Create an environment.

    Args:
        directory: the new directory. Its host must see it at the path at which it is used.
        version: the version that this headrace says it has; None for the true one.
        headrace: whether headrace is installed.
        without: top-level packages that are left out.
        copied: top-level packages that are copies instead of links, except their Java archives.
    """
    venv.EnvBuilder(symlinks=True).create(directory)
    packages = packages_of(directory)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if entry.name.partition(".")[0] not in without and entry.suffix != ".pth" and "headrace" not in entry.name:
            if entry.name in copied:
                shutil.copytree(entry, packages / entry.name, copy_function=_copy)
            else:
                (packages / entry.name).symlink_to(entry)
    # Spark's Python processes start faster with it.
    (packages / STARTUP.name).symlink_to(STARTUP)
    if headrace:
        install(packages, version)


def _copy(source: str, target: str) -> None:
    if source.endswith(".jar"):
        Path(target).symlink_to(source)
    else:
        shutil.copy2(source, target)


def install(packages: Path, version: str | None = None) -> list[Path]:
    """Copy headrace into a directory of packages; return the copies."""
    (metadata,) = Path(sysconfig.get_path("purelib")).glob("headrace-*.dist-info")
    copies = []
    for source in (metadata, *SOURCES.glob(PACKAGES), *SOURCES.glob(MODULES)):
        copies.append(packages / source.name)
        if source.is_dir():
            shutil.copytree(source, copies[-1], ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copies[-1])
    if version is not None:
        module = packages / "headrace" / "__init__.py"
        text = module.read_text()
        lines = [f'__version__ = "{version}"' if line.startswith("__version__") else line for line in text.splitlines()]
        module.write_text("\n".join(lines) + "\n")
    return copies


def remove(packages: Path, undo: ExitStack) -> None:
    """Remove headrace from a directory of packages, until the stack puts it back."""
    for path in (*packages.glob(PACKAGES), *packages.glob(MODULES)):
        move_away(path, undo)


def replace(packages: Path, version: str, undo: ExitStack) -> None:
    """Replace headrace in a directory of packages by one of another version, until the stack puts it back."""
    remove(packages, undo)
    for path in install(packages, version):
        undo.callback(shutil.rmtree if path.is_dir() else Path.unlink, path)


def move_away(path: Path, undo: ExitStack) -> None:
    """Give a file another name, until the stack gives it back the old one."""
    away = path.with_name(f"{path.name}.away")
    undo.callback(away.rename, path)
    path.rename(away)


def packages_of(directory: Path) -> Path:
    """Return the directory of the packages of an environment."""
    return next(directory.glob("lib/python*/site-packages"))


def interpreter(home: Path) -> Path:
    """Return the path of the interpreter of the environment ``venv`` in a host's directory."""
    return home / "venv" / "bin" / "python"
