"""``headrace bench``: the benchmarks of a source checkout."""

from __future__ import annotations

import importlib
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from headrace.cli.app import App, common_options, pass_app
from headrace.errors import NotFoundError, UnsupportedError


@click.command(short_help="Run the benchmarks of a checkout.")
@click.argument("names", nargs=-1)
@click.option("--scale", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True, metavar="SHARE",
              help="The fraction of the full sizes to run.")  # fmt: skip
@click.option(
    "--write", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write all results to this page."
)
@common_options
@pass_app
@click.pass_context
def bench(context: click.Context, app: App, names: tuple[str, ...], scale: float, write: Path | None) -> None:
    """Run the benchmarks NAMES, or all of them, each with its baseline. Groups: "growth" and "peers".

    The exit code is 1 if a ratio misses its bound. With --json, each benchmark is one line.

    Example: headrace bench put scan --scale 0.1
    """
    import tempfile

    benchmarks = _benchmarks()
    wanted = benchmarks.chosen(names)
    for name in wanted:
        if name not in benchmarks.BENCHMARKS:
            valid = [*benchmarks.BENCHMARKS, *benchmarks.GROUPS]
            raise NotFoundError("no such benchmark", received=name, valid=valid)
    benchmarks.use_two_processors()
    app.output.note(benchmarks.machine())
    results = []
    for name in wanted:
        with (
            app.output.status(f"Measuring {name}"),
            tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory,
        ):
            result = benchmarks.BENCHMARKS[name](Path(directory), scale)
        results.append(result)
        page = benchmarks.as_markdown([result], scale)
        ratios = [{**asdict(ratio), "kept": ratio.kept} for ratio in result.ratios]
        app.output.event(page[page.index("\n## ") + 1 :], name=name, **{**asdict(result), "ratios": ratios})
    if write is not None:
        write.write_text(benchmarks.as_markdown(results, scale))
    if not all(ratio.kept for result in results for ratio in result.ratios):
        context.exit(1)


def _benchmarks() -> Any:
    """Import the benchmarks, which are not part of the installed package."""
    checkout = Path(__file__).resolve().parents[3]
    if not (checkout / "bench" / "__main__.py").exists():
        raise UnsupportedError(
            "the benchmarks are not part of the installed package",
            remedy="clone the repository of headrace and run `make bench` there",
        )
    sys.path.insert(0, str(checkout))
    return importlib.import_module("bench.__main__")
