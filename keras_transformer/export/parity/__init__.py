"""Compare exports with pipelines."""
