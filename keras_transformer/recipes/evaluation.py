"""Evaluation of pipelines that do not generate, on files of examples."""

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer import data
from keras_transformer_options.arguments import ArgumentError, check
from keras_transformer_options.metrics import EVALUATED
from keras_transformer_options.task_options import TASKS
from keras_transformer_serving.closeness import rank_correlation


def evaluate(pipeline: Any, paths: Sequence[Any], **options: Any) -> dict[str, float]:
    """Return the metrics of a pipeline on files of examples, by name.

    They are those of the report of its recipe, such as accuracy, F1 and the word error rate. Embeddings are evaluated
    on two texts and their similarity: Spearman's correlation of the similarities with the cosines.

    Args:
        pipeline: a pipeline whose class is one of `EVALUATED`, or its export, loaded by `keras_transformer_serving`.
        paths: the files, or a folder of images.
        **options: options of the recipe's files, such as "columns" and "format"; None for a default.

    Raises:
        ValueError: if the files are malformed, or the recipe has no such option.

    Example:
        >>> recipes.evaluate(classifier, ["test.tsv"])  # doctest: +SKIP
        {'accuracy': 0.91, 'macro_f1': 0.9}
    """
    options = {name: value for name, value in options.items() if value is not None}
    config = pipeline.config
    name = config["pipeline"]
    task = EVALUATED[name]
    if task is None:
        known = {*inspect.signature(data.read_examples).parameters}
    else:
        recipe_class = TASKS[task]
        known = {field.name for field in dataclasses.fields(recipe_class)}
    for option, value in options.items():
        if option not in known:
            raise ArgumentError(
                "{} must be None for the files of a {pipeline!s}", option, pipeline=name, **{option: value}
            )
    if task is None:
        return {
            "spearman": _similarity(pipeline, data.read_examples(paths, **{"columns": [0, 1, 2], **options}))
        }
    if name == "SpeechToText":
        options["sample_rate"] = config["sample_rate"]
    if name == "ImageClassification":
        options["image_size"] = config["image_size"][0]
    problem_type = config.get("problem_type")  # of classifiers
    check(problem_type != "regression", "be a classifier, not a regression", pipeline=name)
    several = problem_type == "multi_label_classification"
    check(
        several == ("label_separator" in options),
        "be what separates the labels of a text" if several else "be None for a pipeline of one label",
        label_separator=options.get("label_separator"),
    )
    check(
        config.get("aggregation") is None,
        "have aggregation=None, as the label of each word is evaluated",
        pipeline=f"aggregation={config.get('aggregation')!r}",
    )
    recipe: Any = recipe_class(data=paths, **options)
    with_examples = recipe.evaluate(pipeline, recipe.examples("data"))
    return {metric: value for metric, value in with_examples.items() if isinstance(value, float)}


def _similarity(pipeline: Any, rows: Sequence[Sequence[str]]) -> float:
    """Return Spearman's correlation of similarities with the cosines of two texts."""
    first, second, similarities = map(list, zip(*rows, strict=True))
    try:
        expected = np.array(similarities, "float64")
    except ValueError:
        raise ArgumentError(
            "{} must have a number, the similarity, in the third column. Received: {similarity!r}",
            "data",
            similarity=similarities[0],
        ) from None
    vectors = [np.asarray(pipeline(texts), "float64") for texts in (first, second)]
    units = [rows / np.linalg.norm(rows, axis=-1, keepdims=True) for rows in vectors]
    return rank_correlation(expected, (units[0] * units[1]).sum(axis=-1))
