"""Benchmarks. Each compares headrace with a baseline in one run."""
