"""What every part of headrace may use: no module here knows stores, tables or Spark."""
