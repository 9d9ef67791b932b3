"""Checks of the losses and class weights of `fit`, with which training would silently learn something else."""

from typing import Any

import keras

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


def check_losses(model: Any) -> None:
    """Raise a ValueError if a model whose outputs are logits is compiled with a loss of probabilities."""
    if not model.returns_logits:
        return
    for path, loss in keras.tree.flatten_with_path(getattr(model, "loss", None)):
        found = keras.losses.get(loss) if loss is not None else None
        name = _FUNCTIONS.get(found) if callable(found) and not isinstance(found, keras.losses.Loss) else None
        if isinstance(found, _FROM_LOGITS) and not found.from_logits:
            name = type(found).__name__
        if name is not None:
            place = "".join(f"[{key!r}]" for key in path)
            raise ValueError(
                f"`loss` must be of logits: the outputs of {type(model).__name__} are no probabilities. Use "
                f"keras.losses.{name}(from_logits=True). Received: loss{place}={loss!r}, with from_logits=False"
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
