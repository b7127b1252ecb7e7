"""The defaults and limits of comparisons; the command line shows them in its help, without loading Arrow."""

DEFAULT_RANGES, MAX_RANGES = 16, 10_000
DEFAULT_PARALLEL, MAX_PARALLEL = 4, 64
DEFAULT_LIMIT = 20
MAX_PAUSE = 86_400
"""The longest time between two passes, in seconds."""
