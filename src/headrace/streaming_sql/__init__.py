"""The streaming SQL dialect. `headrace.sql` returns the object that runs scripts.

From CREATE STREAM to a running query:

1. `session.StreamingSql.run` parses the script (`language.grammar`) into values (`language.statements`), checks what
   needs no Spark (`script_checks`), and calls the handler of each statement.
2. `streams.Streams.create` reads the options of the stream (`stream_options`), and lets its kind (`kinds`) prepare it.
   An INSERT that follows no table gets its DataFrame from `tables.Tables.query`, which creates a temporary view for
   each table and scan in the query, and translates the time functions (`language.rewriting`).
3. It records the stream in the workspace (`stream_registry.StreamRegistry.record_start`).
4. `running_streams.RunningStreams.start` starts what the kind has prepared (`kinds/insert` for an INSERT,
   `kinds/follow` for one over a followed table), and a thread watches the query.

`kinds` has the streams of each statement. `workspace` is the database of a workspace directory, `catalog` has the
definitions of tables and scans, and `headrace.options.secrets` keeps secrets out of both.
"""
