"""Random inputs for parsers and endpoints, with a log that a later run continues: docs/reliability.md."""
