"""An asset of Dagster: a run reads what has changed since the last run, and ends. See docs/recipes.md.

Dagster reads the annotation of `context`, so annotations are no texts here.
"""

import os
import subprocess
from pathlib import Path

from dagster import AssetExecutionContext, Definitions, RetryPolicy, ScheduleDefinition, asset, define_asset_job

JOBS = Path(os.environ.get("HEADRACE_JOBS", "/srv/jobs"))
# Its own environment: headrace and Dagster need not agree on their dependencies.
COMMAND = os.environ.get("HEADRACE", "/opt/headrace/bin/headrace")


# Two runs of one stream would take the tunnel from each other: limit the pool to one.
@asset(pool="headrace_totals", retry_policy=RetryPolicy(max_retries=3, delay=60))
def totals(context: AssetExecutionContext) -> None:
    """The table `totals`, by a stream in SQL."""
    command = [COMMAND, "run", JOBS / "totals.sql", "--available-now", "--workspace", JOBS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job:
        assert job.stdout is not None
        for line in job.stdout:
            context.log.info(line.rstrip())
    if job.returncode:
        raise RuntimeError(f"headrace run has failed with exit code {job.returncode}")


hourly = ScheduleDefinition(job=define_asset_job("totals_job", selection=["totals"]), cron_schedule="0 * * * *")
definitions = Definitions(assets=[totals], schedules=[hourly])
