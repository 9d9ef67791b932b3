"""Exact attention block by block: memory that grows with the length and not with its square."""
