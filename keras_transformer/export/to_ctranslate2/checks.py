"""The arguments of specifications of CTranslate2, after checking that it has all of a model."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_transformer import layers, relations
from keras_transformer.layers.feed_forward import activation_function
from keras_transformer.layers.positions import rotary_scaling
from keras_transformer.ops.scores import ScaledDotProduct

_OF_BLOCKS = {  # arguments that blocks may differ in
    *("rotary_dim", "rotary_interleave", "rotary_base", "rotary_scaling_type", "rotary_scaling_factor"),
    "original_max_position_embeddings",
}


def error(expectation: str, received: str) -> ValueError:
    """Return the error of a model that CTranslate2 does not run."""
    return ValueError(
        f"`pipeline` must have a model that CTranslate2 runs, with {expectation}. Received: {received}"
    )


def require(value: Any, expectation: str, received: Any) -> None:
    """Raise the error of a model unless `value` is true."""
    if not value:
        raise error(expectation, str(received))


def stack(kind: Any, blocks: Sequence[Any], relation: relations.Relation, size: int, **options: Any) -> Any:
    """Return the specification of an encoder or decoder without weights.

    Args:
        kind: the class of the specification.
        blocks: the blocks, which may differ in rotary positions.
        relation: that of self-attention.
        size: the number of tokens of the longest text.
        **options: other arguments.
    """
    arguments = [{**block_arguments(block, relation, size), **options} for block in blocks]
    first = arguments[0]
    for number, others in enumerate(arguments):
        names = {*first, *others} - _OF_BLOCKS
        different = [name for name in sorted(names) if others.get(name) != first.get(name)]
        require(not different, "blocks of one kind", f"another {', '.join(different)} in block {number}")
    spec = kind(len(blocks), **first)
    spec.layer = [layer for each in arguments for layer in kind(1, **each).layer]
    return spec


def block_arguments(block: Any, relation: relations.Relation, size: int) -> dict[str, Any]:
    """Return the arguments that describe a block, after checking that CTranslate2 has all of it."""
    names = [name for name in block.sublayers if getattr(block, name) is not None]
    for name in names[:-1]:
        attention = getattr(block, name)
        require(
            type(attention) is layers.MultiHeadAttention,
            "a `MultiHeadAttention` in each block",
            f"a {type(attention).__name__}",
        )
        expected = relations.Full() if name == "cross_attention" else relation
        # CTranslate2's windows move rotary positions.
        is_causal = expected == relations.Causal() and _window(attention.relation) >= size
        require(
            attention.relation == expected or is_causal,
            f"the relation {expected} of {name}, or a window of at least {size} tokens (a text and its output)",
            attention.relation,
        )
        score = attention.score
        require(
            type(score) is ScaledDotProduct and score.soft_cap is None,
            "the score ScaledDotProduct without a soft cap",
            score,
        )
        require(
            attention.value_dim == attention.key_dim,
            "values of the size of keys",
            f"value_dim={attention.value_dim}, key_dim={attention.key_dim}",
        )
        require(attention.head_norm in (None, "rms"), "RMS norms of heads", attention.head_norm)
    attention = getattr(block, names[0])
    residuals = [getattr(block, f"{name}_residual") for name in names]
    normalizations, norms = (
        {getattr(each, name) for each in residuals} for name in ("normalization", "norm_kind")
    )
    (normalization, *others), (norm, *other_norms) = sorted(normalizations), sorted(norms)
    known = ("pre", "post", "sandwich") if len(names) == 2 else ("pre", "post")
    require(
        not others and normalization in known,
        f"the normalization {' or '.join(known)} of all sublayers",
        ", ".join(normalizations),
    )
    require(not other_norms, "norms of one kind", ", ".join(norms))
    cross = getattr(block, "cross_attention", None)
    if cross is not None:
        require(
            (cross.num_heads, cross.num_kv_heads, cross.key_dim, cross.head_norm)
            == (attention.num_heads, attention.num_kv_heads, attention.key_dim, attention.head_norm),
            "cross-attention with the heads of self-attention",
            f"{cross.num_heads} heads of {cross.key_dim}",
        )
    activation = block.feed_forward.activation
    return {
        "num_heads": attention.num_heads,
        "pre_norm": normalization != "post",
        "pre_post_layer_norm": normalization == "sandwich",
        "rms_norm": norm == "rms",
        "activation": activation_number(activation),
        "ffn_glu": block.feed_forward.gate is not None,
        "num_heads_kv": None if attention.num_kv_heads == attention.num_heads else attention.num_kv_heads,
        "head_dim": attention.key_dim,
        "qk_norm": attention.head_norm is not None,
        **_position_arguments(attention, is_causal=relation == relations.Causal()),
    }


def _window(relation: relations.Relation) -> int:
    """Return the number of tokens in a window that ends with the query; 0 for other relations."""
    if isinstance(relation, relations.SlidingWindow) and relation.left is not None and relation.right == 0:
        return relation.left + 1
    return 0


def activation_number(activation: Any) -> int:
    """Return CTranslate2's number of an activation."""
    from ctranslate2.specs.common_spec import Activation

    numbers = {
        "relu": Activation.RELU,
        "gelu": Activation.GELU,
        "gelu_tanh": Activation.GELUTanh,
        "silu": Activation.SWISH,
        "tanh": Activation.Tanh,
        "sigmoid": Activation.Sigmoid,
    }
    return numbers[activation_name(activation)]


