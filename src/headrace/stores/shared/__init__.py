"""What the embedded store and the PostgreSQL store share: code over tables that both have, in two dialects."""
