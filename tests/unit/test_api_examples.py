"""Each public name has a docstring with an example, its members have docstrings, and the examples run."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path

import pytest

import headrace
from tests.api.examples import examples, needs, run, variables

EXAMPLES = {each.name: each for each in examples()}
WITHOUT_SPARK = [name for name, example in EXAMPLES.items() if not needs(example, "spark", "query")]


def test_each_public_name_has_an_example() -> None:
    assert [name for name, example in EXAMPLES.items() if not example.examples] == []


def test_each_public_member_has_a_docstring() -> None:
    missing = []
    for name in headrace.__all__:
        value = getattr(headrace, name)
        if not inspect.isclass(value):
            continue
        for member, attribute in vars(value).items():
            function = attribute.__func__ if isinstance(attribute, classmethod | staticmethod) else attribute
            own = inspect.isfunction(function) or isinstance(function, property)
            # Methods of Spark's interfaces are described there.
            inherited = any(hasattr(base, member) for base in value.__mro__[1:])
            if own and not member.startswith("_") and not inherited and not function.__doc__:
                missing.append(f"{name}.{member}")
            # A field of a class is described in its section "Attributes".
        fields = [
            each for each in inspect.get_annotations(value) if not each.startswith("_") and not hasattr(value, each)
        ]
        missing += [f"{name}.{field}" for field in fields if f"{field}:" not in (value.__doc__ or "")]
    assert missing == []


@pytest.mark.parametrize("name", WITHOUT_SPARK)
def test_an_example_has_its_output(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = variables(tmp_path)
    example: doctest.DocTest = EXAMPLES[name]
    assert run(example, names) == ""
    names["store"].close()
