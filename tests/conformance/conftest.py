"""The fixtures of tests on all stores."""

from headrace.testing.suite.conftest import orders, pytest_configure, queue, store

__all__ = ["orders", "pytest_configure", "queue", "store"]
