"""MNIST: 70,000 handwritten digits of 28 × 28 pixels."""

import functools
import gzip
import os

import numpy as np

from keras_transformer.datasets import files

ADDRESS = "https://storage.googleapis.com/cvdf-datasets/mnist"
# Hashes of the unpacked content, because .gz files depend on the program that wrote them.
_SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}


def load_data(
    folder: str | os.PathLike[str] | None = None,
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Load the images of MNIST and their labels, the digits.

    Args:
        folder: the folder with the four `.gz` files in IDX format. By default `mnist` in the folder that the
            environment variable `KERAS_TRANSFORMER_DATA` names; if it is not set, the files are downloaded with
            `keras.utils.get_file`.

    Returns:
        `(train_images, train_labels), (test_images, test_labels)`: uint8 (n, 28, 28, 1) and int32 (n,), with n = 60,000
        and 10,000.

    Raises:
        FileNotFoundError: if a file is not in the folder.
        ValueError: if the SHA-256 of a file does not match.

    Example:
        >>> (images, labels), _ = load_data()  # doctest: +SKIP

    References:
        LeCun et al., "Gradient-Based Learning Applied to Document Recognition" (1998).
    """
    images, labels, test_images, test_labels = (_array(name, folder) for name in _SHA256)
    return (images[..., None], labels.astype("int32")), (test_images[..., None], test_labels.astype("int32"))


def _array(name: str, folder: str | os.PathLike[str] | None) -> np.ndarray:
    """Read the array of an IDX file: two zero bytes, the type (8: uint8), the rank, the sizes in int32, the values."""
    read = functools.partial(files.content, "mnist", f"{name}.gz", ADDRESS, _SHA256[name])
    content = read(folder, gzip.decompress)
    rank = content[3]
    shape = np.frombuffer(content, ">i4", rank, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)
