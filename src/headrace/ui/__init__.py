"""The web page of stores and streams: `headrace ui`."""
