"""Recurrent layers in the place of a block's self-attention."""
