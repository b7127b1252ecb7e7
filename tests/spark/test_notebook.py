"""The notebook of the documents runs, and has the outputs that it keeps."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from tests.documents import ROOT

NOTEBOOK = ROOT / "docs" / "notebook.ipynb"


def outputs(notebook: Any) -> list[list[tuple[str, str]]]:
    """Return the texts of each cell, and the kinds of its pictures, without what Spark logs."""
    return [
        [
            ("text", output["text"])
            if output["output_type"] == "stream"
            else ("picture" if "image/png" in output["data"] else "value", output["data"]["text/plain"])
            for output in cell["outputs"]
            if output.get("name") != "stderr"
        ]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


def test_the_notebook_has_the_outputs_that_it_keeps(tmp_path: Path) -> None:
    kept = nbformat.read(NOTEBOOK, as_version=4)
    run = NotebookClient(
        nbformat.read(NOTEBOOK, as_version=4), timeout=120, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    assert outputs(run) == outputs(kept)


def test_the_notebook_names_no_place_of_the_machine_that_ran_it() -> None:
    assert re.findall(r"/(?:tmp|home|root|dev|work)/\w+", NOTEBOOK.read_text()) == []
