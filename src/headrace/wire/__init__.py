"""The protocol of PostgreSQL's slots and texts, without I/O. Packages of other stores have their own."""
