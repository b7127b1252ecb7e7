"""Formats are values: the registry lists them, and no other code decides by a format's name."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from importlib import import_module

import pytest

from headrace.errors import OptionError
from headrace.formats.registry import FORMATS, format_named, source_of
from headrace.spark.data_sources import FormatDataSource
from tests.unit.test_layers import ALLOWED, MODULES, SOURCE, layer_of

# -- the registry -----------------------------------------------------------------------------------------


def test_formats_are_found_by_name_in_any_case() -> None:
    assert format_named("YT") is FORMATS["yt"]
    with pytest.raises(OptionError, match="not a format of headrace; received: delta; valid: headrace, tablestore, yt"):
        format_named("delta")


def test_spark_finds_every_format() -> None:
    for name in FORMATS:
        data_source = import_module(f"pyspark_{name}").DefaultSource
        assert issubclass(data_source, FormatDataSource)
        assert data_source.name() == name
        # Spark sends the class to its workers by its name.
        assert pickle.loads(pickle.dumps(data_source)) is data_source


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_has_the_options_that_its_value_names(name: str) -> None:
    each = FORMATS[name]
    named = {each.row_change_option, *each.channel_limit_options, each.batch_limit_option, each.tunnel_option}
    named |= {each.queue_option, each.consumer_option, each.key_option}
    if each.rows_per_write is not None:
        named.add(each.rows_per_write.option)
    assert named - {None} <= {option.name for option in each.options}


@pytest.mark.parametrize("name", FORMATS)
def test_a_source_can_be_sent_to_a_worker(name: str) -> None:
    source = source_of(name, {"endpoint": "/data", "synchronous": "off"})
    copy = pickle.loads(pickle.dumps(source))
    assert (type(copy), copy.options) == (type(source), source.options)


# -- the size of writes -----------------------------------------------------------------------------------


def test_format_yt_limits_the_rows_of_a_write() -> None:
    assert source_of("headrace", {}).rows_per_write(lambda setting: "100") is None
    plain = source_of("yt", {})
    assert plain.rows_per_write(lambda setting: None) == 50_000
    assert plain.rows_per_write({"spark.yt.write.dynBatchSize": "100"}.get) == 100
    assert source_of("YT", {"dynbatchsize": "7"}).rows_per_write(lambda setting: "100") == 7


@pytest.mark.parametrize("text", ["0", "-5", "many", "", "1e3", "2.5"])
def test_a_size_of_writes_must_be_a_positive_number(text: str) -> None:
    with pytest.raises(OptionError, match=r"spark\.yt\.write\.dynBatchSize.*positive"):
        source_of("yt", {}).rows_per_write(lambda setting: text)


# -- names of formats in code -----------------------------------------------------------------------------

_LOOKUPS = {"get", "pop", "setdefault", "startswith", "endswith", "removeprefix", "removesuffix"}


def decisions(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of a module that decide by the name of a format.

    A name decides in a comparison, a match case, a list, tuple or set, as a key of a dict, in a subscript and in a
    look-up such as ``options.get("yt")``. As another argument, a default or a text it does not decide.
    """
    for node in ast.walk(tree):
        operands: list[ast.expr | None] = []
        match node:
            case ast.Compare():
                operands = [node.left, *node.comparators]
            case ast.MatchValue():
                operands = [node.value]
            case ast.List() | ast.Tuple() | ast.Set():
                operands = list(node.elts)
            case ast.Dict():
                operands = list(node.keys)
            case ast.Subscript():
                operands = [node.slice]
            case ast.Call(func=ast.Attribute(attr=attribute)) if attribute in _LOOKUPS:
                operands = list(node.args[:1])
        if any(isinstance(each, ast.Constant) and each.value in FORMATS for each in operands):
            yield next(each.lineno for each in operands if each is not None)


def test_no_code_above_the_formats_decides_by_a_formats_name() -> None:
    # A layer that cannot import the formats knows no formats: there the same words are schemes of URLs.
    layers = {layer for layer, allowed in ALLOWED.items() if "formats" in allowed}
    files = [path for path in MODULES if layer_of(path) in layers]
    files += [path for path in MODULES if layer_of(path) == "formats" and path.parent.name not in FORMATS]
    assert len(files) > 50
    found = [f"{path.relative_to(SOURCE)}:{line}" for path in files for line in decisions(ast.parse(path.read_text()))]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        'provider.lower() == "yt"',
        '"tablestore" != source.name()',
        'provider in ("headrace", "yt")',
        'match provider:\n    case "headrace" | "yt":\n        pass',
        'NAMES = {"yt": "path"}',
        'NAMES["yt"]',
        'names.get("yt", None)',
        'missing = {"headrace"} - found',
    ],
)
def test_a_decision_by_name_is_found(code: str) -> None:
    assert list(decisions(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    ['logging.getLogger("headrace")', 'def f(format="headrace"): pass', 'spark.read.format("headrace")', '"format yt"'],
)
def test_a_name_that_does_not_decide_is_not_found(code: str) -> None:
    assert not list(decisions(ast.parse(code)))


def test_only_the_registry_imports_a_format() -> None:
    importers = {
        str(path.relative_to(SOURCE))
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and any((node.module or "").startswith(f"headrace.formats.{name}.") for name in FORMATS)
        and path.parent.name not in FORMATS
    }
    assert importers == {"formats/registry.py"}


def test_formats_do_not_import_spark() -> None:
    # The readers of all formats are in `spark`, which imports the formats.
    texts = {str(path.relative_to(SOURCE)): path.read_text() for path in MODULES if layer_of(path) == "formats"}
    assert [file for file, text in texts.items() if "import pyspark" in text or "from pyspark" in text] == []
