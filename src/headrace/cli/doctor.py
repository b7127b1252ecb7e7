"""``headrace doctor``: checks of the machine and of a store."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

import click

from headrace.cli.app import App, common_options, pass_app, store_option
from headrace.cli.environment_checks import Finding, Status, environment_checks
from headrace.errors import UnsupportedError


@click.command(short_help="Check the machine for common problems.")
@store_option
@click.option("--spark", is_flag=True, help="Also start a Spark session and read through the data source.")
@common_options
@pass_app
@click.pass_context
def doctor(context: click.Context, app: App, spark: bool) -> None:
    """Check Java, Python, packages and temporary space; with --store, also an embedded store.

    The exit code is 1 if a check fails.

    Example: headrace doctor --spark -s shop
    """
    with app.output.status("Checking"):
        findings = [check() for check in environment_checks()]
        if app.store_url is not None:
            findings += _store_findings(app.store_url)
        if spark:
            from headrace.cli.store_checks import check_spark

            findings.append(check_spark())
    show(app, findings)
    if any(finding.status == Status.FAIL for finding in findings):
        context.exit(1)


def show(app: App, findings: list[Finding]) -> None:
    """Print the findings, and how many have each status."""
    counts = Counter(finding.status for finding in findings)
    if app.json:
        app.output.record(
            {
                "python": sys.executable,
                "findings": [asdict(finding) for finding in findings],
                "counts": {str(status): counts[status] for status in Status},
            }
        )
        return
    for finding in findings:
        app.output.done(f"{_MARKS[finding.status]} {finding.name}: {finding.found}")
        if finding.remedy:
            app.output.done(f"       → {finding.remedy}")
    app.output.done(", ".join(f"{counts[status]} {status}" for status in Status))


_MARKS = {Status.OK: "ok    ", Status.WARN: "warn  ", Status.FAIL: "FAIL  "}


def _store_findings(url: str) -> list[Finding]:
    from headrace.cli.store_checks import check_store

    scheme = urlsplit(url).scheme
    if scheme not in ("", "file"):
        raise UnsupportedError("doctor checks embedded stores only", received=scheme + "://…", valid="a directory")
    return check_store(Path(url.removeprefix("file://").removeprefix("file:")))
