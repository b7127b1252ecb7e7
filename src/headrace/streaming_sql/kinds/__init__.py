"""The kinds of streams, by their statements: how each is checked, started and explained."""
