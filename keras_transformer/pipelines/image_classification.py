"""Image classification."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np

from keras_transformer.lazy_tensorflow import is_installed, tf
from keras_transformer.models import ViT
from keras_transformer.pipelines.arguments import check_model
from keras_transformer.pipelines.classification import ClassifierPipeline
from keras_transformer.pipelines.forward import FORWARD, ForwardPipeline, check_no_texts
from keras_transformer.pipelines.pipeline import DEFAULT, Arrays, Preprocessed
from keras_transformer.typing import Tensor
from keras_transformer_serving import files
from keras_transformer_serving.pipelines.classification import ImageTask
from keras_transformer_serving.pipelines.errors import Errors, InvalidInputError, RowErrors, check_batch_size
from keras_transformer_serving.pipelines.texts import as_floats
from keras_transformer_serving.tasks import Row

_PREPROCESSOR = "preprocessor_config.json"
_BILINEAR = 2


class ImageClassification(ImageTask, ClassifierPipeline, ForwardPipeline):
    """A pipeline of an image classifier or regression model and the names of its classes.

    Its outputs depend on the model's `problem_type`; see `TextClassification`.

    Args:
        model: such as `models.ViT`, with a head.
        labels: a name for each class, by default its index.
        resize: whether to resize images to the model's size; otherwise images of other sizes raise an error.
        threshold: the probability above which a label is returned, if the model's `problem_type` is
            "multi_label_classification".

    Example:
        >>> classifier = ImageClassification(model, labels=["cat", "dog"])
        >>> classifier(images)
        ['dog', 'cat']
    """

    summary: ClassVar[str] = "It labels or rates an image."
    hub_task: ClassVar[str | None] = "image-classification"
    model_classes: ClassVar[tuple[type, ...]] = (ViT,)

    def __init__(
        self,
        model: Any,
        labels: Sequence[Any] | None = None,
        resize: bool = False,
        threshold: float = 0.5,
    ) -> None:
        check_model(model, "a classifier of images, such as `models.ViT`", "image_size")
        if model.num_classes is None:
            raise ValueError("`model` must have a head. Received: model.num_classes=None")
        self.model = model
        self.resize = resize
        self._set_classes(labels, threshold)

    def __call__(self, images: Any, batch_size: int = 64, *, errors: Errors = "raise") -> Any:
        """Return the label, the labels or the number of each image.

        Args:
            images: (n, height, width, channels), or one image without the first axis, with values in the model's
                `value_range`.
            batch_size: the number of images in a batch.
            errors: "raise" the error of an image with values out of the range, or "return" it in place of the result.

        Returns:
            A list as long as `images`, or a single result for one image.
        """
        return self._classified(self.answer, images, batch_size, errors)

    def probabilities(self, images: Any, batch_size: int = 64, *, errors: Errors = "raise") -> Any:
        """Return the probability of each class, float32 (n, C), or (C,) for one image.

        With errors="return", it is a list of rows (C,) and errors.

        Raises:
            ValueError: as in a call, or if the model is a regression.
        """
        self._check_has_probabilities()
        return self.scores(images, batch_size, errors=errors)

    def scores(self, images: Any, batch_size: int = 64, *, errors: Errors = "raise") -> Any:
        """Return the probabilities, or the numbers of a regression, as `probabilities` does."""
        scores = self._classified(self.row_scores, images, batch_size, errors)
        return scores if errors == "return" else as_floats(scores, len(self.labels))

    def preprocess(self, pixel_values: Tensor) -> Preprocessed:
        """Check images (B, height, width, channels) and optionally resize them, as TensorFlow operations."""
        pixel_values, (low, high) = tf.cast(pixel_values, tf.float32), self.model.value_range
        lowest, highest = (reduce(pixel_values, axis=[1, 2, 3]) for reduce in (tf.reduce_min, tf.reduce_max))
        inside = tf.reduce_all(
            (pixel_values >= low) & (pixel_values <= high), axis=[1, 2, 3]
        )  # false for NaN
        error = tf.strings.join(
            [
                f"`images` must have values from {low} to {high}. Received: values from ",
                tf.strings.as_string(lowest, shortest=True),
                " to ",
                tf.strings.as_string(highest, shortest=True),
            ]
        )
        if self.resize:
            pixel_values = tf.image.resize(pixel_values, self.model.image_size, antialias=True)
        return Preprocessed({"pixel_values": pixel_values}, tf.where(inside, "", error), {})

    def rows(self, inputs: Sequence[Any], *arguments: Any, **options: Any) -> dict[int, Row]:
        """Return the outputs of each valid image; see `ForwardPipeline`."""
        if self.resize and not is_installed():
            (images,) = inputs
            resized = keras.ops.image.resize(
                np.asarray(images, "float32"), self.model.image_size, antialias=True
            )
            inputs = [np.asarray(resized)]
        return super().rows(inputs, *arguments, **options)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the logits and, for a classifier, the probabilities (B, C)."""
        return super().forward(inputs["pixel_values"])

    def postprocess(self, outputs: dict[str, Tensor], batch: Preprocessed) -> dict[str, Tensor]:
        """Convert scores to answers; see `ClassifierPipeline.answers_of`."""
        return self.answers_of(self.scores_of(outputs))

    def example_inputs(self, texts: Any = None) -> dict[str, list[Arrays]]:
        """Return random images as inputs of an export's signatures; see `Pipeline`."""
        check_no_texts(self, texts)
        random, (low, high) = np.random.default_rng(0), self.model.value_range
        shape = (*self.model.image_size, self.model.num_channels)
        images = [
            {"pixel_values": random.uniform(low, high, (count, *shape)).astype("float32")} for count in (3, 1)
        ]
        return {FORWARD: images, DEFAULT: images}

    @classmethod
    def hugging_face_arguments(
        cls, folder: pathlib.Path, config: Any, model: Any, settings: Any
    ) -> dict[str, Any]:
        """Return the names of the classes and whether to resize; fold the normalisation into the weights."""
        path = folder / _PREPROCESSOR
        preprocessor = files.read_json(path) if path.is_file() else {}
        _check_preprocessor(path, preprocessor, model)
        if preprocessor.get("do_normalize", True):
            set_normalization(model, preprocessor.get("image_mean", 0.5), preprocessor.get("image_std", 0.5))
        else:
            set_normalization(model, 0.0, 1.0)
        # Only bilinear interpolation is supported, so do not resize with another one.
        resize = (
            bool(preprocessor.get("do_resize", True)) and preprocessor.get("resample", _BILINEAR) == _BILINEAR
        )
        return {**super().hugging_face_arguments(folder, config, model, settings), "resize": resize}

    def write_hugging_face(self, folder: pathlib.Path) -> None:
        """Write the preprocessor of images in [−1, 1], the values that the weights expect."""
        height, width = self.model.image_size
        preprocessor = {
            "image_processor_type": "ViTImageProcessor",
            "do_resize": self.resize,
            "size": {"height": height, "width": width},
            "resample": _BILINEAR,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": [0.5] * self.model.num_channels,
            "image_std": [0.5] * self.model.num_channels,
        }
        files.write_json(folder / _PREPROCESSOR, preprocessor)

    @classmethod
    def keras_hub_arguments(cls, model: Any, tokenizer: Any, converted: Any) -> dict[str, Any]:
        """Return no arguments, but fold the image converter's scale and offset into the weights."""
        converter = image_converter_of(model)
        if converter is not None:
            scale = np.asarray(1.0 if converter.scale is None else converter.scale, "float64")
            offset = np.asarray(0.0 if converter.offset is None else converter.offset, "float64")
            set_normalization(converted, -offset / (255 * scale), 1 / (255 * scale))
        return {}

    def export_config(self) -> dict[str, Any]:
        """Return the settings that serving needs to run an export without this package."""
        sizes = {name: getattr(self.model, name) for name in ("image_size", "num_channels", "value_range")}
        return {**super().export_config(), **sizes}

    def _classified(self, convert: Any, images: Any, batch_size: int, errors: Errors) -> Any:
        check_batch_size(batch_size)
        images = np.asarray(images)
        if images.shape == (0,):
            return []
        if images.ndim == 3:
            return self._classified(convert, images[None], batch_size, errors)[0]
        self._check(images)
        row_errors = RowErrors(errors)
        for row, image in enumerate(images):
            with row_errors.catching(row):
                self._check_range(image)
        accepted, config = row_errors.accepted(len(images)), self.config
        rows = self.rows([images], batch_size, accepted, row_errors)
        return row_errors.merge({row: convert(outputs, config) for row, outputs in rows.items()})

    def _check(self, images: np.ndarray) -> None:
        size, (low, high) = self.model.image_size, self.model.value_range
        if images.ndim != 4 or images.shape[3] != self.model.num_channels:
            raise ValueError(
                f"`images` must be (n, height, width, {self.model.num_channels}). "
                f"Received: images.shape={images.shape}"
            )
        if not self.resize and images.shape[1:3] != size:
            raise ValueError(
                f"`images` must have the size {size}, unless resize=True. Received: images.shape={images.shape}"
            )
        if images.size and high >= 255 and images.dtype.kind == "f":
            lowest, highest = images.min(), images.max()
            if lowest >= 0 and 0 < highest <= 1:
                raise ValueError(
                    f"`images` must have values from {low} to {high}; these look like values up to 1. "
                    f"Received: {images.dtype} values from {lowest} to {highest}"
                )

    def _check_range(self, image: np.ndarray) -> None:
        low, high = self.model.value_range
        if not ((image >= low) & (image <= high)).all():  # false for NaN
            raise InvalidInputError(
                "images",
                f"`images` must have values from {low} to {high}. "
                f"Received: values from {image.min():g} to {image.max():g}",
            )


