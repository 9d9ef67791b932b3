"""Images to the names of their classes."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.arguments import check_positive
from keras_transformer.pipelines import class_labels, folders


class ImageClassification(folders.Saved):
    """An image classifier and the names of its classes; or a regression.

    What it answers is the model's `problem_type`, see `TextClassification`.

    Args:
        model: such as `models.ViT`, with a head.
        labels: a name for each class, by default its number.
        resize: whether images of another size are scaled to the model's, or else refused.
        threshold: the probability above which a label is part of the answer, where the model's `problem_type` is
            "multi_label_classification".

    Raises:
        ValueError: where the model has no head, or another number of classes than labels.

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
            batch_size: images that run together; it changes the speed alone.

        Returns:
            A list of answers as long as `images`, or one answer for one image.

        Raises:
            ValueError: where images have another size, or values that are not in the model's range.
        """
        return class_labels.answers(self, self.scores(images, batch_size))

    def probabilities(self, images: Any, batch_size: int = 64) -> np.ndarray:
        """Return the probability of each class, float32 (n, C), or (C,) for one image.

        Raises:
            ValueError: as in a call, or where the model is a regression.
        """
        return class_labels.probabilities(self, self.scores(images, batch_size))

    def scores(self, images: Any, batch_size: int = 64) -> np.ndarray:
        """Return what the answers are made from, float32 (n, C), or (C,) for one image: probabilities, or numbers."""
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
        """Float images scaled to the model's size."""
        return keras.ops.image.resize(
            images, self.model.image_size, antialias=True, data_format="channels_last"
        )

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments besides the model."""
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
            if not (low <= least and most <= high):  # NaN is neither
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
