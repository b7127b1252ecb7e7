"""What every part of headrace may use: no module here imports stores, tables or Spark."""
