"""``MERGE INTO`` of a stream: Spark evaluates the clauses, and tasks read and write the target by key."""
