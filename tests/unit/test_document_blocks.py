"""The account of all code in the documents is complete and true, and commands and statements are valid."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from headrace.cli.main import headrace
from headrace.streaming_sql.language.grammar import parse
from tests.document_account import ACCOUNT
from tests.documents import ROOT, Block, blocks_of, claims_of

PAGES = ["README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]
CODE = ("python", "py", "sql", "sh", "bash")
# Placeholders and alternatives of the forms of statements.
_FORM = re.compile(r"…|\[(?!\d)[A-Za-z(]| \| ")


def code_of(page: str) -> list[Block]:
    return [each for each in blocks_of((ROOT / page).read_text()) if each.language in CODE]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_has_a_test_or_a_reason(page: str) -> None:
    for block, claim in claims_of(page):
        if claim.startswith("tests/"):
            # A test that runs blocks of a page names the page.
            assert f'"{page}"' in (ROOT / claim).read_text(), f"{claim} does not run {page}: {block.text[:100]}"
        else:
            assert len(claim) > 10, block


@pytest.mark.parametrize("page", PAGES)
def test_every_fence_is_of_a_block(page: str) -> None:
    fences = re.findall("^ *```", (ROOT / page).read_text(), re.MULTILINE)
    assert len(fences) == 2 * len(blocks_of((ROOT / page).read_text()))


def test_no_page_of_the_account_is_missing() -> None:
    assert set(ACCOUNT) <= set(PAGES)


@pytest.mark.parametrize("page", [page for page in PAGES if any(each == "sql" for each, _ in code_of(page))])
def test_every_whole_statement_can_be_parsed(page: str) -> None:
    for language, block in code_of(page):
        # PostgreSQL's own statements are for its server.
        if language == "sql" and not page.startswith("docs/postgres") and not block.startswith("WHEN"):
            whole = [each for each in re.split(r";[^\n]*\n", block) if not _FORM.search(each)]
            for statement in whole:
                parse(statement)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_valid(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for language, block in code_of(page):
        if language not in ("sh", "bash"):
            continue
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if words[:2] == ["pip", "install"]:
                (named,) = re.findall(r"\[(.*)\]", words[2]) or [""]
                assert set(named.split(",")) - {""} <= set(extras), line
            elif "headrace" in words:
                after = words[words.index("headrace") + 1 :]
                command = after[: after.index("|")] if "|" in after else after
                if command:
                    _check_command(command)


def _check_command(arguments: list[str]) -> None:
    found: click.Command = headrace
    parent: click.Context | None = None
    while isinstance(found, click.Group):
        name, arguments = arguments[0], arguments[1:]
        parent, found = click.Context(found, parent, name), found.commands[name]
    for word in arguments:
        if word.endswith(".sql"):
            # `headrace run` opens its file while the command line is parsed.
            Path(word).touch()
    found.make_context(found.name, arguments, parent).close()
