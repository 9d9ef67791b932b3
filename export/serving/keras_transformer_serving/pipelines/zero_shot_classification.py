"""Classification of texts by labels of a request, with a model of entailment."""

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer_serving import closeness
from keras_transformer_serving.pipelines.errors import Errors, InvalidInputError, check_string
from keras_transformer_serving.pipelines.texts import (
    Arrays,
    IdRows,
    TextPipeline,
    TextTask,
    Truncate,
    softmax,
)
from keras_transformer_serving.tasks import DEFAULT, TEXT, Row, Tensor

CLASSIFY = "classify"
PLACE = "{}"  # of the label in a template


class ScoredLabel(NamedTuple):
    """A label and its probability.

    Attributes:
        label: the label.
        score: its probability among the labels; with `multi_label`, that it applies.
    """

    label: str
    score: float


class ZeroShotClassificationTask(TextTask):
    """The classification of texts by labels of a request."""

    def __call__(  # type: ignore[override]
        self,
        text: str | Iterable[str],
        candidate_labels: str | Iterable[str] | None = None,
        batch_size: int = 32,
        *,
        hypothesis_template: str | None = None,
        multi_label: bool | None = None,
        errors: Errors = "raise",
        truncate: bool = False,
    ) -> Any:
        """Score labels for texts.

        Args:
            text: a list of texts, or one string.
            candidate_labels: the labels, also as a string in which commas separate them; by default the setting of this
                name.
            batch_size: the number of pairs of a text and a label in a batch.
            hypothesis_template: what the label says of a text, with {} in place of the label; by default the setting.
            multi_label: whether several labels can apply to a text; by default the setting.
            errors: "raise" the error of a text, or "return" it in place of the answer.
            truncate: whether to cut a text that is too long, keeping its first tokens, as `transformers` does.

        Returns:
            For each text a list of `ScoredLabel`, the most probable first, or this list for one string.

        Raises:
            ValueError: if a text is too long beside a label, there is no label, or the template has no place for it.
        """
        given = {
            "candidate_labels": candidate_labels,
            "hypothesis_template": hypothesis_template,
            "multi_label": multi_label,
        }
        options = {name: self.config[name] if value is None else value for name, value in given.items()}
        if options["candidate_labels"] is None:
            raise ValueError(
                "`candidate_labels` must be given for a pipeline without this setting. Received: candidate_labels=None"
            )
        options["candidate_labels"] = checked_labels(options["candidate_labels"])
        check_template(options["hypothesis_template"])
        check_multi_label(options["multi_label"])
        return self._answers({"text": text}, batch_size, errors=errors, truncate=truncate, options=options)

    @classmethod
    def columns(cls, config: dict[str, Any]) -> dict[str, tuple[Tensor, ...]]:
        """Return the inputs: a text and, unless they are a setting, labels; of CLASSIFY also the options."""
        default = config["candidate_labels"]
        labels = Tensor(
            "candidate_labels",
            "string",
            (None,),
            default=None if default is None else tuple(default),
            axis="num_labels",
        )
        options = (
            Tensor("hypothesis_template", "string", default=config["hypothesis_template"]),
            Tensor("multi_label", "bool", default=config["multi_label"]),
        )
        inputs = (TEXT, labels) if labels.required else (TEXT,)
        return {DEFAULT: inputs, CLASSIFY: (TEXT, labels, *options)}

    @classmethod
    def outputs(cls, config: dict[str, Any]) -> tuple[Tensor, ...]:
        """Return the outputs: the labels in their order, and their scores; padded with "" and 0."""
        return Tensor("labels", "string", (None,)), Tensor("scores", "float32", (None,))

    @classmethod
    def closeness(cls, pairs: Sequence[closeness.Pair], config: dict[str, Any]) -> closeness.Figures:
        """Return the figures of `closeness.choices` of the classes of pairs."""
        expected, found = closeness.real_values(pairs, "logits", closeness.softmax)
        return {**closeness.choices("labels", expected, found), **closeness.logits(pairs)}

    @classmethod
    def answer(cls, row: Row, config: dict[str, Any]) -> list[ScoredLabel]:
        """Return the labels of the outputs of a text, the most probable first."""
        columns = (np.asarray(row[name]).tolist() for name in ("labels", "scores"))
        scored = [ScoredLabel(label, score) for label, score in zip(*columns, strict=True) if label]
        return sorted(scored, key=lambda each: -each.score)

    @staticmethod
    def text(answer: list[ScoredLabel]) -> str:
        """Return each label and its score."""
        return ", ".join(f"{label}: {score:.3f}" for label, score in answer)


