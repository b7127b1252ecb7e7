"""The streaming SQL dialect: grammar, catalog and jobs. `headrace.sql` is the way in."""
