"""Links between the documents lead somewhere, and the code that CONTRIBUTING.md quotes exists."""

from __future__ import annotations

import re
from functools import cache
from itertools import chain
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    str(page.relative_to(ROOT))
    for page in chain(ROOT.glob("*.md"), ROOT.glob("docs/*.md"), ROOT.glob("examples/**/*.md"))
)


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_between_documents_lead_somewhere(document: str) -> None:
    page = ROOT / document
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
        if "://" not in target:
            linked = page.parent / target if target else page
            assert linked.exists(), target
            assert not anchor or anchor in anchors(linked), f"{target}#{anchor}"


def test_the_index_names_every_document() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = sorted(page.name for page in (ROOT / "docs").glob("*.md") if page.name != "README.md")
    assert [page for page in pages if f"({page})" not in index] == []


def test_the_index_of_examples_names_every_script() -> None:
    index = (ROOT / "examples" / "README.md").read_text()
    scripts = sorted(str(path.relative_to(ROOT / "examples")) for path in (ROOT / "examples").glob("*/*.py"))
    assert [script for script in scripts if f"({script})" not in index] == []


def test_the_code_that_contributing_quotes_exists() -> None:
    quotes = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    code = [path.read_text() for folder in ("src", "tests") for path in (ROOT / folder).glob("**/*.py")]
    assert quotes
    assert [quote for quote in quotes if not any(dedent(quote).strip() in text for text in code)] == []


def mapped_folders() -> list[str]:
    """Return the folders on the map of docs/architecture.md, as paths below src."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    block = re.findall(r"```text\n(headrace/\n.*?)```", text, re.DOTALL)[0]
    folders: list[str] = []
    above: list[str] = []
    for line in block.splitlines():
        indent, name = re.fullmatch(r"((?: {4})*)([a-z_]+)/(?: .*)?", line).groups()  # type: ignore[union-attr]
        above = [*above[: len(indent) // 4], name]
        folders.append("/".join(above))
    return folders


def test_the_map_names_each_folder_once_and_nothing_else() -> None:
    source = ROOT / "src"
    # A checkout may have folders with bytecode of modules that were moved.
    paths = [path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    folders = sorted({str(each) for path in paths for each in path.relative_to(source).parents} - {"."})
    assert sorted(mapped_folders()) == folders
    assert len((ROOT / "docs" / "architecture.md").read_text().splitlines()) <= 120
