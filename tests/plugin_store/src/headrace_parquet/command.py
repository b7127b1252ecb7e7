"""``headrace parquet-files``: a command of another package."""

from __future__ import annotations

import click

from headrace.cli.app import App, common_options, pass_app, store_option


@click.command(short_help="List the files of a store of Parquet files.")
@store_option
@common_options
@pass_app
def parquet_files(app: App) -> None:
    """List the files of a store of Parquet files.

    Example: headrace parquet-files -s parquet:///data
    """
    from headrace_parquet.store import ParquetStore

    with app.store() as store:
        assert isinstance(store, ParquetStore)
        found = [{"table": name, "file": entry["file"]} for name, entry in sorted(store.manifest()["tables"].items())]
    app.output.records(found, columns=["table", "file"], nothing="No tables.")
