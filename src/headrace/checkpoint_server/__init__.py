"""Checkpoints of Spark in the files of a store: served to Spark by its own driver, under the WebHDFS protocol."""
