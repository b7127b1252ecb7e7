"""Options of the formats accept the values that docs/options.md lists, and nothing else."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import HeadraceError, OptionError
from headrace.formats.registry import FORMATS
from headrace.model.tables.changes import RowChange
from headrace.model.tunnels.values import Start, StartKind
from headrace.options.kinds import OptionKind, boolean, duration, limit, name, names, natural, positive, size, tasks
from headrace.options.option import Option
from headrace.options.settings import Settings
from headrace_ytsaurus.format.options import PATH

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "options.md").read_text()
ALL = [(provider, option) for provider, each in FORMATS.items() for option in each.options]
LISTED = [(provider, option) for provider, option in ALL if option.kind.values]
NUMBERS = (positive, natural, tasks, limit, size, duration)
NUMERIC = [(provider, option) for provider, option in ALL if option.kind in NUMBERS]
ROUGH = ["", " ", "nan", "inf", "-inf", str(2**70), "9" * 5000, "1_000", "٣", "\ud800", "\0", "1e3", "None"]


def settings(provider: str, option: Option, value: str) -> Settings:
    return FORMATS[provider].settings({option.name: value})


def ids(value: Any) -> str | None:
    return value.name if isinstance(value, Option) else None


@pytest.mark.parametrize(("provider", "option"), LISTED, ids=ids)
def test_listed_values_are_valid_in_any_case_and_documented(provider: str, option: Option) -> None:
    section = PAGE.split(f"## Format `{provider}`")[1].split("## Format")[0]
    (row,) = [line for line in section.splitlines() if line.startswith(f"| `{option.name}` |")]
    assert row.split(" | ")[1] == ", ".join(f"`{value}`" for value in option.kind.values)
    for value in option.kind.values:
        read = settings(provider, option, value).get(option.name)
        for variant in (value.upper(), value.lower(), f" {value} "):
            assert settings(provider, option, variant).get(option.name) == read


@pytest.mark.parametrize(("provider", "option"), LISTED, ids=ids)
def test_the_error_for_another_value_lists_the_valid_ones(provider: str, option: Option) -> None:
    for value in ["replace_all", "REPLACE_ALL", "batch", "timestamp", "none", "yes", "full,off", *ROUGH]:
        with pytest.raises(OptionError) as caught:
            settings(provider, option, value).get(option.name)
        assert caught.value.valid == ", ".join(option.kind.values)
        assert option.name in str(caught.value)


@pytest.mark.parametrize(("provider", "option"), NUMERIC, ids=ids)
def test_a_number_out_of_range_is_an_error(provider: str, option: Option) -> None:
    for value in ROUGH:
        with pytest.raises(OptionError) as caught:
            settings(provider, option, value).get(option.name)
        assert caught.value.valid == option.kind.valid
        assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "value", [*ROUGH, "-1", "0", "{", '{"0": 1e400}', "[" * 100_000, '["a"', "a,b", "<" * 1000, "9999-99-99"]
)
def test_any_text_gives_a_value_or_a_headrace_error(value: str) -> None:
    for provider, option in ALL:
        given = settings(provider, option, value)
        for read in (given.get, given.need):
            with contextlib.suppress(HeadraceError):
                read(option.name)


def test_a_default_is_a_valid_value() -> None:
    for provider, option in ALL:
        FORMATS[provider].settings({}).get(option.name)


def test_messages_show_no_secret() -> None:
    for provider, option in ALL:
        if any(word in option.name.lower() for word in ("secret", "token", "key.id", "keyid")):
            with pytest.raises(OptionError) as caught:
                settings(provider, option, "hunter2\0").get(option.name)
            assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("given", [RowChange.REPLACE_ALL, "replace_all", "Replace_All", None, 5, "", "upsert"])
def test_users_can_put_update_or_delete_rows(given: Any) -> None:
    with pytest.raises(OptionError, match="valid: put, update, delete"):
        RowChange.parse(given)
    assert [RowChange.parse(text) for text in ("put", "UPDATE", RowChange.DELETE)] == list(RowChange)[:3]


@pytest.mark.parametrize("given", ["timestamp", "batch", "batch:", "", "now", None, 5, b"latest", float("nan")])
def test_internal_kinds_of_a_start_are_not_valid(given: Any) -> None:
    with pytest.raises(OptionError, match="committed, earliest, latest or a timestamp"):
        Start.parse(given)
    assert Start.parse(" Latest ").kind is StartKind.LATEST


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (boolean, " TRUE ", True),
        (boolean, "0", False),
        (natural, "0", 0),
        (positive, "+7", 7),
        (positive, str(2**63 - 1), 2**63 - 1),
        (limit, "-5", None),
        (limit, "-99999999999999999999", None),
        (tasks, "1000000", 1_000_000),
        (duration, "1.5h", 5400.0),
        (duration, "250ms", 0.25),
        (size, "64M", 64 << 20),
        (name, " a ", " a "),
        (names, "a, b", ("a", "b")),
        (PATH, " //tmp/q ", "//tmp/q"),
    ],
)
def test_valid_texts_are_converted(kind: OptionKind, text: str, value: Any) -> None:
    assert kind(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [(positive, str(2**63)), (tasks, "1000001"), (size, f"{2**34}g"), (duration, "200000d"), (name, "")],
)
def test_texts_just_out_of_range_are_refused(kind: OptionKind, text: str) -> None:
    with pytest.raises(ValueError) as caught:
        kind(text)
    assert str(caught.value) == kind.valid
