"""A DAG of Airflow 3: each hour, the job reads what has changed since the last run, and ends. See docs/recipes.md."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

with DAG(
    "headrace_totals",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1),
    # A run reads everything that is new, so missed runs need no repetition.
    catchup=False,
    # Two runs of one stream would take the tunnel from each other.
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
):
    BashOperator(
        task_id="totals",
        # Its own environment: headrace and Airflow need not agree on their dependencies.
        bash_command="exec ${HEADRACE:-/opt/headrace/bin/headrace} run $HEADRACE_JOBS/totals.sql"
        " --available-now --workspace $HEADRACE_JOBS",
        append_env=True,
    )
