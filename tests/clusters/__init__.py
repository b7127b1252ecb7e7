"""Streams on several machines, which are network namespaces of this one."""
