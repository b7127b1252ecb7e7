"""Tunnels of a PostgreSQL database.

From a change in the slot to Arrow:

The steps are those of a change through the embedded store. Besides the common files, `stores/postgres/tunnels` has
`log` (windows of the slot), `peeks` and `spooling` (one read of the slot), `slots`, `slot_options`, `publications`
(checks), `retention`, `pages` (messages as changes), `base_data` (the spool), `visibility` and `snapshots`,
`positions`, `channel_rows` and `meta_tables`. `definitions` has the rules for definitions that change, `catalog` reads
them, `recorded` keeps those that were seen, and `followable` is the list of what is refused. `followed` declares what
log and base data need of the followed tables, and is one table; `followed_tables` is several, whose rows `json_rows`
makes; `table_patterns` finds them by name.

1. `ChangeLog.find` peeks the slot up to an LSN (`slots.peek`). ADBC delivers the messages as arrays of binaries; those
   that do not fit into memory are in a temporary file (`spooling`); `wire/pgoutput` walks them column by column into
   Arrow. One peek serves several windows (`peeks`), because each peek begins at the slot's position. `publications` is
   checked between the look at the end of the log and the peek. A window has the transactions that commit between two
   LSNs, so a replay reads the same bytes, and a position is the LSN of a commit and a number of its rows to skip.
2. A chunk of base data is read once, with `pg_current_snapshot()` in the same transaction, and spooled in a table.
   Rows and snapshot are saved in one transaction, so the snapshot is always that of the rows. `visibility.Chunks`
   leaves out each change whose transaction the snapshot of its key's chunk sees, until the log has passed the last
   snapshot.
3. After a commit, and while the table is idle, the slot advances (`retention.LogRelease`) to 1 MB before the position.
   What headrace has released itself is recorded before, so a slot that others moved is an error.

A tunnel of several tables has one slot, one publication and one stream channel, and base channels for each table. A
window is decoded once: `Decoder` separates the messages by table, each table is decoded column by column and written
as JSON (`rows.json_texts`), and the rows are merged by the numbers of their messages. The spool has the rows of each
table in their own columns, so the form of the JSON is chosen by the reader.
"""
