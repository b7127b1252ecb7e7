"""Values and rules of tunnels, the same for every store. Pure: no I/O, and no store."""
