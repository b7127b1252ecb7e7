"""Iceberg tables of a SQL catalog, with data files in a directory, by the package pyiceberg.

`catalog` finds tables, `version` is one state of a table, `commits` plans and makes commits, and `maintenance` is for
`headrace lake`. Only the public interface of pyiceberg is used. What headrace does not write or read exactly is refused
by name: format version 3, delete files and deletion vectors, other files than Parquet, and columns that were renamed.
"""
