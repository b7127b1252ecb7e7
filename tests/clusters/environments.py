"""Python environments of hosts: with headrace, without it, or with another version.

An environment is a real one of `venv`. Its packages are links to those of the tests' environment, so it costs no time
and no disk; a package that is left out cannot be imported. headrace is a copy, like an installed one.
"""

from __future__ import annotations

import shutil
import sysconfig
import venv
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"
STARTUP = Path(__file__).parents[1] / "startup" / "sitecustomize.py"
MODULES = ("headrace", "pyspark_headrace", "pyspark_tablestore", "pyspark_yt")


def create(
    directory: Path,
    *,
    version: str | None = None,
    headrace: bool = True,
    without: Iterable[str] = (),
    copied: Iterable[str] = (),
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
    left_out = {*MODULES, *without}
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if entry.name.partition(".")[0] not in left_out and entry.suffix != ".pth" and "headrace" not in entry.name:
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


def install(packages: Path, version: str | None = None) -> None:
    """Copy headrace into a directory of packages."""
    shutil.copytree(SOURCES / "headrace", packages / "headrace", ignore=shutil.ignore_patterns("__pycache__"))
    for name in MODULES[1:]:
        shutil.copy(SOURCES / f"{name}.py", packages)
    if version is not None:
        module = packages / "headrace" / "__init__.py"
        text = module.read_text()
        lines = [f'__version__ = "{version}"' if line.startswith("__version__") else line for line in text.splitlines()]
        module.write_text("\n".join(lines) + "\n")


def remove(packages: Path, undo: ExitStack) -> None:
    """Remove headrace from a directory of packages, until the stack puts it back."""
    for name in MODULES:
        (path,) = (path for path in packages.glob(f"{name}*") if path.stem == name)
        move_away(path, undo)


def replace(packages: Path, version: str, undo: ExitStack) -> None:
    """Replace headrace in a directory of packages by one of another version, until the stack puts it back."""
    remove(packages, undo)
    install(packages, version)
    for name in MODULES[1:]:
        undo.callback((packages / f"{name}.py").unlink)
    undo.callback(shutil.rmtree, packages / MODULES[0])


def move_away(path: Path, undo: ExitStack) -> None:
    """Give a file another name, until the stack gives it back the old one."""
    away = path.with_name(f"away-{path.name}")
    undo.callback(away.rename, path)
    path.rename(away)


def packages_of(directory: Path) -> Path:
    """Return the directory of the packages of an environment."""
    return next(directory.glob("lib/python*/site-packages"))


def interpreter(home: Path) -> Path:
    """Return the path of the interpreter of the environment ``venv`` in a host's directory."""
    return home / "venv" / "bin" / "python"