def entailment_classes(labels: Sequence[Any]) -> tuple[int, int]:
    """Return the indices of the classes that mean entailment and contradiction.

    The name of the first begins with "entail" in upper or lower case, that of the other with "contra"; without such a
    name, it is the first class or, if that means entailment, the last, as in `transformers`.
    """
    names = [str(label).lower() for label in labels]
    entailment = next((index for index, name in enumerate(names) if name.startswith("entail")), None)
    if entailment is None or len(names) < 2:
        raise ValueError(
            "`labels` must name two or more classes, one of which begins with 'entail'. "
            f"Received: labels={list(labels)}"
        )
    others = (index for index, name in enumerate(names) if name.startswith("contra"))
    return entailment, next(others, len(names) - 1 if entailment == 0 else 0)


def checked_labels(labels: Any) -> list[str]:
    """Return labels as a list of strings, from a list or from a string in which commas separate them."""
    if isinstance(labels, str):
        labels = [label.strip() for label in labels.split(",") if label.strip()]
    found = list(labels) if isinstance(labels, Iterable) else [labels]
    for row, label in enumerate(found):
        check_string("candidate_labels", row, label)
    if not found or "" in found:
        raise ValueError(
            f"`candidate_labels` must be one or more labels, not empty. Received: candidate_labels={labels!r}"
        )
    return found


def check_template(template: Any) -> None:
    """Raise an error unless a template is a string with one place for the label."""
    if not isinstance(template, str):
        raise TypeError(f"`hypothesis_template` must be a string. Received: hypothesis_template={template!r}")
    check_string("hypothesis_template", 0, template)
    if template.count(PLACE) != 1:
        raise ValueError(template_error(template))


def template_error(template: str) -> str:
    """Return the error of a template without one place for the label."""
    return f"`hypothesis_template` must have {PLACE} once, in place of the label. Received: {template}"


def check_multi_label(multi_label: Any) -> None:
    """Raise a TypeError unless it is a boolean."""
    if not isinstance(multi_label, bool):
        raise TypeError(f"`multi_label` must be True or False. Received: multi_label={multi_label!r}")


class _Hypotheses(NamedTuple):
    """The hypotheses of labels about a text.

    Attributes:
        rows: the ids of the text and of the hypothesis, for each label.
    """

    rows: IdRows


class _State(NamedTuple):
    """The labels of a text, and whether several can apply to it."""

    labels: list[str]
    multi_label: bool


class ZeroShotClassification(ZeroShotClassificationTask, TextPipeline):
    """An exported model of entailment that classifies texts by labels of a request; `load` creates it."""

    def preprocess(self, *texts: Any, truncate: Truncate = None) -> tuple[_Hypotheses, _State]:
        """Convert a text and its labels to pairs of ids, one for each label.

        Values after the text are the labels, the template and whether several labels can apply, by default those of the
        export. Empty labels pad those of a text.
        """
        text, *given = texts
        names = ("candidate_labels", "hypothesis_template", "multi_label")
        labels, template, multi_label = (*given, *(self.config[name] for name in names[len(given) :]))
        labels = [label for label in labels if label]
        if not labels:
            raise InvalidInputError(names[0], f"`{names[0]}` must have at least one label. Received: none")
        if template.count(PLACE) != 1:
            raise InvalidInputError(names[1], template_error(template))
        ids = self.tokenizer.tokenize(text)
        hypotheses = [self.tokenizer.tokenize(template.replace(PLACE, label)) for label in labels]
        self._check_padding(text=ids, candidate_labels=[id_ for each in hypotheses for id_ in each])
        limit = self._max_ids(2)
        room = limit - max(map(len, hypotheses))
        if room < 0 or (len(ids) > room and not (room and self._truncates(truncate))):
            raise InvalidInputError(
                "text",
                f"`text` must have at most {max(room, 0)} tokens each beside its `candidate_labels`, as `max_length` "
                f"is {self.config['max_length']}. Received: {len(ids)} tokens",
                "length",
            )
        rows: IdRows = [(self._truncated(ids, limit - len(each), truncate)[1], each) for each in hypotheses]
        return _Hypotheses(rows), _State(labels, bool(multi_label))

    def postprocess(self, outputs: Arrays, windows: _Hypotheses, state: _State) -> Row:
        """Return the labels and their scores, from the logits (W, C) of the hypotheses."""
        entailment, contradiction = self._classes
        logits = outputs["logits"]
        if state.multi_label or len(state.labels) == 1:
            scores = softmax(logits[:, [contradiction, entailment]])[:, 1]
        else:
            scores = softmax(logits[:, entailment])
        return {"labels": state.labels, "scores": scores}

    @functools.cached_property
    def _classes(self) -> tuple[int, int]:
        return entailment_classes(self.config["labels"])
