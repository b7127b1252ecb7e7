"""An account of all code blocks in the documents: the test file that runs a block, or the reason why none does.

For each page and language there is one claim for all its blocks, or one for each block in order. A claim that is a path
is a test file; it gets its blocks from `tests.documents`. Any other claim is a reason.
"""

from __future__ import annotations

COMMANDS = "tests/unit/test_document_commands.py"
DOCS = "tests/spark/test_docs.py"
DUCKLAKE = "tests/lake/test_ducklake_document.py"
ICEBERG = "tests/lake/test_iceberg_document.py"
LAKE = "tests/lake/test_lake_document.py"
PIPELINES = "tests/spark/test_pipelines.py"
PLUGIN = "tests/interop/test_plugin_store.py"
POSTGRES = "tests/spark/test_postgres_documents.py"
SERVERS = "tests/interop/test_document_servers.py"
SQL = "tests/spark/test_sql_document.py"

DRAWING = "a drawing or a list, not code"
ACCOUNT: dict[str, dict[str, str | list[str]]] = {
    "README.md": {
        "python": DOCS,
        "sh": "make is run by .ci/run",
        "text": DOCS,
    },
    "docs/architecture.md": {"text": DRAWING},
    "docs/benchmarks-latency.md": {
        "sh": "Java writes 180 MB; tests/startup/spark_archive.py makes and uses such an archive"
    },
    "docs/changes.md": {"python": DOCS, "text": DOCS},
    "docs/checkpoints.md": {"python": DOCS},
    "docs/concepts.md": {"text": DRAWING},
    "docs/deployment.md": {
        "sh": [
            "packs 150 MB; tests/clusters/test_standalone.py packs links to most packages",
            "needs a cluster of YARN; tests/spark/test_deployment_settings.py reads the settings",
            "needs Docker and Kubernetes; tests/clusters/test_kubernetes.py runs the manifest",
        ]
    },
    "docs/ducklake.md": {
        "python": DUCKLAKE,
        "text": DUCKLAKE,
        "sh": "it installs packages, and needs a server",
    },
    "docs/embedded-store.md": {"python": [*[COMMANDS] * 3, "tests/unit/test_store_damage.py"], "sh": COMMANDS},
    "docs/following-tables.md": {"python": DOCS, "text": DOCS},
    "docs/several-tables.md": {"python": DOCS, "text": DOCS},
    "docs/iceberg.md": {
        "python": ICEBERG,
        "text": ICEBERG,
        "sh": ["it installs packages", "lake/test_iceberg_maintenance.py runs the commands"],
    },
    "docs/installation.md": {"sh": "it installs packages"},
    "docs/lake.md": {
        "python": [
            *[LAKE] * 5,
            "needs a service and a database; tests/lake/test_delta_buckets.py has such a store",
            LAKE,
        ],
        "text": LAKE,
        "sh": ["it installs packages", LAKE, LAKE],
    },
    "docs/load-and-query.md": {"python": COMMANDS, "sh": COMMANDS},
    "docs/mcp.md": {"json": "tests/interop/test_mcp.py", "sh": "installs packages"},
    "docs/monitoring.md": {
        "sh": "run until they are interrupted; tests/unit/test_metrics.py reads the metrics",
        "yaml": "tests/unit/test_alerts.py",
    },
    "docs/operations.md": {
        "python": COMMANDS,
        "sh": COMMANDS,
        "bash": COMMANDS,
    },
    "docs/pipelines.md": {
        "python": PIPELINES,
        "text": PIPELINES,
        "sh": "another run of spark-pipelines takes a minute; tests/spark/test_pipelines.py runs it on the example",
    },
    "docs/postgres.md": {"sql": POSTGRES, "sh": POSTGRES, "python": POSTGRES, "text": POSTGRES},
    "docs/postgres-tunnels.md": {
        "sql": POSTGRES,
        "sh": POSTGRES,
        "python": POSTGRES,
        "json": "the form of an event; tests/unit/test_debezium_events.py compares whole events",
    },
    "docs/bad-rows.md": {
        "sql": "a mirror between two stores; tests/spark/test_bad_rows.py runs one with the option",
        "python": "names of stores of the reader; tests/spark/test_bad_rows.py makes such calls",
        "sh": "needs a stream of a workspace; tests/spark/test_bad_rows.py runs the command",
        "text": "the counts are those of a run; tests/spark/test_bad_rows.py checks others",
    },
    "docs/python.md": {"python": "tests/api/examples.py"},
    "docs/recipes.md": {
        "sh": [
            "changes the machine; tests/spark/test_recipes.py checks the unit",
            "needs Docker; tests/unit/test_deployment.py checks the Dockerfile",
        ]
    },
    "docs/queues.md": {"python": DOCS, "sh": COMMANDS},
    "docs/reliability.md": {"sh": "storms take minutes to hours; tests/chaos runs short ones"},
    "docs/sql.md": {
        "sh": [
            "starts Spark three times; tests/spark/test_demo.py runs headrace run, and test_prompt.py the prompt",
            SQL,
            "needs a package of Kafka and a broker",
        ],
        "python": SQL,
        "py": "an excerpt with …; the page on following tables has whole merges",
        "sql": SQL,
    },
    "docs/store-packages.md": {"python": PLUGIN, "sh": PLUGIN},
    "docs/tablestore.md": {
        "python": DOCS,
        "sql": DOCS,
        "sh": ["the access key of an instance in Alibaba's cloud", SERVERS],
        "toml": SERVERS,
    },
    "docs/tutorial.md": {"python": DOCS, "sh": DOCS, "text": DOCS},
    "docs/ui.md": {"sh": SERVERS},
    "docs/workers.md": {"python": DOCS, "sh": COMMANDS},
    "docs/ytsaurus-endpoint.md": {"python": SERVERS, "sh": SERVERS, "toml": SERVERS},
    "docs/ytsaurus.md": {"python": DOCS, "sql": DOCS, "sh": [SERVERS, DOCS]},
}
