"""Optimizer settings for transformers."""

import keras

# Names of variables that scale, shift or embed; on TensorFlow, paths end with ":0".
_NOT_DECAYED = r"(^|/|_)(bias|beta|gamma|scale|embeddings|table|class_token|class_position)(:\d+)?$"


def exclude_from_weight_decay(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Exclude norms, biases and embeddings from an optimizer's weight decay, in place.

    Weight decay then applies only to the kernels of linear maps, as in BERT and GPT-3. Earlier settings of
    `optimizer.exclude_from_weight_decay` are replaced.

    Args:
        optimizer: an optimizer without variables, before `fit` or `build`.

    Returns:
        The same optimizer.

    Raises:
        ValueError: if it already has variables.

    Example:
        >>> optimizer = exclude_from_weight_decay(keras.optimizers.AdamW(1e-4, weight_decay=0.01))

    References:
        Devlin et al., "BERT" (2019), appendix A.2, and its code; Loshchilov and Hutter, "Decoupled Weight Decay
        Regularization" (2019).
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(f"`optimizer` must be a Keras optimizer. Received: optimizer={optimizer!r}")
    if optimizer.built:
        raise ValueError("`optimizer` must not have variables yet. Received: an optimizer that is built")
    optimizer.exclude_from_weight_decay(var_names=[_NOT_DECAYED])
    return optimizer
