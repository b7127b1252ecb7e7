"""The stores, one folder each, found lazily by the scheme of a URL.

A file has the same name in every store that needs it:

- opening: the `Opening` value: URL schemes, options, packages
- store: the `Store`, its `Capabilities`
- connection: the way to the database or service, transactions, retries
- failures: its errors as headrace's errors
- catalog: names and kinds of tables, queues, consumers and producers
- schemas: columns as the store keeps them
- meta_table: rows that headrace keeps for itself in tables of a cluster or an instance
- files: the `Files`
- tables/table: the `Table`
- tables/stored_tables: creating, describing and dropping tables
- tables/conditions: conditions that the store evaluates itself
- tables/reading: scans
- tables/lookups: reads of many keys
- tables/writing: the write path
- queues/queue: the `Queue`
- queues/consumers, queues/producers: the `Consumer` and the `Producer`
- tunnels/tunnel: the `Tunnel`
- tunnels/stored_tunnels: creating, finding and dropping tunnels
- tunnels/channel_rows: the stored channels of a tunnel
- publication/publisher: the `Publisher`
- publication/staging: staged rows
- backup: writing and restoring backups
- checks/: checks of the invariants, by subject, and repairs

The PostgreSQL store also has `names` (names of tables), `diagnosis` (`headrace doctor`),
`own_tables` (what headrace creates in its own schema, when it is first used), `session` (settings),
`tables/statements` (the SQL of writes), `tables/attempts` (repetitions of writes that violate a constraint) and
`tunnels/blockers` (open transactions).

`shared` has what the embedded store and the PostgreSQL store do alike: the clients and batches of tunnels, and files.
Another store has the first two in `tunnels/clients` (the `TunnelClient`) and `tunnels/batches` (recorded plans and
ends).
"""
