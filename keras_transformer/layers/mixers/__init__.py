"""Recurrent layers that replace the self-attention of a block."""
