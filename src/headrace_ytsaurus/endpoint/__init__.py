"""YTsaurus' HTTP API over an embedded store: an ASGI application, and a server that runs it.

From a request to its response, for `insert_rows`:

`app` → `http/requests` → `commands` → `dispatcher` → `tables/row_commands` → `tables/row_bodies` →
`wire/yson/rows_decoding` → `tables/row_changes` → `tables/layout` → `tables/tablet_transactions` →
`stores/embedded/tables/table` → `stores/embedded/tables/writing` → `http/responses`.

1. `app.py` checks the token, finds the command in `commands.COMMANDS`, and reads the body. A thread decompresses it;
   `http/requests.py` merges headers, query and body into `Parameters`.
2. `dispatcher.execute` checks prerequisites, and runs the handler with a `Context`; for this command it is
   `tables.row_commands.insert_rows`. Commands on rows are *heavy*: clients send no mutation id for them, and the
   handler starts the store's transaction. (A *light* command that changes something runs once for each mutation id, in
   one write transaction that the dispatcher starts.)
3. The handler finds the table and its state (`tables.nodes.find_table`), decodes the rows to Arrow (`read_body`), and
   makes a `Change` of them: `SortedChange` converts rows to the store's columns (`SortedLayout`), and encodes them
   (`EmbeddedTable.prepare`). `write_changes` adds the change to the tablet transaction, or commits it immediately.
4. `TabletTransactions.write` checks for conflicts, and applies all changes in one write transaction of the store
   (`Change.apply` → `EmbeddedTable.apply` → `Writer.apply`, which also writes the change log).
5. `http/responses.py` writes the answer in the client's format. Responses that clients do not read move to disk.

`Context` knows `Cypress`, which knows no node types; `cypress/operations.py` connects the two. So there is no import
circle. YSON is parsed by YTsaurus' client (`wire/yson/documents.py`), rows by our own vectorized code. The client's
parser of paths does not split them into nodes and attributes, and its parser of types has no limits of depth or
precision and not the older names, so `wire/ytsaurus/` has its own.
"""
