"""Create blocks from the options of their sublayers."""

from keras_transformer.layers import DecoderBlock, EncoderBlock, FeedForward, MultiHeadAttention

_SHARED = ("use_bias", "kernel_initializer", "output_initializer", "dtype")
_OF_BLOCKS = ("normalization", "norm", "epsilon", "rematerialize", "name", "dtype")


def _parts(hidden_dim, activation, dropout, **options):
    shared = {name: options[name] for name in _SHARED if name in options}
    block = {name: options.pop(name) for name in _OF_BLOCKS if name in options}
    rates = {name: options.pop(f"{name}_dropout", dropout) for name in ("hidden", "attention")}

    def attention(name, **own):
        return MultiHeadAttention(**{**options, **shared, **own, "dropout": rates["attention"], "name": name})

    feed_forward = FeedForward(hidden_dim, activation, rates["hidden"], name="feed_forward", **shared)
    return attention, feed_forward, {**block, "dropout": dropout}


def encoder_block(num_heads=2, hidden_dim=12, relation=None, *, activation="relu", dropout=0.0, **options):
    """Return an EncoderBlock."""
    attention, feed_forward, block = _parts(hidden_dim, activation, dropout, num_heads=num_heads, **options)
    return EncoderBlock(attention("attention", relation=relation), feed_forward, **block)


def decoder_block(
    num_heads=2,
    hidden_dim=12,
    relation="causal",
    *,
    cross=True,
    position_encoding=None,
    activation="relu",
    dropout=0.0,
    **options,
):
    """Return a DecoderBlock, with cross-attention unless `cross` is False."""
    attention, feed_forward, block = _parts(hidden_dim, activation, dropout, num_heads=num_heads, **options)
    own = attention("self_attention", relation=relation, position_encoding=position_encoding)
    return DecoderBlock(own, feed_forward, attention("cross_attention") if cross else None, **block)
