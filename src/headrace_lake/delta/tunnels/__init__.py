"""Tunnels of Delta tables: what each version has changed, as changes of rows.

A position is a version of the table and a number of changes after it. `log` reads the entries of the table's log, and
`version_changes` the rows that a version has removed and added: from the files of the change feed if the version has
some, otherwise from the data files. Rows are compared by key, so rewritten files, OPTIMIZE and overwrites are no
changes. What a tunnel itself must keep (positions, plans of batches, clients) is in tables of the home: `records`.
"""
