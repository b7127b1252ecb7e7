"""Master transactions, and the commands on transactions of all types."""
