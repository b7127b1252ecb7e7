"""Tables of a Tablestore instance."""
