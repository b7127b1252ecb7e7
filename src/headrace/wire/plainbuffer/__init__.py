"""PlainBuffer, the format of rows in the Tablestore protocol: one by one, and many at a time to and from Arrow."""
