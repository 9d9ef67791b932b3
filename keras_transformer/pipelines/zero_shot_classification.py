"""Classification of texts by labels of a call, with a model of entailment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from keras_transformer.lazy_tensorflow import tf
from keras_transformer.models import EncoderDecoderClassifier, SequenceClassifier
from keras_transformer.pipelines.arguments import check_model, check_output
from keras_transformer.pipelines.classification import check_labels, config_of_labels, labels_of
from keras_transformer.pipelines.example_texts import checked_rows
from keras_transformer.pipelines.pipeline import Arrays, Preprocessed
from keras_transformer.pipelines.ragged_rows import (
    accepted_rows,
    first_error,
    lengths_of,
    utf8_error,
    valid_utf8,
)
from keras_transformer.pipelines.texts import FORWARD, TextPipeline
from keras_transformer.typing import Tensor
from keras_transformer_serving.pipelines.texts import RIGHT
from keras_transformer_serving.pipelines.zero_shot_classification import (
    PLACE,
    ZeroShotClassificationTask,
    check_multi_label,
    check_template,
    checked_labels,
    entailment_classes,
    template_error,
)
from keras_transformer_serving.pipelines.zero_shot_classification import ScoredLabel as ScoredLabel

_MODEL = "a classifier of texts, such as `models.SequenceClassifier`"


class ZeroShotClassification(ZeroShotClassificationTask, TextPipeline):
    r"""A pipeline of a classifier of entailment (NLI), which scores any labels for a text, and its tokenizer.

    The classifier reads the text as the premise and, for each label $l$, a hypothesis such as "This example is sports."
    With its logits $e_l$ of entailment and $c_l$ of contradiction:

    $$\mathrm{score}(l) = \frac{\exp e_l}{\sum_k \exp e_k}, \qquad
    \mathrm{score}(l) = \frac{\exp e_l}{\exp e_l + \exp c_l} \text{ with `multi_label` or one label}$$

    Args:
        model: such as `models.SequenceClassifier`, trained on pairs of a premise and a hypothesis.
        tokenizer: with the model's vocabulary.
        labels: the names of its classes. That of entailment begins with "entail", that of contradiction with "contra";
            without the second, contradiction is the first class or, if that is entailment, the last.
        candidate_labels: the labels for texts in calls without labels, also as a string with commas; by default none.
        hypothesis_template: the hypothesis, with {} in place of the label.
        multi_label: whether several labels can apply to a text.
        long_texts: "refuse" to raise an error for texts that are too long beside a label, or "truncate" to cut them.
        max_length: the maximum number of tokens of a pair, including special ones; by default the model's.
        truncation_side: what truncate=True keeps of a text that is too long: "right" its first tokens, "left" its last.

    Raises:
        ValueError: if no class means entailment, model, tokenizer and labels do not match, or an argument has another
            value.

    Example:
        >>> classifier = ZeroShotClassification(model, tokenizer, ["contradiction", "neutral", "entailment"])
        >>> classifier("a dog barks", ["animals", "sports"])
        [ScoredLabel(label='animals', score=0.98), ScoredLabel(label='sports', score=0.02)]

    References:
        Yin et al., "Benchmarking Zero-shot Text Classification" (2019), section 5.
    """

    summary: ClassVar[str] = "It says which of any labels apply to a text."
    hub_task: ClassVar[str | None] = "zero-shot-classification"
    long_text_options: ClassVar[tuple[str, ...]] = ("refuse", "truncate")

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        labels: Sequence[Any],
        candidate_labels: str | Iterable[str] | None = None,
        hypothesis_template: str = "This example is {}.",
        multi_label: bool = False,
        long_texts: str = "refuse",
        *,
        max_length: int | None = None,
        truncation_side: str = RIGHT,
    ) -> None:
        super().__init__(model, tokenizer, long_texts, max_length, truncation_side)
        check_model(model, _MODEL, "num_classes")
        check_output(model, _MODEL, (None, model.num_classes))
        self.labels = check_labels(labels, model.num_classes)
        entailment_classes(self.labels)
        check_template(hypothesis_template)
        check_multi_label(multi_label)
        self.candidate_labels = None if candidate_labels is None else checked_labels(candidate_labels)
        self.hypothesis_template = hypothesis_template
        self.multi_label = multi_label

    @classmethod
    def classes_of_folders(cls) -> tuple[type, ...]:
        """Return the classes of classifiers of texts, whose own pipeline is `TextClassification`."""
        return (SequenceClassifier, EncoderDecoderClassifier)

    @classmethod
    def hugging_face_arguments(cls, folder: Any, config: Any, model: Any, settings: Any) -> dict[str, Any]:
        """Return the names of the classes."""
        return {} if "labels" in settings else {"labels": labels_of(config) or range(model.num_classes)}

    def hugging_face_config(self) -> dict[str, Any]:
        """Return the names of the classes."""
        return config_of_labels(self.labels)

    def preprocess(
        self,
        text: Tensor,
        candidate_labels: Tensor | None = None,
        hypothesis_template: Tensor | None = None,
        multi_label: Tensor | None = None,
        *,
        truncate: bool = False,
    ) -> Preprocessed:
        """Convert texts, strings (B,), and labels to the model's inputs, as TensorFlow operations.

        Args:
            text: the texts (B,).
            candidate_labels: the labels (B, N) or (1, N) of each text, padded with ""; by default the pipeline's.
            hypothesis_template: the templates (B,) or (1,); by default the pipeline's.
            multi_label: whether several labels can apply (B,) or (1,); by default the pipeline's.
            truncate: whether to truncate texts that are too long.
        """
        count = tf.shape(text)[0]
        labels = [self.candidate_labels or []] if candidate_labels is None else candidate_labels
        template = [self.hypothesis_template] if hypothesis_template is None else hypothesis_template
        several = [self.multi_label] if multi_label is None else multi_label
        labels = tf.convert_to_tensor(labels, tf.string)
        # One column more, for the row of ids of an invalid text.
        labels = tf.pad(
            tf.broadcast_to(labels, [count, tf.shape(labels)[1]]), [[0, 0], [0, 1]], constant_values=""
        )
        template = tf.broadcast_to(tf.convert_to_tensor(template, tf.string), [count])
        parts = tf.strings.split(template, PLACE)
        named = labels != ""
        error = first_error(
            utf8_error(text=text),
            tf.where(
                tf.reduce_all(valid_utf8(labels) == labels, axis=1),
                "",
                "`candidate_labels` must be UTF-8. Received: other bytes",
            ),
            utf8_error(hypothesis_template=template),
            tf.where(
                tf.reduce_any(named, axis=1),
                "",
                "`candidate_labels` must have at least one label. Received: none",
            ),
            tf.where(parts.row_lengths() == 2, "", tf.strings.join([template_error(""), template])),
        )
        before, after = tf.unstack(parts.to_tensor("", shape=[None, 2]), axis=1)
        named = _with_a_row(named, error)
        owner, column = (tf.cast(places, tf.int32) for places in tf.unstack(tf.where(named), axis=1))
        chosen = tf.boolean_mask(labels, named)
        hypotheses = tf.strings.join([tf.gather(before, owner), chosen, tf.gather(after, owner)])
        # One call, since each would trace the tokenizer.
        ids = self.tokenizer.tokenize(tf.concat([text, hypotheses], axis=0))
        first, second = ids[:count], ids[count:]
        limit, lengths = self._max_ids(2), lengths_of(first)
        room = limit - tf.math.unsorted_segment_max(lengths_of(second), owner, count)
        fits = (room >= 0) & (lengths <= room)
        if truncate or self.long_texts == "truncate":
            fits |= room > 0
        too_long = tf.strings.join(
            [
                "`text` must have at most ",
                tf.strings.as_string(tf.maximum(room, 0)),
                f" tokens each beside its `candidate_labels`, as `max_length` is {self.max_length}. Received: ",
                tf.strings.as_string(lengths),
                " tokens",
            ]
        )
        error = first_error(error, tf.where(fits, "", too_long))
        first, second = tf.gather(first, owner), accepted_rows(second, tf.gather(error, owner))
        first = self._truncated(first, tf.where(tf.gather(error, owner) == "", limit - lengths_of(second), 0))
        state = {
            "owner": owner,
            "column": column,
            "labels": labels,
            "multi_label": tf.broadcast_to(tf.convert_to_tensor(several, tf.bool), [count]),
        }
        return Preprocessed(self._inputs(first, second), error, state)

    def forward(self, inputs: Any) -> dict[str, Tensor]:
        """Return the logits (R, C)."""
        return {"logits": getattr(self.model, "classify", self.model)(inputs, training=False)}

    def postprocess(self, outputs: dict[str, Tensor], batch: Preprocessed) -> dict[str, Tensor]:
        """Return "labels" and "scores" (B, N), padded with "" and 0."""
        state, logits = batch.state, outputs["logits"]
        places = tf.stack([state["owner"], state["column"]], axis=1)
        size = tf.shape(state["labels"])

        def by_label(values: Tensor) -> Tensor:
            return tf.tensor_scatter_nd_update(tf.fill(size, values.dtype.min), places, values)

        entailment, contradiction = (logits[:, index] for index in entailment_classes(self.labels))
        named = (state["labels"] != "") & (batch.error == "")[:, None]
        several = state["multi_label"] | (tf.reduce_sum(tf.cast(named, tf.int32), axis=1) == 1)
        scores = tf.where(
            several[:, None],
            by_label(tf.sigmoid(entailment - contradiction)),
            tf.nn.softmax(by_label(entailment)),
        )
        return {
            "labels": tf.ragged.boolean_mask(state["labels"], named).to_tensor(""),
            "scores": tf.ragged.boolean_mask(scores, named).to_tensor(0.0),
        }

    def example_batch(self, rows: Sequence[tuple[str, ...]]) -> Preprocessed:
        """Convert texts to the model's inputs, with labels; see `Pipeline`."""
        return self.preprocess(tf.constant([text for (text,) in rows]), tf.constant([self._example_labels()]))

    def _example_labels(self) -> list[str]:
        return self.candidate_labels or [text for text in self.example_texts() if text][:3]

    def example_inputs(self, texts: Sequence[Any] | None = None) -> dict[str, list[Arrays]]:
        """Return inputs of an export's signatures, including labels and options; see `Pipeline`."""
        labels = self._example_labels()
        if texts is None:
            given = [(text,) for text in self.example_texts()]
            errors = self.example_batch(given).error.numpy()
            rows = [text for (text,), error in zip(given, errors, strict=True) if not error]
        else:
            rows = [text for (text,) in checked_rows(texts, 1)]
        values = {
            "text": rows,
            "candidate_labels": [labels] * len(rows),
            "hypothesis_template": np.resize([self.hypothesis_template, PLACE], len(rows)),
            "multi_label": np.resize([self.multi_label, not self.multi_label], len(rows)),
        }
        examples = {FORWARD: [*self._example_ids(), *(self._batches_of(texts) if texts is not None else ())]}
        for name, inputs in self.columns(self.config).items():
            arrays = {tensor.name: np.array(values[tensor.name]) for tensor in inputs}
            examples[name] = [arrays, {key: array[:1] for key, array in arrays.items()}]
        return examples


def _with_a_row(named: Tensor, error: Tensor) -> Tensor:
    """Return which labels (B, N) have a row of ids: those that are named; of a text with an error (B,) the last."""
    last = tf.range(tf.shape(named)[1]) == tf.shape(named)[1] - 1
    return tf.where((error == "")[:, None], named, last)
