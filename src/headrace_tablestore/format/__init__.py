"""Format ``tablestore``: the option names and columns of Tablestore's connector (docs/tablestore.md)."""
