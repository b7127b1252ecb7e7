"""Loaded by the server of `headrace.testing.processes` before it forks: what the tests' processes need.

A process that is given a `Place` loads the module of all places, and with it the packages of all stores, which takes
1.4 seconds of a core. The server may start in any directory, so it finds this module by ``PYTHONPATH``.
"""

import gc
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import tests.conformance.stores  # noqa: F401

# Otherwise, each search for garbage in a forked process copies the memory of all these modules.
gc.collect()
gc.freeze()
