"""What looks at stores without changing them: queries, comparisons of tables, estimates of capacity."""
