"""``headrace store``: commands on a whole store."""

from __future__ import annotations

import click

from headrace.cli.app import App, CommandGroup, store_option, with_app
from headrace.cli.doctor import show
from headrace.model.findings import Status


@click.group(cls=CommandGroup)
def store() -> None:
    """Check a store.

    \b
    Example:
      headrace store check shop
    """


@store.command("check", short_help="Check the invariants of a store.")
@click.argument("store", required=False)
@click.option("--repair", is_flag=True, help="Repair what can be repaired without losing data.")
@store_option
@with_app
@click.pass_context
def check(context: click.Context, app: App, store: str | None, repair: bool) -> None:
    """Check rows, logs, tunnels, batches, markers, consumers and files of STORE, all in one state of the store.

    Writers go on. With --repair, each check with its repairs is a write transaction. A repair deletes only what nothing
    refers to, and counts again what is miscounted. The exit code is 1 if a problem without a safe repair is found.

    Example: headrace store check shop --repair
    """
    if store is not None:
        app.store_url = store
    with app.store() as opened, app.output.status("Checking"):
        findings = opened.check(repair=repair)
    show(app, findings)
    if any(finding.status == Status.FAIL for finding in findings):
        context.exit(1)
