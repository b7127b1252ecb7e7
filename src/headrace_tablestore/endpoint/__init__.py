"""Tablestore's HTTP API over embedded stores: each instance is a directory, each table one of its tables.

``app`` receives requests and sends responses. ``operations`` maps the path of a request to its handler, which is in
``tables/``, ``rows/`` or ``tunnels/``. ``rows/layout`` defines how Tablestore's rows, whose cells have a type and a
timestamp each, are stored in tables of typed columns. ``rows/reading`` and ``rows/writing`` use it.

From a request to its response:

1. The bounds of `headrace.http` limit requests and bytes in memory. The endpoint checks headers, signature, date, the
   key's instances and the body's MD5 before it parses the message. Threads process the request.
2. Each path has one handler. It gets an `Instance`: an embedded store, and the settings of tables that only Tablestore
   has, as JSON in a table of the instance.
3. A free cell is stored in a typed column. The first type of a name gets the name; another type gets `name:TYPE`.
   Reading, checking a condition and writing are one transaction of the store (`EmbeddedTable.transact`).
4. Tunnel requests map to calls of the port, one to one. The same rules assign channels to clients as for workers.

The store and the endpoint share `wire/`, so a fault there would affect both sides and cancel out. Its tests therefore
compare fixed bytes of the vendor's clients, and `tests/interop` runs those clients.
"""