def activation_name(activation: Any) -> str:
    """Return the name of an activation that CTranslate2 has; of a gated network, of its gate."""
    function = activation_function(activation)
    known = {
        keras.activations.relu: "relu",
        activation_function(keras.activations.gelu): "gelu",
        activation_function("gelu_tanh"): "gelu_tanh",
        activation_function("geglu_tanh"): "gelu_tanh",
        keras.activations.silu: "silu",
        keras.activations.tanh: "tanh",
        keras.activations.sigmoid: "sigmoid",
    }
    require(
        function in known,
        "the activation relu, gelu, silu, tanh or sigmoid, or a gated network of one",
        getattr(activation, "__name__", activation),
    )
    return known[function]


def _position_arguments(attention: Any, is_causal: bool) -> dict[str, Any]:
    """Return the arguments of the position encoding of a self-attention, causal or not."""
    from ctranslate2.specs.attention_spec import RotaryScalingType

    encoding = attention.position_encoding
    relative = {"relative_attention_bias": type(encoding) is layers.RelativeBias}
    if is_causal:
        relative["alibi"] = type(encoding) is layers.ALiBi
    if encoding is None or any(relative.values()):
        require(
            getattr(encoding, "bidirectional", not is_causal) != is_causal,
            f"bidirectional={not is_causal} in the relative bias",
            encoding,
        )
        return relative
    require(
        type(encoding) is layers.RotaryPositions,
        f"rotary positions, {'ALiBi, ' if is_causal else ''}a relative bias, or positions that are added to embeddings",
        f"a {type(encoding).__name__}",
    )
    scaling = encoding.scaling
    types = {
        rotary_scaling.LinearScaling: RotaryScalingType.Linear,
        rotary_scaling.Llama3Scaling: RotaryScalingType.Llama3,
    }
    require(
        scaling is None or type(scaling) in types, "linear or Llama 3's scaling of rotary positions", scaling
    )
    return {
        **relative,
        "rotary_dim": encoding.rotary_dim or 0,  # 0 for all
        "rotary_interleave": encoding.layout == "interleaved",
        "rotary_base": encoding.max_wavelength,
        "rotary_scaling_type": None if scaling is None else types[type(scaling)],
        "rotary_scaling_factor": 1 if scaling is None else scaling.factor,
        **({"original_max_position_embeddings": getattr(scaling, "original_length", 0)} if is_causal else {}),
    }
