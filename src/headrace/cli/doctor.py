"""``headrace doctor``: checks of the machine and of a store."""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import asdict

import click

from headrace.cli.app import App, store_option, with_app
from headrace.cli.output import message_of
from headrace.errors import HeadraceError, MissingDependencyError, UnsupportedError, own_message
from headrace.model.findings import Finding, Status
from headrace.options.secrets import hide
from headrace.support.extras import SPARK, check_extras


@click.command(short_help="Check the machine for common problems.")
@store_option
@click.option("-t", "--table", metavar="NAME", help="Also check that the user can follow this table (PostgreSQL).")
@click.option("--spark", is_flag=True, help="Also start a Spark session and read through the data source.")
@with_app
@click.pass_context
def doctor(context: click.Context, app: App, table: str | None, spark: bool) -> None:
    """Check Python, packages and extras; with Spark, Java, its Python and temporary space; with --store, also a store.

    Of an embedded store: its files. Of PostgreSQL: the settings of the server and the rights of the user, with the SQL
    that grants what is missing. The exit code is 1 if a check fails.

    \b
    Example:
      headrace doctor --spark -s shop
      headrace doctor --table orders -s postgresql://shop@db/shop
    """
    from headrace.cli.environment_checks import environment_findings

    # Spark converts between Arrow and pandas.
    app.owns_process = app.owns_process and not spark
    with app.output.status("Checking"):
        findings = environment_findings()
        if app.store_url is not None:
            findings += store_findings(app, app.store_url, table)
        if spark:
            check_extras("--spark", SPARK)
            findings.append(_check_spark())
    show(app, findings)
    if any(finding.status == Status.FAIL for finding in findings):
        context.exit(1)


def show(app: App, findings: list[Finding]) -> None:
    """Print the findings, and how many have each status. `headrace store check` uses it, too."""
    counts = Counter(finding.status for finding in findings)
    if app.json:
        app.output.record(
            {
                "python": sys.executable,
                "findings": [asdict(finding) for finding in findings],
                "counts": {str(status): counts[status] for status in Status},
                "sql": [line for finding in findings for line in finding.sql.splitlines()],
            }
        )
        return
    for finding in findings:
        app.output.done(f"{_MARKS[finding.status]} {finding.name}: {finding.found}")
        # The name of an absent extra is what pip installs.
        if finding.remedy and finding.status != Status.ABSENT:
            app.output.done(f"       → {finding.remedy}")
    shown = [status for status in Status if counts[status] or status != Status.ABSENT]
    app.output.done(", ".join(f"{counts[status]} {status}" for status in shown))
    if statements := [finding.sql for finding in findings if finding.sql]:
        app.output.done("\nSQL that grants what is missing:\n\n" + "\n".join(statements))


_MARKS = {Status.OK: "ok    ", Status.WARN: "warn  ", Status.FAIL: "FAIL  ", Status.ABSENT: "–     "}


def store_findings(app: App, url: str, table: str | None) -> list[Finding]:
    from headrace.stores.registry import opening_of

    findings = []
    try:
        if (check_place := opening_of(url).check_place) is not None:
            findings = check_place(url)
        with app.store() as store:
            return findings + store.diagnose(table)
    except UnsupportedError:
        raise
    except HeadraceError as error:
        problem = str(error).removesuffix(f"; {error.remedy}")
        return [*findings, Finding("Store", Status.FAIL, problem, error.remedy or "see the message")]
    except Exception as error:
        # A store of another package, or what it uses, can raise any error.
        if app.debug:
            raise
        problem = hide(message_of(error), app.secrets())
        return [*findings, Finding("Store", Status.FAIL, problem, "run it again with --debug to see where it happened")]


def _check_spark() -> Finding:
    """Start a Spark session and read a table of a new store through the data source."""
    import tempfile

    import headrace
    from headrace.cli.spark_errors import filtered
    from headrace.spark.connect import check_start, names_server

    name, rows = "Spark", 3
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headrace-doctor-") as directory:
        try:
            with headrace.open(directory, create=True) as store:
                table = store.create_table("trial", {"id": "long"}, "id")
                table.put([{"id": value} for value in range(rows)])
            check_start()
            if names_server(()):
                spark = headrace.session("headrace doctor")
            else:
                with filtered():
                    spark = headrace.session("headrace doctor", master="local[1]")
            try:
                read = spark.read.format("headrace").option("store", directory).option("table", "trial").load().count()
                version = spark.version
            finally:
                spark.stop()
        except MissingDependencyError as error:
            return Finding(name, Status.FAIL, f"{error.problem}; received: {error.received}", error.remedy or "")
        except Exception as error:
            text = str(error).split("\nJVM stacktrace:")[0].strip()
            text = own_message(text) or f"{type(error).__name__}: {text}"
            return Finding(name, Status.FAIL, text, "see the checks above")
    if read != rows:
        return Finding(name, Status.FAIL, f"read {read} rows instead of {rows}", "report this as a bug of headrace")
    return Finding(
        name, Status.OK, f"Spark {version} read a table through format headrace ({time.monotonic() - started:.0f} s)"
    )
