"""The losses and weights of `fit`, with which Keras would silently train something else."""

from typing import Any

import keras
from keras import ops

_FROM_LOGITS = (
    keras.losses.BinaryCrossentropy,
    keras.losses.BinaryFocalCrossentropy,
    keras.losses.CategoricalCrossentropy,
    keras.losses.CategoricalFocalCrossentropy,
    keras.losses.SparseCategoricalCrossentropy,
)
_FUNCTIONS = {
    function: kind.__name__
    for function, kind in (
        (keras.losses.binary_crossentropy, keras.losses.BinaryCrossentropy),
        (keras.losses.binary_focal_crossentropy, keras.losses.BinaryFocalCrossentropy),
        (keras.losses.categorical_crossentropy, keras.losses.CategoricalCrossentropy),
        (keras.losses.categorical_focal_crossentropy, keras.losses.CategoricalFocalCrossentropy),
        (keras.losses.sparse_categorical_crossentropy, keras.losses.SparseCategoricalCrossentropy),
    )
}
# Losses of probabilities, without an argument `from_logits`.
_OF_PROBABILITIES = (keras.losses.Dice, keras.losses.KLDivergence, keras.losses.Tversky)
_FUNCTIONS_OF_PROBABILITIES = (keras.losses.dice, keras.losses.kl_divergence, keras.losses.tversky)


def check_losses(model: Any) -> None:
    """Raise a ValueError if a model whose outputs are logits is compiled with a loss of probabilities."""
    if not model.returns_logits:
        return
    for path, loss in keras.tree.flatten_with_path(getattr(model, "loss", None)):
        found = keras.losses.get(loss) if loss is not None else None
        is_function = callable(found) and not isinstance(found, keras.losses.Loss)
        name, received = _FUNCTIONS.get(found) if is_function else None, ", with from_logits=False"
        if isinstance(found, _FROM_LOGITS) and not found.from_logits:
            name = type(found).__name__
        if isinstance(found, _OF_PROBABILITIES) or found in _FUNCTIONS_OF_PROBABILITIES:
            name, received = "CategoricalCrossentropy", ""  # whose gradient is that of KLDivergence
        if name is not None:
            place = "".join(f"[{key!r}]" for key in path)
            raise ValueError(
                f"`loss` must be of logits: the outputs of {type(model).__name__} are no probabilities. Use "
                f"keras.losses.{name}(from_logits=True). Received: loss{place}={loss!r}{received}"
            )


def check_class_weight(model: Any, class_weight: Any) -> None:
    """Raise a ValueError if `fit` has class weights for a model without one class for each row.

    Keras would read the class of a row from the position of its largest label.
    """
    if class_weight is None:
        return
    try:
        shapes = model.compute_output_shape(
            keras.tree.map_structure(lambda spec: tuple(spec.shape), model.input_signature())
        )
    except NotImplementedError:
        return
    one_class = isinstance(shapes, tuple | list) and len(shapes) == 2
    problem_type = getattr(model, "problem_type", "single_label_classification")
    if not one_class or problem_type != "single_label_classification":
        raise ValueError(
            "`class_weight` must be None for a model without one class for each row. Use `sample_weight`, in the shape "
            f"of the labels, such as the weights of their classes. Received: class_weight={class_weight!r} for a "
            f"{type(model).__name__} with outputs of shape {shapes}"
            + (f" and {problem_type=}" if one_class else "")
        )


def expanded_weights(sample_weight: Any, outputs: Any) -> Any:
    """Return weights of rows (B,) as (B, 1, …), with as many axes as the losses of the outputs.

    Keras multiplies losses (B, T) by weights (B,) along T.

    Args:
        sample_weight: the weights, a tensor or a structure of them; None for no weights.
        outputs: the model's outputs. The weights are for all of them, or have their structure.
    """
    if sample_weight is None:
        return None
    if not keras.tree.is_nested(sample_weight):
        return keras.tree.map_structure(lambda output: _expanded(sample_weight, output), outputs)
    try:
        keras.tree.assert_same_structure(sample_weight, outputs)
    except ValueError:
        return sample_weight
    return keras.tree.map_structure(_expanded, sample_weight, outputs)


def _expanded(weights: Any, output: Any) -> Any:
    num_axes = len(output.shape) - 1  # of the losses
    if weights is None or num_axes < 2:
        return weights
    is_unknown = getattr(weights.shape, "rank", 0) is None  # after calls with both (B,) and (B, T)
    if not is_unknown and len(weights.shape) != 1:
        return weights
    return ops.reshape(weights, (ops.shape(output)[0], -1, *[1] * (num_axes - 2)))
