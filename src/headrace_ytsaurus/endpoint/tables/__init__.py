"""Dynamic tables: nodes, tablets, tablet transactions and the commands on rows."""
