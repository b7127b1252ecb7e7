"""The store of a directory or bucket of Delta Lake tables: ``delta:///directory``, ``delta+s3://bucket/prefix``.

Each table is a directory with Parquet files and a log. A publication is one commit of a table, with the job's batch as
the commit's ``txn`` action. `headrace_lake.delta.commits` has the steps of a commit, and `headrace_lake.delta.snapshot`
what it reads: the package ``deltalake`` reads the log. headrace reads and writes data files and deletion vectors, and
writes the entries of the log.

A Delta commit changes one table. What must change together with it is in the *home*, another store of headrace: the
state of followed queries, the registry of their targets, and the intents of publications that have more than one part.
Names that begin with ``__headrace_`` are tables of the home.
"""
