"""Spark's checkpoints in the files of a store. The driver serves the files to Spark by the WebHDFS protocol.

From a location of a checkpoint to files of a store:

A location that Spark opens itself (`spark/bare_locations`) skips step 1: settings map its scheme to the files of one
default store on the same server, at the address `webhdfs://headrace/default/`. So `spark.checkpoint` reads it in the
store that the environment names.

1. `write_stream` and SQL translate `headrace:///path` and `yt:///path` into an address without a host
   (`webhdfs://headrace/<store>/path`), and set the current address of the server in the session.
2. The driver's process serves the store's `Files` there. Spark's own client writes each file under a temporary name
   and moves it. The move is one transaction, which fails if the name exists.
3. `spark.checkpoint` reads such a checkpoint through the port `Files`, to find the job's identity and the consumers'
   progress.
"""
