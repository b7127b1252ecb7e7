"""Tunnels of a PostgreSQL database.

From a change in the slot to Arrow, a `SlotRead` becomes a `Window`, `WindowRows` of it, and a `Page`:

1. `tunnel`: `PostgresTunnel.read` reads base data from a spool (below), and asks the log for the rows at a position. A
   position is an LSN and a number of rows to skip of the transactions that commit at or after it (`positions`). A call
   that decodes rows looks at the definitions of the tables first (`PostgresTunnel._fresh`).
2. `log`: `ChangeLog.rows` looks at the slot, and searches the window at the position. A window has the transactions
   that commit between two LSNs, so a repeated batch reads the same changes. What was read is in one value, `LogCache`.
3. `slot_reads`: a `SlotRead` has the messages of one call of the server, which serve several windows, because each call
   begins at the slot's position. ADBC delivers them as arrays of binaries; those that do not fit into memory are in a
   file. `publications` is checked between the look at the end of the log and the call.
4. `wire/pgoutput/messages`: `Decoder` walks the messages column by column, into `Images` of rows.
5. `followed`: `OneTable` (or `ManyTables`) makes `TableImages` of them: pieces whose columns are known. `histories`
   cuts images where the definition of the table may have changed, and finds the columns of each piece by the
   definitions that were seen before and after it. If they are not certain, the window stops before the piece.
6. `table_images`: `changes` finds the operation of each image, leaves out those that base data already contains (by
   `snapshots`, those of base data), and decodes the columns to Arrow by `wire/pgoutput/values`.
7. `WindowRows.page` is the part that the reader wants.

**Base data**: a chunk is read once, with `pg_current_snapshot()` in the same transaction, and spooled in a table
(`base_data`). Rows and snapshot are saved in one transaction, so the snapshot is always that of the rows.

**Definitions**: `catalog` reads them, `seen_definitions` records their versions, `definitions` has the rules for
changes between two versions, and `followable` is the list of what is refused. No version has a partition that has come
and left between two looks. But the server describes a partition before its first row: `Decoded.leaves` are those with
rows, and `SeenDefinitions.check_leaves` compares them with the versions before the rows leave the log.

**Release of the log**: after a commit, the slot advances (`retention.LogRelease`) to 1 MB before the position, or up to
it if each read decodes much log; while the table is idle, to the end of what is known to have no change of it. The
definitions are recorded before, because the log explains new files of partitions. What headrace has released itself is
recorded before, so a slot that others moved is an error.

**Several tables** (`followed_tables`, found by `table_patterns`) have one slot, one publication and one stream channel,
and base channels for each table. `Decoder` separates the messages by table, each table is decoded column by column and
written as JSON (`json_rows`), and the rows are merged by the numbers of their messages. The spool has the rows of each
table in their own columns, so the form of the JSON is chosen by the reader.

**New tables** join such a tunnel (`joining`) in one transaction that locks out their writers. Their base channels are
no parents of the stream: a window of the log ends before the first of their changes until base data is committed
(`members.in_stream`). Each reader looks at the members of the tunnel after it has looked up the end of the log, so it
never passes a change of a table that it does not know.

**What leaves the source**: `selections` turns options of a tunnel into the list of columns and the filter of its
publication, and into masks, which `table_images` and `followed` apply before rows leave them.

`tunnel_options` are the options of a new tunnel, `slots` creates its slot and publication, `slot_limits` looks at the
limits of slots. `stored_tunnels` and `channel_rows` are the records of tunnels in the tables of `meta_tables`. Those of
batches and clients are in `headrace.stores.shared`.
"""
