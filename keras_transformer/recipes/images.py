"""Images in folders of classes, and the model of the recipe `Classify` for them."""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer import data, models, pipelines
from keras_transformer.lazy_tensorflow import tf
from keras_transformer.recipes.pretrained import check_pipeline
from keras_transformer.recipes.recipe import SIZES
from keras_transformer_options.arguments import ArgumentError
from keras_transformer_options.tasks import image_files

VIT_ARGUMENTS = {
    name: {argument: size[argument] for argument in (*SIZES, "patch_size")}
    for name, size in models.ViT.sizes.items()
}

Examples = Sequence[tuple[Any, ...]]


def read(folder: pathlib.Path, size: int) -> Examples:
    """Read the images (size, size, 3), uint8, of a folder with one folder of images for each class.

    Returns:
        Tuples of image, path in the folder, and class.
    """
    return [
        (load_image(path, size), str(path.relative_to(folder)), path.parent.name)
        for path in image_files(folder, "paths")
    ]


def load_image(path: pathlib.Path, size: int | None = None) -> np.ndarray:
    """Read an image file as uint8 (height, width, 3), resized as the pipeline does."""
    try:
        image = tf.io.decode_image(tf.io.read_file(str(path)), channels=3, expand_animations=False)
    except tf.errors.InvalidArgumentError:
        raise ArgumentError(
            "{paths} must be images in PNG, JPEG, GIF or BMP. Received: {path!s}", path=path
        ) from None
    if size is not None:
        image = tf.cast(tf.round(tf.image.resize(image, (size, size), antialias=True)), tf.uint8)
    return image.numpy()


def gray(images: np.ndarray) -> np.ndarray:
    """Return the mean of the channels of images (…, channels) as uint8 (…, 1)."""
    means: np.ndarray = images.mean(axis=-1, keepdims=True).round().astype("uint8")
    return means


def arrays(splits: Any) -> tuple[Examples, Examples, Examples]:
    """Return examples from the arrays (train, test) of a dataset; the last tenth of train is for validation."""
    train, test = (
        [(image.reshape(*image.shape[:2], -1), str(label)) for image, label in zip(*split, strict=True)]
        for split in splits
    )
    cut = len(train) * 9 // 10
    return train[:cut], train[cut:], test


def new_model(recipe: Any, num_classes: int, shape: tuple[int, ...]) -> Any:
    """Create a ViT for images of a shape, or with the weights of `from_` and a new head."""
    if recipe.from_ is not None:
        pipeline = check_pipeline(recipe.pretrained(), pipelines.ImageClassification)
        return _with_head(pipeline.model, num_classes)
    sizes = recipe.sizes()
    if recipe.patch_size is not None or "patch_size" not in sizes:
        sizes["patch_size"] = recipe.patch_size or _patch_size(shape[0])
    sizes.setdefault("hidden_dim", 4 * sizes["model_dim"])
    return models.ViT(shape[:2], num_classes=num_classes, num_channels=shape[2], **sizes)


def batches(recipe: Any, examples: Examples, labels: np.ndarray, shuffle: bool) -> Any:
    """Return batches of images and labels."""
    images = np.stack([example[0] for example in examples])
    return data.image_batches(images, labels, **recipe.batching(shuffle))


def _patch_size(size: int) -> int:
    """Return the largest divisor of the image size that gives at least 7 × 7 patches."""
    return max(patch for patch in range(1, max(1, size // 7) + 1) if size % patch == 0)


def _with_head(model: Any, num_classes: int) -> Any:
    """Return a ViT with the weights of another and a new head."""
    new = type(model).from_config({**model.get_config(), "num_classes": num_classes})
    weights = {weight.path.partition("/")[2]: weight for weight in model.weights}
    for weight in new.weights:
        old = weights[weight.path.partition("/")[2]]
        if old.shape == weight.shape or "head" not in weight.path:
            weight.assign(old)
    return new
