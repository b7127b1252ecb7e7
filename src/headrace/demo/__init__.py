"""The demonstration: changes of orders become statistics, through a killed driver, and a proof that they are right."""
