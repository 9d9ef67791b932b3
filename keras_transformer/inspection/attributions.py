"""Attribution of a prediction to attention weights."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.inspection.attention_weights import self_attention
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check, check_positive_integer


def attention_attributions(
    model: Any,
    inputs: Tensor | dict[str, Tensor],
    target: int | np.ndarray | Callable[[Tensor], Tensor] | None = None,
    layer: int = -1,
    steps: int = 20,
) -> np.ndarray:
    r"""Return the contribution of each attention weight of a block to a prediction.

    $$\mathrm{Attr}(A) = A \odot \int_0^1 \frac{\partial F(\alpha A)}{\partial A}\, d\alpha, \qquad
    \sum \mathrm{Attr}(A) = F(A) - F(0)$$

    F is the model's prediction as a function of the attention weights A of all heads of the block. Large weights need
    not contribute much, and contributions may be negative.

    Args:
        model: a model with `blocks`, such as `models.GPT`, `models.BERT` or `models.ViT`, or with an `encoder` that has
            them, such as `models.SequenceClassifier`.
        inputs: the inputs of the model, B rows.
        target: the class whose logit is F, an integer or one for each row, by default the predicted class; or a
            function from the model's outputs to F, (B,), for models whose outputs are not logits (B, C).
        layer: the index of the block.
        steps: the number of points of the quadrature (Gauss-Legendre) of the integral.

    Returns:
        float32 (B, N, T, T), one map for each head, with queries as rows.

    Example:
        >>> from keras_transformer.models import BERT, SequenceClassifier
        >>> model = SequenceClassifier(BERT(100, num_layers=1, num_heads=2, model_dim=16, max_length=8), 3)
        >>> attention_attributions(model, np.array([[5, 6, 3]])).shape
        (1, 2, 3, 3)

    References:
        Hao et al., "Self-Attention Attribution: Interpreting Information Interactions Inside Transformer" (2021),
        equations 4 and 5.
    """
    check_positive_integer(steps=steps)
    attention = self_attention(model, layer)
    weights, values, outputs = _record(attention, lambda: model(inputs, training=False))
    function = target if callable(target) else _logit(outputs, target)

    def prediction(heads: Tensor) -> Tensor:
        """Return F, summed over the independent rows, for outputs (B, T, N, V) of the heads."""
        with _replaced_call(attention, lambda *args, **kwargs: attention.merge_heads(heads)):
            return ops.sum(function(model(inputs, training=False)))

    heads = ops.einsum("bnts,bnsv->btnv", weights, values)
    points, point_weights = np.polynomial.legendre.leggauss(steps)
    gradients = [
        weight / 2 * _gradient(prediction, heads * float(point + 1) / 2)
        for point, weight in zip(points, point_weights, strict=True)
    ]
    # The derivative of a head's output by a weight is the value.
    by_weight = np.einsum("btnv,bnsv->bnts", sum(gradients), ops.convert_to_numpy(values))
    attributions: np.ndarray = ops.convert_to_numpy(weights) * by_weight
    return attributions


def _logit(outputs: Tensor, target: int | np.ndarray | None) -> Callable[[Tensor], Tensor]:
    """Return a function from logits (B, C) to those of one class for each row."""
    check(len(outputs.shape) == 2, "be a function for outputs that are not logits (B, C)", target=target)
    classes = ops.argmax(outputs, axis=-1) if target is None else np.broadcast_to(target, len(outputs))
    one_hot = ops.one_hot(classes, outputs.shape[-1])
    return lambda logits: ops.sum(logits * ops.cast(one_hot, logits.dtype), axis=-1)


def _record(attention: Any, call: Callable[[], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weights (B, N, T, S) and values (B, N, S, V) of an attention layer in a call, and its outputs."""
    recorded = {}

    def recording(query: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        options = {**kwargs, "return_attention_scores": True}
        output, recorded["weights"] = type(attention).call(attention, query, *args, **options)
        values = attention.project(query)["value"]
        recorded["values"] = ops.repeat(values, attention.num_heads // attention.num_kv_heads, axis=1)
        return output

    with _replaced_call(attention, recording):
        outputs = call()
    return *(ops.cast(recorded[name], "float32") for name in ("weights", "values")), outputs


@contextlib.contextmanager
def _replaced_call(layer: Any, call: Callable[..., Tensor]) -> Iterator[None]:
    layer.call = call  # overrides the method of this layer
    try:
        yield
    finally:
        del layer.call


def _gradient(function: Callable[[Tensor], Tensor], tensor: Tensor) -> np.ndarray:
    """Return the gradient of a scalar function."""
    if keras.backend.backend() == "jax":
        import jax

        return np.asarray(jax.grad(function)(tensor))
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(tensor)
        result = function(tensor)
    gradient: np.ndarray = tape.gradient(result, tensor).numpy()
    return gradient
