"""How kept views are tested: a SELECT over tables that change equals DuckDB's answer after every batch.

- `tables`: tables as values, and a database of DuckDB that holds their current rows.
- `changes`: random batches of transactions, and the net rows of a batch.
- `comparing`: when two answers are the same.
- `rules`: what an engine without Spark must offer, one that computes everything again, and the loop of batches.
- `gathered`: the rules of headrace in memory, without Spark.
- `gathering`, `faulty`: toy engines with faults, which the tests must notice.
- `tpch_data`, `tpch_queries`: the tables and the 22 queries of TPC-H; `nexmark`: those of Nexmark.
- `grammar`, `queries`: random queries over random tables, as values that can be made smaller.
- `scenarios`: tables, a history and queries from a seed, and the shortest scenario that still fails.
- `streams`: the same with tables of a store and `headrace.follow`.
"""
