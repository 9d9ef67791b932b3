"""Exact attention block by block, in memory linear in the sequence length instead of quadratic."""
