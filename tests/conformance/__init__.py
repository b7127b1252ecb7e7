"""Tests of the promises of every store. They use only `headrace.ports`, and run on every store in `stores.STORES`."""
