"""What survives many compactions: run with ``python -m tests.quality`` for the whole table."""
