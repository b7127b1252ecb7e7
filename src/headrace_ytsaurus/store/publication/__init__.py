"""Publication of batches in a YTsaurus cluster: staged rows and markers.

From staged rows to the cluster:

1. Tasks stage rows as files of the cluster, below headrace's own directory, which readers do not use.
2. The driver publishes the batch in one tablet transaction: it reads the marker, writes the rows of all tables and
   queues, advances the consumers by compare-and-set, writes the marker, and commits.
3. For a batch that is too large for a transaction the driver first writes an intent, a row that names the staged
   files. Then it writes the rows in parts: into queues as a producer, whose sequence numbers identify accepted rows,
   and into tables by key. Then it writes the marker. A later driver that finds an intent completes it from the
   intent's files, even if the batch has been staged again.
4. If the response to a commit is lost, the marker shows the outcome.
"""
