"""An account of all code in the documents: which test runs a block, or why none does."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from headrace.cli.main import headrace
from headrace.streaming_sql.language.grammar import parse
from tests.documents import ROOT, blocks_of

PAGES = ["README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]
CODE = ("python", "py", "sql", "sh", "bash")
EXCERPT = "a part of a program or statement, with names that the reader chooses"
FORMS = "forms of statements; the ones without brackets are parsed here"
SERVER = "needs an administrator of a server; tests/interop/test_postgres_doctor.py gives such rights"
ENDPOINTS = "starts a server for clients; tests/interop/ytsaurus_server.py and tests/conformance/serving.py start it"
DOCS = "tests/spark/test_docs.py"
POSTGRES = "tests/spark/test_postgres_documents.py"
COMMANDS = "tests/unit/test_document_commands.py"
# A test, or a reason, for all blocks of a language in a page, or for each of them.
ACCOUNT: dict[str, dict[str, str | list[str]]] = {
    "README.md": {
        "python": DOCS,
        "sql": DOCS,
        "sh": ["make is run by .ci/run", DOCS, POSTGRES, ENDPOINTS, ENDPOINTS],
    },
    "docs/changes.md": {"python": DOCS},
    "docs/checkpoints.md": {"python": DOCS},
    "docs/embedded-store.md": {"python": COMMANDS, "sh": COMMANDS},
    "docs/following-tables.md": {"python": DOCS},
    "docs/load-and-query.md": {"python": COMMANDS, "sh": COMMANDS},
    "docs/operations.md": {
        "python": COMMANDS,
        "sh": [COMMANDS, "tests/spark/test_stream_progress.py", COMMANDS],
        "bash": COMMANDS,
    },
    "docs/pipelines.md": {"python": "tests/spark/test_pipelines.py", "sh": "tests/spark/test_pipelines.py"},
    "docs/postgres.md": {
        "sql": [*[POSTGRES] * 3, SERVER, EXCERPT, POSTGRES, SERVER, SERVER],
        "sh": [*[POSTGRES] * 4, "tests/interop/test_postgres_slot_options.py"],
        "python": [POSTGRES, EXCERPT, EXCERPT],
    },
    "docs/queues.md": {"python": DOCS, "sh": COMMANDS},
    "docs/sql.md": {
        "sh": ["tests/spark/test_prompt.py", "shells read it at their start", "needs a Kafka broker"],
        "python": EXCERPT,
        "py": EXCERPT,
        "sql": [
            DOCS,
            "tests/spark/test_sql_queues.py",
            FORMS,
            "tests/spark/test_sql_spark_sources.py",
            *[FORMS] * 5,
            *["tests/spark/test_merge_streams.py"] * 3,
            *[FORMS] * 3,
        ],
    },
    "docs/tablestore.md": {"python": DOCS, "sql": "tests/spark/test_tablestore_end_to_end.py", "sh": ENDPOINTS},
    "docs/tutorial.md": {"python": DOCS, "sh": [COMMANDS, DOCS, DOCS]},
    "docs/ui.md": {"sh": "tests/ui/test_ui_pages.py"},
    "docs/workers.md": {"python": DOCS},
    "docs/ytsaurus-endpoint.md": {"python": "tests/interop/test_ytsaurus_sides.py", "sh": ENDPOINTS},
    "docs/ytsaurus.md": {"python": DOCS, "sql": DOCS, "sh": [ENDPOINTS, DOCS]},
}
# Placeholders and alternatives of the forms of statements.
_FORM = re.compile(r"…|\[(?!\d)[A-Za-z(]| \| ")


def code_of(page: str) -> list[tuple[str, str]]:
    return [each for each in blocks_of((ROOT / page).read_text()) if each[0] in CODE]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_has_a_test_or_a_reason(page: str) -> None:
    claims = ACCOUNT.get(page, {})
    languages = [language for language, _ in code_of(page)]
    assert set(claims) == set(languages)
    for language, claim in claims.items():
        count = languages.count(language)
        each = [claim] * count if isinstance(claim, str) else claim
        assert len(each) == count, f"{page} has {count} blocks of {language}"
        for test in each:
            assert not test.startswith("tests/") or (ROOT / test).is_file(), test


def test_no_page_of_the_account_is_missing() -> None:
    assert set(ACCOUNT) <= set(PAGES)


@pytest.mark.parametrize("page", [page for page in PAGES if any(each == "sql" for each, _ in code_of(page))])
def test_every_whole_statement_can_be_parsed(page: str) -> None:
    for language, block in code_of(page):
        # PostgreSQL's own statements are for its server.
        if language == "sql" and page != "docs/postgres.md" and not block.startswith("WHEN"):
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
