"""Values and rules of tunnels, the same for all stores. No I/O."""
