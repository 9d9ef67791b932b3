"""The lengths of rows that are padded at the end."""

from typing import Any

import tensorflow as tf

from keras_transformer.data.epochs import prefetched

LENGTHS = {"token_ids": "lengths", "source_ids": "source_lengths", "target_ids": "target_lengths"}


def with_lengths(dataset: tf.data.Dataset, pad_id: int = 0) -> tf.data.Dataset:
    """Add the lengths of rows to batches whose padding is at the end, as in all batches of `data`.

    The models pass them to `ops.attention` as `key_lengths`, with which the kernel "fused" can be used: a mask does not
    say that padding is at the end.

    Args:
        dataset: elements of inputs, or of inputs and labels and weights; inputs are a dictionary with ids (B, T) under
            "token_ids", or under "source_ids" and "target_ids".
        pad_id: the padding id. A first target id is never padding.

    Returns:
        The same elements, with "lengths" (B,), or "source_lengths" and "target_lengths", in the inputs. Iteration
        raises `tf.errors.InvalidArgumentError` if padding is before the end of a row.

    Raises:
        ValueError: if the inputs have no ids.

    Example:
        >>> batches = tf.data.Dataset.from_tensors({"token_ids": [[5, 6, 0], [7, 0, 0]]})
        >>> next(iter(with_lengths(batches)))["lengths"].numpy()
        array([2, 1], dtype=int32)
    """
    spec = dataset.element_spec
    inputs_spec = spec[0] if isinstance(spec, tuple) else spec
    ids = [name for name in LENGTHS if isinstance(inputs_spec, dict) and name in inputs_spec]
    if not ids:
        raise ValueError(
            f"`dataset` must have inputs with ids: one of {sorted(LENGTHS)}. Received: element_spec={spec}"
        )

    def add(inputs: dict[str, tf.Tensor], *others: Any) -> Any:
        lengths = {LENGTHS[name]: _lengths(name, inputs[name], pad_id) for name in ids}
        found = {**inputs, **lengths}
        return (found, *others) if isinstance(spec, tuple) else found

    added = prefetched(dataset.map(add, tf.data.AUTOTUNE, deterministic=True))
    if hasattr(dataset, "epochs"):  # `training.ExactResume` needs it
        added.epochs = dataset.epochs
    return added


def _lengths(name: str, ids: tf.Tensor, pad_id: int) -> tf.Tensor:
    """Return the lengths, int32 (B,), if padding is at the end."""
    real = ids != pad_id
    count = tf.shape(ids)[1]
    lengths = tf.reduce_max(tf.where(real, tf.range(1, count + 1), 0), axis=1)
    padding = tf.sequence_mask(lengths, count) & ~real
    if name == "target_ids":  # the start id may be the padding id
        padding &= tf.range(count) > 0
        lengths = tf.maximum(lengths, 1)
    message = f"Padding of `{name}` must be at the end of each row, but some is before other ids."
    with tf.control_dependencies([tf.debugging.assert_none_equal(padding, True, message=message)]):
        return tf.identity(lengths)
