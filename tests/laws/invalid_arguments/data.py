"""Invalid arguments of datasets, losses and metrics."""

import dataclasses

import numpy as np

from keras_transformer import data, models, text, training

from .table import InvalidCalls, must

invalid = InvalidCalls()
IDS = np.full((2, 5), 7, "int32")
LABELS = "`y_true` must have the shape of `y_pred` without its last axis. Received: y_true.shape="


@dataclasses.dataclass
class Unbounded:
    """A tokenizer with ids beyond its vocabulary size."""

    tokenizer: text.ByteTokenizer = dataclasses.field(default_factory=text.ByteTokenizer)
    vocabulary_size: int = 60

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)


invalid(
    lambda files: training.average_checkpoints(models.GPT(40, 1, 2, 8), files),
    {},
    *[
        ({"files": [name]}, f"`files` must be existing files. Received: files[0]={name!r}")
        for name in ("nope.h5", ".")
    ],
    name="average_checkpoints",
    error=FileNotFoundError,
)
invalid(
    lambda **labels: training.LabelSmoothedCrossentropy()(**labels),
    {"y_true": IDS},
    ({"y_pred": np.ones((2, 4, 9), "float32")}, f"{LABELS}(2, 5), y_pred.shape=(2, 4, 9)"),
    name="loss",
)
invalid(
    lambda **labels: training.TokenAccuracy()(**labels),
    {"y_pred": np.ones((2, 5, 9), "float32")},
    ({"y_true": IDS[0]}, f"{LABELS}(5,)"),
    name="metric",
)
invalid(training.LabelSmoothedCrossentropy, {}, must("be in [0, 1)", smoothing="0.1"))
invalid(training.TransformerSchedule, {}, must("be positive", model_dim="16"))
OUTSIDE = "`tokenizer` must have ids in [0, 60), its vocabulary. Received: 101 at row 0, column 0"
invalid(
    lambda texts: data.language_modeling(texts, Unbounded(), length=4),
    {},
    ({"texts": ["ab", "b\u00f1"]}, OUTSIDE),
    name="language_modeling",
)
invalid(
    lambda pairs: data.translation_pairs(pairs, Unbounded()),
    {},
    ({"pairs": [("!", "ab")]}, OUTSIDE),
    name="translation_pairs",
)
invalid(
    data.image_batches,
    {"images": np.zeros((2, 4, 4, 1))},
    ({"labels": np.array([0, np.nan])}, "`labels` must be finite. Received: nan at row 1"),
)
