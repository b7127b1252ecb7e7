"""Which rows decide about the changes of a query: it is evaluated over them before a batch and after it.

This holds for any query, because results in which no changed row takes part are the same in both evaluations and cancel
out. So reading too many rows costs time only. Spark evaluates the user's text, so nulls, types and errors are Spark's.

1. `scopes` reads the structure of the text into a `model`: which tables are named where, which parts of the query
   matter as a whole, and which columns must be equal. `names` says what a name means. `orderings` notes on which orders
   the result depends, and `orders` refuses orders that the query does not determine.
2. `routes` makes lookups of the equalities: from a changed row outwards, and then to all rows of the parts that matter
   as a whole. Where no equality leads on, a table is read as a whole; `constructs` has the names of the reasons. Of
   rows that are compared with a total, those between its old and its new value are read (`between`).
3. `arrangements` keeps the used columns of each followed table in the target's store, once for each key of a lookup.
   `row_keys` has the keys.
4. `gather` follows the lookups from the changes of a batch, and has the difference of two results.
5. `signed_joins` says of joins and filters in one evaluation what changes in their result.
6. `tree` shows all this to people: the blocks of a query, and what is expensive.

`headrace.derived.follow.gathered_batches` runs the batches. The rules need no Spark, so tests compare them with DuckDB.
"""
