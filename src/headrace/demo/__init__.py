"""The demonstration: statistics of changing orders, a killed driver, and a proof that the statistics are right."""
