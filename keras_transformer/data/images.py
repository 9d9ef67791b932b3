"""Batches of images and labels for an image classifier."""

import numpy as np

from keras_transformer.data.batches import Dataset, batches
from keras_transformer.data.epochs import Batch, RowOrder, Shard
from keras_transformer_options.arguments import ArgumentError, check_at_least


def image_batches(
    images: np.ndarray,
    labels: np.ndarray,
    batch_size: int = 64,
    *,
    shift: int = 0,
    flip: bool = False,
    shuffle: bool = True,
    seed: int = 0,
    shard: tuple[int, int] | None = None,
) -> Dataset:
    """Make batches of images, with random shifts and flips that differ in each epoch.

    Args:
        images: (n, height, width, channels), of any dtype, which is kept.
        labels: integers (n,) for single-label classification; for other `problem_type`s 0 or 1, (n, C), or numbers.
        batch_size: the number of images in each batch; the last may be smaller.
        shift: the maximum shift in pixels, vertical and horizontal; images are padded with zeros.
        flip: whether to flip half of the images horizontally.
        shuffle: whether to reshuffle in each epoch.
        seed: the seed of shuffling, shifts and flips.
        shard: (index, count), to read one shard of each batch as one of several workers, see `translation_pairs`; of
            the last batch, up to count − 1 images are dropped, different ones in each epoch.

    Returns:
        A dataset of known cardinality with elements `(images, labels)`.

    Example:
        >>> dataset = image_batches(np.zeros((5, 8, 8, 1), "uint8"), np.arange(5), batch_size=2, shift=1)
        >>> len(dataset), dataset.element_spec[0].shape
        (3, TensorShape([None, 8, 8, 1]))
    """
    images, labels = np.asarray(images), np.asarray(labels)
    if images.ndim != 4 or not len(images) or labels.shape[:1] != images.shape[:1] or labels.ndim > 2:
        raise ValueError(
            "`images` must be (n, height, width, channels) and `labels` (n,) or (n, C), n > 0. "
            f"Received: images.shape={images.shape}, labels.shape={labels.shape}"
        )
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        row = int(np.argwhere(~np.isfinite(labels))[0, 0])
        raise ArgumentError(f"{{labels}} must be finite. Received: {labels[row]} at row {row}")
    check_at_least(1, batch_size=batch_size)
    check_at_least(0, shift=shift)
    part = Shard.of(shard)

    def augmented(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        selected, random = images[batch.rows], np.random.default_rng(batch.seed)
        if shift:
            selected = _moved(selected, shift, random)
        if flip:
            mirrored = random.random((len(selected), 1, 1, 1)) < 0.5
            selected = np.where(mirrored, selected[:, :, ::-1], selected)
        return selected, labels[batch.rows]

    order = RowOrder(len(images), batch_size, shuffle, part, complete=False)
    return batches(order, augmented, seed, (images, labels))


def _moved(images: np.ndarray, shift: int, random: np.random.Generator) -> np.ndarray:
    """Pad each image and crop it at a random offset."""
    padded = np.pad(images, [(0, 0), (shift, shift), (shift, shift), (0, 0)])
    count, height, width, _ = images.shape
    rows, columns = (
        random.integers(2 * shift + 1, size=(count, 1)) + np.arange(size) for size in (height, width)
    )
    return padded[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None]]
