"""Mirrors: a table, or its history, copied into a table of another store.

1. `statement` is ``MIRROR`` as text; `stream.mirror` is the same in Python.
2. `stream`: `MirrorStream.start` prepares both stores (`setup`): it creates the tunnel and the target, adds new
   columns, and records which tunnel fills the target.
3. In each batch, tasks make of the changes rows of the target: the current ones (`forms`) or all versions (`history`).
4. Before a batch is published, the source must have no new columns, or the start adds them first.
"""
