"""Reading and writing files and static tables."""
