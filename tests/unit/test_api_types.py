"""A program of a user passes pyright in strict mode: the types of the public names are complete."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.documents import ROOT

PROGRAM = ROOT / "tests" / "api" / "program.py"


def test_a_users_program_has_no_errors_of_types(tmp_path: Path) -> None:
    settings = {
        "include": [str(PROGRAM)],
        "extraPaths": [str(ROOT / "src")],
        "typeCheckingMode": "strict",
        # pyarrow has no types of its own.
        "reportMissingTypeStubs": False,
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--project", str(tmp_path), "--outputjson"]
    command += ["--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    report = json.loads(done.stdout)
    assert [f"{each['range']['start']['line'] + 1}: {each['message']}" for each in report["generalDiagnostics"]] == []
    assert report["summary"]["filesAnalyzed"] == 1
