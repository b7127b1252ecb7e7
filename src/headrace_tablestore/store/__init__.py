"""The store of an Alibaba Cloud Tablestore instance, over its HTTP interface.

A change takes the way that `headrace.batches` describes, with the operations of the service instead of transactions:

1. `TablestoreTunnel` reads pages of records and decodes them into Arrow columns. A token of the service identifies a
   page. A position is a token and the number of rows of its page to skip. A bound that is not a token (`before:<µs>`)
   is a time, because records have timestamps.
2. Plans and ends are rows of the meta table, written on the condition that they do not exist. Ends have the layout of
   the vendor's connector, so positions can be transferred in both directions.
3. Tasks of the sink write their rows at once, and the driver writes the marker after all rows. A batch without a
   marker runs again and puts the same rows. Rows of complete mode are staged in the meta table, and publication writes
   the differences.
4. When the feed commits, positions at the beginning of a page become the service's checkpoints. A position inside a
   page is a row of the meta table, next to the checkpoint before it.
"""
