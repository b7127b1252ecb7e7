"""Packages with entry points that cannot be used: each is named, and everything else works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

# The modules of entry points, and why they cannot be used.
_ENDS = ("ends", "raise SystemExit('set FOO')", "SystemExit: set FOO")
_STORE = """
from headrace.options import kinds
from headrace.options.option import Option
from headrace.stores.opening import CheckpointScheme, Opening, StoreOption
"""
_OPENING = "OPENING = Opening(what='x', form='x', {})\n"
_WITH = _STORE + _OPENING.format("schemes=('abc',), open=print, options=({})")
_FORMAT = """
from headrace.formats.format import Format
from headrace.formats.source import Source
class OPENING(Source):
    format = Format({}, add_environment=dict, find=print, row_change_option="x", channel_limit_options=(),
                    batch_limit_option="y")
"""
BROKEN = {
    "stores": [
        _ENDS,
        ("missing", "import no_such_module", "No module named 'no_such_module'"),
        ("kind", f"{_STORE}OPENING = Opening", "kind:OPENING is no Opening"),
        ("text", _STORE + _OPENING.format("schemes='abc', options=(), open=print"), "schemes must be a tuple"),
        ("upper", _STORE + _OPENING.format("schemes=('ABC',), options=(), open=print"), "schemes must be a tuple"),
        ("names", _STORE + _OPENING.format("schemes=('abc',), options=('a',), open=print"), "options must be a tuple"),
        ("opens", _STORE + _OPENING.format("schemes=('abc',), options=(), open=None"), "open must be a function"),
        ("under", _STORE + _OPENING.format("schemes=('a_b',), options=(), open=print"), "schemes must be a tuple"),
        ("number", _STORE + _OPENING.format("schemes=(1,), options=(), open=print"), "schemes must be a tuple"),
        (
            "taken",
            _STORE + _OPENING.format("schemes=('yt',), options=(), open=print"),
            "ytsaurus of package headrace has",
        ),
        ("checkpoints", _STORE + _OPENING.format("schemes=('headrace',), options=(), open=print"), "has 'headrace'"),
        ("options", _WITH.format("StoreOption('a', 'aOption'),"), "has a name and an Option"),
        ("variable", _WITH.format("StoreOption('a', None, 5),"), "variable of option a must be a text"),
        ("nameless", _WITH.format("StoreOption('a', Option(None, 'b')),"), "name and the meaning of an option"),
        ("type", _WITH.format("StoreOption('a', Option('a', 'b', int)),"), "one of headrace.options.kinds"),
        (
            "default",
            _WITH.format("StoreOption('a', Option('a', 'b', kinds.natural, 'c')),"),
            "default of option a is not",
        ),
        (
            "secret",
            _WITH.format("StoreOption('a', Option('pin', 'b', kinds.secret)),"),
            "name of the secret option pin",
        ),
        (
            "pin",
            _WITH.format("StoreOption('pin', Option('xKey', 'b', kinds.secret)),"),
            "name of the secret option pin",
        ),
        (
            "twice",
            _WITH.format("StoreOption('a', Option('x', 'b')), StoreOption('c', Option('X', 'd'))"),
            "have one name",
        ),
        ("letters", _WITH.format("), environment=('ABC'"), "environment and packages must be tuples"),
        ("every", _WITH.format("), environment=('',"), "environment and packages must be tuples"),
        ("mistaken", _WITH.format("), mistaken_schemes=(None"), "mistaken_schemes must be a mapping"),
        (
            "words",
            "from headrace.stores.opening import Opening\nOPENING = Opening(None, 'x', ('abc',), (), print)",
            "texts",
        ),
        ("place", _WITH.format("), check_place=(1"), "must be functions or None"),
        (
            "scheme",
            _WITH.format("), checkpoint_scheme=CheckpointScheme('yt', (), print"),
            "checkpoint_scheme must be None",
        ),
        ("shown", "raise OSError('password=hunter2 at x://me:hunter2@host')", "password=*** at x://me:***@host"),
        ("embedded", "OPENING = None", "package headrace has the same name"),
    ],
    "formats": [
        _ENDS,
        ("base", "from headrace.formats.source import Source as OPENING", "is no subclass of Source"),
        ("number", "OPENING = 1", "number:OPENING is no subclass of Source"),
        ("without", "from headrace.formats.source import Source\nclass OPENING(Source): pass", "is no Format"),
        ("upper", _FORMAT.format("'ABC', options=(), environment=()"), "text in lower case"),
        ("options", _FORMAT.format("'abc', options=('a',), environment=()"), "tuple of Option values"),
        ("letters", _FORMAT.format("'abc', options=(), environment='ABC'"), "environment of format abc"),
        ("taken", _FORMAT.format("'headrace', options=(), environment=()"), "headrace of package headrace has"),
    ],
    "endpoints": [_ENDS, ("server", "from headrace.http.endpoint import Endpoint as OPENING", "is no Endpoint")],
    "commands": [_ENDS, ("command", "from click import Command as OPENING", "is no Command")],
}
_CODE = """
import json, sys
import headrace
from headrace.cli.main import main
from headrace.formats.registry import FORMATS
from headrace.support import entry_points
headrace.open(sys.argv[1], create=True).create_table("t", {"id": "long"}, "id").put([{"id": 1}])
assert main(["table", "scan", "t", "-s", sys.argv[1]]) == 0
assert set(FORMATS) == {"headrace", "tablestore", "yt"}
groups = ("stores", "formats", "endpoints", "commands")
print(json.dumps({group: entry_points.failures(f"headrace.{group}") for group in groups}), file=sys.stderr)
"""


def test_each_is_named_and_everything_else_works(tmp_path: Path) -> None:
    metadata = tmp_path / "site" / "stranger-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    declared = []
    for group, modules in BROKEN.items():
        declared.append(f"[headrace.{group}]")
        for name, text, _ in modules:
            module = f"stranger_{group}_{name}"
            (metadata.parent / f"{module}.py").write_text(text)
            declared.append(f"{name} = {module}:OPENING")
    (metadata / "entry_points.txt").write_text("\n".join(declared))
    path = os.pathsep.join([str(metadata.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", _CODE, str(tmp_path / "store")],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "hunter2" not in done.stderr
    failures = json.loads(done.stderr.splitlines()[-1])
    for group, modules in BROKEN.items():
        assert len(failures[group]) == len(modules)
        for name, _, why in modules:
            (failure,) = (each for each in failures[group] if f"headrace.{group} {name} of package stranger" in each)
            assert why in failure