def _check_preprocessor(path: pathlib.Path, preprocessor: Mapping[str, Any], model: Any) -> None:
    size = preprocessor.get("size", model.image_size[0])
    size = (size.get("height"), size.get("width")) if isinstance(size, Mapping) else (size, size)
    scale = preprocessor.get("rescale_factor", 1 / 255)
    if (
        tuple(size) != tuple(model.image_size)
        or not np.isclose(scale, 1 / 255)
        or not preprocessor.get("do_rescale", True)
    ):
        raise ValueError(
            f"`{path}` must describe images of the model's size {tuple(model.image_size)} and values from 0 to 255. "
            f"Received: size={size}, do_rescale={preprocessor.get('do_rescale', True)}, rescale_factor={scale}"
        )
    for name in ("image_mean", "image_std"):
        if np.size(value := preprocessor.get(name, 0.5)) not in (1, model.num_channels):
            raise ValueError(
                f"`{path}` must have {name} for each of the model's channels, num_channels={model.num_channels}. "
                f"Received: {name}={value}"
            )


def image_converter_of(model: Any) -> Any:
    """Return the image converter of the preprocessor of a model of KerasHub, or None."""
    return getattr(getattr(model, "preprocessor", None), "image_converter", None)


def set_normalization(model: Any, mean: Any, deviation: Any) -> None:
    """Fold the normalisation (x / 255 − mean) / deviation into the patch embedding, whose inputs are in [−1, 1].

    With y = 2 x / 255 − 1 it equals y / (2 deviation) + (1 / 2 − mean) / deviation.
    """
    channels = model.num_channels
    mean, deviation = (np.broadcast_to(np.asarray(value, "float64"), channels) for value in (mean, deviation))
    kernel = keras.ops.convert_to_numpy(model.embedding.kernel).astype(
        "float64"
    )  # (size · size · channels, D)
    by_channel = kernel.reshape(-1, channels, kernel.shape[1])
    shift = np.einsum("pcd,c->d", by_channel, (0.5 - mean) / deviation)
    model.embedding.bias.assign(keras.ops.convert_to_numpy(model.embedding.bias) + shift)
    model.embedding.kernel.assign((by_channel / (2 * deviation)[:, None]).reshape(kernel.shape))
