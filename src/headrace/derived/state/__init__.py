"""The state of groups: aggregates from signed rows, in tables of the target's store. No Spark."""
