"""Tablestore's HTTP API over embedded stores: each instance is a directory, each table one of its tables.

``app`` takes requests and answers them, ``operations`` says which there are, the modules named ``…_api`` do them.
``schema`` knows how Tablestore's rows, whose cells have a type and a timestamp each, lie in tables of typed columns;
``reading`` and ``writing`` take them out and put them in.
"""
