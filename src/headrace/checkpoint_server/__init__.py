"""Spark's checkpoints in the files of a store. The driver serves the files to Spark by the WebHDFS protocol."""
