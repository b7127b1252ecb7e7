"""YTsaurus' HTTP API over an embedded store: an ASGI application, and a server that runs it.

The way of `insert_rows` from a request to the store's transaction:

1. `app.py` checks the token (`http/requests.py`), finds the command in `commands.py`, and receives the body. The rest
   runs in a thread: `http/request_bodies.py` decompresses the body, and `read_call` merges headers and query into
   `Parameters`.
2. `dispatcher.py` checks prerequisites, and runs the handler with a `Context`. Clients send no mutation id for a
   *heavy* command such as this one, and its handler starts the store's transaction. (A *light* command that changes
   something runs once for each mutation id, in one write transaction that the dispatcher starts.)
3. `tables/row_commands.py` has the handler. It loads the table (`find_table` in `tables/state.py`), and decodes
   the rows to Arrow (`read_rows` in `formats.py`, which calls `wire/yson/rows_decoding.py`).
4. `tables/row_changes.py` makes a `TableChange`, without the writer's lock: `tables/layout.py` converts rows to the
   store's columns, and `EmbeddedTable.prepare` encodes them. Queues, consumers, producers and locks have classes of
   their own.
5. `tables/tablet_transactions.py` adds the change to the client's transaction, or commits it now. A commit is one write
   transaction: it checks the conflicts of a client's transaction (`tables/row_locks.py`), and applies each change
   (`TableChange.apply` → `EmbeddedTable.apply`, which also writes the change log). It loads the `Table` again, once for
   all changes, because another client may have unmounted it since step 3. The handle of the store's table, of step 4,
   reads its schema again only if the schema has changed.
6. `http/responses.py` writes the answer in the client's format. Responses that do not fit into the memory for answers
   move to disk.

`Context` knows `Cypress`, which knows no node types; `cypress/operations.py` connects the two. So there is no import
circle. YSON is parsed by YTsaurus' client (`wire/yson/documents.py`), rows by our own vectorized code. The client's
parser of paths does not split them into nodes and attributes, and its parser of types has no limits of depth or
precision and not the older names, so `wire/paths.py` and `wire/types.py` are our own.
"""
