"""The embedded store behind the protocols of other systems: one folder for each."""
