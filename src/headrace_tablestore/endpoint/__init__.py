"""Tablestore's HTTP API over embedded stores: each instance is a directory, each table one of its tables.

``app`` receives requests and sends responses. ``operations`` maps the path of a request to its handler, which is in
``tables/``, ``rows/`` or ``tunnels/``. ``rows/layout`` defines how Tablestore's rows, whose cells have a type and a
timestamp each, are stored in tables of typed columns. ``rows/reading`` and ``rows/writing`` use it.
"""
