"""Mirrors: a table, or its history, copied into a table of another store.

1. `statement` is ``MIRROR`` as text; `stream.mirror` is the same in Python.
2. `stream`: `MirrorStream.start` prepares both stores (`setup`): it creates the tunnel and the target, and records
   which tunnel fills the target, and the source's columns.
3. `batches`: before each batch, the driver compares the source's columns with the recorded ones (`state`). If they have
   changed, the publication also changes the columns of the mirror's tables (`evolution`), and the record.
4. Tasks make of the changes rows of the target: the current ones (`forms`) or all versions (`history`). A stream of
   Spark keeps the columns of its start, so pages with other columns come packed (`headrace.model.tables.packed_rows`).

`worker` does the same without Spark: `mirror_worker` prepares both stores, and publishes each batch of a
`headrace.workers.TunnelWorker` with its position.
"""
