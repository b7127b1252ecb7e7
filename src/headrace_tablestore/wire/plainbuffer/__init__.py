"""PlainBuffer, the format of rows in the Tablestore protocol: single rows, and pages of rows to and from Arrow."""
