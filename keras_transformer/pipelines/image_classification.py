"""Image classification."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.arguments import check_positive
from keras_transformer.pipelines import class_labels, folders


class ImageClassification(folders.Pipeline):
    """A pipeline of an image classifier, or regression, and the names of its classes.

    The form of its outputs depends on the model's `problem_type`, see `TextClassification`.

    Args:
        model: such as `models.ViT`, with a head.
        labels: a name for each class, by default its index.
        resize: whether to resize images to the model's size; otherwise images of other sizes are refused.
        threshold: the probability above which a label is returned, if the model's `problem_type` is
            "multi_label_classification".

    Raises:
        ValueError: if the model has no head, or another number of classes than labels.

    Example:
        >>> classifier = ImageClassification(model, labels=["cat", "dog"])
        >>> classifier(images)
        ['dog', 'cat']
    """

    def __init__(
        self,
        model: Any,
        labels: Sequence[Any] | None = None,
        resize: bool = False,
        threshold: float = 0.5,
    ) -> None:
        if model.num_classes is None:
            raise ValueError("`model` must have a head. Received: model.num_classes=None")
        self.model = model
        self.labels = class_labels.check(labels, model.num_classes)
        self.resize = resize
        self.problem_type = class_labels.problem_type(model)
        self.threshold = class_labels.check_threshold(threshold)

    def __call__(self, images: Any, batch_size: int = 64) -> Any:
        """Return the label, the labels or the number of each image.

        Args:
            images: (n, height, width, channels), or one without the first axis; values in the model's
                `value_range`.
            batch_size: the number of images in a batch.

        Returns:
            A list as long as `images`, or a single result for one image.

        Raises:
            ValueError: if images have another size, or values out of the model's range.
        """
        return class_labels.answers(self, self.scores(images, batch_size))

    def probabilities(self, images: Any, batch_size: int = 64) -> np.ndarray:
        """Return the probability of each class, float32 (n, C), or (C,) for one image.

        Raises:
            ValueError: as in a call, or if the model is a regression.
        """
        return class_labels.probabilities(self, self.scores(images, batch_size))

    def scores(self, images: Any, batch_size: int = 64) -> np.ndarray:
        """Return the probabilities, or the numbers of a regression, float32 (n, C), or (C,) for one image."""
        check_positive(batch_size=batch_size)
        images = np.asarray(images)
        if images.ndim == 3:
            return self.scores(images[None], batch_size)[0]
        images = self._checked(images)
        logits = [
            keras.ops.convert_to_numpy(self.model(images[i : i + batch_size], training=False))
            for i in range(0, max(1, len(images)), batch_size)
        ]
        return class_labels.scores(self, np.concatenate(logits))

    def resized(self, images: Any) -> Any:
        """Resize float images to the model's size."""
        return keras.ops.image.resize(
            images, self.model.image_size, antialias=True, data_format="channels_last"
        )

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments except the model."""
        return {"labels": self.labels, "resize": self.resize, "threshold": self.threshold}

    def _checked(self, images: np.ndarray) -> np.ndarray:
        size, (low, high) = self.model.image_size, self.model.value_range
        if images.ndim != 4 or images.shape[3] != self.model.num_channels:
            raise ValueError(
                f"`images` must be (n, height, width, {self.model.num_channels}). "
                f"Received: images.shape={images.shape}"
            )
        if images.size:
            least, most = images.min(), images.max()
            if not (low <= least and most <= high):  # false for NaN
                raise ValueError(
                    f"`images` must have values from {low} to {high}. Received: values from {least} to {most}"
                )
            if high >= 255 and images.dtype.kind == "f" and 0 < most <= 1:
                raise ValueError(
                    f"`images` must have values from {low} to {high}; these look like values up to 1. "
                    f"Received: {images.dtype} values from {least} to {most}"
                )
        if images.shape[1:3] == size:
            return images
        if not self.resize:
            raise ValueError(
                f"`images` must be of the size {size}, or resize=True. Received: images.shape={images.shape}"
            )
        return keras.ops.convert_to_numpy(self.resized(images.astype("float32")))
